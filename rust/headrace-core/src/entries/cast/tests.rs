//! Texts that the writer does not write: which of them are accepted, and as which value.
#![allow(clippy::unwrap_used)]

mod columns;
mod round_trip;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use proptest::prelude::*;

use self::columns::{column, every_type, raws};
use super::{BadValue, FieldColumn, OnBadField, ValueForm};
use crate::rows::tests::{fields, written};

/// The text of each row; `None` if it is null.
fn texts(field: &Field, array: ArrayRef) -> Vec<Option<Vec<u8>>> {
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field.clone()])), vec![array]).unwrap();
    let rows = written(&batch, &fields(&[field.name()]));
    rows.into_iter().map(|row| row.ok().map(|mut pairs| pairs.remove(0).1)).collect()
}

/// The column that is read from these texts.
fn read(field: &Field, texts: &[Option<Vec<u8>>]) -> ArrayRef {
    let mut column = FieldColumn::new(field, OnBadField::Fail).unwrap();
    for text in texts {
        if let Err(bad) = column.push(text.as_deref()) {
            unreachable!("{field}: {bad}");
        }
    }
    assert_eq!(column.rows(), texts.len());
    let array = column.finish().unwrap();
    array.to_data().validate_full().unwrap();
    array
}

/// A dictionary decoded to a column of its values.
fn decoded(array: &ArrayRef) -> ArrayRef {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => arrow_select::take::take(dictionary.values(), dictionary.keys(), None).unwrap(),
        None => Arc::clone(array),
    }
}

fn utc() -> Arc<str> {
    "UTC".into()
}

/// The value of a text, written again by the writer, or the error.
fn rewritten(data_type: &DataType, text: &[u8]) -> Result<String, BadValue> {
    let field = Field::new("a", data_type.clone(), true);
    let mut column = FieldColumn::new(&field, OnBadField::Fail).unwrap();
    column.push(Some(text))?;
    let text = texts(&field, column.finish().unwrap()).remove(0).unwrap();
    Ok(String::from_utf8(text).unwrap())
}

#[test]
fn alternative_texts_of_a_value_are_accepted() {
    let nanoseconds = |zone| DataType::Timestamp(TimeUnit::Nanosecond, zone);
    for (data_type, text, value) in [
        (DataType::Int8, "+127", "127"),
        (DataType::Int8, "-0", "0"),
        (DataType::Int64, "00000000000000000007", "7"),
        (DataType::UInt64, "-0", "0"),
        (DataType::UInt64, "+18446744073709551615", "18446744073709551615"),
        (DataType::Float64, "1", "1.0"),
        (DataType::Float64, "+.5", "0.5"),
        (DataType::Float64, "5.", "5.0"),
        (DataType::Float64, "1e+16", "1.0E16"),
        (DataType::Float64, "-inf", "-Infinity"),
        (DataType::Float64, "nan", "NaN"),
        (DataType::Float64, "1e-999", "0.0"),
        (DataType::Float32, "0.1", "0.1"),
        (DataType::Float32, "16777217", "1.6777216E7"),
        (DataType::Float16, "65504", "65504.0"),
        (DataType::Float16, "INFINITY", "Infinity"),
        (DataType::Boolean, "True", "true"),
        (DataType::Boolean, "FALSE", "false"),
        (DataType::Boolean, "1", "true"),
        (DataType::Boolean, "0", "false"),
        (DataType::Decimal128(5, 2), "1.5", "1.50"),
        (DataType::Decimal128(5, 2), "+1.5000", "1.50"),
        (DataType::Decimal128(5, 2), ".5", "0.50"),
        (DataType::Decimal128(5, 2), "00000999.99", "999.99"),
        (DataType::Decimal128(5, 2), "-0", "0.00"),
        (DataType::Decimal128(9, 8), "1.2E-7", "0.00000012"),
        (DataType::Decimal128(5, -2), "12e3", "12000"),
        (DataType::Decimal128(5, 2), "0e999999", "0.00"),
        (DataType::Date32, "+2026-04-14", "2026-04-14"),
        (DataType::Date32, "-0000-01-01", "0000-01-01"),
        (DataType::Time32(TimeUnit::Second), "12:34:56.000", "12:34:56"),
        (DataType::Time64(TimeUnit::Microsecond), "12:34:56.500000000", "12:34:56.5"),
        (nanoseconds(Some(utc())), "2026-04-14 12:00:00.000001+00:00", "2026-04-14T12:00:00.000001Z"),
        (nanoseconds(Some(utc())), "2026-04-14T00:30:00+02:00", "2026-04-13T22:30:00Z"),
        (nanoseconds(Some(utc())), "2026-04-14T12:00:00-18:00", "2026-04-15T06:00:00Z"),
        (nanoseconds(None), "2026-04-14 12:00:00", "2026-04-14T12:00:00"),
    ] {
        assert_eq!(rewritten(&data_type, text.as_bytes()).unwrap(), value, "{data_type}: {text}");
    }
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn texts_that_do_not_fit_are_refused() {
    let seconds = |zone| DataType::Timestamp(TimeUnit::Second, zone);
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    let cases: [(DataType, &[&str]); 22] = [
        (
            DataType::Int8,
            &["128", "-129", "1.0", "1e2", "0x1", "1_0", "１", "٣", "-", "+", "+-1", "--1", "000000000000000000001"],
        ),
        (DataType::UInt8, &["256", "-1"]),
        (DataType::Int64, &["9223372036854775808", "-9223372036854775809", "99999999999999999999"]),
        (DataType::UInt64, &["18446744073709551616", "-1"]),
        (DataType::Float64, &["1e999", "-1e999", ".", "e5", "1e", "0x1p3", "1,5", "1.5f", "infinit", "+", "1 "]),
        (DataType::Float32, &["3.5e38", "1e39"]),
        (DataType::Float16, &["65520", "1e9"]),
        (DataType::Boolean, &["2", "yes", "t", "01", "truefalse"]),
        (
            DataType::Decimal128(5, 2),
            &["1000", "1.234", "0.001", "1.5.0", ".", "-", "e1", "1e", "1e99", "1e-99", "1e9999999999", "NaN"],
        ),
        (DataType::Decimal128(5, -2), &["150", "1", "10000000"]),
        (DataType::Decimal256(76, 0), &["1e76", "1e77", "0.1"]),
        (
            DataType::Date32,
            &[
                "2026-4-14",
                "2026-02-29",
                "2026-13-01",
                "2026-00-01",
                "2026-01-00",
                "26-04-14",
                "12026-04-14",
                "+026-04-14",
                "2026-04-14T00:00:00",
                "+5881580-07-12",
                "+1234567890123-01-01",
                "2026/04/14",
                "20260414",
                "-",
                "+2026",
            ],
        ),
        (DataType::Date64, &["+292278994-08-18", "+999999999999-12-31", "-999999999999-12-31"]),
        (
            DataType::Time32(TimeUnit::Second),
            &[
                "24:00:00",
                "12:60:00",
                "12:00:60",
                "12:00",
                "1:00:00",
                "12:00:00.5",
                "12:00:00.",
                "12:00:00Z",
                "-01:00:00",
            ],
        ),
        (DataType::Time64(TimeUnit::Microsecond), &["12:00:00.0000005"]),
        (
            seconds(None),
            &[
                "2026-04-14T12:00:00Z",
                "2026-04-14",
                "2026-04-14T",
                "2026-04-14t12:00:00",
                "2026-04-14T12:00:00.1",
                "1776168000",
                "+292277026597-01-01T00:00:00",
            ],
        ),
        (
            seconds(Some(utc())),
            &[
                "2026-04-14T12:00:00",
                "2026-04-14T12:00:00z",
                "2026-04-14T12:00:00 +02:00",
                "2026-04-14T12:00:00+02",
                "2026-04-14T12:00:00+0200",
                "2026-04-14T12:00:00+18:01",
                "2026-04-14T12:00:00+02:60",
                "2026-04-14T12:00:00+02:00:60",
                "2026-04-14T12:00:00*02:00",
                "2026-04-14T12:00:00ZZ",
            ],
        ),
        (
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            &["2262-04-11T23:47:16.854775808", "1677-09-21T00:12:43.145224191"],
        ),
        (
            DataType::Duration(TimeUnit::Second),
            &[
                "INTERVAL '1 02:03:04.5' DAY TO SECOND",
                "1 02:03:04",
                "INTERVAL '1 24:00:00' DAY TO SECOND",
                "INTERVAL '1' DAY",
                "INTERVAL ' 02:03:04' DAY TO SECOND",
                "INTERVAL '106751991167300 15:30:08' DAY TO SECOND",
            ],
        ),
        (
            DataType::Interval(IntervalUnit::YearMonth),
            &[
                "INTERVAL '1-12' YEAR TO MONTH",
                "INTERVAL '1' YEAR TO MONTH",
                "INTERVAL '178956970-8' YEAR TO MONTH",
                "INTERVAL '--1-2' YEAR TO MONTH",
            ],
        ),
        (DataType::Interval(IntervalUnit::DayTime), &["1 months", "0.0001 seconds", "2147483648 days"]),
        (
            interval,
            &[
                "1",
                "1 day",
                "1 days 1 months",
                "1 days 1 days",
                "1.5 days",
                "1  days",
                "1 days ",
                "0.0000000001 seconds",
                ". seconds",
                "1. seconds",
                "9223372037 seconds",
                "178956971 years",
            ],
        ),
    ];
    for (data_type, texts) in cases {
        let padded = ["", " ", "\0", "null", "None", "\u{feff}1"].map(str::to_owned);
        let texts = texts.iter().map(|text| (*text).to_owned()).chain(padded).chain(["9".repeat(100_000), " 1".into()]);
        for text in texts {
            let shown: String = text.chars().take(50).collect();
            assert!(rewritten(&data_type, text.as_bytes()).is_err(), "{data_type}: {shown:?}");
        }
    }
}

#[test]
fn numbers_may_be_texts_of_any_length() {
    let zeros = "0".repeat(1_000_000);
    for (data_type, text, value) in [
        (DataType::Float64, format!("{zeros}1.5{zeros}"), "1.5"),
        (DataType::Decimal128(5, 2), format!("{zeros}1.5{zeros}"), "1.50"),
        (DataType::Decimal256(76, -76), format!("1{zeros}e-999900"), "1e100"),
        (DataType::Time32(TimeUnit::Second), format!("12:00:00.{zeros}"), "12:00:00"),
    ] {
        let value = if value == "1e100" { format!("1{}", "0".repeat(100)) } else { value.to_owned() };
        assert_eq!(rewritten(&data_type, text.as_bytes()).unwrap(), value);
    }
}

#[test]
fn bytes_and_texts_are_checked_against_their_type() {
    for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        assert!(rewritten(&data_type, b"a\xff").is_err());
        assert_eq!(rewritten(&data_type, "é".as_bytes()).unwrap(), "é");
        assert_eq!(rewritten(&data_type, b"").unwrap(), "");
    }
    for size in [0, 3] {
        let data_type = DataType::FixedSizeBinary(size);
        for length in 0..5 {
            assert_eq!(rewritten(&data_type, &vec![b'a'; length]).is_ok(), length == usize::try_from(size).unwrap());
        }
    }
    assert!(rewritten(&DataType::Null, b"").is_err(), "a null has no text");
}

#[test]
fn a_date_does_not_depend_on_the_one_before_it() {
    let dates = ["1970-01-01", "2026-04-14", "2026-04-14", "+2026-04-14", "+12026-04-14", "2026-04-15", "2026-04-14"];
    let days = [0, 20_557, 20_557, 20_557, 3_672_982, 20_558, 20_557];
    let field = Field::new("a", DataType::Date32, true);
    let read = read(&field, &dates.map(|date| Some(date.as_bytes().to_vec())));
    assert_eq!(read.as_primitive::<Date32Type>().values(), &days);
    let mut column = FieldColumn::new(&field, OnBadField::Fail).unwrap();
    for bad in [&[0; 10][..], b"1970-01-01T", b"1970-01-0", b"1970-01-011"] {
        assert!(column.push(Some(bad)).is_err());
    }
}

#[test]
fn a_dictionary_is_limited_by_its_key_type() {
    let data_type = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64));
    let field = Field::new("a", data_type.clone(), true);
    let mut column = FieldColumn::new(&field, OnBadField::Fail).unwrap();
    for _ in 0..2 {
        for number in 0..128_i32 {
            column.push(Some(number.to_string().as_bytes())).unwrap();
        }
        let bad = column.push(Some(b"128")).unwrap_err().to_string();
        assert!(bad.contains("as many different values in a record batch as Int8 can index"), "{bad}");
        column.push(Some(b"127")).unwrap();
        column.push(None).unwrap();
        let array = column.finish().unwrap();
        assert_eq!((array.len(), array.null_count(), array.data_type()), (130, 1, &data_type));
    }
}

#[test]
fn nested_types_are_refused() {
    let item = || Arc::new(Field::new("item", DataType::Int8, true));
    let nested = [
        DataType::List(item()),
        DataType::LargeList(item()),
        DataType::FixedSizeList(item(), 2),
        DataType::ListView(item()),
        DataType::Struct([item()].into_iter().collect()),
        DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::List(item()))),
        DataType::Dictionary(
            Box::new(DataType::Int8),
            Box::new(DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))),
        ),
    ];
    for data_type in nested {
        let error = FieldColumn::new(&Field::new("tags", data_type, true), OnBadField::Null).unwrap_err().to_string();
        assert!(error.starts_with("column \"tags\" cannot be read from a field: it has the type "), "{error}");
    }
}

#[test]
fn an_error_names_the_field_type_value_and_allowed_values() {
    let bad = rewritten(&DataType::Int8, b"12x\n\xff").unwrap_err();
    assert_eq!(
        bad.to_string(),
        "field \"a\" does not fit its column of type Int8: \"12x\\n\\xff\" (allowed: whole numbers from -128 to 127)"
    );
    let bad = rewritten(&DataType::Boolean, &[b'x'; 1000]).unwrap_err();
    let expected = format!("\"{}\"… (1000 bytes) (allowed: true, false, 1, 0)", "x".repeat(64));
    assert!(bad.to_string().ends_with(&expected), "{bad}");
    assert!(!rewritten(&DataType::Boolean, &[b'x'; 64]).unwrap_err().to_string().contains('…'));

    let mut column = FieldColumn::new(&Field::new("a", DataType::Int8, false), OnBadField::Null).unwrap();
    let bad = column.push(None).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "field \"a\" is missing, and its column of type Int8 allows no null; declare it nullable"
    );
    assert!(column.push(Some(b"x")).is_err(), "the column allows no null");
    assert_eq!((column.rows(), column.bad_values()), (0, 0));

    for field in every_type() {
        let bad = BadValue::new(&field, ValueForm::Text, b"x").to_string();
        assert_eq!(bad.contains("no value"), *field.data_type() == DataType::Null, "{bad}");
    }
}

#[test]
fn bad_values_become_null_and_are_counted() {
    for field in every_type() {
        let Some(bad) = [&b"not \xff"[..], b"\xff"]
            .into_iter()
            .find(|text| FieldColumn::new(&field, OnBadField::Fail).unwrap().push(Some(text)).is_err())
        else {
            assert!(field.data_type().is_binary() || matches!(field.data_type(), DataType::Dictionary(..)), "{field}");
            continue;
        };
        let mut column = FieldColumn::new(&field, OnBadField::Null).unwrap();
        column.push(Some(bad)).unwrap();
        column.push(None).unwrap();
        column.push(Some(bad)).unwrap();
        assert_eq!((column.rows(), column.bad_values()), (3, 2));
        column.pop();
        assert_eq!((column.rows(), column.bad_values()), (2, 1));
        let array = column.finish().unwrap();
        assert_eq!(
            (array.len(), array.logical_null_count(), column.rows(), column.bad_values()),
            (2, 2, 0, 1),
            "{field}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_removed_value_leaves_no_trace(raws in raws(), again in any::<bool>()) {
        for field in every_type() {
            let texts = texts(&field, column(&field, &raws));
            let mut column = FieldColumn::new(&field, OnBadField::Fail).unwrap();
            for text in &texts {
                if again {
                    // A value, then a null.
                    column.push(text.as_deref()).unwrap();
                    column.pop();
                }
                column.push(None).unwrap();
                column.pop();
                column.push(text.as_deref()).unwrap();
            }
            let array: ArrayRef = column.finish().unwrap();
            prop_assert_eq!(&decoded(&array), &decoded(&read(&field, &texts)), "{}", field);
        }
    }

    /// Texts that are mostly almost right.
    #[test]
    fn accepted_texts_are_written_and_read_as_the_same_value(
        raws in raws(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(prop_oneof![
            2 => prop::sample::select(b"0123456789+-.:eEINTZ '\0\xff".to_vec()),
            1 => any::<u8>(),
        ])), 1..3),
    ) {
        for field in every_type() {
            for mut text in texts(&field, column(&field, &raws)).into_iter().flatten() {
                for (place, byte) in &edits {
                    let place = place.index(text.len() + 1);
                    match byte {
                        Some(byte) if place < text.len() => text[place] = *byte,
                        Some(byte) => text.insert(place, *byte),
                        None => text.truncate(place),
                    }
                }
                let mut column = FieldColumn::new(&field, OnBadField::Fail).unwrap();
                if column.push(Some(&text)).is_err() {
                    prop_assert_eq!(column.rows(), 0);
                    prop_assert_eq!(column.finish().unwrap().len(), 0);
                    continue;
                }
                let array = column.finish().unwrap();
                let again = read(&field, &texts(&field, ArrayRef::clone(&array)));
                prop_assert_eq!(&decoded(&again), &decoded(&array), "{}: {:?}", field, text.escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn a_float_is_the_nearest_to_its_text(texts in prop::collection::vec(prop_oneof![
        "-?[0-9]{1,20}(\\.[0-9]{0,20})?(e-?[0-9]{1,2})?",
        "-?0?\\.0{0,12}[0-9]{1,8}",
    ], 1..50)) {
        let given: Vec<_> = texts.iter().map(|text| Some(text.clone().into_bytes())).collect();
        let doubles = read(&Field::new("a", DataType::Float64, true), &given);
        let bits: Vec<u64> = doubles.as_primitive::<Float64Type>().values().iter().map(|value| value.to_bits()).collect();
        prop_assert_eq!(bits, texts.iter().map(|text| text.parse::<f64>().unwrap().to_bits()).collect::<Vec<_>>());
        let mut column = FieldColumn::new(&Field::new("a", DataType::Float32, true), OnBadField::Null).unwrap();
        for text in &texts {
            column.push(Some(text.as_bytes())).unwrap();
        }
        let floats: Vec<_> = column.finish().unwrap().as_primitive::<Float32Type>().iter().collect();
        let expected = texts.iter().map(|text| text.parse::<f32>().ok().filter(|value| value.is_finite()));
        prop_assert_eq!(floats, expected.collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_become_a_value_or_null(text in prop::collection::vec(any::<u8>(), 0..64)) {
        for field in every_type() {
            let mut column = FieldColumn::new(&field, OnBadField::Null).unwrap();
            column.push(Some(&text)).unwrap();
            prop_assert_eq!(column.finish().unwrap().len(), 1);
        }
    }
}
