//! The batches that a shard consumer returns.

use std::time::Duration;

use crate::leases::{Failed, Ticket};
use crate::reading::{Place, ReadBatch};
use crate::resp::EntryId;

/// Entries of one stream, in the order of their IDs, for its owner.
#[derive(Debug, Clone)]
pub struct ShardBatch {
    pub(super) batch: ReadBatch,
    pub(super) ticket: Ticket,
    /// The number of the consumer in this process.
    pub(super) owner: u64,
}

impl ShardBatch {
    /// The entries.
    pub fn entries(&self) -> &ReadBatch {
        &self.batch
    }

    /// The number of the stream among those of the consumer.
    pub fn shard(&self) -> usize {
        self.ticket.stream
    }

    /// The number of the lease under which the batch was read: it grows each time that the stream has a new owner.
    pub fn epoch(&self) -> u64 {
        self.ticket.epoch
    }

    /// The place in the stream after the entry of a row, and how many entries of the batch follow it. `None`: the batch has no such
    /// row.
    pub(super) fn after(&self, row: usize) -> Option<(Place, u64)> {
        let id = self.batch.id(row)?;
        let rows = self.batch.record_batch().num_rows();
        let left = if self.batch.entries == rows as u64 {
            (rows - row - 1) as u64
        } else {
            // Several rows may be one entry.
            let ids: Vec<EntryId> = (row..rows).filter_map(|row| self.batch.id(row)).collect();
            ids.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64
        };
        Some((Place { id, is_entry: true, added: None, removed: None }, left))
    }

    /// What has failed: the entry of a row, or, with `None`, the batch. `None`: the batch has no such row.
    pub(super) fn failed(&self, row: Option<usize>, reason: &str, delay: Option<Duration>) -> Option<Failed> {
        let reason = reason.to_owned();
        let Some(row) = row.or_else(|| (self.batch.entries == 1).then_some(0)) else {
            return Some(Failed { before: None, entry: None, reason, delay });
        };
        let id = self.batch.id(row)?;
        let (first, last) = self.rows_of(id, row);
        let (after, left) = self.after(last)?;
        let before = first.checked_sub(1).and_then(|before| self.after(before));
        Some(Failed { before, entry: Some((id, after, left)), reason, delay })
    }

    /// The first and the last row of an entry, which this row is of.
    fn rows_of(&self, id: EntryId, row: usize) -> (usize, usize) {
        let is_of_it = |row: &usize| self.batch.id(*row) == Some(id);
        let first = (0..=row).rev().take_while(is_of_it).last().unwrap_or(row);
        let last = (row..self.batch.record_batch().num_rows()).take_while(is_of_it).last().unwrap_or(row);
        (first, last)
    }
}
