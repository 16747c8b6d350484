//! The leases of shard consumers and the members of their groups: the hashes that hold them, and their rows.

use redis::Value;

use crate::admin::{Column, Command, Kind, TableBuilder};
use crate::error::{Fault, Result};
use crate::leases::{lease_key, members_key};
use crate::reading::{Place, Position};
use crate::resp::EntryId;
use crate::resp::value::{bytes, field, list};
use crate::stream_facts::{GroupPosition, StreamInfo};
use crate::utf8;

pub(super) const LEASE_COLUMNS: [Column; 12] = [
    ("stream", Kind::Text, false),
    ("group", Kind::Text, false),
    ("owner", Kind::Text, true),
    ("epoch", Kind::Number, false),
    ("until", Kind::Time, true),
    ("position", Kind::Text, true),
    ("committed_at", Kind::Time, true),
    ("lag", Kind::Number, true),
    ("lag_unknown_reason", Kind::Text, true),
    ("pinned", Kind::Text, true),
    ("failures", Kind::Number, true),
    ("reason", Kind::Text, true),
];

pub(super) const MEMBER_COLUMNS: [Column; 5] = [
    ("stream", Kind::Text, false),
    ("group", Kind::Text, false),
    ("name", Kind::Text, false),
    ("until", Kind::Time, false),
    ("streams", Kind::Number, false),
];

/// The lease that a group of shard consumers has of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseInfo {
    /// The member that owns the stream, also if its time is over; `None`: it was given up, or never taken.
    pub owner: Option<Vec<u8>>,
    /// The number of the lease, which is at least the server's time (ms) when it was taken; 0: it never was.
    pub epoch: u64,
    /// When it ends unless it is renewed, in ms of the server's clock.
    pub until: Option<u64>,
    /// The last commit; `None`: there was none.
    position: Option<Place>,
    /// When that was, in ms of the server's clock.
    pub committed_at: Option<u64>,
    /// The member that alone may take it.
    pub pinned: Option<Vec<u8>>,
    /// How often the first entry after the position has failed.
    pub failures: Option<u64>,
    /// Why it, or one of those that follow, failed the last time.
    pub reason: Option<Vec<u8>>,
}

/// A member of a group of shard consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its name.
    pub name: Vec<u8>,
    /// Until when it counts unless it is heard of again, in ms of the server's clock.
    pub until: u64,
}

impl LeaseInfo {
    /// The command that [`read`](Self::read) takes the reply of.
    pub(super) fn command(stream: &[u8], group: &[u8]) -> Command {
        Command::read("hgetall").key(&lease_key(stream, group))
    }

    /// `None`: there is no lease.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        if list(reply)?.is_empty() {
            return None;
        }
        let text = |name| field(reply, name).and_then(bytes).filter(|text| !text.is_empty());
        let owned = |name| text(name).map(<[u8]>::to_vec);
        let number = |name| text(name).and_then(number);
        Some(Self {
            owner: owned("owner"),
            epoch: number("epoch").unwrap_or_default(),
            until: number("until").filter(|until| *until > 0),
            position: text("position").and_then(place),
            committed_at: number("committed_at"),
            pinned: owned("pinned"),
            failures: number("failures").filter(|failures| *failures > 0),
            reason: owned("reason"),
        })
    }

    /// Whether its time is over. `now`: the server's, in microseconds.
    pub(super) fn has_ended(&self, now: Option<i64>) -> bool {
        let now = now.and_then(|now| u64::try_from(now / 1_000).ok()).unwrap_or_default();
        self.until.is_none_or(|until| until <= now)
    }

    /// The last entry that was committed, or the place where the group began to read.
    pub fn position(&self) -> Option<EntryId> {
        self.position.map(|place| place.id)
    }

    /// The number of entries of the stream that were not committed, or the reason that it is unknown. `group`: where the server
    /// says that the group is. It follows the lease, unless somebody moves it.
    pub fn lag(&self, group: &GroupPosition, stream: &StreamInfo) -> std::result::Result<u64, &'static str> {
        let Some(place) = self.position.filter(|place| place.id != group.last_delivered) else {
            return group.lag(stream);
        };
        // Entries that were deleted since do not wait.
        let counted = stream.added.zip(place.added).filter(|_| stream.max_deleted_id <= place.id);
        let lag = counted.map(|(all, added)| all.saturating_sub(added));
        GroupPosition { last_delivered: place.id, entries_read: place.added, lag }.lag(stream)
    }

    pub(super) fn push(
        &self,
        table: &mut TableBuilder,
        key: &[u8],
        group: &[u8],
        lag: std::result::Result<u64, &'static str>,
    ) -> Result<()> {
        let text = |text: &Option<Vec<u8>>| text.as_ref().map(|text| utf8::escape(text).into_owned());
        table.push([
            utf8::escape(key).into(),
            utf8::escape(group).into(),
            text(&self.owner).into(),
            self.epoch.cast_signed().into(),
            self.until.map(u64::cast_signed).into(),
            self.position().map(|id| id.to_string()).into(),
            self.committed_at.map(u64::cast_signed).into(),
            lag.ok().map(u64::cast_signed).into(),
            lag.err().map(str::to_owned).into(),
            text(&self.pinned).into(),
            self.failures.map(u64::cast_signed).into(),
            text(&self.reason).into(),
        ])
    }
}

impl MemberInfo {
    /// The command that [`read_all`](Self::read_all) takes the reply of. `stream`: the one with the smallest key that the members
    /// share; for others it finds none.
    pub(super) fn command(stream: &[u8], group: &[u8]) -> Command {
        Command::read("hgetall").key(&members_key(stream, group))
    }

    /// All members of the list, by name, also those that do not count any more.
    pub(super) fn read_all(reply: &Value) -> Vec<Self> {
        let pairs = list(reply).unwrap_or_default().chunks_exact(2);
        // What has no name counts streams that were given up.
        let member = |pair: &[Value]| {
            let name = bytes(pair.first()?).filter(|name| !name.is_empty())?;
            Some(Self { name: name.to_vec(), until: bytes(pair.last()?).and_then(number)? })
        };
        let mut members: Vec<_> = pairs.filter_map(member).collect();
        members.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        members
    }

    /// `streams`: how many it owns.
    pub(super) fn push(&self, table: &mut TableBuilder, key: &[u8], group: &[u8], streams: usize) -> Result<()> {
        table.push([
            utf8::escape(key).into(),
            utf8::escape(group).into(),
            utf8::escape(&self.name).into(),
            self.until.cast_signed().into(),
            i64::try_from(streams).unwrap_or(i64::MAX).into(),
        ])
    }
}

/// Whether a key holds no lease that the user may read: it is of another program, or the user lacks the right.
pub(super) fn is_unreadable(refusal: &Fault) -> bool {
    matches!(&*refusal.code, "NOPERM" | "WRONGTYPE")
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The place that a lease holds as the position of a reader.
fn place(text: &[u8]) -> Option<Place> {
    let position = Position::parse("position", std::str::from_utf8(text).ok()?).ok()?;
    position.streams().next().and_then(|key| position.get(key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hash(fields: &[(&str, &str)]) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(fields.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
    }

    #[test]
    fn a_lease_is_read_from_its_hash() {
        let position = r#"{"v":1,"streams":{"s:0":{"id":"7-0","n":7}}}"#;
        let fields = [
            ("owner", "a"),
            ("instance", "x"),
            ("epoch", "1700000000000"),
            ("until", "1700000010000"),
            ("commit", "3"),
            ("position", position),
            ("committed_at", "1700000003000"),
            ("failures", "2"),
            ("reason", "no"),
        ];
        let lease = LeaseInfo::read(&hash(&fields)).unwrap();
        let place = Place { id: EntryId { ms: 7, seq: 0 }, is_entry: true, added: Some(7), removed: None };
        let expected = LeaseInfo {
            owner: Some(b"a".to_vec()),
            epoch: 1_700_000_000_000,
            until: Some(1_700_000_010_000),
            position: Some(place),
            committed_at: Some(1_700_000_003_000),
            pinned: None,
            failures: Some(2),
            reason: Some(b"no".to_vec()),
        };
        assert_eq!(lease, expected);
        assert_eq!(LeaseInfo::read(&hash(&[])), None);
        let free = hash(&[("owner", ""), ("until", "0"), ("position", "what?"), ("pinned", "b")]);
        let expected = LeaseInfo { pinned: Some(b"b".to_vec()), ..LeaseInfo::default() };
        assert_eq!(LeaseInfo::read(&free), Some(expected));
    }

    #[test]
    fn members_are_read_without_the_count_of_releases() {
        let names: Vec<_> = MemberInfo::read_all(&hash(&[("b", "7"), ("", "3"), ("a", "5")]))
            .into_iter()
            .map(|each| each.name)
            .collect();
        assert_eq!(names, [b"a", b"b"]);
        assert_eq!(MemberInfo::read_all(&hash(&[])), []);
    }

    #[test]
    fn the_lag_is_that_of_the_lease_wherever_the_group_was_moved() {
        let id = |ms| EntryId { ms, seq: 0 };
        let place = Place { id: id(40), is_entry: true, added: Some(40), removed: None };
        let lease = LeaseInfo { position: Some(place), ..LeaseInfo::default() };
        let stream = StreamInfo {
            length: 100,
            first_id: Some(id(1)),
            newest_id: Some(id(100)),
            last_id: id(100),
            added: Some(100),
            ..StreamInfo::default()
        };
        let group = |at, lag| GroupPosition { last_delivered: id(at), entries_read: None, lag };
        assert_eq!(lease.lag(&group(40, Some(60)), &stream), Ok(60));
        assert_eq!(lease.lag(&group(90, Some(10)), &stream), Ok(60));
        assert_eq!(LeaseInfo::default().lag(&group(90, Some(10)), &stream), Ok(10));
        let deleted = StreamInfo { max_deleted_id: id(50), ..stream };
        assert!(lease.lag(&group(90, Some(10)), &deleted).is_err());
    }
}
