//! Extension types: Arrow types with a name that gives their values another meaning. Types that are not listed here are written
//! as their storage type (<https://arrow.apache.org/docs/format/CanonicalExtensions.html>).

use arrow_schema::{DataType, Field};

use crate::{Error, Result};

/// The size of a UUID in bytes.
pub(crate) const UUID_SIZE: i32 = 16;

/// The length of a UUID's text.
pub(crate) const UUID_TEXT: usize = 36;

/// The extension name of a column of Python objects. Arrow has no type for them; polars exports an address of eight bytes for
/// each value.
pub const OBJECTS: &str = "polars.object";

/// The extension name of a column of Python objects in older versions of polars.
const OBJECTS_BEFORE: &str = "POLARS_EXTENSION_TYPE";

/// The reason for refusing a column of Python objects: the end of a sentence whose subject is the column.
pub(crate) const OBJECTS_REFUSED: &str =
    "holds Python objects (polars Object), of which Arrow gets no more than addresses (cast it to String or Binary)";

/// The extension types that are not written as their storage type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// `arrow.uuid`
    Uuid,
    /// `arrow.bool8`: zero is false, any other number is true.
    Bool8,
}

impl Extension {
    /// The extension type of a column; `None` also if the storage type does not fit the name.
    pub fn of(field: &Field) -> Option<Self> {
        match (field.extension_type_name()?, field.data_type()) {
            ("arrow.uuid", DataType::FixedSizeBinary(UUID_SIZE)) => Some(Self::Uuid),
            ("arrow.bool8", DataType::Int8) => Some(Self::Bool8),
            _ => None,
        }
    }
}

/// Whether a column holds Python objects.
pub(crate) fn is_of_objects(field: &Field) -> bool {
    field.extension_type_name().is_some_and(|name| name == OBJECTS || name == OBJECTS_BEFORE)
}

/// Refuses a column that is or contains a column of Python objects.
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
pub(crate) fn uuid_text(bytes: &[u8]) -> [u8; UUID_TEXT] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; UUID_TEXT];
    let places = (0..UUID_TEXT).filter(|place| !matches!(place, 8 | 13 | 18 | 23));
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (place, digit) in places.zip(digits) {
        text[place] = HEX[usize::from(digit)];
    }
    text
}

/// The bytes of a UUID from its text in five groups, with digits in upper or lower case.
pub(crate) fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; UUID_TEXT] = text.try_into().ok()?;
    let mut digits = 0..UUID_TEXT;
    let mut digit = || match digits.next()? {
        place @ (8 | 13 | 18 | 23) if text[place] != b'-' => None,
        8 | 13 | 18 | 23 => char::from(text[digits.next()?]).to_digit(16),
        place => char::from(text[place]).to_digit(16),
    };
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = (digit()? << 4 | digit()?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_uuid_is_written_as_five_groups_of_digits(bytes: [u8; 16]) {
            let digits = format!("{:032x}", u128::from_be_bytes(bytes));
            let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            let text = String::from_utf8(uuid_text(&bytes).to_vec());
            prop_assert_eq!(text, Ok(groups.join("-")));
            prop_assert_eq!(parse_uuid(&uuid_text(&bytes)), Some(bytes));
            prop_assert_eq!(parse_uuid(&uuid_text(&bytes).to_ascii_uppercase()), Some(bytes));
        }

        #[test]
        fn a_text_with_an_invalid_byte_is_not_a_uuid(place in 0..UUID_TEXT, byte in any::<u8>()) {
            let mut text = uuid_text(&[0x5a; 16]);
            let is_digit = char::from(byte).is_ascii_hexdigit();
            text[place] = byte;
            prop_assert_eq!(parse_uuid(&text).is_some(), if uuid_text(&[0; 16])[place] == b'-' { byte == b'-' } else { is_digit });
            prop_assert_eq!(parse_uuid(&text[..place]), None);
        }
    }
}
