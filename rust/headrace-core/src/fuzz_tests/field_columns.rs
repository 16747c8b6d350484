//! Columns that hold all fields of an entry, for `fields_from`: Arrow maps and lists, in several layouts.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray, LargeListArray, ListArray, MapArray, RecordBatch,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::Field;

use super::chance::Chance;

/// A name and a value; a field without a value is left out.
pub type Item = (Vec<u8>, Option<Vec<u8>>);

/// A record batch whose column `fields` has these rows; `None` is a null row. The column is sometimes a slice.
pub fn batch(rows: &[Option<Vec<Item>>], chance: &mut Chance) -> RecordBatch {
    let hidden = (b"hidden".to_vec(), Some(b"below a null".to_vec()));
    let before = chance.below(3);
    let all = std::iter::repeat_n(&None, before).chain(rows);
    // The content of a null row is meaningless.
    let all: Vec<_> =
        all.map(|row| (row.is_some(), row.clone().unwrap_or_else(|| vec![hidden.clone(); before]))).collect();
    let nulls: Option<NullBuffer> = Some(all.iter().map(|(is_there, _)| *is_there).collect());
    let lengths = || all.iter().map(|(_, items)| items.len());
    let items: Vec<_> = all.iter().flat_map(|(_, items)| items).collect();
    let values = bytes(items.iter().map(|(_, value)| value.as_deref()), chance);
    let names = bytes(items.iter().map(|(name, _)| Some(&**name)), chance);
    let kind = chance.below(3);
    let array: ArrayRef = if kind == 0 {
        let entries = items_of([("key", names), ("value", values)], None);
        let field = Field::new("entries", entries.data_type().clone(), false);
        let offsets = OffsetBuffer::from_lengths(lengths());
        Arc::new(MapArray::new(field.into(), offsets, entries, nulls, false))
    } else {
        // An item of a list may itself be null.
        let there = items.iter().map(|(_, value)| value.is_some() || chance.one_in(2)).collect();
        let mut members = [("name", names), ("value", values)];
        if chance.one_in(2) {
            members.reverse();
        }
        let items: ArrayRef = Arc::new(items_of(members, Some(there)));
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        if kind == 1 {
            Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths()), items, nulls))
        } else {
            Arc::new(LargeListArray::new(field, OffsetBuffer::from_lengths(lengths()), items, nulls))
        }
    };
    let batch = RecordBatch::try_from_iter_with_nullable([("fields", array, true)]).unwrap();
    batch.slice(before, rows.len())
}

fn items_of(members: [(&str, ArrayRef); 2], nulls: Option<NullBuffer>) -> StructArray {
    let fields: Vec<_> = members
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), !["key", "name"].contains(name)))
        .collect();
    StructArray::new(fields.into(), members.map(|(_, array)| array).into(), nulls)
}

fn bytes<'a>(values: impl Iterator<Item = Option<&'a [u8]>>, chance: &mut Chance) -> ArrayRef {
    match chance.below(3) {
        0 => Arc::new(values.collect::<BinaryArray>()),
        1 => Arc::new(values.collect::<LargeBinaryArray>()),
        _ => Arc::new(values.collect::<BinaryViewArray>()),
    }
}
