//! Which reply a command expects.

use super::reply::Reply;
use super::{script_reply, status_reply, wait_reply, xadd_reply};
use crate::resp::decode::Violation;

/// The reply that a command expects. It is recorded when the command is sent: nothing is inferred from the bytes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// For XADD: an entry ID, nil or an error.
    EntryId,
    /// For a run of the script: an array, or an error. `has_source`: the command carries the script, not only its hash.
    ScriptRun { has_source: bool },
    /// For WAIT or WAITAOF: a count, two counts, or an error.
    Wait,
    /// For a command that belongs to no message, such as PING: a simple string, or an error.
    Status,
    /// For ASKING, which lets the next command pass at a node that is still taking over its slot: a simple string, or an error.
    Asking,
}

impl Expect {
    /// The expected reply at the start of `bytes` and its length, once all of it has arrived.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
        match self {
            Self::EntryId => xadd_reply::decode(bytes),
            Self::ScriptRun { .. } => script_reply::decode(bytes),
            Self::Wait => wait_reply::decode(bytes),
            Self::Status | Self::Asking => status_reply::decode(bytes),
        }
    }
}
