//! The sentinels of an endpoint: their addresses, the master that they watch, and how to authenticate to them.

use std::time::Duration;

use super::access::Access;
use super::access_names::SENTINEL;
use super::given::Given;
use super::node::read_node;
use super::option::OptionValue;
use super::tls::Tls;
use crate::cluster::Node;
use crate::error::{Error, Result};

/// The port of a sentinel given without one: <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/>.
const SENTINEL_PORT: u16 = 26_379;

/// The sentinels that name the server of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sentinels {
    pub(crate) nodes: Vec<Node>,
    /// The name of the master in the sentinels' configuration.
    pub(crate) master: String,
    pub(crate) access: Access,
    /// The interval at which a sentinel is asked whether the master is still the same.
    pub(crate) poll: Duration,
    /// The option `sentinel_tls`, if it was given.
    tls: Option<bool>,
    /// Whether TLS options were given for the sentinels themselves.
    has_own_tls: bool,
}

impl Sentinels {
    /// The sentinels, if any were given. `server` is the TLS of the server, which the sentinels share unless they have
    /// options of their own. `nodes` is the option, unless it names the nodes of a cluster.
    pub(super) fn read(
        given: &mut Given,
        nodes: Option<&[String]>,
        master: Option<String>,
        server: Option<&Tls>,
    ) -> Result<Option<Self>> {
        let mut access = Access::read(given, &SENTINEL)?;
        let tls = given.boolean("sentinel_tls")?;
        let (own, has_own_tls) = Tls::read(given, &SENTINEL, tls.unwrap_or(server.is_some()))?;
        let poll = given.has("sentinel_poll");
        let poll = (poll, given.seconds_or_default("sentinel_poll")?);
        access.tls = if has_own_tls || server.is_none() { own } else { own.and(server.cloned()) };
        match (nodes, master) {
            (Some(nodes), Some(master)) => {
                let nodes: Vec<_> =
                    nodes.iter().map(|node| read_node("nodes", node, SENTINEL_PORT)).collect::<Result<_>>()?;
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
