//! Stream entries as Arrow columns: the origin of each entry, and its fields.

mod cast;
mod escape;
mod fields;
mod first_entry;
mod json;
mod map;
mod metadata;
mod misspelt;
mod names;
mod packed;
mod raw;
mod spare;
#[cfg(test)]
mod tests;
pub(crate) mod var_bytes;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

pub(crate) use self::cast::{BadValue, OnBadField};
pub(crate) use self::escape::escaped;
#[cfg(any(test, fuzzing))]
pub(crate) use self::escape::unescaped;
use self::fields::FieldColumns;
pub(crate) use self::fields::FieldsPlan;
use self::first_entry::FirstEntry;
pub(crate) use self::first_entry::FirstEntryPlan;
pub(crate) use self::json::for_each_member;
use self::map::MapColumn;
pub(crate) use self::map::{FIELDS, FieldsAs, MapPlan};
use self::metadata::Metadata;
pub(crate) use self::metadata::{MetadataColumn, RowIds};
pub(crate) use self::misspelt::Misspelt;
pub(crate) use self::names::NamesAs;
use self::packed::PackedColumns;
pub(crate) use self::packed::{PackedPlan, Unpack};
use self::raw::RawColumn;
pub(crate) use self::raw::{RAW, RawPlan};
pub(crate) use self::spare::SpareColumns;
use self::var_bytes::defect;
use crate::error::{Error, Result};
use crate::resp::EntryId;
use crate::resp::stream_reply::EntrySink;

/// The size in bytes from which a record batch takes no further entry. The values of one entry take at most 1 GiB together, see
/// [`Limits::ENTRY_BYTES`](crate::resp::stream_reply::Limits::ENTRY_BYTES). With those of the entries before it they stay below
/// the 2 GiB that the offsets of a column can express.
const FULL: usize = 1 << 30;
/// The bytes that may be added before the record batch is compared with [`FULL`] again: measuring all columns for each entry
/// would cost as much as the entry itself.
const UNMEASURED: usize = 1 << 20;
/// The minimum memory of a name or a value, and of a row of a column whose type does not determine it.
const LEAST: usize = 32;
/// The memory of a row of an unpacked entry besides its columns: the ID of its entry, and its place in the column of entries that
/// do not fit.
const ROW_BYTES: usize = size_of::<EntryId>() + size_of::<u64>();

/// The columns that follow the metadata columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyPlan {
    /// All fields in one column.
    Map(MapPlan),
    /// A column for each requested field.
    Fields(FieldsPlan),
    /// The columns of the rows in an entry's payloads.
    Packed(PackedPlan),
    /// One of the two above, as the first entry determines.
    FirstEntry(FirstEntryPlan),
}

/// Where the fields of an entry are in a record batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldsAt {
    /// In the column with this index, which has all fields: a map, or a list.
    Column(usize),
    /// In the columns with these indexes: all but those of the metadata.
    Columns(Vec<usize>),
}

/// The columns of the record batches, already checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnsPlan {
    metadata: Vec<MetadataColumn>,
    raw: Option<RawPlan>,
    body: BodyPlan,
    /// The metadata columns and `raw`, then those of the body, if they are known.
    schema: SchemaRef,
    /// The bytes of a row without its metadata and its variable-length values.
    row_bytes: usize,
}

/// The bytes of a value of this type, if it is the same for all values.
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
    /// The default metadata columns if all fields are in one column.
    pub(crate) const METADATA_OF_MAP: [MetadataColumn; 3] =
        [MetadataColumn::Stream, MetadataColumn::EntryId, MetadataColumn::Timestamp];

    /// Creates a plan. `metadata`: the columns before the body with their names, in this order. `raw`: the column for entries
    /// that do not fit. Fails if two columns have the same name.
    pub(crate) fn new(metadata: Vec<(MetadataColumn, String)>, raw: Option<RawPlan>, body: BodyPlan) -> Result<Self> {
        let (metadata, names): (Vec<_>, Vec<_>) = metadata.into_iter().unzip();
        let mut fields: Vec<Field> =
            metadata.iter().zip(names).map(|(column, name)| column.field().with_name(name)).collect();
        if let Some(raw) = &raw {
            fields.insert(raw.place, raw.field());
        }
        Self::with_body(metadata, raw, fields, body)
    }

    /// `fields`: the metadata columns and `raw`.
    fn with_body(
        metadata: Vec<MetadataColumn>,
        raw: Option<RawPlan>,
        mut fields: Vec<Field>,
        body: BodyPlan,
    ) -> Result<Self> {
        let before = fields.len();
        match &body {
            BodyPlan::Map(plan) => fields.push(plan.field()),
            BodyPlan::Fields(plan) => fields.extend_from_slice(plan.fields()),
            BodyPlan::Packed(plan) => fields.extend_from_slice(plan.fields()),
            BodyPlan::FirstEntry(_) => {}
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

    /// Whether an entry may become any number of rows.
    pub(crate) fn is_packed(&self) -> bool {
        match &self.body {
            BodyPlan::Map(_) | BodyPlan::Fields(_) => false,
            BodyPlan::Packed(_) => true,
            BodyPlan::FirstEntry(plan) => plan.is_packed(),
        }
    }

    /// The plan of the batches. `None`: the first entry determines it, and none was read.
    fn known(self: &Arc<Self>) -> Option<&Arc<Self>> {
        match &self.body {
            BodyPlan::Map(_) | BodyPlan::Fields(_) | BodyPlan::Packed(_) => Some(self),
            BodyPlan::FirstEntry(plan) => plan.found(),
        }
    }

    /// The schema of each record batch. `None`: the first entry determines it, and none was read.
    pub(crate) fn known_schema(self: &Arc<Self>) -> Option<SchemaRef> {
        self.known().map(|plan| plan.schema())
    }

    /// Where the fields are in each record batch.
    fn fields_at(&self) -> FieldsAt {
        let before = self.metadata.len() + usize::from(self.raw.is_some());
        let raw = self.raw.as_ref().map(|raw| raw.place);
        match &self.body {
            BodyPlan::Map(_) => FieldsAt::Column(before),
            BodyPlan::Fields(_) | BodyPlan::Packed(_) | BodyPlan::FirstEntry(_) => {
                FieldsAt::Columns((before..self.schema.fields().len()).chain(raw).collect())
            }
        }
    }

    /// The schema of each record batch, without the columns that the first entry determines.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Builds the columns of the body.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // only one exists
enum Body {
    Map(MapColumn),
    Fields(FieldColumns),
    Packed(PackedColumns),
    /// Until the columns are known. There is no row.
    FirstEntry(FirstEntry),
}

impl Body {
    fn new(plan: &BodyPlan) -> Self {
        match plan {
            BodyPlan::Map(map) => Self::Map(MapColumn::new(FIELDS, *map)),
            BodyPlan::Fields(fields) => Self::Fields(FieldColumns::new(fields)),
            BodyPlan::Packed(packed) => Self::Packed(PackedColumns::new(packed)),
            BodyPlan::FirstEntry(_) => Self::FirstEntry(FirstEntry::default()),
        }
    }
}

/// Builds a record batch, with one row per entry unless entries are unpacked. Finishing a batch resets the builder.
#[derive(Debug)]
pub(crate) struct EntryColumns {
    plan: Arc<ColumnsPlan>,
    metadata: Metadata,
    raw: Option<RawColumn>,
    body: Body,
    /// The number of bad values in all batches before the last entry that began.
    bad_before: u64,
    /// The last entry that began.
    id: EntryId,
    bad: Option<(EntryId, BadValue)>,
    /// The maximum number of bytes added since the record batch was last compared with [`FULL`].
    unmeasured: usize,
    is_large: bool,
}

impl EntryColumns {
    pub(crate) fn new(plan: &Arc<ColumnsPlan>) -> Self {
        let plan = plan.known().unwrap_or(plan);
        let metadata = Metadata::new(plan.metadata.clone());
        let raw = plan.raw.as_ref().map(RawColumn::new);
        Self {
            plan: Arc::clone(plan),
            metadata,
            raw,
            body: Body::new(&plan.body),
            bad_before: 0,
            id: EntryId::default(),
            bad: None,
            unmeasured: 0,
            is_large: false,
        }
    }

    /// The number of rows of the record batch.
    pub(crate) fn rows(&self) -> usize {
        self.metadata.rows()
    }

    /// The memory that the record batch takes.
    pub(crate) fn bytes(&self) -> usize {
        let body = match &self.body {
            Body::Map(map) => map.bytes(),
            Body::Fields(fields) => fields.bytes(),
            Body::Packed(packed) => packed.bytes(),
            Body::FirstEntry(first) => first.bytes(),
        };
        self.metadata.bytes() + self.raw.as_ref().map_or(0, RawColumn::bytes) + body
    }

    /// Ends the last entry in the raw column: it became this number of rows.
    #[cold]
    fn end_raw(&mut self, rows: usize) {
        let has_stand_in = matches!(&self.body, Body::Packed(packed) if packed.has_stand_in());
        let fits = self.bad_values() == self.bad_before && !has_stand_in;
        if let Some(raw) = &mut self.raw {
            raw.end(rows, fits);
        }
    }

    /// Begins an entry in the body.
    #[inline]
    fn begin(&mut self, id: EntryId, fields: Option<usize>) {
        match &mut self.body {
            Body::Map(map) => {
                self.metadata.push(id);
                map.entry(fields);
            }
            Body::Fields(_) => self.id = id,
            Body::Packed(packed) => {
                packed.entry(fields.is_none(), ROW_BYTES + self.metadata.row_bytes());
                self.id = id;
            }
            Body::FirstEntry(_) => self.begin_first(id, fields),
        }
    }

    #[inline]
    fn body_field(&mut self, name: &[u8], value: &[u8]) {
        match &mut self.body {
            Body::Map(map) => map.field(name, value),
            Body::Fields(fields) => fields.field(name, value),
            Body::Packed(packed) => packed.field(name, value),
            Body::FirstEntry(first) => first.field(name, value),
        }
    }

    /// Begins an entry while the columns are not known, unless another builder knows them by now.
    #[cold]
    fn begin_first(&mut self, id: EntryId, fields: Option<usize>) {
        if let Some(plan) = self.plan.known().map(Arc::clone) {
            self.adopt(plan);
            return self.begin(id, fields);
        }
        self.id = id;
        if let Body::FirstEntry(first) = &mut self.body {
            // What a connection that was lost left of an entry.
            first.take();
        }
    }

    /// Determines the columns from the entry that ends, and makes it the first row.
    #[cold]
    fn end_first(&mut self) {
        let Body::FirstEntry(first) = &mut self.body else { return };
        let fields = first.take();
        match self.plan.determined_by(&fields) {
            Ok(plan) => {
                self.adopt(plan);
                self.begin(self.id, Some(fields.len()));
                for (name, value) in &fields {
                    self.body_field(name, value);
                }
                self.end();
            }
            Err(bad) => {
                self.bad = self.bad.take().or(Some((self.id, bad)));
                if self.raw.is_some() {
                    self.end_raw(0);
                }
            }
        }
    }

    /// Continues with the columns that have become known.
    fn adopt(&mut self, plan: Arc<ColumnsPlan>) {
        let is_held = matches!(&self.body, Body::FirstEntry(first) if first.is_held);
        self.body = Body::new(&plan.body);
        self.plan = plan;
        self.hold(is_held);
    }

    #[cold]
    fn measure(&mut self) {
        self.unmeasured = 0;
        self.is_large = self.bytes() >= FULL;
    }

    /// The total number of values that are null because they did not fit their column.
    pub(crate) fn bad_values(&self) -> u64 {
        match &self.body {
            Body::Map(_) | Body::FirstEntry(_) => 0,
            Body::Fields(fields) => fields.bad_values(),
            Body::Packed(packed) => packed.bad_values(),
        }
    }

    /// The number of entries that the rows belong to.
    pub(crate) fn entries(&self) -> usize {
        match &self.body {
            Body::Map(_) | Body::Fields(_) | Body::FirstEntry(_) => self.rows(),
            Body::Packed(packed) => packed.entries(),
        }
    }

    /// The number of rows of the first `entries` entries.
    pub(crate) fn rows_of(&self, entries: usize) -> usize {
        match &self.body {
            Body::Map(_) | Body::Fields(_) | Body::FirstEntry(_) => entries,
            Body::Packed(packed) => packed.rows_of(entries),
        }
    }

    /// Sets whether the record batch takes further entries even when it has reached its limit of rows or bytes.
    pub(crate) fn hold(&mut self, is_held: bool) {
        match &mut self.body {
            Body::Map(_) | Body::Fields(_) => {}
            Body::Packed(packed) => packed.hold(is_held),
            Body::FirstEntry(first) => first.is_held = is_held,
        }
    }

    /// Whether the record batch is [held](Self::hold) and has reached its limit of rows or bytes.
    pub(crate) fn is_overfull(&self) -> bool {
        matches!(&self.body, Body::Packed(packed) if packed.is_overfull())
    }

    /// The entry that became no row because one of its values does not fit its column. The scan stopped after it, so the rows
    /// belong to earlier entries.
    pub(crate) fn take_bad(&mut self) -> Option<(EntryId, BadValue)> {
        self.bad.take()
    }

    /// The column of the last record batch that is null because its field is probably misspelt. Returned once.
    pub(crate) fn take_misspelt(&mut self) -> Option<Misspelt> {
        match &mut self.body {
            Body::Map(_) | Body::FirstEntry(_) => None,
            Body::Fields(fields) => fields.take_misspelt(),
            Body::Packed(packed) => packed.take_misspelt(),
        }
    }

    /// Where the fields are in each record batch.
    pub(crate) fn fields_at(&self) -> FieldsAt {
        self.plan.fields_at()
    }

    /// The IDs of the rows of the last record batch. Returned once.
    pub(crate) fn take_ids(&mut self) -> Option<RowIds> {
        self.metadata.take_ids()
    }

    /// Finishes the record batch. If a column would have 2 GiB or more, returns an error and drops the rows: an entry of up to
    /// 1 GiB may have names that take four times as much as text.
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
            Body::FirstEntry(_) => {}
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
        self.begin(id, fields);
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.unmeasured += LEAST + name.len() + value.len();
        if let Some(raw) = &mut self.raw {
            raw.field(name, value);
        }
        self.body_field(name, value);
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
            Body::FirstEntry(_) => return self.end_first(),
        }
        if self.raw.is_some() {
            self.end_raw(self.rows() - before);
        }
        if self.unmeasured >= UNMEASURED {
            self.measure();
        }
    }

    /// True after an entry that does not fit, and at the memory limit. The caller checks its own limits against
    /// [`rows`](Self::rows) and [`bytes`](Self::bytes) after each scan.
    #[inline]
    fn is_full(&self) -> bool {
        let is_body_full = matches!(&self.body, Body::Packed(packed) if packed.is_full());
        self.bad.is_some() || is_body_full || self.is_large
    }
}
