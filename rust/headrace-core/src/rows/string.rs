//! JSON strings and keys: their escapes, and the replacement of invalid UTF-8.

use super::line::{self, Line};
use crate::utf8;

/// The JSON key of a name, as it appears between two members of an object: `,"name":`.
pub(super) fn key(name: &str) -> Vec<u8> {
    let (mut room, mut out) = ([0; line::SIZE], vec![b',']);
    let mut line = Line::new(&mut room, &mut out);
    write_string(&mut line, name.as_bytes());
    line.push(b":");
    line.flush();
    out
}

/// Appends a string from bytes that may not be UTF-8, with U+FFFD for each invalid sequence.
pub(super) fn write_unchecked(out: &mut Line<'_>, bytes: &[u8]) {
    out.push(b"\"");
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let (text, after) = utf8::split(bytes);
        write_characters(out, text);
        out.push_start(utf8::REPLACEMENT, if after.is_some() { utf8::REPLACEMENT.len() } else { 0 });
        out.make_room();
        rest = after;
    }
    out.push(b"\"");
}

/// Appends a string, escaped as Jackson does: only what JSON requires.
#[inline]
pub(super) fn write_string(out: &mut Line<'_>, text: &[u8]) {
    out.push(b"\"");
    write_characters(out, text);
    out.push(b"\"");
}

#[inline(always)]
fn write_characters(out: &mut Line<'_>, text: &[u8]) {
    let mut rest = text;
    loop {
        let (plain, tail) = rest.split_at(plain_length(rest));
        out.push_bytes(plain);
        let Some((byte, after)) = tail.split_first() else { break };
        write_escaped(out, *byte);
        rest = after;
    }
}

/// The number of bytes before the first one that needs an escape. Checks eight at a time, because most strings need none.
fn plain_length(text: &[u8]) -> usize {
    let mut plain = 0;
    for chunk in text.chunks_exact(8) {
        if !chunk.first_chunk().copied().is_some_and(is_plain) {
            break;
        }
        plain += 8;
    }
    let rest = &text[plain..];
    if rest.len() < 8 && text.last_chunk().copied().is_some_and(is_plain) {
        return text.len();
    }
    plain + rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')).unwrap_or(rest.len())
}

/// Whether none of these bytes needs an escape.
#[inline]
fn is_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = u64::from_ne_bytes(bytes);
    // A byte below `limit` borrows, which sets its high bit; bytes whose high bit was already set are not below.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | equal(b'"') | equal(b'\\')) & HIGHS == 0
}

#[cold]
fn write_escaped(out: &mut Line<'_>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let letter = match byte {
        b'\x08' => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        b'\x0c' => b'f',
        b'\r' => b'r',
        b'"' | b'\\' => byte,
        _ => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            return out.push(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.push(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn string(text: &str) -> String {
        Line::written_text(|out| write_string(out, text.as_bytes()))
    }

    #[test]
    fn strings_are_escaped_only_where_json_requires_it() {
        assert_eq!(string(""), r#""""#);
        assert_eq!(string("a\"b\\c/"), r#""a\"b\\c/""#);
        assert_eq!(string("\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}"), "\"\\b\\f\\n\\r\\t\\u0000\\u001F\u{7f}\"");
        assert_eq!(string("é😀\u{2028}<&>'"), "\"é😀\u{2028}<&>'\"");
    }

    #[test]
    fn a_byte_that_needs_an_escape_is_found_at_every_position() {
        for place in 0..24 {
            for bad in ['"', '\\', '\0', '\u{1f}'] {
                let mut text = "\u{e9}".repeat(4) + &"x".repeat(24);
                text.insert(8 + place, bad);
                assert_eq!(plain_length(text.as_bytes()), 8 + place, "{text:?}");
            }
        }
        assert_eq!(plain_length("!#[]\u{7f}\u{80}\u{a0}\u{dc}".as_bytes()), 11);
    }

    proptest! {
        #[test]
        fn strings_parse_to_the_same_text(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&string(&text)).unwrap(), text);
        }
    }
}
