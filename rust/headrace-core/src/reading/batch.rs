//! The batches that a reader returns.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::position::{Place, Position};
use crate::entries::{FieldsAt, Misspelt, RowIds};
use crate::resp::EntryId;
use crate::stream_facts::Loss;

/// Entries of one stream, in the order of their IDs.
#[derive(Debug, Clone)]
pub struct ReadBatch {
    pub(crate) batch: RecordBatch,
    /// The IDs of all rows of the batch, and perhaps of more.
    pub(crate) ids: Option<RowIds>,
    pub(crate) fields_at: FieldsAt,
    pub(crate) stream: Arc<[u8]>,
    pub(crate) entries: u64,
    pub(crate) first_id: EntryId,
    pub(crate) last_id: EntryId,
    pub(crate) lost: Option<Loss>,
    pub(crate) misspelt: Option<Misspelt>,
    /// The reader's position after the batch, which is set once the batch is returned.
    pub(crate) position: Position,
}

impl ReadBatch {
    /// The record batch, with one row per entry.
    pub fn record_batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The key of the stream.
    pub fn stream(&self) -> &[u8] {
        &self.stream
    }

    /// The ID of the entry of a row; `None`: the batch has fewer rows.
    pub fn id(&self, row: usize) -> Option<EntryId> {
        self.ids.as_ref().filter(|_| row < self.batch.num_rows())?.get(row)
    }

    /// Where the fields of the entries are in the record batch.
    pub fn fields_at(&self) -> &FieldsAt {
        &self.fields_at
    }

    /// The ID of the first entry.
    pub fn first_id(&self) -> EntryId {
        self.first_id
    }

    /// The ID of the last entry.
    pub fn last_id(&self) -> EntryId {
        self.last_id
    }

    /// The number of entries of this stream that were trimmed before they were read, since the previous batch; and whether it is
    /// exact or an upper bound.
    pub fn lost(&self) -> (u64, bool) {
        self.lost.map_or((0, true), |lost| (lost.entries, lost.exact))
    }

    /// Leaves the first `entries` entries. Returns the others, if there are any.
    pub(crate) fn split(&mut self, entries: u64) -> Option<Self> {
        let ids = self.ids.clone().filter(|_| entries < self.entries)?;
        let rows = self.batch.num_rows();
        let mut count = 0;
        let is_first = |row: &usize| *row == 0 || ids.get(*row) != ids.get(*row - 1);
        let row = (0..rows).filter(is_first).find(|_| {
            count += 1;
            count > entries
        })?;
        let (first_id, last_id) = (ids.get(row)?, ids.get(row - 1)?);
        let rest = Self {
            batch: self.batch.slice(row, rows - row),
            ids: Some(ids.from(row)),
            entries: self.entries - entries,
            first_id,
            lost: None,
            misspelt: None,
            ..self.clone()
        };
        self.batch = self.batch.slice(0, row);
        (self.entries, self.last_id) = (entries, last_id);
        let place = Place { id: last_id, is_entry: true, added: None, removed: None };
        self.position.set(Arc::clone(&self.stream), Some(place));
        Some(rest)
    }

    /// A warning about a column that is null in all rows because its field is probably misspelt. One batch of a reader has it.
    pub fn misspelt(&self) -> Option<String> {
        self.misspelt.as_ref().map(Misspelt::to_string)
    }

    /// The reader's position after this batch, in all its streams: a reader that starts there reads the entries after the batch.
    pub fn position(&self) -> String {
        self.position.to_text()
    }
}
