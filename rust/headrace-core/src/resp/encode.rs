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
    out.push(marker);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_length_prefixed_whatever_they_hold() {
        let mut out = Vec::new();
        write_array_header(&mut out, 2);
        write_bulk(&mut out, b"");
        write_bulk(&mut out, b"a\r\n\0$9");
        assert_eq!(out, b"*2\r\n$0\r\n\r\n$6\r\na\r\n\0$9\r\n");
    }
}
