//! How far a group is behind its stream, and how many entries were trimmed before it read them.
//!
//! Servers derive both from `entries-read`, the number of entries ever added up to the group's position, which Redis 7.0 and
//! later maintain, and which they sometimes lose (<https://redis.io/docs/latest/commands/xinfo-groups/>). In the most common
//! cases the first and last IDs of the stream say more, on every server.

use super::stream::StreamInfo;
use crate::command::EntryId;

/// A group's position.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// The last entry that it was given or that it skipped.
    pub last_delivered: EntryId,
    /// The number of entries ever added up to that entry. Since Redis 7.0; unknown to the server after the position was set
    /// to the middle of the stream.
    pub entries_read: Option<i64>,
    /// The lag that the server reports.
    pub(super) lag: Option<i64>,
}

/// The number of entries of the stream that the group has not been given, or why it is not known.
pub(super) fn lag(stream: &StreamInfo, group: &Position) -> Result<i64, &'static str> {
    let at = group.last_delivered;
    // The group may have read more since the stream was inspected.
    if stream.last.is_none_or(|last| at >= last) {
        return Ok(0);
    }
    if stream.first.is_some_and(|first| at < first) {
        return Ok(stream.length);
    }
    match (group.lag, group.entries_read) {
        // After skipping trimmed entries, Redis 7.0 continues from an old count.
        (Some(lag), _) => Ok(lag.clamp(0, stream.length)),
        (None, _) if stream.entries_added.is_none() => {
            Err("the server does not count: Redis 7.0 and later, and Valkey, do")
        }
        (None, None) => {
            Err("the group was set to an entry in the middle of the stream without its number (entries_read)")
        }
        (None, Some(_)) => Err("entries that the group has not read were deleted (XDEL)"),
    }
}

/// The number of entries that were removed before the group read them: their IDs are above its position, and it will never
/// read them.
///
/// Exact if entries are removed only by trimming. If entries were trimmed before the group read them, entries that XDEL
/// removed before its position are counted too. The server forgets the number when the group reads on.
pub(super) fn trimmed_unread(stream: &StreamInfo, group: &Position) -> Option<i64> {
    let at = group.last_delivered;
    // Trimming removes from the start: while an entry at or before the position exists, trimming has not passed it.
    if at >= stream.last_generated || stream.first.is_some_and(|first| first <= at) {
        return Some(0);
    }
    let added = stream.entries_added?;
    let removed = added - stream.length;
    if removed == 0 {
        return Some(0);
    }
    // A group at the start has read nothing, even if its count is unknown.
    let read = if at == (EntryId { ms: 0, seq: 0 }) { Some(0) } else { group.entries_read };
    read.map(|read| (removed - read).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// A stream with the entries `first` to `last`, of `added` entries ever added.
    fn stream(first: u64, last: u64, added: Option<i64>) -> StreamInfo {
        let length = if first == 0 { 0 } else { (last - first + 1).cast_signed() };
        let there = length > 0;
        StreamInfo {
            length,
            first: there.then(|| id(first)),
            last: there.then(|| id(last)),
            last_generated: id(last),
            entries_added: added,
            max_deleted: None,
            groups: 1,
        }
    }

    fn at(ms: u64, entries_read: Option<i64>, lag: Option<i64>) -> Position {
        Position { last_delivered: id(ms), entries_read, lag }
    }

    #[test]
    fn the_lag_at_both_ends_of_a_stream_is_known_on_every_server() {
        for added in [None, Some(100)] {
            let full = stream(41, 100, added);
            for (position, expected) in [(0, 60), (40, 60), (100, 0), (200, 0)] {
                assert_eq!(lag(&full, &at(position, None, None)), Ok(expected), "{position}");
            }
            assert_eq!(lag(&stream(0, 100, added), &at(3, None, None)), Ok(0), "an empty stream");
        }
    }

    #[test]
    fn the_lag_within_a_stream_is_that_of_the_server_or_unknown() {
        let new = stream(41, 100, Some(100));
        assert_eq!(lag(&new, &at(50, Some(50), Some(50))), Ok(50));
        assert_eq!(lag(&new, &at(41, Some(41), Some(59))), Ok(59), "the oldest entry was given");
        assert_eq!(lag(&new, &at(99, Some(4), Some(96))), Ok(60), "not more than there are");
        assert!(lag(&stream(41, 100, None), &at(50, None, None)).is_err_and(|reason| reason.contains("Redis 7.0")));
        assert!(lag(&new, &at(50, None, None)).is_err_and(|reason| reason.contains("entries_read")));
        assert!(lag(&new, &at(50, Some(50), None)).is_err_and(|reason| reason.contains("XDEL")));
    }

    #[test]
    fn trimmed_entries_count_as_lost_if_the_group_has_not_read_them() {
        let trimmed = stream(81, 100, Some(100));
        assert_eq!(trimmed_unread(&trimmed, &at(60, Some(60), Some(40))), Some(20));
        assert_eq!(trimmed_unread(&trimmed, &at(80, Some(80), Some(20))), Some(0));
        assert_eq!(trimmed_unread(&trimmed, &at(0, None, Some(20))), Some(80));
        assert_eq!(trimmed_unread(&trimmed, &at(60, None, None)), None, "without a count");
        assert_eq!(trimmed_unread(&stream(0, 100, Some(100)), &at(60, Some(60), None)), Some(40), "emptied");
        assert_eq!(trimmed_unread(&stream(0, 100, Some(100)), &at(100, None, None)), Some(0));
        assert_eq!(trimmed_unread(&stream(1, 100, Some(100)), &at(0, None, None)), Some(0), "nothing was removed");
        assert_eq!(trimmed_unread(&trimmed, &at(90, Some(4), Some(60))), Some(0), "an old count of Redis 7.0");
        assert_eq!(trimmed_unread(&trimmed, &at(60, Some(90), Some(10))), Some(0), "never negative");
        assert_eq!(trimmed_unread(&stream(81, 100, None), &at(60, None, None)), None, "Redis 6.2");
        assert_eq!(trimmed_unread(&stream(81, 100, None), &at(81, None, None)), Some(0));
    }
}
