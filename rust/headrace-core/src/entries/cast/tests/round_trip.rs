//! The writer's output for each type reads back as the same values.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use proptest::prelude::*;

use super::columns::{DAY_MILLIS, ZONES, column, every_type, raws};
use super::{decoded, read, texts};
use crate::entries::cast::{FieldColumn, OnBadField};

fn assert_returns(field: &Field, array: &ArrayRef) {
    let texts = texts(field, Arc::clone(array));
    let read = read(field, &texts);
    assert_eq!(read.data_type(), field.data_type());
    let shown: Vec<_> = texts.iter().map(|text| text.as_deref().map(String::from_utf8_lossy)).collect();
    assert_eq!(&decoded(&read), &decoded(array), "{field}: {shown:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_type_is_read_as_it_was_written(raws in raws()) {
        for field in every_type() {
            assert_returns(&field, &column(&field, &raws));
        }
    }
}

/// A column of type `T` with these values.
fn of<T: ArrowPrimitiveType>(data_type: DataType, values: Vec<T::Native>) -> (Field, ArrayRef) {
    let array = PrimitiveArray::<T>::from_iter_values(values).with_data_type(data_type.clone());
    (Field::new("a", data_type, true), Arc::new(array))
}

#[test]
fn the_limits_of_each_type_are_read_as_they_were_written() {
    let ten = i256::from_i128(10);
    let most_256 = ten.wrapping_pow(76).wrapping_sub(i256::ONE);
    let (most_128, day) = (10_i128.pow(38) - 1, DAY_MILLIS);
    let mut columns = vec![
        of::<Int8Type>(DataType::Int8, vec![i8::MIN, i8::MAX]),
        of::<Int16Type>(DataType::Int16, vec![i16::MIN, i16::MAX]),
        of::<Int32Type>(DataType::Int32, vec![i32::MIN, i32::MAX]),
        of::<Int64Type>(DataType::Int64, vec![i64::MIN, i64::MAX]),
        of::<UInt8Type>(DataType::UInt8, vec![u8::MIN, u8::MAX]),
        of::<UInt16Type>(DataType::UInt16, vec![u16::MIN, u16::MAX]),
        of::<UInt32Type>(DataType::UInt32, vec![u32::MIN, u32::MAX]),
        of::<UInt64Type>(DataType::UInt64, vec![u64::MIN, u64::MAX]),
        of::<Float32Type>(
            DataType::Float32,
            vec![f32::MIN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), -0.0, f32::NAN, f32::INFINITY],
        ),
        of::<Float64Type>(
            DataType::Float64,
            vec![f64::MIN, f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY],
        ),
        of::<Float16Type>(
            DataType::Float16,
            [0x7bff, 0xfbff, 1, 0x8000, 0x7c00, 0xfc00, 0x7e00]
                .map(<Float16Type as ArrowPrimitiveType>::Native::from_bits)
                .to_vec(),
        ),
        of::<Decimal256Type>(DataType::Decimal256(76, 0), vec![most_256, most_256.wrapping_neg(), i256::ZERO]),
        of::<Decimal256Type>(DataType::Decimal256(76, 76), vec![most_256, most_256.wrapping_neg(), i256::ZERO]),
        of::<Decimal256Type>(DataType::Decimal256(76, -128), vec![most_256, most_256.wrapping_neg(), i256::ZERO]),
        of::<Decimal256Type>(DataType::Decimal256(76, 127), vec![most_256, most_256.wrapping_neg(), i256::ONE]),
        of::<Decimal128Type>(DataType::Decimal128(38, 10), vec![most_128, -most_128, 0]),
        of::<Decimal32Type>(DataType::Decimal32(9, 9), vec![999_999_999, -999_999_999, 1]),
        of::<Decimal64Type>(DataType::Decimal64(18, 0), vec![10_i64.pow(18) - 1, 1 - 10_i64.pow(18)]),
        // The years -5877641 and 5881580.
        of::<Date32Type>(DataType::Date32, vec![i32::MIN, i32::MAX, 2_932_896, 2_932_897, -719_529, -719_528]),
        of::<Date64Type>(DataType::Date64, vec![i64::MIN / day * day, i64::MAX / day * day, 253_402_300_800_000]),
        of::<Time64NanosecondType>(DataType::Time64(TimeUnit::Nanosecond), vec![0, 86_399_999_999_999]),
        of::<IntervalYearMonthType>(DataType::Interval(IntervalUnit::YearMonth), vec![i32::MIN, i32::MAX, -1]),
        of::<IntervalDayTimeType>(
            DataType::Interval(IntervalUnit::DayTime),
            vec![IntervalDayTime::new(i32::MIN, i32::MIN), IntervalDayTime::new(i32::MAX, i32::MAX)],
        ),
        of::<IntervalMonthDayNanoType>(
            DataType::Interval(IntervalUnit::MonthDayNano),
            vec![
                IntervalMonthDayNano::new(i32::MIN, i32::MIN, i64::MIN),
                IntervalMonthDayNano::new(i32::MAX, i32::MAX, i64::MAX),
                IntervalMonthDayNano::new(0, 0, 0),
            ],
        ),
    ];
    let extremes = || vec![i64::MIN, i64::MAX, i64::MIN + 1, 0, -1];
    for zone in ZONES {
        let timestamp = |unit| DataType::Timestamp(unit, zone.map(Into::into));
        columns.push(of::<TimestampSecondType>(timestamp(TimeUnit::Second), extremes()));
        columns.push(of::<TimestampMillisecondType>(timestamp(TimeUnit::Millisecond), extremes()));
        columns.push(of::<TimestampMicrosecondType>(timestamp(TimeUnit::Microsecond), extremes()));
        columns.push(of::<TimestampNanosecondType>(timestamp(TimeUnit::Nanosecond), extremes()));
    }
    columns.push(of::<DurationSecondType>(DataType::Duration(TimeUnit::Second), extremes()));
    columns.push(of::<DurationMillisecondType>(DataType::Duration(TimeUnit::Millisecond), extremes()));
    columns.push(of::<DurationMicrosecondType>(DataType::Duration(TimeUnit::Microsecond), extremes()));
    columns.push(of::<DurationNanosecondType>(DataType::Duration(TimeUnit::Nanosecond), extremes()));
    for (field, array) in columns {
        assert_returns(&field, &array);
    }
}

/// The first error of reading a column of these values back.
fn refused(field: &Field, array: ArrayRef) -> String {
    let mut column = FieldColumn::new(field, OnBadField::Fail).unwrap();
    let texts = texts(field, array);
    texts.iter().find_map(|text| column.push(text.as_deref()).err()).unwrap().to_string()
}

#[test]
fn documented_exceptions_do_not_survive_a_round_trip() {
    let (field, array) = of::<Decimal128Type>(DataType::Decimal128(3, 1), vec![1000]);
    assert!(refused(&field, array).contains("\"100.0\" (allowed: numbers that 3 digits"));
    let (field, array) = of::<Decimal256Type>(DataType::Decimal256(76, 0), vec![i256::MAX]);
    assert!(
        refused(&field, array).starts_with("field \"a\" does not fit its column of type Decimal256(76, 0): \"5789")
    );
    let (field, array) = of::<Date64Type>(DataType::Date64, vec![i64::MIN]);
    assert!(refused(&field, array).contains("-292275055-05-16"));
    let (field, array) = of::<Date64Type>(DataType::Date64, vec![86_400_001]);
    let read = read(&field, &texts(&field, array));
    assert_eq!(read.as_primitive::<Date64Type>().value(0), 86_400_000);
    let (field, array) = of::<Float64Type>(DataType::Float64, vec![f64::from_bits(f64::NAN.to_bits() | 1)]);
    let read = self::read(&field, &texts(&field, array));
    assert_eq!(read.as_primitive::<Float64Type>().value(0).to_bits(), f64::NAN.to_bits());
}
