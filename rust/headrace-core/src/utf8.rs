//! Validation of text: Arrow requires UTF-8, and not every producer checks it.
//!
//! Each invalid sequence becomes one U+FFFD, as in Java, so that JSON is the same as Spark's `to_json`. A sequence is the
//! maximal subpart (<https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/#G66453>), as in
//! `String::from_utf8_lossy`, with one difference: Java treats a surrogate of three bytes as one sequence.

use std::borrow::Cow;
use std::ops::Range;

use arrow_array::OffsetSizeTrait;
use arrow_buffer::Buffer;
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};

/// U+FFFD, which replaces an invalid sequence.
pub(crate) const REPLACEMENT: &[u8; 3] = b"\xef\xbf\xbd";

/// Whether all texts between these offsets are UTF-8. There is one more offset than texts.
///
/// The bytes are validated as a whole, not text by text; an offset is then invalid only inside a character. (The import of a
/// record batch has checked that offsets do not decrease.)
pub(crate) fn are_texts<O: OffsetSizeTrait>(offsets: &[O], values: &[u8]) -> bool {
    let [first, .., last] = offsets else { return true };
    let Some(used) = Used::new(values, first.as_usize(), last.as_usize()) else { return false };
    used.is_ascii || offsets.iter().all(|offset| used.is_boundary(offset.as_usize()))
}

/// Whether all these views hold or point to UTF-8.
///
/// If the texts fill most of a buffer they are validated as a whole, as in [`are_texts`].
pub(crate) fn are_texts_of_views(views: &[u128], buffers: &[Buffer]) -> bool {
    const NOT_ASCII: u128 = 0x8080_8080_8080_8080_8080_8080 << 32;
    let mut spans = vec![Span { start: usize::MAX, end: 0, texts: 0 }; buffers.len()];
    for view in views {
        let decoded = ByteView::from(*view);
        let length = decoded.length as usize;
        if decoded.length <= MAX_INLINE_VIEW_LEN {
            if view & NOT_ASCII != 0 && std::str::from_utf8(&view.to_le_bytes()[4..4 + length]).is_err() {
                return false;
            }
        } else {
            let (index, range) = target(&decoded);
            let Some(span) = spans.get_mut(index) else { return false };
            *span = Span {
                start: span.start.min(range.start),
                end: span.end.max(range.end),
                texts: span.texts.saturating_add(length),
            };
        }
    }
    let mut used = Vec::with_capacity(buffers.len());
    for (span, buffer) in spans.iter().zip(buffers) {
        let is_filled = span.end.saturating_sub(span.start) <= span.texts.saturating_mul(2);
        let whole = if is_filled { Used::new(buffer, span.start.min(span.end), span.end) } else { None };
        used.push(whole);
    }
    if used.iter().flatten().filter(|used| used.is_ascii).count() == buffers.len() {
        return true;
    }
    views.iter().map(|view| ByteView::from(*view)).filter(|view| view.length > MAX_INLINE_VIEW_LEN).all(|view| {
        let (index, range) = target(&view);
        if let Some(used) = &used[index] {
            return used.is_ascii || used.is_boundary(range.start) && used.is_boundary(range.end);
        }
        let bytes = buffers[index].get(range);
        bytes.is_some_and(|bytes| simdutf8::basic::from_utf8(bytes).is_ok())
    })
}

/// A part of a buffer that is valid UTF-8.
struct Used<'a> {
    bytes: &'a [u8],
    start: usize,
    is_ascii: bool,
}

impl<'a> Used<'a> {
    fn new(buffer: &'a [u8], start: usize, end: usize) -> Option<Self> {
        let bytes = buffer.get(start..end)?;
        let is_ascii = bytes.is_ascii();
        // std validates one character at a time in text that is not ASCII: in a measurement, JSON of such text cost twice as
        // much.
        (is_ascii || simdutf8::basic::from_utf8(bytes).is_ok()).then_some(Self { bytes, start, is_ascii })
    }

    /// Whether a character starts, or the part ends, at this position of the buffer.
    fn is_boundary(&self, place: usize) -> bool {
        let place = place.wrapping_sub(self.start);
        place == self.bytes.len() || self.bytes.get(place).is_some_and(|byte| byte & 0xC0 != 0x80)
    }
}

/// The part of a buffer that views point to, and the sum of their lengths.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    texts: usize,
}

/// The index of the buffer that a view points to, and the range in it.
fn target(view: &ByteView) -> (usize, Range<usize>) {
    let start = view.offset as usize;
    (view.buffer_index as usize, start..start + view.length as usize)
}

/// Splits bytes at the first invalid sequence: the text before it and the bytes after it; `None` if all is valid.
pub(crate) fn split(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Err(error) = std::str::from_utf8(bytes) else { return (bytes, None) };
    let (text, wrong) = bytes.split_at(error.valid_up_to());
    let length = match wrong {
        [0xED, 0xA0..=0xBF, 0x80..=0xBF, ..] => 3,
        [0xED, 0xA0..=0xBF, ..] => 2,
        _ => error.error_len().unwrap_or(wrong.len()),
    };
    (text, Some(&wrong[length..]))
}

/// The text with each invalid sequence replaced by U+FFFD.
pub(crate) fn to_valid(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut clean = Vec::with_capacity(bytes.len() + REPLACEMENT.len());
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let (text, after) = split(bytes);
        clean.extend_from_slice(text);
        if after.is_some() {
            clean.extend_from_slice(REPLACEMENT);
        }
        rest = after;
    }
    Cow::Owned(String::from_utf8(clean).unwrap_or_default())
}

/// A text for any bytes, from which the bytes can be restored: each byte that is not part of UTF-8 becomes `\xNN`, with two
/// digits from `0` to `9` and `a` to `f`, and each backslash is doubled, in every text.
pub(crate) fn escape(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains('\\')
    {
        return Cow::Borrowed(text);
    }
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
    let mut escaped = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        escaped.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            escaped.extend(['\\', 'x', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of which many start or continue a character.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let frequent =
            prop::sample::select(b"A\x80\x9f\xa0\xbf\xc2\xe0\xe2\x82\xac\xed\xef\xf0\x90\xf4\x8f\xff".to_vec());
        prop::collection::vec(prop_oneof![3 => frequent, 1 => any::<u8>()], 0..12)
    }

    #[test]
    fn invalid_sequences_are_replaced_as_in_java() {
        // What `to_json` of Spark 4.3 (Java 17) wrote for `cast(<bytes> as string)`.
        for (hex, text) in [
            ("fffe41", "\u{fffd}\u{fffd}A"),
            ("e282", "\u{fffd}"),
            ("e28241", "\u{fffd}A"),
            ("f09080", "\u{fffd}"),
            ("f0908041", "\u{fffd}A"),
            ("c041", "\u{fffd}A"),
            ("e080af", "\u{fffd}\u{fffd}\u{fffd}"),
            ("f4908080", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            ("eda5a0bf", "\u{fffd}\u{fffd}"),
            ("eda0", "\u{fffd}"),
            ("edab59bfc07f0a", "\u{fffd}Y\u{fffd}\u{fffd}\u{7f}\n"),
            ("35edededac6e35", "5\u{fffd}\u{fffd}\u{fffd}n5"),
            ("ed9f80", "\u{d7c0}"),
            ("edacbfac", "\u{fffd}\u{fffd}"),
        ] {
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).filter_map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect();
            assert_eq!(to_valid(&bytes), text, "{hex}");
        }
    }

    /// The bytes that an escaped text stands for.
    fn unescape(text: &str) -> Vec<u8> {
        let (mut rest, mut bytes) = (text.as_bytes(), Vec::new());
        while let Some(first) = rest.first() {
            let length = match rest {
                [b'\\', b'\\', ..] => 2,
                [b'\\', b'x', ..] => 4,
                _ => 1,
            };
            let digits = String::from_utf8_lossy(&rest[2.min(length)..length]);
            bytes.push(if length == 4 { u8::from_str_radix(&digits, 16).unwrap_or_default() } else { *first });
            rest = &rest[length..];
        }
        bytes
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        for (bytes, text) in [
            (&b"orders"[..], "orders"),
            ("größe€\0".as_bytes(), "größe€\0"),
            (b"", ""),
            (b"a\\b", r"a\\b"),
            (b"\\xff", r"\\xff"),
            (b"a\xffb", r"a\xffb"),
            (b"\xe2\x82\\", r"\xe2\x82\\"),
        ] {
            assert_eq!(escape(bytes), text);
            assert_eq!(unescape(text), bytes);
        }
    }

    proptest! {
        #[test]
        fn escaped_bytes_are_unescaped_to_the_same_bytes(parts in prop::collection::vec(prop_oneof![
            bytes(), Just(b"\\".to_vec()), Just(b"x".to_vec()), Just(b"5c".to_vec()), Just(b"\\xab".to_vec()),
        ], 0..8)) {
            let bytes = parts.concat();
            prop_assert_eq!(unescape(&escape(&bytes)), bytes);
        }

        #[test]
        fn only_surrogates_differ_from_rust(bytes in bytes()) {
            // One byte that is always invalid replaces each surrogate.
            let mut without = Vec::new();
            let mut rest = &bytes[..];
            while let Some((first, after)) = rest.split_first() {
                rest = match rest {
                    [0xED, 0xA0..=0xBF, 0x80..=0xBF, after @ ..] | [0xED, 0xA0..=0xBF, after @ ..] => {
                        without.push(0xFF);
                        after
                    }
                    _ => {
                        without.push(*first);
                        after
                    }
                };
            }
            prop_assert_eq!(to_valid(&bytes), String::from_utf8_lossy(&without));
        }

        #[test]
        fn texts_are_validated_one_by_one(texts in prop::collection::vec(bytes(), 1..5), skipped in bytes()) {
            let mut values = skipped;
            let mut offsets = vec![i32::try_from(values.len()).unwrap_or_default()];
            for text in &texts {
                values.extend_from_slice(text);
                offsets.push(i32::try_from(values.len()).unwrap_or_default());
            }
            let expected = texts.iter().all(|text| std::str::from_utf8(text).is_ok());
            prop_assert_eq!(are_texts(&offsets, &values), expected);
            let mut views = arrow_array::builder::BinaryViewBuilder::new();
            for text in &texts {
                views.append_value(text);
                views.append_value([&b"long enough to be elsewhere"[..], text].concat());
            }
            let views = views.finish();
            prop_assert_eq!(are_texts_of_views(views.views(), views.data_buffers()), expected);
        }

        #[test]
        fn views_are_validated_wherever_they_point(
            buffers in prop::collection::vec(prop::collection::vec(prop_oneof![Just("a"), Just("é"), Just("€")], 20..40), 1..3),
            places in prop::collection::vec((any::<prop::sample::Index>(), 13_usize..30, any::<prop::sample::Index>()), 0..6),
            broken in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        ) {
            let mut buffers: Vec<Vec<u8>> = buffers.iter().map(|parts| parts.concat().into_bytes()).collect();
            if let Some((buffer, place)) = broken {
                let buffer = buffer.get_mut(&mut buffers);
                let place = place.index(buffer.len());
                buffer[place] = 0xFF;
            }
            let mut views = Vec::new();
            let mut expected = true;
            for (index, length, offset) in places {
                let index = index.index(buffers.len());
                let length = length.min(buffers[index].len());
                let offset = offset.index(buffers[index].len() - length + 1);
                expected &= std::str::from_utf8(&buffers[index][offset..offset + length]).is_ok();
                views.push(length as u128 | (index as u128) << 64 | (offset as u128) << 96);
            }
            let buffers: Vec<Buffer> = buffers.into_iter().map(Buffer::from_vec).collect();
            prop_assert_eq!(are_texts_of_views(&views, &buffers), expected);
        }
    }

    #[test]
    fn offsets_and_views_out_of_bounds_are_not_valid_texts() {
        assert!(are_texts::<i32>(&[], b""));
        assert!(are_texts(&[3], b""));
        assert!(!are_texts(&[0, 3], b"ab"));
        let view = |length: u128, index: u128, offset: u128| length | index << 64 | offset << 96;
        let buffers = [Buffer::from(b"0123456789abcdef")];
        assert!(are_texts_of_views(&[view(16, 0, 0)], &buffers));
        assert!(!are_texts_of_views(&[view(16, 0, 1)], &buffers));
        assert!(!are_texts_of_views(&[view(16, 1, 0)], &buffers));
        assert_eq!(split(b"a\xffb"), (&b"a"[..], Some(&b"b"[..])));
    }
}
