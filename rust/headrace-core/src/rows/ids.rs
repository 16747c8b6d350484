//! The message IDs of a record batch.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Int8Array, Int16Array, Int32Array, Int64Array, LargeStringArray, StringArray, StringViewArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::DataType;

use crate::{Error, Result};

/// The types a column of message IDs may have, for errors.
const SUPPORTED: &str = "int8 to int64, uint8 to uint64, utf8, large_utf8, utf8_view";

/// A message ID of an Arrow column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Id<'a> {
    /// Of a signed column.
    Int(i64),
    /// Of an unsigned column.
    UInt(u64),
    /// Of a text column.
    Text(&'a str),
}

/// A column of message IDs. It shares the memory of the array, so that a clone or a slice costs a few words.
#[derive(Debug, Clone)]
pub struct IdColumn(Ids);

#[derive(Debug, Clone)]
enum Ids {
    /// This many rows without a message ID.
    Null(usize),
    I8(Int8Array),
    I16(Int16Array),
    I32(Int32Array),
    I64(Int64Array),
    U8(UInt8Array),
    U16(UInt16Array),
    U32(UInt32Array),
    U64(UInt64Array),
    Utf8(StringArray),
    LargeUtf8(LargeStringArray),
    Utf8View(StringViewArray),
}

/// Evaluates `$body` with `$array` bound to the array, whatever its type.
macro_rules! with_array {
    ($ids:expr, $array:ident => $body:expr, $length:ident => $null:expr) => {
        match $ids {
            Ids::Null($length) => $null,
            Ids::I8($array) => $body,
            Ids::I16($array) => $body,
            Ids::I32($array) => $body,
            Ids::I64($array) => $body,
            Ids::U8($array) => $body,
            Ids::U16($array) => $body,
            Ids::U32($array) => $body,
            Ids::U64($array) => $body,
            Ids::Utf8($array) => $body,
            Ids::LargeUtf8($array) => $body,
            Ids::Utf8View($array) => $body,
        }
    };
}

/// The longest message ID in bytes: reports keep them.
pub const MAX_MESSAGE_ID: usize = 16 * 1024;

impl IdColumn {
    /// Refuses an array of a type that is not one for message IDs. `column` is its name, for the error.
    #[allow(clippy::needless_pass_by_value)] // the caller gives it away: what is kept shares its memory
    pub fn new(array: ArrayRef, column: &str) -> Result<Self> {
        check_type(array.data_type(), column)?;
        let ids = match array.data_type() {
            DataType::Null => Some(Ids::Null(array.len())),
            DataType::Int8 => array.as_primitive_opt::<Int8Type>().cloned().map(Ids::I8),
            DataType::Int16 => array.as_primitive_opt::<Int16Type>().cloned().map(Ids::I16),
            DataType::Int32 => array.as_primitive_opt::<Int32Type>().cloned().map(Ids::I32),
            DataType::Int64 => array.as_primitive_opt::<Int64Type>().cloned().map(Ids::I64),
            DataType::UInt8 => array.as_primitive_opt::<UInt8Type>().cloned().map(Ids::U8),
            DataType::UInt16 => array.as_primitive_opt::<UInt16Type>().cloned().map(Ids::U16),
            DataType::UInt32 => array.as_primitive_opt::<UInt32Type>().cloned().map(Ids::U32),
            DataType::UInt64 => array.as_primitive_opt::<UInt64Type>().cloned().map(Ids::U64),
            DataType::Utf8 => array.as_string_opt().cloned().map(Ids::Utf8),
            DataType::LargeUtf8 => array.as_string_opt().cloned().map(Ids::LargeUtf8),
            DataType::Utf8View => array.as_string_view_opt().cloned().map(Ids::Utf8View),
            _ => None,
        };
        let ids = ids.map(Self).ok_or_else(|| unsupported(array.data_type(), column))?;
        match ids.too_long() {
            None => Ok(ids),
            Some((row, length)) => Err(Error::schema(format!(
                "column {column:?} holds message IDs of more than {MAX_MESSAGE_ID} bytes: {length} in row {row}"
            ))),
        }
    }

    /// The first row whose text is longer than [`MAX_MESSAGE_ID`], and its length.
    fn too_long(&self) -> Option<(usize, usize)> {
        let length_of = |row| match &self.0 {
            Ids::Utf8(array) => usize::try_from(array.value_length(row)).ok(),
            Ids::LargeUtf8(array) => usize::try_from(array.value_length(row)).ok(),
            Ids::Utf8View(array) => array.views().get(row).map(|view| *view as u32 as usize),
            _ => None,
        };
        if !matches!(self.0, Ids::Utf8(_) | Ids::LargeUtf8(_) | Ids::Utf8View(_)) {
            return None;
        }
        (0..self.len()).find_map(|row| Some((row, length_of(row).filter(|length| *length > MAX_MESSAGE_ID)?)))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        with_array!(&self.0, array => array.len(), length => *length)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `length` rows from `offset` on, or as many of them as there are.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.len());
        let length = length.min(self.len() - offset);
        Self(match &self.0 {
            Ids::Null(_) => Ids::Null(length),
            Ids::I8(array) => Ids::I8(array.slice(offset, length)),
            Ids::I16(array) => Ids::I16(array.slice(offset, length)),
            Ids::I32(array) => Ids::I32(array.slice(offset, length)),
            Ids::I64(array) => Ids::I64(array.slice(offset, length)),
            Ids::U8(array) => Ids::U8(array.slice(offset, length)),
            Ids::U16(array) => Ids::U16(array.slice(offset, length)),
            Ids::U32(array) => Ids::U32(array.slice(offset, length)),
            Ids::U64(array) => Ids::U64(array.slice(offset, length)),
            Ids::Utf8(array) => Ids::Utf8(array.slice(offset, length)),
            Ids::LargeUtf8(array) => Ids::LargeUtf8(array.slice(offset, length)),
            Ids::Utf8View(array) => Ids::Utf8View(array.slice(offset, length)),
        })
    }

    /// The message ID of a row; `None` if it is null, or if there is no such row.
    pub fn get(&self, row: usize) -> Option<Id<'_>> {
        if row >= self.len() || with_array!(&self.0, array => array.is_null(row), _length => true) {
            return None;
        }
        Some(match &self.0 {
            Ids::Null(_) => return None,
            Ids::I8(array) => Id::Int(array.value(row).into()),
            Ids::I16(array) => Id::Int(array.value(row).into()),
            Ids::I32(array) => Id::Int(array.value(row).into()),
            Ids::I64(array) => Id::Int(array.value(row)),
            Ids::U8(array) => Id::UInt(array.value(row).into()),
            Ids::U16(array) => Id::UInt(array.value(row).into()),
            Ids::U32(array) => Id::UInt(array.value(row).into()),
            Ids::U64(array) => Id::UInt(array.value(row)),
            Ids::Utf8(array) => Id::Text(array.value(row)),
            Ids::LargeUtf8(array) => Id::Text(array.value(row)),
            Ids::Utf8View(array) => Id::Text(array.value(row)),
        })
    }
}

/// Refuses a column whose type is not one for message IDs.
pub(super) fn check_type(data_type: &DataType, column: &str) -> Result<()> {
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if data_type.is_integer() || is_text || data_type.is_null() { Ok(()) } else { Err(unsupported(data_type, column)) }
}

fn unsupported(data_type: &DataType, column: &str) -> Error {
    Error::schema(format!(
        "column {column:?} cannot hold message IDs: its type is {data_type} (supported: {SUPPORTED})"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_array::{Float64Array, NullArray};

    use super::*;

    fn column(array: impl Array + 'static) -> IdColumn {
        IdColumn::new(Arc::new(array), "id").unwrap()
    }

    #[test]
    fn every_supported_type_gives_its_values() {
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
        let expected = [(&ints[..], Id::Int(-7)), (&uints, Id::UInt(7)), (&texts, Id::Text("a"))];
        for (columns, id) in expected {
            for column in columns {
                assert_eq!((column.len(), column.get(0), column.get(1), column.get(2)), (2, None, Some(id), None));
            }
        }
        assert_eq!(column(UInt64Array::from(vec![u64::MAX])).get(0), Some(Id::UInt(u64::MAX)));
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
                Id::Int(id) => id.to_string(),
                Id::UInt(id) => id.to_string(),
                Id::Text(id) => id.to_owned(),
            };
            let texts: Vec<String> = (0..5).filter_map(|row| ids.get(row)).map(text).collect();
            assert_eq!(texts, ["4", "5", "6", "7"], "{ids:?}");
            assert!(ids.slice(100, 1).is_empty());
        }
        assert_eq!(column(NullArray::new(3)).slice(1, 9).len(), 2);
    }

    #[test]
    fn other_types_are_refused_by_name() {
        let error = IdColumn::new(Arc::new(Float64Array::from(vec![1.0])), "id").unwrap_err();
        assert_eq!(
            error.to_string(),
            "column \"id\" cannot hold message IDs: its type is Float64 (supported: int8 to int64, uint8 to uint64, utf8, \
             large_utf8, utf8_view)"
        );
    }
}
