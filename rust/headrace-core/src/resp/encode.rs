//! The two shapes of RESP2 that a client sends: array headers and bulk strings.

/// Appends `*<count>\r\n`.
pub(crate) fn write_array_header(out: &mut Vec<u8>, count: usize) {
    write_length(out, b'*', count);
}

/// Appends `$<length>\r\n<bytes>\r\n`.
pub(crate) fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 32);
    write_bulk_length(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends `$<length>\r\n`; as many bytes and `\r\n` must follow.
#[inline]
pub(crate) fn write_bulk_length(out: &mut Vec<u8>, length: usize) {
    write_length(out, b'$', length);
}

#[inline]
fn write_length(out: &mut Vec<u8>, marker: u8, length: usize) {
    match length {
        0..10 => out.extend_from_slice(&[marker, b'0' + length as u8, b'\r', b'\n']),
        10..100 => {
            let [tens, ones] = [length / 10, length % 10].map(|digit| b'0' + digit as u8);
            out.extend_from_slice(&[marker, tens, ones, b'\r', b'\n']);
        }
        100..1_000 => {
            let digits = [length / 100, length / 10 % 10, length % 10].map(|digit| b'0' + digit as u8);
            out.extend_from_slice(&[marker, digits[0], digits[1], digits[2], b'\r', b'\n']);
        }
        _ => write_long_length(out, marker, length),
    }
}

#[cold] // names and values are mostly short
#[inline(never)]
fn write_long_length(out: &mut Vec<u8>, marker: u8, length: usize) {
    out.push(marker);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_length_prefixed_whatever_they_contain() {
        let mut out = Vec::new();
        write_array_header(&mut out, 2);
        write_bulk(&mut out, b"");
        write_bulk(&mut out, b"a\r\n\0$9");
        assert_eq!(out, b"*2\r\n$0\r\n\r\n$6\r\na\r\n\0$9\r\n");
    }

    #[test]
    fn lengths_have_any_number_of_digits() {
        for length in [0, 9, 10, 99, 100, 999, 1_000, 65_536, usize::MAX] {
            let mut out = Vec::new();
            write_bulk_length(&mut out, length);
            assert_eq!(out, format!("${length}\r\n").as_bytes());
        }
    }
}
