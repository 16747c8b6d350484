//! Arrow's own arrays, exported over the C interface and imported again. The laboratory `fuzz arrow` does this with arbitrary
//! structures.
#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Int32Builder, ListBuilder, StringViewBuilder};
use arrow_array::ffi::FFI_ArrowArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Int64Array, NullArray, RecordBatch, RecordBatchIterator,
    StringArray, StructArray,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field};

use super::{MAX_DEPTH, Reader};
use crate::error::{Error, Result};

const ROWS: usize = 20;

/// Columns of `ROWS` rows, with nulls: a struct in a struct, lists of three kinds, a dictionary, views, bits.
fn columns() -> RecordBatch {
    let numbers: Int64Array = (0..ROWS as i64).map(|row| (row % 5 > 0).then_some(row)).collect();
    let texts: StringArray = (0..ROWS).map(|row| (row % 3 > 0).then(|| format!("text {row}"))).collect();
    let inner = StructArray::from(vec![
        (Arc::new(Field::new("number", DataType::Int64, true)), Arc::new(numbers) as ArrayRef),
        (Arc::new(Field::new("text", DataType::Utf8, true)), Arc::new(texts.clone()) as ArrayRef),
    ]);
    let inner_type = inner.data_type().clone();
    let outer = StructArray::from(vec![(Arc::new(Field::new("inner", inner_type, true)), Arc::new(inner) as ArrayRef)]);
    let mut lists = ListBuilder::new(StringViewBuilder::new());
    let mut pairs = FixedSizeListBuilder::new(Int32Builder::new(), 2);
    for row in 0..ROWS {
        lists.append_option((row % 4 > 0).then(|| (0..row % 3).map(|n| Some(format!("an element beyond a view {n}")))));
        pairs.values().append_slice(&[row as i32, -1]);
        pairs.append(row % 6 > 0);
    }
    let dictionary: DictionaryArray<Int8Type> = texts.iter().collect();
    RecordBatch::try_from_iter_with_nullable([
        ("outer", Arc::new(outer) as ArrayRef, true),
        ("lists", Arc::new(lists.finish()), true),
        ("pairs", Arc::new(pairs.finish()), true),
        ("dictionary", Arc::new(dictionary), true),
        ("bits", Arc::new((0..ROWS).map(|row| (row % 7 > 0).then_some(row % 2 == 0)).collect::<BooleanArray>()), true),
        ("nulls", Arc::new(NullArray::new(ROWS)), true),
    ])
    .unwrap()
}

fn pointer<T>(structure: &mut T) -> NonNull<c_void> {
    NonNull::from(structure).cast()
}

fn of_array(schema: &mut FFI_ArrowSchema, array: &mut FFI_ArrowArray) -> Result<Reader> {
    // SAFETY: arrow made both structures.
    unsafe { Reader::from_array(pointer(schema), pointer(array)) }
}

fn of_stream(stream: &mut FFI_ArrowArrayStream) -> Result<Reader> {
    // SAFETY: arrow made the structure.
    unsafe { Reader::from_stream(pointer(stream)) }
}

/// A stream of these record batches.
fn stream(batches: Vec<std::result::Result<RecordBatch, ArrowError>>, batch: &RecordBatch) -> FFI_ArrowArrayStream {
    FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(batches, batch.schema())))
}

#[test]
fn record_batches_of_a_stream_are_imported_unchanged_including_slices_of_slices() {
    let whole = columns();
    let slices = vec![whole.clone(), whole.slice(1, ROWS - 1), whole.slice(3, 12).slice(2, 7), whole.slice(5, 0)];
    let mut stream = stream(slices.iter().cloned().map(Ok).collect(), &whole);
    let reader = of_stream(&mut stream).unwrap();
    assert_eq!(reader.schema(), &whole.schema());
    assert_eq!(reader.collect::<Result<Vec<_>>>().unwrap(), slices);
    assert!(matches!(of_stream(&mut stream), Err(Error::Schema { message }) if message.contains("was read before")));
}

#[test]
fn an_array_can_be_read_only_once() {
    let batch = columns().slice(2, 9);
    let data = StructArray::from(batch.clone()).into_data();
    let mut schema = FFI_ArrowSchema::try_from(batch.schema().as_ref()).unwrap();
    let mut array = FFI_ArrowArray::new(&data);
    assert_eq!(of_array(&mut schema, &mut array).unwrap().collect::<Result<Vec<_>>>().unwrap(), [batch]);
    assert!(array.is_released());
    assert!(
        matches!(of_array(&mut schema, &mut array), Err(Error::Schema { message }) if message.contains("was read before"))
    );
}

#[test]
fn columns_that_are_not_read_are_null() {
    let batch = columns();
    let mut stream = stream(vec![Ok(batch.clone())], &batch);
    let mut reader = of_stream(&mut stream).unwrap();
    reader.read_only(&[3]);
    let read = reader.next().unwrap().unwrap();
    assert_eq!((read.column(3), read.num_rows()), (batch.column(3), ROWS));
    assert!((0..6).filter(|column| *column != 3).all(|column| *read.column(column).data_type() == DataType::Null));
}

#[test]
fn a_stream_ends_after_an_error() {
    let batch = columns();
    let error = ArrowError::ComputeError("the disk is gone".to_owned());
    let mut stream = stream(vec![Ok(batch.clone()), Err(error), Ok(batch.clone())], &batch);
    let mut reader = of_stream(&mut stream).unwrap();
    assert_eq!(reader.next(), Some(Ok(batch)));
    assert!(matches!(reader.next(), Some(Err(Error::Reader { message })) if message.contains("the disk is gone")));
    assert_eq!(reader.next(), None);
}

#[test]
fn types_up_to_the_depth_limit_are_read() {
    let nested = |levels| {
        let mut column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        for _ in 1..levels {
            let field = Arc::new(Field::new("a", column.data_type().clone(), true));
            column = Arc::new(StructArray::from(vec![(field, column)]));
        }
        RecordBatch::try_from_iter([("deep", column)]).unwrap()
    };
    let deepest = nested(MAX_DEPTH);
    let mut of_deepest = stream(vec![Ok(deepest.slice(1, 2))], &deepest);
    assert_eq!(of_stream(&mut of_deepest).unwrap().next(), Some(Ok(deepest.slice(1, 2))));
    let deeper = nested(MAX_DEPTH + 1);
    let refused = of_stream(&mut stream(vec![Ok(deeper.clone())], &deeper));
    assert!(matches!(refused, Err(Error::Schema { message })
        if message == "the Arrow schema is invalid: column \"deep\" is nested deeper than 64 levels, the most that is read"));
}
