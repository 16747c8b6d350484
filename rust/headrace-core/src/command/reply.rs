//! What the server may reply to a command, and which reply a command expects.

use super::script_reply::{self, ScriptReply};
use super::wait_reply;
use super::xadd_reply::{self, EntryId};
use crate::resp::decode::Violation;

/// The reply that a command expects. Whoever sends the command says so: nothing is inferred from the bytes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Of XADD: an entry ID, nil or an error.
    EntryId,
    /// Of a run of the script: an array, or an error. `has_source`: the command carries the script, not only its hash.
    ScriptRun { has_source: bool },
    /// Of WAIT or WAITAOF: a count, two counts, or an error.
    Wait,
}

impl Expect {
    /// The expected reply at the start of `bytes` and its length, once all of it has arrived.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
        match self {
            Self::EntryId => xadd_reply::decode(bytes),
            Self::ScriptRun { .. } => script_reply::decode(bytes),
            Self::Wait => wait_reply::decode(bytes),
        }
    }
}

/// One reply, or several to XADDs that follow each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// `count` entries were appended, the first under `first`, the others under the sequence numbers that follow.
    Ids { first: EntryId, count: u64 },
    /// The stream does not exist, and NOMKSTREAM was given.
    Nil,
    /// An error reply, without its `-` and its line end.
    Error(&'a [u8]),
    /// The result of a run of the script.
    Run(ScriptReply<'a>),
    /// How many have what the connection wrote before. `local`: the server itself, for WAITAOF; WAIT does not report it.
    Acknowledged { local: u64, replicas: u64 },
}
