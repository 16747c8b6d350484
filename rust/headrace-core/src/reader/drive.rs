//! The loop of a reader: sends, receives and waits, until a batch is ready.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::{Line, left};
use super::sessions::Sessions;
use super::sharing::Sharing;
use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::net::{Transport, Watch};
use crate::reading::{Link, Pass, ReadBatch, Round, Rounds, Standing, TRIES_EVERY, WATCH_EVERY};
use crate::retry::RetryPolicy;

/// The sockets of all sessions.
#[derive(Debug)]
pub(super) struct Drive {
    lines: Vec<Line>,
    /// How the sessions share connections, if they do.
    rounds: Option<Rounds>,
    /// Errors that the caller gets after the batches that were read. At most one for each session.
    failed: VecDeque<Error>,
    /// The session with which the next pass begins.
    first: usize,
    /// When the server was last asked again about streams that it refused.
    tried_at: Instant,
}

impl Drive {
    /// Prepares one connection for each endpoint; with `rounds`, those that the sessions share. Opens none.
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        rounds: Option<Rounds>,
        retry: Option<&RetryPolicy>,
        counters: &Arc<ReadCounters>,
    ) -> Self {
        let line = |endpoint| Line::new(Link::new(endpoint, retry.cloned(), Arc::clone(counters)));
        Self {
            lines: endpoints.into_iter().map(line).collect(),
            rounds,
            failed: VecDeque::new(),
            first: 0,
            tried_at: Instant::now(),
        }
    }

    /// The endpoint as its server describes it, asked over the connection of the only session.
    pub(super) fn decided(&mut self, watch: &mut dyn Watch) -> Result<Option<Endpoint>> {
        self.lines.first_mut().map(|line| line.link.decided(watch).cloned()).transpose()
    }

    /// Runs until each stream has begun.
    pub(super) fn until_begun(&mut self, sessions: &mut Sessions, watch: &mut dyn Watch) -> Result<()> {
        while !sessions.has_begun() {
            self.run(sessions, None, watch)?;
            if let Some(error) = self.failed.pop_front() {
                return Err(error);
            }
        }
        // Without a stream that can be read there is no reader.
        match (sessions.standing() == Standing::Refused).then(|| sessions.take()).flatten() {
            Some((_, Err(error))) => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs until [`take`](Self::take) has a batch or an error, everything was read, or `timeout` is over.
    pub(super) fn until_ready(
        &mut self,
        sessions: &mut Sessions,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = false;
        while !is_over && !sessions.is_ready() && self.failed.is_empty() && !sessions.is_finished() {
            if sessions.is_stranded() || self.tried_at.elapsed() >= TRIES_EVERY {
                self.tried_at = Instant::now();
                sessions.try_again();
            }
            self.run(sessions, deadline, watch)?;
            is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        }
        Ok(())
    }

    /// The next batch that is ready.
    pub(super) fn take(&mut self, sessions: &mut Sessions) -> Result<Option<ReadBatch>> {
        if let Some((at, batch)) = sessions.take() {
            // The server prepares the next page while the caller works. A fault shows again in the next call.
            self.read_ahead(at, sessions);
            return batch.map(Some);
        }
        self.failed.pop_front().map_or(Ok(None), Err)
    }

    fn read_ahead(&mut self, at: usize, sessions: &mut Sessions) {
        if let Some(rounds) = &mut self.rounds {
            return rounds.read_ahead(at, &mut Sharing::new(&mut self.lines, sessions, None));
        }
        let link = &mut self.lines[at].link;
        sessions.with(at, |session| {
            if !session.is_ready() {
                session.request(None);
            }
            let _ = link.send(session);
        });
    }

    /// One pass: connects, asks, sends, receives or waits.
    fn run(&mut self, sessions: &mut Sessions, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        match (&mut self.rounds, &mut self.lines[..]) {
            (Some(rounds), lines) => {
                let Round { has_moved, pause, failed } =
                    rounds.run(&mut Sharing::new(lines, sessions, deadline), deadline, watch)?;
                self.failed.extend(failed.into_iter().map(|(_, error)| error));
                let goes_on = has_moved || !self.failed.is_empty();
                if goes_on { Ok(()) } else { self.wait(sessions, deadline, pause, watch) }
            }
            (None, [line]) => line.run(sessions, deadline, watch),
            (None, _) => self.run_all(sessions, deadline, watch),
        }
    }

    /// One pass over several sessions. Except when connecting, none of them waits while another one can continue. After the
    /// deadline of the call, at most one attempt to connect is made or finished: the next pass begins with the session after it.
    fn run_all(&mut self, sessions: &mut Sessions, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let begins = !sessions.has_begun();
        let mut has_moved = false;
        let mut pause = None;
        let total = self.lines.len();
        for at in (self.first..self.first + total).map(|at| at % total) {
            let line = &mut self.lines[at];
            line.link.ask(watch)?;
            if !sessions.is_active(at) || (begins && sessions.get(at).has_begun()) {
                if sessions.is_over(at) && line.link.is_open() {
                    sessions.with(at, |session| line.link.close(session, false));
                }
                continue;
            }
            let connects = !line.link.is_open();
            let passed = line.pass(at, sessions, deadline, watch);
            let has_tried = connects && !matches!(passed, Ok(Pass::Idle | Pass::Paused(_)));
            match passed {
                Ok(Pass::Moved) => has_moved = true,
                Ok(Pass::Idle) => {}
                Ok(Pass::Paused(until)) => pause = Some(pause.map_or(until, |pause: Instant| pause.min(until))),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                // The others continue.
                Err(error) => self.failed.push_back(error),
            }
            if has_tried && left(deadline).is_zero() {
                self.first = (at + 1) % total;
                return Ok(());
            }
        }
        if has_moved || !self.failed.is_empty() { Ok(()) } else { self.wait(sessions, deadline, pause, watch) }
    }

    /// Waits until one of several sockets is ready, or `pause` is over; gives up on a server that was silent for too long.
    fn wait(
        &mut self,
        sessions: &mut Sessions,
        deadline: Option<Instant>,
        pause: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let now = Instant::now();
        let mut timeout = WATCH_EVERY;
        for until in [deadline, pause].into_iter().flatten() {
            timeout = timeout.min(until.saturating_duration_since(now));
        }
        let mut sockets = Vec::new();
        let mut waiting = Vec::new();
        for (at, Line { link, .. }) in self.lines.iter_mut().enumerate() {
            if !sessions.is_active(at) {
                continue;
            }
            match link.patience(sessions.get(at), now) {
                None => continue,
                Some(Ok(patience)) => timeout = timeout.min(patience),
                Some(Err(fault)) => return sessions.with(at, |session| link.lose(session, fault, watch)),
            }
            if let Some(socket) = link.socket(sessions.get(at)) {
                sockets.push(socket);
                waiting.push(at);
            }
        }
        let is_interrupted = Transport::wait_any(&mut sockets, &[], timeout);
        let waited = now.elapsed();
        for at in waiting {
            sessions.with(at, |session| session.took(waited, Duration::ZERO));
        }
        if is_interrupted && watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Ends the connections; `is_parents`: they belong to the process that this one was forked from.
    pub(super) fn close(&mut self, sessions: &mut Sessions, is_parents: bool) {
        for (at, line) in self.lines.iter_mut().enumerate() {
            sessions.with(at, |session| line.link.close(session, is_parents));
        }
    }
}
