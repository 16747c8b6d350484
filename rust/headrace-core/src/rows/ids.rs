//! The message IDs of a record batch, as a copy.
//!
//! Reports outlive the record batch, and data from Arrow's C interface is freed only as a whole: a shared column of IDs
//! would keep every payload in memory.

use arrow_array::builder::LargeStringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, Int64Array, LargeStringArray, OffsetSizeTrait, UInt64Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};

use crate::extension::{self, Extension};
use crate::{Error, Result};

/// The longest message ID in bytes, limited because reports keep message IDs.
pub const MAX_MESSAGE_ID: usize = 16 * 1024;

/// The types of a column of message IDs, for errors.
const SUPPORTED: &str = "int8 to int64, uint8 to uint64, utf8, large_utf8, utf8_view, arrow.uuid";

/// A message ID that the caller chose, in an Arrow column or for one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallerId<'a> {
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
    /// A string.
    Text(&'a str),
}

/// The message IDs of consecutive rows. A clone or a slice costs a few words.
#[derive(Debug, Clone)]
pub struct IdColumn(Ids);

#[derive(Debug, Clone)]
enum Ids {
    /// The number of rows, none of which has a message ID.
    Null(usize),
    Int(Int64Array),
    UInt(UInt64Array),
    Text(LargeStringArray),
}

impl IdColumn {
    /// Copies the IDs of `array`. Refuses types that cannot hold message IDs, and texts that are too long or not UTF-8.
    /// `column` is the array's name and type.
    #[allow(clippy::needless_pass_by_value)] // the caller is done with it
    pub fn new(array: ArrayRef, column: &Field) -> Result<Self> {
        if Extension::of(column) == Some(Extension::Uuid) {
            return Ok(Self(Ids::Text(uuids(&array))));
        }
        let texts = match array.data_type() {
            DataType::Null => return Ok(Self(Ids::Null(array.len()))),
            DataType::Int8 => return Ok(Self(Ids::Int(widened::<Int8Type>(&array)))),
            DataType::Int16 => return Ok(Self(Ids::Int(widened::<Int16Type>(&array)))),
            DataType::Int32 => return Ok(Self(Ids::Int(widened::<Int32Type>(&array)))),
            DataType::Int64 => return Ok(Self(Ids::Int(widened::<Int64Type>(&array)))),
            DataType::UInt8 => return Ok(Self(Ids::UInt(widened_unsigned::<UInt8Type>(&array)))),
            DataType::UInt16 => return Ok(Self(Ids::UInt(widened_unsigned::<UInt16Type>(&array)))),
            DataType::UInt32 => return Ok(Self(Ids::UInt(widened_unsigned::<UInt32Type>(&array)))),
            DataType::UInt64 => return Ok(Self(Ids::UInt(widened_unsigned::<UInt64Type>(&array)))),
            DataType::Utf8 => copied(array.len(), rows_of::<i32>(&array)),
            DataType::LargeUtf8 => copied(array.len(), rows_of::<i64>(&array)),
            DataType::Utf8View => {
                let views = array.as_string_view().clone().to_binary_view();
                copied(array.len(), (0..views.len()).map(|row| views.is_valid(row).then(|| views.value(row))))
            }
            _ => return Err(unsupported(column)),
        };
        match texts {
            Ok(texts) => Ok(Self(Ids::Text(texts))),
            Err((row, what)) => {
                Err(Error::schema(format!("column {:?} holds a message ID {what} in row {row}", column.name())))
            }
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        match &self.0 {
            Ids::Null(length) => *length,
            Ids::Int(array) => array.len(),
            Ids::UInt(array) => array.len(),
            Ids::Text(array) => array.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `length` rows, starting at `offset`.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.len());
        let length = length.min(self.len() - offset);
        Self(match &self.0 {
            Ids::Null(_) => Ids::Null(length),
            Ids::Int(array) => Ids::Int(array.slice(offset, length)),
            Ids::UInt(array) => Ids::UInt(array.slice(offset, length)),
            Ids::Text(array) => Ids::Text(array.slice(offset, length)),
        })
    }

    /// All IDs, if they are signed integers and none is null.
    pub(crate) fn ints(&self) -> Option<&[i64]> {
        match &self.0 {
            Ids::Int(array) if array.null_count() == 0 => Some(array.values()),
            Ids::Null(_) | Ids::Int(_) | Ids::UInt(_) | Ids::Text(_) => None,
        }
    }

    /// The message ID of a row; `None` if it is null or the row does not exist.
    pub fn get(&self, row: usize) -> Option<CallerId<'_>> {
        let is_valid = |nulls: Option<&NullBuffer>| nulls.is_none_or(|nulls| row < nulls.len() && nulls.is_valid(row));
        match &self.0 {
            Ids::Int(array) if is_valid(array.nulls()) => array.values().get(row).copied().map(CallerId::Int),
            Ids::UInt(array) if is_valid(array.nulls()) => array.values().get(row).copied().map(CallerId::UInt),
            Ids::Text(array) if row < array.len() && is_valid(array.nulls()) => Some(CallerId::Text(array.value(row))),
            Ids::Null(_) | Ids::Int(_) | Ids::UInt(_) | Ids::Text(_) => None,
        }
    }
}

fn widened<T: ArrowPrimitiveType<Native: Into<i64>>>(array: &ArrayRef) -> Int64Array {
    let ids = array.as_primitive::<T>().values().iter().map(|id| (*id).into());
    Int64Array::new(ids.collect(), copied_nulls(array))
}

fn widened_unsigned<T: ArrowPrimitiveType<Native: Into<u64>>>(array: &ArrayRef) -> UInt64Array {
    let ids = array.as_primitive::<T>().values().iter().map(|id| (*id).into());
    UInt64Array::new(ids.collect(), copied_nulls(array))
}

/// The validity of the rows, as a copy; `None` if no row is null.
fn copied_nulls(array: &ArrayRef) -> Option<NullBuffer> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0)?;
    Some(nulls.iter().collect())
}

/// The bytes of each row, which are not known to be UTF-8 yet.
fn rows_of<O: OffsetSizeTrait>(array: &ArrayRef) -> impl Iterator<Item = Option<&[u8]>> {
    let array = array.as_string::<O>();
    let (bytes, offsets) = (array.value_data(), array.value_offsets());
    offsets.windows(2).enumerate().map(move |(row, range)| {
        let range = range[0].as_usize()..range[1].as_usize();
        if array.is_valid(row) { bytes.get(range) } else { None }
    })
}

/// Copies the texts, or returns the first invalid row and its description.
fn copied<'a>(
    length: usize,
    rows: impl Iterator<Item = Option<&'a [u8]>>,
) -> std::result::Result<LargeStringArray, (usize, String)> {
    let mut texts = LargeStringBuilder::with_capacity(length, 0);
    for (row, bytes) in rows.enumerate() {
        let Some(bytes) = bytes else {
            texts.append_null();
            continue;
        };
        if bytes.len() > MAX_MESSAGE_ID {
            return Err((row, format!("of more than {MAX_MESSAGE_ID} bytes ({})", bytes.len())));
        }
        texts.append_value(std::str::from_utf8(bytes).map_err(|_| (row, "that is not UTF-8".to_owned()))?);
    }
    Ok(texts.finish())
}

/// The texts of UUIDs.
fn uuids(array: &ArrayRef) -> LargeStringArray {
    let array = array.as_fixed_size_binary();
    let mut texts = LargeStringBuilder::with_capacity(array.len(), array.len() * extension::UUID_TEXT);
    for row in 0..array.len() {
        let text = array.is_valid(row).then(|| extension::uuid_text(array.value(row)));
        texts.append_option(text.as_ref().and_then(|text| std::str::from_utf8(text).ok()));
    }
    texts.finish()
}

/// Refuses a column whose type cannot hold message IDs.
pub(super) fn check_type(column: &Field) -> Result<()> {
    let data_type = column.data_type();
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_uuid = Extension::of(column) == Some(Extension::Uuid);
    if data_type.is_integer() || is_text || is_uuid || data_type.is_null() { Ok(()) } else { Err(unsupported(column)) }
}

fn unsupported(column: &Field) -> Error {
    Error::schema(format!(
        "column {:?} cannot hold message IDs: its type is {} (supported: {SUPPORTED})",
        column.name(),
        column.data_type()
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_array::{
        Float64Array, Int8Array, Int16Array, Int32Array, NullArray, StringArray, StringViewArray, UInt8Array,
        UInt16Array, UInt32Array,
    };

    use super::*;

    fn read(array: ArrayRef) -> Result<IdColumn> {
        let field = Field::new("id", array.data_type().clone(), true);
        IdColumn::new(array, &field)
    }

    fn column(array: impl Array + 'static) -> IdColumn {
        read(Arc::new(array)).unwrap()
    }

    #[test]
    fn ids_of_every_supported_type_are_read() {
        let ints = [
            column(Int8Array::from(vec![None, Some(-7)])),
            column(Int16Array::from(vec![None, Some(-7)])),
            column(Int32Array::from(vec![None, Some(-7)])),
            column(Int64Array::from(vec![None, Some(-7)])),
        ];
        let uints = [
            column(UInt8Array::from(vec![None, Some(7)])),
            column(UInt16Array::from(vec![None, Some(7)])),
            column(UInt32Array::from(vec![None, Some(7)])),
            column(UInt64Array::from(vec![None, Some(7)])),
        ];
        let texts = [
            column(StringArray::from(vec![None, Some("a")])),
            column(LargeStringArray::from(vec![None, Some("a")])),
            column(StringViewArray::from(vec![None, Some("a")])),
        ];
        let expected = [(&ints[..], CallerId::Int(-7)), (&uints, CallerId::UInt(7)), (&texts, CallerId::Text("a"))];
        for (columns, id) in expected {
            for column in columns {
                assert_eq!((column.len(), column.get(0), column.get(1), column.get(2)), (2, None, Some(id), None));
            }
        }
        assert_eq!(column(UInt64Array::from(vec![u64::MAX])).get(0), Some(CallerId::UInt(u64::MAX)));
        assert_eq!(column(NullArray::new(3)).get(1), None);
    }

    #[test]
    fn a_slice_of_a_slice_keeps_its_rows() {
        let digits = || ('0'..='9').map(String::from);
        let columns = [
            column(Int8Array::from_iter_values(0..10).slice(2, 8)),
            column(Int16Array::from_iter_values(0..10).slice(2, 8)),
            column(Int32Array::from_iter_values(0..10).slice(2, 8)),
            column(Int64Array::from_iter_values(0..10).slice(2, 8)),
            column(UInt8Array::from_iter_values(0..10).slice(2, 8)),
            column(UInt16Array::from_iter_values(0..10).slice(2, 8)),
            column(UInt32Array::from_iter_values(0..10).slice(2, 8)),
            column(UInt64Array::from_iter_values(0..10).slice(2, 8)),
            column(StringArray::from_iter_values(digits()).slice(2, 8)),
            column(LargeStringArray::from_iter_values(digits()).slice(2, 8)),
            column(StringViewArray::from_iter_values(digits()).slice(2, 8)),
        ];
        for ids in columns.map(|ids| ids.slice(1, 5).slice(1, 100)) {
            let text = |id| match id {
                CallerId::Int(id) => id.to_string(),
                CallerId::UInt(id) => id.to_string(),
                CallerId::Text(id) => id.to_owned(),
            };
            let texts: Vec<String> = (0..5).filter_map(|row| ids.get(row)).map(text).collect();
            assert_eq!(texts, ["4", "5", "6", "7"], "{ids:?}");
            assert!(ids.slice(100, 1).is_empty());
        }
        assert_eq!(column(NullArray::new(3)).slice(1, 9).len(), 2);
    }

    #[test]
    fn a_message_id_that_is_too_long_is_refused_with_its_row_unless_it_is_null() {
        let long = "x".repeat(MAX_MESSAGE_ID + 1);
        for array in [
            Arc::new(StringArray::from(vec!["a", &long])) as ArrayRef,
            Arc::new(LargeStringArray::from(vec!["a", &long])),
            Arc::new(StringViewArray::from(vec!["a", &long])),
        ] {
            let message = read(array).unwrap_err().to_string();
            assert_eq!(message, "column \"id\" holds a message ID of more than 16384 bytes (16385) in row 1");
        }
        let hidden = StringArray::from(vec![long.as_str()]).into_parts();
        let hidden = StringArray::new(hidden.0, hidden.1, Some(vec![false].into()));
        assert_eq!(column(hidden).get(0), None);
    }

    #[test]
    fn other_types_are_refused_by_name() {
        let error = read(Arc::new(Float64Array::from(vec![1.0]))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column \"id\" cannot hold message IDs: its type is Float64 (supported: int8 to int64, uint8 to uint64, utf8, \
             large_utf8, utf8_view, arrow.uuid)"
        );
    }
}
