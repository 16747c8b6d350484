//! What a server may reply to a command.

use crate::resp::decode::bulk;
use crate::resp::{EntryId, entry_id};

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
    /// How many servers have what the connection wrote before. `local`: the server itself, for WAITAOF; WAIT does not report it.
    Acknowledged { local: u64, replicas: u64 },
    /// A simple string, without its `+` and its line end.
    Status(&'a [u8]),
}

/// The reply to a run of rows ([`script`](super::script)).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScriptReply<'a> {
    /// How many of the run's first rows had been written before.
    pub(crate) deduplicated: u64,
    /// Why the row after the last entry ID was not written; empty: all were.
    pub(crate) refused: &'a [u8],
    /// How many rows were appended.
    pub(crate) appended: u64,
    /// Whether `ids` has only the first and the last of their IDs: the others are in between, without a gap.
    pub(super) is_range: bool,
    /// Their entry IDs, as bulk strings.
    pub(super) ids: &'a [u8],
}

impl ScriptReply<'_> {
    /// The entry IDs: the first of those that follow each other, and how many follow each other.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (EntryId, u64)> {
        let length = if self.is_range { self.appended } else { 1 };
        let mut rest = self.ids;
        let ids = std::iter::from_fn(move || {
            let (id, length) = bulk(rest).ok().flatten()?;
            rest = rest.get(length..)?;
            id.and_then(entry_id)
        });
        ids.take(if self.is_range { 1 } else { usize::MAX }).map(move |id| (id, length))
    }
}
