//! The loop of a consumer: sends, receives and waits until a batch is ready, or until the server has the caller's decisions.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::ConsumerBatch;
use super::line::{Greeted, LOOKS_FOR, Line, Namesakes, left};
use super::members::{ConsumerMembers, Goal};
use super::shared::Shared;
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::keeper::clock;
use crate::net::{Interest, Watch, Within, breathe};
use crate::reading::{Advance, Pool, Standing, TRIES_EVERY};

/// How often to look for what no socket shows: whether the keeper has sent what it took.
const KEEPER_EVERY: Duration = Duration::from_millis(1);
/// The pause between two looks for another consumer of the same name.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// All connections that read: one; in a cluster, one for each slot that holds some of the streams, or those that slots share.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) lines: Vec<Line>,
    pool: Pool<Greeted>,
    shared: Arc<Shared>,
    pub(super) namesakes: Namesakes,
    turns: Turns,
    /// Errors that the caller gets after the batches that were read. At most one for each line.
    failed: VecDeque<Error>,
    /// When the servers were last asked again about streams that they refused.
    tried_at: Instant,
}

/// The result of sending the caller's decisions to the servers.
#[derive(Debug)]
pub(super) struct Settled {
    /// Whether the server of each line has all decisions.
    pub(super) lines: Vec<bool>,
    /// The error of a line that could not send them.
    pub(super) error: Option<Error>,
}

impl Drive {
    pub(super) fn new(lines: Vec<Line>, pool: Pool<Greeted>, shared: Arc<Shared>, min_idle: Duration) -> Self {
        Self {
            turns: Turns::new(lines.len(), min_idle),
            lines,
            pool,
            shared,
            namesakes: Namesakes::default(),
            failed: VecDeque::new(),
            tried_at: Instant::now(),
        }
    }

    /// Connects, and creates the groups. If `is_undecided`, also ends when the server says that it is a node of a cluster.
    pub(super) async fn until_open(&mut self, is_undecided: bool, watch: &mut dyn Watch) -> Result<()> {
        let is_open = |drive: &Self| {
            drive.lines.iter().all(Line::has_begun)
                || (is_undecided && drive.lines[0].link.endpoint().cluster().is_some())
        };
        while !is_open(self) {
            let Advance { has_moved, until, failed } = self.pass(Goal::Begun, watch)?;
            if let Some((_, error)) = failed.into_iter().next() {
                return Err(error);
            }
            if !has_moved && !is_open(self) {
                self.wait(Goal::Begun, until, watch).await?;
            }
            breathe(watch).await?;
        }
        Ok(())
    }

    /// Runs until a batch is ready, the caller stops, or `timeout` is over.
    pub(super) async fn until_batch(
        &mut self,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<Option<ConsumerBatch>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.turns.call_begins(clock::now());
        loop {
            if let Some(error) = self.shared.take_error() {
                return Err(error);
            }
            if self.shared.stops() || self.standing() == Standing::Dropped {
                return Ok(None);
            }
            self.look(watch)?;
            self.send_work(watch)?;
            if let Some(batch) = self.take() {
                return batch.map(Some);
            }
            if let Some(error) = self.failed.pop_front() {
                return Err(error);
            }
            self.try_again();
            let shared = Arc::clone(&self.shared);
            let mut is_stopped = || shared.stops();
            let mut stopping = Within::new(&mut is_stopped, watch);
            let passed = self.run(deadline, &mut stopping).await;
            if stopping.ended(passed)?.is_none() {
                return Ok(None);
            }
            // Even with no time left to wait, return what has arrived.
            let isolating = self.isolating();
            let has_more = (0..self.lines.len()).any(|at| {
                isolating.is_none_or(|isolating| isolating == at)
                    && (self.lines[at].session.is_ready() || self.pool.is_suspended(at))
            });
            if !has_more && self.failed.is_empty() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// The greatest standing of all streams.
    fn standing(&self) -> Standing {
        Standing::greatest(self.lines.iter().map(|line| line.session.standing()))
    }

    /// Lets the servers be asked again about streams that they refused: periodically, or at once if no other stream is left.
    fn try_again(&mut self) {
        let is_stranded = self.standing() == Standing::Refused;
        if is_stranded || self.tried_at.elapsed() >= TRIES_EVERY {
            self.tried_at = Instant::now();
            self.lines.iter_mut().for_each(|line| line.session.try_again(is_stranded));
        }
        if let Some(at) = self.turns.order().next()
            && self.lines[at].session.standing().is_left_out()
        {
            self.turns.had_nothing(at, Instant::now());
        }
    }

    /// The next batch, or the error that prevented it from being read.
    fn take(&mut self) -> Option<Result<ConsumerBatch>> {
        let now = clock::now();
        let isolating = self.isolating();
        for at in self.turns.order().filter(|at| isolating.is_none_or(|isolating| isolating == *at)) {
            let line = &mut self.lines[at];
            line.session.now = now;
            let Some(batch) = line.session.take() else { continue };
            if self.turns.took(at, now) {
                self.read_ahead(at);
            }
            return Some(batch);
        }
        None
    }

    fn read_ahead(&mut self, at: usize) {
        let Self { pool, lines, turns, namesakes, .. } = self;
        pool.read_ahead(at, &mut ConsumerMembers { lines, turns, namesakes, goal: Goal::Batch(None) });
    }

    /// The line that asked for an entry that must be alone. Its batch comes next, and until then no other line asks for such an
    /// entry: if the process ends, only an entry that was returned to the caller counts as failed.
    fn isolating(&self) -> Option<usize> {
        self.lines.iter().position(|line| line.session.isolates())
    }

    /// Sends the caller's decisions on earlier batches, because with several lines the next batch may be another line's.
    fn send_work(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.lines.len() == 1 {
            return Ok(());
        }
        // A reply that has arrived may have to be read first.
        for _ in 0..2 {
            let wanted: Vec<bool> = (0..self.lines.len())
                .map(|at| self.pool.is_connected(at) && !self.lines[at].ledger().is_settled())
                .collect();
            if !wanted.contains(&true) {
                break;
            }
            let passed = self.pass(Goal::Work(&wanted), watch)?;
            self.failed.extend(passed.failed.into_iter().map(|(_, error)| error));
        }
        Ok(())
    }

    /// Checks all sockets, if there are several and the last check was some time ago: entries that arrived wait there without
    /// renewal.
    fn look(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.turns.looks(clock::now()) {
            let passed = self.move_bytes(watch)?;
            self.failed.extend(passed.failed.into_iter().map(|(_, error)| error));
        }
        Ok(())
    }

    /// Moves the bytes of requests that were already written, without waiting.
    fn move_bytes(&mut self, watch: &mut dyn Watch) -> Result<Advance> {
        self.pass(Goal::Work(&vec![false; self.lines.len()]), watch)
    }

    /// One pass over all connections, with a wait if nothing moved.
    async fn run(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let Advance { has_moved, until, failed } = self.pass(Goal::Batch(deadline), watch)?;
        self.failed.extend(failed.into_iter().map(|(_, error)| error));
        if let Some(at) = self.turns.order().next()
            && !self.pool.is_connected(at)
        {
            self.turns.had_nothing(at, Instant::now());
        }
        if has_moved || !self.failed.is_empty() {
            return breathe(watch).await;
        }
        let until = [deadline, until, self.turns.rests()].into_iter().fold(None, sooner);
        self.wait(Goal::Batch(deadline), until, watch).await
    }

    /// One pass over all connections.
    fn pass(&mut self, goal: Goal<'_>, watch: &mut dyn Watch) -> Result<Advance> {
        let Self { pool, lines, turns, namesakes, .. } = self;
        pool.advance(&mut ConsumerMembers { lines, turns, namesakes, goal }, watch)
    }

    /// Waits until one of the sockets is ready, or until `until`.
    async fn wait(&mut self, goal: Goal<'_>, until: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let Self { pool, lines, turns, namesakes, .. } = self;
        pool.wait(&mut ConsumerMembers { lines, turns, namesakes, goal }, until, watch).await
    }

    /// Runs until the servers have the decisions that the caller has made so far, or `deadline` is over. Covers the lines of
    /// `wanted`, by default all. A line that meets an error is left alone; the others continue.
    pub(super) async fn until_settled(
        &mut self,
        wanted: Option<&[bool]>,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<Settled> {
        let mut failed: Vec<bool> = match wanted {
            Some(wanted) => wanted.iter().map(|is_wanted| !is_wanted).collect(),
            None => vec![false; self.lines.len()],
        };
        let mut error = None;
        loop {
            if let Some(refused) = self.shared.take_error() {
                return Err(refused);
            }
            let open: Vec<usize> =
                (0..self.lines.len()).filter(|at| !failed[*at] && !self.lines[*at].is_settled()).collect();
            if open.is_empty() || left(deadline).is_zero() {
                let lines = (0..failed.len()).map(|at| !failed[at] && !open.contains(&at)).collect();
                return Ok(Settled { lines, error });
            }
            let wanted: Vec<bool> = (0..failed.len()).map(|at| open.contains(&at)).collect();
            let passed = self.pass(Goal::Work(&wanted), watch)?;
            for (at, other) in passed.failed {
                failed[at] = true;
                // What a server refuses says more than that another one is away.
                if error.is_none() || !matches!(other, Error::Connection { .. }) {
                    error = Some(other);
                }
            }
            if !passed.has_moved {
                let shows = open.iter().any(|at| self.lines[*at].awaits_reply() || self.pool.is_opening_for(*at));
                // Otherwise the keeper has taken the rest, or it is too early to connect.
                let soon = Instant::now() + KEEPER_EVERY;
                let soon = Some(soon).filter(|_| !shows);
                let until = [deadline, passed.until, soon].into_iter().fold(None, sooner);
                self.wait(Goal::Work(&wanted), until, watch).await?;
            }
            breathe(watch).await?;
        }
    }

    /// Reads the replies that are on their way until `deadline`, so that no entry is delivered to a connection that is closed.
    pub(super) async fn drain(&mut self, deadline: Instant, watch: &mut dyn Watch) -> Result<()> {
        let mut error = None;
        while self.lines.iter().any(Line::awaits_reply) && !left(Some(deadline)).is_zero() {
            let passed = self.move_bytes(watch)?;
            error = passed.failed.into_iter().map(|(_, error)| error).next_back().or(error);
            if !passed.has_moved {
                self.wait(Goal::Work(&vec![false; self.lines.len()]), Some(deadline), watch).await?;
            }
            breathe(watch).await?;
        }
        error.map_or(Ok(()), Err)
    }

    /// Looks for another consumer of this name at the servers of these lines, for up to [`LOOKS_FOR`]: what is pending under the
    /// name may be that one's work. Returns the lines whose servers list none, which are no lines if any server lists one.
    pub(super) async fn until_alone(
        &mut self,
        lines: &[bool],
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<Settled> {
        let until = Instant::now() + LOOKS_FOR;
        // Each server lists the connections for all of its streams. A line that has not begun has nothing pending.
        let mut servers = BTreeSet::new();
        let mut looks: Vec<bool> = self
            .lines
            .iter()
            .zip(lines)
            .map(|(line, is_wanted)| *is_wanted && line.has_begun() && servers.insert(line.link.node().cloned()))
            .collect();
        servers.clear();
        let mut error = None;
        while looks.contains(&true) {
            let looking = self.lines.iter().zip(&looks).filter(|(_, looks)| **looks);
            looking.for_each(|(line, _)| line.look());
            let settled = self.until_settled(Some(&looks), deadline, watch).await?;
            error = error.or(settled.error);
            for (at, line) in self.lines.iter().enumerate() {
                if settled.lines[at] && !line.ledger().has_namesake() {
                    servers.insert(line.link.node().cloned());
                }
                looks[at] = settled.lines[at] && line.ledger().has_namesake();
            }
            if looks.contains(&true) {
                let now = Instant::now();
                if now >= until {
                    return Ok(Settled { lines: vec![false; lines.len()], error });
                }
                self.wait(Goal::Work(&looks), sooner(deadline, Some(now + LOOKS_EVERY)), watch).await?;
            }
        }
        let is_alone = |line: &Line| line.has_begun() && servers.contains(&line.link.node().cloned());
        let lines = self.lines.iter().zip(lines).map(|(line, is_wanted)| *is_wanted && is_alone(line)).collect();
        Ok(Settled { lines, error })
    }

    /// Ends the connections over which a server waits for entries.
    pub(super) fn end_blocked(&mut self) {
        let Self { pool, lines, turns, namesakes, .. } = self;
        pool.end_blocked(&mut ConsumerMembers { lines, turns, namesakes, goal: Goal::Begun });
    }

    /// The sockets of all connections that are open.
    pub(super) fn open_sockets(&mut self) -> Vec<Interest> {
        self.pool.open_sockets()
    }

    /// Ends the connections; `is_parents`: they belong to the process that this one was forked from.
    pub(super) fn close(&mut self, is_parents: bool) {
        let Self { pool, lines, turns, namesakes, .. } = self;
        pool.close(&mut ConsumerMembers { lines, turns, namesakes, goal: Goal::Begun }, is_parents);
    }
}

fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
