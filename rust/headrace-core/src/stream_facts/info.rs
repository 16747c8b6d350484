//! The reply to XINFO STREAM, [without the fields](crate::resp::outline::WITHOUT_FIELDS) of the entries that it shows.

use redis::Value;

use crate::resp::parts::{Part, Parts};
use crate::resp::value::list;
use crate::resp::{EntryId, entry_id};

/// A server's description of a stream: XINFO STREAM, <https://redis.io/docs/latest/commands/xinfo-stream/>.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamInfo {
    /// The number of entries.
    pub length: u64,
    /// The oldest entry; `None`: the stream is empty.
    pub first_id: Option<EntryId>,
    /// The newest entry; `None`: the stream is empty.
    pub newest_id: Option<EntryId>,
    /// The highest ID that any entry of the stream ever had.
    pub last_id: EntryId,
    /// The number of entries ever added. `None`: Redis 6.2 does not count them.
    pub added: Option<u64>,
    /// The highest ID that XDEL removed; trimming is not included. 0-0 if there is none, and before Redis 7.0.
    pub max_deleted_id: EntryId,
    /// The number of the stream's consumer groups.
    pub groups: u64,
    /// Whether there is no such stream: no entry was ever added to it.
    pub is_missing: bool,
}

/// A value of the reply.
enum Item<'a> {
    /// A number that is not negative.
    Number(u64),
    Text(&'a [u8]),
    /// An entry with its ID, which is empty if there is none.
    Entry(&'a [u8]),
    Other,
}

/// The parts of the reply that have been read.
#[derive(Default)]
struct Found {
    length: Option<u64>,
    last_id: Option<EntryId>,
    has_first_entry: bool,
    info: StreamInfo,
}

impl StreamInfo {
    /// The description of a stream that does not exist.
    pub(crate) fn missing() -> Self {
        Self { added: Some(0), is_missing: true, ..Self::default() }
    }

    /// The number of entries removed by trimming or XDEL.
    pub fn removed(&self) -> Option<u64> {
        self.added.map(|added| added.saturating_sub(self.length))
    }

    /// Reads the reply, and counts the bytes behind it; `None`: it is incomplete, is not such a reply, or lacks a field that
    /// every server sends.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut parts = Parts::of(bytes);
        let Part::Array(count) = parts.next()? else { return None };
        let mut found = Found::default();
        for _ in 0..count / 2 {
            let name = parts.next()?;
            if let Part::Array(parts_of_name) = name {
                parts.pass(parts_of_name)?;
            }
            let value = parts.next()?;
            let item = match value {
                Part::Number(number) => Item::Number(number),
                Part::Bulk(text) => Item::Text(text),
                Part::Array(0) => Item::Entry(b""),
                Part::Array(_) => match parts.clone().next()? {
                    Part::Bulk(id) => Item::Entry(id),
                    _ => Item::Entry(b""),
                },
                Part::Other => Item::Other,
            };
            if let Part::Bulk(name) = name {
                found.take(name, &item)?;
            }
            if let Part::Array(parts_of_value) = value {
                parts.pass(parts_of_value)?;
            }
        }
        Some((found.finish()?, parts.rest().len()))
    }

    /// Reads the reply as redis-rs has parsed it.
    pub(crate) fn of_value(reply: &Value) -> Option<Self> {
        let mut found = Found::default();
        for pair in list(reply)?.chunks_exact(2) {
            let [Value::BulkString(name), value] = pair else { continue };
            let item = match value {
                Value::Int(number) => u64::try_from(*number).map_or(Item::Other, Item::Number),
                Value::BulkString(text) => Item::Text(text),
                Value::Array(entry) => match entry.first() {
                    Some(Value::BulkString(id)) => Item::Entry(id),
                    _ => Item::Entry(b""),
                },
                _ => Item::Other,
            };
            found.take(name, &item)?;
        }
        found.finish()
    }
}

impl Found {
    /// Takes a name and its value. Unknown names are left out; `None`: an entry has no ID.
    fn take(&mut self, name: &[u8], item: &Item<'_>) -> Option<()> {
        match (name, item) {
            (b"length", Item::Number(number)) => self.length = Some(*number),
            (b"entries-added", Item::Number(number)) => self.info.added = Some(*number),
            (b"groups", Item::Number(number)) => self.info.groups = *number,
            (b"last-generated-id", Item::Text(id)) => self.last_id = entry_id(id),
            (b"max-deleted-entry-id", Item::Text(id)) => self.info.max_deleted_id = entry_id(id).unwrap_or_default(),
            (b"first-entry", Item::Entry(id)) => {
                (self.has_first_entry, self.info.first_id) = (true, Some(entry_id(id)?));
            }
            (b"first-entry", _) => self.has_first_entry = true,
            (b"last-entry", Item::Entry(id)) => self.info.newest_id = Some(entry_id(id)?),
            _ => {}
        }
        Some(())
    }

    fn finish(self) -> Option<StreamInfo> {
        let (length, last_id) = (self.length?, self.last_id?);
        self.has_first_entry.then_some(StreamInfo { length, last_id, ..self.info })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Names, each with its value as the server writes it.
    fn reply(fields: &[(&str, &str)]) -> Vec<u8> {
        let shown = |(name, value): &(&str, &str)| format!("{}{value}", bulk(name));
        format!("*{}\r\n{}", 2 * fields.len(), fields.iter().map(shown).collect::<String>()).into_bytes()
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// The description that both readers find in a reply.
    fn whole(reply: &[u8]) -> Option<StreamInfo> {
        let of_value = StreamInfo::of_value(&redis::parse_redis_value(reply).unwrap());
        let Some((info, rest)) = StreamInfo::read(reply) else {
            assert_eq!(of_value, None);
            return None;
        };
        assert_eq!((of_value.as_ref(), rest), (Some(&info), 0));
        Some(info)
    }

    #[test]
    fn old_servers_report_no_counts_and_empty_streams_no_first_entry() {
        let entry = |id| format!("*2\r\n{}*0\r\n", bulk(id));
        let (last, first, newest, deleted) = (bulk("7-18446744073709551615"), entry("5-0"), entry("7-0"), bulk("6-1"));
        let mut fields = vec![
            ("length", ":2\r\n"),
            ("last-generated-id", &*last),
            ("first-entry", &*first),
            ("last-entry", &*newest),
            ("groups", ":3\r\n"),
        ];
        let expected = StreamInfo {
            length: 2,
            last_id: EntryId { ms: 7, seq: u64::MAX },
            first_id: Some(EntryId { ms: 5, seq: 0 }),
            newest_id: Some(EntryId { ms: 7, seq: 0 }),
            groups: 3,
            ..StreamInfo::default()
        };
        assert_eq!(whole(&reply(&fields)).unwrap(), expected);
        fields.extend([("entries-added", ":9\r\n"), ("max-deleted-entry-id", &*deleted), ("new", "*1\r\n*0\r\n")]);
        let max_deleted_id = EntryId { ms: 6, seq: 1 };
        let counted = StreamInfo { added: Some(9), max_deleted_id, ..expected };
        assert_eq!(counted.removed(), Some(7));
        assert_eq!(whole(&reply(&fields)).unwrap(), counted);
        for nil in ["$-1\r\n", "*-1\r\n"] {
            fields[2].1 = nil;
            assert_eq!(whole(&reply(&fields)).unwrap().first_id, None);
        }
        fields[2].1 = "*0\r\n";
        assert_eq!(whole(&reply(&fields)), None, "an entry without an ID");
        for missing in 0..3 {
            let mut fields = fields.clone();
            fields[2].1 = "$-1\r\n";
            fields.remove(missing);
            assert_eq!(whole(&reply(&fields)), None);
        }
        assert_eq!(whole(b"*-1\r\n"), None);
    }
}
