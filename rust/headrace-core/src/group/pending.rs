//! Pending entries: the commands that query them page by page, and their table.

use std::time::Duration;

use redis::Value;

use super::arguments::PendingQuery;
use super::start::Start;
use crate::admin::{Column, Command, Kind, Pending, Table, TableBuilder};
use crate::error::Result;
use crate::resp::value::list;
use crate::utf8;

/// The number of entries in one reply: about 1 MB.
pub(super) const PAGE: u64 = 10_000;

const COLUMNS: [Column; 4] = [
    ("entry_id", Kind::Text, false),
    ("consumer", Kind::Text, false),
    ("idle", Kind::Duration, false),
    ("deliveries", Kind::Number, false),
];

/// The pages of one call.
pub(super) struct Pages<'a> {
    key: &'a [u8],
    group: &'a [u8],
    query: &'a PendingQuery,
    /// The position at which the next page begins; `None`: there is no further page.
    start: Option<Start>,
    left: u64,
    asked: u64,
    table: TableBuilder,
}

impl<'a> Pages<'a> {
    pub(super) fn new(key: &'a [u8], group: &'a [u8], query: &'a PendingQuery) -> Self {
        let start = Some(query.start.unwrap_or(Start::Earliest));
        let left = query.limit.unwrap_or(u64::MAX);
        Self { key, group, query, start, left, asked: 0, table: TableBuilder::new(&COLUMNS) }
    }

    /// The command for the next page, if there is one.
    pub(super) fn next(&mut self) -> Option<Command> {
        let start = self.start?.range().filter(|_| self.left > 0)?;
        self.asked = self.left.min(PAGE);
        let mut command = Command::read("xpending").key(self.key).arg(self.group);
        if let Some(idle) = self.query.min_idle {
            command = command.arg("IDLE").arg(milliseconds(idle));
        }
        command = command.arg(start).arg("+").arg(self.asked);
        if let Some(consumer) = &self.query.consumer {
            command = command.arg(consumer.as_slice());
        }
        Some(command)
    }

    /// Reads the reply to the command of [`next`](Self::next). Returns false if it cannot be read.
    pub(super) fn take(&mut self, reply: &Value) -> Result<bool> {
        let Some(entries) = list(reply) else { return Ok(false) };
        for entry in entries {
            let Some(entry) = Pending::read(entry) else { return Ok(false) };
            let id = entry.id.to_string();
            self.table.push([
                id.as_str().into(),
                utf8::escape(entry.consumer).into(),
                entry.idle.into(),
                entry.deliveries.into(),
            ])?;
            self.start = Some(Start::Behind(entry.id));
        }
        let count = entries.len() as u64;
        self.left = self.left.saturating_sub(count);
        if count < self.asked {
            self.start = None;
        }
        Ok(true)
    }

    pub(super) fn finish(self) -> Result<Table> {
        self.table.finish()
    }
}

/// The duration in full milliseconds, rounded up, so that no entry that is too young counts.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
