//! The entries that trimming removed before they were read, computed from the replies to XINFO STREAM and the entries that were
//! read.

use super::StreamInfo;
use crate::resp::EntryId;

/// The note about a server that does not count entries.
pub(crate) const NOT_COUNTED: &str =
    "entries may have been trimmed before they were read: this server does not count them; Redis 7.0 and later do";
/// The note about a position as headrace 0.1 stored it, or one that comes from a server that does not count entries.
const NOT_COUNTED_BEFORE: &str = "the number of entries that were trimmed before they were read is an upper bound: the position \
                                  at which the reader began does not say how many entries had been added before it";

/// Entries that were removed before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// The number of entries; an upper bound unless `exact`.
    pub entries: u64,
    /// Whether `entries` is the exact number.
    pub exact: bool,
}

impl StreamInfo {
    /// The loss after a position that was taken earlier: `added` entries had been added up to `after`, and `removed` had been
    /// removed by then, as far as that is known. `None`: the server cannot tell, and entries may be lost.
    pub fn loss_after(&self, after: EntryId, added: Option<u64>, removed: Option<u64>) -> Option<Loss> {
        // Deletions before the position was taken are unknown.
        ReadSince { after, added, removed, ..ReadSince::default() }.loss(self)
    }
}

/// The entries read since the moment from which a loss is counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadSince {
    /// The last entry that had been read at that moment.
    pub(crate) after: EntryId,
    /// The number of entries added up to that entry; `None`: unknown.
    pub(crate) added: Option<u64>,
    /// The number of entries removed by then; `None`: unknown.
    pub(crate) removed: Option<u64>,
    /// The entries that were read since, in order.
    pub(crate) ids: Vec<EntryId>,
    /// Whether `added` may be too small: entries may have been added up to `after` since, which were not requested.
    pub(crate) is_bound: bool,
    /// `added` is exact if XDEL deleted no entry after this one: this entry existed when `added` was the server's own number. An
    /// entry that was deleted before it was read is missing from `added` from then on.
    pub(crate) exact_up_to: EntryId,
    /// Entries up to this one are in `added` although they were not read: they are lost. A replica that is late may return them.
    pub(crate) lost_up_to: EntryId,
}

impl ReadSince {
    /// The entries that were read since and are not in `added`.
    fn uncounted(&self) -> &[EntryId] {
        &self.ids[self.ids.partition_point(|id| *id <= self.lost_up_to)..]
    }

    /// The loss since that moment, according to `info` after the entries were read. `None`: the server cannot tell, and entries
    /// may be lost.
    ///
    /// All removed entries are older than those that remain. So the removed ones beyond `added` are lost, except those that were
    /// read before they were removed.
    pub(crate) fn loss(&self, info: &StreamInfo) -> Option<Loss> {
        let oldest = info.first_id;
        // Trimming has not reached this point if an entry up to `after` remains, or the one right behind it.
        let has_passed = oldest.is_none_or(|oldest| Some(oldest) > self.after.next()) && info.last_id > self.after;
        if !has_passed {
            return Some(Loss { entries: 0, exact: true });
        }
        let (removed, read) = (info.removed()?, self.uncounted());
        let read_and_removed = oldest.map_or(read.len(), |oldest| read.partition_point(|id| *id < oldest)) as u64;
        let (since, is_counted) = match (self.added, self.removed) {
            // The stream was recreated before any of its entries was read.
            (Some(added), _) if info.added < Some(added) => (removed, false),
            (Some(added), _) => (removed.saturating_sub(added), !self.is_bound),
            // Some of the entries removed since then were older than `after`.
            (None, Some(before)) => (removed.saturating_sub(before), false),
            (None, None) => (removed, false),
        };
        let entries = since.saturating_sub(read_and_removed);
        let may_have_error = info.max_deleted_id > self.exact_up_to;
        Some(Loss { entries, exact: entries == 0 || (is_counted && !may_have_error) })
    }

    /// A note for the caller about a [`loss`](Self::loss), besides its number.
    pub(crate) fn doubt(&self, loss: Option<Loss>) -> Option<&'static str> {
        match loss {
            None => Some(NOT_COUNTED),
            Some(loss) => {
                (loss.entries > 0 && self.added.is_none() && self.removed.is_none()).then_some(NOT_COUNTED_BEFORE)
            }
        }
    }

    /// The number of entries added up to the last one that was read, after `loss`; `None`: unknown.
    pub(crate) fn added_with(&self, loss: Loss, info: &StreamInfo) -> Option<u64> {
        let before = self.added.filter(|before| !self.is_bound && info.added >= Some(*before))?;
        Some(before.saturating_add(self.uncounted().len() as u64).saturating_add(loss.entries))
    }

    /// Counts an entry that was read, before which nothing is missing.
    #[inline]
    pub(crate) fn read_on(&mut self, id: EntryId) {
        self.after = id;
        if id > self.lost_up_to {
            self.added = self.added.map(|added| added.saturating_add(1));
        }
    }

    /// Notes that `loss`, which is in `added`, was computed from `info`.
    pub(crate) fn note(&mut self, loss: Loss, info: &StreamInfo) {
        if loss.entries > 0 {
            self.lost_up_to = info.first_id.and_then(EntryId::previous).unwrap_or(info.last_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// A stream to which the entries 1-0 to `added`-0 were added, and which lost all entries below `first`.
    fn trimmed(added: u64, first: u64) -> StreamInfo {
        StreamInfo {
            length: added + 1 - first,
            last_id: id(added),
            first_id: (first <= added).then_some(id(first)),
            added: Some(added),
            ..StreamInfo::default()
        }
    }

    fn read(after: u64, more: impl IntoIterator<Item = u64>) -> ReadSince {
        let ids = more.into_iter().map(id).collect();
        ReadSince { after: id(after), added: Some(after), ids, exact_up_to: id(after), ..ReadSince::default() }
    }

    #[test]
    fn entries_between_the_last_one_read_and_the_oldest_are_lost() {
        for (first, lost) in [(1, 0), (45, 0), (60, 0), (61, 0), (62, 1), (81, 20), (101, 40)] {
            assert_eq!(read(60, []).loss(&trimmed(100, first)), Some(Loss { entries: lost, exact: true }), "{first}");
        }
    }

    #[test]
    fn nothing_is_lost_between_an_entry_and_the_next_possible_one() {
        let unknown = ReadSince { added: None, ..read(60, []) };
        let next = EntryId { ms: 60, seq: 1 };
        for (first, entries) in [(next, 0), (EntryId { ms: 60, seq: 2 }, 60)] {
            let info = StreamInfo { first_id: Some(first), ..trimmed(100, 61) };
            assert_eq!(unknown.loss(&info).map(|loss| loss.entries), Some(entries), "{first:?}");
        }
    }

    #[test]
    fn entries_read_before_they_were_trimmed_are_not_lost() {
        // 61 to 70 were lost, 71 to 80 were read; later trimming continued to 76, or past all of them.
        for first in [71, 76, 81] {
            assert_eq!(
                read(60, 71..=80).loss(&trimmed(100, first)),
                Some(Loss { entries: 10, exact: true }),
                "{first}"
            );
        }
        assert_eq!(read(60, 61..=80).loss(&trimmed(100, 81)), Some(Loss { entries: 0, exact: true }));
        assert_eq!(read(60, 61..=100).loss(&trimmed(100, 101)), Some(Loss { entries: 0, exact: true }));
        // Entries that were removed after those that were read must be requested again: they are lost too.
        assert_eq!(read(60, 61..=80).loss(&trimmed(100, 91)), Some(Loss { entries: 10, exact: true }));
    }

    #[test]
    fn what_counts_as_lost_is_not_counted_again_when_a_replica_returns_it() {
        let mut since = read(60, []);
        let info = trimmed(100, 81);
        let loss = since.loss(&info).unwrap_or_default();
        assert_eq!(loss, Loss { entries: 20, exact: true });
        since.added = since.added_with(loss, &info);
        since.note(loss, &info);
        (61..=80).for_each(|ms| since.read_on(id(ms)));
        assert_eq!(since.added, Some(80));
        since.read_on(id(81));
        assert_eq!(since.added, Some(81));
        // The same without a proof: all up to 90-0 are gone, of which 81-0 to 90-0 were not read.
        let mut since = ReadSince { added: Some(80), lost_up_to: id(80), ..read(60, 71..=80) };
        assert_eq!(since.loss(&trimmed(100, 91)), Some(Loss { entries: 10, exact: true }));
        since.ids.push(id(81));
        assert_eq!(since.loss(&trimmed(100, 91)), Some(Loss { entries: 9, exact: true }));
    }

    #[test]
    fn deletions_make_the_loss_an_upper_bound() {
        let info = StreamInfo { max_deleted_id: id(90), length: 19, ..trimmed(100, 81) };
        assert_eq!(read(60, []).loss(&info), Some(Loss { entries: 21, exact: false }));
        // 55-0 was deleted before it was read, in mid-stream, so the reader counts one too few up to 60-0.
        let passed = ReadSince { added: Some(59), exact_up_to: id(20), ..read(60, []) };
        let info = StreamInfo { max_deleted_id: id(55), ..trimmed(100, 81) };
        assert_eq!(passed.loss(&info), Some(Loss { entries: 21, exact: false }));
        let behind = StreamInfo { max_deleted_id: id(50), ..trimmed(100, 81) };
        assert_eq!(read(60, []).loss(&behind), Some(Loss { entries: 20, exact: true }));
    }

    #[test]
    fn the_loss_after_a_position_is_exact_if_no_entry_was_ever_deleted() {
        let info = trimmed(100, 81);
        assert_eq!(info.loss_after(id(60), Some(60), None), Some(Loss { entries: 20, exact: true }));
        assert_eq!(info.loss_after(id(60), None, Some(50)), Some(Loss { entries: 30, exact: false }));
        assert_eq!(info.loss_after(id(80), None, None), Some(Loss { entries: 80, exact: false }), "there may be a gap");
        assert_eq!(info.loss_after(id(81), None, None), Some(Loss { entries: 0, exact: true }));
        // Entry 1 may have been deleted before it was read, and then `added` is too small.
        let deleted = StreamInfo { max_deleted_id: id(1), ..info };
        assert_eq!(deleted.loss_after(id(60), Some(60), None), Some(Loss { entries: 20, exact: false }));
    }

    #[test]
    fn without_a_count_the_loss_is_an_upper_bound_or_unknown() {
        let unknown = ReadSince { added: None, ..read(60, []) };
        assert_eq!(unknown.loss(&trimmed(100, 81)), Some(Loss { entries: 80, exact: false }));
        assert_eq!(unknown.doubt(unknown.loss(&trimmed(100, 81))), Some(NOT_COUNTED_BEFORE));
        assert_eq!(unknown.doubt(unknown.loss(&trimmed(100, 60))), None, "nothing is lost");
        let since = ReadSince { removed: Some(50), ..unknown.clone() };
        assert_eq!(since.loss(&trimmed(100, 81)), Some(Loss { entries: 30, exact: false }));
        assert_eq!(since.doubt(since.loss(&trimmed(100, 81))), None, "it may begin in mid-stream");
        assert_eq!(since.loss(&trimmed(100, 60)), Some(Loss { entries: 0, exact: true }));
        let old = StreamInfo { added: None, ..trimmed(100, 81) };
        assert_eq!(read(60, []).loss(&old), None);
        assert_eq!(read(60, []).doubt(None), Some(NOT_COUNTED));
        assert_eq!(
            read(60, []).loss(&StreamInfo { added: None, ..trimmed(100, 60) }),
            Some(Loss { entries: 0, exact: true })
        );
    }
}
