//! The options that an endpoint was given, checked individually and against each other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::shards::{ShardHash, ShardNames, Shards};

use super::access::{Access, text_or_bytes};
use super::access_names;
use super::cluster::Cluster;
use super::given::Given;
use super::host::check_host;
use super::option::{OptionValue, quoted};
use super::options::OPTIONS;
use super::sentinels::Sentinels;
use super::tls::Tls;
use super::topology::Topology;
use super::trim::{self, MinId, Trim};

/// The server. Exactly one variant is given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Tcp {
        host: String,
        port: Option<u16>,
    },
    Unix(PathBuf),
    /// The server that sentinels name.
    Sentinel(Box<Sentinels>),
    /// The node of a cluster that has the stream.
    Cluster(Box<Cluster>),
}

/// All options as they were given. Options with a process-wide default may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Explicit {
    pub(super) topology: Topology,
    pub(super) server: Server,
    pub(super) stream_key: Vec<u8>,
    pub(super) db: Option<u32>,
    pub(super) access: Access,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) command_timeout: Option<Duration>,
    pub(super) maxlen: Option<u64>,
    pub(super) maxlen_approximate: bool,
    pub(super) minid: Option<MinId>,
    pub(super) trim_every: u64,
    pub(super) nomkstream: bool,
    pub(super) consumer_group: Option<Vec<u8>>,
    pub(super) shards: Option<Arc<Shards>>,
    pub(super) key_field: Option<String>,
    /// Derived from `maxlen`, `minid`, `maxlen_approximate` and `trim_every`, and kept here so that it is checked once.
    pub(super) trim: Option<Trim>,
}

impl Explicit {
    pub(super) fn read(mut given: Given) -> Result<Self> {
        let given = &mut given;
        let maxlen = given.integer("maxlen")?;
        let maxlen_approximate = given.boolean_or_default("maxlen_approximate")?;
        let minid = MinId::read(given)?;
        let trim_every = given.integer_or_default("trim_every")?;
        let tls = given.boolean_or_default("tls")?;
        let (tls, _) = Tls::read(given, &access_names::SERVER, tls)?;
        let topology = Topology::read(given)?;
        let server = read_server(given, topology, tls.as_ref())?;
        let stream_key = given.bytes("stream_key")?.ok_or_else(|| {
            Error::config("stream_key", "stream_key is missing: it names the stream that entries are added to")
        })?;
        let shards = read_shards(given, &stream_key)?;
        let key_field = given.text("key_field")?;
        let access = Access { tls, ..Access::read(given, &access_names::SERVER)? };
        match (&access.tls, &server) {
            (Some(_), Server::Unix(_)) => {
                return Err(Error::config("tls", "tls cannot be used with unix_socket; leave one of them out"));
            }
            (Some(tls), Server::Tcp { host, .. }) => tls.check_server_name(host)?,
            (Some(_), Server::Sentinel(_) | Server::Cluster(_)) | (None, _) => {}
        }
        Ok(Self {
            trim: trim::effective(maxlen, minid.as_ref(), maxlen_approximate, trim_every)?,
            topology,
            server,
            stream_key,
            db: given.integer("db")?,
            access,
            connect_timeout: given.seconds("connect_timeout")?,
            command_timeout: given.seconds("command_timeout")?,
            maxlen,
            maxlen_approximate,
            minid,
            trim_every,
            nomkstream: given.boolean_or_default("nomkstream")?,
            consumer_group: given.bytes("consumer_group")?,
            shards,
            key_field,
        })
    }

    /// All options that are not at their defaults, in the order of [`OPTIONS`].
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
        match (name, &self.server) {
            ("topology", _) => Some(OptionValue::text(self.topology.name())),
            ("host", Server::Tcp { host, .. }) => Some(OptionValue::text(host)),
            ("port", Server::Tcp { port, .. }) => port.map(|port| OptionValue::Int(port.into())),
            ("unix_socket", Server::Unix(path)) => Some(OptionValue::text(&path.to_string_lossy())),
            ("stream_key", _) => Some(text_or_bytes(&self.stream_key)),
            ("db", _) => self.db.map(|db| OptionValue::Int(db.into())),
            ("connect_timeout", _) => seconds(self.connect_timeout),
            ("command_timeout", _) => seconds(self.command_timeout),
            ("maxlen", _) => self.maxlen.map(|maxlen| OptionValue::Int(maxlen.into())),
            ("maxlen_approximate", _) => Some(OptionValue::Bool(self.maxlen_approximate)),
            ("minid", _) => self.minid.as_ref().map(MinId::to_option),
            ("trim_every", _) => Some(OptionValue::Int(self.trim_every.into())),
            ("nomkstream", _) => Some(OptionValue::Bool(self.nomkstream)),
            ("consumer_group", _) => self.consumer_group.as_deref().map(text_or_bytes),
            ("shards", _) => self.shards.as_ref().map(|shards| OptionValue::Int(shards.count() as i128)),
            ("shard_hash", _) => self.shards.as_ref().map(|shards| OptionValue::text(shards.hash.name())),
            ("key_field", _) => self.key_field.as_deref().map(OptionValue::text),
            ("shard_names", _) => self.shards.as_ref().map(|shards| OptionValue::text(shards.names.name())),
            (_, Server::Sentinel(sentinels)) => sentinels.value(name).or_else(|| self.access.value(name)),
            (_, Server::Cluster(cluster)) => cluster.value(name).or_else(|| self.access.value(name)),
            _ => self.access.value(name),
        }
    }
}

fn read_server(given: &mut Given, topology: Topology, tls: Option<&Tls>) -> Result<Server> {
    let port = given.integer("port")?;
    let (host, unix_socket) = (given.text("host")?, given.text("unix_socket")?);
    let (nodes, master) = (given.names("nodes")?, given.text("sentinel_master")?);
    if nodes.is_some() {
        let others = [("host", host.is_some()), ("port", port.is_some()), ("unix_socket", unix_socket.is_some())];
        if let Some((name, _)) = others.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::config(*name, format!("{name} cannot be used with nodes; leave one of them out")));
        }
    }
    check_topology(topology, nodes.is_some(), unix_socket.is_some(), master.is_some())?;
    let are_sentinels = topology == Topology::Sentinel || master.is_some();
    let of_cluster = nodes.as_deref().filter(|_| !are_sentinels);
    let of_sentinels = nodes.as_deref().filter(|_| are_sentinels);
    let cluster = Cluster::read(given, topology, (host.as_deref(), port), of_cluster, tls)?;
    let sentinels = Sentinels::read(given, of_sentinels, master, tls)?;
    if let Some(sentinels) = sentinels {
        return Ok(Server::Sentinel(Box::new(sentinels)));
    }
    if let Some(cluster) = cluster {
        return Ok(Server::Cluster(Box::new(cluster)));
    }
    match (host, unix_socket) {
        (Some(host), None) => Ok(Server::Tcp { host: check_host("host", &host)?, port }),
        (None, Some(_)) if port.is_some() => {
            Err(Error::config("port", "port cannot be used with unix_socket; leave one of them out"))
        }
        (None, Some(path)) => Ok(Server::Unix(check_unix_socket(&path)?)),
        (Some(_), Some(_)) => Err(Error::config("host", "host and unix_socket are mutually exclusive")),
        (None, None) => Err(Error::config("host", "host is missing (or unix_socket, or nodes): it names the server")),
    }
}

/// The shards of a stream, if it has any.
fn read_shards(given: &mut Given, stream_key: &[u8]) -> Result<Option<Arc<Shards>>> {
    let needing = ["shard_hash", "shard_names", "key_field"].into_iter().find(|name| given.has(name));
    let count = given.integer::<u16>("shards")?;
    let hash = ShardHash::named(given.choice_or_default("shard_hash")?).unwrap_or(ShardHash::Murmur2);
    let names = ShardNames::named(given.choice_or_default("shard_names")?).unwrap_or(ShardNames::Plain);
    let Some(count) = count else {
        return match needing {
            Some(name) => Err(Error::config(name, format!("{name} needs shards: the number of streams"))),
            None => Ok(None),
        };
    };
    check_shard_name(stream_key)?;
    Ok(Some(Arc::new(Shards::new(stream_key, count.into(), hash, names))))
}

/// Refuses braces in the name that all shards share.
pub(super) fn check_shard_name(stream_key: &[u8]) -> Result<()> {
    if stream_key.iter().any(|byte| b"{}".contains(byte)) {
        let message = format!(
            "shards need a stream_key without braces, got '{}': a {{tag}} puts all shards into one slot of a cluster, and thus \
             on one node",
            stream_key.escape_ascii()
        );
        return Err(Error::config("shards", message));
    }
    Ok(())
}

/// Checks that the options fit the topology that was given.
fn check_topology(topology: Topology, has_nodes: bool, is_unix: bool, has_master: bool) -> Result<()> {
    let why = match topology {
        Topology::Single if has_nodes => "with topology 'single' there is one server: give host instead of nodes",
        Topology::Cluster if has_master => "sentinel_master cannot be used with topology 'cluster'",
        Topology::Cluster if is_unix => "unix_socket cannot be used with topology 'cluster': give host or nodes",
        Topology::Sentinel if !has_nodes => "topology 'sentinel' needs nodes: the addresses of the sentinels",
        Topology::Sentinel if !has_master => {
            "topology 'sentinel' needs sentinel_master: the name by which the sentinels know the server"
        }
        Topology::Auto | Topology::Single | Topology::Cluster | Topology::Sentinel => return Ok(()),
    };
    Err(Error::config("topology", why))
}

/// Checks the path of a Unix socket. The kernel accepts at most 107 bytes (Linux) or 103 (macOS), and no NUL.
fn check_unix_socket(path: &str) -> Result<PathBuf> {
    match std::os::unix::net::SocketAddr::from_pathname(path) {
        Ok(_) => Ok(PathBuf::from(path)),
        Err(error) => {
            let message = format!("unix_socket must be the path of a socket, got {}: {error}", quoted(path));
            Err(Error::config("unix_socket", message))
        }
    }
}
