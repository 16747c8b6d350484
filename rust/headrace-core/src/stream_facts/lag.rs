//! The lag of a group or a reader behind its stream, and the number of entries that were trimmed before a group read them.
//!
//! Servers derive the lag from `entries-read`, the number of entries ever added up to the group's position, which Redis 7.0 and
//! later maintain, and which they sometimes lose (<https://redis.io/docs/latest/commands/xinfo-groups/>). In the most common
//! cases the first and last IDs of the stream say more, on every server.

use super::StreamInfo;
use crate::resp::EntryId;

/// A group's position, as XINFO GROUPS shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPosition {
    /// The last entry that the group was given or that it skipped.
    pub last_delivered: EntryId,
    /// The number of entries ever added up to that entry. Since Redis 7.0; unknown to the server after the position was set
    /// without it, until the group reads the newest entry, or the oldest.
    pub entries_read: Option<u64>,
    /// The lag that the server reports.
    pub(crate) lag: Option<u64>,
}

impl StreamInfo {
    /// The number of entries after `id`: exact at both ends of the stream, and between them `counted`.
    pub fn entries_after(&self, id: EntryId, counted: Option<u64>) -> Option<u64> {
        // A group may have read more since the server described the stream.
        if self.newest_id.is_none_or(|newest| id >= newest) {
            return Some(0);
        }
        if self.first_id.is_some_and(|first| id < first) {
            return Some(self.length);
        }
        // After skipping trimmed entries, Redis 7.0 continues from an old count.
        counted.map(|counted| counted.min(self.length))
    }
}

impl GroupPosition {
    /// The number of entries of the stream that the group has not been given, or the reason that it is unknown.
    pub fn lag(&self, stream: &StreamInfo) -> Result<u64, &'static str> {
        stream.entries_after(self.last_delivered, self.lag).ok_or_else(|| {
            if stream.added.is_none() {
                "the server does not count: Redis 7.0 and later, and Valkey, do"
            } else if stream.max_deleted_id > self.last_delivered {
                "an entry after the position of the group was deleted (XDEL)"
            } else {
                "the group was set to an entry in the middle of the stream without its number (entries_read), or has read past \
                 a deleted entry"
            }
        })
    }

    /// The number of entries that were removed before the group read them: their IDs are above its position, and it will never
    /// read them. `None`: the server cannot tell.
    ///
    /// Exact if entries are removed only by trimming. If entries were trimmed before the group read them, entries that XDEL
    /// removed before its position are counted too. The server forgets the number when the group reads on.
    ///
    /// No server says when a group was created. A group at 0-0 has read nothing, so all removed entries count, also those that
    /// had been removed before it was created; `entries_read` says otherwise if it was given with the position.
    pub fn trimmed_unread(&self, stream: &StreamInfo) -> Option<u64> {
        let is_at_start = self.last_delivered == EntryId::default();
        // A number above that of all entries was not counted by the server.
        let read = self.entries_read.or(is_at_start.then_some(0)).filter(|read| Some(*read) <= stream.added);
        let loss = stream.loss_after(self.last_delivered, read, None)?;
        (loss.entries == 0 || read.is_some()).then_some(loss.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// A stream with the entries `first` to `last`, of `added` entries ever added.
    fn stream(first: u64, last: u64, added: Option<u64>) -> StreamInfo {
        let there = first > 0;
        StreamInfo {
            length: if there { last - first + 1 } else { 0 },
            first_id: there.then(|| id(first)),
            newest_id: there.then(|| id(last)),
            last_id: id(last),
            added,
            ..StreamInfo::default()
        }
    }

    fn at(ms: u64, entries_read: Option<u64>, lag: Option<u64>) -> GroupPosition {
        GroupPosition { last_delivered: id(ms), entries_read, lag }
    }

    #[test]
    fn the_lag_at_both_ends_of_a_stream_is_known_on_every_server() {
        for added in [None, Some(100)] {
            let full = stream(41, 100, added);
            for (position, expected) in [(0, 60), (40, 60), (100, 0), (200, 0)] {
                assert_eq!(at(position, None, None).lag(&full), Ok(expected), "{position}");
            }
            assert_eq!(at(3, None, None).lag(&stream(0, 100, added)), Ok(0), "an empty stream");
        }
    }

    #[test]
    fn the_lag_within_a_stream_is_that_of_the_server_or_unknown() {
        let new = stream(41, 100, Some(100));
        assert_eq!(at(50, Some(50), Some(50)).lag(&new), Ok(50));
        assert_eq!(at(41, Some(41), Some(59)).lag(&new), Ok(59), "the oldest entry was given");
        assert_eq!(at(99, Some(4), Some(96)).lag(&new), Ok(60), "not more than there are");
        let deleted = StreamInfo { max_deleted_id: id(51), ..new.clone() };
        for (stream, position, reason) in [
            (&stream(41, 100, None), at(50, None, None), "Redis 7.0"),
            (&new, at(50, None, None), "entries_read"),
            (&deleted, at(50, Some(50), None), "XDEL"),
            (&deleted, at(50, None, None), "XDEL"),
            (&deleted, at(51, None, None), "past a deleted entry"),
        ] {
            assert!(position.lag(stream).is_err_and(|text| text.contains(reason)), "{position:?}");
        }
    }

    #[test]
    fn trimmed_entries_count_as_lost_if_the_group_has_not_read_them() {
        let (trimmed, emptied) = (stream(81, 100, Some(100)), stream(0, 100, Some(100)));
        for (stream, position, unread) in [
            (&trimmed, at(60, Some(60), Some(40)), Some(20)),
            (&trimmed, at(80, Some(80), Some(20)), Some(0)),
            (&trimmed, at(90, Some(4), Some(60)), Some(0)), // an old count of Redis 7.0
            (&trimmed, at(60, None, None), None),
            (&trimmed, at(60, Some(90), Some(10)), Some(0)), // never negative
            (&trimmed, at(60, Some(101), None), None),       // no server counts so
            (&emptied, at(60, Some(60), None), Some(40)),
            (&emptied, at(100, None, None), Some(0)),
            (&stream(81, 100, None), at(60, None, None), None), // Redis 6.2
            (&stream(81, 100, None), at(81, None, None), Some(0)),
        ] {
            assert_eq!(position.trimmed_unread(stream), unread, "{position:?} {stream:?}");
        }
    }

    #[test]
    fn a_group_at_the_start_has_read_nothing_unless_it_was_given_a_number() {
        let trimmed = stream(81, 100, Some(100));
        assert_eq!(at(0, None, Some(20)).trimmed_unread(&trimmed), Some(80));
        assert_eq!(at(0, Some(0), Some(100)).trimmed_unread(&trimmed), Some(80));
        assert_eq!(at(0, Some(80), Some(20)).trimmed_unread(&trimmed), Some(0), "what was trimmed before it began");
        assert_eq!(at(0, None, None).trimmed_unread(&stream(1, 100, Some(100))), Some(0), "nothing was removed");
        assert_eq!(at(0, None, None).trimmed_unread(&stream(81, 100, None)), None, "Redis 6.2");
    }
}
