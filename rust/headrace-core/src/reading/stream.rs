//! One stream of a reader: its position, and the entries that are not in a batch yet.

use std::sync::Arc;

use super::lag::Lag;
use super::paging::Paging;
use super::position::Place;
use super::range::{End, Start};
use super::standing::Standing;
use crate::entries::{BadValue, EntryColumns};
use crate::resp::EntryId;
use crate::stream_facts::{Loss, ReadSince, StreamInfo};

/// A stream that is read from old entries to new ones.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a separate fact
pub(crate) struct Stream {
    pub(crate) key: Arc<[u8]>,
    /// Where to begin and end, until the server has described the stream.
    pub(crate) asked: Option<(Start, End)>,
    /// The last entry to read; `None`: continue with new entries.
    pub(crate) until: Option<EntryId>,
    pub(crate) paging: Paging,
    /// Whether a request without BLOCK may return entries.
    pub(crate) is_behind: bool,
    /// The entries that were read since the last proof that none was lost.
    pub(crate) since: ReadSince,
    /// Whether the server must describe the stream although no entry needs proof: for example, a page had neither the last entry
    /// that was read nor any other.
    pub(crate) is_doubtful: bool,
    /// Whether `since.after` is an entry that was read, so that a page which begins with it has no gap before it.
    pub(crate) has_anchor: bool,
    /// The oldest entry as the server last described the stream, if it has not been read: a page that begins with it has no gap
    /// before it.
    pub(crate) oldest: Option<EntryId>,
    /// Whether no entry followed `since.after` when reading began there: any entry missing before the first one that is read was
    /// then lost.
    pub(crate) was_at_tail: bool,
    /// The oldest entry when reading began: once it is gone, entries before the first one that is read may be lost.
    pub(crate) oldest_at_start: Option<EntryId>,
    /// Whether the server may be a replica that lacks entries, and the wait for it.
    pub(crate) lag: Lag,
    pub(crate) standing: Standing,
    /// The place where reading begins; `None`: unknown.
    pub(crate) begins: Option<Place>,
    /// The entries that are not in a batch yet.
    pub(crate) open: Option<Open>,
    /// The loss, until a batch or an error reports it.
    pub(crate) lost: Option<Loss>,
    /// The last entry that was read, if it does not fit its columns: the next batch ends before it.
    pub(crate) bad: Option<Bad>,
}

/// An entry that does not fit the requested columns.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) id: EntryId,
    /// The entry before it.
    pub(crate) before: EntryId,
    pub(crate) value: BadValue,
}

/// Entries that are being collected into a batch.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) columns: Box<EntryColumns>,
    pub(crate) first_id: EntryId,
    /// The number of proven entries.
    pub(crate) proven: usize,
}

impl Stream {
    pub(crate) fn new(key: Arc<[u8]>, start: Start, end: End, paging: Paging) -> Self {
        let begins = match start {
            Start::After(place) => Some(place),
            Start::At(id) => id.previous().map(|id| Place { id, ..Place::default() }),
            Start::Earliest | Start::Latest => None,
        };
        Self {
            key,
            asked: Some((start, end)),
            until: None,
            paging,
            is_behind: true,
            is_doubtful: false,
            since: ReadSince::default(),
            has_anchor: false,
            oldest: None,
            was_at_tail: false,
            oldest_at_start: None,
            lag: Lag::default(),
            standing: Standing::default(),
            begins,
            open: None,
            lost: None,
            bad: None,
        }
    }

    /// Makes the start a place in a stream without entries: there is no stream now, so all entries that it will have are new.
    /// Returns whether it was none before.
    pub(crate) fn note_missing(&mut self) -> bool {
        let Some((start @ (Start::Earliest | Start::Latest | Start::At(_)), _)) = &mut self.asked else { return false };
        let place = start.place(&StreamInfo::missing());
        (*start, self.begins) = (Start::After(place), Some(place));
        true
    }

    /// Determines where to begin and end, from the server's description of the stream before an entry was read.
    pub(crate) fn begin(&mut self, start: Start, end: End, info: &StreamInfo) {
        let place = start.place(info);
        let is_position = matches!(start, Start::After(_));
        // Without counts in the position, all entries that were ever removed may have followed it.
        let removed = if is_position { place.removed } else { info.removed() };
        // Entries may be added below a start after the newest entry, and may have been added below that of a position.
        let is_start = !place.is_entry && place.id > EntryId::default();
        let is_bound = is_start && (is_position || place.id > info.last_id);
        // Entries deleted below the oldest entry count as read. What happened before a position was taken is not known.
        let oldest = info.first_id.and_then(EntryId::previous).unwrap_or(info.last_id);
        let exact_up_to = if is_position { EntryId::default() } else { place.id.max(oldest) };
        let ids = Vec::new();
        let lost_up_to = EntryId::default();
        self.since = ReadSince { after: place.id, added: place.added, removed, ids, is_bound, exact_up_to, lost_up_to };
        let has_id = is_position && place.id > EntryId::default();
        self.was_at_tail = has_id || (info.last_id <= place.id && info.last_id > EntryId::default());
        self.oldest_at_start = info.first_id;
        self.has_anchor = place.is_entry;
        self.begins = Some(place);
        self.until = end.last(info);
    }

    /// The place after the last proven entry, with the loss before it.
    pub(crate) fn proven(&self) -> Place {
        let ReadSince { after: id, added, removed, .. } = self.since;
        Place { id, is_entry: self.has_anchor, added, removed: removed.filter(|_| added.is_none()) }
    }

    /// The last entry that was read.
    pub(crate) fn after(&self) -> EntryId {
        self.since.ids.last().copied().unwrap_or(self.since.after)
    }

    /// The last entry that was read, even if the server was not asked about the stream yet; 0-0: there is none.
    pub(crate) fn read_up_to(&self) -> EntryId {
        match self.asked {
            Some((Start::After(place), _)) if place.is_entry => place.id,
            None if self.has_read() => self.after(),
            _ => EntryId::default(),
        }
    }

    /// Whether an entry was read, perhaps one that is not proven.
    fn has_read(&self) -> bool {
        self.has_anchor || !self.since.ids.is_empty()
    }

    /// Whether the server, which described the stream as `info`, lacks entries that were read, or that there were when reading
    /// began.
    pub(crate) fn lacks(&self, info: &StreamInfo) -> bool {
        info.last_id < self.read_up_to() || self.is_short(info) || self.had_more(info)
    }

    /// Whether fewer entries were ever added to the stream than were read. A replica that is late may have the last one of them
    /// and lack some that were lost after it.
    fn is_short(&self, info: &StreamInfo) -> bool {
        let (added, exact_up_to) = match self.asked {
            Some((Start::After(place), _)) if place.is_entry => (place.added, EntryId::default()),
            None if self.has_read() => (self.since.added, self.since.exact_up_to),
            _ => return false,
        };
        // An entry that was deleted after the last one that was read may have counted as read.
        info.max_deleted_id <= exact_up_to && added.zip(info.added).is_some_and(|(read, added)| added < read)
    }

    /// Whether more entries had been added or removed when the stream was last described, or at the position, and none of those
    /// that were read shows that the server has them.
    fn had_more(&self, info: &StreamInfo) -> bool {
        let (added, removed) = match self.asked {
            // All entries added before a position at 0-0 are gone.
            Some((Start::After(place), _)) if place.id == EntryId::default() => (place.added, place.added),
            Some((Start::After(place), _)) if !place.is_entry => (place.added, place.removed),
            None if !self.has_anchor => (self.since.added, self.since.removed),
            _ => return false,
        };
        let is_less = |now: Option<u64>, before| now.zip(before).is_some_and(|(now, before)| now < before);
        is_less(info.added, added) || is_less(info.removed(), removed)
    }

    /// Whether the last entries that were read need the proof that none was lost before them.
    pub(crate) fn is_unproven(&self) -> bool {
        !self.since.ids.is_empty() || self.is_doubtful
    }

    /// Whether the server must describe the stream.
    pub(crate) fn needs_info(&self) -> bool {
        let is_unknown = self.standing.is_suspect() || self.is_unproven() || self.asked.is_some();
        is_unknown && !self.standing.is_left_out() && !self.lag.waits()
    }

    /// Whether pages of the stream are to be requested, as soon as its beginning is known.
    pub(crate) fn has_pages(&self) -> bool {
        self.is_behind && !self.is_finished() && !self.standing.is_left_out()
    }

    /// Whether the last entry to read has been read.
    pub(crate) fn is_finished(&self) -> bool {
        self.after() == EntryId::MAX || self.until.is_some_and(|until| self.after() >= until)
    }

    /// The number of bytes in the open batch.
    pub(crate) fn bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.columns.bytes())
    }

    pub(crate) fn rows(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.columns.rows())
    }

    /// Handles the entry that a page begins with. Returns whether entries may be missing before it, beyond those that were
    /// reported.
    pub(crate) fn begins_with_gap(&mut self, first: EntryId) -> bool {
        let is_oldest = self.oldest == Some(first);
        self.since.is_bound &= !is_oldest;
        !is_oldest
    }

    /// Adds an entry that was read and follows the previous one. It is proven if that one is.
    #[inline]
    pub(crate) fn read_on(&mut self, id: EntryId) {
        if !self.since.ids.is_empty() {
            self.since.ids.push(id);
            return;
        }
        self.since.read_on(id);
        self.has_anchor = true;
        if let Some(open) = &mut self.open {
            open.proven += 1;
        }
    }

    /// The reason why `info` cannot describe the stream that was read.
    pub(crate) fn replaced(&self, info: &StreamInfo) -> Option<&'static str> {
        if info.last_id < self.read_up_to() {
            Some(if info.length == 0 {
                "it was deleted"
            } else {
                "its last entry is older than the one that was read last: it was deleted and recreated, or its server lost \
                 its latest entries"
            })
        } else if self.is_short(info) {
            Some("fewer entries were ever added to it than were read: it was deleted and recreated")
        } else {
            None
        }
    }

    /// Whether the entries without proof cannot be those of the stream that `info` describes: its oldest entry would have been read
    /// before them.
    pub(crate) fn is_contradicted(&self, info: &StreamInfo) -> bool {
        let ReadSince { after, ids, .. } = &self.since;
        info.first_id.zip(ids.first()).is_some_and(|(oldest, first)| oldest > *after && oldest < *first)
    }

    /// Marks all entries as proven: `loss` is missing before those that were not.
    pub(crate) fn prove(&mut self, info: &StreamInfo, loss: Option<Loss>) {
        let after = self.after();
        let added = match (info.added, loss) {
            // At the tail of the stream, the number of added entries is the server's.
            (Some(added), _) if info.last_id <= after => Some(added),
            (_, Some(loss)) => self.since.added_with(loss, info),
            _ => None,
        };
        let has_read = !self.since.ids.is_empty();
        self.has_anchor |= has_read;
        // A replica that is late may receive more below the start.
        self.since.is_bound = (self.since.is_bound && !has_read) || info.last_id < after;
        self.is_doubtful = false;
        self.since.ids.clear();
        (self.since.after, self.since.added, self.since.removed) = (after, added, info.removed());
        if info.last_id == after {
            self.since.exact_up_to = after;
        }
        if let Some(loss) = loss.filter(|loss| loss.entries > 0) {
            self.since.note(loss, info);
            let before = self.lost.unwrap_or(Loss { entries: 0, exact: true });
            self.lost = Some(Loss { entries: before.entries + loss.entries, exact: before.exact && loss.exact });
        }
        if let Some(open) = &mut self.open {
            open.proven = open.columns.entries();
            open.columns.hold(false);
        }
    }

    /// Marks all entries as proven, as if none were missing before them.
    pub(crate) fn prove_blindly(&mut self) {
        self.since.after = self.after();
        self.since.ids.clear();
        self.is_doubtful = false;
        (self.since.added, self.has_anchor) = (None, true);
    }

    /// Forgets the entries that are not proven. Returns the open batch if it has rows of those before them.
    pub(crate) fn forget_unproven(&mut self) -> Option<Open> {
        // An entry that is proven but does not fit must still be reported.
        self.bad.take_if(|_| !self.since.ids.is_empty());
        self.since.ids.clear();
        self.is_doubtful = false;
        self.is_behind = true;
        self.open.take().filter(|open| open.columns.rows_of(open.proven) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// A stream to which the entries 1-0 to `added`-0 were added, and which lost all entries below `first`.
    fn info(added: u64, first: u64) -> StreamInfo {
        StreamInfo {
            length: added + 1 - first,
            last_id: id(added),
            first_id: (first <= added).then_some(id(first)),
            added: Some(added),
            ..StreamInfo::default()
        }
    }

    #[test]
    fn a_loss_behind_a_start_that_a_replica_has_not_reached_is_an_upper_bound() {
        let start = Start::At(id(50));
        let mut stream = Stream::new(Arc::from(&b"s"[..]), start, End::Never, Paging::new(1 << 20, 100));
        stream.begin(start, End::Never, &info(100, 1));
        for late in [info(100, 1), info(40, 1)] {
            assert_eq!(stream.since.loss(&late), Some(Loss { entries: 0, exact: true }));
            stream.prove(&late, stream.since.loss(&late));
        }
        assert_eq!(stream.since.loss(&info(200, 151)), Some(Loss { entries: 110, exact: false }), "50 to 150 are lost");
    }

    #[test]
    fn a_server_that_ends_before_the_start_does_not_know_all_that_lies_before_it() {
        for (last, first) in [(60, 41), (60, 31), (5, 1)] {
            let start = Start::At(id(41));
            let mut stream = Stream::new(Arc::from(&b"s"[..]), start, End::Never, Paging::new(1 << 20, 100));
            stream.begin(start, End::Never, &info(last, first));
            for late in [info(5, 1), info(6, 3)] {
                let loss = stream.since.loss(&late);
                assert_eq!(loss.unwrap_or_default().entries, 0);
                stream.prove(&late, loss);
            }
            assert_eq!((stream.since.added, stream.since.is_bound), (Some(6), true), "{first}");
            assert!(!stream.since.loss(&info(60, 51)).unwrap_or_default().exact);
        }
    }

    #[test]
    fn a_server_with_lower_counts_lacks_something_if_nothing_was_read() {
        let start = Start::At(EntryId { ms: 40, seq: 1 });
        let mut stream = Stream::new(Arc::from(&b"s"[..]), start, End::Never, Paging::new(1 << 20, 100));
        stream.asked = None;
        stream.begin(start, End::Never, &info(60, 31));
        let late = info(40, 31);
        assert!(!stream.lacks(&late));
        stream.prove(&late, stream.since.loss(&late));
        for (info, lacks) in [(info(41, 31), false), (info(40, 30), true), (info(39, 31), true)] {
            assert_eq!(stream.lacks(&info), lacks, "{info:?}");
        }
    }

    #[test]
    fn a_page_was_not_read_from_a_stream_whose_oldest_entry_lies_before_its_first() {
        for (oldest, is_contradicted) in [(40, false), (41, true), (59, true), (60, false), (61, false)] {
            let start = Start::At(id(41));
            let mut stream = Stream::new(Arc::from(&b"s"[..]), start, End::Never, Paging::new(1 << 20, 100));
            stream.begin(start, End::Never, &info(100, 1));
            stream.since.ids.extend([id(60), id(61)]);
            assert_eq!(stream.is_contradicted(&info(100, oldest)), is_contradicted, "{oldest}");
        }
    }

    #[test]
    fn what_a_stream_loses_that_was_not_there_at_the_start_is_counted() {
        for (start, exact) in [(Start::Earliest, true), (Start::Latest, true), (Start::At(id(2)), false)] {
            let mut stream = Stream::new(Arc::from(&b"s"[..]), start, End::Never, Paging::new(1 << 20, 100));
            assert!(stream.note_missing() && !stream.note_missing());
            assert!(stream.begins.is_some(), "a position has it");
            if let Some((start, end)) = stream.asked.take() {
                stream.begin(start, end, &info(5, 5));
            }
            assert_eq!(stream.since.loss(&info(5, 5)), Some(Loss { entries: 4, exact }), "{start:?}");
        }
    }
}
