//! The loop: receives, sends and waits until the goal of a call is reached.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::Producer;
use super::clock;
use super::link::{Errand, Link};
use crate::connection::{Connection, Context, Disconnect, MAX_SLICES, RetryStep};
use crate::error::{Error, Fault, Result, code};
use crate::net::{Transport, Wanted, Watch, block_on};
use crate::random;

/// How long one wait may last before the caller is asked whether to continue: Ctrl-C must be noticed within 0.1 s.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long one wait for many replies may last: the estimate of their length may be too high.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The goal of a call that runs the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Room for one more message.
    Room,
    /// Room for many, because there was none in the window.
    AmpleRoom,
    /// An outcome for every message.
    Empty,
    /// The outcome of the call's own message.
    Call,
}

/// The result of a pass over a lane.
pub(super) enum Pass {
    /// Something moved, or may move now.
    Moved,
    /// Servers must be asked before the lane continues.
    Errand(Errand),
    /// The lane waits for its socket, or for nothing.
    Idle,
    /// The lane waits until it is time to send again what failed.
    Paused(Instant),
}

impl Producer {
    fn reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Room => self.has_room() || self.is_down(),
            Goal::AmpleRoom => (self.has_room() && self.has_ample_room()) || self.is_down(),
            Goal::Empty => self.is_idle(),
            Goal::Call => self.outcomes.is_call_settled(),
        }
    }

    /// Asks the watch, unless it was asked a short time ago.
    pub(crate) fn check(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<()> {
        if now.saturating_duration_since(self.watched) < WATCH_EVERY {
            return Ok(());
        }
        self.watched = now;
        if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub(super) fn drive(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let driven = self.drive_on(goal, deadline, watch);
        if driven.is_err() {
            for at in 0..self.links.len() {
                if self.lanes.get(at).awaits_control() {
                    // If a later call read the reply to PING, it would no longer show that the server is reachable.
                    self.renew(at, &Fault::new(code::INTERRUPTED, "the call was interrupted"));
                }
            }
        }
        let is_ended = driven.is_err();
        self.leave_openings(|_, connection| is_ended || connection.is_idle());
        self.report_waits(watch);
        self.report_changes(goal == Goal::Empty, watch);
        self.publish_nodes();
        driven
    }

    fn drive_on(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let started = Instant::now();
        self.leave_openings(|opening, _| opening.is_missed(started));
        let mut renewed = Vec::new();
        while !self.reached(goal) {
            let now = Instant::now();
            self.check(now, watch)?;
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.time_out(goal, watch);
                continue;
            }
            if self.lanes.all().all(|connection| connection.in_flight.is_empty() && !connection.retry.is_active()) {
                // The messages without an outcome are in an open run.
                self.close_runs();
            }
            let mut moved = false;
            let mut pause = None;
            let mut at = 0;
            // Lanes may be added meanwhile.
            while at < self.links.len() {
                match self.drive_lane(at, goal, now, &mut renewed, watch) {
                    Pass::Moved => moved = true,
                    Pass::Errand(errand) => {
                        block_on(self.run(at, errand, deadline, watch))?;
                        moved = true;
                    }
                    Pass::Idle => {}
                    Pass::Paused(until) => pause = Some(pause.map_or(until, |pause: Instant| pause.min(until))),
                }
                at += 1;
            }
            self.report_changes(false, watch);
            if !moved && !self.reached(goal) {
                self.publish_nodes();
                self.wait(goal, (started, deadline, pause), &mut renewed, watch)?;
            }
        }
        Ok(())
    }

    /// Does what can be done for one lane without waiting.
    pub(super) fn drive_lane(
        &mut self,
        at: usize,
        goal: Goal,
        now: Instant,
        renewed: &mut Vec<usize>,
        watch: &mut dyn Watch,
    ) -> Pass {
        if self.lanes.is_of_cluster() && self.lanes.get(at).is_idle() {
            return Pass::Idle;
        }
        self.request_wait_for(at, goal);
        if self.lanes.is_of_cluster() {
            let (connection, mut cx) = self.connection(at, now);
            connection.give_up_unprovable(&mut cx);
            if let Poll::Ready(errand) = self.go_on_opening(at, watch) {
                return errand.map_or(Pass::Moved, Pass::Errand);
            }
        }
        let step = self.take_retry_step(at, now);
        if step.is_some() {
            self.report_waits(watch);
        }
        match step {
            None => {}
            Some(RetryStep::Pause(until)) => return Pass::Paused(until),
            Some(RetryStep::Redirect(detours)) => return Pass::Errand(Errand::Follow(detours)),
            Some(RetryStep::Resend | RetryStep::Resume | RetryStep::GiveUp | RetryStep::Done) => {
                return Pass::Moved;
            }
        }
        match &self.links[at] {
            // Messages under way failed when the link went down; messages that had been gathered were encoded later.
            Link::Down(failure) => {
                let failure = Arc::clone(failure);
                let (connection, mut cx) = self.connection(at, now);
                connection.fail_all(&failure, &mut cx);
                self.end_retries(at, now);
            }
            Link::Closed => return Pass::Errand(Errand::Open),
            Link::Opening(_) => return Pass::Idle,
            Link::Open(_) if self.servers.is_due(now) => return Pass::Errand(Errand::CheckMaster),
            Link::Open(_) if self.lanes.get(at).needs_ping(now) => self.lanes.get_mut(at).ping(),
            Link::Open(_) => match self.step(at) {
                Ok(true) => {}
                Ok(false) => return Pass::Idle,
                Err(broken) => self.disconnect_or_renew(at, &broken, renewed),
            },
        }
        Pass::Moved
    }

    /// The caller stops waiting. Replies that have already arrived count, and connects that have failed by now give the reason.
    fn time_out(&mut self, goal: Goal, watch: &dyn Watch) {
        for at in 0..self.links.len() {
            self.end_opening(at, watch);
            if let Err(broken) = self.receive(at) {
                self.disconnect(at, &broken);
            }
        }
        if !self.reached(goal) {
            let message = format!("no reply from {} before flush timed out", self.endpoint);
            self.abort(&Fault::new(code::TIMEOUT, message));
        }
    }

    /// Requests the WAIT that is due, also if nothing will follow: for the last entries, for those that are sent again, and where
    /// outcomes wait for one that needs it.
    fn request_wait_for(&mut self, at: usize, goal: Goal) {
        let is_crowded = self.is_crowded();
        let connection = self.lanes.get_mut(at);
        let is_last = matches!(goal, Goal::Empty | Goal::Call) || connection.retry.is_active();
        if is_last || is_crowded || connection.until_wait() == 0 {
            connection.request_wait();
        }
    }

    /// Continues the retries of a lane as far as that needs no other lane.
    pub(super) fn take_own_retry_step(&mut self, at: usize) {
        if !self.lanes.get(at).retry.has_redirect() {
            self.take_retry_step(at, Instant::now());
        }
    }

    /// Continues the retries of a lane, if there are any and nothing is in flight. The caller must follow a redirect.
    pub(super) fn take_retry_step(&mut self, at: usize, now: Instant) -> Option<RetryStep> {
        if self.lanes.get(at).retry.is_idle() {
            return None;
        }
        let (connection, mut cx) = self.connection(at, now);
        // A run may have been closed since the redirect arrived.
        connection.take_back_unsent(&mut cx);
        let step = self.lanes.get_mut(at).retry_step(&self.rules, now, random::jitter())?;
        let counters = self.outcomes.recorder.counters();
        let is_pause = matches!(step, RetryStep::Pause(_));
        let began = self.lanes.get_mut(at).retry.began(is_pause);
        match began {
            Some(began) => self.retry_waits[at].note(began, now, counters),
            None => self.retry_waits[at].count(now, counters),
        }
        match &step {
            RetryStep::Pause(_) | RetryStep::Redirect(_) => {}
            RetryStep::Resend => {
                let Self { lanes, outcomes, rules, .. } = self;
                lanes.get_mut(at).resend(|messages, may_be_written| {
                    outcomes.recorder.sent_again(messages, may_be_written && !rules.exactly_once);
                });
            }
            RetryStep::Resume => {
                self.lanes.get_mut(at).resume();
                self.finish_retries(at, now);
            }
            RetryStep::GiveUp => {
                let (connection, mut cx) = self.connection(at, now);
                if !connection.give_up_tries(&mut cx) {
                    self.finish_retries(at, now);
                }
            }
            RetryStep::Done => self.finish_retries(at, now),
        }
        Some(step)
    }

    /// Ends the retries of a lane. What did not succeed in time fails for the rest of the batch.
    fn finish_retries(&mut self, at: usize, now: Instant) {
        if let Some(failure) = self.end_retries(at, now) {
            self.drop_socket(at);
            self.links[at] = Link::Down(failure);
        }
    }

    /// Waits until a socket is ready, or `pause` is over; gives up on a server that is silent for too long.
    fn wait(
        &mut self,
        goal: Goal,
        (started, deadline, pause): (Instant, Option<Instant>, Option<Instant>),
        renewed: &mut Vec<usize>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        // No pass continues these openings: a socket that is ready would end each wait.
        self.leave_openings(|_, connection| connection.is_idle());
        let now = Instant::now();
        let mut timeout = WATCH_EVERY;
        for until in [deadline, pause].into_iter().flatten() {
            timeout = timeout.min(until.saturating_duration_since(now));
        }
        for at in 0..self.links.len() {
            let connection = self.lanes.get(at);
            if let Link::Opening(opening) = &self.links[at] {
                timeout = timeout.min(opening.wakes().saturating_duration_since(now));
            }
            if !connection.awaits_answer() {
                continue;
            }
            let Some((silent, patience)) = connection.silence(Some(started), now) else { continue };
            if silent >= patience {
                self.give_up_silent(at, silent, renewed);
                return Ok(());
            }
            timeout = timeout.min(patience.saturating_sub(silent));
        }
        let replies = self.replies_to_wait_for(goal);
        let is_quick = self.is_quick;
        let Self { links, lanes, .. } = self;
        let mut wanted_of = |at: usize, transport: &Transport| {
            let connection = lanes.get_mut(at);
            // A server with nothing to answer may have closed its socket, which would end every wait immediately.
            connection.awaits_answer().then(|| {
                let most = replies.min(connection.in_flight.len());
                let bytes = if is_quick { 1 } else { connection.still_to_come(most) };
                if bytes > 1 {
                    timeout = timeout.min(LOOK_EVERY);
                }
                Wanted { bytes, writable: connection.has_unsent() || transport.wants_write() }
            })
        };
        let interrupted = if let [Link::Open(transport)] = &mut links[..]
            && let Some(Wanted { bytes, writable }) = wanted_of(0, transport)
        {
            transport.wait_for(bytes, writable, timeout).interrupted
        } else {
            let (mut sockets, mut opening) = (Vec::with_capacity(links.len()), Vec::new());
            for (at, link) in links.iter_mut().enumerate() {
                match link {
                    Link::Open(transport) => {
                        sockets.extend(wanted_of(at, transport).map(|wanted| (&mut **transport, wanted)));
                    }
                    Link::Opening(it) => opening.extend(it.socket()),
                    Link::Closed | Link::Down(_) => {}
                }
            }
            Transport::wait_any(&mut sockets, &opening, timeout)
        };
        if interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// How many replies of a lane to wait for.
    fn replies_to_wait_for(&self, goal: Goal) -> usize {
        match goal {
            Goal::AmpleRoom if self.lanes.is_of_cluster() => {
                let busy = self.lanes.all().filter(|connection| !connection.in_flight.is_empty()).count();
                self.lanes.load().until_ample_room(self.limits).div_ceil(busy.max(1)).max(1)
            }
            Goal::AmpleRoom => self.lanes.get(0).in_flight.until_ample_room(self.limits),
            Goal::Room | Goal::Empty | Goal::Call => usize::MAX,
        }
    }

    pub(super) fn give_up_silent(&mut self, at: usize, silent: Duration, renewed: &mut Vec<usize>) {
        let seconds = silent.as_secs_f64();
        let message = format!("{} sent no complete reply for {seconds:.3} s", self.endpoint);
        let broken = Fault::new(code::TIMEOUT, message).into();
        if self.lanes.get(at).awaits_control() {
            self.disconnect_or_renew(at, &broken, renewed);
        } else {
            self.node_states.failed(at, &broken.fault, Instant::now(), clock::unix_millis());
            self.disconnect(at, &broken);
        }
    }

    /// Reports to the watch which nodes changed. `is_last`: the call ends.
    pub(super) fn report_changes(&mut self, is_last: bool, watch: &mut dyn Watch) {
        while self.node_states.has_changes()
            && let Some(change) = self.node_states.next_change(is_last, Instant::now())
        {
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Receives what has arrived, then sends what the socket takes. Returns whether anything moved.
    ///
    /// The order matters: a connection that the server has closed is noticed before the first byte of a message goes out.
    pub(super) fn step(&mut self, at: usize) -> std::result::Result<bool, Disconnect> {
        let received = self.receive(at)?;
        match self.send(at) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last reply may have arrived already, and explains more than a broken pipe.
                while self.receive(at)? {}
                Err(fault.into())
            }
        }
    }

    pub(super) fn receive(&mut self, at: usize) -> std::result::Result<bool, Disconnect> {
        let Self { links, lanes, rules, batch, outcomes, .. } = self;
        let Link::Open(transport) = &mut links[at] else { return Ok(false) };
        let connection = lanes.get_mut(at);
        let mut moved = false;
        loop {
            let space = connection.space();
            let room = space.len();
            let count = transport.receive(space)?;
            if count == 0 {
                break;
            }
            moved = true;
            let mut cx = Context { rules, batch: &mut *batch, outcomes: &mut *outcomes, now: Instant::now() };
            let received = connection.received(count, &mut cx);
            outcomes.recorder.publish();
            received?;
            if count < room {
                break;
            }
        }
        Ok(moved)
    }

    fn send(&mut self, at: usize) -> std::result::Result<bool, Fault> {
        let Self { links, lanes, outcomes, .. } = self;
        let Link::Open(transport) = &mut links[at] else { return Ok(false) };
        let connection = lanes.get_mut(at);
        let mut moved = transport.push()? > 0;
        if moved {
            connection.sent(0, Instant::now());
        }
        while connection.has_unsent() {
            let count = send_some(transport, connection)?;
            if count == 0 {
                break;
            }
            moved = true;
            connection.sent(count, Instant::now());
            outcomes.recorder.counters().bytes_sent.add(count as u64);
        }
        connection.tried_to_send();
        Ok(moved)
    }
}

fn send_some(transport: &mut Transport, connection: &mut Connection) -> std::result::Result<usize, Fault> {
    if connection.is_in_one_piece() {
        return connection.contiguous().map_or(Ok(0), |bytes| transport.send(bytes));
    }
    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
    let filled = connection.send.slices(&mut slices);
    transport.send_vectored(&slices[..filled])
}
