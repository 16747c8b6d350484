//! Nulls in nested columns whose type allows none.
//!
//! Not every producer holds to it, and readers refuse the whole stream, [`decode`](super::decode()) among them. (A column
//! that allows no null by itself is asked when its record batch comes in.)

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, OffsetSizeTrait, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;

/// Whether a part within this type allows no nulls.
pub(super) fn may_exclude_nulls(data_type: &DataType) -> bool {
    super::compact::first(data_type, &|part| match part {
        DataType::Struct(fields) => fields.iter().any(|field| !field.is_nullable()),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => !field.is_nullable(),
        _ => false,
    })
    .is_some()
}

/// Whether there is a null that the type excludes, and that no null around it hides.
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

/// Those that these offsets are for.
fn elements<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, all: &dyn Array) -> ArrayRef {
    let (start, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    all.slice(start, end - start)
}

fn is_excluded(is_nullable: bool, elements: &dyn Array) -> bool {
    !is_nullable && elements.null_count() > 0 || has_excluded_null(elements)
}
