//! The error for a value that does not fit its column.

use std::fmt;

use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};

use super::ValueForm;
use super::json::is_binary;
use crate::calendar::per_second;
use crate::extension::Extension;

/// The maximum number of bytes of a value that an error quotes.
const MAX_QUOTED: usize = 64;

/// A value that its column cannot hold, a missing value, or an entry without readable rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadValue(Box<Reason>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    Unfit {
        column: String,
        data_type: DataType,
        /// The value, escaped and truncated.
        value: String,
        /// The values that the column accepts.
        allowed: String,
    },
    Missing {
        column: String,
        data_type: DataType,
    },
    /// The reason, for a whole entry.
    Entry(String),
    /// The reason, for the first entry.
    FirstEntry(String),
}

impl BadValue {
    /// An error for a value.
    pub(super) fn new(field: &Field, form: ValueForm, value: &[u8]) -> Self {
        let value = match value.get(..MAX_QUOTED) {
            Some(start) if value.len() > MAX_QUOTED => {
                format!("\"{}\"… ({} bytes)", start.escape_ascii(), value.len())
            }
            _ => format!("\"{}\"", value.escape_ascii()),
        };
        let (column, data_type) = (field.name().clone(), field.data_type().clone());
        Self(Box::new(Reason::Unfit { column, data_type, value, allowed: allowed(field, form) }))
    }

    /// An error for an entry without the field of this column, which does not allow nulls.
    pub(crate) fn missing(field: &Field) -> Self {
        Self(Box::new(Reason::Missing { column: field.name().clone(), data_type: field.data_type().clone() }))
    }

    /// An error for an entry whose rows cannot be read.
    pub(crate) fn of_entry(reason: String) -> Self {
        Self(Box::new(Reason::Entry(reason)))
    }

    /// An error for a first entry that does not determine the columns.
    pub(crate) fn of_first_entry(reason: String) -> Self {
        Self(Box::new(Reason::FirstEntry(reason)))
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Reason::Unfit { column, data_type, value, allowed } => {
                write!(f, "field {column:?} does not fit its column of type {data_type}: {value} (allowed: {allowed})")
            }
            Reason::Missing { column, data_type } => {
                write!(
                    f,
                    "field {column:?} is missing, and its column of type {data_type} allows no null; declare it nullable"
                )
            }
            Reason::Entry(reason) => write!(f, "it cannot be unpacked: {reason}"),
            Reason::FirstEntry(reason) => {
                write!(
                    f,
                    "the columns cannot be those of this entry, the first one: {reason}; fields or schema name them"
                )
            }
        }
    }
}

/// The texts that a column accepts.
fn allowed(field: &Field, form: ValueForm) -> String {
    match (Extension::of(field), form) {
        (Some(Extension::Uuid), _) => "a UUID such as 123e4567-e89b-12d3-a456-426614174000".to_owned(),
        (Some(Extension::Bool8), _) => of_type(&DataType::Boolean),
        (None, ValueForm::Json) if is_binary(field.data_type()) => {
            format!("{}, as base64", of_type(field.data_type()))
        }
        (None, _) => of_type(field.data_type()),
    }
}

fn of_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "true, false, 1, 0".to_owned(),
        DataType::Int8 => whole_numbers(i8::MIN, i8::MAX),
        DataType::Int16 => whole_numbers(i16::MIN, i16::MAX),
        DataType::Int32 => whole_numbers(i32::MIN, i32::MAX),
        DataType::Int64 => whole_numbers(i64::MIN, i64::MAX),
        DataType::UInt8 => whole_numbers(u8::MIN, u8::MAX),
        DataType::UInt16 => whole_numbers(u16::MIN, u16::MAX),
        DataType::UInt32 => whole_numbers(u32::MIN, u32::MAX),
        DataType::UInt64 => whole_numbers(u64::MIN, u64::MAX),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            "numbers in the range of the type, NaN, Infinity, -Infinity".to_owned()
        }
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => {
            format!("numbers that {digits} digits with a scale of {scale} hold exactly")
        }
        DataType::Date32 | DataType::Date64 => "dates such as 2026-04-14, in the range of the type".to_owned(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("times such as 12:34:56{}", precision(*unit)),
        DataType::Timestamp(unit, None) => {
            format!("times such as 2026-04-14T12:34:56, without an offset{}", precision(*unit))
        }
        DataType::Timestamp(unit, Some(_)) => {
            format!("times such as 2026-04-14T12:34:56Z or 2026-04-14T12:34:56+02:00{}", precision(*unit))
        }
        DataType::Duration(unit) => {
            format!("durations such as INTERVAL '1 02:03:04' DAY TO SECOND{}", precision(*unit))
        }
        DataType::Interval(IntervalUnit::YearMonth) => "intervals such as INTERVAL '1-2' YEAR TO MONTH".to_owned(),
        DataType::Interval(IntervalUnit::DayTime) => {
            format!("intervals such as 3 days 4 hours 5 minutes 6.5 seconds{}", precision(TimeUnit::Millisecond))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            format!("intervals such as 1 years 2 months 3 days 6.5 seconds{}", precision(TimeUnit::Nanosecond))
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "UTF-8, below 2 GiB in a record batch".to_owned(),
        DataType::FixedSizeBinary(size) => format!("{size} bytes"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "below 2 GiB in a record batch".to_owned(),
        DataType::Dictionary(keys, values) => {
            format!("{}; as many different values in a record batch as {keys} can index", of_type(values))
        }
        DataType::List(_) | DataType::LargeList(_) => "arrays of values that fit its elements".to_owned(),
        DataType::FixedSizeList(_, size) => format!("arrays of {size} values that fit its elements"),
        DataType::Struct(_) | DataType::Map(..) => "objects with values that fit its members".to_owned(),
        _ => "no value".to_owned(),
    }
}

fn whole_numbers<T: fmt::Display>(least: T, most: T) -> String {
    format!("whole numbers from {least} to {most}")
}

/// The number of digits that a fraction of a second may have, in words.
fn precision(unit: TimeUnit) -> String {
    match per_second(unit).ilog10() {
        0 => ", without a fraction of a second".to_owned(),
        digits => format!(", with up to {digits} digits in the fraction of a second"),
    }
}
