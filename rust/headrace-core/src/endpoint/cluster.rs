//! The cluster of an endpoint: the nodes that are asked where a stream is.

use super::given::Given;
use super::host::check_host;
use super::node::read_node;
use super::node_map::{read_node_map, value_of};
use super::option::OptionValue;
use super::server::{DEFAULT_MAX_REDIRECTS, DEFAULT_PORT};
use super::tls::Tls;
use super::topology::Topology;
use crate::cluster::{Node, NodeMap};
use crate::error::{Error, Result};

/// A cluster, whose nodes know which of them has a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cluster {
    seeds: Seeds,
    /// How many times in a row a message may be sent to another node.
    pub(crate) max_redirects: u32,
    /// Where to connect for the addresses that its nodes show.
    pub(crate) node_map: NodeMap,
}

/// The nodes that are asked first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Seeds {
    /// The options `host` and `port`. The port has a process-wide default.
    Host { host: String, port: Option<u16> },
    /// The option `nodes`.
    Nodes(Vec<Node>),
}

impl Cluster {
    /// The cluster, if the options describe one.
    pub(super) fn read(
        given: &mut Given,
        topology: Topology,
        (host, port): (Option<&str>, Option<u16>),
        nodes: Option<&[String]>,
        tls: Option<&Tls>,
    ) -> Result<Option<Self>> {
        let has_redirects = given.has("max_redirects");
        let node_map = read_node_map(given, tls)?;
        let max_redirects = given.integer_or_default("max_redirects")?;
        let seeds = match (host, nodes) {
            (_, Some(nodes)) if matches!(topology, Topology::Auto | Topology::Cluster) => {
                let read = |node: &String| read_node("nodes", node, DEFAULT_PORT);
                Seeds::Nodes(nodes.iter().map(read).collect::<Result<_>>()?)
            }
            (Some(host), None) if topology == Topology::Cluster => {
                Seeds::Host { host: check_host("host", host)?, port }
            }
            _ if has_redirects => {
                let message = "max_redirects needs topology 'cluster': only nodes of a cluster redirect";
                return Err(Error::config("max_redirects", message));
            }
            _ if node_map != NodeMap::default() => {
                let message = "node_map needs topology 'cluster': only cluster nodes announce addresses";
                return Err(Error::config("node_map", message));
            }
            _ => return Ok(None),
        };
        let cluster = Self { seeds, max_redirects, node_map };
        if let Some(tls) = tls {
            cluster.hosts().try_for_each(|host| tls.check_server_name(host))?;
        }
        Ok(Some(cluster))
    }

    /// The cluster that contains this node, with default options.
    pub(super) fn of_node(host: String, port: Option<u16>) -> Self {
        Self { seeds: Seeds::Host { host, port }, max_redirects: DEFAULT_MAX_REDIRECTS, node_map: NodeMap::default() }
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        let (host, nodes) = match &self.seeds {
            Seeds::Host { host, .. } => (Some(host.as_str()), &[][..]),
            Seeds::Nodes(nodes) => (None, nodes.as_slice()),
        };
        host.into_iter().chain(nodes.iter().map(|node| node.host.as_str()))
    }

    /// The port, if it was given separately from a host.
    pub(super) fn port(&self) -> Option<u16> {
        match self.seeds {
            Seeds::Host { port, .. } => port,
            Seeds::Nodes(_) => None,
        }
    }

    /// The nodes to ask first. `port` is for a host that was given without one.
    pub(crate) fn seeds(&self, port: u16) -> Vec<Node> {
        match &self.seeds {
            Seeds::Host { host, .. } => vec![Node { host: host.clone(), port }],
            Seeds::Nodes(nodes) => nodes.clone(),
        }
    }

    /// The option `name`, if it is one of these.
    pub(super) fn value(&self, name: &str) -> Option<OptionValue> {
        match (name, &self.seeds) {
            ("host", Seeds::Host { host, .. }) => Some(OptionValue::text(host)),
            ("port", Seeds::Host { port, .. }) => port.map(|port| OptionValue::Int(port.into())),
            ("nodes", Seeds::Nodes(nodes)) => Some(OptionValue::Names(nodes.iter().map(Node::to_string).collect())),
            ("node_map", _) => value_of(&self.node_map),
            ("max_redirects", _) => Some(OptionValue::Int(self.max_redirects.into())),
            _ => None,
        }
    }
}
