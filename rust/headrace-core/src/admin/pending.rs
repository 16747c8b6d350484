//! A pending entry.

use redis::Value;

use crate::resp::value::{bytes, integer, list};
use crate::resp::{EntryId, entry_id};

/// One pending entry, as in the reply to XPENDING with a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pending<'a> {
    pub(crate) id: EntryId,
    pub(crate) consumer: &'a [u8],
    /// Milliseconds since the entry was last delivered.
    pub(crate) idle: i64,
    pub(crate) deliveries: i64,
}

impl<'a> Pending<'a> {
    pub(crate) fn read(entry: &'a Value) -> Option<Self> {
        let [id, consumer, idle, deliveries] = list(entry)? else { return None };
        Some(Self {
            id: entry_id(bytes(id)?)?,
            consumer: bytes(consumer)?,
            idle: integer(idle)?,
            deliveries: integer(deliveries)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_entry_has_four_parts() {
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        let parts = |id| vec![text(id), text(b"c\xff"), Value::Int(12), Value::Int(3)];
        let entry = Value::Array(parts(b"5-1"));
        let expected = Pending { id: EntryId { ms: 5, seq: 1 }, consumer: b"c\xff", idle: 12, deliveries: 3 };
        assert_eq!(Pending::read(&entry), Some(expected));
        assert_eq!(Pending::read(&Value::Array(parts(b"5"))), None);
        assert_eq!(Pending::read(&Value::Array(parts(b"5-1")[..3].to_vec())), None);
        assert_eq!(Pending::read(&Value::Nil), None);
    }
}
