//! The batches that a shard consumer returns.

use crate::leases::Ticket;
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
}
