//! The batches that a consumer returns.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};

use crate::entries::{FieldsAt, Misspelt};
use crate::error::{Error, Result};
use crate::resp::EntryId;

/// Columns that only a group can fill; they follow the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Extra {
    /// The name of the column with the number of deliveries, if it was requested.
    pub(super) deliveries: Option<String>,
    pub(super) reclaimed: Option<String>,
}

impl Extra {
    pub(super) fn fields(&self) -> impl Iterator<Item = Field> {
        let deliveries = self.deliveries.as_ref().map(|name| Field::new(name, DataType::UInt64, false));
        let reclaimed = self.reclaimed.as_ref().map(|name| Field::new(name, DataType::Boolean, false));
        [deliveries, reclaimed].into_iter().flatten()
    }

    pub(super) fn schema(&self, schema: &Schema) -> Schema {
        let fields = schema.fields().iter().map(|field| field.as_ref().clone());
        Schema::new(fields.chain(self.fields()).collect::<Vec<_>>())
    }
}

/// Entries of one stream, delivered to one consumer.
#[derive(Debug, Clone)]
pub struct ConsumerBatch {
    batch: RecordBatch,
    /// The number of the ledger that holds the batch.
    owner: u64,
    number: u64,
    stream: Arc<[u8]>,
    ids: Arc<[EntryId]>,
    /// The counter of deliveries of each entry; empty if all were delivered for the first time.
    deliveries: Box<[u64]>,
    is_reclaimed: bool,
    pub(super) fields_at: FieldsAt,
    /// See [`misspelt`](Self::misspelt).
    pub(super) misspelt: Option<Misspelt>,
}

impl ConsumerBatch {
    /// Creates a batch. `deliveries`: the counter of deliveries of each entry; empty if all were delivered for the first time.
    pub(super) fn new(
        batch: RecordBatch,
        (owner, number): (u64, u64),
        stream: Arc<[u8]>,
        ids: Vec<EntryId>,
        deliveries: &[u64],
        is_reclaimed: bool,
        extra: &Extra,
    ) -> Result<Self> {
        let rows = batch.num_rows();
        let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
        if extra.deliveries.is_some() {
            let first = |at| deliveries_of(deliveries, at);
            columns.push(Arc::new(UInt64Array::from_iter_values((0..rows).map(first))));
        }
        if extra.reclaimed.is_some() {
            columns.push(Arc::new(BooleanArray::from(vec![is_reclaimed; rows])));
        }
        let batch = if columns.len() == batch.num_columns() {
            batch
        } else {
            let schema = Arc::new(extra.schema(&batch.schema()));
            RecordBatch::try_new(schema, columns).map_err(|error| Error::Internal { message: error.to_string() })?
        };
        Ok(Self {
            batch,
            owner,
            number,
            stream,
            ids: Arc::from(ids),
            deliveries: Box::from(deliveries),
            is_reclaimed,
            fields_at: FieldsAt::Columns(Vec::new()),
            misspelt: None,
        })
    }

    /// The record batch, with one row per entry.
    pub fn record_batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The key of the stream.
    pub fn stream(&self) -> &[u8] {
        &self.stream
    }

    /// The IDs of the entries, in the order of the rows.
    pub fn ids(&self) -> &[EntryId] {
        &self.ids
    }

    /// How many times the entry in a row was delivered, with this time.
    pub fn deliveries(&self, row: usize) -> u64 {
        deliveries_of(&self.deliveries, row)
    }

    /// Whether the entries were taken over from other consumers.
    pub fn is_reclaimed(&self) -> bool {
        self.is_reclaimed
    }

    /// Where the fields of the entries are in the record batch.
    pub fn fields_at(&self) -> &FieldsAt {
        &self.fields_at
    }

    /// A warning about a column that is null in all rows because its field is probably misspelt. One batch of a consumer has it.
    pub fn misspelt(&self) -> Option<String> {
        self.misspelt.as_ref().map(Misspelt::to_string)
    }

    /// The number of the batch in its ledger.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The number of the ledger that holds the batch.
    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Checks that `mask` has one value for each row.
    pub fn check_mask(&self, mask: &[bool]) -> Result<()> {
        if mask.len() == self.ids.len() {
            return Ok(());
        }
        let message =
            format!("mask must have a value for each of the {} rows of the batch, got {}", self.ids.len(), mask.len());
        Err(Error::config("mask", message))
    }
}

fn deliveries_of(deliveries: &[u64], row: usize) -> u64 {
    deliveries.get(row).copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_group_columns_follow_the_other_columns() {
        let column: ArrayRef = Arc::new(UInt64Array::from(vec![7, 8]));
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let ids = vec![EntryId { ms: 1, seq: 0 }, EntryId { ms: 2, seq: 0 }];
        let extra = Extra { deliveries: Some("deliveries".to_owned()), reclaimed: Some("back".to_owned()) };
        let new = |deliveries: &[u64]| {
            ConsumerBatch::new(batch.clone(), (0, 1), Arc::from(&b"s"[..]), ids.clone(), deliveries, true, &extra)
                .unwrap()
        };
        let read = |batch: &ConsumerBatch| {
            let batch = batch.record_batch();
            let column = batch.column_by_name("deliveries").unwrap();
            column.as_any().downcast_ref::<UInt64Array>().unwrap().values().to_vec()
        };
        assert_eq!(read(&new(&[3, 4])), [3, 4]);
        assert_eq!(read(&new(&[])), [1, 1]);
        assert_eq!([new(&[3, 4]).deliveries(1), new(&[]).deliveries(1)], [4, 1]);
        assert_eq!(new(&[]).record_batch().schema().fields().len(), 3);
        assert!(new(&[]).check_mask(&[true]).is_err());
    }
}
