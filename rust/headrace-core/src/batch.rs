//! The layouts of a record batch: an entry per row, several payloads per entry, or many rows per entry as Arrow IPC.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, SchemaRef};

use crate::command::xadd::FieldNames;
use crate::error::{Error, Result};
use crate::extension::refuse_objects;
use crate::ipc::{Codec, Encoder};
use crate::resp::write_bulk;
use crate::rows::{Body, Constants, IdColumn, Layout, RowPlan, Rows, columns_of, message_id_column};
use crate::shards::Shards;

/// The maximum number of rows per entry: a report keeps the rows of an entry in one record batch, which has at most as many.
pub const MAX_ROWS_PER_ENTRY: usize = 65_536;

/// Why a layout with several rows in an entry cannot be combined with shards.
const ENTRIES_OF_SEVERAL_ROWS: &str = "an entry of several rows would go to one shard, whatever the keys of its rows";

/// The maximum number of columns that an error lists.
const MAX_DESCRIBED: usize = 20;

/// How the rows of a record batch become entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchLayout {
    /// Each row becomes an entry.
    Rows(Layout),
    /// Up to this many payloads or JSON objects become the fields `payload:0`, `payload:1` and so on of one entry. The
    /// layout must have no fields, stream key or entry ID.
    Payloads(Layout, usize),
    /// Rows become an Arrow IPC stream in the payload field of one entry.
    Arrow {
        /// The columns to write, in this order; `None`: all.
        columns: Option<Vec<String>>,
        /// The column of message IDs.
        message_id: Option<String>,
        /// The compression of the stream.
        codec: Option<Codec>,
        /// The maximum number of rows per entry.
        rows_per_entry: usize,
    },
}

/// The minimum number of rows that are encoded in one go while the caller's event loop waits.
const SLICE_ROWS: usize = 1024;

/// A [`BatchLayout`] applied to a schema.
#[derive(Debug)]
pub struct BatchPlan {
    message_id: Option<(usize, FieldRef)>,
    kind: Kind,
    carries_time: bool,
    /// The fields that every entry of several rows gets.
    constants: Constants,
}

#[derive(Debug)]
enum Kind {
    Rows(RowPlan),
    /// The plan, and the field names as bulk strings.
    Payloads(RowPlan, Vec<Vec<u8>>),
    Arrow(Box<Encoder>, usize),
}

/// A record batch that is ready to be encoded.
pub(crate) enum Batch<'a> {
    Rows(Rows<'a>),
    Payloads(Rows<'a>, &'a [Vec<u8>], &'a Constants),
    Arrow { encoder: &'a mut Encoder, batch: &'a RecordBatch, rows_per_entry: usize, constants: &'a Constants },
}

impl Batch<'_> {
    /// Whether rows name their streams.
    pub(crate) fn has_stream_keys(&self) -> bool {
        matches!(self, Self::Rows(rows) if rows.has_stream_keys())
    }

    /// The stream key of a row; `None`: the endpoint's.
    pub(crate) fn stream_key(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Rows(rows) => rows.stream_key(row),
            Self::Payloads(..) | Self::Arrow { .. } => None,
        }
    }
}

impl BatchPlan {
    /// Refuses missing or ambiguous columns, types that cannot be written, and mutually exclusive options.
    pub(crate) fn new(
        schema: &SchemaRef,
        layout: &BatchLayout,
        names: &FieldNames,
        shards: Option<&Arc<Shards>>,
    ) -> Result<Self> {
        check_shards(layout, shards.is_some())?;
        let rows = |layout: &Layout| {
            let plan = RowPlan::new(schema, layout, &names.payload, names.ts.as_deref())?;
            match shards {
                None => Ok(plan),
                Some(shards) => plan.sharded(schema, shards, layout.shard_key.as_deref(), names.key.as_deref()),
            }
        };
        let (kind, message_id) = match layout {
            BatchLayout::Rows(layout) => (Kind::Rows(rows(layout)?), &layout.message_id),
            BatchLayout::Payloads(layout, rows_per_entry) => {
                check_rows_per_entry(*rows_per_entry)?;
                check_fits_several(layout, names)?;
                let names = (0..*rows_per_entry).map(|place| {
                    let mut name = Vec::new();
                    write_bulk(&mut name, format!("{}:{place}", names.payload).as_bytes());
                    name
                });
                (Kind::Payloads(rows(layout)?, names.collect()), &layout.message_id)
            }
            BatchLayout::Arrow { columns, message_id, codec, rows_per_entry } => {
                check_rows_per_entry(*rows_per_entry)?;
                let columns = columns.as_ref().map(|columns| columns_of(schema, "fields", columns)).transpose()?;
                let every = || (0..schema.fields().len()).collect();
                for column in columns.clone().unwrap_or_else(every) {
                    refuse_objects(schema.field(column))?;
                }
                let encoder = Encoder::new(schema, columns.as_deref(), *codec)?;
                (Kind::Arrow(Box::new(encoder), *rows_per_entry), message_id)
            }
        };
        let message_id = message_id
            .as_deref()
            .map(|column| message_id_column(schema, column).map(|at| (at, Arc::clone(&schema.fields()[at]))));
        let message_id = message_id.transpose()?;
        let copies = matches!(layout, BatchLayout::Rows(Layout { body: Body::FieldsFrom(_), .. }));
        Ok(Self { message_id, kind, carries_time: !copies || names.is_ts_given, constants: Constants::default() })
    }

    /// Adds these fields, names and values, to each entry, before its time. Refuses other fields of these names.
    pub fn with_constants(self, fields: &[(String, String)]) -> Result<Self> {
        let constants = Constants::new(fields);
        Ok(match self.kind {
            Kind::Rows(plan) => Self { kind: Kind::Rows(plan.with_constants(constants)?), ..self },
            Kind::Payloads(..) | Kind::Arrow(..) => Self { constants, ..self },
        })
    }

    /// Whether the batch's entries carry the time, if any do: copied entries do not, unless the caller asked for it.
    pub(crate) fn carries_time(&self) -> bool {
        self.carries_time
    }

    /// How many rows of a record batch to encode in one go, in whole entries.
    pub(crate) fn slice_rows(&self) -> usize {
        let rows_per_entry = match &self.kind {
            Kind::Rows(_) => 1,
            Kind::Payloads(_, names) => names.len(),
            Kind::Arrow(_, rows_per_entry) => *rows_per_entry,
        };
        SLICE_ROWS.next_multiple_of(rows_per_entry)
    }

    /// The indexes of the columns that are read. The content of the others is irrelevant.
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = match &self.kind {
            Kind::Rows(plan) | Kind::Payloads(plan, _) => plan.columns(),
            Kind::Arrow(encoder, _) => encoder.columns(),
        };
        columns.extend(self.message_id.as_ref().map(|(at, _)| *at));
        columns
    }

    /// Whether rows may be of streams other than the endpoint's.
    pub(crate) fn has_stream_keys(&self) -> bool {
        match &self.kind {
            Kind::Rows(plan) | Kind::Payloads(plan, _) => plan.has_stream_keys(),
            Kind::Arrow(..) => false,
        }
    }

    /// Prepares a record batch, once for all its rows. Refuses a different schema. `first`: the number of its first row among the
    /// messages of the batch, by which rows without a key find their shard.
    pub(crate) fn bind<'a>(&'a mut self, batch: &'a RecordBatch, first: u64) -> Result<(Batch<'a>, Option<IdColumn>)> {
        let batch_of = match &mut self.kind {
            Kind::Rows(plan) => Batch::Rows(plan.bind_from(batch, first)?),
            Kind::Payloads(plan, names) => Batch::Payloads(plan.bind(batch)?, names, &self.constants),
            Kind::Arrow(encoder, rows_per_entry) => {
                encoder.check(batch)?;
                Batch::Arrow { encoder, batch, rows_per_entry: *rows_per_entry, constants: &self.constants }
            }
        };
        Ok((batch_of, ids_of(self.message_id.as_ref(), batch)?))
    }

    /// Describes a panic at this row, for an error: it names the column that panics by itself, or otherwise all columns that are
    /// read.
    pub(crate) fn describe(&self, batch: &RecordBatch, row: usize) -> String {
        let schema = batch.schema_ref();
        let culprit = match &self.kind {
            Kind::Rows(plan) | Kind::Payloads(plan, _) => plan.culprit(batch, row),
            Kind::Arrow(..) => None,
        };
        let columns = culprit.map_or_else(|| self.columns(), |column| vec![column]);
        let columns = columns.into_iter().take(MAX_DESCRIBED).filter_map(|column| schema.fields().get(column));
        let columns: Vec<_> =
            columns.map(|field| format!("{:?} of type {}", field.name(), field.data_type())).collect();
        format!("row {row} of a record batch was not encoded (column {})", columns.join(", "))
    }

    /// The message IDs of a record batch. Refuses a different schema.
    pub(crate) fn ids(&self, batch: &RecordBatch) -> Result<Option<IdColumn>> {
        ids_of(self.message_id.as_ref(), batch)
    }
}

fn ids_of(message_id: Option<&(usize, FieldRef)>, batch: &RecordBatch) -> Result<Option<IdColumn>> {
    let ids = message_id.map(|(at, field)| match batch.schema_ref().fields().get(*at) {
        Some(now) if now.name() == field.name() && now.data_type() == field.data_type() => {
            IdColumn::new(batch.column(*at).clone(), field)
        }
        _ => Err(Error::schema(format!(
            "the record batch has a different schema from the first one: column {} was {:?} of type {}",
            at + 1,
            field.name(),
            field.data_type()
        ))),
    });
    ids.transpose()
}

/// Refuses what cannot be combined with shards, or needs them.
fn check_shards(layout: &BatchLayout, has_shards: bool) -> Result<()> {
    match layout {
        BatchLayout::Rows(Layout { shard_key: Some(_), .. }) if !has_shards => {
            let message = "shard_key needs the option shards of the endpoint: the number of streams";
            Err(Error::config("shard_key", message))
        }
        BatchLayout::Rows(Layout { stream_key: Some(_), .. }) if has_shards => {
            let message = "stream_key and shards are mutually exclusive: shards are streams of the endpoint's stream key; take \
                           shard_key";
            Err(Error::config("stream_key", message))
        }
        BatchLayout::Payloads(..) if has_shards => Err(Error::config(
            "rows_per_entry",
            format!("rows_per_entry cannot be used with shards: {ENTRIES_OF_SEVERAL_ROWS}"),
        )),
        BatchLayout::Arrow { .. } if has_shards => {
            Err(Error::config("arrow_ipc", format!("arrow_ipc cannot be used with shards: {ENTRIES_OF_SEVERAL_ROWS}")))
        }
        BatchLayout::Rows(_) | BatchLayout::Payloads(..) | BatchLayout::Arrow { .. } => Ok(()),
    }
}

fn check_fits_several(layout: &Layout, names: &FieldNames) -> Result<()> {
    // A reader that turns the entry into a map would lose one of the two, and `unpack` would use the time as a payload.
    let place = names.ts.as_deref().and_then(|ts| ts.strip_prefix(names.payload.as_str())?.strip_prefix(':'));
    if place.is_some_and(|place| !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit())) {
        let ts = names.ts.as_deref().unwrap_or_default();
        return Err(Error::schema(format!(
            "rows_per_entry cannot be combined with ts_field {ts:?}: a payload's field has such a name (choose another \
             ts_field)"
        )));
    }
    for (name, is_given) in [
        ("fields", matches!(layout.body, Body::Fields(_) | Body::PayloadAndFields(..))),
        ("fields_from", matches!(layout.body, Body::FieldsFrom(_))),
        ("stream_key", layout.stream_key.is_some()),
        ("entry_id", layout.entry_id.is_some()),
        ("shard_key", layout.shard_key.is_some()),
    ] {
        if is_given {
            return Err(Error::schema(format!(
                "rows_per_entry and {name} are mutually exclusive: an entry of several rows has their payloads, one \
                 stream key and one ID"
            )));
        }
    }
    Ok(())
}

fn check_rows_per_entry(rows: usize) -> Result<()> {
    if (1..=MAX_ROWS_PER_ENTRY).contains(&rows) {
        return Ok(());
    }
    let message = format!("rows_per_entry must be an integer from 1 to {MAX_ROWS_PER_ENTRY}: got {rows}");
    Err(Error::config("rows_per_entry", message))
}
