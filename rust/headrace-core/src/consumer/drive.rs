//! The loop of a consumer: sends, receives and waits until a batch is ready, or until the server has the caller's decisions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::batch::ConsumerBatch;
use super::clock;
use super::line::{Line, Namesakes, Reads, left};
use super::shared::Shared;
use super::sharing::{Aim, Sharing};
use super::turns::Turns;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::net::{ServerChange, Transport, Watch};
use crate::reading::{Exchange, Pass, Round, Rounds, Standing, TRIES_EVERY, WATCH_EVERY};
use crate::retry::{RetryEnd, RetryWait};

/// All connections that read: one; in a cluster, one for each slot that holds some of the streams, or those that slots share.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) lines: Vec<Line>,
    /// How the lines share connections, if they do.
    rounds: Option<Rounds>,
    shared: Arc<Shared>,
    pub(super) namesakes: Namesakes,
    turns: Turns,
    /// Errors that the caller gets after the batches that were read. At most one for each line.
    failed: VecDeque<Error>,
    /// When the servers were last asked again about streams that they refused.
    tried_at: Instant,
    /// The line that connects first.
    first: usize,
    /// When to connect again: after an attempt, the other lines get as much time as the attempt took.
    rests: Option<Instant>,
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
    pub(super) fn new(lines: Vec<Line>, rounds: Option<Rounds>, shared: Arc<Shared>, min_idle: Duration) -> Self {
        Self {
            turns: Turns::new(lines.len(), min_idle),
            lines,
            rounds,
            shared,
            namesakes: Namesakes::default(),
            failed: VecDeque::new(),
            tried_at: Instant::now(),
            first: 0,
            rests: None,
        }
    }

    /// The endpoint as its server describes it, asked over the connection of the first line.
    pub(super) fn decided(&mut self, watch: &mut dyn Watch) -> Result<Endpoint> {
        self.lines[0].decided(watch)
    }

    /// Connects, and creates the groups.
    pub(super) fn until_open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.rounds.is_some() {
            while !self.lines.iter().all(Line::has_begun) {
                let Round { has_moved, pause, failed } = self.run_rounds(Aim::Begun, watch)?;
                if let Some((_, error)) = failed.into_iter().next() {
                    return Err(error);
                }
                if !has_moved {
                    self.wait(pause, watch)?;
                }
            }
            return Ok(());
        }
        for line in &mut self.lines {
            while !line.is_open() {
                line.open_in_time(Duration::MAX, &mut self.namesakes, watch)?;
            }
        }
        Ok(())
    }

    /// Runs until a batch is ready, the caller stops, or `timeout` is over.
    pub(super) fn until_batch(
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
            match self.run(deadline, &mut Stopping { watch: &mut *watch, shared: &shared }) {
                Err(Error::Interrupted) if shared.stops() => return Ok(None),
                passed => passed?,
            }
            // Even with no time left to wait, return what has arrived.
            let isolating = self.isolating();
            let has_more = self.lines.iter().enumerate().any(|(at, Line { session, .. })| {
                isolating.is_none_or(|isolating| isolating == at) && (session.is_ready() || session.is_suspended())
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
        let Self { rounds, lines, turns, namesakes, .. } = self;
        match rounds {
            Some(rounds) => rounds.read_ahead(at, &mut Sharing { lines, turns, namesakes, aim: Aim::Batch(None) }),
            None => lines[at].read_ahead(),
        }
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
                .map(|at| self.is_connected(at) && !self.lines[at].ledger().is_settled())
                .collect();
            if !wanted.contains(&true) {
                break;
            }
            let round = self.pass_work(&wanted, None, watch)?;
            self.failed.extend(round.failed.into_iter().map(|(_, error)| error));
        }
        Ok(())
    }

    /// Checks all sockets, if there are several and the last check was some time ago: entries that arrived wait there without
    /// renewal.
    fn look(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.turns.looks(clock::now()) {
            let round = self.step_all(watch)?;
            self.failed.extend(round.failed.into_iter().map(|(_, error)| error));
        }
        Ok(())
    }

    /// Moves the bytes of requests that were already written, without waiting.
    fn step_all(&mut self, watch: &mut dyn Watch) -> Result<Round> {
        if self.rounds.is_some() {
            return self.run_rounds(Aim::Work(&vec![false; self.lines.len()]), watch);
        }
        let mut round = Round::default();
        let now = clock::now();
        for (at, line) in self.lines.iter_mut().enumerate().filter(|(_, line)| line.awaits_reply()) {
            line.ask(watch)?;
            line.session.now = now;
            match line.step(watch) {
                Ok(moved) => round.has_moved |= moved,
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(other) => round.failed.push((at, other)),
            }
        }
        Ok(round)
    }

    /// One pass over the lines of `wanted` that sends the caller's decisions.
    fn pass_work(&mut self, wanted: &[bool], deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<Round> {
        if self.rounds.is_some() {
            return self.run_rounds(Aim::Work(wanted), watch);
        }
        let mut round = Round::default();
        for (at, line) in self.lines.iter_mut().enumerate().filter(|(at, _)| wanted[*at]) {
            line.ask(watch)?;
            let passed = if line.is_open() {
                line.pass(Reads::No, deadline, watch).map(|pass| round.has_moved |= pass == Pass::Moved)
            } else {
                let tried = connect(line, &mut self.rests, &mut self.namesakes, watch);
                tried.map(|next| {
                    round.has_moved |= next.is_none();
                    round.pause = sooner(round.pause, next);
                })
            };
            match passed {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(other) => round.failed.push((at, other)),
                Ok(()) => {}
            }
        }
        Ok(round)
    }

    /// One pass: connects, asks, sends, receives or waits.
    fn run(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        match &mut self.lines[..] {
            [line] => line.run(deadline, &mut self.namesakes, watch),
            _ if self.rounds.is_some() => self.run_shared(deadline, watch),
            _ => self.run_all(deadline, watch),
        }
    }

    /// One pass over the connections that lines share, with a wait if nothing moved.
    fn run_shared(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let Round { has_moved, pause, failed } = self.run_rounds(Aim::Batch(deadline), watch)?;
        self.failed.extend(failed.into_iter().map(|(_, error)| error));
        if let Some(at) = self.turns.order().next()
            && !self.is_connected(at)
        {
            self.turns.had_nothing(at, Instant::now());
        }
        if has_moved || !self.failed.is_empty() {
            return Ok(());
        }
        let until = [deadline, pause, self.turns.rests()].into_iter().fold(None, sooner);
        self.wait(until, watch)
    }

    /// One pass over each connection that lines share.
    fn run_rounds(&mut self, aim: Aim<'_>, watch: &mut dyn Watch) -> Result<Round> {
        let Self { rounds, lines, turns, namesakes, .. } = self;
        let deadline = if let Aim::Batch(deadline) = aim { deadline } else { None };
        rounds.as_mut().map_or_else(
            || Ok(Round::default()),
            |rounds| rounds.run(&mut Sharing { lines, turns, namesakes, aim }, deadline, watch),
        )
    }

    /// Whether the line has a connection that it can use.
    fn is_connected(&mut self, at: usize) -> bool {
        let Self { rounds, lines, turns, namesakes, .. } = self;
        match rounds {
            Some(rounds) => rounds.is_connected(at, &mut Sharing { lines, turns, namesakes, aim: Aim::Begun }),
            None => lines[at].is_open(),
        }
    }

    /// One pass over several lines. Except when connecting, none of them waits while another one can continue.
    fn run_all(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let mut has_moved = false;
        let mut pause = self.connect_all(deadline, &mut has_moved, watch)?;
        for at in self.turns.order() {
            let isolating = self.isolating();
            let line = &mut self.lines[at];
            line.session.let_isolate(isolating.is_none_or(|isolating| isolating == at));
            line.ask(watch)?;
            if !line.is_open() {
                self.turns.had_nothing(at, Instant::now());
                continue;
            }
            let reads = self.turns.reads(at, Instant::now());
            let is_idle = !line.session.awaits_reply();
            match note(&mut self.failed, line.pass(reads, deadline, watch))? {
                Some(Pass::Moved) => has_moved = true,
                Some(Pass::Paused(until)) => pause = sooner(pause, Some(until)),
                Some(Pass::Idle) | None => {}
            }
            if reads == Reads::Now && !is_idle && !line.awaits_reply() && !line.session.has_more() {
                self.turns.had_nothing(at, Instant::now());
                has_moved = true;
            }
        }
        if has_moved || !self.failed.is_empty() {
            return Ok(());
        }
        let until = [deadline, pause, self.turns.rests()].into_iter().fold(None, sooner);
        self.wait(until, watch)
    }

    /// Connects the lines that are due, after the deadline at most one. Returns when to connect next.
    fn connect_all(
        &mut self,
        deadline: Option<Instant>,
        has_moved: &mut bool,
        watch: &mut dyn Watch,
    ) -> Result<Option<Instant>> {
        let total = self.lines.len();
        let mut next = None;
        for at in (self.first..self.first + total).map(|at| at % total) {
            if self.lines[at].is_open() {
                continue;
            }
            match note(&mut self.failed, connect(&mut self.lines[at], &mut self.rests, &mut self.namesakes, watch))? {
                Some(Some(until)) => next = sooner(next, Some(until)),
                tried => {
                    // An error belongs to this call: the caller gets it before the next attempt.
                    (self.first, *has_moved) = ((at + 1) % total, true);
                    if tried.is_none() || left(deadline).is_zero() {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(next)
    }

    /// Waits until one of several sockets is ready, or until `until`.
    fn wait(&mut self, until: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let now = Instant::now();
        let mut timeout = until.map_or(WATCH_EVERY, |until| until.saturating_duration_since(now).min(WATCH_EVERY));
        for line in &mut self.lines {
            if let Some(Some(patience)) = note(&mut self.failed, line.patience(now, watch))? {
                timeout = timeout.min(patience);
            }
        }
        let (mut sockets, mut waiting) = (Vec::new(), Vec::new());
        for (at, line) in self.lines.iter_mut().enumerate() {
            if line.awaits_reply()
                && let Some(socket) = line.socket()
            {
                sockets.push(socket);
                waiting.push(at);
            }
        }
        let is_interrupted = Transport::wait_any(&mut sockets, &[], timeout);
        let waited = now.elapsed();
        for at in waiting {
            self.lines[at].session.took(waited, Duration::ZERO);
        }
        if is_interrupted && watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Runs until the servers have the decisions that the caller has made so far, or `deadline` is over. Covers the lines of
    /// `wanted`, by default all. A line that meets an error is left alone; the others continue.
    pub(super) fn until_settled(
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
            let round = self.pass_work(&wanted, deadline, watch)?;
            for (at, other) in round.failed {
                failed[at] = true;
                // What a server refuses says more than that another one is away.
                if error.is_none() || !matches!(other, Error::Connection { .. }) {
                    error = Some(other);
                }
            }
            let awaits_reply = open.iter().any(|at| self.lines[*at].awaits_reply());
            match (round.has_moved, awaits_reply) {
                (true, _) => {}
                (false, true) => self.wait(sooner(deadline, round.pause), watch)?,
                // The keeper has taken the rest, or it is too early to connect.
                (false, false) => thread::sleep(Duration::from_millis(1).min(left(deadline))),
            }
        }
    }

    /// Reads the replies that are on their way until `deadline`, so that no entry is delivered to a connection that is closed.
    pub(super) fn drain(&mut self, deadline: Instant, watch: &mut dyn Watch) -> Result<()> {
        let mut error = None;
        while self.lines.iter().any(Line::awaits_reply) && !left(Some(deadline)).is_zero() {
            let round = self.step_all(watch)?;
            error = round.failed.into_iter().map(|(_, error)| error).next_back().or(error);
            if !round.has_moved {
                self.wait(Some(deadline), watch)?;
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Whether the server of line `at` shows another process with this consumer's name. If `deadline` comes first, returns true
    /// to be safe.
    pub(super) fn finds_namesake(
        &mut self,
        at: usize,
        namesakes: &mut Namesakes,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<bool> {
        if self.rounds.is_none() {
            return self.lines[at].finds_namesake(namesakes, deadline, watch);
        }
        let wanted: Vec<bool> = (0..self.lines.len()).map(|other| other == at).collect();
        loop {
            let left = left(deadline);
            if left.is_zero() {
                return Ok(true);
            }
            if self.lend(at)
                && let Some(is_found) = self.lines[at].look_for_namesake(namesakes, left, watch)?
            {
                return Ok(is_found);
            }
            let Round { has_moved, pause, failed } = self.run_rounds(Aim::Work(&wanted), watch)?;
            if let Some((_, error)) = failed.into_iter().next() {
                return Err(error);
            }
            if !has_moved {
                self.wait(sooner(pause, deadline), watch)?;
            }
        }
    }

    /// Gives the line the connection that it shares, unless a reply is due on it. Returns whether the line has it now.
    fn lend(&mut self, at: usize) -> bool {
        let Self { rounds, lines, turns, namesakes, .. } = self;
        let mut sharing = Sharing { lines, turns, namesakes, aim: Aim::Begun };
        rounds.as_mut().is_some_and(|rounds| rounds.lend(at, &mut sharing))
    }

    /// Ends the connections.
    pub(super) fn close(&mut self) {
        self.lines.iter_mut().for_each(Line::close);
    }

    /// The connections belong to the process that this one was forked from.
    pub(super) fn forget(&mut self) {
        self.lines.iter_mut().for_each(Line::forget);
    }
}

/// Connects, unless it is too early; in that case, returns when it is time.
fn connect(
    line: &mut Line,
    rests: &mut Option<Instant>,
    namesakes: &mut Namesakes,
    watch: &mut dyn Watch,
) -> Result<Option<Instant>> {
    let now = Instant::now();
    if let Some(next) = line.next_try().max(*rests).filter(|next| *next > now) {
        return Ok(Some(next));
    }
    let opened = line.open(namesakes, watch);
    *rests = (!line.is_open()).then(|| Instant::now() + now.elapsed());
    opened.map(|()| None)
}

/// The result; an error of one line is kept, so that the others continue.
fn note<T>(failed: &mut VecDeque<Error>, passed: Result<T>) -> Result<Option<T>> {
    match passed {
        Ok(passed) => Ok(Some(passed)),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => {
            failed.push_back(error);
            Ok(None)
        }
    }
}

fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Also ends waits when the caller stops.
struct Stopping<'a> {
    watch: &'a mut dyn Watch,
    shared: &'a Shared,
}

impl Watch for Stopping<'_> {
    fn interrupted(&mut self) -> bool {
        self.watch.interrupted() || self.shared.stops()
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.watch.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.watch.retry_ended(end);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.watch.server_changed(endpoint, change);
    }
}
