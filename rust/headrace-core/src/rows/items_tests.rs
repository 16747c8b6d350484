//! Fields from a column of maps or of lists of names and values.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeListArray, Int64Array, LargeBinaryArray,
    LargeListArray, LargeStringArray, ListArray, MapArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};

use super::tests::{layout, parse_bulks};
use super::{Body, RowPlan};
use crate::error::{Fault, code};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;
type Make = fn(&[Option<&[u8]>]) -> ArrayRef;

fn entries(members: [(&str, ArrayRef); 2]) -> StructArray {
    let fields: Vec<_> =
        members.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), *name != "key")).collect();
    StructArray::new(fields.into(), members.map(|(_, array)| array).into(), None)
}

fn map(lengths: &[usize], names: ArrayRef, values: ArrayRef, nulls: Option<Vec<bool>>) -> MapArray {
    let entries = entries([("key", names), ("value", values)]);
    let field = Field::new("entries", entries.data_type().clone(), false);
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    MapArray::new(field.into(), offsets, entries, nulls.map(NullBuffer::from), false)
}

fn list(lengths: &[usize], items: StructArray) -> ListArray {
    let field = Field::new("item", items.data_type().clone(), true);
    ListArray::new(field.into(), OffsetBuffer::from_lengths(lengths.iter().copied()), Arc::new(items), None)
}

/// The fields or the fault of each row. Checks that names and values can also be written separately.
fn written(array: &dyn Array) -> Vec<Result<Fields, Fault>> {
    let batch = RecordBatch::try_from_iter_with_nullable([("f", array.slice(0, array.len()), true)]).unwrap();
    let plan = RowPlan::new(&batch.schema(), &layout(Body::FieldsFrom("f".into())), "payload", Some("ts")).unwrap();
    let rows = plan.bind(&batch).unwrap();
    assert!(rows.has_own_names() && !rows.has_payload_alone());
    let row = |row| {
        let count = rows.field_count(row)?;
        let [mut whole, mut names, mut values] = [Vec::new(), Vec::new(), Vec::new()];
        rows.write_fields(row, &mut whole, &mut Vec::new());
        rows.write_names(row, &mut names);
        rows.write_values(row, &mut values);
        let pairs: Fields = parse_bulks(&names).into_iter().zip(parse_bulks(&values)).collect();
        let bulks = parse_bulks(&whole);
        assert_eq!((pairs.len(), bulks.len()), (count, 2 * count));
        assert!(bulks.chunks(2).zip(&pairs).all(|(pair, (name, value))| pair == [name.clone(), value.clone()]));
        Ok(pairs)
    };
    (0..rows.len()).map(row).collect()
}

#[allow(clippy::unnecessary_wraps)] // compared with the results of rows
fn pairs<const N: usize>(pairs: [(&[u8], &[u8]); N]) -> Result<Fields, Fault> {
    Ok(pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}

fn empty(why: &str) -> Result<Fields, Fault> {
    Err(Fault::new(code::EMPTY, format!("column \"f\": {why}")))
}

#[test]
fn items_become_fields_in_order_whatever_their_bytes() {
    let names = [&b"b"[..], b"\0\r\n\xff", b"", b"b", b"last"].map(Some);
    let values = [&b"1"[..], b"", b"\xfe*1\r\n", b"2", &[b'x'; 5_000]].map(Some);
    let of: [Make; 3] = [
        |bytes| Arc::new(bytes.iter().copied().collect::<BinaryArray>()),
        |bytes| Arc::new(bytes.iter().copied().collect::<LargeBinaryArray>()),
        |bytes| Arc::new(bytes.iter().copied().collect::<BinaryViewArray>()),
    ];
    for (name_of, value_of) in of.iter().zip(of.iter().cycle().skip(1)) {
        let [names, values] = [name_of(&names), value_of(&values)];
        let items = entries([("name", Arc::clone(&names)), ("value", Arc::clone(&values))]);
        let reversed = entries([("value", Arc::clone(&values)), ("name", Arc::clone(&names))]);
        let large = {
            let field = Arc::new(Field::new("item", items.data_type().clone(), true));
            LargeListArray::new(field, OffsetBuffer::from_lengths([2, 3]), Arc::new(items.clone()), None)
        };
        let arrays: [ArrayRef; 4] = [
            Arc::new(map(&[2, 3], names, values, None)),
            Arc::new(list(&[2, 3], items)),
            Arc::new(list(&[2, 3], reversed)),
            Arc::new(large),
        ];
        for array in arrays {
            let first = pairs([(b"b", b"1"), (b"\0\r\n\xff", b"")]);
            let second = pairs([(b"", b"\xfe*1\r\n"), (b"b", b"2"), (b"last", &[b'x'; 5_000])]);
            assert_eq!(written(&*array), [first, second.clone()]);
            assert_eq!(written(&*array.slice(1, 1)), [second]);
        }
    }
}

#[test]
fn names_and_values_may_be_text_of_every_kind() {
    let words = ["a", "ä", "a name that fills a view"];
    let arrays: [ArrayRef; 4] = [
        Arc::new(StringArray::from_iter_values(words)),
        Arc::new(LargeStringArray::from_iter_values(words)),
        Arc::new(StringViewArray::from_iter_values(words)),
        Arc::new(words.into_iter().collect::<DictionaryArray<Int32Type>>()),
    ];
    for array in arrays {
        let [a, b, c] = words.map(str::as_bytes);
        let expected = [pairs([(a, a)]), pairs([(b, b), (c, c)])];
        assert_eq!(written(&map(&[1, 2], Arc::clone(&array), array, None)), expected);
    }
}

#[test]
fn a_fixed_size_list_has_the_same_number_of_fields_in_each_row() {
    let words: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d"]));
    let items = entries([("name", Arc::clone(&words)), ("value", words)]);
    let field = Arc::new(Field::new("item", items.data_type().clone(), true));
    let list = FixedSizeListArray::new(field, 2, Arc::new(items), None);
    assert_eq!(written(&list), [pairs([(b"a", b"a"), (b"b", b"b")]), pairs([(b"c", b"c"), (b"d", b"d")])]);
}

#[test]
fn null_values_are_left_out_and_a_row_without_fields_fails() {
    let names: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d", "e"]));
    let values: ArrayRef = Arc::new(StringArray::from(vec![None, Some("1"), None, Some("2"), Some("3")]));
    // The item of the null row has no meaning.
    let nulls = Some(vec![true, true, true, false, true]);
    let rows = written(&map(&[2, 0, 1, 1, 1], names, values, nulls));
    assert_eq!(rows[0], pairs([(b"b", b"1")]));
    assert_eq!(rows[1], empty("the row has no fields"));
    assert_eq!(rows[2], empty("every field of the row is null"));
    assert_eq!(rows[3], empty("the fields of the row are null"));
    assert_eq!(rows[4], pairs([(b"e", b"3")]));
}

#[test]
fn a_field_without_a_name_fails_its_row() {
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, None, Some("b")]));
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("1"), Some("2"), None, Some("3")]));
    let rows = written(&list(&[2, 2], entries([("name", names), ("value", values)])));
    let message = "column \"f\": the name of a field is null, but its value is not";
    assert_eq!(rows, [Err(Fault::new(code::BAD_VALUE, message)), pairs([(b"b", b"3")])]);
}

#[test]
fn a_null_item_of_a_list_is_left_out() {
    let words: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "hidden", "b"]));
    let (fields, members, _) = entries([("name", Arc::clone(&words)), ("value", words)]).into_parts();
    let items = StructArray::new(fields, members, Some(vec![true, false, true].into()));
    assert_eq!(written(&list(&[2, 1], items)), [pairs([(b"a", b"a")]), pairs([(b"b", b"b")])]);
}

#[test]
fn other_types_are_refused_with_the_supported_types() {
    let ints: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let named = |first: &str, second: &str| {
        list(&[1], entries([(first, Arc::clone(&words)), (second, Arc::clone(&words))])).data_type().clone()
    };
    let refused = |data_type: DataType| {
        let schema = Schema::new(vec![Field::new("f", data_type, true)]);
        RowPlan::new(&schema, &layout(Body::FieldsFrom("f".into())), "payload", None).unwrap_err().to_string()
    };
    let allowed = "which cannot be written (supported: map, or a list of struct<name, value>, whose names and values are utf8 \
                   or binary of every kind)";
    let start = "column \"f\" cannot hold the fields of entries: it has the type ";
    for other in [
        DataType::Int64,
        DataType::Utf8,
        DataType::Null,
        DataType::new_list(DataType::Utf8, true),
        named("key", "value"),
        entries([("name", Arc::clone(&words)), ("value", Arc::clone(&words))]).data_type().clone(),
    ] {
        let message = refused(other);
        assert!(message.starts_with(start) && message.ends_with(allowed), "{message}");
    }
    let of_numbers = map(&[1], Arc::clone(&words), Arc::clone(&ints), None).data_type().clone();
    assert_eq!(
        refused(of_numbers),
        "column \"f\" cannot hold the fields of entries: \"value\" in it has the type Int64, which cannot be written \
         (supported: utf8, large_utf8, utf8_view, binary, large_binary, binary_view)"
    );
    let named_by_numbers = map(&[1], ints, words, None).data_type().clone();
    assert!(refused(named_by_numbers).contains("\"key\" in it has the type Int64"));
}
