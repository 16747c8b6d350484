//! JSON compared with the output of Spark 4.3 (Java 17) for the same values: `to_json(struct(*))`, default options.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::{Int32Type, IntervalMonthDayNano, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    DurationMicrosecondArray, FixedSizeListArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array,
    IntervalMonthDayNanoArray, LargeListArray, ListArray, MapArray, NullArray, PrimitiveArray, RecordBatch,
    StringArray, StructArray, Time64NanosecondArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{Field, Fields};

use super::{Body, Layout, RowPlan};

/// The JSON of each row of these columns.
fn json(columns: Vec<(&str, ArrayRef)>) -> Vec<String> {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap();
    let layout = Layout { body: Body::Json(None), message_id: None, stream_key: None, entry_id: None, shard_key: None };
    let plan = RowPlan::new(&batch.schema(), &layout, "payload", Some("ts")).unwrap();
    let rows = plan.bind(&batch).unwrap();
    let written = (0..rows.len()).map(|row| {
        let mut out = Vec::new();
        rows.write_fields(row, &mut out, &mut Vec::new());
        let fields = String::from_utf8(out).unwrap();
        let text = fields.strip_prefix("$7\r\npayload\r\n$").unwrap().strip_suffix("\r\n").unwrap();
        let (_, text) = text.split_once("\r\n").unwrap();
        serde_json::from_str::<serde_json::Value>(text).unwrap();
        text.to_owned()
    });
    written.collect()
}

/// The JSON after `{"a":` for each row; empty for an omitted member.
fn values(array: impl Array + 'static) -> Vec<String> {
    let rows = json(vec![("a", Arc::new(array))]);
    let value =
        |row: String| row.strip_prefix("{\"a\":").and_then(|row| row.strip_suffix('}')).unwrap_or("").to_owned();
    rows.into_iter().map(value).collect()
}

fn map(keys: ArrayRef, values: ArrayRef) -> MapArray {
    let fields = Fields::from(vec![
        Field::new("key", keys.data_type().clone(), false),
        Field::new("value", values.data_type().clone(), true),
    ]);
    let entries = StructArray::new(fields.clone(), vec![keys, values], None);
    let field = Field::new_struct("entries", fields, false);
    MapArray::new(Arc::new(field), OffsetBuffer::from_lengths([entries.len()]), entries, None, false)
}

fn map_keys(keys: impl Array + 'static) -> String {
    let ones = Arc::new(Int8Array::from(vec![1; keys.len()]));
    values(map(Arc::new(keys), ones)).remove(0)
}

#[test]
fn numbers() {
    assert_eq!(values(Int64Array::from(vec![Some(i64::MIN), Some(0), None])), ["-9223372036854775808", "0", ""]);
    assert_eq!(values(BooleanArray::from(vec![true, false])), ["true", "false"]);
    let doubles = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e7, 1e-3, 9.99e-4, 5e-324];
    let texts = ["\"NaN\"", "\"Infinity\"", "\"-Infinity\"", "-0.0", "1.0E7", "0.001", "9.99E-4", "4.9E-324"];
    assert_eq!(values(Float64Array::from_iter_values(doubles)), texts);
    let floats = [f32::NEG_INFINITY, 1.4e-45, 3.402_823_5e38, 1e10, 16_777_216.0];
    assert_eq!(
        values(Float32Array::from_iter_values(floats)),
        ["\"-Infinity\"", "1.4E-45", "3.4028235E38", "1.0E10", "1.6777216E7"]
    );
}

#[test]
fn decimals() {
    let decimal = |unscaled, precision, scale| {
        values(Decimal128Array::from(vec![unscaled]).with_precision_and_scale(precision, scale).unwrap()).remove(0)
    };
    assert_eq!(decimal(150, 5, 2), "1.50");
    assert_eq!(decimal(0, 20, 10), "0E-10");
    assert_eq!(decimal(12, 20, 8), "1.2E-7");
    assert_eq!(decimal(1, 20, 6), "0.000001");
    assert_eq!(decimal(10, 20, 7), "0.0000010");
    assert_eq!(decimal(-10_i128.pow(31), 38, 38), "-1.0000000000000000000000000000000E-7");
    assert_eq!(decimal(1, 38, 7), "1E-7");
    assert_eq!(decimal(0, 6, 6), "0.000000");
    assert_eq!(
        decimal(12_345_678_901_234_567_890_123_456_789_012_345_678, 38, 0),
        "12345678901234567890123456789012345678"
    );
}

#[test]
fn strings_and_binary() {
    let text = "\"\\/\u{8}f\n\r\t\u{1}\u{1f}\u{7f}\u{2028}é😀<>&";
    assert_eq!(values(StringArray::from(vec![text])), ["\"\\\"\\\\/\\bf\\n\\r\\t\\u0001\\u001F\u{7f}\u{2028}é😀<>&\""]);
    assert_eq!(values(BinaryArray::from_iter_values([&b"\x00\xff\x10"[..], b""])), ["\"AP8Q\"", "\"\""]);
}

#[test]
fn timestamps() {
    let micros = [1_776_168_000_000_000, 1_776_168_000_123_456, 999, -1, -62_135_596_800_000_000, i64::MAX, i64::MIN];
    let zoned =
        |zone: &str| values(PrimitiveArray::<TimestampMicrosecondType>::from_iter_values(micros).with_timezone(zone));
    assert_eq!(
        zoned("UTC"),
        [
            "\"2026-04-14T12:00:00.000Z\"",
            "\"2026-04-14T12:00:00.123Z\"",
            "\"1970-01-01T00:00:00.000Z\"",
            "\"1969-12-31T23:59:59.999Z\"",
            "\"0001-01-01T00:00:00.000Z\"",
            "\"+294247-01-10T04:00:54.775Z\"",
            "\"-290308-12-21T19:59:05.224Z\"",
        ]
    );
    for (zone, first, oldest, last) in [
        (
            "Europe/Berlin",
            "2026-04-14T14:00:00.000+02:00",
            "0001-01-01T00:53:28.000+00:53:28",
            "+294247-01-10T05:00:54.775+01:00",
        ),
        (
            "America/New_York",
            "2026-04-14T08:00:00.000-04:00",
            "0000-12-31T19:03:58.000-04:56:02",
            "+294247-01-09T23:00:54.775-05:00",
        ),
        ("GMT+5", "2026-04-14T17:00:00.000+05:00", "0001-01-01T05:00:00.000+05:00", "+294247-01-10T09:00:54.775+05:00"),
        (
            "UTC+05:30:15",
            "2026-04-14T17:30:15.000+05:30:15",
            "0001-01-01T05:30:15.000+05:30:15",
            "+294247-01-10T09:31:09.775+05:30:15",
        ),
    ] {
        let rows = zoned(zone);
        assert_eq!([&rows[0], &rows[4], &rows[5]].map(|row| row.trim_matches('"')), [first, oldest, last], "{zone}");
    }
    let naive =
        PrimitiveArray::<TimestampMicrosecondType>::from_iter_values([1_776_168_000_123_456, 327_403_382_400_000_000]);
    assert_eq!(values(naive), ["\"2026-04-14T12:00:00.123\"", "\"+12345-01-01T00:00:00.000\""]);
}

#[test]
fn dates_and_times() {
    let days = Date32Array::from(vec![20_557, -719_162, -735_525, -719_528]);
    assert_eq!(values(days), ["\"2026-04-14\"", "\"0001-01-01\"", "\"-0044-03-15\"", "\"0000-01-01\""]);
    let times = Time64NanosecondArray::from(vec![45_296_000_000_000, 45_296_123_456_000, 0]);
    assert_eq!(values(times), ["\"12:34:56\"", "\"12:34:56.123456\"", "\"00:00:00\""]);
}

#[test]
fn nulls_are_omitted_from_objects_and_kept_in_lists_and_maps() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(NullArray::new(2))),
        ("i", Arc::new(Int32Array::from(vec![None, Some(1)]))),
        ("s", Arc::new(StringArray::from(vec![None, Some("x")]))),
    ];
    assert_eq!(json(columns), ["{}", "{\"i\":1,\"s\":\"x\"}"]);

    let lists =
        ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None, Some(3)]), Some(vec![]), None]);
    assert_eq!(values(lists), ["[1,null,3]", "[]", ""]);

    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    maps.keys().append_value("q\"\n");
    maps.values().append_null();
    maps.keys().append_value("b");
    maps.values().append_value(1);
    maps.append(true).unwrap();
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    assert_eq!(values(maps.finish()), ["{\"q\\\"\\n\":null,\"b\":1}", "{}", ""]);
}

#[test]
fn structs_and_nested_lists() {
    let inner: Fields = vec![Field::new("q", arrow_schema::DataType::Int32, true)].into();
    let nothing = StructArray::new(inner.clone(), vec![Arc::new(Int32Array::from(vec![None::<i32>]))], None);
    let fields: Fields = vec![
        Field::new("a\"b", arrow_schema::DataType::Int32, true),
        Field::new("y", arrow_schema::DataType::Int32, true),
        Field::new_struct("z", inner, true),
    ]
    .into();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(Int32Array::from(vec![None::<i32>])),
        Arc::new(nothing.clone()),
    ];
    assert_eq!(values(StructArray::new(fields, arrays, None)), ["{\"a\\\"b\":1,\"z\":{}}"]);

    // A null struct within a list is kept, as is an empty one.
    let elements = StructArray::new(
        nothing.fields().clone(),
        vec![Arc::new(Int32Array::from(vec![None, Some(9)]))],
        Some(NullBuffer::from(vec![true, false])),
    );
    let field = Arc::new(Field::new("element", elements.data_type().clone(), true));
    assert_eq!(values(ListArray::new(field, OffsetBuffer::from_lengths([2]), Arc::new(elements), None)), ["[{},null]"]);

    let mut lists = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
    lists.values().values().append_value(1);
    lists.values().append(true);
    lists.values().append(false);
    lists.append(true);
    assert_eq!(values(lists.finish()), ["[[1],null]"]);
}

#[test]
fn intervals() {
    let days = DurationMicrosecondArray::from(vec![Some(93_784_500_000), None, Some(-500_000)]);
    let texts = ["\"INTERVAL '1 02:03:04.5' DAY TO SECOND\"", "", "\"INTERVAL '-0 00:00:00.5' DAY TO SECOND\""];
    assert_eq!(values(days), texts);
    let calendar = IntervalMonthDayNano { months: 14, days: 25, nanoseconds: 18_367_500_000_000 };
    let text = "\"1 years 2 months 25 days 5 hours 6 minutes 7.5 seconds\"";
    assert_eq!(values(IntervalMonthDayNanoArray::from(vec![calendar])), [text]);
}

#[test]
fn map_keys_are_written_as_sparks_internal_values() {
    assert_eq!(map_keys(BooleanArray::from(vec![true])), "{\"true\":1}");
    assert_eq!(map_keys(Float64Array::from(vec![1.5, f64::NAN, 1e10])), "{\"1.5\":1,\"NaN\":1,\"1.0E10\":1}");
    assert_eq!(map_keys(Date32Array::from(vec![20_557])), "{\"20557\":1}");
    let instant = PrimitiveArray::<TimestampMicrosecondType>::from_iter_values([1_776_168_000_500_000]);
    assert_eq!(map_keys(instant.with_timezone("Europe/Berlin")), "{\"1776168000500000\":1}");
    assert_eq!(map_keys(Time64NanosecondArray::from(vec![45_296_000_000_000])), "{\"45296000000000\":1}");
    let intervals = DurationMicrosecondArray::from(vec![86_400_000_000]);
    assert_eq!(map_keys(intervals), "{\"86400000000\":1}");
    let decimals = Decimal128Array::from(vec![10]).with_precision_and_scale(10, 9).unwrap();
    assert_eq!(map_keys(decimals), "{\"1.0E-8\":1}");
}

#[test]
fn types_that_spark_lacks_follow_the_same_rules() {
    let words: DictionaryArray<Int32Type> = [Some("a"), None, Some("b"), Some("a")].into_iter().collect();
    assert_eq!(values(words), ["\"a\"", "", "\"b\"", "\"a\""]);
    let large =
        LargeListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![None, Some(2)])]);
    assert_eq!(values(large.slice(1, 1)), ["[null,2]"]);
    let pairs = [Some(vec![Some(1), Some(2)]), None, Some(vec![None, Some(6)])];
    let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2);
    assert_eq!(values(fixed.slice(1, 2)), ["", "[null,6]"]);
}
