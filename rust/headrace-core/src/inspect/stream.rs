//! The row of a stream.

use crate::admin::{Cell, Column, Kind, TableBuilder};
use crate::error::Result;
use crate::resp::EntryId;
use crate::stream_facts::StreamInfo;
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

/// Appends the row of a stream; `info` is `None` if the stream does not exist.
pub(super) fn push(table: &mut TableBuilder, key: &[u8], info: Option<&StreamInfo>, memory: Option<i64>) -> Result<()> {
    let of = |id: fn(&StreamInfo) -> Option<EntryId>| info.and_then(id);
    let number = |number: fn(&StreamInfo) -> Option<u64>| Cell::from(info.and_then(number).map(u64::cast_signed));
    let text = |id: Option<EntryId>| Cell::from(id.map(|id| id.to_string()));
    let (first, newest) = (of(|info| info.first_id), of(|info| info.newest_id));
    table.push([
        utf8::escape(key).into(),
        Cell::Flag(info.is_some()),
        info.map_or(0, |info| info.length.cast_signed()).into(),
        number(|info| info.added),
        text(first),
        time(first).into(),
        text(newest),
        time(newest).into(),
        text(of(|info| Some(info.last_id))),
        text(of(|info| Some(info.max_deleted_id).filter(|id| *id > EntryId::default()))),
        memory.into(),
        number(|info| Some(info.groups)),
    ])
}

/// The time in an entry ID; `None` outside the range of Arrow's timestamps.
pub(super) fn time(id: Option<EntryId>) -> Option<i64> {
    id.and_then(|id| i64::try_from(id.ms).ok())
}
