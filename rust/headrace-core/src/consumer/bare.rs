//! A consumer without sockets, threads and a clock, for the fuzz target `consuming`: its sessions, those of its keeper, and the
//! order in which `Drive`, `Line` and the keeper's thread use them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::ConsumerBatch;
use super::keeper_session::KeeperSession;
use super::ledger::Ledger;
use super::line::Reads;
use super::options::ConsumerOptions;
use super::report::ReadReport;
use super::session::Session;
use super::shared::Shared;
use super::turns::Turns;
use super::{session, shared};
use crate::error::{Error, Result};
use crate::keeper::Kept as _;
use crate::keeper::sync::MutexGuard;
use crate::reading::{Buffers, Exchange, Standing};
use crate::resp::EntryId;

/// One consumer.
#[derive(Debug)]
pub(crate) struct Bare {
    lines: Vec<Line>,
    shared: Arc<Shared>,
    turns: Turns,
    /// The line that was last asked for available entries.
    asked: Option<usize>,
    epoch: Instant,
    now: Duration,
}

/// The streams that are read together: with a connection that reads, and one of the keeper.
#[derive(Debug)]
struct Line {
    session: Session,
    keeper: KeeperSession,
    reads: Buffers,
    keeps: Buffers,
}

impl Bare {
    /// Creates a consumer. `groups`: the streams of each line. `epoch`: the moment at which the time is zero.
    pub(crate) fn new(groups: &[Vec<&[u8]>], options: &ConsumerOptions, epoch: Instant, now: Duration) -> Self {
        let shared = Arc::new(shared(groups, options));
        let plan = Arc::new(options.columns.clone());
        let renews = options.renews.then(|| options.min_idle / 3);
        let line = |(place, keys): (usize, &Vec<&[u8]>)| {
            let session = session(keys, options, groups.len(), &plan, (Arc::clone(&shared), place));
            let keeper = KeeperSession::new(Arc::clone(&shared.shares()[place]), options.names.clone(), renews, now);
            Line { session, keeper, reads: Buffers::default(), keeps: Buffers::default() }
        };
        Self {
            lines: groups.iter().enumerate().map(line).collect(),
            turns: Turns::new(groups.len(), options.min_idle),
            asked: None,
            shared: Arc::clone(&shared),
            epoch,
            now,
        }
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
        self.lines.iter_mut().for_each(|line| line.session.now = now);
    }

    fn instant(&self) -> Instant {
        self.epoch + self.now
    }

    /// A connection of a line, that of the keeper if it `keeps`, and the session that uses it.
    pub(crate) fn connection(&mut self, at: usize, keeps: bool) -> (&mut dyn Exchange, &mut Buffers) {
        let Line { session, keeper, reads, keeps: kept } = &mut self.lines[at];
        if keeps { (keeper, kept) } else { (session, reads) }
    }

    /// Ends a connection that was lost.
    pub(crate) fn disconnected(&mut self, at: usize, keeps: bool) {
        let (session, buffers) = self.connection(at, keeps);
        session.disconnected();
        *buffers = Buffers::default();
    }

    /// Lets a session write to its connection.
    fn write<T>(&mut self, at: usize, write: impl FnOnce(&mut Session, &mut Buffers) -> T) -> T {
        let Line { session, reads, .. } = &mut self.lines[at];
        let awaited = session.awaits_reply();
        let written = write(session, reads);
        if !awaited {
            reads.asked();
        }
        written
    }

    fn ledger(&self, at: usize) -> MutexGuard<'_, Ledger> {
        self.shared.ledger(at)
    }

    // The steps of `Drive`.

    /// Begins the caller's call for the next batch.
    pub(crate) fn call_begins(&mut self) {
        self.turns.call_begins(self.now);
    }

    fn isolating(&self) -> Option<usize> {
        self.lines.iter().position(|line| line.session.isolates())
    }

    /// How long the line waits for more entries before it asks again.
    pub(crate) fn pause(&self, at: usize) -> Duration {
        self.lines[at].session.pause()
    }

    /// Lets a line whose pause is over ask for entries. `left`: the rest of the caller's time.
    pub(crate) fn request(&mut self, at: usize, left: Duration) {
        let (isolating, total, now) = (self.isolating(), self.lines.len(), self.instant());
        let reads = if total == 1 { Reads::Waits } else { self.turns.reads(at, now) };
        let session = &mut self.lines[at].session;
        session.let_isolate(isolating.is_none_or(|isolating| isolating == at));
        if reads == Reads::No {
            return self.request_work(at);
        }
        if !session.pause().is_zero() {
            session.paused();
        }
        let waits = if reads == Reads::Waits { left } else { Duration::ZERO };
        self.write(at, |session, buffers| session.request(Some(waits), buffers));
        if reads == Reads::Now {
            self.asked = Some(at);
        }
    }

    /// Lets a line send the caller's decisions.
    pub(crate) fn request_work(&mut self, at: usize) {
        self.write(at, Session::request_work);
    }

    /// Lets the server prepare the next page of a line.
    pub(crate) fn read_ahead(&mut self, at: usize) {
        self.write(at, |session, buffers| session.request(None, buffers));
    }

    /// Passes on the turn of a line that was asked for available entries, if its replies were read and it has none.
    pub(crate) fn answered(&mut self, at: usize) {
        let now = self.instant();
        let session = &self.lines[at].session;
        if self.asked == Some(at) && !session.awaits_reply() && !session.has_more() {
            self.asked = None;
            self.turns.had_nothing(at, now);
        }
    }

    /// Takes the next batch with its line, and whether that line may read ahead.
    pub(crate) fn take(&mut self) -> Option<(usize, bool, Result<ConsumerBatch>)> {
        let isolating = self.isolating();
        for at in self.turns.order().filter(|at| isolating.is_none_or(|isolating| isolating == *at)) {
            let Some(batch) = self.lines[at].session.take() else { continue };
            return Some((at, self.turns.took(at, self.now), batch));
        }
        None
    }

    /// Whether [`take`](Self::take) has a batch.
    pub(crate) fn is_ready(&self) -> bool {
        let isolating = self.isolating();
        let may = |at: usize| isolating.is_none_or(|isolating| isolating == at);
        self.lines.iter().enumerate().any(|(at, line)| may(at) && line.session.is_ready())
    }

    /// Takes an error that the next call raises.
    pub(crate) fn take_error(&self) -> Option<Error> {
        self.shared.take_error()
    }

    /// Allows new requests for streams that the server refused.
    pub(crate) fn try_again(&mut self) {
        let is_stranded = self.standing() == Standing::Refused;
        self.lines.iter_mut().for_each(|line| line.session.try_again(is_stranded));
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing::greatest(self.lines.iter().map(|line| line.session.standing()))
    }

    pub(crate) fn drop_stream(&mut self, at: usize, stream: usize) -> bool {
        self.lines[at].session.drop_stream(stream)
    }

    // The steps of the keeper's thread.

    /// The time until the keeper of a line has a command to send.
    pub(crate) fn keeper_left(&mut self, at: usize) -> Duration {
        let now = self.now;
        self.lines[at].keeper.left(&self.shared.doze, now).0
    }

    pub(crate) fn keeper_request(&mut self, at: usize) {
        let now = self.now;
        let Line { keeper, keeps, .. } = &mut self.lines[at];
        keeper.request(now, keeps);
    }

    // The caller's decisions.

    fn place(&self, batch: &ConsumerBatch) -> usize {
        self.shared.place(batch.owner()).unwrap_or_default()
    }

    pub(crate) fn ack(&self, batch: &ConsumerBatch, mask: Option<&[bool]>) {
        self.ledger(self.place(batch)).ack(batch.number(), mask.into(), self.now);
    }

    pub(crate) fn fail(&self, batch: &ConsumerBatch, mask: Option<&[bool]>, delay: Option<Duration>) {
        self.ledger(self.place(batch)).fail(batch.number(), mask.into(), "it failed", delay, self.now);
    }

    pub(crate) fn release(&self, batch: &ConsumerBatch, mask: Option<&[bool]>, delay: Duration) {
        self.ledger(self.place(batch)).release(batch.number(), mask.into(), delay, self.now);
    }

    /// Acknowledges an entry by its ID.
    pub(crate) fn ack_id(&self, at: usize, stream: usize, id: EntryId) {
        self.ledger(at).ack_ids(stream, &[id], self.now);
    }

    /// Marks an entry as failed by its ID; returns whether the consumer had the entry.
    pub(crate) fn fail_id(&self, at: usize, stream: usize, id: EntryId) -> bool {
        self.ledger(at).fail_ids(stream, &[id], "it failed", None, self.now).is_empty()
    }

    /// Releases an entry by its ID; returns whether the consumer had the entry.
    pub(crate) fn release_id(&self, at: usize, stream: usize, id: EntryId) -> bool {
        self.ledger(at).release_ids(stream, &[id], Duration::ZERO, self.now).is_empty()
    }

    pub(crate) fn check(&self, batch: &ConsumerBatch) -> Result<()> {
        self.ledger(self.place(batch)).check(batch.number(), self.now)
    }

    pub(crate) fn report(&self) -> ReadReport {
        self.shared.report()
    }

    pub(crate) fn unconfirmed(&self) -> u64 {
        self.shared.ledgers().map(|ledger| ledger.unconfirmed() as u64).sum()
    }

    // The steps of a closing consumer.

    /// Whether the server has the caller's decisions, and no entries are left to give back.
    pub(crate) fn is_settled(&self) -> bool {
        self.shared.ledgers().all(|ledger| ledger.is_settled())
            && !self.lines.iter().any(|line| line.session.looks_back())
    }

    pub(crate) fn closes(&mut self) {
        self.lines.iter_mut().for_each(|line| line.session.closes = true);
    }

    pub(crate) fn blocks(&self, at: usize) -> bool {
        self.lines[at].session.blocks()
    }

    /// Gives back the entries of a line that the caller has not decided on. `may_come_late`: the server may yet execute the last
    /// request of a lost connection.
    pub(crate) fn give_back(&mut self, at: usize, may_come_late: bool) {
        let session = &mut self.lines[at].session;
        session.drop_ready(may_come_late);
        session.release_all();
    }

    pub(crate) fn give_up(&self) {
        self.shared.ledgers().for_each(|mut ledger| ledger.give_up());
    }
}
