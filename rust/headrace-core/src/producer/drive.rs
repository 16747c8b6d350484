//! The loop: receives, sends and waits, until what a call is for is reached.

use std::io::IoSlice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Producer;
use super::link::Link;
use crate::connection::{Context, Disconnect, MAX_SLICES, RetryStep};
use crate::error::{Error, Fault, Result, code};
use crate::net::Watch;
use crate::random;

/// How long one wait may last before the caller is asked whether to go on: Ctrl-C must be noticed within 0.1 s.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long one wait for many replies may last: the estimate of their length may be too high.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a pass of the loop is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Room for one more message.
    Room,
    /// Room for many, because there was none in the window.
    AmpleRoom,
    /// No message without an outcome.
    Empty,
    /// The outcome of the call's own message.
    Call,
}

impl Producer {
    fn reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Room => self.has_room() || self.is_down(),
            Goal::AmpleRoom => {
                (self.has_room() && self.connection.in_flight.has_ample_room(self.limits)) || self.is_down()
            }
            Goal::Empty => self.is_idle(),
            Goal::Call => self.outcomes.is_call_settled(),
        }
    }

    /// Asks the watch, if that was long ago.
    pub(crate) fn check(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<()> {
        if now.saturating_duration_since(self.watched) < WATCH_EVERY {
            return Ok(());
        }
        self.watched = now;
        if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub(super) fn drive(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let driven = self.drive_on(goal, deadline, watch);
        if driven.is_err() && self.connection.awaits_control() {
            // Read by a later call, the reply to PING would no longer show that the server is there.
            self.renew(&Fault::new(code::INTERRUPTED, "the call was interrupted"));
        }
        self.report_waits(watch);
        driven
    }

    fn drive_on(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let started = Instant::now();
        let mut renewed = false;
        while !self.reached(goal) {
            let now = Instant::now();
            self.check(now, watch)?;
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.time_out(goal);
                continue;
            }
            if self.connection.in_flight.is_empty() && !self.connection.retry.is_active() {
                // Whose outcome is missing is in an open run.
                self.close_runs();
            }
            self.request_wait_for(goal);
            let step = self.take_retry_step(now);
            if step.is_some() {
                self.report_waits(watch);
            }
            match step {
                None => {}
                Some(RetryStep::Pause(until)) => {
                    let pause = until.min(deadline.unwrap_or(until)).saturating_duration_since(now);
                    thread::sleep(pause.min(WATCH_EVERY));
                    if watch.interrupted() {
                        return Err(Error::Interrupted);
                    }
                    continue;
                }
                Some(RetryStep::Redirect(_) | RetryStep::Resend | RetryStep::GiveUp | RetryStep::Done) => continue,
            }
            match &self.link {
                // What was under way failed when the link went down; what was gathered before was encoded later.
                Link::Down(failure) => {
                    let failure = Arc::clone(failure);
                    let (connection, mut cx) = self.connection(now);
                    connection.fail_all(&failure, &mut cx);
                    self.end_retries(now);
                    return Ok(());
                }
                Link::Closed => self.open(deadline, watch)?,
                Link::Open(_) if self.servers.is_due(now) => self.check_master(now, watch)?,
                Link::Open(_) if self.connection.needs_ping(now) => self.connection.ping(),
                Link::Open(_) => match self.step() {
                    Ok(true) => {}
                    Ok(false) => {
                        if !self.reached(goal) {
                            self.wait(goal, (started, deadline), &mut renewed, watch)?;
                        }
                    }
                    Err(broken) => self.disconnect_or_renew(&broken, &mut renewed),
                },
            }
        }
        Ok(())
    }

    /// The caller waits no longer. Replies that are here already count.
    fn time_out(&mut self, goal: Goal) {
        match self.receive() {
            Ok(_) if self.reached(goal) => {}
            Ok(_) => {
                let message = format!("no reply from {} before flush timed out", self.endpoint);
                self.abort(Fault::new(code::TIMEOUT, message));
            }
            Err(broken) => self.disconnect(&broken),
        }
    }

    /// Requests the WAIT that is due, also for what nothing will come behind: for the last entries, for those that are sent
    /// again, and where outcomes wait for one that needs it.
    fn request_wait_for(&mut self, goal: Goal) {
        let is_last = matches!(goal, Goal::Empty | Goal::Call) || self.connection.retry.is_active();
        if is_last || self.is_crowded() || self.connection.until_wait() == 0 {
            self.connection.request_wait();
        }
    }

    /// Goes on with the retries, if there are any and nothing is in flight.
    pub(super) fn take_retry_step(&mut self, now: Instant) -> Option<RetryStep> {
        if !self.connection.retry.is_active() {
            return None;
        }
        let (connection, mut cx) = self.connection(now);
        // A run may have been closed since the redirect came.
        connection.take_back_unsent(&mut cx);
        let step = self.connection.retry_step(&self.rules, now, random::jitter())?;
        let counters = self.outcomes.recorder.counters();
        let began = if matches!(step, RetryStep::Pause(_)) { self.connection.retry.began() } else { None };
        match began {
            Some(began) => self.retry_waits.note(began, now, counters),
            None => self.retry_waits.count(now, counters),
        }
        match &step {
            RetryStep::Pause(_) => {}
            RetryStep::Redirect(redirect) => self.follow(redirect, now),
            RetryStep::Resend => {
                let Self { connection, outcomes, rules, .. } = self;
                connection.resend(|messages, may_be_written| {
                    outcomes.recorder.sent_again(messages, may_be_written && !rules.exactly_once);
                });
            }
            RetryStep::GiveUp => {
                let (connection, mut cx) = self.connection(now);
                connection.give_up_retries(&mut cx);
                self.finish_retries(now);
            }
            RetryStep::Done => self.finish_retries(now),
        }
        Some(step)
    }

    /// Ends the retries. What did not pass in time will not pass for the rest of the batch either.
    fn finish_retries(&mut self, now: Instant) {
        if let Some(failure) = self.end_retries(now) {
            self.drop_socket();
            self.link = Link::Down(failure);
        }
    }

    /// Waits until the socket is ready; gives up on a server that is silent for too long.
    fn wait(
        &mut self,
        goal: Goal,
        (started, deadline): (Instant, Option<Instant>),
        renewed: &mut bool,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let now = Instant::now();
        let Some((silent, patience)) = self.connection.silence(started, now) else { return Ok(()) };
        if silent >= patience {
            let seconds = silent.as_secs_f64();
            let message = format!("{} was silent for {seconds:.3} s while replies were expected", self.endpoint);
            let broken = Fault::new(code::TIMEOUT, message).into();
            if self.connection.awaits_control() {
                self.disconnect_or_renew(&broken, renewed);
            } else {
                self.disconnect(&broken);
            }
            return Ok(());
        }
        let replies = match goal {
            Goal::AmpleRoom => self.connection.in_flight.until_ample_room(self.limits),
            Goal::Room | Goal::Empty | Goal::Call => self.connection.in_flight.len(),
        };
        let bytes = if self.is_quick { 1 } else { self.connection.still_to_come(replies) };
        let at_most = if bytes > 1 { LOOK_EVERY } else { WATCH_EVERY };
        let mut timeout = at_most.min(patience.saturating_sub(silent));
        if let Some(deadline) = deadline {
            timeout = timeout.min(deadline.saturating_duration_since(now));
        }
        let Link::Open(transport) = &mut self.link else { return Ok(()) };
        let writable = self.connection.has_unsent() || transport.wants_write();
        let ready = transport.wait_for(bytes, writable, timeout);
        if ready.interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Receives what is there, then sends what the socket takes. Returns whether anything moved.
    ///
    /// In this order: a connection that the server has closed is noticed before the first byte of a message goes out.
    pub(super) fn step(&mut self) -> std::result::Result<bool, Disconnect> {
        let received = self.receive()?;
        match self.send() {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last words may be here already, and explain more than a broken pipe.
                while self.receive()? {}
                Err(fault.into())
            }
        }
    }

    fn receive(&mut self) -> std::result::Result<bool, Disconnect> {
        let Self { link: Link::Open(transport), connection, rules, batch, outcomes, .. } = self else {
            return Ok(false);
        };
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

    fn send(&mut self) -> std::result::Result<bool, Fault> {
        let Self { link: Link::Open(transport), connection, outcomes, .. } = self else { return Ok(false) };
        let mut moved = transport.push()? > 0;
        if moved {
            connection.sent(0, Instant::now());
        }
        while connection.has_unsent() {
            let count = if let Some(bytes) = connection.contiguous() {
                transport.send(bytes)?
            } else {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let filled = connection.send.slices(&mut slices);
                transport.send_vectored(&slices[..filled])?
            };
            if count == 0 {
                break;
            }
            moved = true;
            connection.sent(count, Instant::now());
            outcomes.recorder.counters().bytes_sent.add(count as u64);
        }
        Ok(moved)
    }
}
