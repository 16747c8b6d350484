//! Columns from JSON. Values are read as from text, except binary, which is base64, and nested types, which are arrays and
//! objects.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray};
use arrow_buffer::{ArrowNativeType, NullBufferBuilder, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::primitive::bits;
use super::{Values, dictionary_of, values_of, values_of_type};
use crate::entries::json::{for_each_element, for_each_member, text_of};
use crate::entries::var_bytes::defect;
use crate::extension::Extension;

/// The maximum number of elements of a column: the offsets of lists and maps have 31 bits.
const MOST_ELEMENTS: usize = i32::MAX as usize;

/// The values of a column, read from their JSON text. `None` for a type that the writer has no JSON for.
///
/// Elements such as `{}` take less in JSON than in a column: the caller bounds them before it passes the text on.
pub(super) fn values_of_json(field: &Field) -> Option<Box<dyn Values>> {
    if Extension::of(field).is_some() {
        return values_of(field);
    }
    Some(match field.data_type() {
        data_type if is_binary(data_type) => Base64::boxed(values_of_type(data_type)?),
        DataType::Dictionary(keys, values) if is_binary(values) => {
            dictionary_of(keys, Base64::boxed(values_of_type(values)?))?
        }
        DataType::List(item) => Box::new(Lists::new(Kind::List, item)?),
        DataType::LargeList(item) => Box::new(Lists::new(Kind::Large, item)?),
        DataType::FixedSizeList(item, size) => Box::new(Lists::new(Kind::Fixed(usize::try_from(*size).ok()?), item)?),
        DataType::Struct(members) => Box::new(Objects::new(members)?),
        DataType::Map(entries, is_sorted) => Box::new(Maps::new(entries, *is_sorted)?),
        _ => values_of(field)?,
    })
}

pub(super) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

fn as_text(json: &[u8]) -> Option<&str> {
    simdutf8::basic::from_utf8(json).ok()
}

/// Binary values of any layout, from base64.
struct Base64 {
    values: Box<dyn Values>,
    bytes: Vec<u8>,
}

impl Base64 {
    fn boxed(values: Box<dyn Values>) -> Box<dyn Values> {
        Box::new(Self { values, bytes: Vec::new() })
    }
}

impl Values for Base64 {
    fn push(&mut self, text: &[u8]) -> bool {
        self.bytes.clear();
        STANDARD.decode_vec(text, &mut self.bytes).is_ok() && self.values.push(&self.bytes)
    }

    fn push_null(&mut self) {
        self.values.push_null();
    }

    fn pop(&mut self) {
        self.values.pop();
    }

    fn bytes(&self) -> usize {
        self.values.bytes()
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        self.values.finish()
    }
}

/// The number of elements in each list or map of a column.
struct Lengths {
    lengths: Vec<usize>,
    nulls: NullBufferBuilder,
}

impl Lengths {
    fn new() -> Self {
        Self { lengths: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }

    fn push(&mut self, length: usize, is_valid: bool) {
        self.lengths.push(length);
        self.nulls.append(is_valid);
    }

    /// Removes the last value, and returns its number of elements.
    fn pop(&mut self) -> usize {
        let length = self.lengths.pop().unwrap_or(0);
        self.nulls.truncate(self.lengths.len());
        length
    }

    /// The memory of the lengths and of the offsets that they become.
    fn bytes(&self) -> usize {
        self.lengths.len() * (size_of::<usize>() + size_of::<i64>()) + bits(&self.nulls)
    }

    /// Takes the offsets. The sum of the lengths must be below 2 GiB.
    fn take_offsets<O: ArrowNativeType>(&mut self) -> OffsetBuffer<O> {
        OffsetBuffer::from_lengths(std::mem::take(&mut self.lengths))
    }
}

/// Appends a value that may be null, if it fits.
fn push_value(field: &Field, values: &mut dyn Values, text: Option<&str>) -> bool {
    match text {
        Some(text) => values.push(text.as_bytes()),
        None if field.is_nullable() => {
            values.push_null();
            true
        }
        None => false,
    }
}

/// Lists of each kind.
struct Lists {
    kind: Kind,
    item: FieldRef,
    values: Box<dyn Values>,
    lengths: Lengths,
    /// The number of elements of all lists.
    count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Large,
    Fixed(usize),
}

impl Lists {
    fn new(kind: Kind, item: &FieldRef) -> Option<Self> {
        let values = values_of_json(item)?;
        Some(Self { kind, item: Arc::clone(item), values, lengths: Lengths::new(), count: 0 })
    }
}

impl Values for Lists {
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(text) = as_text(text) else { return false };
        let (first, mut fits) = (self.count, true);
        let end = match self.kind {
            Kind::Fixed(size) => first.saturating_add(size).min(MOST_ELEMENTS),
            Kind::List | Kind::Large => MOST_ELEMENTS,
        };
        let read = for_each_element(text, &mut |element| {
            fits = fits && self.count < end && push_value(&self.item, &mut *self.values, text_of(element).as_deref());
            self.count += usize::from(fits);
        });
        let length = self.count - first;
        if read.is_err() || !fits || matches!(self.kind, Kind::Fixed(size) if size != length) {
            (0..length).for_each(|_| self.values.pop());
            self.count = first;
            return false;
        }
        self.lengths.push(length, true);
        true
    }

    fn push_null(&mut self) {
        let length = if let Kind::Fixed(size) = self.kind { size } else { 0 };
        (0..length).for_each(|_| self.values.push_null());
        self.count += length;
        self.lengths.push(length, false);
    }

    fn pop(&mut self) {
        let length = self.lengths.pop();
        (0..length).for_each(|_| self.values.pop());
        self.count -= length;
    }

    fn bytes(&self) -> usize {
        self.lengths.bytes() + self.values.bytes()
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        self.count = 0;
        let (item, values, nulls) = (Arc::clone(&self.item), self.values.finish()?, self.lengths.nulls.finish());
        let array: Result<ArrayRef, ArrowError> = match self.kind {
            Kind::List => {
                ListArray::try_new(item, self.lengths.take_offsets(), values, nulls).map(|list| Arc::new(list) as _)
            }
            Kind::Large => LargeListArray::try_new(item, self.lengths.take_offsets(), values, nulls)
                .map(|list| Arc::new(list) as _),
            Kind::Fixed(size) => {
                let rows = std::mem::take(&mut self.lengths.lengths).len();
                let size = i32::try_from(size).unwrap_or(i32::MAX);
                FixedSizeListArray::try_new_with_length(item, size, values, nulls, rows).map(|list| Arc::new(list) as _)
            }
        };
        array.map_err(|error| defect(&error))
    }
}

/// Structs. The last of several equal names counts, and names without a column are ignored, as in a row.
struct Objects {
    fields: Fields,
    members: Vec<Box<dyn Values>>,
    /// Which members have a value from the object that is being read.
    filled: Vec<bool>,
    nulls: NullBufferBuilder,
}

impl Objects {
    fn new(fields: &Fields) -> Option<Self> {
        let members: Vec<_> = fields.iter().map(|field| values_of_json(field)).collect::<Option<_>>()?;
        let filled = vec![false; members.len()];
        Some(Self { fields: fields.clone(), members, filled, nulls: NullBufferBuilder::new(0) })
    }

    fn take_back(&mut self) {
        for (member, filled) in self.members.iter_mut().zip(&self.filled) {
            if *filled {
                member.pop();
            }
        }
    }
}

impl Values for Objects {
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(text) = as_text(text) else { return false };
        self.filled.fill(false);
        let mut fits = true;
        let read = for_each_member(text, &mut |name, value| {
            let Some(at) = self.fields.iter().position(|field| field.name() == name).filter(|_| fits) else { return };
            if self.filled[at] {
                self.members[at].pop();
            }
            // A null is treated like a missing member.
            let text = text_of(value);
            self.filled[at] = text.as_deref().is_some_and(|text| self.members[at].push(text.as_bytes()));
            fits = self.filled[at] || text.is_none();
        });
        fits &= read.is_ok();
        for (at, field) in self.fields.iter().enumerate() {
            if fits && !self.filled[at] {
                fits = field.is_nullable();
                self.members[at].push_null();
                self.filled[at] = true;
            }
        }
        if !fits {
            self.take_back();
            return false;
        }
        self.nulls.append_non_null();
        true
    }

    fn push_null(&mut self) {
        self.members.iter_mut().for_each(|member| member.push_null());
        self.nulls.append_null();
    }

    fn pop(&mut self) {
        self.members.iter_mut().for_each(|member| member.pop());
        self.nulls.truncate(self.nulls.len().saturating_sub(1));
    }

    fn bytes(&self) -> usize {
        self.members.iter().map(|member| member.bytes()).sum::<usize>() + bits(&self.nulls)
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        let rows = self.nulls.len();
        let members = self.members.iter_mut().map(|member| member.finish()).collect::<crate::Result<_>>()?;
        let array = StructArray::try_new_with_length(self.fields.clone(), members, self.nulls.finish(), rows);
        Ok(Arc::new(array.map_err(|error| defect(&error))?))
    }
}

/// Maps, read from objects: the keys are text.
struct Maps {
    entries: FieldRef,
    pair: Fields,
    is_sorted: bool,
    keys: Box<dyn Values>,
    values: Box<dyn Values>,
    lengths: Lengths,
    count: usize,
}

impl Maps {
    fn new(entries: &FieldRef, is_sorted: bool) -> Option<Self> {
        let DataType::Struct(pair) = entries.data_type() else { return None };
        let [key, value] = &**pair else { return None };
        // The writer writes dates and times differently as keys: as numbers.
        let key_type = key.data_type();
        if key_type.is_temporal() || is_binary(key_type) && Extension::of(key).is_none() || key_type.is_nested() {
            return None;
        }
        let (keys, values) = (values_of_json(key)?, values_of_json(value)?);
        let entries = Arc::clone(entries);
        Some(Self { pair: pair.clone(), entries, is_sorted, keys, values, lengths: Lengths::new(), count: 0 })
    }

    fn take_back(&mut self, length: usize) {
        for _ in 0..length {
            self.keys.pop();
            self.values.pop();
        }
        self.count -= length;
    }
}

impl Values for Maps {
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(text) = as_text(text) else { return false };
        let (first, mut fits) = (self.count, true);
        let read = for_each_member(text, &mut |name, value| {
            fits = fits && self.count < MOST_ELEMENTS && self.keys.push(name.as_bytes());
            if !fits {
                return;
            }
            fits = push_value(&self.pair[1], &mut *self.values, text_of(value).as_deref());
            if fits {
                self.count += 1;
            } else {
                self.keys.pop();
            }
        });
        let length = self.count - first;
        if read.is_err() || !fits {
            self.take_back(length);
            return false;
        }
        self.lengths.push(length, true);
        true
    }

    fn push_null(&mut self) {
        self.lengths.push(0, false);
    }

    fn pop(&mut self) {
        let length = self.lengths.pop();
        self.take_back(length);
    }

    fn bytes(&self) -> usize {
        self.lengths.bytes() + self.keys.bytes() + self.values.bytes()
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        self.count = 0;
        let pairs = vec![self.keys.finish()?, self.values.finish()?];
        let (entries, nulls) = (Arc::clone(&self.entries), self.lengths.nulls.finish());
        let array = StructArray::try_new(self.pair.clone(), pairs, None)
            .and_then(|pairs| MapArray::try_new(entries, self.lengths.take_offsets(), pairs, nulls, self.is_sorted));
        Ok(Arc::new(array.map_err(|error| defect(&error))?))
    }
}
