//! The keeper renews leases, and sends the caller's decisions while a reading connection waits: a thread, or a task of the
//! caller's event loop. It has its own connection to each server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, parse_redis_value};

use super::clock;
use super::ledger::Ledger;
use super::shared::{Shared, lock};
use super::sync::{Builder, JoinHandle, Mutex};
use super::work::{Known, Names, Work, refusal};
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result, code};
use crate::net::{NeverInterrupted, Opening, Watch, Within, block_on, breathe, rest};
use crate::reading::{Asked, Attempted, Buffers, Channel, Exchange, Link, Members, Outage, Pool, Trouble, protocol};
use crate::retry::RetryPolicy;

/// How long the reading connection has the first chance to send the caller's decisions.
const PATIENCE: Duration = Duration::from_millis(80);
/// The shortest pause of the keeper before it connects again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause, unless a renewal is due earlier: leases must not end because of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the keeper sleeps at most.
const LONGEST: Duration = Duration::from_secs(3600);
/// The most pieces of work of one round trip.
const MAX_WORK: usize = 16;

/// The thread of a keeper.
#[derive(Debug)]
pub(super) struct Keeper {
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(keeping: Keeping) -> std::io::Result<Self> {
        let run = move || block_on(keeping.run(&mut NeverInterrupted));
        Builder::new().name("headrace-keeper".to_owned()).spawn(run).map(|thread| Self { thread: Some(thread) })
    }

    /// Waits for the end of the thread, which has been asked to end.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The panic hook has already printed any panic of the thread.
            let _ = thread.join();
        }
    }

    /// The thread belongs to the parent: this process has none.
    pub(super) fn forget(&mut self) {
        self.thread = None;
    }
}

/// The work of the keeper: wait, take work, send it, read the replies.
pub(super) struct Keeping {
    shared: Arc<Shared>,
    lines: Vec<Line>,
    /// One connection to each server.
    pool: Pool<()>,
    renews: Option<Duration>,
}

/// The connection of one ledger.
struct Line {
    session: KeeperSession,
    link: Link,
}

impl Keeping {
    /// `endpoints`: one for each ledger. `renews`: how often leases are renewed; `None`: never. `retry`: how long the keeper
    /// pauses before it connects again, which it does for as long as the consumer lives.
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        shared: Arc<Shared>,
        names: &Names,
        renews: Option<Duration>,
        retry: &RetryPolicy,
    ) -> Self {
        let longest = renews.map_or(LONGEST_PAUSE, |every| LONGEST_PAUSE.min(every / 4));
        let retry = RetryPolicy {
            initial_backoff: retry.initial_backoff.max(SHORTEST_PAUSE),
            max_backoff: retry.max_backoff.min(longest).max(SHORTEST_PAUSE),
            ..retry.clone()
        };
        let line = |(endpoint, ledger): (Endpoint, &Arc<Mutex<Ledger>>)| Line {
            session: KeeperSession::new(Arc::clone(ledger), names.clone(), clock::now()),
            // Only the counters of the reading connection are reported.
            link: Link::new(endpoint, Outage::endless(retry.clone()), Arc::default()),
        };
        let pool = Pool::new(&endpoints, 1, Duration::ZERO);
        let lines = endpoints.into_iter().zip(shared.shares()).map(line).collect();
        Self { shared, lines, pool, renews }
    }

    /// Runs until the consumer ends.
    pub(super) async fn run(mut self, watch: &mut dyn Watch) {
        let shared = Arc::clone(&self.shared);
        let mut has_ended = || shared.ends();
        let mut watch = Within::new(&mut has_ended, watch);
        while !self.shared.ends() {
            let turn = self.pass(&mut watch);
            // The only error is that the keeper must end.
            let _ = if turn.has_moved { breathe(&mut watch).await } else { self.wait(&turn, &mut watch).await };
        }
        self.pool.close(&mut KeeperMembers { lines: &mut self.lines, due: &[] }, false);
    }

    /// One pass over all connections.
    fn pass(&mut self, watch: &mut dyn Watch) -> Turn {
        let Self { shared, lines, pool, renews } = self;
        let mut turn = Turn::default();
        let mut is_due = |(at, line): (usize, &mut Line)| {
            let is_due = !line.session.awaits_reply() && turn.is_due(line, shared, *renews);
            is_due || pool.is_opening_for(at)
        };
        let due: Vec<bool> = lines.iter_mut().enumerate().map(&mut is_due).collect();
        // The only error is that the keeper must end.
        let passed = pool.advance(&mut KeeperMembers { lines, due: &due }, watch).unwrap_or_default();
        (turn.has_moved, turn.due) = (passed.has_moved, due);
        if let Some(until) = passed.until {
            turn.until = turn.until.min(until.saturating_duration_since(Instant::now()));
        }
        turn
    }

    /// Waits for replies, or for work.
    async fn wait(&mut self, turn: &Turn, watch: &mut dyn Watch) -> Result<()> {
        let shows = |(at, line): (usize, &Line)| line.session.awaits_reply() || self.pool.is_opening_for(at);
        let is_idle = !self.lines.iter().enumerate().any(shows);
        let until = Instant::now().checked_add(turn.until);
        if !is_idle {
            let mut members = KeeperMembers { lines: &mut self.lines, due: &turn.due };
            return self.pool.wait(&mut members, until, watch).await;
        }
        if !watch.defers() {
            self.shared.sleep(turn.until, turn.is_long);
            return Ok(());
        }
        if self.shared.lies_down(turn.is_long) {
            return Ok(());
        }
        let rested = rest(Vec::new(), until, watch).await;
        self.shared.gets_up();
        rested
    }
}

/// The result of a pass over all lines.
struct Turn {
    has_moved: bool,
    /// The lines that have something to send, or open a connection.
    due: Vec<bool>,
    /// Whether nothing has to be done before the next renewal.
    is_long: bool,
    /// The time until the next pass.
    until: Duration,
}

impl Default for Turn {
    fn default() -> Self {
        Self { has_moved: false, due: Vec::new(), is_long: true, until: LONGEST }
    }
}

impl Turn {
    /// Whether the line must send something now. If not, the next pass is scheduled for when it must.
    fn is_due(&mut self, line: &mut Line, shared: &Shared, renews: Option<Duration>) -> bool {
        let (left, has_work) = line.session.left(shared, renews, clock::now());
        self.is_long &= !has_work;
        let left = left.max(line.pause());
        // The reading connection may take the work before this one does: look again soon.
        self.until = self.until.min(if left.is_zero() { PATIENCE } else { left });
        left.is_zero()
    }
}

/// The lines as members of the connections that they share, for one pass.
struct KeeperMembers<'a> {
    lines: &'a mut [Line],
    /// See [`Turn::due`].
    due: &'a [bool],
}

impl Members<()> for KeeperMembers<'_> {
    fn link(&mut self, at: usize) -> &mut Link {
        &mut self.lines[at].link
    }

    fn session(&self, at: usize) -> &dyn Exchange {
        &self.lines[at].session
    }

    fn is_active(&self, at: usize) -> bool {
        self.due.get(at).is_some_and(|due| *due)
    }

    fn request(&mut self, at: usize, _: bool, _: Option<Instant>, buffers: &mut Buffers) -> Asked {
        let session = &mut self.lines[at].session;
        session.request(clock::now(), buffers);
        if session.awaits_reply() { Asked::Yes } else { Asked::No }
    }

    fn open(&mut self, at: usize, _: &[usize]) -> Opening<Attempted<()>> {
        self.lines[at].link.open(())
    }

    fn opened(&mut self, at: usize, attempted: Attempted<()>, watch: &mut dyn Watch) -> Result<Option<Channel>> {
        let link = &mut self.lines[at].link;
        match link.opened(attempted, watch) {
            Ok(opened) => Ok(opened.map(|(channel, ())| channel)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => link.schedule_retry(Fault::new(code::CONFIG, error.to_string()), watch).map(|()| None),
        }
    }

    fn step(&mut self, at: usize, channel: &mut Channel, watch: &mut dyn Watch) -> std::result::Result<bool, Trouble> {
        let line = &mut self.lines[at];
        line.link.step(channel, &mut line.session, watch).map_err(Trouble::Fault)
    }

    fn answered(&mut self, _: usize) -> Option<bool> {
        None
    }

    fn disconnected(&mut self, at: usize) {
        self.lines[at].session.disconnected();
    }
}

impl Line {
    /// The time left of the pause after a failed attempt.
    fn pause(&mut self) -> Duration {
        self.link.next_try().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }
}

/// Pieces of work as commands, and their replies.
#[derive(Debug)]
pub(super) struct KeeperSession {
    ledger: Arc<Mutex<Ledger>>,
    keys: Vec<Arc<[u8]>>,
    names: Names,
    in_flight: VecDeque<Work>,
    known: Known,
    now: Duration,
    /// When it last renewed the leases.
    renewed: Duration,
}

impl KeeperSession {
    pub(super) fn new(ledger: Arc<Mutex<Ledger>>, names: Names, now: Duration) -> Self {
        let keys = lock(&ledger).keys().to_vec();
        Self { ledger, keys, names, in_flight: VecDeque::new(), known: Known::default(), now, renewed: now }
    }

    /// The time until it has something to send, and whether work is waiting already.
    pub(super) fn left(&mut self, shared: &Shared, renews: Option<Duration>, now: Duration) -> (Duration, bool) {
        let mut ledger = lock(&self.ledger);
        let is_due = renews.is_some_and(|every| self.renewed + every <= now);
        if is_due {
            ledger.renew(now);
            self.renewed = now;
        }
        let until_renewal = renews.map_or(LONGEST, |every| (self.renewed + every).saturating_sub(now));
        match ledger.waiting(now) {
            Some(_) if ledger.reader_waits || is_due => (Duration::ZERO, true),
            Some(waited) => (PATIENCE.saturating_sub(waited).min(until_renewal), true),
            None => {
                // Work that is added from now on finds the keeper asleep, and wakes it.
                shared.sleeps_from_now();
                (until_renewal, false)
            }
        }
    }

    /// Writes the next commands. No reply may be due.
    pub(super) fn request(&mut self, now: Duration, buffers: &mut Buffers) {
        self.now = now;
        for _ in 0..MAX_WORK {
            let Some(work) = lock(&self.ledger).take() else { return };
            let key = self.keys.get(work.stream).map(AsRef::as_ref).unwrap_or_default();
            work.write(&mut buffers.out, key, &self.names, &mut self.known);
            self.in_flight.push_back(work);
        }
    }

    fn answered(&mut self, work: &Work, reply: &[u8], ledger: &mut Ledger) -> std::result::Result<(), Fault> {
        if let Some(line) = reply.strip_prefix(b"-") {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            let key = self.keys.get(work.stream).map(AsRef::as_ref).unwrap_or_default();
            match refusal(key, work, &fault)? {
                None => {
                    self.known.forget();
                    ledger.unsent(work.clone());
                }
                Some(error) => ledger.refused(work, error, self.now),
            }
            return Ok(());
        }
        let reply = parse_redis_value(reply).unwrap_or(Value::Nil);
        ledger.replied(work, &reply).ok_or_else(|| protocol("a reply that does not fit the command"))
    }
}

impl Exchange for KeeperSession {
    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> std::result::Result<bool, Fault> {
        let Some(work) = self.in_flight.front().cloned() else { return Ok(false) };
        let Some(reply) = buffers.take_reply()? else { return Ok(false) };
        let ledger = Arc::clone(&self.ledger);
        self.answered(&work, reply, &mut lock(&ledger))?;
        self.in_flight.pop_front();
        Ok(true)
    }

    fn disconnected(&mut self) {
        let mut ledger = lock(&self.ledger);
        for work in self.in_flight.drain(..).rev() {
            ledger.returned(work);
        }
        drop(ledger);
        self.known.forget();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::chosen::Chosen;
    use super::super::ledger::LedgerOptions;
    use super::*;
    use crate::endpoint::{Form, OptionValue};
    use crate::resp::EntryId;

    #[test]
    fn a_line_whose_work_the_reading_connection_takes_is_looked_at_again() {
        let minute = Duration::from_secs(60);
        let options = LedgerOptions {
            min_idle: minute,
            max_processing: 30 * minute,
            max_failures: None,
            deletes: false,
            max_released: 0,
        };
        let shared = Arc::new(Shared::new(vec![Ledger::new(vec![Arc::from(&b"s"[..])], options)]));
        let given = [("host", "h"), ("stream_key", "s")].map(|(name, text)| (name.to_owned(), OptionValue::text(text)));
        let endpoint = Endpoint::new(given, Form::Text).unwrap();
        let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: None };
        let (renews, retry) = (Some(minute / 3), RetryPolicy::default());
        let mut keeping = Keeping::new(vec![endpoint], Arc::clone(&shared), &names, renews, &retry);
        let line = &mut keeping.lines[0];
        let now = clock::now();
        {
            let mut ledger = shared.ledger(0);
            let batch = ledger.hold(0, vec![EntryId { ms: 1, seq: 0 }], vec![1], now);
            ledger.ack(batch, Chosen::All, now);
            ledger.reader_waits = true;
        }
        let mut turn = Turn::default();
        assert!(turn.is_due(line, &shared, renews));
        assert!(shared.ledger(0).take().is_some(), "the other connection sends it");
        line.session.request(now, &mut Buffers::default());
        assert!(!line.session.awaits_reply());
        assert!(!turn.has_moved && turn.until <= PATIENCE, "the leases are renewed in time");
    }
}
