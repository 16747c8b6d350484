//! Columns of text and binary, which differ in their layout and in the values that they accept.

use std::sync::Arc;

use arrow_array::types::{BinaryType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow_array::{ArrayRef, BinaryViewArray, GenericByteArray, StringViewArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer};
use arrow_schema::ArrowError;

use super::Values;
use super::primitive::bits;
use crate::entries::var_bytes::{VarBytes, defect};

/// The layout of a column of text or binary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Text,
    LargeText,
    TextView,
    Binary,
    LargeBinary,
    BinaryView,
}

/// Text and binary. The values of a record batch stay below 2 GiB in any layout; the layout is produced at the end.
pub(super) struct ByteStrings {
    values: VarBytes,
    nulls: NullBufferBuilder,
    layout: Layout,
    /// The additional memory of a value when the layout is produced.
    width: usize,
}

impl ByteStrings {
    pub(super) fn new(layout: Layout) -> Self {
        Self { values: VarBytes::new(), nulls: NullBufferBuilder::new(0), layout, width: layout.width() }
    }
}

impl Layout {
    fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::LargeText | Self::TextView)
    }

    /// The memory of a value besides its bytes, if its offset is not kept as it is.
    fn width(self) -> usize {
        match self {
            Self::Text | Self::Binary => 0,
            Self::LargeText | Self::LargeBinary => size_of::<i64>(),
            Self::TextView | Self::BinaryView => size_of::<u128>(),
        }
    }

    fn array(
        self,
        offsets: OffsetBuffer<i32>,
        bytes: Buffer,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Text => Arc::new(GenericByteArray::<Utf8Type>::try_new(offsets, bytes, nulls)?),
            Self::LargeText => Arc::new(GenericByteArray::<LargeUtf8Type>::try_new(widened(&offsets), bytes, nulls)?),
            Self::TextView => {
                Arc::new(StringViewArray::from(&GenericByteArray::<Utf8Type>::try_new(offsets, bytes, nulls)?))
            }
            Self::Binary => Arc::new(GenericByteArray::<BinaryType>::try_new(offsets, bytes, nulls)?),
            Self::LargeBinary => {
                Arc::new(GenericByteArray::<LargeBinaryType>::try_new(widened(&offsets), bytes, nulls)?)
            }
            Self::BinaryView => {
                Arc::new(BinaryViewArray::from(&GenericByteArray::<BinaryType>::try_new(offsets, bytes, nulls)?))
            }
        })
    }
}

/// Whether this is UTF-8. Most text is ASCII, and for short text checking that alone is faster.
#[inline]
fn is_utf8(text: &[u8]) -> bool {
    text.len() < 64 && text.is_ascii() || simdutf8::basic::from_utf8(text).is_ok()
}

fn widened(offsets: &[i32]) -> OffsetBuffer<i64> {
    OffsetBuffer::new(offsets.iter().map(|offset| i64::from(*offset)).collect())
}

impl Values for ByteStrings {
    #[inline]
    fn push(&mut self, text: &[u8]) -> bool {
        if self.layout.is_text() && !is_utf8(text) || !self.values.has_room(text.len()) {
            return false;
        }
        self.values.push(text);
        self.nulls.append_non_null();
        true
    }

    fn push_null(&mut self) {
        self.values.push(b"");
        self.nulls.append_null();
    }

    fn pop(&mut self) {
        self.values.pop();
        self.nulls.truncate(self.values.count());
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.values.count() * self.width + bits(&self.nulls)
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        let (offsets, bytes) = self.values.take().into_parts();
        self.layout.array(offsets, bytes, self.nulls.finish()).map_err(|error| defect(&error))
    }
}
