//! Changes of the servers that messages go to, or come from, as callers see them.

use std::borrow::Cow;
use std::time::Duration;

/// A change that calls notice: once, however many messages it concerns. Nodes are named by host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// The sentinels name another master.
    MasterSwitched {
        /// The master before.
        from: String,
        /// The one that messages go to now.
        to: String,
    },
    /// A reader or a consumer goes on with another node of a cluster, which has the stream now.
    StreamMoved {
        /// The node before.
        from: String,
        /// The node that has it now.
        to: String,
    },
    /// Slots of a cluster moved.
    SlotsMoved {
        /// How many.
        slots: u64,
        /// The node that had them.
        from: String,
        /// The node that has them now.
        to: String,
    },
    /// A replica has taken over from a node of a cluster.
    FailedOver {
        /// How many slots it took over.
        slots: u64,
        /// The node that had them.
        from: String,
        /// The node that has them now.
        to: String,
    },
    /// A node of a cluster cannot be reached, or does not reply.
    NodeDown {
        /// The node.
        node: String,
        /// Why.
        code: Cow<'static, str>,
        /// Why, in words.
        message: String,
    },
    /// It replies again.
    NodeBack {
        /// The node.
        node: String,
        /// For how long it was down.
        after: Duration,
    },
}
