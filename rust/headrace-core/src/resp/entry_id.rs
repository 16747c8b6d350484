//! The ID of an entry in a stream.

use std::fmt;

use crate::decimal;

/// The ID of an entry in a stream: milliseconds and sequence number, ordered as the server orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// Milliseconds since the epoch, for IDs that the server chose.
    pub ms: u64,
    /// Sequence number within the millisecond.
    pub seq: u64,
}

impl EntryId {
    /// The highest possible ID.
    pub(crate) const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// The next higher ID; `None` after the highest one.
    pub(crate) fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The next lower ID; `None` before 0-0.
    pub(crate) fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// The ID with a sequence number that is `more` higher.
    pub(crate) fn after(self, more: u64) -> Self {
        Self { seq: self.seq.wrapping_add(more), ..self }
    }

    /// Appends the text of the ID, as `to_string` returns it.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        out.extend_from_slice(digits.format(self.ms).as_bytes());
        out.push(b'-');
        out.extend_from_slice(digits.format(self.seq).as_bytes());
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// Reads successive IDs: those of a stream mostly have the milliseconds of the previous one.
#[derive(Debug)]
pub(crate) struct EntryIdReader {
    /// The milliseconds that were read last, if they have thirteen digits.
    digits: [u8; 13],
    ms: u64,
}

impl Default for EntryIdReader {
    fn default() -> Self {
        Self { digits: [b'0'; 13], ms: 0 }
    }
}

impl EntryIdReader {
    /// Like [`entry_id`].
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<EntryId> {
        match bytes.split_first_chunk() {
            Some((digits, [b'-', seq @ ..])) if *digits == self.digits => {
                Some(EntryId { ms: self.ms, seq: sequence_number(seq)? })
            }
            _ => self.read_other(bytes),
        }
    }

    #[inline(never)]
    fn read_other(&mut self, bytes: &[u8]) -> Option<EntryId> {
        let id = entry_id(bytes)?;
        if let Some((digits, [b'-', ..])) = bytes.split_first_chunk() {
            (self.digits, self.ms) = (*digits, id.ms);
        }
        Some(id)
    }
}

/// `<ms>-<seq>`, both in 64 bits.
#[inline]
pub(crate) fn entry_id(bytes: &[u8]) -> Option<EntryId> {
    // From 2001 to 2286 the milliseconds have thirteen digits.
    let (ms, seq) = if let Some((ms, [b'-', seq @ ..])) = bytes.split_first_chunk() {
        (decimal::parse_thirteen(ms)?, seq)
    } else {
        let dash = bytes.iter().position(|&byte| byte == b'-')?;
        (decimal::parse(&bytes[..dash])?, &bytes[dash + 1..])
    };
    Some(EntryId { ms, seq: sequence_number(seq)? })
}

#[inline]
fn sequence_number(digits: &[u8]) -> Option<u64> {
    match digits {
        [digit @ b'0'..=b'9'] => Some(u64::from(digit - b'0')),
        digits => decimal::parse(digits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_up_to_the_end_of_their_range() {
        let max = format!("{}-{}", u64::MAX, u64::MAX);
        assert_eq!(entry_id(max.as_bytes()), Some(EntryId { ms: u64::MAX, seq: u64::MAX }));
        assert_eq!(entry_id(b"18446744073709551616-0"), None);
        assert_eq!(entry_id(b"0-0"), Some(EntryId { ms: 0, seq: 0 }));
        assert_eq!(entry_id(b"1795249090487-12"), Some(EntryId { ms: 1_795_249_090_487, seq: 12 }));
        for bad in ["", "-", "1-", "-1", "1", "1795249090487-", "1795249090487", "179524909048x-1", "1-1-1", "1--1"] {
            assert_eq!(entry_id(bad.as_bytes()), None, "{bad}");
        }
        assert!(EntryId { ms: 9, seq: 1 } < EntryId { ms: 10, seq: 0 });
    }

    #[test]
    fn consecutive_ids_are_read_as_if_each_were_the_first() {
        let mut reader = EntryIdReader::default();
        for text in [
            "0000000000000-7",
            "1795249090487-0",
            "1795249090487-1",
            "1795249090487-18446744073709551615",
            "1795249090487-18446744073709551616",
            "1795249090487-",
            "1795249090487",
            "17952490904871-2",
            "1795249090487-x",
            "1795249090488-0",
            "1795249090487-12",
            "5-1",
            "1795249090487-3",
            "\0\0\0\0\0\0\0\0\0\0\0\0\0-1",
        ] {
            assert_eq!(reader.read(text.as_bytes()), entry_id(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn an_id_is_written_as_it_is_displayed() {
        for id in [EntryId::default(), EntryId { ms: 1_795_249_090_487, seq: 12 }, EntryId::MAX] {
            let mut out = b"id ".to_vec();
            id.write(&mut out);
            assert_eq!(out, format!("id {id}").as_bytes());
        }
    }

    #[test]
    fn neighbours_are_exact_at_the_limits() {
        let id = |ms, seq| EntryId { ms, seq };
        for (lower, higher) in
            [(id(0, 0), id(0, 1)), (id(4, u64::MAX), id(5, 0)), (id(u64::MAX, u64::MAX - 1), EntryId::MAX)]
        {
            assert_eq!((lower.next(), higher.previous()), (Some(higher), Some(lower)));
        }
        assert_eq!((EntryId::MAX.next(), id(0, 0).previous()), (None, None));
    }
}
