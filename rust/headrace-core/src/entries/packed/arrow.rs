//! Arrow IPC payloads: the rows of the stream, with columns matched by name.
//!
//! A column of the requested type is used as it is. For another type, its values are read from the text that the writer has for
//! them, as fields are.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, new_empty_array, new_null_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use arrow_select::concat::concat;

use super::{ROW_BYTES, Unreadable};
use crate::Error;
use crate::entries::cast::{BadValue, FieldColumn, OnBadField};
use crate::entries::var_bytes::defect;
use crate::ipc;
use crate::nested::has_dictionary;
use crate::rows::{Body, Layout, RowPlan};

/// Fails for a type that an entry cannot have, or whose parts from several entries cannot be concatenated.
pub(super) fn check(field: &Field) -> crate::Result<()> {
    let data_type = field.data_type();
    if data_type.is_nested() && has_dictionary(data_type) {
        return Err(Error::schema(format!(
            "column {:?} cannot be unpacked: its type {data_type} has a dictionary within a nested type",
            field.name()
        )));
    }
    if is_dictionary(data_type) { FieldColumn::new(field, OnBadField::Fail).map(drop) } else { ipc::check_type(field) }
}

fn is_dictionary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Dictionary(..))
}

/// Builds columns from parts, one part for each entry.
#[derive(Debug)]
pub(super) struct ArrowColumns {
    columns: Vec<Column>,
    rows: usize,
    /// For each part: the number of rows up to its end, and its bytes.
    parts: Vec<(usize, usize)>,
    bytes: usize,
    bad_values: u64,
}

#[derive(Debug)]
struct Column {
    field: Field,
    on_bad: OnBadField,
    parts: Vec<ArrayRef>,
    /// Casts values of another type, if this type can be read from text.
    cast: Option<FieldColumn>,
}

impl ArrowColumns {
    pub(super) fn new(fields: &[Field], on_bad: OnBadField) -> Self {
        let column = |field: &Field| {
            let cast = FieldColumn::new(field, on_bad).ok();
            Column { field: field.clone(), on_bad, parts: Vec::new(), cast }
        };
        Self { columns: fields.iter().map(column).collect(), rows: 0, parts: Vec::new(), bytes: 0, bad_values: 0 }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn bad_values(&self) -> u64 {
        self.bad_values
            + self.columns.iter().filter_map(|column| column.cast.as_ref()).map(FieldColumn::bad_values).sum::<u64>()
    }

    /// Appends the rows of a stream, or none. `limit`: the most bytes that they may take.
    pub(super) fn push(&mut self, payload: &[u8], limit: usize) -> Result<(), Unreadable> {
        let decoded = ipc::decode_within(payload.to_vec(), limit).map_err(Unreadable::Payload)?;
        for batch in &decoded.batches {
            // Missing columns take memory too, and rows without columns take no bytes of the payload.
            let width: usize = self.columns.iter().map(|column| null_width(column.field.data_type())).sum();
            let least = batch.num_rows().saturating_mul(width.saturating_add(ROW_BYTES));
            if least > limit {
                let reason = format!("its {} rows take more than max_entry_bytes, which is {limit}", batch.num_rows());
                return Err(Unreadable::Payload(reason));
            }
            self.push_batch(batch, payload.len())?;
        }
        Ok(())
    }

    fn push_batch(&mut self, batch: &RecordBatch, payload: usize) -> Result<(), Unreadable> {
        let parts = self.columns.iter_mut().map(|column| column.part(batch, &mut self.bad_values));
        let parts: Vec<ArrayRef> = parts.collect::<Result<_, _>>().map_err(Unreadable::Value)?;
        // Arrays that were not compressed keep the whole payload alive.
        let bytes = parts.iter().map(size_of_array).fold(0usize, usize::saturating_add).max(payload);
        self.add(parts, batch.num_rows(), bytes);
        Ok(())
    }

    fn add(&mut self, parts: Vec<ArrayRef>, rows: usize, bytes: usize) {
        for (column, part) in self.columns.iter_mut().zip(parts) {
            column.parts.push(part);
        }
        self.rows += rows;
        self.bytes += bytes;
        self.parts.push((self.rows, bytes));
    }

    /// Appends a row of nulls.
    pub(super) fn push_nulls(&mut self) -> Result<(), BadValue> {
        let parts = self.columns.iter().map(|column| column.nulls(1));
        let parts: Vec<ArrayRef> = parts.collect::<Result<_, _>>()?;
        let bytes = parts.iter().map(size_of_array).sum();
        self.add(parts, 1, bytes);
        Ok(())
    }

    /// Removes the parts after the first `rows` rows.
    pub(super) fn truncate(&mut self, rows: usize) {
        while self.rows > rows
            && let Some((_, bytes)) = self.parts.pop()
        {
            self.bytes -= bytes;
            self.rows = self.parts.last().map_or(0, |(end, _)| *end);
            for column in &mut self.columns {
                column.parts.pop();
            }
        }
    }

    pub(super) fn finish(&mut self, columns: &mut Vec<ArrayRef>) -> crate::Result<()> {
        (self.rows, self.bytes) = (0, 0);
        self.parts.clear();
        for column in &mut self.columns {
            let parts = std::mem::take(&mut column.parts);
            columns.push(match parts.as_slice() {
                [] => new_empty_array(column.field.data_type()),
                [part] => Arc::clone(part),
                parts => {
                    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
                    concat(&parts).map_err(|error| defect(&error))?
                }
            });
        }
        Ok(())
    }
}

impl Column {
    /// The rows of this column in a record batch.
    fn part(&mut self, batch: &RecordBatch, bad_values: &mut u64) -> Result<ArrayRef, BadValue> {
        let fields = batch.schema_ref().fields();
        // Of several equal names the last one counts, as for fields.
        let Some(at) = fields.iter().rposition(|field| field.name() == self.field.name()) else {
            return self.nulls(batch.num_rows());
        };
        let array = batch.column(at);
        if array.data_type() == self.field.data_type() && !is_dictionary(array.data_type()) {
            let has_null = !self.field.is_nullable() && array.logical_null_count() > 0;
            return if has_null { Err(BadValue::missing(&self.field)) } else { Ok(Arc::clone(array)) };
        }
        match self.cast(&fields[at], array) {
            Ok(Some(part)) => return Ok(part),
            Ok(None) => {}
            Err(bad) => return Err(bad),
        }
        if self.on_bad == OnBadField::Fail || !self.field.is_nullable() {
            return Err(BadValue::of_entry(format!(
                "its column {:?} has the type {}, from which no value of type {} can be read",
                self.field.name(),
                array.data_type(),
                self.field.data_type()
            )));
        }
        *bad_values += (array.len() - array.logical_null_count()) as u64;
        self.nulls(array.len())
    }

    fn nulls(&self, rows: usize) -> Result<ArrayRef, BadValue> {
        if rows > 0 && !self.field.is_nullable() {
            return Err(BadValue::missing(&self.field));
        }
        Ok(new_null_array(self.field.data_type(), rows))
    }

    /// The values, read from their texts. `None` if one of the types has no text.
    fn cast(&mut self, source: &Field, array: &ArrayRef) -> Result<Option<ArrayRef>, BadValue> {
        let Some(cast) = &mut self.cast else { return Ok(None) };
        let Ok(texts) = Texts::new(source, array) else { return Ok(None) };
        let pushed = texts.push_to(cast);
        // Finish after an error too: the next entry starts from an empty column.
        let part = cast.finish();
        pushed?;
        part.map(Some).map_err(|error| BadValue::of_entry(error.to_string()))
    }
}

/// A column whose values are written as text.
struct Texts {
    batch: RecordBatch,
    plan: RowPlan,
}

impl Texts {
    fn new(source: &Field, array: &ArrayRef) -> crate::Result<Self> {
        let schema = Schema::new(vec![source.clone().with_nullable(true)]);
        let body = Body::Fields(vec![source.name().clone()]);
        let layout = Layout { body, message_id: None, stream_key: None, entry_id: None, shard_key: None };
        let plan = RowPlan::new(&schema, &layout, "", None)?;
        let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::clone(array)]).map_err(|error| defect(&error))?;
        Ok(Self { batch, plan })
    }

    fn push_to(&self, column: &mut FieldColumn) -> Result<(), BadValue> {
        let mut rows = self.plan.bind(&self.batch).map_err(|error| BadValue::of_entry(error.to_string()))?;
        rows.take_names();
        let (mut bulk, mut scratch) = (Vec::new(), Vec::new());
        for row in 0..rows.len() {
            if self.batch.column(0).is_null(row) {
                column.push(None)?;
                continue;
            }
            match rows.field_count(row) {
                Ok(_) => {
                    bulk.clear();
                    rows.write_fields(row, &mut bulk, &mut scratch);
                    column.push(text_of(&bulk))?;
                }
                // A value without a text, or a null of a dictionary.
                Err(_) => column.push(None)?,
            }
        }
        Ok(())
    }
}

/// The text of a bulk string: `$5\r\nhello\r\n`.
fn text_of(bulk: &[u8]) -> Option<&[u8]> {
    let start = memchr::memchr(b'\n', bulk)? + 1;
    bulk.get(start..bulk.len().checked_sub(2)?)
}

fn size_of_array(array: &ArrayRef) -> usize {
    let size = |data: ArrayData| -> Result<usize, ArrowError> { data.get_slice_memory_size() };
    size(array.to_data()).unwrap_or_else(|_| array.get_buffer_memory_size())
}

/// The fewest bytes that a null takes.
fn null_width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Null => 0,
        DataType::FixedSizeBinary(size) => usize::try_from(*size).unwrap_or(0),
        DataType::FixedSizeList(item, size) => {
            usize::try_from(*size).unwrap_or(0).saturating_mul(null_width(item.data_type()))
        }
        DataType::Struct(members) => {
            members.iter().map(|member| null_width(member.data_type())).fold(0, usize::saturating_add)
        }
        DataType::Boolean => 1,
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) => size_of::<i32>(),
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => size_of::<i64>(),
        DataType::Utf8View | DataType::BinaryView => size_of::<u128>(),
        DataType::Dictionary(keys, _) => null_width(keys),
        other => other.primitive_width().unwrap_or(0),
    }
}
