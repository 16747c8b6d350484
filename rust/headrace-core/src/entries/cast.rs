//! Builds a column from the fields of entries: the text of a value, as headrace writes it, becomes a value of the column's type.
//!
//! The writer is `rows`; the table there shows what it writes. Written values read back unchanged, with the exceptions listed
//! here:
//!
//! | type | accepted text | differs after reading |
//! |---|---|---|
//! | integers | an optional sign and 1 to 20 digits, in the range of the type | |
//! | float32, float64 | a number with or without point and exponent, `NaN`, `Infinity`, `inf`, in any case; the nearest value; a number that would be infinite is refused | the bits of a NaN |
//! | float16 | the same, rounded as a float32 first | the bits of a NaN |
//! | bool, `arrow.bool8` | `true`, `false` in any case, `1`, `0` | a `bool8` other than 0 is 1 |
//! | decimals | a number with or without point and exponent that the type holds exactly: digits beyond the scale must be zeros | a value with more digits than the precision, which Arrow does not check |
//! | date32, date64 | `2026-04-14`, or a signed year of 4 to 12 digits: `+12345-01-02` | the time of day in a date64; its first day, which begins before the type's range |
//! | time32, time64 | `12:34:56.5`; digits beyond the unit must be zeros | |
//! | timestamp with a zone | `2026-04-14T12:00:00.5+02:00`, `…Z`; a space for the `T`; any offset up to 18:00 | |
//! | timestamp without a zone | the same without an offset | |
//! | duration | `INTERVAL '1 02:03:04.5' DAY TO SECOND` | |
//! | interval of months | `INTERVAL '1-2' YEAR TO MONTH` | |
//! | other intervals | `1 years 2 months 3 days 4 hours 5 minutes 6.5 seconds`, each part with its own sign or missing | |
//! | utf8 of each layout | UTF-8 | bytes that are not UTF-8, which the writer does not check: a bad value |
//! | binary of each layout and of a fixed size | any bytes; as many as the type says | |
//! | `arrow.uuid` | `123e4567-e89b-12d3-a456-426614174000`, in any case | |
//! | dictionary | what its values accept; the column has the values in the order in which they came | the order of the values, and values that no row has |
//! | null | none: the writer leaves a null out | |
//!
//! There are no spaces around a value, and digits are ASCII. Extension types other than those above are read as their storage
//! type. Nested types are refused: the writer has no text for them. It writes JSON for them, which `cast/json.rs` turns into
//! columns.

mod bad_value;
mod bytes;
mod decimal;
mod dictionary;
mod interval;
mod json;
mod number;
mod primitive;
#[cfg(test)]
mod tests;
mod time;

use std::fmt;

use arrow_array::ArrayRef;
use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, ArrowTimestampType, Date32Type, Date64Type, Decimal32Type,
    Decimal64Type, Decimal128Type, Decimal256Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};

pub(crate) use self::bad_value::BadValue;
use self::bytes::{ByteStrings, Layout};
use self::decimal::Precision;
pub(super) use self::dictionary::DISTINCT;
use self::dictionary::Dictionary;
use self::primitive::{Booleans, FixedBytes, Nulls, Primitives};
use self::time::Dates;
use crate::Error;
use crate::extension::{Extension, parse_uuid};

/// The treatment of a value that does not fit its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OnBadField {
    /// The value is an error.
    #[default]
    Fail,
    /// The value becomes null and is counted. It is an error if the column does not allow nulls.
    Null,
}

/// The form that values are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueForm {
    /// The text of a field.
    Text,
    /// A member of a JSON object.
    Json,
}

/// Builds the column of a field, one value per row.
pub(crate) struct FieldColumn {
    field: Field,
    form: ValueForm,
    on_bad: OnBadField,
    values: Box<dyn Values>,
    rows: usize,
    bad_values: u64,
    /// Whether the last value is null because it was bad.
    last_is_bad: bool,
}

impl FieldColumn {
    /// Creates a column for values as text. Fails for a type that the writer has no text for.
    pub(crate) fn new(field: &Field, on_bad: OnBadField) -> crate::Result<Self> {
        Self::of(field, ValueForm::Text, on_bad)
    }

    /// Creates a column for values in this form. Fails for a type that the writer cannot write in it.
    pub(crate) fn of(field: &Field, form: ValueForm, on_bad: OnBadField) -> crate::Result<Self> {
        let (values, source, nested) = match form {
            ValueForm::Text => (values_of(field), "a field", ""),
            ValueForm::Json => {
                (json::values_of_json(field), "JSON", ", struct, list, large_list, fixed_size_list, map")
            }
        };
        let Some(values) = values else {
            return Err(Error::schema(format!(
                "column {:?} cannot be read from {source}: it has the type {} (supported: bool, integers, floats, decimals, \
                 date, time, timestamp, duration, interval, utf8 and binary of every kind, null, dictionaries of these{nested})",
                field.name(),
                field.data_type(),
            )));
        };
        Ok(Self { field: field.clone(), form, on_bad, values, rows: 0, bad_values: 0, last_is_bad: false })
    }

    /// The name of the field.
    pub(crate) fn name(&self) -> &str {
        self.field.name()
    }

    /// The number of rows of the column.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The memory that the column takes, and while it is finished.
    pub(crate) fn bytes(&self) -> usize {
        self.values.bytes()
    }

    /// The total number of values that became null because they did not fit the type.
    pub(crate) fn bad_values(&self) -> u64 {
        self.bad_values
    }

    /// Appends a value from its text; `None`: the entry does not have the field. On error nothing is appended.
    #[inline]
    pub(crate) fn push(&mut self, text: Option<&[u8]>) -> Result<(), BadValue> {
        match text {
            Some(text) => {
                if !self.values.push(text) {
                    return self.push_bad(text);
                }
            }
            None if self.field.is_nullable() => self.values.push_null(),
            None => return Err(BadValue::missing(&self.field)),
        }
        self.last_is_bad = false;
        self.rows += 1;
        Ok(())
    }

    #[cold]
    fn push_bad(&mut self, text: &[u8]) -> Result<(), BadValue> {
        if self.on_bad == OnBadField::Fail || !self.field.is_nullable() {
            return Err(BadValue::new(&self.field, self.form, text));
        }
        self.values.push_null();
        self.last_is_bad = true;
        self.bad_values += 1;
        self.rows += 1;
        Ok(())
    }

    /// Removes the value that was appended last. Not twice in a row.
    pub(crate) fn pop(&mut self) {
        self.values.pop();
        self.bad_values -= u64::from(self.last_is_bad);
        self.last_is_bad = false;
        self.rows -= 1;
    }

    /// Removes the values after the first `rows` rows. Bad values among them stay counted.
    pub(crate) fn truncate(&mut self, rows: usize) {
        while self.rows > rows {
            self.values.pop();
            self.rows -= 1;
        }
        self.last_is_bad = false;
    }

    /// Removes all values, and frees their memory. Bad values among them stay counted.
    pub(crate) fn clear(&mut self) {
        let empty = Self::of(&self.field, self.form, self.on_bad);
        if let Ok(empty) = empty {
            *self = Self { bad_values: self.bad_values, ..empty };
        }
    }

    /// Finishes the column. Resets the builder.
    pub(crate) fn finish(&mut self) -> crate::Result<ArrayRef> {
        self.rows = 0;
        self.last_is_bad = false;
        self.values.finish()
    }
}

impl fmt::Debug for FieldColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldColumn").field("field", &self.field).field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The values of a column under construction.
trait Values: Send {
    /// Appends the value of a text. Returns false, and appends nothing, if it does not fit the type.
    fn push(&mut self, text: &[u8]) -> bool;

    fn push_null(&mut self);

    /// Removes the last value.
    fn pop(&mut self);

    /// The memory that the values take, and while they are finished.
    fn bytes(&self) -> usize;

    /// Finishes the values. Resets the builder.
    fn finish(&mut self) -> crate::Result<ArrayRef>;
}

fn values_of(field: &Field) -> Option<Box<dyn Values>> {
    let data_type = field.data_type();
    match Extension::of(field) {
        Some(Extension::Uuid) => Some(fixed_bytes(size_of::<[u8; 16]>(), |text, out| {
            parse_uuid(text).is_some_and(|bytes| {
                out.extend_from_slice(&bytes);
                true
            })
        })),
        Some(Extension::Bool8) => Some(primitive::<Int8Type>(data_type, |text| number::boolean(text).map(i8::from))),
        None => values_of_type(data_type),
    }
}

fn values_of_type(data_type: &DataType) -> Option<Box<dyn Values>> {
    Some(match data_type {
        DataType::Null => Box::new(Nulls(0)),
        DataType::Boolean => Box::new(Booleans::new()),
        DataType::Int8 => primitive::<Int8Type>(data_type, number::integer),
        DataType::Int16 => primitive::<Int16Type>(data_type, number::integer),
        DataType::Int32 => primitive::<Int32Type>(data_type, number::integer),
        DataType::Int64 => primitive::<Int64Type>(data_type, number::integer),
        DataType::UInt8 => primitive::<UInt8Type>(data_type, number::integer),
        DataType::UInt16 => primitive::<UInt16Type>(data_type, number::integer),
        DataType::UInt32 => primitive::<UInt32Type>(data_type, number::integer),
        DataType::UInt64 => primitive::<UInt64Type>(data_type, number::unsigned),
        DataType::Float16 => primitive::<Float16Type>(data_type, number::float16),
        DataType::Float32 => primitive::<Float32Type>(data_type, number::float),
        DataType::Float64 => primitive::<Float64Type>(data_type, number::float),
        DataType::Decimal32(digits, scale) => {
            let precision = Precision::new::<Decimal32Type>(*digits, *scale);
            primitive::<Decimal32Type>(data_type, move |text| precision.narrow(text))
        }
        DataType::Decimal64(digits, scale) => {
            let precision = Precision::new::<Decimal64Type>(*digits, *scale);
            primitive::<Decimal64Type>(data_type, move |text| precision.narrow(text))
        }
        DataType::Decimal128(digits, scale) => {
            let precision = Precision::new::<Decimal128Type>(*digits, *scale);
            primitive::<Decimal128Type>(data_type, move |text| precision.narrow(text))
        }
        DataType::Decimal256(digits, scale) => {
            let precision = Precision::new::<Decimal256Type>(*digits, *scale);
            primitive::<Decimal256Type>(data_type, move |text| precision.wide(text))
        }
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Interval(_) => return values_of_time(data_type),
        DataType::Utf8 => byte_strings(Layout::Text),
        DataType::LargeUtf8 => byte_strings(Layout::LargeText),
        DataType::Utf8View => byte_strings(Layout::TextView),
        DataType::Binary => byte_strings(Layout::Binary),
        DataType::LargeBinary => byte_strings(Layout::LargeBinary),
        DataType::BinaryView => byte_strings(Layout::BinaryView),
        DataType::FixedSizeBinary(size) => {
            let size = usize::try_from(*size).ok()?;
            fixed_bytes(size, move |text, out| {
                let fits = text.len() == size;
                if fits {
                    out.extend_from_slice(text);
                }
                fits
            })
        }
        DataType::Dictionary(keys, values) if !matches!(**values, DataType::Dictionary(..)) => {
            return dictionary_of(keys, values_of_type(values)?);
        }
        _ => return None,
    })
}

/// A dictionary with keys of this type.
fn dictionary_of(keys: &DataType, values: Box<dyn Values>) -> Option<Box<dyn Values>> {
    Some(match keys {
        DataType::Int8 => dictionary::<Int8Type>(values),
        DataType::Int16 => dictionary::<Int16Type>(values),
        DataType::Int32 => dictionary::<Int32Type>(values),
        DataType::Int64 => dictionary::<Int64Type>(values),
        DataType::UInt8 => dictionary::<UInt8Type>(values),
        DataType::UInt16 => dictionary::<UInt16Type>(values),
        DataType::UInt32 => dictionary::<UInt32Type>(values),
        DataType::UInt64 => dictionary::<UInt64Type>(values),
        _ => return None,
    })
}

fn values_of_time(data_type: &DataType) -> Option<Box<dyn Values>> {
    Some(match data_type {
        DataType::Date32 => {
            let dates = Dates::new();
            primitive::<Date32Type>(data_type, move |text| dates.date32(text))
        }
        DataType::Date64 => {
            let dates = Dates::new();
            primitive::<Date64Type>(data_type, move |text| dates.date64(text))
        }
        DataType::Time32(unit @ TimeUnit::Second) => clock::<Time32SecondType>(data_type, *unit),
        DataType::Time32(unit @ TimeUnit::Millisecond) => clock::<Time32MillisecondType>(data_type, *unit),
        DataType::Time64(unit @ TimeUnit::Microsecond) => clock::<Time64MicrosecondType>(data_type, *unit),
        DataType::Time64(unit @ TimeUnit::Nanosecond) => clock::<Time64NanosecondType>(data_type, *unit),
        DataType::Timestamp(TimeUnit::Second, _) => timestamp::<TimestampSecondType>(data_type),
        DataType::Timestamp(TimeUnit::Millisecond, _) => timestamp::<TimestampMillisecondType>(data_type),
        DataType::Timestamp(TimeUnit::Microsecond, _) => timestamp::<TimestampMicrosecondType>(data_type),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => timestamp::<TimestampNanosecondType>(data_type),
        DataType::Duration(unit @ TimeUnit::Second) => duration::<DurationSecondType>(data_type, *unit),
        DataType::Duration(unit @ TimeUnit::Millisecond) => duration::<DurationMillisecondType>(data_type, *unit),
        DataType::Duration(unit @ TimeUnit::Microsecond) => duration::<DurationMicrosecondType>(data_type, *unit),
        DataType::Duration(unit @ TimeUnit::Nanosecond) => duration::<DurationNanosecondType>(data_type, *unit),
        DataType::Interval(IntervalUnit::YearMonth) => primitive::<IntervalYearMonthType>(data_type, interval::months),
        DataType::Interval(IntervalUnit::DayTime) => primitive::<IntervalDayTimeType>(data_type, interval::day_time),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            primitive::<IntervalMonthDayNanoType>(data_type, interval::month_day_nano)
        }
        _ => return None,
    })
}

fn primitive<T: ArrowPrimitiveType>(
    data_type: &DataType,
    parse: impl Fn(&[u8]) -> Option<T::Native> + Send + 'static,
) -> Box<dyn Values> {
    Box::new(Primitives::<T, _>::new(data_type.clone(), parse))
}

fn clock<T: ArrowPrimitiveType<Native: TryFrom<i64>>>(data_type: &DataType, unit: TimeUnit) -> Box<dyn Values> {
    primitive::<T>(data_type, move |text| time::time(text, unit))
}

fn timestamp<T: ArrowTimestampType>(data_type: &DataType) -> Box<dyn Values> {
    let has_zone = matches!(data_type, DataType::Timestamp(_, Some(_)));
    let dates = Dates::new();
    primitive::<T>(data_type, move |text| dates.timestamp(text, T::UNIT, has_zone))
}

fn duration<T: ArrowPrimitiveType<Native = i64>>(data_type: &DataType, unit: TimeUnit) -> Box<dyn Values> {
    primitive::<T>(data_type, move |text| interval::duration(text, unit))
}

fn byte_strings(layout: Layout) -> Box<dyn Values> {
    Box::new(ByteStrings::new(layout))
}

fn fixed_bytes(size: usize, append: impl Fn(&[u8], &mut Vec<u8>) -> bool + Send + 'static) -> Box<dyn Values> {
    Box::new(FixedBytes::new(size, append))
}

fn dictionary<K: ArrowDictionaryKeyType>(values: Box<dyn Values>) -> Box<dyn Values> {
    Box::new(Dictionary::<K>::new(values))
}
