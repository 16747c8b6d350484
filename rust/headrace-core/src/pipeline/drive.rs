//! The loop: receives, sends and waits, until what a call is for is reached.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Pipeline;
use super::link::{Break, Link};
use super::round::Turn;
use crate::error::{Error, Fault, Result, code};
use crate::transport::{ConnectError, Watch};

/// How long one wait may last before the caller is asked whether to go on: Ctrl-C must be noticed within 0.1 s.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long one wait for many replies may last: the guess at how long those are may have been too high.
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

impl Pipeline {
    pub(super) fn reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Room => self.has_room() || self.is_down(),
            Goal::AmpleRoom => (self.has_room() && self.ledger.window.has_ample_room(self.limits)) || self.is_down(),
            Goal::Empty => self.is_idle(),
            Goal::Call => self.ledger.call.is_some(),
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
        self.tell_waits(watch);
        driven
    }

    fn drive_on(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let started = Instant::now();
        let mut renewed = false;
        while !self.reached(goal) {
            let now = Instant::now();
            self.check(now, watch)?;
            if deadline.is_some_and(|deadline| deadline <= now) {
                // Replies that are here already count.
                match self.receive() {
                    Ok(_) if self.reached(goal) => continue,
                    Ok(_) => {}
                    Err(broken) => {
                        self.break_link(&broken);
                        continue;
                    }
                }
                self.abort(Fault::new(
                    code::TIMEOUT,
                    format!("no reply from {} before flush timed out", self.endpoint),
                ));
                continue;
            }
            self.cover_for(goal);
            let turn = self.take_turn(now);
            if turn.is_some() {
                self.tell_waits(watch);
            }
            match turn {
                None => {}
                Some(Turn::Pause(until)) => {
                    let pause = until.min(deadline.unwrap_or(until)).saturating_duration_since(now);
                    thread::sleep(pause.min(WATCH_EVERY));
                    if watch.interrupted() {
                        return Err(Error::Interrupted);
                    }
                    continue;
                }
                Some(Turn::Resend | Turn::Tell) => continue,
            }
            match &mut self.link {
                // What was under way failed when the link went down; what was gathered before comes to the window later.
                Link::Down(failure) => {
                    let failure = Arc::clone(failure);
                    self.ledger.fail_rest(&failure);
                    self.outbox.clear();
                    return Ok(());
                }
                Link::Closed => self.open(deadline, watch)?,
                Link::Open(connection) => {
                    if connection.needs_ping(&self.ledger.window) {
                        match connection.ping(deadline, watch) {
                            Ok(()) => {}
                            Err(ConnectError::Interrupted) => {
                                // The reply to PING would be taken for the next message's.
                                self.ledger.lose_cover(&Fault::new(code::INTERRUPTED, "the call was interrupted"));
                                self.drop_connection();
                                return Err(Error::Interrupted);
                            }
                            Err(ConnectError::Fault(fault)) => self.break_or_renew(&fault.into(), &mut renewed),
                        }
                        continue;
                    }
                    match self.step() {
                        Ok(true) => {}
                        Ok(false) => {
                            if !self.reached(goal) {
                                self.wait(goal, started, deadline, watch)?;
                            }
                        }
                        Err(broken) => self.break_or_renew(&broken, &mut renewed),
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on with the retries, if there are any and nothing is in flight.
    pub(super) fn take_turn(&mut self, now: Instant) -> Option<Turn> {
        let turn = self.ledger.turn(now)?;
        match &turn {
            Turn::Pause(_) => {}
            Turn::Resend => self.ledger.resend(&mut self.outbox),
            Turn::Tell => {
                // What did not pass in time will not pass for the rest of the batch either.
                if let Some(failure) = self.ledger.tell_round() {
                    self.drop_connection();
                    self.link = Link::Down(failure);
                }
            }
        }
        Some(turn)
    }

    /// Waits until the socket is ready; gives up on a server that is silent for too long.
    pub(super) fn wait(
        &mut self,
        goal: Goal,
        started: Instant,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let patience_for_cover = self.patience_for_cover();
        let Link::Open(connection) = &mut self.link else { return Ok(()) };
        let now = Instant::now();
        // Time in which nobody looked is not the server's silence.
        let silent = now - connection.used.max(started);
        let (for_cover, short_replies) = patience_for_cover;
        let patience = connection.command_timeout + for_cover;
        if silent >= patience {
            let message =
                format!("{} was silent for {:.3} s while replies were owed", self.endpoint, silent.as_secs_f64());
            self.break_link(&Fault::new(code::TIMEOUT, message).into());
            return Ok(());
        }
        let replies = match goal {
            Goal::AmpleRoom => self.ledger.window.until_ample_room(self.limits),
            Goal::Room | Goal::Empty | Goal::Call => self.ledger.window.len(),
        };
        let bytes =
            if self.is_quick { 1 } else { connection.replies.still_to_come(replies.saturating_sub(short_replies)) };
        let at_most = if bytes > 1 { LOOK_EVERY } else { WATCH_EVERY };
        let mut timeout = at_most.min(patience.saturating_sub(silent));
        if let Some(deadline) = deadline {
            timeout = timeout.min(deadline.saturating_duration_since(now));
        }
        let writable = !self.outbox.is_empty() || connection.transport.wants_write();
        let ready = connection.transport.wait_for(bytes, writable, timeout);
        if ready.interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Receives what is there, then sends what the socket takes. Returns whether anything moved.
    ///
    /// In this order: a connection that the server has closed is noticed before the first byte of a message goes out.
    pub(super) fn step(&mut self) -> std::result::Result<bool, Break> {
        let received = self.receive()?;
        match self.send() {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last words may be here already, and tell more than a broken pipe.
                while self.receive()? {}
                Err(fault.into())
            }
        }
    }

    pub(super) fn receive(&mut self) -> std::result::Result<bool, Break> {
        let mut moved = false;
        while let Link::Open(connection) = &mut self.link {
            let space = connection.replies.space();
            let room = space.len();
            let count = connection.transport.receive(space)?;
            if count == 0 {
                break;
            }
            moved = true;
            connection.used = Instant::now();
            connection.replies.filled(count);
            let settled = self.ledger.settle(connection, &mut self.outbox);
            self.ledger.recorder.publish();
            settled?;
            if count < room {
                break;
            }
        }
        Ok(moved)
    }

    pub(super) fn send(&mut self) -> std::result::Result<bool, Fault> {
        let Link::Open(connection) = &mut self.link else { return Ok(false) };
        let mut moved = connection.transport.push()? > 0;
        while !self.outbox.is_empty() {
            let count = self.outbox.send(&mut connection.transport)?;
            if count == 0 {
                break;
            }
            moved = true;
            self.ledger.window.hand_over(count);
            self.ledger.recorder.counters().bytes_sent.add(count as u64);
        }
        if moved {
            connection.used = Instant::now();
        }
        Ok(moved)
    }
}
