//! The counters of each node of a cluster.

use std::sync::{Arc, Mutex, PoisonError};

use super::Counter;

/// The maximum number of nodes that are listed, which is what a cluster may have.
const MAX_NODES: usize = 1_000;

/// The counters of one node. One thread writes them.
#[derive(Debug, Default)]
pub(crate) struct NodeCounters {
    address: String,
    pub(crate) in_flight: Counter,
    pub(crate) in_flight_bytes: Counter,
    pub(crate) connections: Counter,
    pub(crate) redirects: Counter,
    /// In milliseconds since 1970. 0: it is not down.
    pub(crate) down_since: Counter,
    /// 1 or 0.
    pub(crate) fills_window: Counter,
    /// The number of the shard that the full window waits for, plus 1. 0: there is none.
    pub(crate) waiting_shard: Counter,
}

/// The values of the counters of one node at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeValues {
    /// Its host and port, as the cluster lists them.
    pub address: String,
    /// Messages for it that have no reply, or wait to be sent to it again.
    pub in_flight: u64,
    /// The bytes of their commands.
    pub in_flight_bytes: u64,
    /// Connections to it whose handshake succeeded.
    pub connections: u64,
    /// How many times it sent messages of a slot to another node.
    pub redirects: u64,
    /// Since when it has been unreachable, in milliseconds since 1970.
    pub down_since_ms: Option<u64>,
    /// Whether the window is full, and more of it is for this node than for any other.
    pub fills_window: bool,
    /// The shard whose message has waited longest, if `fills_window` is set and the shard is known.
    pub waiting_shard: Option<u64>,
}

impl NodeCounters {
    pub(crate) fn new(address: String) -> Self {
        Self { address, ..Self::default() }
    }

    fn read(&self) -> NodeValues {
        NodeValues {
            address: self.address.clone(),
            in_flight: self.in_flight.get(),
            in_flight_bytes: self.in_flight_bytes.get(),
            connections: self.connections.get(),
            redirects: self.redirects.get(),
            down_since_ms: Some(self.down_since.get()).filter(|since| *since > 0),
            fills_window: self.fills_window.get() > 0,
            waiting_shard: self.waiting_shard.get().checked_sub(1),
        }
    }
}

/// The nodes that are listed, in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct NodeList(Mutex<Vec<Arc<NodeCounters>>>);

impl NodeList {
    /// Lists a node, unless it is listed already. If there are too many, it replaces the first one that is not in use.
    pub(super) fn add(&self, node: &Arc<NodeCounters>) {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.iter().any(|known| Arc::ptr_eq(known, node)) {
            return;
        }
        if listed.len() >= MAX_NODES {
            let unused = listed.iter().position(|known| known.in_flight.get() == 0);
            listed.remove(unused.unwrap_or_default());
        }
        listed.push(Arc::clone(node));
    }

    pub(super) fn read(&self) -> Vec<NodeValues> {
        let listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listed.iter().map(|node| node.read()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_listed_once_and_the_number_of_nodes_is_bounded() {
        let list = NodeList::default();
        let busy = Arc::new(NodeCounters::new("busy:1".to_owned()));
        busy.in_flight.set(1);
        list.add(&busy);
        list.add(&busy);
        assert_eq!(list.read().len(), 1);
        for port in 0..2 * MAX_NODES {
            list.add(&Arc::new(NodeCounters::new(format!("db:{port}"))));
        }
        let addresses: Vec<_> = list.read().into_iter().map(|node| node.address).collect();
        assert_eq!(addresses.len(), MAX_NODES);
        assert_eq!(addresses.first().map(String::as_str), Some("busy:1"), "what is in use stays");
        assert_eq!(addresses.last(), Some(&format!("db:{}", 2 * MAX_NODES - 1)));
    }
}
