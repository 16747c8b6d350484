//! The slot of a key: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>.

/// How many slots there are.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of `key`: that of what is between its first `{` and the next `}`, if that is anything.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let inner = memchr::memchr(b'{', key).and_then(|open| key.get(open + 1..)).unwrap_or_default();
    match memchr::memchr(b'}', inner) {
        Some(length @ 1..) => inner.get(..length).unwrap_or(key),
        Some(0) | None => key,
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, nothing reflected, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the specification, and slots that servers name (tests/cluster asks them about many more).
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!([&b"foo"[..], b"bar", b""].map(slot), [12_182, 5_061, 0]);
    }

    #[test]
    fn only_what_is_in_the_first_braces_counts() {
        for key in ["{foo}", "a{foo}b", "{foo}{bar}", "a{foo}}"] {
            assert_eq!(slot(key.as_bytes()), slot(b"foo"), "{key}");
        }
        for key in ["{}foo", "foo{", "foo}", "{}{foo}", "}{"] {
            assert_eq!(tag(key.as_bytes()), key.as_bytes(), "{key}");
        }
        assert_eq!(tag(b"{{foo}}"), b"{foo");
    }
}
