//! Tables in Arrow format, built row by row.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, DurationMillisecondBuilder, Int64Builder, StringBuilder, TimestampMillisecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{Error, Result};

/// A record batch ends with the row that reaches either limit: the offsets of text columns have 32 bits.
const BATCH_ROWS: usize = 64 * 1024;
const BATCH_BYTES: usize = 64 << 20;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// utf8
    Text,
    /// int64
    Number,
    /// bool
    Flag,
    /// duration\[ms\]
    Duration,
    /// timestamp\[ms, UTC\]
    Time,
}

/// A column: its name, its type, and whether it is nullable.
pub(crate) type Column = (&'static str, Kind, bool);

/// The value of one row in one column.
#[derive(Debug)]
pub(crate) enum Cell<'a> {
    Text(Option<Cow<'a, str>>),
    /// A number, a duration or a time.
    Number(Option<i64>),
    Flag(bool),
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'a> From<Cow<'a, str>> for Cell<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<String>> for Cell<'_> {
    fn from(text: Option<String>) -> Self {
        Self::Text(text.map(Cow::Owned))
    }
}

impl From<Option<i64>> for Cell<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

/// A table: record batches of one schema.
#[derive(Debug, Clone)]
pub struct Table {
    /// The schema; available even if there are no rows.
    pub schema: SchemaRef,
    /// The rows, at most 65,536 per record batch.
    pub batches: Vec<RecordBatch>,
}

/// A table under construction.
pub(crate) struct TableBuilder {
    schema: SchemaRef,
    builders: Vec<Builder>,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

enum Builder {
    Text(StringBuilder),
    Number(Int64Builder),
    Flag(BooleanBuilder),
    Duration(DurationMillisecondBuilder),
    Time(TimestampMillisecondBuilder),
}

impl TableBuilder {
    pub(crate) fn new(columns: &[Column]) -> Self {
        let utc = || Some("UTC".into());
        let (fields, builders): (Vec<Field>, Vec<Builder>) = columns
            .iter()
            .map(|&(name, kind, nullable)| {
                let (data_type, builder) = match kind {
                    Kind::Text => (DataType::Utf8, Builder::Text(StringBuilder::new())),
                    Kind::Number => (DataType::Int64, Builder::Number(Int64Builder::new())),
                    Kind::Flag => (DataType::Boolean, Builder::Flag(BooleanBuilder::new())),
                    Kind::Duration => (
                        DataType::Duration(TimeUnit::Millisecond),
                        Builder::Duration(DurationMillisecondBuilder::new()),
                    ),
                    Kind::Time => (
                        DataType::Timestamp(TimeUnit::Millisecond, utc()),
                        Builder::Time(TimestampMillisecondBuilder::new().with_timezone_opt(utc())),
                    ),
                };
                (Field::new(name, data_type, nullable), builder)
            })
            .unzip();
        Self { schema: Arc::new(Schema::new(fields)), builders, batches: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Appends a row: one cell of the right type for each column.
    pub(crate) fn push<const N: usize>(&mut self, row: [Cell<'_>; N]) -> Result<()> {
        debug_assert_eq!(N, self.builders.len());
        for (builder, cell) in self.builders.iter_mut().zip(row) {
            self.bytes += builder.append(cell);
        }
        self.rows += 1;
        if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES { self.end_batch() } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> Result<Table> {
        if self.rows > 0 {
            self.end_batch()?;
        }
        Ok(Table { schema: self.schema, batches: self.batches })
    }

    fn end_batch(&mut self) -> Result<()> {
        let arrays = self.builders.iter_mut().map(Builder::finish).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays);
        self.batches.push(batch.map_err(|error: ArrowError| Error::Internal { message: error.to_string() })?);
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

impl Builder {
    /// Appends a value; returns its approximate size in bytes.
    fn append(&mut self, cell: Cell<'_>) -> usize {
        match (self, cell) {
            (Self::Text(column), Cell::Text(text)) => {
                let length = text.as_ref().map_or(0, |text| text.len());
                column.append_option(text);
                return length + size_of::<i32>();
            }
            (Self::Number(column), Cell::Number(number)) => column.append_option(number),
            (Self::Duration(column), Cell::Number(number)) => column.append_option(number),
            (Self::Time(column), Cell::Number(number)) => column.append_option(number),
            (Self::Flag(column), Cell::Flag(flag)) => column.append_value(flag),
            (_, cell) => unreachable!("no value of this column: {cell:?}"),
        }
        size_of::<i64>()
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(column) => ArrayBuilder::finish(column),
            Self::Number(column) => ArrayBuilder::finish(column),
            Self::Flag(column) => ArrayBuilder::finish(column),
            Self::Duration(column) => ArrayBuilder::finish(column),
            Self::Time(column) => ArrayBuilder::finish(column),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;

    use super::*;

    const COLUMNS: [Column; 4] = [
        ("name", Kind::Text, false),
        ("count", Kind::Number, true),
        ("is", Kind::Flag, false),
        ("at", Kind::Time, true),
    ];

    #[test]
    fn rows_become_record_batches_of_bounded_size() {
        let mut table = TableBuilder::new(&COLUMNS);
        for row in 0..100_000_i64 {
            let count = (row % 3 > 0).then_some(row);
            table
                .push([row.to_string().as_str().into(), count.into(), Cell::Flag(row % 2 == 0), count.into()])
                .unwrap();
        }
        let table = table.finish().unwrap();
        assert_eq!(table.batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [65_536, 34_464]);
        let names: Vec<_> = table.batches.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter()).collect();
        assert!(names.iter().enumerate().all(|(row, name)| *name == Some(&*row.to_string())));
        assert!(table.batches[0].column(1).is_null(0) && table.batches[0].column(1).is_valid(1));
        assert_eq!(table.batches[0].schema(), table.schema);
    }

    #[test]
    fn long_texts_end_a_record_batch_early_and_an_empty_table_has_no_batches() {
        let mut table = TableBuilder::new(&COLUMNS[..1]);
        let name = "x".repeat(BATCH_BYTES / 2);
        for _ in 0..3 {
            table.push([name.as_str().into()]).unwrap();
        }
        let table = table.finish().unwrap();
        assert_eq!(table.batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [2, 1]);
        let empty = TableBuilder::new(&COLUMNS).finish().unwrap();
        assert!(empty.batches.is_empty() && empty.schema.fields().len() == 4);
    }
}
