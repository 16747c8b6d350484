//! The columns for the origin of an entry: its stream, its ID as text, as numbers and as a time, and the row within the entry.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, TimestampMillisecondArray, UInt64Array};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field, TimeUnit};

use super::escape::escaped;
use super::var_bytes::VarBytes;
use crate::error::Result;
use crate::resp::EntryId;

/// The last millisecond of the year 9999, where the timestamps of Spark, of SQL and of Python's datetime end. An ID may hold any
/// number, such as nanoseconds.
const LAST_TIMESTAMP: u64 = 253_402_300_799_999;
/// The maximum length of an entry ID in bytes.
const MOST_ID: usize = 41;
/// The size of the copy of an ID: a constant size is cheaper than the ID's length.
const WIDTH: usize = 48;

/// A column that is not from a field of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MetadataColumn {
    /// The stream key, as utf8: see [`escaped`].
    Stream,
    /// The entry ID as the server writes it.
    EntryId,
    /// The milliseconds of the entry ID.
    EntryMs,
    /// The sequence number of the entry ID.
    EntrySeq,
    /// The milliseconds of the entry ID as a timestamp in UTC; null after the year 9999.
    Timestamp,
    /// The position of the row in an entry of several rows, from 0.
    RowInEntry,
}

impl MetadataColumn {
    pub(crate) const ALL: [Self; 6] =
        [Self::Stream, Self::EntryId, Self::EntryMs, Self::EntrySeq, Self::Timestamp, Self::RowInEntry];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::EntryId => "entry_id",
            Self::EntryMs => "entry_ms",
            Self::EntrySeq => "entry_seq",
            Self::Timestamp => "timestamp",
            Self::RowInEntry => "row_in_entry",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }

    pub(crate) fn field(self) -> Field {
        let data_type = match self {
            Self::Stream | Self::EntryId => DataType::Utf8,
            Self::EntryMs | Self::EntrySeq => DataType::UInt64,
            Self::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            Self::RowInEntry => DataType::Int32,
        };
        Field::new(self.name(), data_type, self == Self::Timestamp)
    }
}

/// The maximum size of a row of this stream in bytes.
fn row_bytes(columns: &[MetadataColumn], key: &str) -> usize {
    let bytes = |column: &MetadataColumn| match column {
        MetadataColumn::Stream => size_of::<i32>() + key.len(),
        MetadataColumn::EntryId => size_of::<i32>() + MOST_ID,
        MetadataColumn::EntryMs | MetadataColumn::EntrySeq | MetadataColumn::Timestamp => size_of::<u64>(),
        MetadataColumn::RowInEntry => size_of::<i32>(),
    };
    columns.iter().map(bytes).sum()
}

/// The ID of the entry of each row of a record batch.
#[derive(Debug, Clone)]
pub(crate) struct RowIds {
    ms: ScalarBuffer<u64>,
    seq: ScalarBuffer<u64>,
}

impl RowIds {
    /// The ID of the row's entry; `None`: the record batch has fewer rows.
    pub(crate) fn get(&self, row: usize) -> Option<EntryId> {
        Some(EntryId { ms: *self.ms.get(row)?, seq: *self.seq.get(row)? })
    }

    /// Those from this row on, of at most all.
    pub(crate) fn from(&self, row: usize) -> Self {
        let rest = self.ms.len() - row;
        Self { ms: self.ms.slice(row, rest), seq: self.seq.slice(row, rest) }
    }
}

/// Consecutive rows of one stream.
#[derive(Debug, Clone, Default)]
struct StreamRun {
    key: String,
    rows: usize,
}

/// Builds the columns. Until they are finished, a row costs two numbers.
#[derive(Debug)]
pub(super) struct Metadata {
    columns: Vec<MetadataColumn>,
    /// The maximum size of a row of this stream in bytes; `bytes` is the sum over all rows.
    row_bytes: usize,
    bytes: usize,
    ms: Vec<u64>,
    seq: Vec<u64>,
    /// The positions of rows within their entries; empty if each entry is one row.
    row_in_entry: Vec<i32>,
    /// The runs of rows before the current one.
    streams: Vec<StreamRun>,
    /// The stream key of the current run, whose rows start at `first_row`.
    key: String,
    first_row: usize,
    /// See [`take_ids`](Self::take_ids).
    finished: Option<RowIds>,
}

impl Metadata {
    pub(super) fn new(columns: Vec<MetadataColumn>) -> Self {
        Self {
            row_bytes: row_bytes(&columns, ""),
            bytes: 0,
            columns,
            ms: Vec::new(),
            seq: Vec::new(),
            row_in_entry: Vec::new(),
            streams: Vec::new(),
            key: String::new(),
            first_row: 0,
            finished: None,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.ms.len()
    }

    /// The maximum size of a row of this stream in bytes.
    #[inline]
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The maximum memory that the columns will take.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the stream of the rows that follow.
    pub(super) fn stream(&mut self, key: &[u8]) {
        let key = escaped(key);
        if key != self.key {
            self.close_stream();
            self.key = key.into_owned();
            self.row_bytes = row_bytes(&self.columns, &self.key);
        }
    }

    #[inline]
    pub(super) fn push(&mut self, id: EntryId) {
        self.bytes += self.row_bytes;
        self.ms.push(id.ms);
        self.seq.push(id.seq);
    }

    /// Adds the rows of an entry that may have any number of them. Must not be mixed with [`push`](Self::push) in a record batch.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // an entry has fewer rows than bytes
    pub(super) fn push_rows(&mut self, id: EntryId, rows: usize) {
        self.bytes += rows * self.row_bytes;
        self.ms.extend(std::iter::repeat_n(id.ms, rows));
        self.seq.extend(std::iter::repeat_n(id.seq, rows));
        if self.columns.contains(&MetadataColumn::RowInEntry) {
            self.row_in_entry.extend(0..rows as i32);
        }
    }

    fn close_stream(&mut self) {
        let rows = self.rows() - self.first_row;
        if rows > 0 {
            self.streams.push(StreamRun { key: self.key.clone(), rows });
            self.first_row += rows;
        }
    }

    /// Appends the columns. Resets the builder, but not the stream.
    pub(super) fn finish(&mut self, columns: &mut Vec<ArrayRef>) -> Result<()> {
        self.close_stream();
        let reserved = self.rows();
        let ms = ScalarBuffer::from(std::mem::replace(&mut self.ms, Vec::with_capacity(reserved)));
        let seq = ScalarBuffer::from(std::mem::replace(&mut self.seq, Vec::with_capacity(reserved)));
        let streams = std::mem::take(&mut self.streams);
        (self.bytes, self.first_row) = (0, 0);
        for column in &self.columns {
            columns.push(match column {
                MetadataColumn::Stream => keys(&streams)?,
                MetadataColumn::EntryId => ids(&ms, &seq)?,
                MetadataColumn::EntryMs => Arc::new(UInt64Array::new(ms.clone(), None)),
                MetadataColumn::EntrySeq => Arc::new(UInt64Array::new(seq.clone(), None)),
                MetadataColumn::Timestamp => timestamps(&ms),
                MetadataColumn::RowInEntry => {
                    let mut places = std::mem::take(&mut self.row_in_entry);
                    places.resize(ms.len(), 0);
                    Arc::new(Int32Array::new(ScalarBuffer::from(places), None))
                }
            });
        }
        self.finished = Some(RowIds { ms, seq });
        Ok(())
    }

    /// The IDs of the rows that were finished last. Returned once.
    pub(super) fn take_ids(&mut self) -> Option<RowIds> {
        self.finished.take()
    }
}

fn keys(streams: &[StreamRun]) -> Result<ArrayRef> {
    let mut texts = VarBytes::with_capacity(streams.iter().map(|run| run.rows).sum(), 0);
    for StreamRun { key, rows } in streams {
        texts.push_repeated(key.as_bytes(), *rows);
    }
    texts.finish_utf8(MetadataColumn::Stream.name(), None)
}

fn ids(ms: &[u64], seq: &[u64]) -> Result<ArrayRef> {
    let mut texts = VarBytes::with_capacity(ms.len(), ms.len() * 20 + WIDTH);
    let mut digits = itoa::Buffer::new();
    let mut text = [0; WIDTH];
    // The milliseconds in `text`, and the start of the sequence number. Entries of the same millisecond follow each other.
    let (mut written, mut start): (Option<u64>, _) = (None, 2);
    for (ms, seq) in ms.iter().zip(seq) {
        let more = written.and_then(|written| ms.checked_sub(written)).unwrap_or(u64::MAX);
        if more <= 9 && more <= u64::from(b'9' - text[start - 2]) {
            // Most entries have the same millisecond as the one before, or one of the next few.
            text[start - 2] += more as u8;
            written = Some(*ms);
        } else {
            let digits = digits.format(*ms).as_bytes();
            text[..digits.len()].copy_from_slice(digits);
            text[digits.len()] = b'-';
            (written, start) = (Some(*ms), digits.len() + 1);
        }
        let end = if *seq < 10 {
            text[start] = b'0' + *seq as u8;
            start + 1
        } else {
            let digits = digits.format(*seq).as_bytes();
            text[start..start + digits.len()].copy_from_slice(digits);
            start + digits.len()
        };
        texts.push_start(&text, end);
    }
    texts.finish_utf8(MetadataColumn::EntryId.name(), None)
}

#[allow(clippy::cast_possible_wrap)] // LAST_TIMESTAMP is in the range
fn timestamps(ms: &[u64]) -> ArrayRef {
    let array: TimestampMillisecondArray = if ms.iter().all(|ms| *ms <= LAST_TIMESTAMP) {
        TimestampMillisecondArray::from_iter_values(ms.iter().map(|ms| *ms as i64))
    } else {
        ms.iter().map(|ms| (*ms <= LAST_TIMESTAMP).then_some(*ms as i64)).collect()
    };
    Arc::new(array.with_timezone("UTC"))
}
