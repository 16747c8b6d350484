//! The counters of each node of a cluster.

use std::sync::{Arc, Mutex, PoisonError};

use super::cell::{Counter, Flag, Index, Time};
use super::table::{CounterValues, counter, counter_table, gauge, hidden, time};

/// The maximum number of nodes that are listed: the maximum of a cluster.
const MAX_NODES: usize = 1_000;

counter_table! {
    /// The counters of one node. One thread writes them.
    #[derive(Debug, Default)]
    pub(crate) struct NodeCounters in NODE_COUNTERS {
        /// Messages in the window for this node: they have no reply yet, or wait to be sent to it again.
        pub(crate) in_flight: Counter = gauge("{message}", "Messages in the window for the node"),
        /// The size of their commands in bytes.
        pub(crate) in_flight_bytes: Counter = gauge("By", "Bytes of the messages in the window for the node"),
        /// Connections to the node that were opened and authenticated.
        pub(crate) connections: Counter = counter("{connection}", "Connections that were made to the node"),
        /// How often the node redirected messages of a slot to another node (`MOVED`, `ASK`).
        pub(crate) redirects: Counter = counter("{redirect}", "Redirects that the node sent"),
        /// The time since which the node could not be reached or did not reply, in seconds since 1970. None: it is not known
        /// to be down.
        pub(crate) down_since: Time =
            time("seconds_down", "Time since the node became unreachable, 0 if it is not down"),
        /// Whether the window is full, and holds more for this node than for any other: calls wait for the node.
        pub(crate) fills_window: Flag = gauge("1", "Whether the window is full and waits for the node"),
        /// With `fills_window`, the number of the shard whose message has waited longest. None: the endpoint has no shards,
        /// or several of them share that slot.
        pub(crate) waiting_shard: Index = hidden(),
    } and {
        address: String,
    }
}

impl NodeCounters {
    pub(crate) fn new(address: String) -> Self {
        Self { address, ..Self::default() }
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

    pub(super) fn read(&self) -> Vec<(String, CounterValues)> {
        let listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listed.iter().map(|node| (node.address.clone(), node.values())).collect()
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
        let addresses: Vec<_> = list.read().into_iter().map(|(address, _)| address).collect();
        assert_eq!(addresses.len(), MAX_NODES);
        assert_eq!(addresses.first().map(String::as_str), Some("busy:1"), "what is in use stays");
        assert_eq!(addresses.last(), Some(&format!("db:{}", 2 * MAX_NODES - 1)));
    }
}
