//! The session of a reader: its requests, and the meaning of the replies. Bytes in, batches out. No I/O and no clock.
//!
//! A page begins with the last entry that was read, so the page itself proves that no entry was trimmed in between. If that entry
//! is gone, and for entries that arrived by a blocked XREAD, the reply to XINFO STREAM shows the loss, before the entries are put
//! into a batch.

mod ahead;
mod catch_up;
mod hand_out;
mod join;
mod leave_out;
mod replies;
mod requests;

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use super::buffers::Buffers;
use super::exchange::Exchange;
use super::pages::{Pages, Taken};
use super::position::Place;
use super::range::Start;
use super::sink::Page;
use super::standing::Standing;
use super::stream::Stream;
use crate::entries::{ColumnsPlan, SpareColumns};
use crate::error::Fault;
use crate::resp::EntryId;
use crate::resp::stream_reply::Shape;
use crate::stream_facts::Loss;

/// The settings of a reader that never change.
#[derive(Debug, Clone)]
pub(crate) struct SessionOptions {
    pub(crate) batch_rows: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) block: Duration,
    /// How long entries wait for more.
    pub(crate) linger: Duration,
    /// The maximum number of entries in all batches.
    pub(crate) limit: u64,
    /// Whether to continue when all entries were read.
    pub(crate) follows: bool,
    pub(crate) fails_on_loss: bool,
}

/// A command whose reply is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Page {
        stream: usize,
        count: u64,
    },
    Follow {
        count: u64,
        block: Option<Duration>,
    },
    Info {
        stream: usize,
    },
    /// A page that is no longer wanted.
    Passed {
        count: u64,
    },
    /// HELLO, which shows whether the server is a replica.
    Role,
    /// The entries after the ID directly before the last entry that was read.
    CatchUp {
        block: Duration,
    },
}

/// Whether the latest entries wait for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linger {
    No,
    /// The caller must wait before the next request.
    Waits,
    /// The caller has waited.
    Over,
}

/// Whether the next page may be requested once the end of this one has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookAhead {
    No,
    May,
    /// Not requested: other sessions use the connection too.
    Never,
}

#[derive(Debug)]
pub(crate) struct Session {
    options: SessionOptions,
    streams: Vec<Stream>,
    spare: SpareColumns,
    /// The number of entries that may still be read.
    left: u64,
    in_flight: VecDeque<Ask>,
    look_ahead: LookAhead,
    /// Set if the last command in flight was sent before the preceding page was read: the requested page begins with this entry.
    ahead: Option<EntryId>,
    pages: Vec<(usize, Page)>,
    ready: VecDeque<Taken>,
    /// The streams whose open batches are complete. Each is made when it is taken: one batch exists at a time, not one for each
    /// of many streams.
    due: VecDeque<usize>,
    /// Whether any stream may have changed since [`hand_out`](Self::hand_out) looked at all, or one needs a description. If not,
    /// only the streams in `touched` have: with many streams, a look at all of them costs more than a page.
    is_unsettled: bool,
    /// The streams that got a page since [`hand_out`](Self::hand_out) looked at all.
    touched: Vec<usize>,
    /// An upper bound of the bytes in open batches, without those of the streams in `touched`.
    open_bytes: usize,
    linger: Linger,
    /// The stream whose turn it is.
    turn: usize,
    /// The streams whose beginning has become known, until the caller gets it.
    begun: Vec<usize>,
    /// Whether the last request for entries of all streams was refused.
    is_refused: bool,
    /// A note for the caller about lost entries, besides their number.
    doubt: Option<&'static str>,
    /// The streams that did not exist when reading began, until the caller knows.
    missing: Vec<Arc<[u8]>>,
    /// The number of entries lost in all streams, and whether it is exact.
    lost: Loss,
    /// The streams that are read again once no reply is due, and from where.
    joining: Vec<(usize, Start)>,
}

impl Session {
    pub(crate) fn new(streams: Vec<Stream>, options: SessionOptions, plan: Arc<ColumnsPlan>) -> Self {
        Self {
            begun: (0..streams.len()).collect(),
            left: options.limit,
            options,
            streams,
            spare: SpareColumns::new(plan),
            in_flight: VecDeque::new(),
            look_ahead: LookAhead::No,
            ahead: None,
            pages: Vec::new(),
            ready: VecDeque::new(),
            due: VecDeque::new(),
            is_unsettled: true,
            touched: Vec::new(),
            open_bytes: 0,
            linger: Linger::No,
            turn: 0,
            is_refused: false,
            doubt: None,
            missing: Vec::new(),
            lost: Loss { entries: 0, exact: true },
            joining: Vec::new(),
        }
    }
}

impl Pages for Session {
    fn begun(&mut self) -> Vec<(Arc<[u8]>, Option<Place>)> {
        let begun = self.begun.drain(..).map(|at| &self.streams[at]);
        begun
            .filter(|stream| stream.standing != Standing::Dropped)
            .map(|stream| (Arc::clone(&stream.key), stream.begins))
            .collect()
    }

    fn standing(&self) -> Standing {
        if !self.joining.is_empty() {
            return Standing::Read;
        }
        Standing::greatest(self.streams.iter().map(|stream| stream.standing))
    }

    fn try_again(&mut self, reports: bool) {
        self.is_unsettled = true;
        self.streams.iter_mut().for_each(|stream| stream.standing.try_again(reports));
    }

    fn drop_stream(&mut self, stream: &[u8]) -> bool {
        self.forget(stream)
    }

    fn read_stream(&mut self, stream: &[u8], start: Start) -> bool {
        self.join(stream, start)
    }

    fn take(&mut self) -> Option<Taken> {
        if self.ready.is_empty()
            && let Some(at) = self.due.pop_front()
        {
            self.hand_out_stream(at);
        }
        self.ready.pop_front()
    }

    fn is_ready(&self) -> bool {
        !self.ready.is_empty() || !self.due.is_empty()
    }

    fn has_begun(&self) -> bool {
        self.streams.iter().all(|stream| stream.asked.is_none() || stream.standing.is_left_out())
    }

    fn is_finished(&self) -> bool {
        let is_read = |stream: &Stream| {
            stream.standing.is_left_out()
                || (stream.asked.is_none()
                    && !stream.standing.is_suspect()
                    && !stream.lag.is_open()
                    && (stream.is_finished() || (!self.options.follows && !stream.is_behind)))
        };
        self.joining.is_empty()
            && self.in_flight.is_empty()
            && self.is_handed_out()
            && (self.left == 0 || self.streams.iter().all(is_read))
    }

    fn is_handed_out(&self) -> bool {
        let has_none = |stream: &Stream| stream.open.is_none() && stream.bad.is_none() && !stream.is_unproven();
        self.ready.is_empty() && self.streams.iter().all(has_none)
    }

    fn left(&mut self) -> &mut u64 {
        &mut self.left
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

    fn has_more(&self) -> bool {
        let has_some = |stream: &Stream| {
            let has_pages = stream.has_pages() && !stream.lag.waits();
            let needs_answer = stream.needs_info() || stream.lag.is_suspected();
            stream.open.is_some() || stream.bad.is_some() || needs_answer || has_pages
        };
        self.is_ready() || self.streams.iter().any(has_some)
    }

    fn share(&mut self, is_shared: bool) {
        match (is_shared, self.look_ahead) {
            (true, _) => self.look_ahead = LookAhead::Never,
            (false, LookAhead::Never) => self.look_ahead = LookAhead::No,
            (false, _) => {}
        }
    }

    fn pause(&self) -> Duration {
        if self.linger == Linger::Waits { self.options.linger } else { Duration::ZERO }
    }

    fn paused(&mut self) {
        self.linger = Linger::Over;
    }

    fn request(&mut self, waits: Option<Duration>, buffers: &mut Buffers) {
        self.ask(waits, buffers);
    }
}

impl Exchange for Session {
    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let Some(ask) = self.in_flight.front().copied() else { return Ok(false) };
        if self.look_ahead == LookAhead::May && self.ask_ahead(buffers) {
            // The request must be sent before the page is read.
            buffers.suspend();
            return Ok(false);
        }
        let is_answered = match ask {
            Ask::Page { stream, count } => self.read_entries(Shape::Entries, stream, count, buffers)?,
            Ask::Follow { count, .. } => self.read_entries(Shape::Streams, 0, count, buffers)?,
            Ask::Info { stream } => self.read_info(stream, buffers)?,
            Ask::Passed { count } => self.pass_reply(Shape::Entries, count, buffers)?,
            Ask::Role => self.read_role(buffers)?,
            Ask::CatchUp { block } => self.read_caught_up(block, buffers)?,
        };
        if !is_answered {
            return Ok(false);
        }
        self.in_flight.pop_front();
        self.is_unsettled |= !matches!(ask, Ask::Page { .. });
        let is_ahead = self.check_ahead();
        if is_ahead || self.in_flight.is_empty() {
            self.hand_out();
        }
        Ok(true)
    }

    fn blocks_for(&self) -> Duration {
        let block = |ask: &Ask| match ask {
            Ask::Follow { block, .. } => *block,
            Ask::CatchUp { block } => Some(*block),
            Ask::Page { .. } | Ask::Info { .. } | Ask::Passed { .. } | Ask::Role => None,
        };
        self.in_flight.iter().find_map(block).unwrap_or_default()
    }

    fn disconnected(&mut self) {
        self.in_flight.clear();
        self.join_now();
        self.stop_looking_ahead();
        self.ahead = None;
        self.is_unsettled = true;
        self.is_refused = false;
        self.linger = Linger::No;
        for at in self.which(|stream| !stream.since.ids.is_empty()) {
            // The next server may be a replica that lacks what was trimmed: its description proves nothing of this one's page.
            self.forget_unproven(at);
        }
        for stream in &mut self.streams {
            stream.is_behind = true;
            stream.lag.reconnect();
            // A page without an anchor does not show that its server has less than the one before.
            stream.is_doubtful |= stream.asked.is_none() && !stream.has_anchor && !stream.standing.is_left_out();
        }
        self.complete_full();
    }
}
