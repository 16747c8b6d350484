//! The node of a cluster that a lane leads to: its counters, and since when it has been down. No I/O; the time is an argument.

use std::sync::Arc;
use std::time::Instant;

use crate::cluster::Node;
use crate::counters::{Counters, NodeCounters};
use crate::error::{Fault, code};
use crate::net::ServerChange;

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) node: Node,
    pub(super) counters: Arc<NodeCounters>,
    /// Since when the node has been unreachable.
    down: Option<Instant>,
}

impl NodeState {
    /// Lists the node in the counters.
    pub(super) fn new(node: Node, counters: &Counters) -> Self {
        let state = Self { counters: Arc::new(NodeCounters::new(node.to_string())), node, down: None };
        counters.list(&state.counters);
        state
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    /// Counts a new socket to the node. Returns the change, if it was down.
    pub(super) fn opened(&mut self, counters: &Counters, now: Instant) -> Option<ServerChange> {
        // Another node may have taken its place in the list.
        counters.list(&self.counters);
        self.counters.connections.add(1);
        self.back(now)
    }

    /// Marks the node as down, if the fault is that it cannot be reached or does not reply. `unix_ms`: the time of day. Returns
    /// the change, if it was not down.
    pub(super) fn failed(&mut self, fault: &Fault, now: Instant, unix_ms: u64) -> Option<ServerChange> {
        if self.is_down() || !code::is_away(&fault.code) {
            return None;
        }
        self.down = Some(now);
        self.counters.down_since.set(Some(unix_ms));
        let (node, code, message) = (self.node.to_string(), fault.code.clone(), fault.message.clone());
        Some(ServerChange::NodeDown { node, code, message })
    }

    /// Marks the node as up: it replies. Returns the change, if it was down.
    pub(super) fn back(&mut self, now: Instant) -> Option<ServerChange> {
        let since = self.down.take()?;
        self.counters.down_since.set(None);
        let after = now.saturating_duration_since(since);
        Some(ServerChange::NodeBack { node: self.node.to_string(), after })
    }
}
