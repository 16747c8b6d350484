//! Entries of streams as columns of Arrow: where each is from, and its fields.

mod cast;
mod escape;
mod fields;
mod json;
mod map;
mod metadata;
mod names;
mod packed;
mod raw;
#[cfg(test)]
mod tests;
pub(crate) mod var_bytes;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

pub(crate) use self::cast::{BadValue, OnBadField};
pub(crate) use self::escape::{escaped, unescaped};
use self::fields::FieldColumns;
pub(crate) use self::fields::FieldsPlan;
pub(crate) use self::json::for_each_member;
use self::map::MapColumn;
pub(crate) use self::map::{FIELDS, FieldsAs, MapPlan};
use self::metadata::Metadata;
pub(crate) use self::metadata::MetadataColumn;
pub(crate) use self::names::NamesAs;
use self::packed::PackedColumns;
pub(crate) use self::packed::{PackedPlan, Unpack};
use self::raw::RawColumn;
pub(crate) use self::raw::{RAW, RawPlan};
use self::var_bytes::defect;
use crate::error::{Error, Result};
use crate::resp::EntryId;
use crate::resp::stream_reply::EntrySink;

/// Size in bytes from which a record batch takes no further entry. The values of an entry have at most 1 GiB together, see
/// [`Limits::ENTRY_BYTES`](crate::resp::stream_reply::Limits::ENTRY_BYTES), so those before it and its own have less than
/// 2 GiB, which is what the offsets of a column can express.
const FULL: usize = 1 << 30;
/// Bytes that may be added before the record batch is compared with [`FULL`] again: measuring all columns for each entry would
/// cost as much as an entry does.
const UNMEASURED: usize = 1 << 20;
/// What a name or a value takes at least, and a row of a column whose type says nothing else.
const LEAST: usize = 32;

/// What follows the metadata columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyPlan {
    /// All fields in one column.
    Map(MapPlan),
    /// A column for each field that was asked for.
    Fields(FieldsPlan),
    /// The columns of the rows in an entry's payloads.
    Packed(PackedPlan),
}

/// The columns of the record batches, checked once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnsPlan {
    metadata: Vec<MetadataColumn>,
    raw: Option<RawPlan>,
    body: BodyPlan,
    schema: SchemaRef,
    /// The bytes of a row without its metadata and its values of any length.
    row_bytes: usize,
}

/// The bytes of a value of this type, if they are the same for each.
fn fixed_bytes(data_type: &DataType) -> usize {
    match data_type {
        DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).unwrap_or(0).max(LEAST),
        DataType::FixedSizeList(item, count) => {
            fixed_bytes(item.data_type()).saturating_mul(usize::try_from(*count).unwrap_or(0)).max(LEAST)
        }
        DataType::Struct(fields) => {
            fields.iter().fold(LEAST, |bytes, field| bytes.saturating_add(fixed_bytes(field.data_type())))
        }
        _ => LEAST,
    }
}

impl ColumnsPlan {
    /// The metadata columns that come with all fields in one column, unless others are asked for.
    pub(crate) const METADATA_OF_MAP: [MetadataColumn; 3] =
        [MetadataColumn::Stream, MetadataColumn::EntryId, MetadataColumn::Timestamp];

    /// `metadata`: in this order before the body. Refuses two columns of the same name.
    pub(crate) fn new(metadata: &[MetadataColumn], body: BodyPlan) -> Result<Self> {
        Self::with_raw(metadata.iter().map(|column| (*column, column.name().to_owned())).collect(), None, body)
    }

    /// The same under other names, and with a column of the entries that do not fit, if there is to be one.
    pub(crate) fn with_raw(
        metadata: Vec<(MetadataColumn, String)>,
        raw: Option<RawPlan>,
        body: BodyPlan,
    ) -> Result<Self> {
        let (metadata, names): (Vec<_>, Vec<_>) = metadata.into_iter().unzip();
        let mut fields: Vec<Field> =
            metadata.iter().zip(names).map(|(column, name)| column.field().with_name(name)).collect();
        if let Some(raw) = &raw {
            fields.insert(raw.place, raw.field());
        }
        let before = fields.len();
        match &body {
            BodyPlan::Map(plan) => fields.push(plan.field()),
            BodyPlan::Fields(plan) => fields.extend_from_slice(plan.fields()),
            BodyPlan::Packed(plan) => fields.extend_from_slice(plan.fields()),
        }
        for (place, field) in fields.iter().enumerate() {
            if fields[..place].iter().any(|other| other.name() == field.name()) {
                let option = if place < before { "metadata" } else { "fields" };
                let message = format!("{option} must name each column once, got '{}' twice", field.name());
                return Err(Error::config(option, message));
            }
        }
        let row_bytes =
            fields.iter().fold(0_usize, |bytes, field| bytes.saturating_add(fixed_bytes(field.data_type())).min(FULL));
        Ok(Self { metadata, raw, body, schema: Arc::new(Schema::new(fields)), row_bytes })
    }

    /// Whether an entry may be any number of rows.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.body, BodyPlan::Packed(_))
    }

    /// The schema of each record batch.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Builds the columns of the body.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of it
enum Body {
    Map(MapColumn),
    Fields(FieldColumns),
    Packed(PackedColumns),
}

/// Builds a record batch, one row per entry unless entries are unpacked. Finishing one resets the builder.
#[derive(Debug)]
pub(crate) struct EntryColumns {
    plan: Arc<ColumnsPlan>,
    metadata: Metadata,
    raw: Option<RawColumn>,
    body: Body,
    /// How many values were bad, ever, before the entry that began last.
    bad_before: u64,
    /// The entry that began last.
    id: EntryId,
    bad: Option<(EntryId, BadValue)>,
    /// The most bytes that were added since it was last known whether the record batch is [`FULL`].
    unmeasured: usize,
    is_large: bool,
}

impl EntryColumns {
    pub(crate) fn new(plan: &Arc<ColumnsPlan>) -> Self {
        let body = match &plan.body {
            BodyPlan::Map(map) => Body::Map(MapColumn::new(FIELDS, *map)),
            BodyPlan::Fields(fields) => Body::Fields(FieldColumns::new(fields)),
            BodyPlan::Packed(packed) => Body::Packed(PackedColumns::new(packed)),
        };
        let metadata = Metadata::new(plan.metadata.clone());
        let raw = plan.raw.as_ref().map(RawColumn::new);
        Self {
            plan: Arc::clone(plan),
            metadata,
            raw,
            body,
            bad_before: 0,
            id: EntryId::default(),
            bad: None,
            unmeasured: 0,
            is_large: false,
        }
    }

    /// How many rows the record batch has so far.
    pub(crate) fn rows(&self) -> usize {
        self.metadata.rows()
    }

    /// How much memory the record batch takes so far.
    pub(crate) fn bytes(&self) -> usize {
        let body = match &self.body {
            Body::Map(map) => map.bytes(),
            Body::Fields(fields) => fields.bytes(),
            Body::Packed(packed) => packed.bytes(),
        };
        self.metadata.bytes() + self.raw.as_ref().map_or(0, RawColumn::bytes) + body
    }

    /// The entry that began last became this number of rows.
    #[cold]
    fn end_raw(&mut self, rows: usize) {
        let has_stand_in = matches!(&self.body, Body::Packed(packed) if packed.has_stand_in());
        let fits = self.bad_values() == self.bad_before && !has_stand_in;
        if let Some(raw) = &mut self.raw {
            raw.end(rows, fits);
        }
    }

    #[cold]
    fn measure(&mut self) {
        self.unmeasured = 0;
        self.is_large = self.bytes() >= FULL;
    }

    /// How many fields were left out, ever, because a later one of their entry has the same name.
    pub(crate) fn duplicate_names(&self) -> u64 {
        match &self.body {
            Body::Map(map) => map.replaced(),
            Body::Fields(fields) => fields.duplicate_names(),
            Body::Packed(packed) => packed.duplicate_names(),
        }
    }

    /// How many values are null, ever, because they did not fit their column.
    pub(crate) fn bad_values(&self) -> u64 {
        match &self.body {
            Body::Map(_) => 0,
            Body::Fields(fields) => fields.bad_values(),
            Body::Packed(packed) => packed.bad_values(),
        }
    }

    /// How many entries the rows so far are of.
    pub(crate) fn entries(&self) -> usize {
        match &self.body {
            Body::Map(_) | Body::Fields(_) => self.rows(),
            Body::Packed(packed) => packed.entries(),
        }
    }

    /// How many rows the first `entries` entries are.
    pub(crate) fn rows_of(&self, entries: usize) -> usize {
        match &self.body {
            Body::Map(_) | Body::Fields(_) => entries,
            Body::Packed(packed) => packed.rows_of(entries),
        }
    }

    /// Sets whether the record batch takes further entries though it has the rows or bytes with which it is full.
    pub(crate) fn hold(&mut self, is_held: bool) {
        if let Body::Packed(packed) = &mut self.body {
            packed.hold(is_held);
        }
    }

    /// Whether the record batch, which is [held](Self::hold), has the rows or bytes with which it is full.
    pub(crate) fn is_overfull(&self) -> bool {
        matches!(&self.body, Body::Packed(packed) if packed.is_overfull())
    }

    /// The entry that is no row because a value of it does not fit its column. The scan stopped behind it, so the rows so far
    /// are those before it.
    pub(crate) fn take_bad(&mut self) -> Option<(EntryId, BadValue)> {
        self.bad.take()
    }

    /// The record batch. An error, without the rows, if a column would have 2 GiB or more: an entry of up to 1 GiB may have
    /// names that take four times as much as text.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch> {
        (self.unmeasured, self.is_large) = (0, false);
        let rows = self.rows();
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.plan.schema.fields().len());
        self.metadata.finish(&mut columns)?;
        if let Some(raw) = &mut self.raw {
            raw.finish(&mut columns)?;
        }
        match &mut self.body {
            Body::Map(map) => columns.push(map.finish()?),
            Body::Fields(fields) => fields.finish(&mut columns)?,
            Body::Packed(packed) => packed.finish(&mut columns)?,
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.plan.schema(), columns, &options).map_err(|error| defect(&error))
    }
}

impl EntrySink for EntryColumns {
    fn stream(&mut self, key: &[u8]) {
        self.metadata.stream(key);
    }

    #[inline]
    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        self.unmeasured = self.unmeasured.saturating_add(self.plan.row_bytes + self.metadata.row_bytes());
        if self.raw.is_some() {
            self.bad_before = self.bad_values();
        }
        if let Some(raw) = &mut self.raw {
            raw.entry(fields);
        }
        match &mut self.body {
            Body::Map(map) => {
                self.metadata.push(id);
                map.entry(fields);
            }
            Body::Fields(_) => self.id = id,
            Body::Packed(packed) => {
                packed.entry(fields.is_none());
                self.id = id;
            }
        }
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.unmeasured += LEAST + name.len() + value.len();
        if let Some(raw) = &mut self.raw {
            raw.field(name, value);
        }
        match &mut self.body {
            Body::Map(map) => map.field(name, value),
            Body::Fields(fields) => fields.field(name, value),
            Body::Packed(packed) => packed.field(name, value),
        }
    }

    #[inline]
    fn end(&mut self) {
        let before = self.rows();
        match &mut self.body {
            Body::Map(map) => map.end(),
            Body::Fields(fields) => match fields.end() {
                Ok(()) => self.metadata.push(self.id),
                Err(bad) => self.bad = self.bad.take().or(Some((self.id, bad))),
            },
            Body::Packed(packed) => match packed.end() {
                Ok(rows) => self.metadata.push_rows(self.id, rows),
                Err(bad) => self.bad = self.bad.take().or(Some((self.id, bad))),
            },
        }
        if self.raw.is_some() {
            self.end_raw(self.rows() - before);
        }
        if self.unmeasured >= UNMEASURED {
            self.measure();
        }
    }

    /// After an entry that does not fit, and at the bound of the memory: the caller compares [`rows`](Self::rows) and [`bytes`](Self::bytes) with its own after
    /// each scan.
    #[inline]
    fn is_full(&self) -> bool {
        let is_body_full = matches!(&self.body, Body::Packed(packed) if packed.is_full());
        self.bad.is_some() || is_body_full || self.is_large
    }
}
