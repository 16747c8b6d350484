//! One array of the tree that a column is: its buffers and children, held against its type and against each other.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef};

use super::Invalid;
use super::abi::CArray;
use super::content::{self, Offset};

type Checked<T> = Result<T, Invalid>;

/// An array, what it is said to be, and what keeps its buffers.
struct Node<'a> {
    array: &'a CArray,
    data_type: &'a DataType,
    owner: &'a Arc<CArray>,
    /// Its rows, in places of its buffers.
    rows: Range<usize>,
    /// Which of them can be seen; `None`: all. The others are below a null, and mean nothing.
    visible: Option<NullBuffer>,
}

/// The rows `rows` of an array, which must be of this type.
pub(super) fn import(
    array: &CArray,
    data_type: &DataType,
    rows: Range<usize>,
    owner: &Arc<CArray>,
) -> Checked<ArrayRef> {
    let data = Node::new(array, data_type, owner, rows, None)?.import()?;
    Ok(make_array(data))
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
            let reason = format!("has {length} rows where there must be {}", rows.end);
            return Err(Invalid::of_type(data_type, &reason));
        }
        let rows = offset + rows.start..offset + rows.end;
        Ok(Self { array, data_type, owner, rows, visible })
    }

    fn import(self) -> Checked<ArrayData> {
        self.check_counts()?;
        if self.rows.is_empty() {
            return Ok(ArrayData::new_empty(self.data_type));
        }
        match self.data_type {
            DataType::Null => Ok(self.build(Vec::new(), Vec::new(), None)),
            DataType::Boolean => self.import_booleans(),
            DataType::Utf8 | DataType::Binary => self.import_bytes::<i32>(),
            DataType::LargeUtf8 | DataType::LargeBinary => self.import_bytes::<i64>(),
            DataType::Utf8View | DataType::BinaryView => self.import_views(),
            DataType::FixedSizeBinary(size) => self.import_fixed(usize::try_from(*size).unwrap_or(0)),
            DataType::List(element) | DataType::Map(element, _) => self.import_list::<i32>(element),
            DataType::LargeList(element) => self.import_list::<i64>(element),
            DataType::FixedSizeList(element, size) => {
                self.import_fixed_list(element, usize::try_from(*size).unwrap_or(0))
            }
            DataType::Struct(fields) => self.import_struct(fields),
            DataType::Dictionary(keys, values) => self.import_dictionary(keys, values),
            other => match other.primitive_width() {
                Some(width) => self.import_fixed(width),
                None => Err(Invalid::new(format!("has the type {other}, which is not read"))),
            },
        }
    }

    /// Refuses an array that is not built as its type is.
    fn check_counts(&self) -> Checked<()> {
        let (buffers, children) = match self.data_type {
            // polars has one, of no bytes (pola-rs/polars#22934).
            DataType::Null => (0..=1, 0),
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => (3..=3, 0),
            DataType::Utf8View | DataType::BinaryView => (3..=usize::MAX, 0),
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => (2..=2, 1),
            DataType::FixedSizeList(..) => (1..=1, 1),
            DataType::Struct(fields) => (1..=1, fields.len()),
            _ => (2..=2, 0),
        };
        // Without rows polars leaves out the sizes of a view column's buffers.
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

    /// Which rows are null.
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
            None => Err(self.refused("counts nulls and does not say which they are")),
        }
    }

    /// The values of this buffer for these elements, from the first one on.
    fn values(&self, index: usize, elements: Range<usize>, width: usize) -> Checked<Buffer> {
        let bytes = elements.end.checked_mul(width).ok_or_else(|| self.refused("has more bytes than there can be"))?;
        let Some(buffer) = self.array.buffer(index, bytes, self.owner) else {
            return if bytes == 0 { Ok(MutableBuffer::new(0).into()) } else { Err(self.refused("lacks a buffer")) };
        };
        let start = elements.start * width;
        Ok(buffer.slice_with_length(start, bytes - start))
    }

    /// The offsets of all rows, and one more.
    fn offsets<O: Offset>(&self) -> Checked<ScalarBuffer<O>> {
        let buffer = self.values(1, self.rows.start..self.rows.end + 1, size_of::<O>())?;
        Ok(aligned(buffer, align_of::<O>()).into())
    }

    fn import_booleans(&self) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        let bits =
            BooleanBuffer::new(self.values(1, 0..self.rows.end.div_ceil(8), 1)?, self.rows.start, self.rows.len());
        Ok(self.build(vec![bits.sliced()], Vec::new(), nulls))
    }

    fn import_fixed(&self, width: usize) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        Ok(self.build(vec![self.values(1, self.rows.clone(), width)?], Vec::new(), nulls))
    }

    fn import_bytes<O: Offset>(&self) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        let offsets = self.offsets::<O>()?;
        let end = content::check_offsets(&offsets).map_err(|reason| self.refused(&reason))?.end;
        let values = self.values(2, 0..end, 1)?;
        Ok(self.build(vec![offsets.into_inner(), values], Vec::new(), nulls))
    }

    fn import_views(&self) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        let views = aligned(self.values(1, self.rows.clone(), size_of::<u128>())?, align_of::<u128>());
        // A validity buffer, the views, the buffers that they point to, the sizes of those.
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
        Ok(self.build(buffers, Vec::new(), nulls))
    }

    fn import_list<O: Offset>(&self, element: &FieldRef) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        let offsets = self.offsets::<O>()?;
        let elements = content::check_offsets(&offsets).map_err(|reason| self.refused(&reason))?;
        let visible = self.visible_below(nulls.as_ref(), element.data_type(), |visible| {
            content::visible_elements(&offsets, &elements, visible)
        });
        let child = self.child(0, element, elements.clone(), visible)?;
        Ok(self.build(vec![content::from_zero(offsets).into_inner()], vec![child], nulls))
    }

    fn import_fixed_list(&self, element: &FieldRef, size: usize) -> Checked<ArrayData> {
        let place =
            |row: usize| row.checked_mul(size).ok_or_else(|| self.refused("has more elements than there can be"));
        let elements = place(self.rows.start)?..place(self.rows.end)?;
        self.check_children(elements.end)?;
        let nulls = self.nulls()?;
        let visible = self.visible_below(nulls.as_ref(), element.data_type(), |visible| visible.expand(size));
        let child = self.child(0, element, elements, visible)?;
        Ok(self.build(Vec::new(), vec![child], nulls))
    }

    fn import_struct(&self, fields: &[FieldRef]) -> Checked<ArrayData> {
        self.check_children(self.rows.end)?;
        let nulls = self.nulls()?;
        let mut children = Vec::with_capacity(fields.len());
        for (index, field) in fields.iter().enumerate() {
            let visible = self.visible_below(nulls.as_ref(), field.data_type(), NullBuffer::clone);
            children.push(self.child(index, field, self.rows.clone(), visible)?);
        }
        Ok(self.build(Vec::new(), children, nulls))
    }

    /// Refuses an array whose children have fewer rows than it needs, before its own validity is read: of that the interface
    /// says no size.
    fn check_children(&self, rows: usize) -> Checked<()> {
        match self.array.short_child(rows) {
            None => Ok(()),
            Some(_) => Err(self.refused("has a child with fewer rows than it needs")),
        }
    }

    fn import_dictionary(&self, key_type: &DataType, value_type: &DataType) -> Checked<ArrayData> {
        let nulls = self.nulls()?;
        let width = key_type.primitive_width().unwrap_or_default();
        let keys = aligned(self.values(1, self.rows.clone(), width)?, width);
        let Some(dictionary) = self.array.dictionary() else { return Err(self.refused("has no dictionary")) };
        let count = dictionary.length_and_offset().map_or(0, |(length, _)| length);
        let values = Node::new(dictionary, value_type, self.owner, 0..count, None)?.import()?;
        let hidden = content::check_keys(&keys, key_type, count, nulls.as_ref(), self.visible.as_ref());
        let nulls = hidden.map_err(|reason| self.refused(&reason))?.or(nulls);
        Ok(self.build(vec![keys], vec![values], nulls))
    }

    /// The elements or members of this number that belong to the rows.
    fn child(
        &self,
        index: usize,
        field: &FieldRef,
        rows: Range<usize>,
        visible: Option<NullBuffer>,
    ) -> Checked<ArrayData> {
        let within = |invalid: Invalid| invalid.within(field.name());
        let Some(child) = self.array.child(index) else { return Err(within(Invalid::new("is not there"))) };
        Node::new(child, field.data_type(), self.owner, rows, visible).and_then(Node::import).map_err(within)
    }

    /// Which rows of a child can be seen, where that matters: only keys of dictionaries mean something below a null.
    fn visible_below(
        &self,
        nulls: Option<&NullBuffer>,
        child: &DataType,
        below: impl FnOnce(&NullBuffer) -> NullBuffer,
    ) -> Option<NullBuffer> {
        if !content::has_dictionary(child) {
            return None;
        }
        let visible = NullBuffer::union(self.visible.as_ref(), nulls);
        visible.as_ref().map(below)
    }

    /// The array. Its first row is the first of its buffers.
    fn build(&self, buffers: Vec<Buffer>, children: Vec<ArrayData>, nulls: Option<NullBuffer>) -> ArrayData {
        let builder = ArrayData::builder(self.data_type.clone())
            .len(self.rows.len())
            .nulls(nulls)
            .buffers(buffers)
            .child_data(children)
            .align_buffers(true);
        // SAFETY: the buffers have the sizes and children the rows that the type demands, offsets and keys and views are
        // within what they point into. Text may not be UTF-8: nothing here reads it as `str`.
        unsafe { builder.build_unchecked() }
    }

    fn refused(&self, reason: &str) -> Invalid {
        Invalid::of_type(self.data_type, reason)
    }
}

/// The same bytes where they can be read as numbers: some producers align to 8 bytes, and some to none.
fn aligned(buffer: Buffer, alignment: usize) -> Buffer {
    if buffer.as_ptr().align_offset(alignment) == 0 { buffer } else { Buffer::from_slice_ref(buffer.as_slice()) }
}
