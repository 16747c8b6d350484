//! The memory that values take in their columns, computed before they are built.
//!
//! A value may take far more than its text: the 3 bytes `{},` in a list become a struct of any width.

use std::ops::AddAssign;

use arrow_schema::{DataType, Field, Fields};

use crate::entries::cast::DISTINCT;
use crate::entries::json::{for_each_element, for_each_member, text_of};

/// The minimum size of an element in JSON in bytes, with its comma.
const ELEMENT: usize = 2;

/// The memory that a value takes at most: a number of bytes, and its text a number of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    pub(super) bytes: usize,
    pub(super) texts: usize,
}

impl Size {
    /// The maximum size of a value of this type, without the elements of lists and maps.
    pub(super) fn of_value(data_type: &DataType) -> Self {
        let is_dictionary = matches!(data_type, DataType::Dictionary(..));
        Self { bytes: width(data_type, DISTINCT), texts: 1 + usize::from(is_dictionary) }
    }

    /// The maximum size of a row of these columns that is read from JSON, per byte of the JSON.
    pub(super) fn of_json(fields: &[Field]) -> Self {
        let most = |measure: fn(&DataType) -> usize| fields.iter().map(|field| measure(field.data_type())).max();
        Self {
            bytes: fields.iter().map(|field| width(field.data_type(), DISTINCT)).fold(0, usize::saturating_add),
            // A dictionary keeps a text twice.
            texts: most(widest_element).unwrap_or(0).div_ceil(ELEMENT).saturating_add(2),
        }
    }

    /// The maximum size of a text of this length.
    pub(super) fn with_text(self, length: usize) -> usize {
        self.bytes.saturating_add(length.saturating_mul(self.texts))
    }
}

/// The maximum that `arrow-rs` allocates for an array, besides its values.
const ARRAY: usize = 512;

/// The memory of an array of this type, and of those in it, besides their values.
pub(super) fn array_bytes(data_type: &DataType) -> usize {
    let within = match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => array_bytes(item.data_type()),
        DataType::Struct(members) => members.iter().map(|member| array_bytes(member.data_type())).sum(),
        DataType::Dictionary(_, values) => array_bytes(values),
        _ => 0,
    };
    ARRAY + within
}

/// The memory of a null.
pub(super) fn null_bytes(data_type: &DataType) -> usize {
    width(data_type, 0)
}

/// The memory of a value without its text and the elements of lists and maps, while the column is built and completed.
/// `distinct`: the additional memory of a value that a dictionary does not have yet.
fn width(data_type: &DataType, distinct: usize) -> usize {
    // Whether the value is null.
    let validity = 1;
    validity
        + match data_type {
            DataType::Null => 0,
            DataType::Boolean => 1,
            DataType::FixedSizeBinary(size) => usize::try_from(*size).unwrap_or(0),
            DataType::FixedSizeList(item, size) => {
                usize::try_from(*size).unwrap_or(0).saturating_mul(width(item.data_type(), distinct))
            }
            DataType::Struct(members) => {
                members.iter().map(|member| width(member.data_type(), distinct)).fold(0, usize::saturating_add)
            }
            DataType::Utf8 | DataType::Binary => size_of::<i32>(),
            // The offsets become 64-bit numbers or views at the end.
            DataType::LargeUtf8 | DataType::LargeBinary => size_of::<i32>() + size_of::<i64>(),
            DataType::Utf8View | DataType::BinaryView => size_of::<i32>() + size_of::<u128>(),
            // The length, and the offset at the end.
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => size_of::<usize>() + size_of::<i64>(),
            DataType::Dictionary(keys, values) if distinct > 0 => {
                width(keys, 0).saturating_add(width(values, 0)).saturating_add(distinct)
            }
            DataType::Dictionary(keys, _) => width(keys, 0),
            other => other.primitive_width().unwrap_or(0),
        }
}

/// The widest element of a list or map within this type.
fn widest_element(data_type: &DataType) -> usize {
    let element = |of: &DataType| width(of, DISTINCT).max(widest_element(of));
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => element(item.data_type()),
        DataType::FixedSizeList(item, _) => widest_element(item.data_type()),
        DataType::Struct(members) => members.iter().map(|of| widest_element(of.data_type())).max().unwrap_or(0),
        _ => 0,
    }
}

/// The memory that the row of a JSON object takes at most.
pub(super) fn row_bytes(fields: &[Field], object: &str) -> usize {
    let mut bytes = Total(fields.iter().fold(0, |sum, field| sum.saturating_add(width(field.data_type(), DISTINCT))));
    add_members(&fields.iter(), object, &mut bytes);
    bytes.0
}

/// A sum that does not overflow.
struct Total(usize);

impl AddAssign<usize> for Total {
    fn add_assign(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes);
    }
}

/// Adds the texts and elements of an object's members. Members that cannot be read take no memory.
fn add_members<'a>(fields: &(impl Iterator<Item = &'a Field> + Clone), object: &str, bytes: &mut Total) {
    let _ = for_each_member(object, &mut |name, value| {
        if let Some(field) = fields.clone().find(|field| field.name() == name)
            && let Some(text) = text_of(value)
        {
            add_value(field.data_type(), &text, bytes);
        }
    });
}

/// Adds the text and the elements of a value.
fn add_value(data_type: &DataType, text: &str, bytes: &mut Total) {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => add_elements(item.data_type(), text, bytes, true),
        // The elements of a list of fixed size are part of its width.
        DataType::FixedSizeList(item, _) => add_elements(item.data_type(), text, bytes, false),
        DataType::Struct(members) => add_struct(members, text, bytes),
        DataType::Map(entries, _) => {
            let DataType::Struct(pair) = entries.data_type() else { return };
            let [_, values] = &**pair else { return };
            let width = width(entries.data_type(), DISTINCT);
            let _ = for_each_member(text, &mut |name, value| {
                *bytes += width;
                *bytes += name.len() * 2;
                if let Some(text) = text_of(value) {
                    add_value(values.data_type(), &text, bytes);
                }
            });
        }
        other => *bytes += text.len().saturating_mul(Size::of_value(other).texts),
    }
}

fn add_struct(members: &Fields, text: &str, bytes: &mut Total) {
    add_members(&members.iter().map(AsRef::as_ref), text, bytes);
}

fn add_elements(item: &DataType, text: &str, bytes: &mut Total, has_width: bool) {
    let width = if has_width { width(item, DISTINCT) } else { 0 };
    let _ = for_each_element(text, &mut |element| {
        *bytes += width;
        if let Some(text) = text_of(element) {
            add_value(item, &text, bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(data_type: DataType, json: &str) -> (usize, usize) {
        let fields = [Field::new("a", data_type, true)];
        (row_bytes(&fields, json), Size::of_json(&fields).with_text(json.len()))
    }

    #[test]
    fn elements_count_with_their_width_and_texts_with_their_length() {
        let list = |item| DataType::new_list(item, true);
        let wide = DataType::Struct((0..10).map(|at| Field::new(at.to_string(), DataType::Int64, true)).collect());
        let fixed = DataType::new_fixed_size_list(DataType::Int64, 1_000, true);
        for (data_type, json, least) in [
            (DataType::Int64, r#"{"a": 1}"#, 8),
            (DataType::Utf8, r#"{"a": "12345"}"#, 9),
            (list(DataType::Int64), r#"{"a": [1,2,3]}"#, 24),
            (list(list(DataType::Int8)), r#"{"a": [[],[],[]]}"#, 48),
            (list(wide.clone()), r#"{"a": [{},{}]}"#, 160),
            (list(fixed.clone()), r#"{"a": [null,null]}"#, 16_000),
            (list(DataType::Utf8), r#"{"a": ["12345","6"]}"#, 14),
            (wide, r#"{"a": {"0": 1}}"#, 80),
            (fixed, "{}", 8_000),
        ] {
            let (exact, bound) = row(data_type.clone(), json);
            assert!((least..=least * 3 + 200).contains(&exact), "{data_type}: {exact}, at least {least}");
            assert!(exact <= bound, "{data_type}: {exact} of {bound}");
        }
    }
}
