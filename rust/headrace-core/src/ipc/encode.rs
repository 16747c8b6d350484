//! The encoder of rows as Arrow IPC streams.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_ipc::{CompressionType, MetadataVersion};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};

use super::clean::{clean, has_text, is_clean};
use super::compact::{compact, is_loose};
use super::nulls::{excludes_nulls, has_excluded_null};
use super::types::check_type;
use super::{MAX_ENTRY_BYTES, MAX_ROWS_BYTES};
use crate::error::{Error, Fault, Result, code};
use crate::nested::has_dictionary;

type Arrow<T> = std::result::Result<T, ArrowError>;

/// The alignment of each buffer in bytes: the minimum that the format allows. It recommends 64 for files that are mapped into
/// memory; in an entry that would only add padding.
const ALIGNMENT: usize = 8;

/// The maximum number of columns that an error lists.
const MAX_LISTED: usize = 20;

/// The compression of an entry's rows. Each buffer is compressed separately, as the format requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// LZ4 frames.
    Lz4,
    /// Zstandard, at its default level.
    Zstd,
}

impl Codec {
    /// Parses `"lz4"` or `"zstd"`.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            _ => Err(Error::config("codec", format!("codec must be None, \"lz4\" or \"zstd\": got {name:?}"))),
        }
    }

    fn compression(self) -> CompressionType {
        match self {
            Self::Lz4 => CompressionType::LZ4_FRAME,
            Self::Zstd => CompressionType::ZSTD,
        }
    }
}

/// Encodes rows of record batches of one schema, each time as a whole stream.
pub struct Encoder {
    /// The schema of the record batches, before the projection.
    source: SchemaRef,
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    /// The preparation of each column that is written.
    preparation: Vec<Preparation>,
    options: IpcWriteOptions,
    compressed: bool,
    /// The first messages of a stream.
    head: Vec<Buffer>,
    /// The end mark of a stream.
    end: Buffer,
    /// The encoder, kept for its buffers and the compressor's tables. `None` if there are dictionaries: it would write each
    /// dictionary only once, and the second entry could not be read without the first.
    stream: Option<StreamEncoder>,
}

impl Encoder {
    /// `projection`: the columns to write, in this order; `None`: all.
    ///
    /// Refuses missing columns, and types that cannot be sliced.
    pub fn new(schema: &SchemaRef, projection: Option<&[usize]>, codec: Option<Codec>) -> Result<Self> {
        let projected = match projection {
            None => schema.clone(),
            Some(columns) => Arc::new(schema.project(columns).map_err(|error| refused(&error))?),
        };
        for field in projected.fields() {
            check_type(field)?;
        }
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)
            .and_then(|options| options.try_with_compression(codec.map(Codec::compression)))
            .map_err(|error| refused(&error))?;
        let start = || StreamEncoder::try_new_with_options(&projected, options.clone());
        // A stream without rows consists of its schema and its end mark.
        let mut head = start().and_then(StreamEncoder::finish).map_err(|error| refused(&error))?;
        let end = head.pop().unwrap_or_default();
        // The encoder writes the schema before its first record batch. This empty batch takes it, because `encode` adds the
        // schema itself.
        let mut stream = start().map_err(|error| refused(&error))?;
        stream.encode(&RecordBatch::new_empty(projected.clone())).map_err(|error| refused(&error))?;
        let types = || projected.fields().iter().map(|field| field.data_type());
        Ok(Self {
            source: schema.clone(),
            projection: projection.map(<[usize]>::to_vec),
            preparation: types().map(Preparation::of).collect(),
            compressed: codec.is_some(),
            stream: (!types().any(has_dictionary)).then_some(stream),
            options,
            head,
            end,
            schema: projected,
        })
    }

    /// The schema of the encoded rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The indexes of the columns that are written.
    pub(crate) fn columns(&self) -> Vec<usize> {
        self.projection.clone().unwrap_or_else(|| (0..self.source.fields().len()).collect())
    }

    /// Refuses a record batch whose columns differ from the encoder's. Columns that are not written may differ.
    pub fn check(&self, batch: &RecordBatch) -> Result<()> {
        let (first, now) = (&self.source, batch.schema_ref());
        let is_same = |column: usize| first.fields().get(column) == now.fields().get(column);
        let has_same = match &self.projection {
            None => first.fields() == now.fields(),
            Some(columns) => columns.iter().copied().all(is_same),
        };
        if Arc::ptr_eq(first, now) || has_same {
            return Ok(());
        }
        let listed = |schema: &Schema| {
            let columns = schema.fields().iter().take(MAX_LISTED);
            columns.map(|field| format!("{:?} {}", field.name(), field.data_type())).collect::<Vec<_>>().join(", ")
        };
        let (first, now) = (listed(first), listed(now));
        Err(Error::schema(format!(
            "the record batch has a different schema from the first one: {now}; it was: {first}"
        )))
    }

    /// Appends these rows of a [checked](Self::check) record batch as a self-contained stream, and returns its size in
    /// bytes.
    ///
    /// The stream is the concatenation of the buffers. Without a codec, they include buffers of the record batch that hold only
    /// these rows, without a copy.
    ///
    /// On a fault nothing is appended: `TOO_LARGE` for more than [`MAX_ENTRY_BYTES`], or more than [`MAX_ROWS_BYTES`] before
    /// compression; `BAD_VALUE` for a column with values that its type does not allow and readers refuse. Panics if the record
    /// batch does not have these rows.
    pub fn encode(
        &mut self,
        batch: &RecordBatch,
        rows: Range<usize>,
        out: &mut Vec<Buffer>,
    ) -> std::result::Result<usize, Fault> {
        let (start, count) = (out.len(), rows.len());
        let result = self.try_encode(batch, &rows, out).map_err(|error| match error {
            Refused::Size(size) => {
                let message = format!(
                    "an entry of {count} rows would have {size} bytes, at most {MAX_ENTRY_BYTES} are allowed: lower \
                     rows_per_entry"
                );
                Fault::new(code::TOO_LARGE, message)
            }
            Refused::RowsSize(size) => {
                let message = format!(
                    "an entry of {count} rows would have {size} bytes before it is compressed, at most {MAX_ROWS_BYTES} \
                     are allowed: lower rows_per_entry"
                );
                Fault::new(code::TOO_LARGE, message)
            }
            Refused::Null(column) => {
                let message = format!(
                    "an entry of {count} rows cannot be written: column {column:?} has a null where its type allows none"
                );
                Fault::new(code::BAD_VALUE, message)
            }
            // Arrow refuses to write offsets and keys that exceed their range.
            Refused::Arrow(error) => {
                Fault::new(code::BAD_VALUE, format!("an entry of {count} rows cannot be written: {error}"))
            }
        });
        result.inspect_err(|_| out.truncate(start))
    }

    fn try_encode(
        &mut self,
        batch: &RecordBatch,
        rows: &Range<usize>,
        out: &mut Vec<Buffer>,
    ) -> std::result::Result<usize, Refused> {
        let rows = self.cut(batch, rows)?;
        let mut columns = self.schema.fields().iter().zip(rows.columns()).zip(&self.preparation);
        let refused = columns.find(|((_, column), needs)| needs.null_check && has_excluded_null(column));
        if let Some(((field, _), _)) = refused {
            return Err(Refused::Null(field.name().clone()));
        }
        // Measured only if the rows may be too large.
        if self.compressed && batch.get_array_memory_size() > MAX_ROWS_BYTES {
            let plain = self.options.clone().try_with_compression(None)?;
            let size = size_of_all(&StreamEncoder::try_new_with_options(&self.schema, plain)?.encode(&rows)?);
            if size > MAX_ROWS_BYTES {
                return Err(Refused::RowsSize(size));
            }
        }
        let start = out.len();
        let messages = if let Some(stream) = &mut self.stream {
            out.extend_from_slice(&self.head);
            stream.encode(&rows)?
        } else {
            StreamEncoder::try_new_with_options(&self.schema, self.options.clone())?.encode(&rows)?
        };
        out.extend(messages);
        out.push(self.end.clone());
        let size = size_of_all(&out[start..]);
        if size > MAX_ENTRY_BYTES { Err(Refused::Size(size)) } else { Ok(size) }
    }

    /// The columns that are written, restricted to these rows and prepared.
    fn cut(&self, batch: &RecordBatch, rows: &Range<usize>) -> Arrow<RecordBatch> {
        let slice = batch.slice(rows.start, rows.len());
        let column = |(at, needs): (usize, &Preparation)| {
            let column = slice.column(at);
            let column = if needs.compaction { compact(column)? } else { column.clone() };
            if needs.text_check && !is_clean(&column, 0..column.len()) { clean(&column) } else { Ok(column) }
        };
        let columns = match &self.projection {
            None => self.preparation.iter().enumerate().map(column).collect::<Arrow<_>>()?,
            Some(columns) => columns.iter().copied().zip(&self.preparation).map(column).collect::<Arrow<_>>()?,
        };
        // A record batch without columns still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

/// What a column needs before it is written.
struct Preparation {
    /// A slice of the column may hold more than its own rows.
    compaction: bool,
    /// The column has text, which may not be UTF-8.
    text_check: bool,
    /// A part of the column must not be null, but may be.
    null_check: bool,
}

impl Preparation {
    fn of(data_type: &DataType) -> Self {
        Self { compaction: is_loose(data_type), text_check: has_text(data_type), null_check: excludes_nulls(data_type) }
    }
}

/// Why rows cannot be encoded as an entry.
enum Refused {
    /// The size of the entry.
    Size(usize),
    /// The size of the rows before compression.
    RowsSize(usize),
    /// The name of a column with a nested null that its type does not allow.
    Null(String),
    Arrow(ArrowError),
}

impl From<ArrowError> for Refused {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("schema", &self.schema).field("options", &self.options).finish_non_exhaustive()
    }
}

fn size_of_all(buffers: &[Buffer]) -> usize {
    buffers.iter().map(Buffer::len).sum()
}

fn refused(error: &ArrowError) -> Error {
    Error::schema(format!("the rows cannot be written as Arrow IPC: {error}"))
}
