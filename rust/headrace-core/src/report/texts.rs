//! A builder for text columns in which most values end in the previous value's number plus one: message IDs and entry IDs.

use arrow_array::StringArray;
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::ArrowError;

use crate::decimal;

/// The buffer size for a text that ends in a number: an entry ID has at most 41 bytes.
const WIDTH: usize = 48;

/// Builds a column of texts. Arrow's own builder checks its capacity three times per text; here a consecutive text costs
/// a copy and an increment.
pub(super) struct Texts {
    bytes: Vec<u8>,
    offsets: Vec<i32>,
    valid: NullBufferBuilder,
}

impl Texts {
    /// Reserves memory for `count` texts of about `length` bytes. With at most 65,536 texts, none longer than a message ID
    /// (16 KiB), 32-bit offsets suffice.
    pub(super) fn with_capacity(count: usize, length: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        Self { bytes: Vec::with_capacity(count * length + WIDTH), offsets, valid: NullBufferBuilder::new(0) }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.push_offsets(1, text.len());
    }

    /// Appends `count` texts: `prefix` and a number, counting up from `first`. A prefix has at most 21 bytes.
    pub(super) fn push_numbers(&mut self, prefix: &str, mut first: u64, mut count: usize) {
        while count > 0 {
            let mut digits = itoa::Buffer::new();
            let (prefix, digits) = (prefix.as_bytes(), digits.format(first).as_bytes());
            let length = prefix.len() + digits.len();
            // A copy of constant size is the cheapest. The bytes after the text are truncated.
            let mut text = [0; WIDTH];
            text[..prefix.len()].copy_from_slice(prefix);
            text[prefix.len()..length].copy_from_slice(digits);
            let digits = prefix.len()..length;
            let mut pushed = 0;
            while pushed < count {
                let end = self.bytes.len() + length;
                self.bytes.extend_from_slice(&text);
                self.bytes.truncate(end);
                pushed += 1;
                if !decimal::count_up(&mut text[digits.clone()]) {
                    break;
                }
            }
            self.push_offsets(pushed, length);
            first = first.wrapping_add(pushed as u64);
            count -= pushed;
        }
    }

    pub(super) fn push_nulls(&mut self, count: usize) {
        self.append_valid();
        self.push_offsets(count, 0);
        self.valid.append_n_nulls(count);
    }

    pub(super) fn finish(mut self) -> Result<StringArray, ArrowError> {
        self.append_valid();
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        StringArray::try_new(offsets, Buffer::from_vec(self.bytes), self.valid.finish())
    }

    /// Appends the offsets of `count` texts of `length` bytes each.
    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // see `with_capacity`
    fn push_offsets(&mut self, count: usize, length: usize) {
        let start = self.offsets.last().copied().unwrap_or_default() as usize;
        self.offsets.extend((1..=count).map(|n| (start + n * length) as i32));
    }

    /// Marks all texts since the last null as valid.
    fn append_valid(&mut self) {
        self.valid.append_n_non_nulls(self.offsets.len() - 1 - self.valid.len());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_column_holds_the_pushed_texts() {
        let mut texts = Texts::with_capacity(0, 0);
        let mut expected = Vec::new();
        for (prefix, first, count) in
            [("", 0, 1_200), ("18446744073709551615-", u64::MAX - 3, 4), ("7-", 95, 0), ("7-", 99_998, 3), ("é", 9, 2)]
        {
            texts.push_numbers(prefix, first, count);
            expected.extend((0..count as u64).map(|more| Some(format!("{prefix}{}", first + more))));
            texts.push_nulls(2);
            texts.push("text");
            texts.push("");
            expected.extend([None, None, Some("text".to_owned()), Some(String::new())]);
        }
        let array = texts.finish().unwrap();
        assert_eq!(array.iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>(), expected);
        assert!(Texts::with_capacity(0, 0).finish().unwrap().iter().next().is_none());
    }
}
