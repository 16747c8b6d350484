//! Columns of fixed-size values.

use std::sync::Arc;

use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{ArrayRef, BooleanArray, FixedSizeBinaryArray, NullArray, PrimitiveArray};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBufferBuilder};
use arrow_schema::DataType;

use super::Values;
use super::number::boolean;
use crate::entries::var_bytes::defect;

/// Numbers, dates, times and intervals.
pub(super) struct Primitives<T: ArrowPrimitiveType, P> {
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    data_type: DataType,
    /// Parses the value of a text; `None` if it does not fit the type.
    parse: P,
}

impl<T: ArrowPrimitiveType, P> Primitives<T, P> {
    pub(super) fn new(data_type: DataType, parse: P) -> Self {
        Self { values: Vec::new(), nulls: NullBufferBuilder::new(0), data_type, parse }
    }
}

impl<T, P> Values for Primitives<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&[u8]) -> Option<T::Native> + Send,
{
    #[inline]
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(value) = (self.parse)(text) else { return false };
        self.values.push(value);
        self.nulls.append_non_null();
        true
    }

    fn push_null(&mut self) {
        self.values.push(T::Native::default());
        self.nulls.append_null();
    }

    fn pop(&mut self) {
        self.values.pop();
        self.nulls.truncate(self.values.len());
    }

    fn bytes(&self) -> usize {
        self.values.len() * size_of::<T::Native>() + bits(&self.nulls)
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        let values = std::mem::take(&mut self.values);
        let array = PrimitiveArray::<T>::try_new(values.into(), self.nulls.finish()).map_err(|error| defect(&error))?;
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }
}

/// Booleans.
pub(super) struct Booleans {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Booleans {
    pub(super) fn new() -> Self {
        Self { values: BooleanBufferBuilder::new(0), nulls: NullBufferBuilder::new(0) }
    }
}

impl Values for Booleans {
    #[inline]
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(value) = boolean(text) else { return false };
        self.values.append(value);
        self.nulls.append_non_null();
        true
    }

    fn push_null(&mut self) {
        self.values.append(false);
        self.nulls.append_null();
    }

    fn pop(&mut self) {
        self.values.truncate(self.values.len().saturating_sub(1));
        self.nulls.truncate(self.values.len());
    }

    fn bytes(&self) -> usize {
        self.values.len() / 8 + bits(&self.nulls)
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        Ok(Arc::new(BooleanArray::new(self.values.finish(), self.nulls.finish())))
    }
}

/// Fixed-size byte strings.
pub(super) struct FixedBytes<P> {
    size: usize,
    values: Vec<u8>,
    nulls: NullBufferBuilder,
    /// Appends the bytes of a text. Returns false, and appends nothing, if it does not have the right size.
    append: P,
}

impl<P> FixedBytes<P> {
    pub(super) fn new(size: usize, append: P) -> Self {
        Self { size, values: Vec::new(), nulls: NullBufferBuilder::new(0), append }
    }
}

impl<P: Fn(&[u8], &mut Vec<u8>) -> bool + Send> Values for FixedBytes<P> {
    fn push(&mut self, text: &[u8]) -> bool {
        let fits = (self.append)(text, &mut self.values);
        if fits {
            self.nulls.append_non_null();
        }
        fits
    }

    fn push_null(&mut self) {
        self.values.resize(self.values.len() + self.size, 0);
        self.nulls.append_null();
    }

    fn pop(&mut self) {
        self.values.truncate(self.values.len().saturating_sub(self.size));
        self.nulls.truncate(self.nulls.len().saturating_sub(1));
    }

    fn bytes(&self) -> usize {
        self.values.len() + bits(&self.nulls)
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        let (rows, values) = (self.nulls.len(), Buffer::from_vec(std::mem::take(&mut self.values)));
        let size = i32::try_from(self.size).unwrap_or(i32::MAX);
        let array = FixedSizeBinaryArray::try_new_with_len(size, values, self.nulls.finish(), rows);
        Ok(Arc::new(array.map_err(|error| defect(&error))?))
    }
}

/// A column of type null: no text is valid for it.
pub(super) struct Nulls(pub(super) usize);

impl Values for Nulls {
    fn push(&mut self, _: &[u8]) -> bool {
        false
    }

    fn push_null(&mut self) {
        self.0 += 1;
    }

    fn pop(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    fn bytes(&self) -> usize {
        0
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        Ok(Arc::new(NullArray::new(std::mem::take(&mut self.0))))
    }
}

/// The memory that the validity of a column takes.
pub(super) fn bits(nulls: &NullBufferBuilder) -> usize {
    if nulls.as_slice().is_some() { nulls.len() / 8 } else { 0 }
}
