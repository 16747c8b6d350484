//! The options that an endpoint was given, checked one by one and against each other.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::secret::Secret;

use super::given::Given;
use super::option::{OptionValue, quoted};
use super::options::OPTIONS;
use super::pem::{Pem, Tls};
use super::provider::Provider;
use super::trim::{self, MinId, Trim};

/// The server: exactly one of the two is given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Tcp { host: String, port: Option<u16> },
    Unix(PathBuf),
}

/// Where the password is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Password {
    Given(Secret),
    Variable(String),
    File(PathBuf),
    Asked(Provider),
}

/// All options as they were given. Options with a process-wide default may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Explicit {
    pub(super) server: Server,
    pub(super) stream_key: Vec<u8>,
    pub(super) db: Option<u32>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) command_timeout: Option<Duration>,
    pub(super) maxlen: Option<u64>,
    pub(super) maxlen_approximate: bool,
    pub(super) minid: Option<MinId>,
    pub(super) trim_every: u64,
    pub(super) nomkstream: bool,
    pub(super) consumer_group: Option<Vec<u8>>,
    pub(super) tls: Option<Tls>,
    /// Follows from `maxlen`, `minid`, `maxlen_approximate` and `trim_every`; here so that it is checked once.
    pub(super) trim: Option<Trim>,
}

impl Explicit {
    pub(super) fn read(mut given: Given) -> Result<Self> {
        let given = &mut given;
        let maxlen = given.integer("maxlen")?;
        let maxlen_approximate = given.boolean_or_default("maxlen_approximate")?;
        let minid = MinId::read(given)?;
        let trim_every = given.integer_or_default("trim_every")?;
        let server = read_server(given)?;
        let stream_key = given.bytes("stream_key")?.ok_or_else(|| {
            Error::config("stream_key", "stream_key is missing: it names the stream that entries are added to")
        })?;
        let username = given.text("username")?;
        let password = read_password(given)?;
        if username.is_some() && password.is_none() {
            let message = "username needs one of password, password_env and password_file (AUTH takes both)";
            return Err(Error::config("username", message));
        }
        let tls = read_tls(given)?;
        match (&tls, &server) {
            (Some(_), Server::Unix(_)) => {
                return Err(Error::config("tls", "tls cannot be used with unix_socket; leave one of them out"));
            }
            (Some(tls), Server::Tcp { host, .. }) => tls.check_server_name(host)?,
            (None, _) => {}
        }
        Ok(Self {
            trim: trim::effective(maxlen, minid.as_ref(), maxlen_approximate, trim_every)?,
            server,
            stream_key,
            db: given.integer("db")?,
            username,
            password,
            connect_timeout: given.seconds("connect_timeout")?,
            command_timeout: given.seconds("command_timeout")?,
            maxlen,
            maxlen_approximate,
            minid,
            trim_every,
            nomkstream: given.boolean_or_default("nomkstream")?,
            consumer_group: given.bytes("consumer_group")?,
            tls,
        })
    }

    /// Each option that is not at its default, in the order of [`OPTIONS`].
    pub(super) fn to_options(&self) -> Vec<(&'static str, OptionValue)> {
        OPTIONS.iter().filter_map(|spec| Some((spec.name, self.option(spec.name)?))).collect()
    }

    /// The option `name`, unless it is at its default.
    pub(super) fn option(&self, name: &str) -> Option<OptionValue> {
        let spec = OPTIONS.iter().find(|spec| spec.name == name)?;
        self.value(name).filter(|value| spec.depends || *value != spec.default.value())
    }

    fn value(&self, name: &str) -> Option<OptionValue> {
        let seconds = |duration: Option<Duration>| duration.map(|d| OptionValue::Float(d.as_secs_f64()));
        let path = |path: &PathBuf| OptionValue::text(&path.to_string_lossy());
        let tls = self.tls.as_ref();
        match (name, &self.server, &self.password) {
            ("host", Server::Tcp { host, .. }, _) => Some(OptionValue::text(host)),
            ("port", Server::Tcp { port, .. }, _) => port.map(|port| OptionValue::Int(port.into())),
            ("unix_socket", Server::Unix(socket), _) => Some(path(socket)),
            ("password", _, Some(Password::Given(secret))) => Some(text_or_bytes(secret.expose())),
            ("password", _, Some(Password::Asked(provider))) => Some(OptionValue::Provider(provider.clone())),
            ("password_env", _, Some(Password::Variable(name))) => Some(OptionValue::text(name)),
            ("password_file", _, Some(Password::File(file))) => Some(path(file)),
            ("stream_key", ..) => Some(text_or_bytes(&self.stream_key)),
            ("db", ..) => self.db.map(|db| OptionValue::Int(db.into())),
            ("username", ..) => self.username.as_deref().map(OptionValue::text),
            ("connect_timeout", ..) => seconds(self.connect_timeout),
            ("command_timeout", ..) => seconds(self.command_timeout),
            ("maxlen", ..) => self.maxlen.map(|maxlen| OptionValue::Int(maxlen.into())),
            ("maxlen_approximate", ..) => Some(OptionValue::Bool(self.maxlen_approximate)),
            ("minid", ..) => self.minid.as_ref().map(MinId::to_option),
            ("trim_every", ..) => Some(OptionValue::Int(self.trim_every.into())),
            ("nomkstream", ..) => Some(OptionValue::Bool(self.nomkstream)),
            ("consumer_group", ..) => self.consumer_group.as_deref().map(text_or_bytes),
            ("tls", ..) => Some(OptionValue::Bool(tls.is_some())),
            ("tls_ca_cert", ..) => tls?.ca_cert.as_ref().map(Pem::to_option),
            ("tls_cert", ..) => tls?.client.as_ref().map(|(cert, _)| cert.to_option()),
            ("tls_key", ..) => tls?.client.as_ref().map(|(_, key)| key.to_option()),
            ("tls_server_name", ..) => tls?.server_name.as_deref().map(OptionValue::text),
            ("tls_insecure_skip_verify", ..) => Some(OptionValue::Bool(tls.is_some_and(|tls| tls.skip_verify))),
            _ => None,
        }
    }
}

fn text_or_bytes(bytes: &[u8]) -> OptionValue {
    std::str::from_utf8(bytes).map_or_else(|_| OptionValue::bytes(bytes), OptionValue::text)
}

fn read_server(given: &mut Given) -> Result<Server> {
    let port = given.integer("port")?;
    match (given.text("host")?, given.text("unix_socket")?) {
        (Some(host), None) => Ok(Server::Tcp { host: check_host(&host)?, port }),
        (None, Some(_)) if port.is_some() => {
            Err(Error::config("port", "port cannot be used with unix_socket; leave one of them out"))
        }
        (None, Some(path)) => Ok(Server::Unix(check_unix_socket(&path)?)),
        (Some(_), Some(_)) => Err(Error::config("host", "host and unix_socket are mutually exclusive")),
        (None, None) => Err(Error::config("host", "host is missing (or unix_socket): it names the server")),
    }
}

/// A name, an IPv4 address, or an IPv6 address with or without brackets and zone; comes back without brackets.
fn check_host(host: &str) -> Result<String> {
    // A refused value may be a whole URL with a password in it, so it is not shown.
    if host.contains("://") || host.contains(['/', '@', '?', '#', '\0']) {
        let message =
            "host must be a name or an IP address, got text with one of / @ ? # or NUL in it; URLs are for from_url";
        return Err(Error::config("host", message));
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let message = format!("host must be a name or an IP address without white space, got {}", quoted(host));
        return Err(Error::config("host", message));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = bare.split_once('%').map_or(bare, |(address, _zone)| address);
    let is_v6 = address.parse::<Ipv6Addr>().is_ok();
    if (bare != host || bare.contains(':')) && !is_v6 {
        let message =
            format!("host must be a name or an IP address without a port, got {}; give port apart", quoted(host));
        return Err(Error::config("host", message));
    }
    Ok(bare.to_owned())
}

/// The kernel takes 107 bytes (Linux) or 103 (macOS), and no NUL.
fn check_unix_socket(path: &str) -> Result<PathBuf> {
    match std::os::unix::net::SocketAddr::from_pathname(path) {
        Ok(_) => Ok(PathBuf::from(path)),
        Err(error) => {
            let message = format!("unix_socket must be the path of a socket, got {}: {error}", quoted(path));
            Err(Error::config("unix_socket", message))
        }
    }
}

fn read_password(given: &mut Given) -> Result<Option<Password>> {
    let file = given.text("password_file")?;
    if file.as_ref().is_some_and(|path| path.contains('\0')) {
        return Err(Error::config(
            "password_file",
            "password_file must be the path of a file, got text with NUL in it",
        ));
    }
    let places = [
        match given.provider("password")? {
            Some(provider) => Some(Password::Asked(provider)),
            None => given.secret("password")?.map(Password::Given),
        },
        given.text("password_env")?.map(Password::Variable),
        file.map(|path| Password::File(PathBuf::from(path))),
    ];
    let mut given_places = places.into_iter().flatten();
    match (given_places.next(), given_places.next()) {
        (_, Some(_)) => {
            let message = "password, password_env and password_file are mutually exclusive";
            Err(Error::config("password", message))
        }
        (first, None) => Ok(first),
    }
}

fn read_tls(given: &mut Given) -> Result<Option<Tls>> {
    let on = given.boolean_or_default("tls")?;
    let ca_cert = Pem::read(given, "tls_ca_cert")?;
    let cert = Pem::read(given, "tls_cert")?;
    let key = Pem::read(given, "tls_key")?;
    let server_name = given.text("tls_server_name")?;
    let skip_verify = given.boolean_or_default("tls_insecure_skip_verify")?;
    if !on {
        let present = [
            ("tls_ca_cert", ca_cert.is_some()),
            ("tls_cert", cert.is_some()),
            ("tls_key", key.is_some()),
            ("tls_server_name", server_name.is_some()),
            ("tls_insecure_skip_verify", skip_verify),
        ];
        return match present.iter().find(|(_, present)| *present) {
            Some((name, _)) => {
                let message = format!("{name} needs tls to be true; without it everything would go in plain text");
                Err(Error::config(*name, message))
            }
            None => Ok(None),
        };
    }
    // An option that names what to check would have no effect without checks.
    let checked = [("tls_ca_cert", ca_cert.is_some()), ("tls_server_name", server_name.is_some())];
    if let Some((name, _)) = checked.iter().find(|(_, present)| skip_verify && *present) {
        let message =
            format!("tls_insecure_skip_verify and {name} are mutually exclusive: without checks {name} is not used");
        return Err(Error::config("tls_insecure_skip_verify", message));
    }
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(Error::config("tls_cert", "tls_cert needs tls_key: give both or neither")),
        (None, Some(_)) => return Err(Error::config("tls_key", "tls_key needs tls_cert: give both or neither")),
    };
    Ok(Some(Tls { ca_cert, client, server_name, skip_verify }))
}
