//! A stream: the part of the reply to XINFO STREAM that is shown, and its row.

use redis::Value;

use crate::admin::{Cell, Column, Kind, TableBuilder};
use crate::error::Result;
use crate::resp::value::{bytes, field, integer, list};
use crate::resp::{EntryId, entry_id};
use crate::utf8;

pub(super) const COLUMNS: [Column; 12] = [
    ("key", Kind::Text, false),
    ("exists", Kind::Flag, false),
    ("length", Kind::Number, false),
    ("entries_added", Kind::Number, true),
    ("first_id", Kind::Text, true),
    ("first_timestamp", Kind::Time, true),
    ("last_id", Kind::Text, true),
    ("last_timestamp", Kind::Time, true),
    ("last_generated_id", Kind::Text, true),
    ("max_deleted_id", Kind::Text, true),
    ("memory", Kind::Number, true),
    ("groups", Kind::Number, true),
];

/// The information from XINFO STREAM about a stream: <https://redis.io/docs/latest/commands/xinfo-stream/>.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// The number of entries.
    pub length: i64,
    /// The oldest entry.
    pub first: Option<EntryId>,
    /// The newest entry.
    pub last: Option<EntryId>,
    /// The highest ID that any of its entries ever had.
    pub last_generated: EntryId,
    /// The number of entries ever added. Since Redis 7.0.
    pub entries_added: Option<i64>,
    /// The highest ID removed by XDEL; trimming is not included. Since Redis 7.0.
    pub max_deleted: Option<EntryId>,
    /// The number of its consumer groups.
    pub groups: i64,
}

impl StreamInfo {
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let number = |name| field(reply, name).and_then(integer);
        let id = |name| field(reply, name).and_then(bytes).and_then(entry_id);
        let entry = |name| field(reply, name).and_then(|entry| list(entry)?.first()).and_then(bytes).and_then(entry_id);
        Some(Self {
            length: number("length")?,
            first: entry("first-entry"),
            last: entry("last-entry"),
            last_generated: id("last-generated-id")?,
            entries_added: number("entries-added"),
            max_deleted: id("max-deleted-entry-id").filter(|id| *id > EntryId { ms: 0, seq: 0 }),
            groups: number("groups")?,
        })
    }
}

/// Appends the row of a stream; `info` is `None` if the stream does not exist.
pub(super) fn push(table: &mut TableBuilder, key: &[u8], info: Option<&StreamInfo>, memory: Option<i64>) -> Result<()> {
    let of = |id: fn(&StreamInfo) -> Option<EntryId>| info.and_then(id);
    let text = |id: Option<EntryId>| Cell::from(id.map(|id| id.to_string()));
    let (first, last) = (of(|info| info.first), of(|info| info.last));
    table.push([
        utf8::escape(key).into(),
        Cell::Flag(info.is_some()),
        info.map_or(0, |info| info.length).into(),
        info.and_then(|info| info.entries_added).into(),
        text(first),
        time(first).into(),
        text(last),
        time(last).into(),
        text(of(|info| Some(info.last_generated))),
        text(of(|info| info.max_deleted)),
        memory.into(),
        info.map(|info| info.groups).into(),
    ])
}

/// The time in an entry ID; `None` outside the range of Arrow's timestamps.
pub(super) fn time(id: Option<EntryId>) -> Option<i64> {
    id.and_then(|id| i64::try_from(id.ms).ok())
}
