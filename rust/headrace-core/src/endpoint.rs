//! The endpoint: the server and the stream that entries go to, with credentials, TLS and trimming. Every option is checked
//! here, and only here.
//!
//! An endpoint is immutable and opens no connection. Values that can change are read at each connect: a password from a
//! variable, a file or a provider, TLS files, and the file with process-wide defaults.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::cluster::{Node, NodeMap, slot};
use crate::error::{Error, Result};
use crate::shards::Shards;

mod access;
mod access_names;
mod any_certificate;
mod cluster;
mod defaults;
mod explicit;
pub(crate) mod given;
mod host;
mod insecure;
mod node;
mod node_map;
mod option;
mod options;
mod other_names;
mod password;
mod pem;
mod pem_text;
mod producer;
mod provider;
mod sentinels;
mod server;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod topology;
mod trim;
mod url;

pub use crate::secret::Secret;
pub(crate) use access::Access;
pub(crate) use cluster::Cluster;
pub use given::read_values;
pub use option::{Form, OptionDefault, OptionSpec, OptionValue, Takes};
pub(crate) use option::{option, option_table};
pub use options::OPTIONS;
pub(crate) use options::joined;
pub use pem::Pem;
pub use producer::PRODUCER_OPTIONS;
pub use provider::{NoPassword, PasswordProvider, Provider};
pub(crate) use sentinels::Sentinels;
pub use server::SERVER_OPTIONS;
pub use stream::STREAM_OPTIONS;
pub use tls::Tls;
pub(crate) use tls::client_config;
pub use trim::Trim;

use defaults::{Defaults, Inherited};
use explicit::{Explicit, Server, check_shard_name};
use given::Given;
use server::{DEFAULT_COMMAND_TIMEOUT, DEFAULT_CONNECT_TIMEOUT, DEFAULT_DB, DEFAULT_PORT};
use topology::Topology;

/// The server and the stream that entries go to. Immutable and cheap to clone; its options are those of [`OPTIONS`].
///
/// A given option takes precedence over the environment (as it was when the endpoint was built), the environment over the
/// defaults file (as it is now), and the file over the built-in default. `Debug` and `Display` show no secret.
///
/// ```
/// use headrace_core::endpoint::{Endpoint, Form, OptionValue};
///
/// let endpoint = Endpoint::from_url("redis://db1:6380/2?stream_key=order-events&maxlen=100000", [])?;
/// assert_eq!(endpoint.to_string(), "redis://db1:6380/2 stream key order-events");
/// let refused = Endpoint::new([("hots".to_owned(), OptionValue::text("db1"))], Form::Typed);
/// assert_eq!(refused.unwrap_err().to_string(), "unknown option 'hots'; did you mean 'host'?");
/// # Ok::<(), headrace_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    explicit: Arc<Explicit>,
    defaults: Defaults,
}

/// Hashes the given options only: endpoints that differ only in process-wide defaults share a hash. Equal endpoints have
/// equal options.
impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.explicit.hash(state);
    }
}

/// The settings that process-wide defaults can change, for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The TCP port; meaningless with a Unix socket.
    pub port: u16,
    /// The number of the database, for SELECT.
    pub db: u32,
    /// The maximum time for connecting, including handshakes.
    pub connect_timeout: Duration,
    /// The longest wait for a reply, or for the next 4 KiB of one.
    pub command_timeout: Duration,
}

/// The address that a socket connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, without brackets, and a port.
    Tcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Formats the address as `db1:6379`, `[::1]:6379` or `/run/redis.sock`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') && !host.starts_with('[') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Checks `options` and applies the current process-wide defaults. TLS files must be readable and match each other.
    pub fn new(options: impl IntoIterator<Item = (String, OptionValue)>, form: Form) -> Result<Self> {
        let defaults = Defaults::from_environment(|name| std::env::var_os(name))?;
        Self::build(Given::collect(OPTIONS, options, form)?, defaults)
    }

    /// Like [`Endpoint::new`], with the options in `url` in addition to `options`; an option must not be given in both.
    ///
    /// | scheme | with TLS | after `://` |
    /// | --- | --- | --- |
    /// | `redis`, `valkey` | `rediss`, `valkeys` | `[user@]host[:port][/db]` |
    /// | `unix`, `redis+unix`, `valkey+unix` | | `/path` of the Unix socket |
    /// | `redis+sentinel`, `valkey+sentinel` | `rediss+sentinel`, `valkeys+sentinel` | `[user@]nodes/master[/db]` |
    /// | `redis+cluster`, `valkey+cluster` | `rediss+cluster`, `valkeys+cluster` | `[user@]nodes[/db]` |
    ///
    /// `user` is `name`, `name:password` or `:password`; `nodes` is one or more of `host[:port]`, separated by commas. With
    /// sentinels, the user and TLS are those of the server; the sentinels have options of their own. A query
    /// `?option=value&…` holds options by name, except `tls_insecure_skip_verify`.
    ///
    /// The scheme is not case-sensitive. User, password, master, path of the socket and query are percent-encoded; in the
    /// query `+` is a space. A `#fragment` is refused.
    pub fn from_url(url: &str, options: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        Self::from_url_in(Form::Typed, url, options)
    }

    /// Like [`Endpoint::from_url`], with `options` in the form `form`.
    pub fn from_url_in(
        form: Form,
        url: &str,
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self> {
        let defaults = Defaults::from_environment(|name| std::env::var_os(name))?;
        let mut given = Given::collect(OPTIONS, options, form)?;
        url::read(url, &mut given)?;
        Self::build(given, defaults)
    }

    /// Like [`Endpoint::from_url`], with `options` given as text that override those of the URL.
    ///
    /// If an endpoint accepts only one of several options, such as `password_file`, the one in `options` replaces the others.
    pub fn from_url_under(url: &str, options: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        let defaults = Defaults::from_environment(|name| std::env::var_os(name))?;
        let given = Given::collect(OPTIONS, options, Form::Text)?;
        let mut of_url = Given::new(OPTIONS, Form::Text);
        url::read(url, &mut of_url)?;
        Self::build(given.over(of_url), defaults)
    }

    /// Rebuilds, in any process, the endpoint that [`Endpoint::options`] and [`Endpoint::inherited`] came from. The
    /// environment, the defaults file and the TLS files of this process are not read.
    pub fn restore(
        options: impl IntoIterator<Item = (String, OptionValue)>,
        inherited: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self> {
        let explicit = Explicit::read(Given::collect(OPTIONS, options, Form::Typed)?)?;
        Ok(Self { explicit: Arc::new(explicit), defaults: Defaults::fixed(inherited)? })
    }

    fn build(given: Given, defaults: Defaults) -> Result<Self> {
        let explicit = Explicit::read(given)?;
        // The file is read here too, so that a mistake in it is reported now and not at the first connect.
        defaults.now()?;
        if let Some(tls) = explicit.access.tls() {
            tls.check()?;
        }
        if let Server::Sentinel(sentinels) = &explicit.server
            && let Some(tls) = sentinels.access.tls()
        {
            tls.check()?;
        }
        Ok(Self { explicit: Arc::new(explicit), defaults })
    }

    /// All options that are not at their defaults, including secrets: for pickling.
    pub fn options(&self) -> Vec<(&'static str, OptionValue)> {
        self.explicit.to_options()
    }

    /// The current value of the option `name`, unless it is a secret: given, inherited, or its default, which may be null.
    pub fn effective(&self, name: &str) -> Result<Option<OptionValue>> {
        let Some(spec) = OPTIONS.iter().find(|spec| spec.name == name && !spec.secret) else { return Ok(None) };
        let settings = || self.settings();
        let seconds = |duration: Duration| OptionValue::Float(duration.as_secs_f64());
        Ok(Some(match name {
            "port" if self.option("nodes").is_some() || self.option("unix_socket").is_some() => OptionValue::Null,
            "port" => OptionValue::Int(settings()?.port.into()),
            "db" => OptionValue::Int(settings()?.db.into()),
            "connect_timeout" => seconds(settings()?.connect_timeout),
            "command_timeout" => seconds(settings()?.command_timeout),
            "sentinel_tls" => {
                OptionValue::Bool(self.sentinels().is_some_and(|sentinels| sentinels.access.tls().is_some()))
            }
            _ => self.option(name).unwrap_or(spec.default.value()),
        }))
    }

    /// The option `name` as it was given, secret or not; `None` if it is at its default or no such option exists.
    pub fn option(&self, name: &str) -> Option<OptionValue> {
        self.explicit.option(name)
    }

    /// The current process-wide defaults: for pickling.
    pub fn inherited(&self) -> Result<Vec<(&'static str, OptionValue)>> {
        Ok(self.defaults.now()?.to_options())
    }

    /// The settings for a connection made now. Fails if the defaults file has become unreadable or invalid: its earlier
    /// values are not applied silently.
    pub fn settings(&self) -> Result<Settings> {
        Ok(self.settings_with(&self.defaults.now()?))
    }

    fn settings_with(&self, inherited: &Inherited) -> Settings {
        let explicit = &self.explicit;
        let port = match &explicit.server {
            Server::Tcp { port, .. } => *port,
            Server::Cluster(cluster) => cluster.port(),
            Server::Unix(_) | Server::Sentinel(_) => None,
        };
        Settings {
            port: port.or(inherited.port).unwrap_or(DEFAULT_PORT),
            db: explicit.db.or(inherited.db).unwrap_or(DEFAULT_DB),
            connect_timeout: explicit.connect_timeout.or(inherited.connect_timeout).unwrap_or(DEFAULT_CONNECT_TIMEOUT),
            command_timeout: explicit.command_timeout.or(inherited.command_timeout).unwrap_or(DEFAULT_COMMAND_TIMEOUT),
        }
    }

    /// The address to connect to; `None` if sentinels or the nodes of a cluster name it.
    pub fn address(&self, settings: &Settings) -> Option<Address> {
        match &self.explicit.server {
            Server::Tcp { host, .. } => Some(Address::Tcp { host: host.clone(), port: settings.port }),
            Server::Unix(path) => Some(Address::Unix(path.clone())),
            Server::Sentinel(_) | Server::Cluster(_) => None,
        }
    }

    /// The sentinels that name the address.
    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.explicit.server {
            Server::Sentinel(sentinels) => Some(sentinels),
            Server::Tcp { .. } | Server::Unix(_) | Server::Cluster(_) => None,
        }
    }

    /// The cluster whose nodes name the address.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &self.explicit.server {
            Server::Cluster(cluster) => Some(cluster),
            Server::Tcp { .. } | Server::Unix(_) | Server::Sentinel(_) => None,
        }
    }

    /// Whether the server itself must say if it is a node of a cluster.
    pub(crate) fn is_undecided(&self) -> bool {
        self.explicit.topology == Topology::Auto && matches!(self.explicit.server, Server::Tcp { .. })
    }

    /// Returns this endpoint after its server has said whether it belongs to a cluster.
    #[must_use]
    pub(crate) fn decided(&self, is_of_cluster: bool) -> Self {
        let mut explicit = (*self.explicit).clone();
        explicit.topology = if is_of_cluster { Topology::Cluster } else { Topology::Single };
        explicit.server = match explicit.server {
            Server::Tcp { host, port } if is_of_cluster => Server::Cluster(Box::new(Cluster::of_node(host, port))),
            server => server,
        };
        Self { explicit: Arc::new(explicit), defaults: self.defaults.clone() }
    }

    /// Where to connect for the addresses that nodes of a cluster show.
    pub(crate) fn node_map(&self) -> NodeMap {
        self.cluster().map(|cluster| cluster.node_map.clone()).unwrap_or_default()
    }

    /// How to authenticate to the server, and whether to use TLS.
    pub(crate) fn access(&self) -> &Access {
        &self.explicit.access
    }

    /// The key of the stream.
    pub fn stream_key(&self) -> &[u8] {
        &self.explicit.stream_key
    }

    /// The streams that messages are spread over; `None` if there is only one, with the stream key itself.
    pub(crate) fn shards(&self) -> Option<&Arc<Shards>> {
        self.explicit.shards.as_ref()
    }

    /// The name of the field that keeps the key of a shard, if entries have it.
    pub(crate) fn key_field(&self) -> Option<&str> {
        self.explicit.key_field.as_deref()
    }

    /// Returns this endpoint with shards.
    pub(crate) fn with_shards(&self, shards: Shards) -> Result<Self> {
        check_shard_name(self.stream_key())?;
        let explicit = Explicit { shards: Some(Arc::new(shards)), ..(*self.explicit).clone() };
        Ok(Self { explicit: Arc::new(explicit), defaults: self.defaults.clone() })
    }

    /// The keys of the streams: the endpoint's stream key, or the keys of its shards.
    pub fn stream_keys(&self) -> &[Vec<u8>] {
        self.shards().map_or(std::slice::from_ref(&self.explicit.stream_key), |shards| shards.keys())
    }

    /// The streams that the handshake may create: none with shards, which must not exist before their registry.
    pub(crate) fn first_streams(&self) -> &[Vec<u8>] {
        if self.shards().is_some() { &[] } else { self.stream_keys() }
    }

    /// The user for AUTH.
    pub fn username(&self) -> Option<&str> {
        self.explicit.access.username()
    }

    /// The password for AUTH, read now if it comes from a variable, a file or a provider.
    pub fn password(&self) -> std::result::Result<Option<Secret>, NoPassword> {
        self.explicit.access.password()
    }

    /// The option `maxlen_approximate`, whether or not the stream is trimmed.
    pub fn maxlen_approximate(&self) -> bool {
        self.explicit.maxlen_approximate
    }

    /// The trimming of XADD, if any.
    pub fn trim(&self) -> Option<&Trim> {
        self.explicit.trim.as_ref()
    }

    /// One of this many XADDs to a stream key carries the trim options.
    pub fn trim_every(&self) -> u64 {
        self.explicit.trim_every
    }

    /// Whether a missing stream is not created.
    pub fn nomkstream(&self) -> bool {
        self.explicit.nomkstream
    }

    /// Returns this endpoint, whose connections create no consumer group.
    #[must_use]
    pub(crate) fn without_consumer_group(&self) -> Self {
        let explicit = Explicit { consumer_group: None, ..(*self.explicit).clone() };
        Self { explicit: Arc::new(explicit), defaults: self.defaults.clone() }
    }

    /// Returns this endpoint for commands about `keys`, the value of `option`. In a cluster all keys must be in one slot, and the
    /// connection goes to the node that has it.
    pub(crate) fn for_keys<'a>(&self, option: &str, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let mut keys = keys.into_iter();
        let Some(first) = keys.next().filter(|_| self.cluster().is_some()) else { return Ok(self.clone()) };
        if let Some(other) = keys.find(|key| slot(key) != slot(first)) {
            let message = format!(
                "{option} must be in one slot of the cluster: '{}' is in slot {}, '{}' in slot {}; keys with the same {{tag}} in \
                 their names share a slot",
                first.escape_ascii(),
                slot(first),
                other.escape_ascii(),
                slot(other),
            );
            return Err(Error::config(option, message));
        }
        let explicit =
            Explicit { stream_key: first.to_vec(), shards: None, key_field: None, ..(*self.explicit).clone() };
        Ok(Self { explicit: Arc::new(explicit), defaults: self.defaults.clone() })
    }

    /// The consumer group to create at each connect.
    pub fn consumer_group(&self) -> Option<&[u8]> {
        self.explicit.consumer_group.as_deref()
    }

    /// The weaknesses of this endpoint, one sentence each: TLS without checks, and files with a secret that users other than
    /// their owner may currently read.
    pub fn warnings(&self) -> Vec<String> {
        insecure::warnings(&self.explicit)
    }

    /// TLS, if it is on.
    pub fn tls(&self) -> Option<&Tls> {
        self.explicit.access.tls()
    }
}

/// The longest stream key that is shown in full, in bytes.
const MAX_SHOWN_KEY: usize = 64;

/// Formats the endpoint as `rediss://user@host:6380/2 stream key order-events`, for messages and logs; `{:#}` is the server
/// alone.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A message about a broken defaults file must still be able to name the endpoint.
        let inherited = self.defaults.now().unwrap_or_else(|_| self.defaults.kept().clone());
        let settings = self.settings_with(&inherited);
        let user = self.username().map(|user| utf8_percent_encode(user, NON_ALPHANUMERIC));
        match &self.explicit.server {
            Server::Tcp { host, .. } => {
                f.write_str(if self.tls().is_some() { "rediss://" } else { "redis://" })?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{open}{host}{close}:{}", settings.port)?;
                if settings.db != 0 {
                    write!(f, "/{}", settings.db)?;
                }
            }
            Server::Sentinel(sentinels) => {
                f.write_str(if self.tls().is_some() { "rediss+sentinel://" } else { "redis+sentinel://" })?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                let nodes: Vec<_> = sentinels.nodes.iter().map(Node::to_string).collect();
                let master = utf8_percent_encode(&sentinels.master, NON_ALPHANUMERIC);
                write!(f, "{}/{master}", nodes.join(","))?;
                if settings.db != 0 {
                    write!(f, "/{}", settings.db)?;
                }
            }
            Server::Cluster(cluster) => {
                f.write_str(if self.tls().is_some() { "rediss+cluster://" } else { "redis+cluster://" })?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                let nodes: Vec<_> = cluster.seeds(settings.port).iter().map(Node::to_string).collect();
                f.write_str(&nodes.join(","))?;
                if settings.db != 0 {
                    write!(f, "/{}", settings.db)?;
                }
            }
            Server::Unix(path) => {
                write!(f, "unix://{}", path.to_string_lossy().escape_debug())?;
                let db = (settings.db != 0).then(|| format!("db={}", settings.db));
                let query: Vec<_> = db.into_iter().chain(user.map(|user| format!("username={user}"))).collect();
                if !query.is_empty() {
                    write!(f, "?{}", query.join("&"))?;
                }
            }
        }
        if f.alternate() {
            return Ok(());
        }
        let key = self.stream_key();
        let shown = String::from_utf8_lossy(key.get(..MAX_SHOWN_KEY).unwrap_or(key));
        write!(f, " stream key {}{}", shown.escape_debug(), if key.len() > MAX_SHOWN_KEY { "…" } else { "" })
    }
}
