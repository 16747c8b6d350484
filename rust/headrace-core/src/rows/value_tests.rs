//! Values that depend on more than the Arrow type: extension types, objects, times outside a day.
// Arrow arrays are easiest to read with their type's name.
#![allow(clippy::unwrap_used, clippy::from_iter_instead_of_collect)]

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, DurationSecondArray, FixedSizeBinaryArray, Int8Array, ListArray, PrimitiveArray,
    RecordBatch, StringArray, StructArray, Time32MillisecondArray, Time32SecondArray, Time64MicrosecondArray,
    Time64NanosecondArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use super::tests::{Pairs, fields, layout, written};
use super::{Body, Layout, RowPlan};
use crate::error::{Fault, code};

const UUID: [u8; 16] = 0x123e_4567_e89b_12d3_a456_4266_1417_4000_u128.to_be_bytes();

fn extension(name: &str, key: &str, data_type: &DataType) -> Field {
    let metadata = [("ARROW:extension:name".to_owned(), key.to_owned())];
    Field::new(name, data_type.clone(), true).with_metadata(HashMap::from(metadata))
}

/// A record batch of one column of an extension type.
fn column(key: &str, array: ArrayRef) -> RecordBatch {
    let field = extension("a", key, array.data_type());
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).unwrap()
}

/// The value of the only field of each row; `None` for a row without fields.
fn values(batch: &RecordBatch, layout: &Layout) -> Vec<Option<String>> {
    let value = |row: Result<Pairs, Fault>| String::from_utf8(row.ok()?.remove(0).1).ok();
    written(batch, layout).into_iter().map(value).collect()
}

fn json() -> Layout {
    layout(Body::Json(None))
}

fn uuids() -> FixedSizeBinaryArray {
    FixedSizeBinaryArray::try_from_sparse_iter_with_size([Some(UUID), None, Some([0; 16])].into_iter(), 16).unwrap()
}

fn list_of(element: Field, array: ArrayRef) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths([array.len()]);
    Arc::new(ListArray::new(Arc::new(element), offsets, array, None))
}

#[test]
fn a_uuid_is_written_as_text() {
    let text = |text: &str| Some(text.to_owned());
    let batch = column("arrow.uuid", Arc::new(uuids()));
    let texts = ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000"];
    assert_eq!(values(&batch, &fields(&["a"])), [text(texts[0]), None, text(texts[1])]);
    let quoted = texts.map(|value| Some(format!("{{\"a\":\"{value}\"}}")));
    assert_eq!(values(&batch, &json()), [quoted[0].clone(), text("{}"), quoted[1].clone()]);

    let element = extension("item", "arrow.uuid", &DataType::FixedSizeBinary(16));
    let batch = RecordBatch::try_from_iter([("a", list_of(element, Arc::new(uuids())))]).unwrap();
    assert_eq!(values(&batch, &json()), [text(&format!("{{\"a\":[\"{}\",null,\"{}\"]}}", texts[0], texts[1]))]);

    // With another size it is not a UUID, whatever its name says.
    let short = FixedSizeBinaryArray::try_from_iter([*b"abc"].into_iter()).unwrap();
    assert_eq!(values(&column("arrow.uuid", Arc::new(short)), &json()), [text("{\"a\":\"YWJj\"}")]);
    assert_eq!(values(&column("other", Arc::new(uuids().slice(2, 1))), &json()).len(), 1);
}

#[test]
fn a_bool8_is_a_boolean() {
    let array = Int8Array::from(vec![Some(0), Some(1), Some(-5), None]);
    let batch = column("arrow.bool8", Arc::new(array));
    let expected = ["false", "true", "true"].map(|text| Some(text.to_owned()));
    assert_eq!(values(&batch, &fields(&["a"]))[..3], expected);
    let expected = expected.map(|text| text.map(|text| format!("{{\"a\":{text}}}")));
    assert_eq!(values(&batch, &json())[..3], expected);
}

#[test]
fn other_extension_types_are_written_as_their_storage_type() {
    for key in ["arrow.json", "arrow.opaque", "geoarrow.wkt"] {
        let batch = column(key, Arc::new(StringArray::from(vec!["{\"b\":1}"])));
        assert_eq!(values(&batch, &fields(&["a"])), [Some("{\"b\":1}".to_owned())]);
        assert_eq!(values(&batch, &json()), [Some("{\"a\":\"{\\\"b\\\":1}\"}".to_owned())]);
    }
}

#[test]
fn columns_of_python_objects_are_refused_at_every_level() {
    let objects = extension("o", "polars.object", &DataType::FixedSizeBinary(8));
    let nested = Field::new("s", DataType::Struct(vec![objects.clone()].into()), true);
    let schema = Schema::new(vec![objects, nested, Field::new("n", DataType::Int32, true)]);
    let payload = layout(Body::Payload("o".into()));
    let nested = layout(Body::Json(Some(vec!["s".into()])));
    for (layout, start) in [
        (payload, "column \"o\" cannot be the payload: it holds Python objects"),
        (fields(&["o"]), "column \"o\" cannot be a field: it holds Python objects"),
        (json(), "column \"o\" cannot be in JSON: it holds Python objects"),
        (nested, "column \"s\" cannot be in JSON: \"o\" in it holds Python objects"),
    ] {
        let error = RowPlan::new(&schema, &layout, "payload", None).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
    assert!(RowPlan::new(&schema, &fields(&["n"]), "payload", None).is_ok(), "a column that is not read");
}

#[test]
fn a_time_outside_a_day_fails_its_row() {
    let arrays: [(ArrayRef, &str); 4] = [
        (Arc::new(Time32SecondArray::from(vec![Some(86_399), Some(86_400), None, Some(-1)])), "86400 s"),
        (
            Arc::new(Time32MillisecondArray::from(vec![Some(86_399_999), Some(86_400_000), None, Some(-1)])),
            "86400000 ms",
        ),
        (
            Arc::new(Time64MicrosecondArray::from(vec![Some(0), Some(i64::MAX), None, Some(i64::MIN)])),
            "9223372036854775807 us",
        ),
        (
            Arc::new(Time64NanosecondArray::from(vec![Some(1), Some(86_400_000_000_000), None, Some(-1)])),
            "86400000000000 ns",
        ),
    ];
    for (array, value) in arrays {
        let other: ArrayRef = Arc::new(Int8Array::from(vec![1, 2, 3, 4]));
        let batch = RecordBatch::try_from_iter([("t", array), ("n", other)]).unwrap();
        for layout in [fields(&["n", "t"]), json()] {
            let rows = written(&batch, &layout);
            let fault = rows[1].as_ref().unwrap_err();
            assert_eq!(fault.code, code::BAD_VALUE);
            assert_eq!(fault.message, format!("column \"t\": the time {value} is outside a day"));
            assert_eq!(rows.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false]);
            // Rows outside the slice are not checked.
            assert!(written(&batch.slice(2, 1), &layout)[0].is_ok());
        }
    }
}

#[test]
fn a_time_outside_a_day_is_found_in_nested_columns() {
    let times = || Arc::new(Time32SecondArray::from(vec![0, 86_400])) as ArrayRef;
    let field = Field::new("t", times().data_type().clone(), true);
    let keys = PrimitiveArray::<Int8Type>::from(vec![0, 1]);
    let columns: [ArrayRef; 3] = [
        Arc::new(StructArray::from(vec![(Arc::new(field.clone()), times())])),
        Arc::new(ListArray::new(Arc::new(field), OffsetBuffer::from_lengths([1, 1]), times(), None)),
        Arc::new(DictionaryArray::new(keys, times())),
    ];
    for column in columns {
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let rows = written(&batch, &json());
        assert!(rows[0].is_ok());
        assert_eq!(rows[1].as_ref().unwrap_err().message, "column \"a\": the time 86400 s is outside a day");
    }
    // A value below a null is not checked.
    let field = Arc::new(Field::new("t", times().data_type().clone(), true));
    let hidden = StructArray::new(vec![field].into(), vec![times()], Some(NullBuffer::from(vec![true, false])));
    let batch = RecordBatch::try_from_iter([("a", Arc::new(hidden) as ArrayRef)]).unwrap();
    assert!(written(&batch, &json()).iter().all(Result::is_ok));
}

#[test]
fn durations_have_the_same_text_in_fields_and_json() {
    let array: ArrayRef = Arc::new(DurationSecondArray::from(vec![90_061]));
    let batch = RecordBatch::try_from_iter([("a", array)]).unwrap();
    let text = "INTERVAL '1 01:01:01' DAY TO SECOND";
    assert_eq!(values(&batch, &fields(&["a"])), [Some(text.to_owned())]);
    assert_eq!(values(&batch, &json()), [Some(format!("{{\"a\":\"{text}\"}}"))]);
}

proptest! {
    #[test]
    fn rows_fail_exactly_where_a_time_is_outside_its_day(
        times in prop::collection::vec(prop::option::of(prop_oneof![0..86_400, any::<i32>(), Just(86_400), Just(-1)]), 1..20),
        start in any::<prop::sample::Index>(),
    ) {
        let array: ArrayRef = Arc::new(Time32SecondArray::from(times.clone()));
        let batch = RecordBatch::try_from_iter_with_nullable([("t", array, true)]).unwrap();
        let start = start.index(times.len());
        let rows = written(&batch.slice(start, times.len() - start), &json());
        for (time, row) in times[start..].iter().zip(rows) {
            let is_within = time.is_none_or(|time| (0..86_400).contains(&time));
            prop_assert_eq!(row.is_ok(), is_within);
        }
    }
}
