//! Compaction of sliced arrays: removal of the values of other rows.
//!
//! A slice shares the buffers of the whole array. `arrow-ipc` writes only the part of them that the slice uses, with two
//! exceptions: the bytes that views point to, and the values of a dictionary.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericByteViewArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use arrow_select::dictionary::garbage_collect_any_dictionary;

use crate::nested::{first, has_dictionary};

type Arrow<T> = Result<T, ArrowError>;

/// Whether a slice of this type may hold more than its rows.
pub(super) fn is_loose(data_type: &DataType) -> bool {
    let views = |part: &DataType| matches!(part, DataType::Utf8View | DataType::BinaryView);
    first(data_type, &views).is_some() || has_dictionary(data_type)
}

/// Returns the values without unused bytes. Arrays that have none are not copied.
pub(super) fn compact(array: &ArrayRef) -> Arrow<ArrayRef> {
    if !is_loose(array.data_type()) {
        return Ok(array.clone());
    }
    Ok(match array.data_type() {
        DataType::Utf8View => compact_views(array, array.as_string_view()),
        DataType::BinaryView => compact_views(array, array.as_binary_view()),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            // With fewer values than rows, the search for unused values costs more than it saves.
            let array = if dictionary.values().len() > array.len() {
                garbage_collect_any_dictionary(dictionary)?
            } else {
                array.clone()
            };
            let dictionary = array.as_any_dictionary();
            dictionary.with_values(compact(dictionary.values())?)
        }
        DataType::Struct(fields) => {
            let array = array.as_struct();
            let columns = array.columns().iter().map(compact).collect::<Arrow<_>>()?;
            Arc::new(StructArray::try_new(fields.clone(), columns, array.nulls().cloned())?)
        }
        DataType::List(field) => Arc::new(compact_list(field, array.as_list::<i32>())?),
        DataType::LargeList(field) => Arc::new(compact_list(field, array.as_list::<i64>())?),
        DataType::FixedSizeList(field, size) => {
            let list = array.as_fixed_size_list();
            let values = compact(list.values())?;
            let (nulls, rows) = (list.nulls().cloned(), list.len());
            Arc::new(FixedSizeListArray::try_new_with_length(field.clone(), *size, values, nulls, rows)?)
        }
        DataType::Map(field, ordered) => {
            let map = array.as_map();
            let (offsets, start, end) = from_zero(map.offsets());
            let entries: ArrayRef = Arc::new(map.entries().slice(start, end - start));
            let entries = compact(&entries)?.as_struct().clone();
            Arc::new(MapArray::try_new(field.clone(), offsets, entries, map.nulls().cloned(), *ordered)?)
        }
        _ => array.clone(),
    })
}

fn compact_views<T: ByteViewType>(array: &ArrayRef, views: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = views.data_buffers().iter().map(Buffer::len).sum();
    if held > views.total_buffer_bytes_used() { Arc::new(views.gc()) } else { array.clone() }
}

fn compact_list<O: OffsetSizeTrait>(field: &Arc<Field>, list: &GenericListArray<O>) -> Arrow<GenericListArray<O>> {
    let (offsets, start, end) = from_zero(list.offsets());
    let values = compact(&list.values().slice(start, end - start))?;
    GenericListArray::try_new(field.clone(), offsets, values, list.nulls().cloned())
}

/// The offsets shifted to start at zero, and the range of the values that they covered.
fn from_zero<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (OffsetBuffer<O>, usize, usize) {
    let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
    let moved: Vec<O> = offsets.iter().map(|offset| *offset - start).collect();
    (OffsetBuffer::new(moved.into()), start.as_usize(), end.as_usize())
}
