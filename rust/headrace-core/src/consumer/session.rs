//! The session of a consumer: its requests, and the meaning of the replies. Bytes in, batches out. No I/O and no clock: the
//! caller sets `now`.
//!
//! The consumer's own pending entries come first, then new ones, and between them entries that other consumers held for too long.
//! Pending entries are looked up with XPENDING, which delivers nothing, so that only entries about to be returned count as
//! delivered.

mod ahead;
mod hand_out;
mod leave_out;
mod replies;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::batch::{ConsumerBatch, Extra};
use super::ledger::Ledger;
use super::shared::Shared;
use super::sink::Page;
use super::stream::{Pending, Stream};
use super::work::{Known, Names, Work};
use crate::entries::{ColumnsPlan, SpareColumns};
use crate::error::{Fault, Result};
use crate::keeper::sync::MutexGuard;
use crate::reading::{Buffers, Exchange};
use crate::resp::EntryId;

/// The maximum number of pending entries of one lookup, and of one claim.
const PAGE: u64 = 1_000;

/// The settings of a consumer that never change.
#[derive(Debug, Clone)]
pub(super) struct SessionOptions {
    pub(super) names: Names,
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) block: Duration,
    pub(super) linger: Duration,
    pub(super) min_idle: Duration,
    /// How often to look for entries of other consumers; `None`: never.
    pub(super) claim_interval: Option<Duration>,
    /// How often to look for them if a look at all pending entries takes several claims.
    pub(super) long_claim_interval: Duration,
    /// Whether entries stay pending until they are acknowledged.
    pub(super) acks: bool,
    pub(super) max_failures: Option<u64>,
    /// Whether an entry that does not fit its columns becomes a dead letter.
    pub(super) buries_bad: bool,
    pub(super) extra: Extra,
}

/// A command whose reply is due.
#[derive(Debug)]
enum Ask {
    Work(Work),
    Pending {
        stream: usize,
        last: EntryId,
    },
    Claim {
        stream: usize,
    },
    Read {
        stream: usize,
        part: Vec<Pending>,
    },
    /// New entries of one stream; `None`: of all that are not read apart.
    New {
        stream: Option<usize>,
        count: u64,
        block: Option<Duration>,
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

/// Whether the next entries are requested before the current reply is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// Not requested: other sessions use the connection too.
    Never,
    No,
    /// Requested once the end of the reply has arrived.
    May,
    /// Requested already.
    Asked,
}

/// Whether to ask for an entry that must be alone in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    May,
    MayNot,
    /// Such an entry was requested, and its batch has not been taken: if the process ends, that counts as a failure of the entry.
    Asked,
}

/// A batch that waits for the caller, or the error that prevented it from being read.
#[derive(Debug)]
struct Ready {
    /// The number of the stream.
    stream: usize,
    /// The number of the batch in the ledger; 0: the ledger does not have it.
    held: u64,
    result: Result<ConsumerBatch>,
}

#[derive(Debug)]
pub(super) struct Session {
    options: SessionOptions,
    streams: Vec<Stream>,
    shared: Arc<Shared>,
    /// The index of the session's ledger.
    place: usize,
    spare: SpareColumns,
    in_flight: VecDeque<Ask>,
    ahead: Ahead,
    /// The entries of the reply were delivered at this time or later.
    since: Duration,
    pages: Vec<Page>,
    ready: VecDeque<Ready>,
    linger: Linger,
    known: Known,
    /// The stream whose turn it is.
    turn: usize,
    pub(super) now: Duration,
    /// When entries were last requested.
    asked_at: Duration,
    /// When the caller last took a batch.
    taken_at: Duration,
    /// Whether the caller works on a batch for so long that entries read ahead would wait too long.
    is_slow: bool,
    /// Whether the consumer is closing: all entries that were read are given back, however old they are. The server checks the
    /// owner.
    pub(super) closes: bool,
    /// Whether pending entries of this consumer that it does not hold are given back too.
    gives_back: bool,
    alone: Alone,
}

impl Session {
    pub(super) fn new(
        mut streams: Vec<Stream>,
        options: SessionOptions,
        plan: Arc<ColumnsPlan>,
        (shared, place): (Arc<Shared>, usize),
    ) -> Self {
        if !options.acks {
            for stream in &mut streams {
                stream.recovery = None;
            }
        }
        Self {
            options,
            streams,
            shared,
            place,
            spare: SpareColumns::new(plan),
            in_flight: VecDeque::new(),
            ahead: Ahead::No,
            since: Duration::ZERO,
            pages: Vec::new(),
            ready: VecDeque::new(),
            linger: Linger::No,
            known: Known::default(),
            turn: 0,
            now: Duration::ZERO,
            asked_at: Duration::ZERO,
            taken_at: Duration::ZERO,
            is_slow: false,
            closes: false,
            gives_back: false,
            alone: Alone::May,
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger(self.place)
    }

    /// The next batch, or the error that prevented it from being read.
    pub(super) fn take(&mut self) -> Option<Result<ConsumerBatch>> {
        while let Some(Ready { stream, held, result }) = self.ready.pop_front() {
            self.alone = Alone::May;
            let mut ledger = self.shared.ledger(self.place);
            if ledger.is_old(held, self.now) {
                let alone = ledger.forget(held);
                drop(ledger);
                self.give_up(stream, alone);
                continue;
            }
            if let Ok(batch) = &result {
                ledger.counts().handed_over += batch.ids().len() as u64;
            }
            drop(ledger);
            self.is_slow = self.now.saturating_sub(self.taken_at) > self.options.min_idle / 4;
            self.taken_at = self.now;
            return Some(result);
        }
        None
    }

    /// Whether an entry that must be alone was requested, and its batch has not been taken.
    pub(super) fn isolates(&self) -> bool {
        self.alone == Alone::Asked
    }

    /// Sets whether this session may ask for an entry that must be alone.
    pub(super) fn let_isolate(&mut self, may: bool) {
        if !self.isolates() {
            self.alone = if may { Alone::May } else { Alone::MayNot };
        }
    }

    /// Resets the state if the requested entry did not arrive: it may have been deleted, or its connection lost.
    fn check_alone(&mut self) {
        if self.isolates() && !self.is_ready() {
            self.alone = Alone::May;
        }
    }

    /// Sets whether other sessions use the connection too. If so, the next page is not requested before the current one has been
    /// read: the others come first.
    pub(super) fn share(&mut self, is_shared: bool) {
        match (is_shared, self.ahead) {
            (true, _) => self.ahead = Ahead::Never,
            (false, Ahead::Never) => self.ahead = Ahead::No,
            (false, _) => {}
        }
    }

    /// Whether [`take`](Self::take) has a batch.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether a request without a wait may return entries, or received entries wait for more.
    pub(super) fn has_more(&self) -> bool {
        let has_some = |stream: &Stream| {
            stream.open.is_some() || !stream.bad.is_empty() || stream.is_recovering() || stream.may_have_new()
        };
        self.is_ready() || self.streams.iter().any(has_some)
    }

    /// Drops the batches that the caller will not take: their entries stay held, and pending entries of this consumer that were
    /// not read are given back. The server is asked which entries these are if a connection was lost recently, or if the last
    /// request on a lost one `may_come_late`.
    pub(super) fn drop_ready(&mut self, may_come_late: bool) {
        for at in 0..self.streams.len() {
            self.push_batch(at);
        }
        self.ready.clear();
        self.alone = Alone::May;
        self.gives_back = true;
        let has_read = self.asked_at > Duration::ZERO;
        let shared = Arc::clone(&self.shared);
        let mut ledger = shared.ledger(self.place);
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if has_read && (stream.rechecks_at.take().is_some() || may_come_late) {
                stream.recover_all();
                continue;
            }
            for id in stream.unread() {
                ledger.release_again(at, id, self.now);
            }
            stream.planned.clear();
            // If no entry was requested, the entries may belong to a process that runs under the same name.
            if !has_read || !stream.claimed.is_empty() {
                stream.recovery = None;
            }
        }
    }

    /// Gives back the entries that the caller has not decided on, except those of streams that are left out, which stay pending.
    pub(super) fn release_all(&mut self) {
        let is_read = |at: usize| !self.streams[at].standing.is_left_out();
        self.ledger().release_all(is_read, self.now);
    }

    /// Whether the server must yet be asked which entries to give back.
    pub(super) fn looks_back(&self) -> bool {
        let has_some = |stream: &Stream| stream.recovery.is_some() && !stream.standing.is_left_out();
        self.gives_back && self.streams.iter().any(has_some)
    }

    /// Whether the server waits for new entries before it replies.
    pub(super) fn blocks(&self) -> bool {
        !self.blocks_for().is_zero()
    }

    /// How long to wait for more entries before [`request`](Self::request); zero: not at all.
    pub(super) fn pause(&self) -> Duration {
        let most = if self.options.acks { self.options.min_idle / 4 } else { Duration::MAX };
        if self.linger == Linger::Waits { self.options.linger.min(most) } else { Duration::ZERO }
    }

    /// Ends the pause: the caller has waited.
    pub(super) fn paused(&mut self) {
        self.linger = Linger::Over;
    }
}

impl Exchange for Session {
    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> std::result::Result<bool, Fault> {
        if self.ahead == Ahead::May && self.ask_ahead(buffers)? {
            self.ahead = Ahead::Asked;
            // The request must be sent before the reply is read.
            buffers.suspend();
            return Ok(false);
        }
        let is_answered = match self.read_reply(buffers) {
            Ok(is_answered) => is_answered,
            Err(fault) => self.refused(fault).map(|()| true)?,
        };
        if !is_answered {
            return Ok(false);
        }
        self.in_flight.pop_front();
        let is_ahead = self.ahead == Ahead::Asked;
        if is_ahead {
            self.ahead = Ahead::No;
        }
        if is_ahead || self.in_flight.is_empty() {
            self.hand_out();
            self.check_alone();
        }
        Ok(true)
    }

    fn blocks_for(&self) -> Duration {
        let block = |ask: &Ask| if let Ask::New { block, .. } = ask { *block } else { None };
        self.in_flight.iter().find_map(block).unwrap_or_default()
    }

    /// Prepares for a new connection. Entries that were read still belong to this consumer and are returned; those being read are
    /// looked up among the pending entries.
    fn disconnected(&mut self) {
        for ask in std::mem::take(&mut self.in_flight).into_iter().rev() {
            match ask {
                Ask::Work(work) => self.ledger().returned(work),
                Ask::Read { stream, part } if self.is_isolated(&part) => {
                    self.streams[stream].interrupted = part.first().copied();
                }
                _ => {}
            }
        }
        self.ahead = Ahead::No;
        self.linger = Linger::No;
        self.known.forget();
        self.ledger().reader_waits = false;
        // The keeper may have found no work while it was in flight here.
        self.shared.doze.added(false);
        for at in 0..self.streams.len() {
            // Nothing of a partially received entry was passed on.
            self.push_batch(at);
            let stream = &mut self.streams[at];
            stream.is_behind = true;
            if self.options.acks {
                stream.recover_all();
                stream.rechecks_at = Some(self.now + self.options.min_idle);
            }
        }
        self.check_alone();
    }
}
