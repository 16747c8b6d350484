//! Finds out which node of a cluster has the slot of a stream: nodes are asked at the first connect and when that node cannot be
//! reached any longer.

use std::time::Instant;

use super::change::ServerChange;
use super::cluster_nodes::{ClusterNodes, is_redirect, no_answer, open};
use super::deadline::{ConnectError, Deadline};
use super::stream::Transport;
use crate::cluster::slot;
use crate::endpoint::{Cluster, Endpoint, Node, NodeMap, Settings};
use crate::error::{Fault, code};

/// What is known about the owner of one slot.
#[derive(Debug)]
pub(crate) struct OwnerLookup {
    slot: u16,
    nodes: ClusterNodes,
    /// The node that has the slot, as far as is known.
    owner: Option<Node>,
    /// The node of the last connection.
    current: Option<Node>,
    /// The move to another node, until it is [taken](Self::take_change).
    change: Option<ServerChange>,
}

impl OwnerLookup {
    /// The lookup for the slot of `key`.
    pub(super) fn new(key: &[u8], map: NodeMap) -> Self {
        Self { slot: slot(key), nodes: ClusterNodes::new(map), owner: None, current: None, change: None }
    }

    /// Connects to the node that has the slot. The nodes that have to be tried share the remaining time.
    pub(super) async fn connect(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        cluster: &Cluster,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        let mut refused: Vec<(Node, Fault)> = Vec::new();
        if let Some(owner) = self.owner.take() {
            let mut part = patience.until(Instant::now() + patience.left() / 2);
            match self.open(endpoint, settings, &owner, &mut part).await {
                Err(ConnectError::Fault(fault)) => refused.push((owner, fault)),
                opened => return opened,
            }
        }
        let candidates =
            self.nodes.candidates(cluster.seeds(settings.port), (None, refused.first().map(|(owner, _)| owner)));
        let mut faults = Vec::new();
        for (tried, node) in candidates.iter().enumerate() {
            let mut part = patience.part(candidates.len() - tried);
            let owner = match self.nodes.ask(endpoint, settings, node, &mut part).await.map(|map| map.owner(self.slot))
            {
                Ok(Some(owner)) => owner,
                Ok(None) => {
                    faults.push(Fault::new(
                        code::NO_SLOT,
                        format!("according to {node}, no node has slot {}", self.slot),
                    ));
                    continue;
                }
                Err(ConnectError::Fault(fault)) => {
                    faults.push(fault);
                    continue;
                }
                Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            };
            if refused.iter().any(|(known, _)| *known == owner) {
                continue;
            }
            match self.open(endpoint, settings, &owner, &mut part).await {
                Err(ConnectError::Fault(fault)) => refused.push((owner, fault)),
                opened => return opened,
            }
        }
        Err(match refused.pop() {
            Some((_, fault)) if !is_redirect(&fault) => fault,
            Some((node, fault)) => {
                let message = format!("the nodes disagree about slot {}: {node} says {}", self.slot, fault.message);
                Fault::new(code::NO_SLOT, message)
            }
            None => no_answer(self.slot, faults),
        }
        .into())
    }

    async fn open(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        let transport = open(endpoint, settings, node, endpoint.first_streams(), patience).await?;
        self.owner = Some(node.clone());
        let last = self.current.replace(node.clone()).filter(|last| last != node);
        self.change = last.map(|last| ServerChange::StreamMoved { from: last.to_string(), to: node.to_string() });
        Ok(transport)
    }

    /// The change of nodes found by the last connect. Returned only once.
    pub(super) fn take_change(&mut self) -> Option<ServerChange> {
        self.change.take()
    }
}
