//! Import of one column, a tree of arrays: the buffers and children of each are checked against its type.

#![allow(unsafe_code)]

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, DictionaryArray, FixedSizeListArray, GenericListArray, MapArray, NullArray, OffsetSizeTrait,
    PrimitiveArray, StructArray, make_array, new_empty_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef, Fields};

use super::Invalid;
use super::abi::CArray;
use super::content::{self, Offset};
use crate::nested::has_dictionary;

type Checked<T> = Result<T, Invalid>;

/// An array, its type, and the owner of its buffers.
struct Node<'a> {
    array: &'a CArray,
    data_type: &'a DataType,
    owner: &'a Arc<CArray>,
    /// The node's rows, as positions in its buffers.
    rows: Range<usize>,
    /// Which rows are visible; `None`: all. The others are below a null and have no meaning.
    visible: Option<NullBuffer>,
    /// The name of the field; `None` for the column itself and for a dictionary.
    name: Option<&'a str>,
    /// The index of the parent in the list of all nodes.
    parent: usize,
}

/// An expanded node: its children, and how to build its array from theirs.
struct Part<'a> {
    children: Vec<Node<'a>>,
    assemble: Box<dyn FnOnce(Vec<ArrayRef>) -> Option<ArrayRef> + 'a>,
}

impl Part<'_> {
    fn of_leaf(array: ArrayRef) -> Self {
        Self { children: Vec::new(), assemble: Box::new(move |_| Some(array)) }
    }
}

/// Imports the rows `rows` of an array, which must have this type.
///
/// Parents are checked before their children and assembled after them. Lists replace recursion: 64 levels would not fit on a
/// stack of 128 KiB, least of all with arrow's `make_array`.
pub(super) fn import(
    array: &CArray,
    data_type: &DataType,
    rows: Range<usize>,
    owner: &Arc<CArray>,
) -> Checked<ArrayRef> {
    let mut nodes = vec![Node::new(array, data_type, owner, rows, None)?];
    let mut parts = Vec::with_capacity(1);
    while let Some(node) = nodes.get(parts.len()) {
        let (place, before) = (parts.len(), nodes.len());
        let Part { children, assemble } = node.expand().map_err(|invalid| within(&nodes, place, invalid))?;
        nodes.extend(children.into_iter().map(|child| Node { parent: place, ..child }));
        parts.push((assemble, before..nodes.len()));
    }
    let mut arrays: Vec<Option<ArrayRef>> = vec![None; parts.len()];
    for (place, (assemble, below)) in parts.into_iter().enumerate().rev() {
        arrays[place] = assemble(arrays[below].iter_mut().filter_map(Option::take).collect());
    }
    arrays.swap_remove(0).ok_or_else(|| Invalid::new("is missing"))
}

/// Adds the names of the fields that lead to the node.
fn within(nodes: &[Node<'_>], mut place: usize, mut invalid: Invalid) -> Invalid {
    while place > 0 {
        if let Some(name) = nodes[place].name {
            invalid = invalid.within(name);
        }
        place = nodes[place].parent;
    }
    invalid
}

impl<'a> Node<'a> {
    fn new(
        array: &'a CArray,
        data_type: &'a DataType,
        owner: &'a Arc<CArray>,
        rows: Range<usize>,
        visible: Option<NullBuffer>,
    ) -> Checked<Self> {
        let Some((length, offset)) = array.length_and_offset() else {
            return Err(Invalid::of_type(data_type, "has a negative length or offset"));
        };
        if rows.end > length {
            let reason = format!("has {length} rows where {} are needed", rows.end);
            return Err(Invalid::of_type(data_type, &reason));
        }
        let rows = offset + rows.start..offset + rows.end;
        Ok(Self { array, data_type, owner, rows, visible, name: None, parent: 0 })
    }

    /// Checks the array and splits it into its children and its own part.
    fn expand(&self) -> Checked<Part<'a>> {
        self.check_counts()?;
        if self.rows.is_empty() {
            return Ok(Part::of_leaf(new_empty_array(self.data_type)));
        }
        let whole = match self.data_type {
            DataType::List(element) => return self.expand_list::<i32>(element),
            DataType::LargeList(element) => return self.expand_list::<i64>(element),
            DataType::Map(entry, is_sorted) => return self.expand_map(entry, *is_sorted),
            DataType::FixedSizeList(element, size) => return self.expand_fixed_list(element, *size),
            DataType::Struct(fields) => return self.expand_struct(fields),
            DataType::Dictionary(keys, values) => {
                return match **keys {
                    DataType::Int8 => self.expand_dictionary::<Int8Type>(values),
                    DataType::Int16 => self.expand_dictionary::<Int16Type>(values),
                    DataType::Int32 => self.expand_dictionary::<Int32Type>(values),
                    DataType::Int64 => self.expand_dictionary::<Int64Type>(values),
                    DataType::UInt8 => self.expand_dictionary::<UInt8Type>(values),
                    DataType::UInt16 => self.expand_dictionary::<UInt16Type>(values),
                    DataType::UInt32 => self.expand_dictionary::<UInt32Type>(values),
                    _ => self.expand_dictionary::<UInt64Type>(values),
                };
            }
            DataType::Null => Ok(Arc::new(NullArray::new(self.rows.len())) as ArrayRef),
            DataType::Boolean => self.import_booleans(),
            DataType::Utf8 | DataType::Binary => self.import_bytes::<i32>(),
            DataType::LargeUtf8 | DataType::LargeBinary => self.import_bytes::<i64>(),
            DataType::Utf8View | DataType::BinaryView => self.import_views(),
            DataType::FixedSizeBinary(size) => self.import_fixed(usize::try_from(*size).unwrap_or(0)),
            other => match other.primitive_width() {
                Some(width) => self.import_fixed(width),
                None => Err(Invalid::new(format!("has the type {other}, which is not supported"))),
            },
        };
        whole.map(Part::of_leaf)
    }

    /// Refuses an array whose numbers of buffers and children are not those of its type.
    fn check_counts(&self) -> Checked<()> {
        let (buffers, children) = match self.data_type {
            // polars exports one empty buffer (pola-rs/polars#22934).
            DataType::Null => (0..=1, 0),
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => (3..=3, 0),
            DataType::Utf8View | DataType::BinaryView => (3..=usize::MAX, 0),
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => (2..=2, 1),
            DataType::FixedSizeList(..) => (1..=1, 1),
            DataType::Struct(fields) => (1..=1, fields.len()),
            _ => (2..=2, 0),
        };
        // For a view column without rows, polars omits the buffer with the sizes.
        let count =
            |count: Option<usize>| count.map_or_else(|| "a wrong number of".to_owned(), |count| count.to_string());
        let found = self.array.buffer_count();
        if !found.is_some_and(|found| buffers.contains(&found) || self.rows.is_empty()) {
            let reason = format!("has {} buffers, where this type has {}", count(found), buffers.start());
            return Err(self.refused(&reason));
        }
        let found = self.array.child_count();
        if found != Some(children) {
            return Err(self.refused(&format!("has {} children, where this type has {children}", count(found))));
        }
        match (self.array.dictionary().is_some(), self.data_type) {
            (true, DataType::Dictionary(..)) => Ok(()),
            (false, DataType::Dictionary(..)) => Err(self.refused("has no dictionary")),
            (true, _) => Err(self.refused("has a dictionary")),
            (false, _) => Ok(()),
        }
    }

    /// The null rows.
    fn nulls(&self) -> Checked<Option<NullBuffer>> {
        if self.array.null_count() == Some(0) {
            return Ok(None);
        }
        match self.array.buffer(0, self.rows.end.div_ceil(8), self.owner) {
            Some(bits) => {
                let nulls = NullBuffer::new(BooleanBuffer::new(bits, self.rows.start, self.rows.len()));
                Ok(Some(nulls).filter(|nulls| nulls.null_count() > 0))
            }
            None if self.array.null_count().is_none() => Ok(None),
            None => Err(self.refused("counts nulls but has no validity buffer")),
        }
    }

    /// The part of the buffer at `index` that holds these elements, each `width` bytes wide.
    fn values(&self, index: usize, elements: Range<usize>, width: usize) -> Checked<Buffer> {
        let bytes = elements.end.checked_mul(width).ok_or_else(|| self.refused("has more bytes than possible"))?;
        let Some(buffer) = self.array.buffer(index, bytes, self.owner) else {
            return if bytes == 0 { Ok(MutableBuffer::new(0).into()) } else { Err(self.refused("lacks a buffer")) };
        };
        let start = elements.start * width;
        Ok(buffer.slice_with_length(start, bytes - start))
    }

    /// The offsets of the rows: one more than rows.
    fn offsets<O: Offset>(&self) -> Checked<ScalarBuffer<O>> {
        let buffer = self.values(1, self.rows.start..self.rows.end + 1, size_of::<O>())?;
        Ok(aligned(buffer, align_of::<O>()).into())
    }

    fn import_booleans(&self) -> Checked<ArrayRef> {
        let nulls = self.nulls()?;
        let bits =
            BooleanBuffer::new(self.values(1, 0..self.rows.end.div_ceil(8), 1)?, self.rows.start, self.rows.len());
        Ok(self.build(vec![bits.sliced()], nulls))
    }

    fn import_fixed(&self, width: usize) -> Checked<ArrayRef> {
        let nulls = self.nulls()?;
        Ok(self.build(vec![self.values(1, self.rows.clone(), width)?], nulls))
    }

    fn import_bytes<O: Offset>(&self) -> Checked<ArrayRef> {
        let nulls = self.nulls()?;
        let offsets = self.offsets::<O>()?;
        let end = content::check_offsets(&offsets).map_err(|reason| self.refused(&reason))?.end;
        let values = self.values(2, 0..end, 1)?;
        Ok(self.build(vec![offsets.into_inner(), values], nulls))
    }

    fn import_views(&self) -> Checked<ArrayRef> {
        let nulls = self.nulls()?;
        let views = aligned(self.values(1, self.rows.clone(), size_of::<u128>())?, align_of::<u128>());
        // The validity buffer, the views, the data buffers, and the sizes of the data buffers.
        let count = self.array.buffer_count().unwrap_or_default().saturating_sub(3);
        let sizes = aligned(self.values(count + 2, 0..count, size_of::<i64>())?, align_of::<i64>());
        let sizes = ScalarBuffer::<i64>::from(sizes);
        let mut buffers = Vec::with_capacity(count + 1);
        for (index, size) in sizes.iter().enumerate() {
            let size = usize::try_from(*size).map_err(|_| self.refused("has a buffer of negative size"))?;
            buffers.push(self.values(index + 2, 0..size, 1)?);
        }
        let views =
            content::check_views(views.into(), &buffers, nulls.as_ref()).map_err(|reason| self.refused(&reason))?;
        buffers.insert(0, views.into_inner());
        Ok(self.build(buffers, nulls))
    }

    /// The lists of a list or map column: their offsets, shifted to start at zero, their elements and their nulls.
    fn lists<O: Offset>(&self, element: &'a FieldRef) -> Checked<(OffsetBuffer<O>, Node<'a>, Option<NullBuffer>)> {
        let nulls = self.nulls()?;
        let offsets = self.offsets::<O>()?;
        let elements = content::check_offsets(&offsets).map_err(|reason| self.refused(&reason))?;
        self.check_children(elements.end)?;
        let visible = self.visible_below(nulls.as_ref(), element.data_type(), |visible| {
            content::visible_elements(&offsets, &elements, visible)
        });
        let child = self.child(0, element, elements, visible)?;
        // SAFETY: `check_offsets` has checked that they do not decrease, and they start at zero here.
        let offsets = unsafe { OffsetBuffer::new_unchecked(content::from_zero(offsets)) };
        Ok((offsets, child, nulls))
    }

    fn expand_list<O: Offset + OffsetSizeTrait>(&self, element: &'a FieldRef) -> Checked<Part<'a>> {
        let (offsets, child, nulls) = self.lists::<O>(element)?;
        let assemble = move |mut children: Vec<ArrayRef>| {
            let (field, child) = (Arc::clone(element), children.pop()?);
            // SAFETY: the offsets end where the child does, which has the element's type; there is a validity bit for each row.
            Some(Arc::new(unsafe { GenericListArray::new_unchecked(field, offsets, child, nulls) }) as ArrayRef)
        };
        Ok(Part { children: vec![child], assemble: Box::new(assemble) })
    }

    fn expand_map(&self, entry: &'a FieldRef, is_sorted: bool) -> Checked<Part<'a>> {
        let (offsets, child, nulls) = self.lists::<i32>(entry)?;
        let assemble = move |mut children: Vec<ArrayRef>| {
            let (field, entries) = (Arc::clone(entry), children.pop()?.as_struct_opt()?.clone());
            // SAFETY: as for a list; an entry is a struct with two members, which the schema's check has made sure of.
            Some(Arc::new(unsafe { MapArray::new_unchecked(field, offsets, entries, nulls, is_sorted) }) as ArrayRef)
        };
        Ok(Part { children: vec![child], assemble: Box::new(assemble) })
    }

    fn expand_fixed_list(&self, element: &'a FieldRef, size: i32) -> Checked<Part<'a>> {
        let width = usize::try_from(size).unwrap_or(0);
        let place = |row: usize| row.checked_mul(width).ok_or_else(|| self.refused("has more elements than possible"));
        let elements = place(self.rows.start)?..place(self.rows.end)?;
        self.check_children(elements.end)?;
        let nulls = self.nulls()?;
        let visible = self.visible_below(nulls.as_ref(), element.data_type(), |visible| visible.expand(width));
        let child = self.child(0, element, elements, visible)?;
        let rows = self.rows.len();
        let assemble = move |mut children: Vec<ArrayRef>| {
            let (field, child) = (Arc::clone(element), children.pop()?);
            // SAFETY: the child has as many elements as the rows need, and has the element's type.
            Some(Arc::new(unsafe { FixedSizeListArray::new_unchecked(field, size, child, nulls, rows) }) as ArrayRef)
        };
        Ok(Part { children: vec![child], assemble: Box::new(assemble) })
    }

    fn expand_struct(&self, fields: &'a Fields) -> Checked<Part<'a>> {
        self.check_children(self.rows.end)?;
        let nulls = self.nulls()?;
        let mut children = Vec::with_capacity(fields.len());
        for (index, field) in fields.iter().enumerate() {
            let visible = self.visible_below(nulls.as_ref(), field.data_type(), NullBuffer::clone);
            children.push(self.child(index, field, self.rows.clone(), visible)?);
        }
        let rows = self.rows.len();
        let assemble = move |children| {
            let fields = fields.clone();
            // SAFETY: each child has its field's type and as many rows.
            Some(Arc::new(unsafe { StructArray::new_unchecked_with_length(fields, children, nulls, rows) }) as ArrayRef)
        };
        Ok(Part { children, assemble: Box::new(assemble) })
    }

    fn expand_dictionary<K: ArrowDictionaryKeyType>(&self, value_type: &'a DataType) -> Checked<Part<'a>>
    where
        K::Native: Display,
    {
        let nulls = self.nulls()?;
        let keys = aligned(self.values(1, self.rows.clone(), size_of::<K::Native>())?, align_of::<K::Native>());
        let keys = ScalarBuffer::<K::Native>::from(keys);
        let Some(dictionary) = self.array.dictionary() else { return Err(self.refused("has no dictionary")) };
        let count = dictionary.length_and_offset().map_or(0, |(length, _)| length);
        let values = Node::new(dictionary, value_type, self.owner, 0..count, None)?;
        let repaired = content::check_keys(&keys, count, nulls.as_ref(), self.visible.as_ref());
        let keys = match repaired.map_err(|reason| self.refused(&reason))? {
            None => PrimitiveArray::<K>::new(keys, nulls),
            Some((keys, valid)) => PrimitiveArray::<K>::new(keys, Some(valid)),
        };
        let assemble = move |mut children: Vec<ArrayRef>| {
            let values = children.pop()?;
            // SAFETY: the key of each row that is not null is below the number of values.
            Some(Arc::new(unsafe { DictionaryArray::new_unchecked(keys, values) }) as ArrayRef)
        };
        Ok(Part { children: vec![values], assemble: Box::new(assemble) })
    }

    /// Refuses an array with a child that has fewer rows than needed, before anything is read or allocated for them.
    fn check_children(&self, rows: usize) -> Checked<()> {
        match self.array.short_child(rows) {
            None => Ok(()),
            Some(_) => Err(self.refused("has a child with fewer rows than it needs")),
        }
    }

    /// The child at `index`, restricted to the elements or members of these rows.
    fn child(
        &self,
        index: usize,
        field: &'a FieldRef,
        rows: Range<usize>,
        visible: Option<NullBuffer>,
    ) -> Checked<Self> {
        let within = |invalid: Invalid| invalid.within(field.name());
        let Some(child) = self.array.child(index) else { return Err(within(Invalid::new("is missing"))) };
        let node = Node::new(child, field.data_type(), self.owner, rows, visible).map_err(within)?;
        Ok(Self { name: Some(field.name()), ..node })
    }

    /// The visible rows of a child, if it contains a dictionary: only dictionary keys are checked below a null.
    fn visible_below(
        &self,
        nulls: Option<&NullBuffer>,
        child: &DataType,
        below: impl FnOnce(&NullBuffer) -> NullBuffer,
    ) -> Option<NullBuffer> {
        if !has_dictionary(child) {
            return None;
        }
        let visible = NullBuffer::union(self.visible.as_ref(), nulls);
        visible.as_ref().map(below)
    }

    /// Builds an array without children, whose rows start at the beginning of its buffers.
    fn build(&self, buffers: Vec<Buffer>, nulls: Option<NullBuffer>) -> ArrayRef {
        let builder = ArrayData::builder(self.data_type.clone())
            .len(self.rows.len())
            .nulls(nulls)
            .buffers(buffers)
            .align_buffers(true);
        // SAFETY: the buffers have the sizes that the type requires; offsets and views stay within their buffers. Text may not
        // be UTF-8: nothing here reads it as `str`.
        make_array(unsafe { builder.build_unchecked() })
    }

    fn refused(&self, reason: &str) -> Invalid {
        Invalid::of_type(self.data_type, reason)
    }
}

/// The buffer, copied if it is not aligned: some producers align to 8 bytes, and some do not align at all.
fn aligned(buffer: Buffer, alignment: usize) -> Buffer {
    if buffer.as_ptr().align_offset(alignment) == 0 { buffer } else { Buffer::from_slice_ref(buffer.as_slice()) }
}
