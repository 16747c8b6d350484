//! Replacement of invalid UTF-8 in text columns by U+FFFD.
//!
//! Arrow IPC requires text to be UTF-8, and not every producer checks it. If invalid text were written unchanged, some readers
//! would refuse the whole entry, and others would misread it. One invalid text is no reason to refuse the other rows, so it is
//! replaced, as in JSON.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{GenericStringBuilder, StringViewBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, GenericStringArray, MapArray, OffsetSizeTrait,
    StringViewArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field};

use crate::nested::first;
use crate::utf8;

type Arrow<T> = Result<T, ArrowError>;

/// Whether this type is or contains text.
pub(super) fn has_text(data_type: &DataType) -> bool {
    first(data_type, &|part| matches!(part, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)).is_some()
}

/// Whether all text in these rows is UTF-8, including the values of null rows.
pub(super) fn is_clean(array: &dyn Array, rows: Range<usize>) -> bool {
    match array.data_type() {
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            utf8::are_texts(&array.value_offsets()[rows.start..=rows.end], array.values())
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            utf8::are_texts(&array.value_offsets()[rows.start..=rows.end], array.values())
        }
        DataType::Utf8View => {
            let array = array.as_string_view();
            utf8::are_texts_of_views(&array.views()[rows], array.data_buffers())
        }
        DataType::Dictionary(..) => {
            let values = array.as_any_dictionary().values();
            is_clean(values, 0..values.len())
        }
        DataType::Struct(_) => array.as_struct().columns().iter().all(|column| is_clean(column, rows.clone())),
        DataType::List(_) => {
            let array = array.as_list::<i32>();
            is_clean(array.values(), span(array.offsets(), &rows))
        }
        DataType::LargeList(_) => {
            let array = array.as_list::<i64>();
            is_clean(array.values(), span(array.offsets(), &rows))
        }
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or_default();
            is_clean(array.as_fixed_size_list().values(), rows.start * size..rows.end * size)
        }
        DataType::Map(..) => {
            let array = array.as_map();
            is_clean(array.entries(), span(array.offsets(), &rows))
        }
        _ => true,
    }
}

/// Returns the values with valid text.
pub(super) fn clean(array: &ArrayRef) -> Arrow<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8 => Arc::new(cleaned(array.as_string::<i32>())),
        DataType::LargeUtf8 => Arc::new(cleaned(array.as_string::<i64>())),
        DataType::Utf8View => Arc::new(cleaned_views(array.as_string_view())),
        DataType::Dictionary(..) => {
            let array = array.as_any_dictionary();
            array.with_values(clean(array.values())?)
        }
        DataType::Struct(fields) => {
            let array = array.as_struct();
            let columns = array.columns().iter().map(clean).collect::<Arrow<_>>()?;
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())?)
        }
        DataType::List(field) => Arc::new(clean_list(field, array.as_list::<i32>())?),
        DataType::LargeList(field) => Arc::new(clean_list(field, array.as_list::<i64>())?),
        DataType::FixedSizeList(field, size) => {
            let list = array.as_fixed_size_list();
            let (values, nulls) = (clean(list.values())?, list.nulls().cloned());
            Arc::new(FixedSizeListArray::try_new_with_length(field.clone(), *size, values, nulls, list.len())?)
        }
        DataType::Map(field, ordered) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let (entries, nulls) = (clean(&entries)?.as_struct().clone(), map.nulls().cloned());
            Arc::new(MapArray::try_new(field.clone(), map.offsets().clone(), entries, nulls, *ordered)?)
        }
        _ => array.clone(),
    })
}

fn clean_list<O: OffsetSizeTrait>(field: &Arc<Field>, list: &GenericListArray<O>) -> Arrow<GenericListArray<O>> {
    let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
    GenericListArray::try_new(field.clone(), offsets, clean(list.values())?, nulls)
}

fn cleaned<O: OffsetSizeTrait>(array: &GenericStringArray<O>) -> GenericStringArray<O> {
    let mut texts = GenericStringBuilder::with_capacity(array.len(), array.values().len());
    let offsets = array.value_offsets();
    for row in 0..array.len() {
        let bytes = &array.values()[offsets[row].as_usize()..offsets[row + 1].as_usize()];
        texts.append_option(array.is_valid(row).then(|| utf8::to_valid(bytes)));
    }
    texts.finish()
}

fn cleaned_views(array: &StringViewArray) -> StringViewArray {
    let mut texts = StringViewBuilder::with_capacity(array.len());
    // As binary, because the values may not be read as `str` before they are validated.
    let bytes = array.clone().to_binary_view();
    for row in 0..array.len() {
        texts.append_option(array.is_valid(row).then(|| utf8::to_valid(bytes.value(row))));
    }
    texts.finish()
}

fn span<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, rows: &Range<usize>) -> Range<usize> {
    offsets[rows.start].as_usize()..offsets[rows.end].as_usize()
}
