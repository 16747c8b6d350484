//! The values of a run as one argument. No I/O.
//!
//! A server takes about as long to read a short argument and to hand it to Lua as to write it. As strings of `MessagePack`
//! (<https://github.com/msgpack/msgpack/blob/master/spec.md#str-format-family>) in one argument, short values cost it less, and
//! fewer bytes are sent. But its Lua hashes each byte of each string, so long values, which it would hash twice, cost it more.

/// How long values may be on average, as bulk strings, to be packed: at about 50 bytes both ways cost the same.
const MAX_VALUE: usize = 48;

/// Whether these bulk strings cost a server less if they are packed.
pub(super) fn is_worth_it(bulks: &[u8], count: usize) -> bool {
    bulks.len() <= MAX_VALUE * count
}

/// Shorter values are copied as this many bytes, and the next value overwrites the excess: that takes a few moves, whereas a copy
/// of variable length is a call.
const BLOCK: usize = 32;

/// Packs bulk strings as strings of `MessagePack`, which are shorter. They are at the start of `out`, which keeps its length if
/// that is enough: filling it each time would cost a write of each byte.
pub(super) fn pack<'a>(bulks: &[u8], out: &'a mut Vec<u8>) -> &'a [u8] {
    let most = bulks.len() + 1 + BLOCK;
    if out.len() < most {
        out.resize(most, 0);
    }
    let (mut rest, mut end) = (bulks, 0);
    // `$<length>\r\n<bytes>\r\n`; most lengths have one digit or two.
    while let [b'$', line @ ..] = rest {
        let (length, body) = match line {
            [one, b'\r', b'\n', body @ ..] => (digit(*one), body),
            [ten, one, b'\r', b'\n', body @ ..] => (10 * digit(*ten) + digit(*one), body),
            _ => long(line),
        };
        let free = &mut out[end..];
        end += match (free.first_chunk_mut::<{ 1 + BLOCK }>(), body.first_chunk::<BLOCK>()) {
            (Some([head, place @ ..]), Some(block)) if length < BLOCK => {
                *head = 0xa0 | length as u8;
                *place = *block;
                1 + length
            }
            _ => pack_any(free, &body[..length]),
        };
        rest = &body[length + 2..];
    }
    &out[..end]
}

fn digit(byte: u8) -> usize {
    usize::from(byte - b'0')
}

/// The length at the start of `line`, and the bytes after its end.
fn long(line: &[u8]) -> (usize, &[u8]) {
    let digits = line.iter().take_while(|&&byte| byte != b'\r');
    let (length, count) = digits.fold((0, 0), |(length, count), &byte| (10 * length + digit(byte), count + 1));
    (length, &line[count + 2..])
}

/// Writes one string to the start of `out`, and returns how many bytes it takes.
fn pack_any(out: &mut [u8], value: &[u8]) -> usize {
    let length = value.len();
    let size = (length as u32).to_be_bytes();
    let (head, width) = match length {
        0..32 => (0xa0 | length as u8, 0),
        32..0x100 => (0xd9, 1),
        0x100..0x1_0000 => (0xda, 2),
        _ => (0xdb, 4),
    };
    out[0] = head;
    out[1..=width].copy_from_slice(&size[4 - width..]);
    out[1 + width..][..length].copy_from_slice(value);
    1 + width + length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::write_bulk;

    #[test]
    fn each_length_has_its_messagepack_header() {
        for (length, head) in [
            (0, &b"\xa0"[..]),
            (31, b"\xbf"),
            (32, b"\xd9\x20"),
            (255, b"\xd9\xff"),
            (256, b"\xda\x01\x00"),
            (65_535, b"\xda\xff\xff"),
            (65_536, b"\xdb\x00\x01\x00\x00"),
        ] {
            let value = vec![b'\r'; length];
            let (mut bulks, mut packed, mut out) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..2 {
                write_bulk(&mut bulks, &value);
                packed.extend_from_slice(&[head, &value].concat());
            }
            assert_eq!(pack(&bulks, &mut out), packed, "{length}");
            // The last value has less than a block after it, this one more.
            write_bulk(&mut bulks, &[b'x'; 100]);
            packed.extend_from_slice(&[&b"\xd9\x64"[..], &[b'x'; 100]].concat());
            assert_eq!(pack(&bulks, &mut out), packed, "{length}, another behind it");
        }
        assert_eq!(pack(b"", &mut vec![1; 100]), b"");
    }
}
