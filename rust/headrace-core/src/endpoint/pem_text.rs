//! The sections of PEM (RFC 7468), parsed without leaving a copy in memory: rustls' reader leaves the text of a key behind.

use zeroize::Zeroizing;

/// A section: the label of its first line, and its decoded content.
pub(super) struct Section<'a> {
    pub(super) label: &'a [u8],
    pub(super) der: Zeroizing<Vec<u8>>,
}

/// The reason that PEM is refused: words that follow its name in a message, and repeat none of its content.
type Wrong = &'static str;

/// The sections of `pem` whose labels `wanted` accepts. Text between sections and all other sections are skipped.
pub(super) fn sections(pem: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Section<'_>>, Wrong> {
    let mut found = Vec::new();
    let mut lines = pem.split(|byte| matches!(byte, b'\n' | b'\r'));
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix(b"-----BEGIN ") else { continue };
        let label = rest.trim_ascii_end().strip_suffix(b"-----").ok_or("is not PEM: a BEGIN line is malformed")?;
        let mut body = Vec::new();
        loop {
            let line = lines.next().ok_or("is not PEM: a section has no end")?;
            if is_end(line, label) {
                break;
            }
            body.push(line);
        }
        if wanted(label) {
            found.push(Section { label, der: decode(&body).ok_or("is not PEM: a section is not base64")? });
        }
    }
    Ok(found)
}

fn is_end(line: &[u8], label: &[u8]) -> bool {
    let rest = line.strip_prefix(b"-----END ").and_then(|rest| rest.strip_prefix(label));
    rest.is_some_and(|rest| rest.starts_with(b"-----"))
}

/// Decodes lines of base64 (RFC 4648, 4) with padding and white space; nothing else is accepted.
fn decode(lines: &[&[u8]]) -> Option<Zeroizing<Vec<u8>>> {
    // Allocated at full size: a vector that grows leaves copies behind.
    let mut der = Zeroizing::new(Vec::with_capacity(lines.iter().map(|line| line.len()).sum::<usize>() / 4 * 3 + 3));
    let (mut bits, mut count, mut padding) = (0_u32, 0_u32, 0_u32);
    for &byte in lines.iter().copied().flatten().filter(|byte| !byte.is_ascii_whitespace()) {
        if byte == b'=' {
            padding += 1;
            continue;
        }
        let value = value_of(byte);
        if value < 0 || padding > 0 {
            return None;
        }
        bits = bits << 6 | value.unsigned_abs();
        count += 1;
        if count.is_multiple_of(4) {
            der.extend_from_slice(bits.to_be_bytes().get(1..)?);
            bits = 0;
        }
    }
    // The remainder: 2 digits for one byte, 3 for two, with no unused bit set.
    match (count % 4, padding) {
        (0, 0) => {}
        (2, 2) if bits.trailing_zeros() >= 4 => der.push((bits >> 4).to_be_bytes()[3]),
        (3, 1) if bits.trailing_zeros() >= 2 => der.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
        _ => return None,
    }
    Some(der)
}

/// The value of a digit; negative if the byte is not a digit. Suited to a key: it takes the same time for each byte and uses
/// no lookup table in memory.
fn value_of(digit: u8) -> i32 {
    let digit = i32::from(digit);
    // All bits are ones if `digit` is between `first` and `last`: only then are both differences negative.
    let within = |first: u8, last: u8| ((i32::from(first) - 1 - digit) & (digit - 1 - i32::from(last))) >> 31;
    let mut value = -1;
    for (first, last, offset) in
        [(b'A', b'Z', -65), (b'a', b'z', 26 - 97), (b'0', b'9', 52 - 48), (b'+', b'+', 62 - 43), (b'/', b'/', 63 - 47)]
    {
        value += within(first, last) & (digit + offset + 1);
    }
    value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn one(body: &str) -> Result<Vec<u8>, Wrong> {
        let pem = format!("-----BEGIN A-----\n{body}\n-----END A-----\n");
        sections(pem.as_bytes(), |_| true).map(|found| found[0].der.to_vec())
    }

    proptest! {
        #[test]
        fn encoded_bytes_are_decoded_to_the_same_bytes(bytes: Vec<u8>, width in 1_usize..80, end in "\r?\n|\r") {
            let text = STANDARD.encode(&bytes);
            let lines: Vec<_> = text.as_bytes().chunks(width).map(|line| str::from_utf8(line).unwrap()).collect();
            prop_assert_eq!(one(&lines.join(&end)).unwrap(), bytes);
        }

        #[test]
        fn texts_are_accepted_exactly_as_by_the_base64_crate(text in "[A-Za-z0-9+/=_-]{0,9}") {
            prop_assert_eq!(one(&text).ok(), STANDARD.decode(&text).ok());
        }
    }

    #[test]
    fn each_byte_is_a_base64_digit_or_invalid() {
        for byte in 0..=u8::MAX {
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let expected = digits.iter().position(|&digit| digit == byte).map_or(-1, |at| i32::try_from(at).unwrap());
            assert_eq!(value_of(byte), expected, "byte {byte}");
        }
    }

    #[test]
    fn sections_are_distinguished_by_their_labels() {
        let pem = b"Bag Attributes\n-----BEGIN X-----\nno base64\n-----END X-----\r\n-----BEGIN B B-----  \r\nAA==\r\n\
            -----END B B-----\n-----BEGIN C-----\n-----END C-----";
        let found = sections(pem, |label| label != b"X").unwrap();
        let found: Vec<_> = found.iter().map(|section| (section.label, &**section.der)).collect();
        assert_eq!(found, [(&b"B B"[..], &[0][..]), (b"C", b"")]);
    }

    #[test]
    fn errors_do_not_repeat_the_content() {
        let wrong = |pem: &str| sections(pem.as_bytes(), |_| true).map(|found| found.len());
        assert_eq!(wrong("-----BEGIN A\n-----END A-----"), Err("is not PEM: a BEGIN line is malformed"));
        assert_eq!(wrong("-----BEGIN A-----\nAA==\n-----END B-----"), Err("is not PEM: a section has no end"));
        for body in ["A", "AA=", "AB==", "AA==AA==", "A A A", "AAA_", "\u{e4}AAA"] {
            assert_eq!(one(body), Err("is not PEM: a section is not base64"), "{body}");
        }
        assert_eq!(wrong("hunter2"), Ok(0));
    }

    #[test]
    fn decoded_bytes_never_move_in_memory() {
        for length in 0..200 {
            let text = STANDARD.encode(vec![7; length]);
            let lines: Vec<_> = text.as_bytes().chunks(64).collect();
            let before = lines.iter().map(|line| line.len()).sum::<usize>() / 4 * 3 + 3;
            assert_eq!(decode(&lines).unwrap().capacity(), before, "grown: the old buffer was not zeroed");
        }
    }
}
