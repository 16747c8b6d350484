//! Reads streams from new entries to old ones, one stream after the other. No I/O and no clock.
//!
//! Trimming removes the oldest entries, so only entries that have yet to be read can be lost. A loss is detected at the end of a
//! stream, from the replies to XINFO STREAM before and after reading.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use super::batch::ReadBatch;
use super::buffers::{Buffers, Read};
use super::errors::{bad_field, data_loss, is_of_stream, protocol, stream_refused, stream_replaced};
use super::exchange::Exchange;
use super::pages::{Pages, Taken};
use super::paging::Paging;
use super::position::{Place, Position};
use super::request;
use super::session::SessionOptions;
use super::standing::Standing;
use crate::entries::{BadValue, ColumnsPlan, EntryColumns};
use crate::error::{Fault, Result};
use crate::resp::EntryId;
use crate::resp::stream_reply::{EntrySink, Limits, Shape, StreamReply};
use crate::stream_facts::{Loss, NOT_COUNTED, StreamInfo};

/// One stream, read from its newest entry.
#[derive(Debug)]
pub(crate) struct Backward {
    key: Arc<[u8]>,
    /// The highest ID to read next; `None`: all entries were read.
    next: Option<EntryId>,
    /// The lowest ID to read.
    until: EntryId,
    paging: Paging,
    /// The server's description of the stream before the first page.
    begun: Option<StreamInfo>,
    /// Whether the first page starts with the newest entry.
    is_from_newest: bool,
    /// The number of entries that were read.
    read: u64,
    /// The ID directly above the first entry to read; `None`: above the newest one.
    begins: Option<EntryId>,
    is_finished: bool,
    standing: Standing,
}

impl Backward {
    /// Creates a stream that is read from `from` down to `until`, both inclusive. `from`: `None` if no entry is below the
    /// position.
    pub(crate) fn new(key: Arc<[u8]>, from: Option<EntryId>, until: EntryId, paging: Paging) -> Self {
        let begins = from.map_or(Some(EntryId::default()), EntryId::next);
        let next = from.filter(|from| *from >= until);
        Self {
            key,
            next,
            until,
            paging,
            begun: None,
            is_from_newest: false,
            read: 0,
            begins,
            is_finished: next.is_none(),
            standing: Standing::default(),
        }
    }

    fn begin(&mut self, info: StreamInfo) {
        self.is_from_newest = self.next.is_some_and(|next| next >= info.last_id);
        // Entries that are added from now on are not read by this reader.
        self.next = self.next.map(|next| next.min(info.last_id)).filter(|next| *next >= self.until && info.length > 0);
        self.begun = Some(info);
    }

    /// Counts an entry as read.
    fn read_on(&mut self, id: EntryId) {
        self.read += 1;
        self.next = id.previous().filter(|next| *next >= self.until);
    }

    /// The entries that trimming removed before they were read. `None`: the server cannot tell, and entries may be lost.
    fn loss(&self, info: &StreamInfo) -> Option<Loss> {
        let nothing = Some(Loss { entries: 0, exact: true });
        let Some(begun) = &self.begun else { return nothing };
        let Some(oldest) = begun.first_id else { return nothing };
        if info.first_id.is_some_and(|first| first <= self.until.max(oldest)) {
            return nothing;
        }
        if self.is_from_newest && oldest >= self.until {
            let entries = begun.length.saturating_sub(self.read);
            // The highest ID that was deleted says nothing about lower ones. Redis 6.2 does not tell it.
            let is_known = info.added.is_some() && info.max_deleted_id < oldest;
            return Some(Loss { entries, exact: entries == 0 || is_known });
        }
        let removed = info.removed()?.saturating_sub(begun.removed()?);
        Some(Loss { entries: removed, exact: removed == 0 })
    }
}

/// A command whose reply is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Begin,
    Page { count: u64 },
    End,
}

/// Entries that are being collected into a batch.
#[derive(Debug, Clone, Copy)]
struct Open {
    first_id: EntryId,
    last_id: EntryId,
}

/// The properties of a page, as found while reading it.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    entries: u64,
    /// The size of the names and values of its largest entry, in bytes.
    largest: u64,
    is_out_of_order: bool,
}

#[derive(Debug)]
pub(crate) struct BackwardSession {
    options: SessionOptions,
    streams: Vec<Backward>,
    /// The stream that is being read.
    at: usize,
    /// The number of entries that may still be read.
    left: u64,
    columns: EntryColumns,
    open: Option<Open>,
    /// The last entry that was read, if it does not fit its columns.
    bad: Option<(EntryId, BadValue)>,
    in_flight: Option<Ask>,
    page: Page,
    ready: VecDeque<Taken>,
    /// Whether the caller knows where the streams begin.
    has_begun: bool,
    lost: Loss,
    doubt: Option<&'static str>,
    /// The streams that did not exist when reading began, until the caller knows.
    missing: Vec<Arc<[u8]>>,
}

impl BackwardSession {
    pub(crate) fn new(streams: Vec<Backward>, options: SessionOptions, plan: &Arc<ColumnsPlan>) -> Self {
        Self {
            left: options.limit,
            options,
            columns: EntryColumns::new(plan),
            at: streams.iter().position(|stream| !stream.is_finished).unwrap_or(streams.len()),
            streams,
            open: None,
            bad: None,
            in_flight: None,
            page: Page::default(),
            ready: VecDeque::new(),
            has_begun: false,
            lost: Loss { entries: 0, exact: true },
            doubt: None,
            missing: Vec::new(),
        }
    }

    /// Reads the received part of a page; returns whether the page is complete.
    fn read_page(&mut self, count: u64, buffers: &mut Buffers) -> std::result::Result<bool, Fault> {
        loop {
            let Some(stream) = self.streams.get_mut(self.at) else { return Ok(true) };
            let limits = Limits { reply_entries: count, ..Limits::default() };
            if buffers.begin_reply(|| StreamReply::new(Shape::Entries, limits)) {
                self.page = Page::default();
                if self.open.is_none() {
                    self.columns.stream(&stream.key);
                }
            }
            let mut sink = Sink {
                stream,
                columns: &mut self.columns,
                open: &mut self.open,
                bad: &mut self.bad,
                left: &mut self.left,
                page: &mut self.page,
                before: None,
                is_left_out: false,
                size: 0,
            };
            let read = buffers.read(&mut sink);
            if self.page.is_out_of_order {
                return Err(protocol("entries that are not in the order of their IDs"));
            }
            match read? {
                Read::Part => return Ok(false),
                Read::Full => {
                    self.push_batch(None);
                    let key = Arc::clone(&self.streams[self.at].key);
                    self.columns.stream(&key);
                }
                Read::Whole => {
                    self.end_page(count, buffers.was_slow());
                    return Ok(true);
                }
                Read::Refused(fault) => return self.refuse(fault.of_command("XREVRANGE")).map(|()| true),
            }
        }
    }

    /// Ends a page of at most `count` entries. `is_slow`: whether the server was slower than the caller.
    fn end_page(&mut self, count: u64, is_slow: bool) {
        let (page, has_bad) = (self.page, self.bad.is_some());
        let Some(stream) = self.streams.get_mut(self.at) else { return };
        let is_full = page.entries >= count;
        stream.paging.page(page.largest, is_full, is_slow);
        if !is_full && !has_bad && self.left > 0 {
            stream.next = None;
        }
        let is_large =
            self.columns.rows() >= self.options.batch_rows || self.columns.bytes() >= self.options.batch_bytes;
        // The last batch of a stream waits until it is known whether entries are missing after it.
        if has_bad || self.left == 0 || (is_large && stream.next.is_some()) {
            self.push_batch(None);
        }
    }

    /// Adds a batch of the open entries, and an error for the entry after them that does not fit.
    fn push_batch(&mut self, lost: Option<Loss>) {
        let Some(stream) = self.streams.get_mut(self.at) else { return };
        let key = Arc::clone(&stream.key);
        let bad = self.bad.take();
        if let Some(Open { first_id, last_id }) = self.open.take() {
            let entries = self.columns.entries() as u64;
            let stream = Arc::clone(&key);
            let position = Position::default();
            let finished = self.columns.finish();
            let misspelt = self.columns.take_misspelt();
            let (ids, fields_at) = (self.columns.take_ids(), self.columns.fields_at());
            let result = finished.map(|batch| ReadBatch {
                batch,
                ids,
                fields_at,
                stream,
                entries,
                first_id,
                last_id,
                lost,
                misspelt,
                position,
            });
            let place = result.is_ok().then_some(last_id);
            self.push(&key, place, result);
        }
        if let Some((id, value)) = bad {
            self.push(&key, Some(id), Err(bad_field(&key, id, &value, None)));
        }
    }

    /// Adds a batch or an error, after which the stream continues below `id`.
    fn push(&mut self, stream: &Arc<[u8]>, id: Option<EntryId>, result: Result<ReadBatch>) {
        let place = id.map(|id| Place { id, is_entry: true, ..Place::default() });
        self.ready.push_back(Taken { stream: Arc::clone(stream), place, result });
    }

    /// Handles the server's refusal of a command about the stream that is being read: the next one follows.
    fn refuse(&mut self, fault: Fault) -> std::result::Result<(), Fault> {
        if !is_of_stream(&fault) {
            return Err(fault);
        }
        self.push_batch(None);
        if let Some(stream) = self.streams.get_mut(self.at)
            && stream.standing.refuse()
        {
            stream.is_finished = true;
            let key = Arc::clone(&stream.key);
            self.push(&key, None, Err(stream_refused(&key, &fault)));
        }
        Ok(())
    }

    /// Continues with the first stream that is not finished.
    fn go_on(&mut self) {
        self.at = self.streams.iter().position(|stream| !stream.is_finished).unwrap_or(self.streams.len());
    }

    /// Ends a stream with the server's description of it after all entries were read.
    fn end(&mut self, info: &StreamInfo) {
        let Some(stream) = self.streams.get_mut(self.at).filter(|stream| !stream.standing.is_left_out()) else {
            return;
        };
        let key = Arc::clone(&stream.key);
        let is_replaced = stream.begun.as_ref().is_some_and(|begun| info.last_id < begun.last_id);
        let loss = stream.loss(info);
        stream.is_finished = true;
        stream.standing = if is_replaced { Standing::Replaced } else { Standing::Read };
        self.doubt = self.doubt.or(loss.is_none().then_some(NOT_COUNTED));
        let loss = loss.filter(|loss| loss.entries > 0);
        if let Some(loss) = loss {
            self.lost = Loss { entries: self.lost.entries + loss.entries, exact: self.lost.exact && loss.exact };
        }
        let fails = self.options.fails_on_loss;
        self.push_batch(loss.filter(|_| !fails && !is_replaced));
        if is_replaced {
            let reason = "its last entry is older than the one it had at the beginning";
            self.push(&key, None, Err(stream_replaced(&key, reason)));
        } else if let Some(loss) = loss.filter(|_| fails) {
            // No entry of the stream is left to read.
            self.push(&key, Some(EntryId::default()), Err(data_loss(&key, loss, info.first_id)));
        }
    }
}

impl Pages for BackwardSession {
    fn take(&mut self) -> Option<Taken> {
        self.ready.pop_front()
    }

    fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn has_begun(&self) -> bool {
        self.streams.get(self.at).is_none_or(|stream| stream.begun.is_some()) || !self.ready.is_empty()
    }

    fn is_finished(&self) -> bool {
        self.is_handed_out() && (self.left == 0 || self.at >= self.streams.len())
    }

    fn is_handed_out(&self) -> bool {
        self.ready.is_empty() && self.open.is_none() && self.bad.is_none()
    }

    fn left(&mut self) -> &mut u64 {
        &mut self.left
    }

    fn has_more(&self) -> bool {
        !self.is_finished()
    }

    fn request(&mut self, _waits: Option<Duration>, buffers: &mut Buffers) {
        if self.in_flight.is_some() || self.is_ready() || self.left == 0 {
            return;
        }
        let Some(stream) = self.streams.get(self.at) else { return };
        let out = &mut buffers.out;
        self.in_flight = Some(match stream.next {
            _ if stream.begun.is_none() => {
                request::info(out, &stream.key);
                Ask::Begin
            }
            None => {
                request::info(out, &stream.key);
                Ask::End
            }
            Some(next) => {
                let room = self.options.batch_rows.saturating_sub(self.columns.rows()).max(1) as u64;
                let count = stream.paging.count().min(room).min(self.left).max(1);
                request::range_backward(out, &stream.key, next, stream.until, count);
                Ask::Page { count }
            }
        });
    }

    fn begun(&mut self) -> Vec<(Arc<[u8]>, Option<Place>)> {
        if std::mem::replace(&mut self.has_begun, true) {
            return Vec::new();
        }
        let place = |stream: &Backward| stream.begins.map(|id| Place { id, is_entry: true, ..Place::default() });
        self.streams.iter().map(|stream| (Arc::clone(&stream.key), place(stream))).collect()
    }

    fn standing(&self) -> Standing {
        Standing::greatest(self.streams.iter().map(|stream| stream.standing))
    }

    /// One stream is read after the other, so those that were refused are only asked about if no other one is left.
    fn try_again(&mut self, reports: bool) {
        for stream in self.streams.iter_mut().filter(|_| reports) {
            stream.standing.try_again(reports);
            stream.is_finished &= !stream.standing.is_suspect();
        }
        if self.in_flight.is_none() {
            self.go_on();
        }
    }

    fn drop_stream(&mut self, key: &[u8]) -> bool {
        let is_it = |stream: &Backward| *stream.key == *key && stream.standing != Standing::Dropped;
        let Some(at) = self.streams.iter().position(is_it) else { return false };
        if at == self.at {
            self.push_batch(None);
        }
        // Entries that the caller does not take do not count for the limit.
        self.left += self.ready.iter().map(|taken| taken.entries_of(key)).sum::<u64>();
        self.ready.retain(|taken| *taken.stream != *key);
        let stream = &mut self.streams[at];
        (stream.standing, stream.is_finished) = (Standing::Dropped, true);
        // A reply that is due is about the stream that was read.
        if self.in_flight.is_none() {
            self.go_on();
        }
        true
    }

    fn lost(&self) -> (u64, bool) {
        (self.lost.entries, self.lost.exact)
    }

    fn take_doubt(&mut self) -> Option<&'static str> {
        self.doubt.take()
    }

    fn take_missing(&mut self) -> Vec<Arc<[u8]>> {
        take(&mut self.missing)
    }
}

impl Exchange for BackwardSession {
    fn awaits_reply(&self) -> bool {
        self.in_flight.is_some()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> std::result::Result<bool, Fault> {
        let Some(ask) = self.in_flight else { return Ok(false) };
        if let Ask::Page { count } = ask {
            if !self.read_page(count, buffers)? {
                return Ok(false);
            }
        } else {
            match (buffers.take_info(), self.streams.get_mut(self.at)) {
                (Ok(None), _) => return Ok(false),
                (Err(fault), _) => self.refuse(fault)?,
                (Ok(Some(info)), Some(stream)) if ask == Ask::Begin => {
                    self.missing.extend(info.is_missing.then(|| Arc::clone(&stream.key)));
                    stream.begin(info);
                }
                (Ok(Some(info)), _) => self.end(&info),
            }
        }
        self.in_flight = None;
        self.go_on();
        Ok(true)
    }

    /// Keeps the entries that were read; the next page starts below them.
    fn disconnected(&mut self) {
        self.in_flight = None;
        self.go_on();
    }
}

/// The destination of the entries of a page.
struct Sink<'a> {
    stream: &'a mut Backward,
    columns: &'a mut EntryColumns,
    open: &'a mut Option<Open>,
    bad: &'a mut Option<(EntryId, BadValue)>,
    left: &'a mut u64,
    page: &'a mut Page,
    /// The open batch before the current entry.
    before: Option<Open>,
    /// Whether the current entry is left out.
    is_left_out: bool,
    size: u64,
}

impl EntrySink for Sink<'_> {
    /// A page has no names of streams.
    fn stream(&mut self, _key: &[u8]) {}

    #[inline]
    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        (self.is_left_out, self.size) = (true, 0);
        self.page.entries += 1;
        // The next page starts below an entry that does not fit.
        if *self.left == 0 || self.bad.is_some() || self.stream.standing.is_left_out() {
            return;
        }
        if self.stream.next.is_none_or(|next| id > next) || id < self.stream.until {
            self.page.is_out_of_order = true;
            return;
        }
        self.is_left_out = false;
        *self.left -= 1;
        self.stream.read_on(id);
        self.before = *self.open;
        let open = self.open.get_or_insert(Open { first_id: id, last_id: id });
        open.last_id = id;
        self.columns.entry(id, fields);
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += (name.len() + value.len()) as u64;
        if !self.is_left_out {
            self.columns.field(name, value);
        }
    }

    #[inline]
    fn end(&mut self) {
        self.page.largest = self.page.largest.max(self.size);
        if self.is_left_out {
            return;
        }
        self.columns.end();
        *self.bad = self.columns.take_bad();
        if self.bad.is_some() {
            // The batch ends before an entry that does not fit.
            *self.open = self.before;
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.page.is_out_of_order || (self.open.is_some() && self.columns.is_full())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow_schema::{DataType, Field};

    use super::*;
    use crate::entries::{BodyPlan, FieldsPlan, OnBadField};

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

    fn stream(from: EntryId, until: u64, read: u64) -> Backward {
        let mut stream = Backward::new(Arc::from(&b"s"[..]), Some(from), id(until), Paging::new(1 << 20, 100));
        stream.begin(info(100, 11));
        stream.read = read;
        stream
    }

    #[test]
    fn entries_trimmed_before_they_were_read_are_counted_at_the_end() {
        let exactly = |entries| Some(Loss { entries, exact: true });
        assert_eq!(stream(EntryId::MAX, 0, 90).loss(&info(100, 11)), exactly(0));
        assert_eq!(stream(EntryId::MAX, 0, 90).loss(&info(130, 51)), exactly(0), "trimmed behind the reader");
        assert_eq!(stream(EntryId::MAX, 0, 60).loss(&info(130, 51)), exactly(30));
        assert_eq!(stream(EntryId::MAX, 0, 60).loss(&info(130, 131)), exactly(30), "nothing is left");
        assert_eq!(stream(EntryId::MAX, 51, 50).loss(&info(130, 51)), exactly(0), "the rest was not asked for");
        let bound = Some(Loss { entries: 40, exact: false });
        assert_eq!(stream(id(80), 0, 30).loss(&info(130, 51)), bound, "it began within the stream");
        let deleted = StreamInfo { max_deleted_id: id(40), ..info(130, 51) };
        assert_eq!(stream(EntryId::MAX, 0, 60).loss(&deleted), Some(Loss { entries: 30, exact: false }));
        let old = |info: StreamInfo| StreamInfo { added: None, ..info };
        let bound = Some(Loss { entries: 30, exact: false });
        assert_eq!(stream(EntryId::MAX, 0, 60).loss(&old(info(130, 51))), bound, "deletions are not shown");
        let mut deleted_before = stream(EntryId::MAX, 0, 60);
        let max_deleted_id = id(90);
        deleted_before.begun = Some(StreamInfo { max_deleted_id, ..info(100, 11) });
        let lower = StreamInfo { max_deleted_id, ..info(130, 51) };
        assert_eq!(deleted_before.loss(&lower), bound, "one below the highest may have been deleted");
    }

    #[test]
    fn reading_backward_begins_with_the_newest_entry() {
        assert_eq!(stream(EntryId::MAX, 0, 0).next, Some(id(100)));
        assert_eq!(stream(id(50), 0, 0).next, Some(id(50)));
        assert_eq!(stream(id(50), 51, 0).next, None);
        let nothing = Backward::new(Arc::from(&b"s"[..]), None, id(0), Paging::new(1 << 20, 100));
        assert!(nothing.is_finished);
    }

    #[test]
    fn a_batch_ends_before_an_entry_that_does_not_fit() {
        let fields = vec![Field::new("v", DataType::Int64, true)];
        let body = BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Fail).unwrap());
        let plan = Arc::new(ColumnsPlan::new(Vec::new(), None, body).unwrap());
        let options = SessionOptions {
            batch_rows: 100,
            batch_bytes: 1 << 20,
            block: Duration::ZERO,
            linger: Duration::ZERO,
            limit: u64::MAX,
            follows: false,
            fails_on_loss: true,
        };
        let mut session = BackwardSession::new(vec![stream(EntryId::MAX, 0, 0)], options, &plan);
        session.in_flight = Some(Ask::Page { count: 16 });
        let entry =
            |id: &str, value: &str| format!("*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\nv\r\n$1\r\n{value}\r\n", id.len());
        let reply = format!("*3\r\n{}{}{}", entry("100-0", "1"), entry("99-0", "x"), entry("98-0", "2"));
        let mut buffers = Buffers::default();
        buffers.space()[..reply.len()].copy_from_slice(reply.as_bytes());
        session.received(reply.len(), &mut buffers).unwrap();
        let batch = session.take().unwrap();
        assert_eq!((batch.place.unwrap().id, batch.result.unwrap().last_id()), (id(100), id(100)));
        let error = session.take().unwrap();
        assert_eq!((error.place.unwrap().id, error.result.is_err()), (id(99), true));
    }
}
