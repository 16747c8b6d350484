//! Detection of nulls in nested columns whose type does not allow them.
//!
//! Not every producer respects the type, and readers such as [`decode`](super::decode()) refuse the whole stream. (For a
//! top-level column, the import of the record batch has already checked this.)

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, OffsetSizeTrait, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;

use crate::nested::first;

/// Whether a part of this type does not allow nulls.
pub(super) fn excludes_nulls(data_type: &DataType) -> bool {
    first(data_type, &|part| match part {
        DataType::Struct(fields) => fields.iter().any(|field| !field.is_nullable()),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => !field.is_nullable(),
        _ => false,
    })
    .is_some()
}

/// Whether there is a null that the type excludes and that is not itself below a null.
pub(super) fn has_excluded_null(array: &dyn Array) -> bool {
    match array.data_type() {
        DataType::Struct(fields) => {
            let array = array.as_struct();
            let (columns, nulls) = (array.columns().to_vec(), array.nulls().cloned());
            StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len()).is_err()
                || array.columns().iter().any(|column| has_excluded_null(column))
        }
        DataType::List(field) => {
            let array = array.as_list::<i32>();
            is_excluded(field.is_nullable(), &*elements(array.offsets(), array.values()))
        }
        DataType::LargeList(field) => {
            let array = array.as_list::<i64>();
            is_excluded(field.is_nullable(), &*elements(array.offsets(), array.values()))
        }
        DataType::FixedSizeList(field, size) => {
            let array = array.as_fixed_size_list();
            let (values, nulls) = (array.values().clone(), array.nulls().cloned());
            FixedSizeListArray::try_new_with_length(field.clone(), *size, values, nulls, array.len()).is_err()
                || has_excluded_null(array.values())
        }
        DataType::Map(..) => {
            let array = array.as_map();
            has_excluded_null(&*elements(array.offsets(), array.entries()))
        }
        _ => false,
    }
}

/// The elements that these offsets cover.
fn elements<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, all: &dyn Array) -> ArrayRef {
    let (start, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    all.slice(start, end - start)
}

fn is_excluded(is_nullable: bool, elements: &dyn Array) -> bool {
    !is_nullable && elements.null_count() > 0 || has_excluded_null(elements)
}
