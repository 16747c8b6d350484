//! Slots that have moved from one node to another.

use super::node::Node;

/// Slots of one node that another node has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) slots: u64,
    pub(crate) from: Node,
    pub(crate) to: Node,
    /// Whether the new node was a replica of the old one.
    pub(crate) is_failover: bool,
}
