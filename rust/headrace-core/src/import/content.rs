//! Validation of the numbers that address other memory: offsets, dictionary keys, views.
//!
//! Each column is checked once, by a loop that the compiler vectorizes; only if it fails does another find the row.

use std::fmt::Display;
use std::ops::Range;

use arrow_buffer::{ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, ScalarBuffer};
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};

/// A result whose error is the end of a sentence whose subject is the column.
type Check<T> = Result<T, String>;

/// An offset: where the bytes or elements of a row start.
pub(super) trait Offset: ArrowNativeType + Display + Default {
    /// Negative if the offset or its distance from the previous one is negative.
    fn sign(self, before: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn is_negative(self) -> bool;
    fn minus(self, start: Self) -> Self;
}

macro_rules! impl_offset {
    ($number:ident) => {
        impl Offset for $number {
            #[inline]
            fn sign(self, before: Self) -> Self {
                self | self.wrapping_sub(before)
            }
            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline]
            fn is_negative(self) -> bool {
                self < 0
            }
            #[inline]
            fn minus(self, start: Self) -> Self {
                self.wrapping_sub(start)
            }
        }
    };
}

impl_offset!(i32);
impl_offset!(i64);

/// The range that the rows cover, if no offset is negative or less than the previous one. There is one more offset than rows.
pub(super) fn check_offsets<O: Offset>(offsets: &[O]) -> Check<Range<usize>> {
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { return Ok(0..0) };
    // Two slices of equal length: the compiler vectorizes the loop.
    let (starts, ends) = (&offsets[..offsets.len() - 1], &offsets[1..]);
    let pairs = || starts.iter().zip(ends);
    // If no offset is negative, no distance overflows.
    let signs = pairs().fold(first, |signs, (before, offset)| signs.or(offset.sign(*before)));
    if !signs.is_negative() {
        return Ok(first.as_usize()..last.as_usize());
    }
    if first.is_negative() {
        return Err(format!("has a negative offset at row 0: {first}"));
    }
    let row = pairs().position(|(before, offset)| offset < before).unwrap_or_default();
    Err(format!("has offsets that decrease at row {row}: from {} to {}", offsets[row], offsets[row + 1]))
}

/// The offsets, shifted so that the first one is zero.
pub(super) fn from_zero<O: Offset>(offsets: ScalarBuffer<O>) -> ScalarBuffer<O> {
    match offsets.first() {
        Some(&start) if start != O::default() => {
            offsets.iter().map(|offset| offset.minus(start)).collect::<Vec<_>>().into()
        }
        _ => offsets,
    }
}

/// The visibility of the elements of lists: those of visible lists are visible.
pub(super) fn visible_elements<O: Offset>(offsets: &[O], elements: &Range<usize>, visible: &NullBuffer) -> NullBuffer {
    let mut bits = BooleanBufferBuilder::new(elements.len());
    for (row, pair) in offsets.windows(2).enumerate() {
        bits.append_n(pair[1].minus(pair[0]).as_usize(), visible.is_valid(row));
    }
    NullBuffer::new(bits.finish())
}

/// Refuses keys of visible rows that are not below `count`, the number of the dictionary's values.
///
/// pyarrow writes such keys below a null struct or list: 0 where there are no values. If any exist, this returns the keys with
/// zeros in their place, and the validity that makes them null: some readers of Arrow IPC require even the keys of null rows to
/// be within the values.
pub(super) fn check_keys<K: ArrowNativeType + Display>(
    keys: &[K],
    count: usize,
    nulls: Option<&NullBuffer>,
    visible: Option<&NullBuffer>,
) -> Check<Option<(ScalarBuffer<K>, NullBuffer)>> {
    // A negative key becomes an index that is beyond any dictionary.
    let is_beyond = |key: &K| key.as_usize() >= count;
    if !keys.iter().fold(false, |any, key| any | is_beyond(key)) {
        return Ok(None);
    }
    let is_valid = |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
    let beyond = |row: &usize| is_valid(*row) && is_beyond(&keys[*row]);
    let is_visible = |row: &usize| visible.is_none_or(|visible| visible.is_valid(*row));
    if let Some(row) = (0..keys.len()).filter(beyond).find(is_visible) {
        return Err(format!("has a key at row {row} that is not one of its {count} values: {}", keys[row]));
    }
    let valid = BooleanBuffer::collect_bool(keys.len(), |row| is_valid(row) && !is_beyond(&keys[row]));
    let keys: Vec<K> = keys.iter().map(|key| if is_beyond(key) { K::default() } else { *key }).collect();
    Ok(Some((keys.into(), NullBuffer::new(valid))))
}

/// Refuses views of rows that are not null and point beyond these buffers. Views of null rows may hold anything; those
/// that point beyond become empty.
pub(super) fn check_views(
    views: ScalarBuffer<u128>,
    buffers: &[Buffer],
    nulls: Option<&NullBuffer>,
) -> Check<ScalarBuffer<u128>> {
    let is_wrong = |view: u128| {
        let ByteView { length, buffer_index, offset, .. } = view.into();
        let is_beyond = || {
            buffers
                .get(buffer_index as usize)
                .is_none_or(|buffer| u64::from(offset) + u64::from(length) > buffer.len() as u64)
        };
        // The length is signed.
        length > i32::MAX as u32 || length > MAX_INLINE_VIEW_LEN && is_beyond()
    };
    let Some(first) = views.iter().position(|view| is_wrong(*view)) else { return Ok(views) };
    let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.is_null(row));
    let mut wrong = (first..views.len()).filter(|row| is_wrong(views[*row]));
    if let Some(row) = wrong.find(|row| !is_null(*row)) {
        return Err(format!("has a view at row {row} that points beyond its {} buffers", buffers.len()));
    }
    Ok(views.iter().map(|view| if is_wrong(*view) { 0 } else { *view }).collect::<Vec<_>>().into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_do_not_decrease_give_their_range() {
        assert_eq!(check_offsets(&[2, 2, 5, 9]), Ok(2..9));
        assert_eq!(check_offsets::<i64>(&[7]), Ok(7..7));
        assert_eq!(check_offsets(&[0, i32::MAX]), Ok(0..i32::MAX as usize));
        let refused = |offsets: &[i32]| check_offsets(offsets).unwrap_err();
        assert_eq!(refused(&[0, 3, 1, 4]), "has offsets that decrease at row 1: from 3 to 1");
        assert_eq!(refused(&[-1, 3]), "has a negative offset at row 0: -1");
        assert_eq!(refused(&[0, -5, 3]), "has offsets that decrease at row 0: from 0 to -5");
        // The distance overflows to a positive number.
        assert_eq!(
            refused(&[0, i32::MAX, i32::MIN, 7]),
            format!("has offsets that decrease at row 1: from {} to {}", i32::MAX, i32::MIN)
        );
        assert_eq!(&*from_zero(ScalarBuffer::from(vec![3_i64, 3, 8])), &[0, 0, 5]);
    }

    #[test]
    fn keys_beyond_the_values_are_refused_in_visible_rows() {
        let keys = |keys: &[i8], count, nulls: Option<&[bool]>, visible: Option<&[bool]>| {
            let nulls = nulls.map(|nulls| NullBuffer::from(nulls.to_vec()));
            let visible = visible.map(|visible| NullBuffer::from(visible.to_vec()));
            check_keys(keys, count, nulls.as_ref(), visible.as_ref())
        };
        assert_eq!(keys(&[0, 1, 0], 2, None, None), Ok(None));
        assert_eq!(keys(&[0, 2], 2, None, None).unwrap_err(), "has a key at row 1 that is not one of its 2 values: 2");
        assert_eq!(keys(&[-1], 2, None, None).unwrap_err(), "has a key at row 0 that is not one of its 2 values: -1");
        // Keys of null rows, and of rows below a null, have no meaning.
        let rest = NullBuffer::from(vec![true, false]);
        let repaired = Ok(Some((vec![1, 0].into(), rest)));
        assert_eq!(keys(&[1, 9], 2, Some(&[true, false]), None), repaired);
        assert_eq!(keys(&[1, 9], 2, None, Some(&[true, false])), repaired);
        assert!(keys(&[9, 9], 2, None, Some(&[true, false])).is_err());
    }

    #[test]
    fn views_beyond_the_buffers_are_refused_unless_null() {
        let long = |length: u128, index: u128, offset: u128| length | index << 64 | offset << 96;
        let buffers = [Buffer::from(vec![0_u8; 20]), Buffer::from(vec![0_u8; 100])];
        let check = |views: &[u128], nulls: Option<&NullBuffer>| {
            check_views(ScalarBuffer::from(views.to_vec()), &buffers, nulls).map(|views| views.to_vec())
        };
        let right = [12, long(20, 0, 0), long(13, 1, 87)];
        assert_eq!(check(&right, None).unwrap(), right);
        for wrong in [long(20, 0, 1), long(13, 1, 88), long(13, 2, 0), long(u128::from(u32::MAX), 0, 0)] {
            let refused = check(&[7, wrong], None).unwrap_err();
            assert_eq!(refused, "has a view at row 1 that points beyond its 2 buffers");
            let nulls = NullBuffer::from(vec![true, false]);
            assert_eq!(check(&[7, wrong], Some(&nulls)).unwrap(), [7, 0]);
        }
    }

    #[test]
    fn elements_of_null_lists_are_not_visible() {
        let visible = NullBuffer::from(vec![true, false, true]);
        let elements = visible_elements(&[2, 3, 5, 6], &(2..6), &visible);
        assert_eq!(elements.iter().collect::<Vec<_>>(), [true, false, false, true]);
    }
}
