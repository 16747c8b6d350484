//! The slot of a key: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>.

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of `key`: that of the part between its first `{` and the next `}`, if there is such a part and it is not empty.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The part of `key` on which its slot depends.
pub(crate) fn tag(key: &[u8]) -> &[u8] {
    let inner = memchr::memchr(b'{', key).and_then(|open| key.get(open + 1..)).unwrap_or_default();
    match memchr::memchr(b'}', inner) {
        Some(length @ 1..) => inner.get(..length).unwrap_or(key),
        Some(0) | None => key,
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, nothing reflected, initial value 0.
///
/// Computed eight bytes at a time: each row of a record batch may have a key of its own, and byte by byte, a key of 36 bytes
/// takes as long as the rest of its entry.
fn crc16(bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(0_u16, |crc, chunk| {
        let [high, low] = crc.to_be_bytes();
        let first = [chunk[0] ^ high, chunk[1] ^ low, chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7]];
        first.iter().zip(TABLES.iter().rev()).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// The contribution of a byte to the checksum, by the number of bytes after it.
static TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut behind = 0;
        while behind < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            tables[behind][byte] = crc;
            behind += 1;
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the specification, and slots that servers name (tests/cluster asks them about many more).
    #[test]
    fn slots_match_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!([&b"foo"[..], b"bar", b""].map(slot), [12_182, 5_061, 0]);
    }

    #[test]
    fn crc16_of_eight_bytes_at_a_time_matches_crc16_byte_by_byte() {
        let one_by_one = |bytes: &[u8]| {
            bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
        };
        let bytes: Vec<u8> = (0..100_u8).map(|number| number.wrapping_mul(67).wrapping_add(13)).collect();
        for length in 0..bytes.len() {
            assert_eq!(crc16(&bytes[..length]), one_by_one(&bytes[..length]), "{length} bytes");
        }
    }

    #[test]
    fn the_first_hash_tag_determines_the_slot() {
        for key in ["{foo}", "a{foo}b", "{foo}{bar}", "a{foo}}"] {
            assert_eq!(slot(key.as_bytes()), slot(b"foo"), "{key}");
        }
        for key in ["{}foo", "foo{", "foo}", "{}{foo}", "}{"] {
            assert_eq!(tag(key.as_bytes()), key.as_bytes(), "{key}");
        }
        assert_eq!(tag(b"{{foo}}"), b"{foo");
    }
}
