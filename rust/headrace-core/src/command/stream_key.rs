//! The stream key of a command that carries messages.

/// The stream key of an XADD or of a run of the script, which is its first key. Empty, if `command` is neither.
pub(crate) fn stream_key(command: &[u8]) -> &[u8] {
    let Some(end) = memchr::memchr(b'\n', command) else { return &[] };
    let mut rest = command.get(end + 1..).unwrap_or_default();
    // EVALSHA, the hash, the number of keys; EVAL, the source, the number of keys.
    let before = if rest.starts_with(b"$4\r\nXADD") { 1 } else { 3 };
    for _ in 0..before {
        let Some((_, behind)) = next(rest) else { return &[] };
        rest = behind;
    }
    next(rest).map_or(&[], |(key, _)| key)
}

/// The first bulk string of `bytes`, and the bytes after it.
fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b'\r', bytes)?;
    let digits = bytes.get(1..end)?;
    let length = digits.iter().fold(0_usize, |length, digit| length * 10 + usize::from(digit.wrapping_sub(b'0')));
    let rest = bytes.get(end + 2..)?;
    Some((rest.get(..length)?, rest.get(length + 2..)?))
}

#[cfg(test)]
mod tests {
    use super::super::script::with_source;
    use super::*;
    use crate::resp::{write_array_header, write_bulk};

    fn command(parts: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        write_array_header(&mut out, parts.len());
        for part in parts {
            write_bulk(&mut out, part);
        }
        out
    }

    #[test]
    fn the_stream_key_is_the_first_key_of_each_command() {
        for key in [&b"orders"[..], b"", b"a\r\n$1\r\nb", &[b'x'; 1_000]] {
            assert_eq!(stream_key(&command(&[b"XADD", key, b"NOMKSTREAM", b"*", b"f", b"v"])), key);
            let run = command(&[b"EVALSHA", &[b'0'; 40], b"2", key, b"marker", b"1"]);
            assert_eq!(stream_key(&run), key);
            assert_eq!(stream_key(&with_source(&run)), key);
        }
    }

    #[test]
    fn other_and_malformed_commands_have_no_stream_key() {
        for bytes in [&b""[..], b"*1\r\n", b"*1\r\n$6\r\nASKING\r\n", b"*2\r\n$4\r\nXADD\r\n$9\r\nab\r\n"] {
            assert_eq!(stream_key(bytes), b"");
        }
    }
}
