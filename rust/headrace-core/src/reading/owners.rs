//! The nodes of a cluster that have the streams of a reader, as last reported by the nodes.

use crate::cluster::Redirect;
use crate::endpoint::{Endpoint, Node, Settings};
use crate::error::Fault;
use crate::net::{ClusterNodes, ConnectError, SlotMap, Watch, block_on};

/// The answers of a cluster's nodes to who has which slots. All sessions share them, so that each does not have to ask by itself.
#[derive(Debug)]
pub(crate) struct Owners {
    nodes: ClusterNodes,
    map: Option<SlotMap>,
    /// A node that redirected a command: it is asked first.
    sender: Option<Node>,
    /// A node that was lost: it is asked last.
    lost: Option<Node>,
}

impl Owners {
    /// The owners in the cluster of `endpoint`; none is known yet.
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self { nodes: ClusterNodes::new(endpoint.node_map()), map: None, sender: None, lost: None }
    }

    /// The node that has this slot, if known.
    pub(crate) fn get(&self, slot: u16) -> Option<Node> {
        self.map.as_ref()?.owner(slot)
    }

    /// Asks the nodes again, to find this slot.
    pub(crate) fn ask(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        slot: u16,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let ends = (self.sender.as_ref(), self.lost.as_ref());
        block_on(self.nodes.ask_any(endpoint, settings, slot, ends, watch)).map(|map| {
            (self.map, self.sender, self.lost) = (Some(map), None, None);
        })
    }

    /// The node to which `sender` redirected a command, if the cluster has listed that node.
    pub(crate) fn target(&self, fault: &Fault, sender: &Node) -> Option<Node> {
        self.nodes.target(&Redirect::within(&fault.message)?, Some(sender))
    }

    /// Notes a redirect to an unknown node: the nodes must be asked again, `sender` first.
    pub(crate) fn doubt(&mut self, sender: &Node) {
        (self.map, self.sender) = (None, Some(sender.clone()));
    }

    /// Notes that a node cannot be reached: others may have its slots.
    pub(crate) fn lose(&mut self, node: &Node) {
        (self.map, self.lost) = (None, Some(node.clone()));
    }
}
