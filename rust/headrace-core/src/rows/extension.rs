//! Extension types: a type of Arrow with a name that says what its values mean. Those that are not here are written as
//! the type that they are stored as (<https://arrow.apache.org/docs/format/CanonicalExtensions.html>).

use arrow_array::FixedSizeBinaryArray;
use arrow_schema::{DataType, Field};

use super::line::Line;
use crate::{Error, Result};

/// The bytes of a UUID.
pub(super) const UUID_SIZE: i32 = 16;

/// The length of a UUID's text.
pub(super) const UUID_TEXT: usize = 36;

/// The name that a column of Python objects gets: polars exports one as eight bytes a value, an address, and Arrow has no
/// type for it.
pub const OBJECTS: &str = "polars.object";

/// The name that older versions of polars give it.
const OBJECTS_BEFORE: &str = "POLARS_EXTENSION_TYPE";

/// Why these cannot be written: the end of a sentence that begins with the column.
pub(super) const OBJECTS_REFUSED: &str =
    "holds Python objects (polars Object), of which Arrow gets no more than addresses (cast it to String or Binary)";

/// The extension types that are not written as what they are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extension {
    /// `arrow.uuid`
    Uuid,
    /// `arrow.bool8`: zero is false, and any other number true.
    Bool8,
}

impl Extension {
    /// That of a column; one whose storage is not what the name asks for has none.
    pub(super) fn of(field: &Field) -> Option<Self> {
        match (field.extension_type_name()?, field.data_type()) {
            ("arrow.uuid", DataType::FixedSizeBinary(UUID_SIZE)) => Some(Self::Uuid),
            ("arrow.bool8", DataType::Int8) => Some(Self::Bool8),
            _ => None,
        }
    }
}

/// Whether a column is of Python objects.
pub(super) fn is_of_objects(field: &Field) -> bool {
    field.extension_type_name().is_some_and(|name| name == OBJECTS || name == OBJECTS_BEFORE)
}

/// Refuses a column that is or has Python objects.
pub(crate) fn refuse_objects(column: &Field) -> Result<()> {
    if holds_objects(column) {
        return Err(Error::schema(format!("column {:?} cannot be written: it {OBJECTS_REFUSED}", column.name())));
    }
    Ok(())
}

fn holds_objects(field: &Field) -> bool {
    is_of_objects(field)
        || match field.data_type() {
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _) => holds_objects(field),
            DataType::Struct(fields) => fields.iter().any(|field| holds_objects(field)),
            _ => false,
        }
}

/// `123e4567-e89b-12d3-a456-426614174000`
pub(super) fn uuid_text(bytes: &[u8]) -> [u8; UUID_TEXT] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; UUID_TEXT];
    let places = (0..UUID_TEXT).filter(|place| !matches!(place, 8 | 13 | 18 | 23));
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (place, digit) in places.zip(digits) {
        text[place] = HEX[usize::from(digit)];
    }
    text
}

pub(super) fn write_uuid(out: &mut Line<'_>, array: &FixedSizeBinaryArray, row: usize) {
    out.push(&uuid_text(array.value(row)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_uuid_is_its_digits_in_five_groups(bytes: [u8; 16]) {
            let digits = format!("{:032x}", u128::from_be_bytes(bytes));
            let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            let text = String::from_utf8(uuid_text(&bytes).to_vec());
            prop_assert_eq!(text, Ok(groups.join("-")));
        }
    }
}
