//! The fields of record batches in every layout.
// Arrow arrays are easiest to read with their type's name.
#![allow(clippy::unwrap_used, clippy::from_iter_instead_of_collect)]

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int32Type, TimestampMicrosecondType, TimestampSecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date64Array, Decimal128Array, Decimal256Array,
    DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray,
    ListArray, NullArray, PrimitiveArray, RecordBatch, RecordBatchOptions, StringArray, StringViewArray,
    Time32SecondArray, UInt64Array,
};
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use proptest::prelude::*;

use super::{Body, Layout, RowPlan};
use crate::Error;
use crate::error::{Fault, code};

pub(crate) type Pairs = Vec<(String, Vec<u8>)>;

pub(super) fn layout(body: Body) -> Layout {
    Layout { body, message_id: None, stream_key: None, entry_id: None, shard_key: None }
}

pub(crate) fn fields(columns: &[&str]) -> Layout {
    layout(Body::Fields(columns.iter().map(ToString::to_string).collect()))
}

fn payload(column: &str) -> Layout {
    layout(Body::Payload(column.into()))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// Parses bytes that consist of bulk strings only.
pub(super) fn parse_bulks(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut bulks = Vec::new();
    while let Some(after) = rest.strip_prefix(b"$") {
        let end = after.iter().position(|byte| *byte == b'\r').unwrap();
        let length: usize = std::str::from_utf8(&after[..end]).unwrap().parse().unwrap();
        let (value, end) = after[end..].strip_prefix(b"\r\n").unwrap().split_at(length);
        bulks.push(value.to_vec());
        rest = end.strip_prefix(b"\r\n").unwrap();
    }
    assert!(rest.is_empty(), "{rest:?}");
    bulks
}

/// The fields or the fault of each row. Checks that `field_count` equals the number of written fields.
pub(crate) fn written(batch: &RecordBatch, layout: &Layout) -> Vec<Result<Pairs, Fault>> {
    let plan = RowPlan::new(&batch.schema(), layout, "payload", Some("ts")).unwrap();
    let rows = plan.bind(batch).unwrap();
    assert_eq!(rows.len(), batch.num_rows());
    let row = |row| {
        let count = rows.field_count(row)?;
        // Not empty, because the previous content of the buffers must not matter.
        let (mut out, mut scratch) = (b"*5\r\n".to_vec(), b"left over".to_vec());
        rows.write_fields(row, &mut out, &mut scratch);
        let bulks = parse_bulks(out.strip_prefix(b"*5\r\n").unwrap());
        assert_eq!(bulks.len(), 2 * count);
        Ok(bulks.chunks(2).map(|pair| (String::from_utf8(pair[0].clone()).unwrap(), pair[1].clone())).collect())
    };
    (0..rows.len()).map(row).collect()
}

/// The text of the only field of each row; `None` for a row without fields.
fn texts(array: impl Array + 'static) -> Vec<Option<String>> {
    let rows = written(&batch(vec![("a", Arc::new(array))]), &fields(&["a"]));
    rows.into_iter().map(|row| row.ok().map(|mut pairs| String::from_utf8(pairs.remove(0).1).unwrap())).collect()
}

fn refused(columns: Vec<(&str, DataType)>, layout: &Layout) -> String {
    let fields: Vec<Field> = columns.into_iter().map(|(name, data_type)| Field::new(name, data_type, true)).collect();
    let error = RowPlan::new(&Schema::new(fields), layout, "payload", Some("ts")).unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn a_payload_is_unchanged_in_every_arrow_layout() {
    let words = [Some("a\r\n\0"), None, Some("")];
    let bytes = words.map(|word| word.map(str::as_bytes));
    let arrays: [ArrayRef; 8] = [
        Arc::new(StringArray::from_iter(words)),
        Arc::new(LargeStringArray::from_iter(words)),
        Arc::new(StringViewArray::from_iter(words)),
        Arc::new(BinaryArray::from_iter(bytes)),
        Arc::new(LargeBinaryArray::from_iter(bytes)),
        Arc::new(BinaryViewArray::from_iter(bytes)),
        Arc::new(words.into_iter().collect::<DictionaryArray<Int8Type>>()),
        Arc::new(words.into_iter().collect::<DictionaryArray<Int32Type>>()),
    ];
    for array in arrays {
        let rows = written(&batch(vec![("p", array)]), &payload("p"));
        assert_eq!(rows[0], Ok(vec![("payload".into(), b"a\r\n\0".to_vec())]));
        assert_eq!(rows[1], Err(Fault::new(code::NULL_PAYLOAD, "the payload is null")));
        assert_eq!(rows[2], Ok(vec![("payload".into(), Vec::new())]));
    }
    let rows = written(&batch(vec![("p", Arc::new(NullArray::new(2)))]), &payload("p"));
    assert!(rows.iter().all(|row| row.as_ref().is_err_and(|fault| fault.code == code::NULL_PAYLOAD)));
}

#[test]
fn rows_marked_together_have_the_same_marks_as_rows_marked_alone() {
    let numbers = Int32Array::from_iter((0..200).map(|row| (row % 3 > 0).then_some(row)));
    let words = (0..200).map(|row| (row % 7 > 1).then_some("a"));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(numbers),
        Arc::new(words.clone().collect::<DictionaryArray<Int8Type>>()),
        Arc::new(NullArray::new(200)),
        Arc::new(Int64Array::from_iter_values(0..200)),
        Arc::new(StringArray::from_iter(words)),
    ];
    let names: Vec<String> = (0..70).map(|column| column.to_string()).collect();
    for count in [1, 5, 64, 65, 70] {
        let names: Vec<_> = names[..count].iter().map(String::as_str).collect();
        let columns = names.iter().zip(columns.iter().cycle()).map(|(name, column)| (*name, Arc::clone(column)));
        // The slice begins within a byte of the validity buffers.
        let batch = batch(columns.collect()).slice(3, 190);
        let plan = RowPlan::new(&batch.schema(), &fields(&names), "payload", None).unwrap();
        let rows = plan.bind(&batch).unwrap();
        for range in [0..190, 0..1, 5..130, 61..190] {
            let mut marks = vec![9];
            rows.field_marks(range.clone(), &mut marks);
            let expected: Vec<_> = range.map(|row| rows.field_mark(row)).collect();
            assert_eq!(marks, if count > 64 { vec![] } else { expected }, "{count}");
        }
        for row in 0..190 {
            let (mark, mut set) = (rows.field_mark(row), Vec::new());
            rows.field_set(row, &mut set);
            let bit = |at: usize| if count <= 64 { mark >> at & 1 == 1 } else { set[at] == b'1' };
            let texts: Vec<_> = (0..count).map(|at| if bit(at) { b'1' } else { b'0' }).collect();
            assert_eq!(set, texts);
            assert_eq!(
                rows.field_count(row).unwrap_or(0),
                texts.iter().map(|has| usize::from(has - b'0')).sum::<usize>()
            );
        }
    }
}

#[test]
fn each_column_is_a_field_unless_null() {
    let batch = batch(vec![
        ("id", Arc::new(Int64Array::from(vec![Some(1), None, None]))),
        ("näme", Arc::new(StringArray::from(vec![Some("x"), Some("y"), None]))),
        ("other", Arc::new(Int64Array::from(vec![7, 8, 9]))),
    ]);
    let rows = written(&batch, &fields(&["näme", "id"]));
    assert_eq!(rows[0], Ok(vec![("näme".into(), b"x".to_vec()), ("id".into(), b"1".to_vec())]));
    assert_eq!(rows[1], Ok(vec![("näme".into(), b"y".to_vec())]));
    assert_eq!(rows[2], Err(Fault::new(code::EMPTY, "every field of the row is null")));
}

#[test]
fn every_type_is_written_as_text() {
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(texts(UInt64Array::from(vec![Some(u64::MAX), None])), [text("18446744073709551615"), None]);
    assert_eq!(texts(BooleanArray::from(vec![true, false])), [text("true"), text("false")]);
    assert_eq!(texts(Float64Array::from(vec![1e10, f64::NAN])), [text("1.0E10"), text("NaN")]);
    let decimals = Decimal128Array::from(vec![150, 0]).with_precision_and_scale(20, 10).unwrap();
    assert_eq!(texts(decimals), [text("0.0000000150"), text("0.0000000000")]);
    let wide = Decimal256Array::from(vec![i256::from_i128(-7)]).with_precision_and_scale(76, -2).unwrap();
    assert_eq!(texts(wide), [text("-700")]);
    let micros =
        || PrimitiveArray::<TimestampMicrosecondType>::from_iter_values([1_776_168_000_123_450, 1_776_168_000_000_000]);
    assert_eq!(texts(micros()), [text("2026-04-14T12:00:00.12345"), text("2026-04-14T12:00:00")]);
    let zoned = micros().with_timezone("Asia/Kolkata");
    assert_eq!(texts(zoned), [text("2026-04-14T17:30:00.12345+05:30"), text("2026-04-14T17:30:00+05:30")]);
    let seconds = PrimitiveArray::<TimestampSecondType>::from_iter_values([0]).with_timezone("UTC");
    assert_eq!(texts(seconds), [text("1970-01-01T00:00:00Z")]);
    assert_eq!(texts(Date64Array::from(vec![-1])), [text("1969-12-31")]);
    assert_eq!(texts(Time32SecondArray::from(vec![45_296])), [text("12:34:56")]);
    let fixed = FixedSizeBinaryArray::try_from_iter([*b"ab", *b"\0\n"].into_iter()).unwrap();
    assert_eq!(texts(fixed), [text("ab"), text("\0\n")]);
}

#[test]
fn a_dictionary_may_hold_null_values_or_no_values() {
    let values = Arc::new(StringArray::from(vec![Some("a"), None]));
    let keys = PrimitiveArray::<Int8Type>::from(vec![Some(0), Some(1), None]);
    assert_eq!(texts(DictionaryArray::new(keys, values)), [Some("a".to_owned()), None, None]);
    let keys = PrimitiveArray::<Int8Type>::from(vec![1, 0]);
    let values = Arc::new(StringArray::from(vec![Some("a"), None]));
    assert_eq!(texts(DictionaryArray::new(keys, values)), [None, Some("a".to_owned())]);
    assert_eq!(texts(NullArray::new(1)), [None]);
    let nothing = Arc::new(StringArray::new_null(0));
    assert_eq!(texts(DictionaryArray::new(PrimitiveArray::<Int8Type>::new_null(1), nothing)), [None]);
}

#[test]
fn routing_columns_are_read_and_checked() {
    let batch = batch(vec![
        ("p", Arc::new(StringArray::from(vec!["x"; 5]))),
        ("k", Arc::new(BinaryArray::from(vec![Some(&b"\xff"[..]), None, Some(b""), Some(b"k"), Some(b"k")]))),
        ("e", Arc::new(StringArray::from(vec![Some("5-*"), None, Some("1"), Some("MAXLEN"), Some("*")]))),
        ("id", Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5]))),
    ]);
    let mut layout = payload("p");
    layout.stream_key = Some("k".into());
    layout.entry_id = Some("e".into());
    layout.message_id = Some("id".into());
    let plan = RowPlan::new(&batch.schema(), &layout, "payload", None).unwrap();
    assert_eq!(plan.message_id_column(), Some(3));
    let rows = plan.bind(&batch).unwrap();
    assert_eq!(
        (rows.stream_key(0), rows.entry_id(0), rows.field_count(0)),
        (Some(&b"\xff"[..]), Some(&b"5-*"[..]), Ok(1))
    );
    assert_eq!((rows.stream_key(1), rows.entry_id(1), rows.field_count(1)), (None, None, Ok(1)));
    assert_eq!(rows.field_count(2).unwrap_err().code, code::BAD_STREAM_KEY);
    let fault = rows.field_count(3).unwrap_err();
    assert_eq!(fault.code, code::BAD_ENTRY_ID);
    assert_eq!(fault.message, "not an entry ID: \"MAXLEN\" (allowed: *, <ms>, <ms>-<seq>, <ms>-*)");
    assert_eq!(rows.field_count(4), Ok(1));
}

#[test]
fn record_batches_without_rows_or_columns_are_accepted() {
    assert!(written(&batch(vec![("p", Arc::new(StringArray::new_null(0)))]), &payload("p")).is_empty());
    let options = RecordBatchOptions::new().with_row_count(Some(2));
    let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    let object = Ok(vec![("payload".to_owned(), b"{}".to_vec())]);
    assert_eq!(written(&nothing, &layout(Body::Json(None))), [object.clone(), object]);
}

#[test]
fn rows_of_any_length_are_written() {
    // Values and names around the sizes in which pieces are copied, and larger than a line.
    let lengths = (0..140).chain([510, 511, 512, 513, 4090, 4095, 4096, 4097, 9000]);
    let names: Vec<(String, String)> =
        lengths.map(|length| (format!("{length:0length$}"), "\"é".repeat(length))).collect();
    let names = || names.iter().filter(|(name, _)| name.len() > 2).map(|(name, text)| (name.as_str(), text.as_str()));
    let column = |(name, text)| (name, Arc::new(StringArray::from(vec![text])) as ArrayRef);
    let batch = batch(names().map(column).collect());
    let all: Vec<&str> = names().map(|(name, _)| name).collect();
    let pairs = written(&batch, &fields(&all)).remove(0).unwrap();
    assert!(
        pairs.iter().map(|(name, text)| (name.as_str(), text.as_slice())).eq(names().map(|(n, t)| (n, t.as_bytes())))
    );
    let json = written(&batch, &layout(Body::Json(None))).remove(0).unwrap().remove(0).1;
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&json).unwrap();
    assert_eq!(object.len(), all.len());
    assert!(names().all(|(name, text)| object[name] == text));
}

#[test]
fn a_record_batch_with_a_different_schema_is_refused() {
    let first = batch(vec![("p", Arc::new(StringArray::from(vec!["x"])))]);
    let plan = RowPlan::new(&first.schema(), &payload("p"), "payload", None).unwrap();
    let message = "the record batch has a different schema from the first one: column 1 was \"p\" of type Utf8, now its columns are";
    for (other, columns) in [
        (batch(vec![("p", Arc::new(BinaryArray::from_vec(vec![b"x"])))]), "p"),
        (batch(vec![("q", Arc::new(StringArray::from(vec!["x"])))]), "q"),
        (RecordBatch::new_empty(Arc::new(Schema::empty())), "none"),
    ] {
        let error = plan.bind(&other).err().unwrap().to_string();
        assert!(error.starts_with(message) && error.ends_with(columns), "{error}");
    }
}

#[test]
fn missing_and_ambiguous_columns_are_named() {
    let columns =
        || vec![("body", DataType::Utf8), ("id", DataType::Int64), ("id", DataType::Int64), ("ts", DataType::Utf8)];
    assert_eq!(
        refused(columns(), &payload("bdoy")),
        "the record batch has no column \"bdoy\"; did you mean \"body\"? (columns: body, id, id, ts)"
    );
    assert_eq!(
        refused(columns(), &payload("dob")),
        "the record batch has no column \"dob\" (columns: body, id, id, ts)"
    );
    assert!(
        refused(columns(), &payload("payload")).ends_with("; payload, fields, fields_from or json names what to write")
    );
    let twice = "the record batch has two columns with the same name, rename one: \"id\"";
    assert_eq!(refused(columns(), &fields(&["id"])), twice);
    assert_eq!(refused(columns(), &layout(Body::Json(None))), twice);
    assert_eq!(refused(columns(), &fields(&["body", "body"])), "fields names a column twice: \"body\"");
    assert_eq!(refused(columns(), &fields(&[])), "fields names no column: at least one is needed");
    assert_eq!(refused(columns(), &layout(Body::Json(Some(vec![])))), "json names no column: at least one is needed");
    assert_eq!(
        refused(columns(), &fields(&["body", "ts"])),
        "column \"ts\" cannot be a field: the entry's time has the same name (rename the column, or choose another ts_field)"
    );
    let many: Vec<String> = (0..30).map(|number| format!("column{number}")).collect();
    let many = many.iter().map(|name| (name.as_str(), DataType::Utf8)).collect();
    assert!(refused(many, &payload("zzz")).ends_with("column18, column19 and 10 more)"));
}

#[test]
fn types_that_cannot_be_written_are_named() {
    let view = || DataType::ListView(Arc::new(Field::new("item", DataType::Int32, true)));
    let list = || DataType::List(Arc::new(Field::new("element", view(), true)));
    assert_eq!(
        refused(vec![("n", DataType::Int32)], &payload("n")),
        "column \"n\" cannot be the payload: it has the type Int32, which cannot be written (supported: utf8, large_utf8, \
         utf8_view, binary, large_binary, binary_view); fields writes numbers and times, json also lists and structs"
    );
    assert!(
        refused(vec![("l", list())], &fields(&["l"]))
            .starts_with("column \"l\" cannot be a field: it has the type List(")
    );
    let nested = DataType::Struct(vec![Field::new("inner", list(), true)].into());
    let message = refused(vec![("s", nested)], &layout(Body::Json(None)));
    assert!(
        message.starts_with("column \"s\" cannot be in JSON: \"inner.element\" in it has the type ListView("),
        "{message}"
    );

    let unsupported = [
        view(),
        DataType::new_list(DataType::Utf8, true),
        DataType::Dictionary(Box::new(DataType::Int8), Box::new(list())),
    ];
    for data_type in unsupported {
        refused(vec![("a", data_type)], &fields(&["a"]));
    }
    for (role, data_type) in
        [("stream_key", DataType::Int64), ("entry_id", DataType::Binary), ("message_id", DataType::Float32)]
    {
        let mut layout = payload("p");
        match role {
            "stream_key" => layout.stream_key = Some("a".into()),
            "entry_id" => layout.entry_id = Some("a".into()),
            _ => layout.message_id = Some("a".into()),
        }
        let message = refused(vec![("p", DataType::Utf8), ("a", data_type)], &layout);
        assert!(message.starts_with("column \"a\" cannot hold "), "{message}");
    }
}

#[test]
fn types_that_json_cannot_hold_are_named() {
    let json = layout(Body::Json(None));
    let map = |key| {
        let entries = vec![Field::new("key", key, false), Field::new("value", DataType::Utf8, true)];
        DataType::Map(Arc::new(Field::new_struct("entries", entries, false)), false)
    };
    // For these, Spark writes the address of a Java object.
    assert!(refused(vec![("m", map(DataType::Binary))], &json).contains("\"key\" in it has the type Binary"));
    assert!(refused(vec![("m", map(DataType::new_list(DataType::Utf8, true)))], &json).contains("as a map key"));

    let marked =
        Field::new("metadata", DataType::Binary, false).with_metadata([("variant".into(), "true".into())].into());
    let variant = DataType::Struct(vec![Field::new("value", DataType::Binary, false), marked].into());
    let message = refused(vec![("v", variant)], &json);
    assert_eq!(
        message,
        "column \"v\" cannot be in JSON: it is a Spark variant, which cannot be written (cast it to a string or binary column)"
    );

    let twice =
        DataType::Struct(vec![Field::new("a", DataType::Utf8, true), Field::new("a", DataType::Utf8, true)].into());
    assert!(refused(vec![("s", twice)], &json).ends_with("two members with the same name: a"));

    let zone = DataType::Timestamp(TimeUnit::Second, Some("Mars/Base".into()));
    assert!(refused(vec![("t", zone)], &json).contains("it has an unknown time zone: Mars/Base ("));
}

/// A slice of a record batch with columns of many types.
fn any_batch() -> impl Strategy<Value = RecordBatch> {
    let row = (
        any::<Option<i64>>(),
        any::<Option<f64>>(),
        any::<Option<String>>(),
        any::<Option<Vec<u8>>>(),
        any::<Option<bool>>(),
        any::<Option<Vec<Option<i32>>>>(),
    );
    (proptest::collection::vec(row, 0..20), any::<(u8, u8)>()).prop_map(|(rows, (offset, length))| {
        let ints = || rows.iter().map(|row| row.0);
        let texts = || rows.iter().map(|row| row.2.as_deref());
        let zoned = PrimitiveArray::<TimestampMicrosecondType>::from_iter(ints()).with_timezone("America/New_York");
        let decimals = Decimal128Array::from_iter(ints().map(|int| int.map(i128::from)));
        let whole = batch(vec![
            ("int", Arc::new(Int64Array::from_iter(ints()))),
            ("float", Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.1)))),
            ("text", Arc::new(StringArray::from_iter(texts()))),
            ("view", Arc::new(StringViewArray::from_iter(texts()))),
            ("binary", Arc::new(BinaryArray::from_iter(rows.iter().map(|row| row.3.as_deref())))),
            ("bool", Arc::new(BooleanArray::from_iter(rows.iter().map(|row| row.4)))),
            ("zoned", Arc::new(zoned)),
            ("decimal", Arc::new(decimals.with_precision_and_scale(38, 7).unwrap())),
            ("words", Arc::new(texts().collect::<DictionaryArray<Int32Type>>())),
            ("null", Arc::new(NullArray::new(rows.len()))),
            ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.iter().map(|row| row.5.clone())))),
        ]);
        let offset = usize::from(offset).min(whole.num_rows());
        whole.slice(offset, usize::from(length).min(whole.num_rows() - offset))
    })
}

proptest! {
    #[test]
    fn fields_are_the_columns_that_are_not_null(batch in any_batch()) {
        let columns = ["int", "float", "text", "view", "binary", "bool", "zoned", "decimal", "words", "null"];
        for (row, pairs) in written(&batch, &fields(&columns)).into_iter().enumerate() {
            let expected: Vec<&str> = columns
                .into_iter()
                .filter(|name| !batch.column_by_name(name).unwrap().logical_nulls().is_some_and(|nulls| nulls.is_null(row)))
                .collect();
            match pairs {
                Ok(pairs) => {
                    let int = pairs.iter().find(|pair| pair.0 == "int").map(|pair| String::from_utf8_lossy(&pair.1).parse::<i64>());
                    let ints: &Int64Array = batch.column(0).as_any().downcast_ref().unwrap();
                    prop_assert_eq!(int, (!ints.is_null(row)).then(|| Ok(ints.value(row))));
                    prop_assert_eq!(pairs.iter().map(|pair| pair.0.as_str()).collect::<Vec<_>>(), expected);
                }
                Err(fault) => prop_assert!(expected.is_empty() && fault.code == code::EMPTY),
            }
        }
    }

    #[test]
    fn json_parses_to_the_row(batch in any_batch()) {
        for (row, pairs) in written(&batch, &layout(Body::Json(None))).into_iter().enumerate() {
            let object: serde_json::Value = serde_json::from_slice(&pairs.unwrap()[0].1).unwrap();
            let ints: &Int64Array = batch.column(0).as_any().downcast_ref().unwrap();
            let texts: &StringArray = batch.column(2).as_any().downcast_ref().unwrap();
            prop_assert_eq!(object.get("int").and_then(serde_json::Value::as_i64), ints.is_valid(row).then(|| ints.value(row)));
            for name in ["text", "view", "words"] {
                let text = object.get(name).and_then(serde_json::Value::as_str);
                prop_assert_eq!(text, texts.is_valid(row).then(|| texts.value(row)));
            }
            prop_assert_eq!(object.get("list").is_some(), batch.column(10).is_valid(row));
        }
    }
}
