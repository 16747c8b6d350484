//! Variable-length values in one buffer, for columns of utf8 and binary.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use crate::error::{Error, Result};

/// The maximum size of a column in bytes: Arrow's offsets of utf8 and binary have 31 bits.
const MOST_BYTES: usize = i32::MAX as usize;
/// The maximum number of bytes reserved for a column because the previous one had as many.
const MOST_RESERVED: usize = 1 << 24;

/// Builds the values. Arrow's own builders check their capacity several times per value, and panic if the offsets overflow.
#[derive(Debug)]
pub(crate) struct VarBytes {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
    /// Whether a value was left out because the offsets would overflow.
    is_over: bool,
}

impl VarBytes {
    pub(crate) fn new() -> Self {
        Self::with_capacity(0, 0)
    }

    /// Creates a builder with memory for this number of values, and for their bytes.
    pub(crate) fn with_capacity(values: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(values + 1);
        offsets.push(0);
        Self { offsets, bytes: Vec::with_capacity(bytes.min(MOST_BYTES)), is_over: false }
    }

    /// The number of values.
    pub(crate) fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The memory that the values take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.offsets.len() * size_of::<i32>()
    }

    #[inline]
    #[allow(clippy::cast_possible_wrap)] // `fits` has checked it
    pub(crate) fn push(&mut self, value: &[u8]) {
        if self.fits(value.len()) {
            self.bytes.extend_from_slice(value);
        }
        self.offsets.push(self.bytes.len() as i32);
    }

    /// Appends several values: their bytes, and where each of them ends within these bytes.
    #[inline]
    #[allow(clippy::cast_possible_wrap)] // `fits` has checked it
    pub(crate) fn push_all(&mut self, bytes: &[u8], ends: &[u32]) {
        let start = self.bytes.len() as i32;
        if self.fits(bytes.len()) {
            self.bytes.extend_from_slice(bytes);
            self.offsets.extend(ends.iter().map(|end| start + *end as i32));
        } else {
            self.offsets.extend(ends.iter().map(|_| start));
        }
    }

    /// Appends the first `length` of these bytes as a value. Copying a constant number of bytes is the cheapest.
    #[inline]
    #[allow(clippy::cast_possible_wrap)] // `fits` has checked it
    pub(crate) fn push_start<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        if self.fits(length) {
            let end = self.bytes.len() + length;
            self.bytes.extend_from_slice(bytes);
            self.bytes.truncate(end);
        }
        self.offsets.push(self.bytes.len() as i32);
    }

    /// Appends the same value several times.
    #[allow(clippy::cast_possible_wrap)] // `fits` has checked it
    pub(crate) fn push_repeated(&mut self, value: &[u8], count: usize) {
        let start = self.bytes.len();
        let mut length = value.len();
        if count > 0 && self.fits(length.saturating_mul(count)) {
            let end = start + length * count;
            self.bytes.reserve(end - start);
            self.bytes.extend_from_slice(value);
            // The copied part is doubled each time, so that a short value needs few copies.
            while self.bytes.len() < end {
                let there = self.bytes.len();
                self.bytes.extend_from_within(start..there.min(start + end - there));
            }
        } else {
            length = 0;
        }
        self.offsets.extend((1..=count).map(|n| (start + n * length) as i32));
    }

    /// Removes those of the last `kept.len()` values that are not kept.
    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // offsets are not negative
    pub(crate) fn retain_last(&mut self, kept: &[bool]) {
        let first = self.count().saturating_sub(kept.len());
        let mut end = self.offsets[first] as usize;
        let mut count = first;
        for (value, kept) in (first..).zip(kept) {
            let range = self.offsets[value] as usize..self.offsets[value + 1] as usize;
            if *kept {
                let length = range.len();
                self.bytes.copy_within(range, end);
                // The offset that is overwritten has already been read: `count` is at most `value`.
                end += length;
                count += 1;
                self.offsets[count] = end as i32;
            }
        }
        self.offsets.truncate(count + 1);
        self.bytes.truncate(end);
    }

    /// Removes the last value.
    pub(super) fn pop(&mut self) {
        self.truncate(self.count().saturating_sub(1));
    }

    /// Removes the values after the first `count`.
    #[allow(clippy::cast_sign_loss)] // offsets are not negative
    pub(super) fn truncate(&mut self, count: usize) {
        self.offsets.truncate(count + 1);
        self.bytes.truncate(self.offsets.last().map_or(0, |end| *end as usize));
    }

    /// Whether this number of bytes still fits.
    #[inline]
    pub(super) fn has_room(&self, more: usize) -> bool {
        more <= MOST_BYTES - self.bytes.len()
    }

    #[inline]
    fn fits(&mut self, more: usize) -> bool {
        let fits = self.has_room(more);
        self.is_over |= !fits;
        fits
    }

    /// Takes the values. The builder that is left reserves as much memory, for the next batch.
    pub(super) fn take(&mut self) -> Self {
        let values = self.count().min(MOST_RESERVED / size_of::<i32>());
        let next = Self::with_capacity(values, self.bytes.len().min(MOST_RESERVED));
        std::mem::replace(self, next)
    }

    /// The values as a column of binary.
    pub(crate) fn finish_binary(self, column: &str, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let (offsets, bytes) = self.checked_parts(column)?;
        Ok(Arc::new(BinaryArray::try_new(offsets, bytes, nulls).map_err(|error| defect(&error))?))
    }

    /// The values, which must be UTF-8, as a column of utf8.
    pub(crate) fn finish_utf8(self, column: &str, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let (offsets, bytes) = self.checked_parts(column)?;
        Ok(Arc::new(StringArray::try_new(offsets, bytes, nulls).map_err(|error| defect(&error))?))
    }

    fn checked_parts(self, column: &str) -> Result<(OffsetBuffer<i32>, Buffer)> {
        if self.is_over {
            return Err(Error::schema(format!("column '{column}' of one record batch would hold 2 GiB or more")));
        }
        Ok(self.into_parts())
    }

    /// The offsets and the bytes of the values.
    pub(super) fn into_parts(self) -> (OffsetBuffer<i32>, Buffer) {
        (OffsetBuffer::new(ScalarBuffer::from(self.offsets)), Buffer::from_vec(self.bytes))
    }
}

/// The error for an array built here that Arrow refused.
pub(crate) fn defect(error: &arrow_schema::ArrowError) -> Error {
    Error::Internal { message: format!("building a record batch of entries: {error}") }
}
