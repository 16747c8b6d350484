//! Groups and consumers: the replies to XINFO GROUPS and XINFO CONSUMERS, and their rows.

use redis::Value;

use super::stream::time;
use crate::admin::{Column, Kind, TableBuilder};
use crate::error::Result;
use crate::resp::value::{bytes, field, integer, list};
use crate::resp::{EntryId, entry_id};
use crate::stream_facts::{GroupPosition, StreamInfo};
use crate::utf8;

pub(super) const GROUP_COLUMNS: [Column; 11] = [
    ("stream", Kind::Text, false),
    ("name", Kind::Text, false),
    ("consumers", Kind::Number, false),
    ("pending", Kind::Number, false),
    ("last_delivered_id", Kind::Text, false),
    ("entries_read", Kind::Number, true),
    ("lag", Kind::Number, true),
    ("lag_unknown_reason", Kind::Text, true),
    ("trimmed_unread", Kind::Number, true),
    ("oldest_pending_id", Kind::Text, true),
    ("oldest_pending_timestamp", Kind::Time, true),
];

pub(super) const CONSUMER_COLUMNS: [Column; 6] = [
    ("stream", Kind::Text, false),
    ("group", Kind::Text, false),
    ("name", Kind::Text, false),
    ("pending", Kind::Number, false),
    ("idle", Kind::Duration, false),
    ("inactive", Kind::Duration, true),
];

/// The information from XINFO GROUPS about a group.
#[derive(Debug)]
pub struct GroupInfo {
    /// The group's name.
    pub name: Vec<u8>,
    /// The number of the group's consumers.
    pub consumers: i64,
    /// The number of entries that were delivered to consumers but not acknowledged.
    pub pending: i64,
    /// The group's position in the stream.
    pub position: GroupPosition,
    /// The ID of the oldest pending entry, from XPENDING.
    pub(super) oldest_pending: Option<EntryId>,
}

impl GroupInfo {
    /// The groups of a reply; `None` if it cannot be read.
    pub(super) fn read_all(reply: &Value) -> Option<Vec<Self>> {
        list(reply)?.iter().map(Self::read).collect()
    }

    fn read(reply: &Value) -> Option<Self> {
        let number = |name| field(reply, name).and_then(integer);
        let count = |name| number(name).and_then(|number| u64::try_from(number).ok());
        Some(Self {
            name: field(reply, "name").and_then(bytes)?.to_vec(),
            consumers: number("consumers")?,
            pending: number("pending")?,
            position: GroupPosition {
                last_delivered: field(reply, "last-delivered-id").and_then(bytes).and_then(entry_id)?,
                entries_read: count("entries-read"),
                lag: count("lag"),
            },
            oldest_pending: None,
        })
    }

    pub(super) fn push(&self, table: &mut TableBuilder, key: &[u8], stream: &StreamInfo) -> Result<()> {
        let lag = self.position.lag(stream);
        table.push([
            utf8::escape(key).into(),
            utf8::escape(&self.name).into(),
            self.consumers.into(),
            self.pending.into(),
            Some(self.position.last_delivered.to_string()).into(),
            self.position.entries_read.map(u64::cast_signed).into(),
            lag.ok().map(u64::cast_signed).into(),
            lag.err().map(str::to_owned).into(),
            self.position.trimmed_unread(stream).map(u64::cast_signed).into(),
            self.oldest_pending.map(|id| id.to_string()).into(),
            time(self.oldest_pending).into(),
        ])
    }
}

/// Appends the consumers of a group. Returns false if the reply cannot be read.
pub(super) fn push_consumers(table: &mut TableBuilder, key: &[u8], group: &[u8], reply: &Value) -> Result<bool> {
    let Some(consumers) = list(reply) else { return Ok(false) };
    for consumer in consumers {
        let number = |name| field(consumer, name).and_then(integer);
        let (Some(name), Some(pending), Some(idle)) =
            (field(consumer, "name").and_then(bytes), number("pending"), number("idle"))
        else {
            return Ok(false);
        };
        table.push([
            utf8::escape(key).into(),
            utf8::escape(group).into(),
            utf8::escape(name).into(),
            pending.into(),
            idle.into(),
            // -1 means that the consumer never received an entry.
            number("inactive").filter(|inactive| *inactive >= 0).into(),
        ])?;
    }
    Ok(true)
}
