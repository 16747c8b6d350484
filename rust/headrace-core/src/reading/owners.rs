//! Which nodes of a cluster have the streams of a reader, as the nodes said it last.

use crate::cluster::Redirect;
use crate::endpoint::{Endpoint, Node, Settings};
use crate::error::Fault;
use crate::net::{ClusterNodes, ConnectError, SlotMap, Watch, block_on};

/// What the nodes of a cluster said about who has which slots: one answer for all sessions, where each would ask for itself.
#[derive(Debug)]
pub(crate) struct Owners {
    nodes: ClusterNodes,
    map: Option<SlotMap>,
    /// A node that sent a command elsewhere: it is asked first.
    sender: Option<Node>,
    /// A node that was lost: it is asked last.
    lost: Option<Node>,
}

impl Owners {
    /// Of the cluster of `endpoint`.
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self { nodes: ClusterNodes::new(endpoint.node_map()), map: None, sender: None, lost: None }
    }

    /// The node that has this slot, as far as is known.
    pub(crate) fn get(&self, slot: u16) -> Option<Node> {
        self.map.as_ref()?.owner(slot)
    }

    /// Asks the nodes again, because of this slot.
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

    /// Where `sender` sent a command, if the cluster has listed that node.
    pub(crate) fn target(&self, fault: &Fault, sender: &Node) -> Option<Node> {
        self.nodes.target(&Redirect::within(&fault.message)?, Some(sender))
    }

    /// A node sent a command elsewhere, and it is not known where: the nodes are to be asked again, that one first.
    pub(crate) fn doubt(&mut self, sender: &Node) {
        (self.map, self.sender) = (None, Some(sender.clone()));
    }

    /// A node cannot be reached: others may have its slots.
    pub(crate) fn lose(&mut self, node: &Node) {
        (self.map, self.lost) = (None, Some(node.clone()));
    }
}
