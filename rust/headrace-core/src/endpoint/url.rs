//! URLs of endpoints. redis-rs parses them; parts that may be secret are removed first, because its parser leaves copies
//! behind.
//!
//! No message here repeats any part of a URL: it might contain a password with an unescaped `/`, `?` or `#`.

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, IntoConnectionInfo as _};
use zeroize::Zeroizing;

use crate::error::{Error, Result};

use super::given::Given;
use super::option::{Form, OptionValue};

/// The kind of connection that the scheme of a URL selects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Tcp,
    Tls,
    Unix,
    /// Sentinels, and whether TLS is used with the server.
    Sentinel {
        tls: bool,
    },
    /// Nodes of a cluster, and whether TLS is used with them.
    Cluster {
        tls: bool,
    },
}

/// The schemes that redis-rs knows, and those for sentinels and clusters.
const SCHEMES: [(&str, Scheme); 15] = [
    ("redis", Scheme::Tcp),
    ("rediss", Scheme::Tls),
    ("unix", Scheme::Unix),
    ("redis+unix", Scheme::Unix),
    ("valkey", Scheme::Tcp),
    ("valkeys", Scheme::Tls),
    ("valkey+unix", Scheme::Unix),
    ("redis+sentinel", Scheme::Sentinel { tls: false }),
    ("rediss+sentinel", Scheme::Sentinel { tls: true }),
    ("valkey+sentinel", Scheme::Sentinel { tls: false }),
    ("valkeys+sentinel", Scheme::Sentinel { tls: true }),
    ("redis+cluster", Scheme::Cluster { tls: false }),
    ("rediss+cluster", Scheme::Cluster { tls: true }),
    ("valkey+cluster", Scheme::Cluster { tls: false }),
    ("valkeys+cluster", Scheme::Cluster { tls: true }),
];

/// Adds the options in `url` to `given`.
pub(super) fn read(url: &str, given: &mut Given) -> Result<()> {
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(refuse("holds white space or control characters; percent-encode them"));
    }
    let (scheme, rest) = url.split_once("://").ok_or_else(|| refuse("must be of the form redis://host:6379/0"))?;
    let scheme = SCHEMES
        .iter()
        .find_map(|(name, known)| scheme.eq_ignore_ascii_case(name).then_some(*known))
        .ok_or_else(|| refuse(&format!("must have one of the schemes {}", SCHEMES.map(|(name, _)| name).join(", "))))?;
    let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if after.contains('@') {
        return Err(refuse("has an @ after its host; percent-encode / ? # and @ in a user, a password or an option"));
    }
    if after.contains('#') {
        return Err(refuse("must not have a #fragment"));
    }
    let (path, query) = after.split_once('?').unwrap_or((after, ""));
    match scheme {
        Scheme::Unix => read_unix(authority, path, given)?,
        Scheme::Tcp | Scheme::Tls => read_tcp(authority, path, given)?,
        Scheme::Sentinel { .. } => read_sentinels(authority, path, given)?,
        Scheme::Cluster { .. } => read_cluster(authority, path, given)?,
    }
    if matches!(scheme, Scheme::Tls | Scheme::Sentinel { tls: true } | Scheme::Cluster { tls: true }) {
        add(given, Form::Typed, "tls", OptionValue::Bool(true))?;
    }
    read_query(query, given)
}

/// Reads `[user[:password]@]host[:port]` and `/db`.
fn read_tcp(authority: &str, path: &str, given: &mut Given) -> Result<()> {
    let (user_info, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let db = path.trim_matches('/');
    if !db.is_empty() && db.parse::<i64>().is_err() {
        return Err(refuse("must have the number of a database after its host, such as /0, or nothing"));
    }
    // Without its TLS feature redis-rs refuses `rediss`; apart from the scheme both URLs are the same.
    let parsed = redis::parse_redis_url(&format!("redis://{address}{path}"))
        .ok_or_else(|| refuse("does not parse: check that its host and port are valid"))?;
    let has_port = parsed.port().is_some();
    let info = parsed.into_connection_info().map_err(|error| refuse_parsed(&error))?;
    if let ConnectionAddr::Tcp(host, port) = info.addr() {
        add(given, Form::Typed, "host", OptionValue::text(host))?;
        if has_port {
            add(given, Form::Typed, "port", OptionValue::Int((*port).into()))?;
        }
    }
    if !db.is_empty() {
        add(given, Form::Typed, "db", OptionValue::Int(info.redis_settings().db().into()))?;
    }
    read_user_info(user_info, given)
}

/// Reads `[user[:password]@]host[:port],host[:port]` and `/master/db`. The user is for the server, not for the sentinels.
fn read_sentinels(authority: &str, path: &str, given: &mut Given) -> Result<()> {
    let (user_info, nodes) = authority.rsplit_once('@').unwrap_or(("", authority));
    let mut parts = path.strip_prefix('/').unwrap_or_default().splitn(2, '/');
    let (master, db) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if nodes.is_empty() || master.is_empty() {
        return Err(refuse("must be of the form redis+sentinel://host:26379,host:26379/master/0"));
    }
    add(given, Form::Text, "nodes", OptionValue::text(nodes))?;
    add(given, Form::Typed, "sentinel_master", decoded(master, b'+'))?;
    if !db.is_empty() {
        add(given, Form::Text, "db", OptionValue::text(db))?;
    }
    read_user_info(user_info, given)
}

/// Reads `[user[:password]@]host[:port],host[:port]` and `/db`.
fn read_cluster(authority: &str, path: &str, given: &mut Given) -> Result<()> {
    let (user_info, nodes) = authority.rsplit_once('@').unwrap_or(("", authority));
    if nodes.is_empty() {
        return Err(refuse("must be of the form redis+cluster://host:6379,host:6379/0"));
    }
    add(given, Form::Typed, "topology", OptionValue::text("cluster"))?;
    add(given, Form::Text, "nodes", OptionValue::text(nodes))?;
    let db = path.trim_matches('/');
    if !db.is_empty() {
        add(given, Form::Text, "db", OptionValue::text(db))?;
    }
    read_user_info(user_info, given)
}

/// Reads `user[:password]`.
fn read_user_info(user_info: &str, given: &mut Given) -> Result<()> {
    let (user, password) = user_info.split_once(':').map_or((user_info, None), |(user, pw)| (user, Some(pw)));
    if !user.is_empty() {
        add(given, Form::Typed, "username", decoded(user, b'+'))?;
    }
    if let Some(password) = password {
        add(given, Form::Typed, "password", decoded(password, b'+'))?;
    }
    Ok(())
}

/// Reads the path, which is all there is: credentials and database are in the query.
fn read_unix(authority: &str, path: &str, given: &mut Given) -> Result<()> {
    if !authority.is_empty() {
        return Err(refuse(
            "must have three slashes (unix:///path); credentials are options: ?username=…&password_env=…",
        ));
    }
    let info = redis::parse_redis_url(&format!("unix://{path}"))
        .ok_or_else(|| refuse("does not parse"))?
        .into_connection_info()
        .map_err(|error| refuse_parsed(&error))?;
    if let ConnectionAddr::Unix(path) = info.addr() {
        let path = path.to_str().ok_or_else(|| refuse("has a path that is not UTF-8"))?;
        add(given, Form::Typed, "unix_socket", OptionValue::text(path))?;
    }
    Ok(())
}

/// Reads `name=value&…`, encoded as in forms: `+` is a space.
fn read_query(query: &str, given: &mut Given) -> Result<()> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| refuse("has a query that does not consist of name=value pairs"))?;
        add(given, Form::Text, name, decoded(value, b' '))?;
    }
    Ok(())
}

/// Decodes percent-encoding and replaces each `+` by `plus`: returns text if the result is UTF-8, otherwise bytes.
fn decoded(encoded: &str, plus: u8) -> OptionValue {
    // Allocated at full size and written directly: a vector that grows, or an intermediate text, would leave copies of a
    // secret behind.
    let mut bytes = Vec::with_capacity(encoded.len());
    for (position, part) in encoded.split('+').enumerate() {
        if position > 0 {
            bytes.push(plus);
        }
        bytes.extend(percent_decode_str(part));
    }
    match String::from_utf8(bytes) {
        Ok(text) => OptionValue::Text(Zeroizing::new(text)),
        Err(error) => OptionValue::Bytes(Zeroizing::new(error.into_bytes())),
    }
}

fn add(given: &mut Given, form: Form, name: &str, value: OptionValue) -> Result<()> {
    if name == "tls_insecure_skip_verify" {
        let why = "cannot be given in a URL, which few people read to the end: give it as an option";
        return Err(Error::config(name, format!("{name} {why}")));
    }
    given.add_in(form, name, value)
}

fn refuse(why: &str) -> Error {
    Error::config("url", format!("the URL {why}"))
}

/// redis-rs' own words up to the dash: what precedes it is fixed text, what follows it may come from the URL.
fn refuse_parsed(error: &redis::RedisError) -> Error {
    let said = error.to_string();
    let fixed = said.split(" - ").next().unwrap_or_default();
    refuse(&format!("is refused: {}", fixed.to_lowercase()))
}
