//! The ID of an entry in a stream.

use std::fmt;

use crate::decimal;

/// The ID of an entry in a stream: milliseconds and sequence number, ordered as the server orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the epoch, for IDs that the server chose.
    pub ms: u64,
    /// Sequence number within the millisecond.
    pub seq: u64,
}

impl EntryId {
    /// The ID with a sequence number that is `more` higher.
    pub(crate) fn after(self, more: u64) -> Self {
        Self { seq: self.seq.wrapping_add(more), ..self }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// `<ms>-<seq>`, both in 64 bits.
pub(crate) fn entry_id(bytes: &[u8]) -> Option<EntryId> {
    let dash = bytes.iter().position(|&byte| byte == b'-')?;
    Some(EntryId { ms: decimal::parse(&bytes[..dash])?, seq: decimal::parse(&bytes[dash + 1..])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_reach_to_the_end_of_their_range() {
        let max = format!("{}-{}", u64::MAX, u64::MAX);
        assert_eq!(entry_id(max.as_bytes()), Some(EntryId { ms: u64::MAX, seq: u64::MAX }));
        assert_eq!(entry_id(b"18446744073709551616-0"), None);
        assert_eq!(entry_id(b"0-0"), Some(EntryId { ms: 0, seq: 0 }));
        assert!(EntryId { ms: 9, seq: 1 } < EntryId { ms: 10, seq: 0 });
    }
}
