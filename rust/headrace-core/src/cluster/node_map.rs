//! The addresses to connect to for those that nodes of a cluster show, for nodes behind NAT or forwarded ports.

use core::net::IpAddr;
use std::sync::Arc;

use super::node::Node;
use super::node_name::NodeName;

/// Pairs of addresses: the one that a node shows, and the one to connect to. The shown addresses are unique and sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeMap(Arc<[(Node, Node)]>);

impl NodeMap {
    /// The map of these pairs, or the address that occurs twice among those that nodes show.
    pub(crate) fn new(pairs: Vec<(Node, Node)>) -> Result<Self, Node> {
        let mut map: Vec<(Node, Node)> = Vec::with_capacity(pairs.len());
        for (shown, used) in pairs {
            let shown = normal(&shown);
            if map.iter().any(|(known, _)| *known == shown) {
                return Err(shown);
            }
            map.push((shown, used));
        }
        map.sort_by(|(one, _), (other, _)| (&one.host, one.port).cmp(&(&other.host, other.port)));
        Ok(Self(map.into()))
    }

    /// The address to connect to for an address that a node has shown.
    pub(crate) fn to_use(&self, shown: Node) -> Node {
        if self.0.is_empty() {
            return shown;
        }
        let wanted = normal(&shown);
        self.0.iter().find(|(known, _)| *known == wanted).map_or(shown, |(_, used)| used.clone())
    }

    /// The address to connect to for a name that `sender` has shown.
    pub(super) fn named(&self, name: &NodeName, sender: &Node) -> Node {
        self.to_use(Node { host: name.host.clone().unwrap_or_else(|| sender.host.clone()), port: name.port })
    }

    /// All pairs.
    pub(crate) fn pairs(&self) -> &[(Node, Node)] {
        &self.0
    }
}

/// The normalised form of an address, for comparison.
fn normal(node: &Node) -> Node {
    let host = node.host.parse::<IpAddr>().map_or_else(|_| node.host.to_ascii_lowercase(), |ip| ip.to_string());
    Node { host, port: node.port }
}
