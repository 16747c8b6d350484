//! The sentinels of an endpoint: where they are, whom they watch, and how to prove oneself to them.

use std::fmt;
use std::time::Duration;

use super::access::Access;
use super::access_names::SENTINEL;
use super::given::Given;
use super::host::check_host;
use super::option::{OptionValue, quoted};
use super::tls::Tls;
use crate::error::{Error, Result};

/// The port of a sentinel that is given without one: <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/>.
const SENTINEL_PORT: u16 = 26_379;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// A name or an IP address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Sentinels that name the server of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sentinels {
    pub(crate) nodes: Vec<Node>,
    /// The name of the master in the sentinels' configuration.
    pub(crate) master: String,
    pub(crate) access: Access,
    /// How often a sentinel is asked whether the master is still the same.
    pub(crate) poll: Duration,
    /// The option `sentinel_tls`, if it was given.
    tls: Option<bool>,
    /// Whether TLS has options of its own.
    has_own_tls: bool,
}

impl Node {
    /// `host`, `host:port`, `[v6]:port`.
    fn read(text: &str) -> Result<Self> {
        let refuse = || {
            let message = format!("nodes must be hosts with or without a port ('host:26379'), got {}", quoted(text));
            Error::config("nodes", message)
        };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0 && !text.ends_with(char::is_whitespace));
                (host, port.ok_or_else(refuse)?)
            }
            _ => (text, SENTINEL_PORT),
        };
        if host.is_empty() {
            return Err(refuse());
        }
        Ok(Self { host: check_host("nodes", host)?, port })
    }
}

/// `host:port`, as people write it.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

impl Sentinels {
    /// The sentinels, if any were given. `server`: TLS of the server, which is that of the sentinels unless they have another.
    pub(super) fn read(given: &mut Given, server: Option<&Tls>) -> Result<Option<Self>> {
        let nodes = given.names("nodes")?;
        let master = given.text("sentinel_master")?;
        let mut access = Access::read(given, &SENTINEL)?;
        let tls = given.boolean("sentinel_tls")?;
        let (own, has_own_tls) = Tls::read(given, &SENTINEL, tls.unwrap_or(server.is_some()))?;
        let poll = given.has("sentinel_poll");
        let poll = (poll, given.seconds_or_default("sentinel_poll")?);
        access.tls = if has_own_tls || server.is_none() { own } else { own.and(server.cloned()) };
        match (nodes, master) {
            (Some(nodes), Some(master)) => {
                let nodes: Vec<_> = nodes.iter().map(|node| Node::read(node)).collect::<Result<_>>()?;
                if let Some(tls) = &access.tls {
                    nodes.iter().try_for_each(|node| tls.check_server_name(&node.host))?;
                }
                Ok(Some(Self { nodes, master, access, poll: poll.1, tls, has_own_tls }))
            }
            (Some(_), None) => {
                let message = "nodes needs sentinel_master: the name by which the sentinels know the server";
                Err(Error::config("sentinel_master", message))
            }
            (None, Some(_)) => {
                let message =
                    "sentinel_master needs nodes: the addresses of the sentinels, such as nodes=['db1:26379']";
                Err(Error::config("nodes", message))
            }
            (None, None) => {
                let others = [
                    ("sentinel_username", access.username.is_some()),
                    ("sentinel_password", access.password.is_some()),
                    ("sentinel_tls", tls.is_some() || has_own_tls),
                    ("sentinel_poll", poll.0),
                ];
                match others.iter().find(|(_, is_given)| *is_given) {
                    Some((name, _)) => Err(Error::config(*name, format!("{name} needs nodes and sentinel_master"))),
                    None => Ok(None),
                }
            }
        }
    }

    /// The option `name`, if it is one of these.
    pub(super) fn value(&self, name: &str) -> Option<OptionValue> {
        match name {
            "nodes" => Some(OptionValue::Names(self.nodes.iter().map(Node::to_string).collect())),
            "sentinel_master" => Some(OptionValue::text(&self.master)),
            "sentinel_poll" => Some(OptionValue::Float(self.poll.as_secs_f64())),
            "sentinel_tls" => self.tls.map(OptionValue::Bool),
            _ if name.starts_with("sentinel_tls") && !self.has_own_tls => None,
            _ => self.access.value(name),
        }
    }
}
