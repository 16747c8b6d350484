//! The values of a run as one argument. No I/O.
//!
//! A server takes about as long to read a short argument and to hand it to Lua as to write it. As strings of `MessagePack`
//! (<https://github.com/msgpack/msgpack/blob/master/spec.md#str-format-family>) in one argument short values cost it less,
//! and fewer bytes are sent. But its Lua hashes each byte of each string, so that long values, which it would hash twice,
//! cost it more.

/// What a value takes at most, as a bulk string and on the average, to be packed: at about 50 bytes both ways cost the same.
const MAX_VALUE: usize = 48;

/// Whether a server takes less for these bulk strings if they are packed.
pub(super) fn is_worth_it(bulks: &[u8], count: usize) -> bool {
    bulks.len() <= MAX_VALUE * count
}

/// Short values are copied as this many bytes, behind which the next one begins: a few moves, where a copy of variable length
/// is a call.
const BLOCK: usize = 32;

/// Bulk strings as strings of `MessagePack`, which are shorter.
pub(super) fn pack(bulks: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bulks.len());
    let mut rest = bulks;
    // `$<length>\r\n<bytes>\r\n`; most lengths have one digit or two.
    while let [b'$', line @ ..] = rest {
        let (length, body) = match line {
            [one, b'\r', b'\n', body @ ..] => (digit(*one), body),
            [ten, one, b'\r', b'\n', body @ ..] => (10 * digit(*ten) + digit(*one), body),
            _ => long(line),
        };
        write_length(&mut out, length);
        let end = out.len() + length;
        match body.first_chunk::<BLOCK>() {
            Some(block) if length <= BLOCK => {
                out.extend_from_slice(block);
                out.truncate(end);
            }
            Some(_) | None => out.extend_from_slice(&body[..length]),
        }
        rest = &body[length + 2..];
    }
    out
}

fn digit(byte: u8) -> usize {
    usize::from(byte - b'0')
}

/// The length at the start of `line`, and what is behind its end.
fn long(line: &[u8]) -> (usize, &[u8]) {
    let digits = line.iter().take_while(|&&byte| byte != b'\r');
    let (length, count) = digits.fold((0, 0), |(length, count), &byte| (10 * length + digit(byte), count + 1));
    (length, &line[count + 2..])
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    match length {
        0..32 => out.push(0xa0 | length as u8),
        32..0x100 => out.extend_from_slice(&[0xd9, length as u8]),
        0x100..0x1_0000 => {
            out.push(0xda);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdb);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::write_bulk;

    #[test]
    fn each_length_has_its_head() {
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
            let (mut bulks, mut packed) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                write_bulk(&mut bulks, &value);
                packed.extend_from_slice(&[head, &value].concat());
            }
            assert_eq!(pack(&bulks), packed, "{length}");
        }
    }
}
