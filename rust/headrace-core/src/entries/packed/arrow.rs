//! Arrow IPC payloads: the rows of the stream, with columns matched by name.
//!
//! A column of the requested type is used as it is. For another type, its values are read from the text that the writer has for
//! them, as fields are.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, new_empty_array, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat;

use super::Unreadable;
use super::room::Room;
use super::size::{Size, array_bytes, null_bytes};
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
    /// The memory of a part besides its values.
    array_bytes: usize,
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
        let array_bytes = fields.iter().map(|field| array_bytes(field.data_type())).sum();
        let columns = fields.iter().map(column).collect();
        Self { columns, array_bytes, rows: 0, parts: Vec::new(), bytes: 0, bad_values: 0 }
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

    /// Appends the rows of a stream, which take their memory from `room`. After an error, rows may be left to be removed.
    /// `row_bytes`: the memory of a row besides its columns.
    pub(super) fn push(&mut self, payload: &[u8], room: &mut Room, row_bytes: usize) -> Result<(), Unreadable> {
        let first = self.parts.len();
        let claims = ipc::check(payload, room.bytes()).map_err(Unreadable::Payload)?;
        room.take(claims.parts.saturating_add(claims.rows.saturating_mul(row_bytes)))?;
        let before = room.bytes();
        room.take(claims.buffers)?;
        let decoded = ipc::decode_checked(payload.to_vec()).map_err(Unreadable::Payload)?;
        // A part without rows would not be removed with them.
        for batch in decoded.batches.into_iter().filter(|batch| batch.num_rows() > 0) {
            self.push_batch(&batch, room)?;
        }
        let count = self.parts.len() - first;
        if count > 0 {
            let buffers = self.columns.iter().flat_map(|column| &column.parts[first..]);
            let buffers = buffers.map(Array::get_buffer_memory_size).fold(0, usize::saturating_add);
            // Several columns may share a buffer.
            let buffers = buffers.min(before - room.bytes());
            if count > 1 {
                // The parts of a column are copied into one array at the end.
                room.take(buffers)?;
            }
            // Arrays that were not compressed keep the whole payload alive.
            self.add_bytes(buffers.max(payload.len()));
        }
        Ok(())
    }

    fn push_batch(&mut self, batch: &RecordBatch, room: &mut Room) -> Result<(), Unreadable> {
        room.take(self.array_bytes)?;
        let parts = self.columns.iter_mut().map(|column| column.part(batch, room, &mut self.bad_values));
        let parts: Vec<ArrayRef> = parts.collect::<Result<_, _>>()?;
        self.add(parts, batch.num_rows());
        Ok(())
    }

    fn add(&mut self, parts: Vec<ArrayRef>, rows: usize) {
        for (column, part) in self.columns.iter_mut().zip(parts) {
            column.parts.push(part);
        }
        self.rows += rows;
        self.parts.push((self.rows, 0));
    }

    /// Adds to the bytes of the last part.
    fn add_bytes(&mut self, bytes: usize) {
        if let Some((_, of_part)) = self.parts.last_mut() {
            *of_part += bytes;
            self.bytes += bytes;
        }
    }

    /// Appends a row of nulls.
    pub(super) fn push_nulls(&mut self) -> Result<(), BadValue> {
        let parts = self.columns.iter().map(|column| column.nulls(1));
        let parts: Vec<ArrayRef> = parts.collect::<Result<_, _>>()?;
        let bytes = parts.iter().map(Array::get_buffer_memory_size).sum();
        self.add(parts, 1);
        self.add_bytes(bytes);
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
    fn part(&mut self, batch: &RecordBatch, room: &mut Room, bad_values: &mut u64) -> Result<ArrayRef, Unreadable> {
        let fields = batch.schema_ref().fields();
        // Of several equal names the last one counts, as for fields.
        let Some(at) = fields.iter().rposition(|field| field.name() == self.field.name()) else {
            return self.nulls_within(batch.num_rows(), room);
        };
        let array = batch.column(at);
        if array.data_type() == self.field.data_type() && !is_dictionary(array.data_type()) {
            let has_null = !self.field.is_nullable() && array.logical_null_count() > 0;
            return if has_null { Err(missing(&self.field)) } else { Ok(Arc::clone(array)) };
        }
        if let Some(part) = self.cast(&fields[at], array, room)? {
            return Ok(part);
        }
        if self.on_bad == OnBadField::Fail || !self.field.is_nullable() {
            return Err(Unreadable::Value(BadValue::of_entry(format!(
                "its column {:?} has the type {}, from which no value of type {} can be read",
                self.field.name(),
                array.data_type(),
                self.field.data_type()
            ))));
        }
        *bad_values += (array.len() - array.logical_null_count()) as u64;
        self.nulls_within(array.len(), room)
    }

    fn nulls_within(&self, rows: usize, room: &mut Room) -> Result<ArrayRef, Unreadable> {
        room.take(rows.saturating_mul(null_bytes(self.field.data_type())))?;
        self.nulls(rows).map_err(Unreadable::Value)
    }

    fn nulls(&self, rows: usize) -> Result<ArrayRef, BadValue> {
        if rows > 0 && !self.field.is_nullable() {
            return Err(BadValue::missing(&self.field));
        }
        Ok(new_null_array(self.field.data_type(), rows))
    }

    /// The values, read from their texts. `None` if one of the types has no text.
    fn cast(&mut self, source: &Field, array: &ArrayRef, room: &mut Room) -> Result<Option<ArrayRef>, Unreadable> {
        let Some(cast) = &mut self.cast else { return Ok(None) };
        let Ok(texts) = Texts::new(source, array) else { return Ok(None) };
        let pushed = texts.push_to(cast, Size::of_value(self.field.data_type()), *room);
        if let Err(error) = pushed.and_then(|()| room.take(cast.bytes())) {
            // The next entry starts from an empty column, without the memory of this one.
            cast.clear();
            return Err(error);
        }
        cast.finish().map(Some).map_err(|error| Unreadable::Value(BadValue::of_entry(error.to_string())))
    }
}

fn missing(field: &Field) -> Unreadable {
    Unreadable::Value(BadValue::missing(field))
}

/// A column whose values are written as text.
struct Texts {
    batch: RecordBatch,
    plan: RowPlan,
}

impl Texts {
    fn new(source: &Field, array: &ArrayRef) -> crate::Result<Self> {
        let schema = Schema::new(vec![source.clone().with_nullable(true)]);
        let column = source.name().clone();
        let plan_of = |body| {
            let layout = Layout { body, message_id: None, stream_key: None, entry_id: None, shard_key: None };
            RowPlan::new(&schema, &layout, "", None)
        };
        // A value of text or binary is a payload, which is not copied.
        let plan = plan_of(Body::Payload(column.clone())).or_else(|_| plan_of(Body::Fields(vec![column])))?;
        let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::clone(array)]).map_err(|error| defect(&error))?;
        Ok(Self { batch, plan })
    }

    /// Appends the values to a column, as long as it fits in `room`. `size`: the maximum size of a value in it.
    fn push_to(&self, column: &mut FieldColumn, size: Size, mut room: Room) -> Result<(), Unreadable> {
        let entry = |error: Error| Unreadable::Value(BadValue::of_entry(error.to_string()));
        let mut rows = self.plan.bind(&self.batch).map_err(entry)?;
        rows.take_names();
        let is_payload = rows.has_payload_alone();
        let array = self.batch.column(0);
        if !is_payload {
            room.take(longest_copy(array.data_type()))?;
        }
        let (mut bulk, mut scratch) = (Vec::new(), Vec::new());
        // The memory that the next values may take before the column is measured again.
        let mut left = 0;
        for row in 0..rows.len() {
            let text = if array.is_null(row) {
                None
            } else if is_payload {
                rows.payload_alone(row)
            } else if rows.field_count(row).is_ok() {
                bulk.clear();
                rows.write_fields(row, &mut bulk, &mut scratch);
                text_of(&bulk)
            } else {
                // A value without a text, or a null of a dictionary.
                None
            };
            let most = size.with_text(text.map_or(0, <[u8]>::len));
            if most > left {
                left = room.bytes().saturating_sub(column.bytes());
                if most > left {
                    return Err(Unreadable::TooLarge);
                }
            }
            left -= most;
            column.push(text).map_err(Unreadable::Value)?;
        }
        Ok(())
    }
}

/// The longest text of a value of this type that is not a payload, if it may be longer than a few bytes.
fn longest_copy(data_type: &DataType) -> usize {
    match data_type {
        DataType::FixedSizeBinary(size) => usize::try_from(*size).unwrap_or(0),
        DataType::Dictionary(_, values) => longest_copy(values),
        _ => 0,
    }
}

/// The text of a bulk string: `$5\r\nhello\r\n`.
fn text_of(bulk: &[u8]) -> Option<&[u8]> {
    let start = memchr::memchr(b'\n', bulk)? + 1;
    bulk.get(start..bulk.len().checked_sub(2)?)
}
