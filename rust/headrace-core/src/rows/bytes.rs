//! The byte strings of a column, in each of Arrow's layouts.

use std::ops::Range;

use arrow_array::types::{BinaryViewType, ByteArrayType, ByteViewType, StringViewType};
use arrow_array::{FixedSizeBinaryArray, GenericByteArray, GenericByteViewArray};
use arrow_buffer::Buffer;
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};

use crate::utf8;

/// The byte strings of text and binary columns.
pub(super) enum Bytes<'a> {
    /// 32-bit offsets and the values.
    Small(&'a [i32], &'a Buffer),
    /// 64-bit offsets and the values.
    Large(&'a [i64], &'a Buffer),
    TextView(&'a GenericByteViewArray<StringViewType>),
    BinaryView(&'a GenericByteViewArray<BinaryViewType>),
    FixedSize(&'a FixedSizeBinaryArray),
}

impl<'a> Bytes<'a> {
    pub(super) fn small<T: ByteArrayType<Offset = i32>>(array: &'a GenericByteArray<T>) -> Self {
        Self::Small(array.value_offsets(), array.values())
    }

    pub(super) fn large<T: ByteArrayType<Offset = i64>>(array: &'a GenericByteArray<T>) -> Self {
        Self::Large(array.value_offsets(), array.values())
    }

    /// Whether all these rows are UTF-8, including the values of null rows.
    pub(super) fn are_texts(&self, rows: Range<usize>) -> bool {
        match self {
            Self::Small(offsets, values) => {
                offsets.get(rows.start..=rows.end).is_some_and(|offsets| utf8::are_texts(offsets, values))
            }
            Self::Large(offsets, values) => {
                offsets.get(rows.start..=rows.end).is_some_and(|offsets| utf8::are_texts(offsets, values))
            }
            Self::TextView(array) => {
                array.views().get(rows).is_some_and(|views| utf8::are_texts_of_views(views, array.data_buffers()))
            }
            Self::BinaryView(_) | Self::FixedSize(_) => false,
        }
    }

    #[inline]
    pub(super) fn get(&self, row: usize) -> &'a [u8] {
        match self {
            Self::Small(offsets, values) => &values[span(offsets, row)],
            _ => self.get_other(row),
        }
    }

    fn get_other(&self, row: usize) -> &'a [u8] {
        match self {
            Self::Small(offsets, values) => &values[span(offsets, row)],
            Self::Large(offsets, values) => &values[large_span(offsets, row)],
            Self::TextView(array) => view(array, row),
            Self::BinaryView(array) => view(array, row),
            Self::FixedSize(array) => array.value(row),
        }
    }

    /// The bytes of a row as a slice of the column's buffer, which the slice keeps alive. `None` if they are inline in a
    /// view.
    pub(super) fn buffer(&self, row: usize) -> Option<Buffer> {
        let (values, span) = match self {
            Self::Small(offsets, values) => (*values, span(offsets, row)),
            Self::Large(offsets, values) => (*values, large_span(offsets, row)),
            Self::TextView(array) => view_span(array, row)?,
            Self::BinaryView(array) => view_span(array, row)?,
            Self::FixedSize(array) => {
                let size = array.value_size();
                (array.values(), row * size..(row + 1) * size)
            }
        };
        Some(values.slice_with_length(span.start, span.len()))
    }
}

/// The range of a row's bytes or elements. Arrow has checked that the offsets are within the values.
#[inline]
#[allow(clippy::cast_sign_loss)]
pub(super) fn span(offsets: &[i32], row: usize) -> Range<usize> {
    offsets[row] as usize..offsets[row + 1] as usize
}

/// [`span`] with 64-bit offsets.
#[inline]
#[allow(clippy::cast_sign_loss)]
pub(super) fn large_span(offsets: &[i64], row: usize) -> Range<usize> {
    offsets[row] as usize..offsets[row + 1] as usize
}

fn view<T: ByteViewType>(array: &GenericByteViewArray<T>, row: usize) -> &[u8]
where
    T::Native: AsRef<[u8]>,
{
    array.value(row).as_ref()
}

/// The buffer and the range that a view points to; `None` if it holds the bytes inline.
fn view_span<T: ByteViewType>(array: &GenericByteViewArray<T>, row: usize) -> Option<(&Buffer, Range<usize>)> {
    let ByteView { length, buffer_index, offset, .. } = array.views()[row].into();
    let buffer = array.data_buffers().get(buffer_index as usize).filter(|_| length > MAX_INLINE_VIEW_LEN)?;
    let start = offset as usize;
    Some((buffer, start..start + length as usize))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{
        Array, ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, LargeBinaryArray, LargeStringArray,
        RecordBatch, StringArray, StringViewArray,
    };

    use crate::rows::{Body, Layout, RowPlan};

    #[test]
    fn a_payload_buffer_shares_the_memory_of_the_column() {
        let words = [Some("skipped"), Some("longer than a view holds"), None, Some(""), Some("no")];
        let bytes = words.map(|word| word.map(str::as_bytes));
        let arrays: [ArrayRef; 7] = [
            Arc::new(words.iter().collect::<StringArray>()),
            Arc::new(words.iter().collect::<LargeStringArray>()),
            Arc::new(words.iter().collect::<StringViewArray>()),
            Arc::new(bytes.iter().collect::<BinaryArray>()),
            Arc::new(bytes.iter().collect::<LargeBinaryArray>()),
            Arc::new(bytes.iter().collect::<BinaryViewArray>()),
            Arc::new(words.into_iter().collect::<DictionaryArray<Int8Type>>()),
        ];
        let layout = Layout {
            body: Body::Payload("p".into()),
            message_id: None,
            stream_key: None,
            entry_id: None,
            shard_key: None,
        };
        for array in arrays {
            let is_view = array.as_any().is::<StringViewArray>() || array.as_any().is::<BinaryViewArray>();
            let batch = RecordBatch::try_from_iter([("p", array.slice(1, 4))]).unwrap();
            let plan = RowPlan::new(&batch.schema(), &layout, "payload", None).unwrap();
            let rows = plan.bind(&batch).unwrap();
            for row in 0..rows.len() {
                let (copied, lent) = (rows.payload_alone(row), rows.payload_buffer(row));
                if is_view && copied.is_some_and(|bytes| bytes.len() <= 12) {
                    assert_eq!(lent, None, "the bytes are inline in the view");
                    continue;
                }
                assert_eq!(lent.as_deref(), copied);
                assert_eq!(lent.map(|bytes| bytes.as_ptr()), copied.map(<[u8]>::as_ptr), "not a copy");
            }
            let kept = rows.payload_buffer(0).unwrap();
            drop((batch, array));
            assert_eq!(&*kept, b"longer than a view holds");
        }
    }
}
