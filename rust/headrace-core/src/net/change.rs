//! Changes of the servers that messages go to or come from, as callers see them.

use std::borrow::Cow;
use std::time::Duration;

/// A change that is reported to the caller once, however many messages it affects. Nodes are named by host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// The sentinels name a different master.
    MasterSwitched {
        /// The previous master.
        from: String,
        /// The master that messages now go to.
        to: String,
    },
    /// A reader or a consumer continues with another node of a cluster, which now has the stream.
    StreamMoved {
        /// The previous node.
        from: String,
        /// The node that now has the stream.
        to: String,
    },
    /// Slots of a cluster moved.
    SlotsMoved {
        /// The number of slots.
        slots: u64,
        /// The node that had them.
        from: String,
        /// The node that now has them.
        to: String,
    },
    /// A replica has taken over from a node of a cluster.
    FailedOver {
        /// The number of slots that the replica took over.
        slots: u64,
        /// The node that had them.
        from: String,
        /// The node that now has them.
        to: String,
    },
    /// A node of a cluster cannot be reached, or does not reply.
    NodeDown {
        /// The node.
        node: String,
        /// The code of the reason.
        code: Cow<'static, str>,
        /// The reason in words.
        message: String,
    },
    /// A node of a cluster that was down replies again.
    NodeBack {
        /// The node.
        node: String,
        /// How long it was down.
        after: Duration,
    },
}
