//! Cuts out of a sliced array what belongs to other rows.
//!
//! A slice shares the buffers of the whole. `arrow-ipc` writes only the part of them that the slice uses, but for two:
//! the bytes that views point to, and the values of a dictionary.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, ByteViewType};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, GenericByteViewArray, GenericListArray, MapArray,
    OffsetSizeTrait, PrimitiveArray, StructArray, downcast_dictionary_array,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use arrow_select::dictionary::garbage_collect_any_dictionary;

use crate::error::{Error, Result};

/// The deepest type that is written, in levels. Those who write and read the format follow types on the stack: `arrow-array`
/// with 2 KiB a level.
const MAX_DEPTH: usize = 32;

type Arrow<T> = std::result::Result<T, ArrowError>;

/// Refuses the types whose slices cannot be cut out, and what the format has no place for.
pub(super) fn check_type(field: &Field) -> Result<()> {
    if depth(field.data_type()) > MAX_DEPTH {
        return Err(Error::schema(format!(
            "column {:?} cannot be written as Arrow IPC: it is nested deeper than {MAX_DEPTH} levels, which is the most that \
             is written",
            field.name()
        )));
    }
    match first(field.data_type(), &|data_type| match data_type {
        DataType::ListView(_) | DataType::LargeListView(_) | DataType::Union(..) | DataType::RunEndEncoded(..) => true,
        DataType::Dictionary(_, values) => matches!(**values, DataType::Dictionary(..)),
        _ => false,
    }) {
        None => Ok(()),
        Some(refused) => Err(Error::schema(format!(
            "column {:?} cannot be written as Arrow IPC: its type is or has {refused} (list views, unions, run-end \
             encoding and dictionaries of dictionaries are not supported)",
            field.name()
        ))),
    }
}

/// How many levels a type has: one of numbers has one.
fn depth(data_type: &DataType) -> usize {
    let below = match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => depth(field.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| depth(field.data_type())).max().unwrap_or(0),
        DataType::Dictionary(_, values) => depth(values),
        _ => 0,
    };
    1 + below
}

/// Whether a slice of this type may hold more than its rows.
pub(super) fn is_loose(data_type: &DataType) -> bool {
    let views = |part: &DataType| matches!(part, DataType::Utf8View | DataType::BinaryView);
    first(data_type, &views).is_some() || has_dictionary(data_type)
}

/// Whether there is a dictionary in this type.
pub(super) fn has_dictionary(data_type: &DataType) -> bool {
    first(data_type, &|part| matches!(part, DataType::Dictionary(..))).is_some()
}

/// The first part of a type, itself included, of which this holds.
pub(super) fn first<'a>(data_type: &'a DataType, holds: &dyn Fn(&DataType) -> bool) -> Option<&'a DataType> {
    if holds(data_type) {
        return Some(data_type);
    }
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => first(field.data_type(), holds),
        DataType::Struct(fields) => fields.iter().find_map(|field| first(field.data_type(), holds)),
        DataType::Union(fields, _) => fields.iter().find_map(|(_, field)| first(field.data_type(), holds)),
        DataType::Dictionary(_, values) => first(values, holds),
        _ => None,
    }
}

/// The same values, with no more bytes than they need. What is tight already is not copied.
pub(super) fn compact(array: &ArrayRef) -> Arrow<ArrayRef> {
    if !is_loose(array.data_type()) {
        return Ok(array.clone());
    }
    Ok(match array.data_type() {
        DataType::Utf8View => compact_views(array, array.as_string_view()),
        DataType::BinaryView => compact_views(array, array.as_binary_view()),
        DataType::Dictionary(..) => {
            let array = &without_wild_keys(array)?;
            let dictionary = array.as_any_dictionary();
            // One that has fewer values than rows is not worth the search for those that are not used.
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

/// The same dictionary with null in the place of keys that its values do not have.
///
/// pyarrow makes such keys where a null struct, or list, hides them: 0 where there are no values. Keys that nothing hides
/// are refused when the record batch comes in. A reader may demand of all of them that they are within the values, as
/// [`decode`](super::decode()) does, and only nulls are excepted.
fn without_wild_keys(array: &ArrayRef) -> Arrow<ArrayRef> {
    Ok(downcast_dictionary_array!(
        array => keys_within(array)?.unwrap_or_else(|| Arc::new(array.clone())),
        _ => array.clone()
    ))
}

/// `None` if all keys are.
fn keys_within<K: ArrowDictionaryKeyType>(dictionary: &DictionaryArray<K>) -> Arrow<Option<ArrayRef>> {
    let (keys, count) = (dictionary.keys(), dictionary.values().len());
    let is_within = |key: K::Native| key.to_usize().is_some_and(|key| key < count);
    if keys.values().iter().all(|key| is_within(*key)) {
        return Ok(None);
    }
    let kept = BooleanBuffer::collect_bool(keys.len(), |row| is_within(keys.value(row)));
    // What nulls hide has no meaning, and zero is within for most.
    let numbers = keys.values().iter().map(|key| if is_within(*key) { *key } else { K::Native::default() });
    let nulls = NullBuffer::union(keys.nulls(), Some(&NullBuffer::new(kept)));
    let keys = PrimitiveArray::<K>::try_new(numbers.collect(), nulls)?;
    Ok(Some(Arc::new(DictionaryArray::try_new(keys, dictionary.values().clone())?)))
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

/// Offsets that start at zero, and the span of the values that they were for.
fn from_zero<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (OffsetBuffer<O>, usize, usize) {
    let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
    let moved: Vec<O> = offsets.iter().map(|offset| *offset - start).collect();
    (OffsetBuffer::new(moved.into()), start.as_usize(), end.as_usize())
}
