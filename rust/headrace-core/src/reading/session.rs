//! What a reader asks for next, and what the replies mean: bytes in, batches out. No I/O and no clock.
//!
//! A page begins with the entry that was read last, so that the page itself shows that nothing was trimmed in between. Where that
//! entry is gone, and for entries that came by a blocked XREAD, the numbers of XINFO STREAM show what was lost, before a batch
//! has them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::batch::ReadBatch;
use super::exchange::Exchange;
use super::input::Input;
use super::loss::{Loss, StreamInfo};
use super::position::{Place, Position};
use super::sink::{Page, Sink};
use super::stream::{Bad, Open, Stream};
use super::{info, request};
use crate::entries::{ColumnsPlan, EntryColumns, escaped};
use crate::error::{Error, Fault, Result, code};
use crate::resp::EntryId;
use crate::resp::framing::{Framing, MAX_REPLY};
use crate::resp::stream_reply::{Limits, Scanned, Shape, StreamReply, Wrong};

/// The most commands of one request.
const MAX_COMMANDS: usize = 64;

/// With at most this number of streams, the request that waits for entries also asks for what was lost before them. For more, that is asked
/// about those that got entries, by a request of its own.
const FEW_STREAMS: usize = 8;

/// The most columns kept for the next batches.
const MAX_SPARE: usize = 4;

/// How much a session reads at a time, and what it does about what it missed.
#[derive(Debug, Clone)]
pub(crate) struct SessionOptions {
    pub(crate) batch_rows: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) block: Duration,
    /// How long entries wait for more of them.
    pub(crate) linger: Duration,
    /// The most entries of all batches.
    pub(crate) limit: u64,
    /// Whether to go on when all entries were read.
    pub(crate) follows: bool,
    pub(crate) fails_on_loss: bool,
}

/// A command whose reply is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Page { stream: usize, count: u64 },
    Follow { count: u64, block: Option<Duration> },
    Info { stream: usize },
}

/// Whether entries at the tail wait for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linger {
    No,
    /// The caller is to wait before the next request.
    Waits,
    /// It has waited.
    Over,
}

#[derive(Debug)]
pub(crate) struct Session {
    options: SessionOptions,
    plan: Arc<ColumnsPlan>,
    streams: Vec<Stream>,
    spare: Vec<EntryColumns>,
    /// The entries that may still be read.
    left: u64,
    in_flight: VecDeque<Ask>,
    out: Vec<u8>,
    sent: usize,
    input: Input,
    reply: Option<StreamReply>,
    framing: Framing,
    pages: Vec<(usize, Page)>,
    /// Bytes that must be there before another look at them helps.
    needed: usize,
    ready: VecDeque<Result<ReadBatch>>,
    linger: Linger,
    /// The stream whose turn it is.
    turn: usize,
    /// Whether entries may have been lost that the server does not count.
    may_have_lost: bool,
    /// How many entries were lost so far, in all streams, and whether that is exact.
    lost: Loss,
    /// How long the caller waited for the pages of this request, and how long it took to read them.
    waited: Duration,
    busy: Duration,
}

impl Session {
    pub(crate) fn new(streams: Vec<Stream>, options: SessionOptions, plan: Arc<ColumnsPlan>) -> Self {
        Self {
            left: options.limit,
            options,
            plan,
            streams,
            spare: Vec::new(),
            in_flight: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            input: Input::default(),
            reply: None,
            framing: Framing::default(),
            pages: Vec::new(),
            needed: 1,
            ready: VecDeque::new(),
            linger: Linger::No,
            turn: 0,
            may_have_lost: false,
            lost: Loss { entries: 0, exact: true },
            waited: Duration::ZERO,
            busy: Duration::ZERO,
        }
    }

    /// Where the batches so far end.
    pub(crate) fn position(&self) -> Position {
        let places = self.streams.iter().map(|stream| (stream.key.to_vec(), stream.handed_out)).collect();
        Position { places, is_reverse: false }
    }

    /// The next batch, or what kept it from being read.
    pub(crate) fn take(&mut self) -> Option<Result<ReadBatch>> {
        self.ready.pop_front()
    }

    /// Whether [`take`](Self::take) has something.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether it is known where each stream begins and ends.
    pub(crate) fn has_begun(&self) -> bool {
        self.streams.iter().all(|stream| stream.asked.is_none())
    }

    /// Whether there will be no further batch.
    pub(crate) fn is_finished(&self) -> bool {
        let is_read = |stream: &Stream| {
            stream.asked.is_none() && (stream.is_finished() || (!self.options.follows && !stream.is_behind))
        };
        let is_empty = self.ready.is_empty() && self.in_flight.is_empty();
        let is_handed_out =
            self.streams.iter().all(|stream| stream.open.is_none() && stream.bad.is_none() && !stream.is_unproven());
        is_empty && is_handed_out && (self.left == 0 || self.streams.iter().all(is_read))
    }

    /// How many entries were lost so far, in all streams, and whether that is exact.
    pub(crate) fn lost(&self) -> (u64, bool) {
        (self.lost.entries, self.lost.exact)
    }

    /// Whether entries may have been lost that the server does not count. Asked once.
    pub(crate) fn take_doubt(&mut self) -> bool {
        std::mem::take(&mut self.may_have_lost)
    }

    /// How long to wait before [`request`](Self::request), for more entries; zero: not at all.
    pub(crate) fn pause(&self) -> Duration {
        if self.linger == Linger::Waits { self.options.linger } else { Duration::ZERO }
    }

    /// The caller has waited for that long.
    pub(crate) fn paused(&mut self) {
        self.linger = Linger::Over;
    }

    /// Writes the next commands, unless replies are to come, batches are ready or there is nothing to ask for. `waits`: for how long
    /// the server may wait for new entries; `None`: they are not asked for.
    pub(crate) fn request(&mut self, waits: Option<Duration>) {
        if self.awaits_reply() || !self.ready.is_empty() || self.linger == Linger::Waits || self.is_finished() {
            return;
        }
        (self.waited, self.busy) = (Duration::ZERO, Duration::ZERO);
        let unknown: Vec<usize> = self.which(|stream| stream.is_unproven() || stream.asked.is_some());
        if !unknown.is_empty() {
            for stream in unknown.into_iter().take(MAX_COMMANDS) {
                self.ask_info(stream);
            }
            return;
        }
        if self.ask_pages() || !self.options.follows {
            return;
        }
        let Some(waits) = waits else { return };
        let streams = self.streams.len() as u64;
        let fewest = self.streams.iter().map(|stream| stream.paging.count()).min().unwrap_or(1);
        let room = self.options.batch_rows.saturating_sub(self.streams.iter().map(Stream::rows).max().unwrap_or(0));
        let count = (fewest / streams).min(room as u64).min(self.left).max(1);
        let block = Some(waits.min(self.options.block)).filter(|block| self.linger == Linger::No && !block.is_zero());
        let places = self.streams.iter().map(|stream| (&*stream.key, stream.after()));
        request::follow(&mut self.out, places, count, block);
        self.in_flight.push_back(Ask::Follow { count, block });
        if self.streams.len() <= FEW_STREAMS {
            for stream in 0..self.streams.len() {
                self.ask_info(stream);
            }
        }
    }

    fn which(&self, is_one: impl Fn(&Stream) -> bool) -> Vec<usize> {
        self.streams.iter().enumerate().filter(|(_, stream)| is_one(stream)).map(|(at, _)| at).collect()
    }

    fn ask_info(&mut self, stream: usize) {
        request::info(&mut self.out, &self.streams[stream].key);
        self.in_flight.push_back(Ask::Info { stream });
    }

    /// Asks for pages of the streams that are behind, as many as fit into one page together; returns whether there are any.
    fn ask_pages(&mut self) -> bool {
        let mut bytes = 0;
        let total = self.streams.len();
        let first = self.turn;
        for at in (first..first + total).map(|at| at % total) {
            let stream = &self.streams[at];
            if !stream.is_behind || stream.is_finished() {
                continue;
            }
            if bytes > 0
                && (bytes + stream.paging.bytes() > stream.paging.page_bytes() || self.in_flight.len() >= MAX_COMMANDS)
            {
                self.turn = at;
                break;
            }
            bytes += stream.paging.bytes();
            let room = (self.options.batch_rows - stream.rows().min(self.options.batch_rows)).max(1) as u64;
            let count = stream.paging.count().min(room).min(self.left).max(1) + u64::from(stream.has_anchor);
            let first = if stream.has_anchor { Some(stream.after()) } else { stream.after().next() };
            let last = stream.until.unwrap_or(EntryId::MAX);
            let has_anchor = stream.has_anchor;
            let Some(first) = first else { continue };
            request::range(&mut self.out, &stream.key, first, last, count);
            self.in_flight.push_back(Ask::Page { stream: at, count });
            if !has_anchor {
                self.ask_info(at);
            }
        }
        !self.in_flight.is_empty()
    }

    /// Reads what is there of a reply with entries; returns whether that was all of it.
    fn read_entries(&mut self, shape: Shape, stream: usize, count: u64) -> std::result::Result<bool, Fault> {
        let is_new = self.reply.is_none();
        if is_new {
            self.pages.clear();
            if shape == Shape::Entries {
                self.pages.push((stream, Page::default()));
            }
        }
        let streams = if shape == Shape::Entries { 1 } else { self.streams.len() as u64 };
        let limits = Limits { reply_entries: count.saturating_mul(streams), streams, ..Limits::default() };
        let reply = self.reply.get_or_insert_with(|| StreamReply::new(shape, limits));
        let anchor = match (shape, self.streams.get(stream)) {
            (Shape::Entries, Some(stream)) if stream.has_anchor => Some(stream.after()),
            _ => None,
        };
        let mut violation = None;
        let mut sink = Sink {
            streams: &mut self.streams,
            plan: &self.plan,
            spare: &mut self.spare,
            left: &mut self.left,
            anchor,
            pages: &mut self.pages,
            violation: &mut violation,
            is_left_out: false,
            before: EntryId::default(),
            size: 0,
        };
        let scanned = reply.scan(self.input.unread(), &mut sink);
        if let Some(violation) = violation {
            return Err(protocol(violation));
        }
        let Scanned { consumed, done, needed } = match scanned {
            Ok(scanned) => scanned,
            Err(Wrong::Violation(violation)) => return Err(protocol(violation.0)),
            Err(Wrong::Error(text)) => {
                let unread = self.input.unread();
                return Err(Fault::from_reply(unread.get(text).unwrap_or_default()));
            }
        };
        self.input.consume(consumed);
        self.needed = needed;
        if !done && needed == 0 {
            self.hand_out_full();
        }
        if !done {
            return Ok(needed == 0 && self.read_entries(shape, stream, count)?);
        }
        self.reply = None;
        self.end_pages(shape, count);
        Ok(true)
    }

    fn end_pages(&mut self, shape: Shape, count: u64) {
        let is_slow = self.waited > self.busy;
        for (at, page) in self.pages.drain(..) {
            let Some(stream) = self.streams.get_mut(at) else { continue };
            let is_full = page.entries >= count;
            stream.is_doubtful |= page.entries == 0 && stream.has_anchor && shape == Shape::Entries;
            stream.is_behind = is_full || stream.bad.is_some() || (shape == Shape::Streams && stream.is_behind);
            stream.paging.page(page.largest, is_full, is_slow);
        }
    }

    /// Reads the reply to XINFO STREAM; returns whether it was there.
    fn read_info(&mut self, at: usize) -> std::result::Result<bool, Fault> {
        let unread = self.input.unread();
        let Some(length) = self.framing.find(unread).map_err(protocol)? else {
            self.needed = unread.len() + 1;
            return if unread.len() > MAX_REPLY { Err(protocol("a reply that is too large")) } else { Ok(false) };
        };
        self.framing = Framing::default();
        let value = parse_redis_value(unread.get(..length).unwrap_or_default());
        self.input.consume(length);
        let info = match value {
            Ok(Value::ServerError(error)) => {
                let line = format!("{} {}", error.code(), error.details().unwrap_or_default());
                let fault = Fault::from_reply(line.as_bytes());
                if fault.message != "ERR no such key" {
                    return Err(fault.of_command("XINFO STREAM"));
                }
                StreamInfo { added: Some(0), ..StreamInfo::default() }
            }
            Ok(value) => info::read(&value).ok_or_else(|| protocol("a reply that is none to XINFO STREAM"))?,
            Err(_) => return Err(protocol("a reply that is none to XINFO STREAM")),
        };
        self.check(at, &info);
        Ok(true)
    }

    /// The server said this of a stream, after the entries so far were read.
    fn check(&mut self, at: usize, info: &StreamInfo) {
        if let Some((start, end)) = self.streams[at].asked.take() {
            self.streams[at].begin(start, end, info);
        }
        if let Some(reason) = self.streams[at].replaced(info) {
            let key = Arc::clone(&self.streams[at].key);
            if let Some((open, rows)) = self.forget_unproven(at, None) {
                self.push_batch(at, open, Some(rows));
            }
            self.ready.push_back(Err(stream_replaced(&key, reason)));
            return;
        }
        let loss = self.streams[at].since.loss(info);
        // Before the first entry that is read nothing can be missing.
        self.may_have_lost |= loss.is_none() && self.streams[at].has_anchor;
        if let Some(loss) = loss {
            self.lost = Loss { entries: self.lost.entries + loss.entries, exact: self.lost.exact && loss.exact };
        }
        match loss {
            Some(loss) if loss.entries > 0 && self.options.fails_on_loss => self.fail(at, loss, info),
            _ => self.streams[at].prove(info, loss),
        }
    }

    fn forget_unproven(&mut self, at: usize, loss: Option<Loss>) -> Option<(Open, usize)> {
        self.left += self.streams[at].since.ids.len() as u64;
        self.streams[at].forget_unproven(loss)
    }

    /// Hands out what was read before the gap, then says what is missing.
    fn fail(&mut self, at: usize, loss: Loss, info: &StreamInfo) {
        if let Some((open, rows)) = self.forget_unproven(at, Some(loss)) {
            self.push_batch(at, open, Some(rows));
        }
        let stream = &mut self.streams[at];
        // Where the entries up to here were not counted, what was removed is compared with this from now on.
        stream.since.removed = info.removed();
        stream.handed_out = Place { id: stream.since.after, added: stream.since.added };
        let position = self.position().to_text();
        let key = &self.streams[at].key;
        self.ready.push_back(Err(data_loss(key, loss, info.first_id, position)));
    }

    /// Makes batches of what was read, where they are full or nothing more is there.
    fn hand_out(&mut self) {
        if self.streams.iter().any(Stream::is_unproven) {
            return;
        }
        let is_last = self.left == 0;
        let lingers = self.options.follows && !is_last && !self.options.linger.is_zero() && self.linger != Linger::Over;
        let mut waits = false;
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            if stream.open.is_none() && stream.bad.is_none() {
                continue;
            }
            let is_full = stream.rows() >= self.options.batch_rows || stream.bytes() >= self.options.batch_bytes;
            let is_at_end = is_last || stream.bad.is_some() || stream.is_finished() || (!stream.is_behind && !lingers);
            if is_full || is_at_end {
                self.hand_out_stream(at);
            } else if !stream.is_behind {
                waits = true;
            }
        }
        while self.streams.iter().map(Stream::bytes).sum::<usize>() >= self.options.batch_bytes {
            let Some(largest) = (0..self.streams.len()).max_by_key(|at| self.streams[*at].bytes()) else { break };
            self.hand_out_stream(largest);
        }
        let is_behind = self.streams.iter().any(|stream| stream.is_behind && !stream.is_finished());
        self.linger = if waits && !is_behind { Linger::Waits } else { Linger::No };
    }

    /// A batch is as large as it can be, in mid-page.
    fn hand_out_full(&mut self) {
        let Some((at, _)) = self.pages.last().copied() else { return };
        if self.streams[at].is_unproven() {
            // A gap before it is found too late for this batch: the next one reports it.
            self.may_have_lost = true;
            self.streams[at].prove_blindly();
        }
        self.hand_out_stream(at);
    }

    fn hand_out_stream(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        let open = stream.open.take();
        let place = Place { id: stream.since.after, added: stream.since.added };
        let bad = stream.bad.take();
        stream.handed_out = match &bad {
            Some(bad) => Place { id: bad.before, added: place.added.map(|added| added.saturating_sub(1)) },
            None => place,
        };
        match open {
            Some(open) if open.columns.rows() > 0 => self.push_batch(at, open, None),
            Some(open) => self.spare.push(open.columns),
            None => {}
        }
        if let Some(bad) = bad {
            self.streams[at].handed_out = place;
            let position = self.position().to_text();
            self.ready.push_back(Err(bad_field(&self.streams[at].key, &bad, position)));
        }
    }

    /// Adds a batch of what is open, or of its first `rows` rows.
    fn push_batch(&mut self, at: usize, mut open: Open, rows: Option<usize>) {
        let finished = open.columns.finish();
        if self.spare.len() < MAX_SPARE {
            self.spare.push(open.columns);
        }
        let position = self.position();
        let stream = &mut self.streams[at];
        let lost = stream.lost.take();
        self.ready.push_back(finished.map(|batch| ReadBatch {
            batch: rows.map_or_else(|| batch.clone(), |rows| batch.slice(0, rows.min(batch.num_rows()))),
            stream: Arc::clone(&stream.key),
            first_id: open.first_id,
            last_id: stream.handed_out.id,
            lost,
            position,
        }));
    }
}

impl Exchange for Session {
    fn blocks_for(&self) -> Duration {
        let block = |ask: &Ask| match ask {
            Ask::Follow { block, .. } => *block,
            Ask::Page { .. } | Ask::Info { .. } => None,
        };
        self.in_flight.iter().find_map(block).unwrap_or_default()
    }

    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn unsent(&self) -> &[u8] {
        self.out.get(self.sent..).unwrap_or_default()
    }

    fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    fn space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    fn took(&mut self, waited: Duration, busy: Duration) {
        self.waited += waited;
        self.busy += busy;
    }

    fn disconnected(&mut self) {
        self.in_flight.clear();
        self.out.clear();
        self.sent = 0;
        self.input.clear();
        self.reply = None;
        self.framing = Framing::default();
        self.needed = 1;
        self.linger = Linger::No;
        for stream in &mut self.streams {
            stream.is_behind = true;
        }
    }

    fn received(&mut self, count: usize) -> std::result::Result<(), Fault> {
        self.input.filled(count);
        while let Some(ask) = self.in_flight.front().copied() {
            if self.input.unread().len() < self.needed {
                return Ok(());
            }
            let is_answered = match ask {
                Ask::Page { stream, count } => self.read_entries(Shape::Entries, stream, count)?,
                Ask::Follow { count, .. } => self.read_entries(Shape::Streams, 0, count)?,
                Ask::Info { stream } => self.read_info(stream)?,
            };
            if !is_answered {
                return Ok(());
            }
            self.in_flight.pop_front();
            self.needed = 1;
            if self.in_flight.is_empty() {
                self.hand_out();
            }
        }
        if self.input.unread().is_empty() { Ok(()) } else { Err(protocol("a reply to nothing that was sent")) }
    }
}

/// `first`: the oldest entry that is left.
fn data_loss(stream: &[u8], loss: Loss, first: Option<EntryId>, position: String) -> Error {
    let Loss { entries, exact } = loss;
    let (bound, subject) =
        (if exact { "" } else { "at most " }, if entries == 1 { "entry was" } else { "entries were" });
    let remaining = first.map_or("no entry is left".to_owned(), |oldest| format!("the oldest entry is {oldest}"));
    let message = format!(
        "stream {}: {bound}{entries} {subject} trimmed before they were read, and {remaining}; go on from the position of this error, or \
         read with on_loss 'report'",
        escaped(stream)
    );
    Error::DataLoss { stream: stream.to_vec(), lost: entries, exact, position, message }
}

fn bad_field(stream: &[u8], bad: &Bad, position: String) -> Error {
    let message = format!("stream {}, entry {}: {}", escaped(stream), bad.id, bad.value);
    Error::Field { stream: stream.to_vec(), entry_id: bad.id.to_string(), position, message }
}

fn stream_replaced(stream: &[u8], reason: &str) -> Error {
    let message = format!("stream {} is not the one that was read before: {reason}", escaped(stream));
    Error::StreamReplaced { stream: stream.to_vec(), message }
}

fn protocol(reason: &'static str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server's reply cannot be read: it sent {reason}"))
}
