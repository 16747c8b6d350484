//! Columns of each type with random values, in the form that the writer takes.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BinaryViewArray, BooleanArray, DictionaryArray,
    FixedSizeBinaryArray, LargeBinaryArray, LargeStringArray, NullArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use proptest::prelude::*;

use crate::calendar::per_day;

const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
pub(super) const ZONES: [Option<&str>; 5] =
    [None, Some("UTC"), Some("+05:30"), Some("-00:00:01"), Some("Europe/Berlin")];
pub(super) const DAY_MILLIS: i64 = 86_400_000;

/// Raw material for a value of any type.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    bits: i256,
    text: String,
}

impl Raw {
    fn i128(&self) -> i128 {
        self.bits.as_i128()
    }

    fn i64(&self) -> i64 {
        self.i128() as i64
    }

    fn u64(&self) -> u64 {
        self.i64().cast_unsigned()
    }

    fn i32(&self) -> i32 {
        self.i128() as i32
    }
}

/// Bits of every length, so that both short and long numbers occur.
pub(super) fn raws() -> impl Strategy<Value = Vec<Option<Raw>>> {
    let bits =
        (any::<u128>(), any::<i128>(), 0_u8..=255).prop_map(|(low, high, shift)| i256::from_parts(low, high) >> shift);
    let limits = prop::sample::select(vec![0, 1, -1, i64::MIN, i64::MAX, i32::MIN.into(), i32::MAX.into()])
        .prop_map(|limit| i256::from_i128(limit.into()));
    let text = prop_oneof!["[a-z]{0,3}", "\\PC{0,40}", any::<String>()];
    let raw = (prop_oneof![8 => bits, 1 => limits], text).prop_map(|(bits, text)| Raw { bits, text });
    prop::collection::vec(prop::option::weighted(0.9, raw), 1..20)
}

/// A column of type `T` with these values.
fn primitive<T: ArrowPrimitiveType>(
    data_type: &DataType,
    raws: &[Option<Raw>],
    value: impl Fn(&Raw) -> T::Native,
) -> ArrayRef {
    let values: PrimitiveArray<T> = raws.iter().map(|raw| raw.as_ref().map(&value)).collect();
    Arc::new(values.with_data_type(data_type.clone()))
}

/// A column of these values, in a type of `every_type`. Values for which the table of exceptions applies are replaced.
pub(super) fn column(field: &Field, raws: &[Option<Raw>]) -> ArrayRef {
    let data_type = field.data_type();
    let texts = raws.iter().map(|raw| raw.as_ref().map(|raw| raw.text.as_str()));
    let bytes = raws.iter().map(|raw| raw.as_ref().map(|raw| raw.bits.to_le_bytes()[..raw.text.len() % 33].to_vec()));
    let boolean = |raw: &Raw| raw.i64() & 1 != 0;
    let within = |raw: &Raw, digits: u8| raw.i128() % 10_i128.pow(digits.into());
    match data_type {
        DataType::Null => Arc::new(NullArray::new(raws.len())),
        DataType::Boolean => Arc::new(raws.iter().map(|raw| raw.as_ref().map(boolean)).collect::<BooleanArray>()),
        DataType::Int8 if field.extension_type_name().is_some() => {
            primitive::<Int8Type>(data_type, raws, |raw| boolean(raw).into())
        }
        DataType::Int8 => primitive::<Int8Type>(data_type, raws, |raw| raw.i64() as i8),
        DataType::Int16 => primitive::<Int16Type>(data_type, raws, |raw| raw.i64() as i16),
        DataType::Int32 => primitive::<Int32Type>(data_type, raws, Raw::i32),
        DataType::Int64 => primitive::<Int64Type>(data_type, raws, Raw::i64),
        DataType::UInt8 => primitive::<UInt8Type>(data_type, raws, |raw| raw.u64() as u8),
        DataType::UInt16 => primitive::<UInt16Type>(data_type, raws, |raw| raw.u64() as u16),
        DataType::UInt32 => primitive::<UInt32Type>(data_type, raws, |raw| raw.u64() as u32),
        DataType::UInt64 => primitive::<UInt64Type>(data_type, raws, Raw::u64),
        DataType::Float16 => primitive::<Float16Type>(data_type, raws, |raw| {
            let value = <Float16Type as ArrowPrimitiveType>::Native::from_bits(raw.u64() as u16);
            if value.is_nan() { <Float16Type as ArrowPrimitiveType>::Native::NAN } else { value }
        }),
        DataType::Float32 => primitive::<Float32Type>(data_type, raws, |raw| {
            let value = f32::from_bits(raw.u64() as u32);
            if value.is_nan() { f32::NAN } else { value }
        }),
        DataType::Float64 => primitive::<Float64Type>(data_type, raws, |raw| {
            let value = f64::from_bits(raw.u64());
            if value.is_nan() { f64::NAN } else { value }
        }),
        DataType::Decimal32(digits, _) => {
            primitive::<Decimal32Type>(data_type, raws, |raw| within(raw, *digits) as i32)
        }
        DataType::Decimal64(digits, _) => {
            primitive::<Decimal64Type>(data_type, raws, |raw| within(raw, *digits) as i64)
        }
        DataType::Decimal128(digits, _) => primitive::<Decimal128Type>(data_type, raws, |raw| within(raw, *digits)),
        DataType::Decimal256(digits, _) => {
            let limit = i256::from_i128(10).wrapping_pow((*digits).into());
            primitive::<Decimal256Type>(data_type, raws, |raw| raw.bits.wrapping_rem(limit))
        }
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Interval(_) => times(data_type, raws),
        DataType::Utf8 => Arc::new(texts.collect::<StringArray>()),
        DataType::LargeUtf8 => Arc::new(texts.collect::<LargeStringArray>()),
        DataType::Utf8View => Arc::new(texts.collect::<StringViewArray>()),
        DataType::Binary => Arc::new(bytes.collect::<BinaryArray>()),
        DataType::LargeBinary => Arc::new(bytes.collect::<LargeBinaryArray>()),
        DataType::BinaryView => Arc::new(bytes.collect::<BinaryViewArray>()),
        DataType::FixedSizeBinary(size) => {
            let size_in_bytes = usize::try_from(*size).unwrap();
            let values =
                raws.iter().map(|raw| raw.as_ref().map(|raw| raw.bits.to_le_bytes()[..size_in_bytes].to_vec()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *size).unwrap())
        }
        DataType::Dictionary(keys, values) => {
            let values = column(&Field::new("a", (**values).clone(), true), raws);
            // The keys run backwards: from the last value to the first.
            match &**keys {
                DataType::Int8 => dictionary::<Int8Type>(values),
                DataType::UInt16 => dictionary::<UInt16Type>(values),
                _ => dictionary::<Int64Type>(values),
            }
        }
        other => unreachable!("{other}"),
    }
}

/// [`column`] for dates, times and intervals.
fn times(data_type: &DataType, raws: &[Option<Raw>]) -> ArrayRef {
    match data_type {
        DataType::Date32 => primitive::<Date32Type>(data_type, raws, Raw::i32),
        DataType::Date64 => primitive::<Date64Type>(data_type, raws, |raw| raw.i64() / DAY_MILLIS * DAY_MILLIS),
        DataType::Time32(unit) => {
            let value = |raw: &Raw| raw.i64().rem_euclid(per_day(*unit)) as i32;
            match unit {
                TimeUnit::Second => primitive::<Time32SecondType>(data_type, raws, value),
                _ => primitive::<Time32MillisecondType>(data_type, raws, value),
            }
        }
        DataType::Time64(unit) => {
            let value = |raw: &Raw| raw.i64().rem_euclid(per_day(*unit));
            match unit {
                TimeUnit::Microsecond => primitive::<Time64MicrosecondType>(data_type, raws, value),
                _ => primitive::<Time64NanosecondType>(data_type, raws, value),
            }
        }
        DataType::Timestamp(TimeUnit::Second, _) => primitive::<TimestampSecondType>(data_type, raws, Raw::i64),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            primitive::<TimestampMillisecondType>(data_type, raws, Raw::i64)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            primitive::<TimestampMicrosecondType>(data_type, raws, Raw::i64)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => primitive::<TimestampNanosecondType>(data_type, raws, Raw::i64),
        DataType::Duration(TimeUnit::Second) => primitive::<DurationSecondType>(data_type, raws, Raw::i64),
        DataType::Duration(TimeUnit::Millisecond) => primitive::<DurationMillisecondType>(data_type, raws, Raw::i64),
        DataType::Duration(TimeUnit::Microsecond) => primitive::<DurationMicrosecondType>(data_type, raws, Raw::i64),
        DataType::Duration(TimeUnit::Nanosecond) => primitive::<DurationNanosecondType>(data_type, raws, Raw::i64),
        DataType::Interval(IntervalUnit::YearMonth) => primitive::<IntervalYearMonthType>(data_type, raws, Raw::i32),
        DataType::Interval(IntervalUnit::DayTime) => primitive::<IntervalDayTimeType>(data_type, raws, |raw| {
            IntervalDayTime { days: raw.i32(), milliseconds: (raw.i64() >> 32) as i32 }
        }),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            primitive::<IntervalMonthDayNanoType>(data_type, raws, |raw| IntervalMonthDayNano {
                months: (raw.i128() >> 96) as i32,
                days: (raw.i128() >> 64) as i32,
                nanoseconds: raw.i64(),
            })
        }
        other => unreachable!("{other}"),
    }
}

fn dictionary<K: ArrowDictionaryKeyType<Native: TryFrom<usize, Error: std::fmt::Debug>>>(values: ArrayRef) -> ArrayRef {
    let keys: PrimitiveArray<K> = (0..values.len()).rev().map(|row| Some(K::Native::try_from(row).unwrap())).collect();
    Arc::new(DictionaryArray::try_new(keys, values).unwrap())
}

/// A field of each type that can be written, with every unit and several scales, zones and sizes.
pub(super) fn every_type() -> Vec<Field> {
    let mut types = vec![
        DataType::Null,
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 18),
        DataType::Decimal128(5, 2),
        DataType::Decimal128(38, 0),
        DataType::Decimal128(38, 38),
        DataType::Decimal128(20, -5),
        DataType::Decimal256(76, 0),
        DataType::Decimal256(76, 40),
        DataType::Decimal256(76, -76),
        DataType::Date32,
        DataType::Date64,
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Interval(IntervalUnit::YearMonth),
        DataType::Interval(IntervalUnit::DayTime),
        DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::FixedSizeBinary(0),
        DataType::FixedSizeBinary(3),
        DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
        DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Decimal128(38, 4))),
        DataType::Dictionary(Box::new(DataType::Int64), Box::new(DataType::BinaryView)),
    ];
    for unit in UNITS {
        types.push(DataType::Duration(unit));
        types.extend(ZONES.map(|zone| DataType::Timestamp(unit, zone.map(Into::into))));
    }
    let extension = |name: &str, data_type| {
        let metadata = [("ARROW:extension:name".to_owned(), name.to_owned())];
        Field::new("a", data_type, true).with_metadata(HashMap::from(metadata))
    };
    let mut fields: Vec<Field> = types.into_iter().map(|data_type| Field::new("a", data_type, true)).collect();
    fields.push(extension("arrow.uuid", DataType::FixedSizeBinary(16)));
    fields.push(extension("arrow.bool8", DataType::Int8));
    fields.push(extension("arrow.json", DataType::Utf8));
    fields
}
