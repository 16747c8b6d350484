//! Moves bytes between the output buffer, the window and the transport, and tells outcomes as replies come in.
//!
//! One thread, no locks: every public call of the dispatcher runs this loop as far as it needs to. What was encoded stays
//! in the outbox until the transport takes it; what the transport took stays in the window until its reply is here.

mod clock;
mod cover;
mod ledger;
mod link;
mod named;
mod needs;
mod outbox;
mod push;
mod round;
mod run;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::durability::Durability;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Classifier, Error, Failure, Fault, Result, Written, code};
use crate::exactly_once::{ExactlyOnce, Names, Runs};
use crate::reply::EntryId;
use crate::report::Recorder;
use crate::retry::RetryPolicy;
use crate::transport::{ConnectError, Watch, connect};
use crate::window::{Limits, Owner};
use crate::xadd::{FieldNames, Template};

use ledger::Ledger;
use link::{Break, Connection, Link};
use needs::Need;
use outbox::Outbox;
use round::Turn;
use run::Script;

/// How long one wait may last before the caller is asked whether to go on: Ctrl-C must be noticed within 0.1 s.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long one wait for many replies may last: the guess at how long those are may have been too high.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A server that answers a quarter of the window within this time is not worth going to sleep for.
const QUICK: Duration = Duration::from_micros(500);

/// What a pass of the loop is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Room for one more message.
    Room,
    /// Room for many, because there was none in the window.
    AmpleRoom,
    /// No message without an outcome.
    Empty,
    /// The outcome of the call's own message.
    Call,
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    endpoint: Endpoint,
    limits: Limits,
    template: Template,
    outbox: Outbox,
    link: Link,
    ledger: Ledger,
    watched: Instant,
    /// When there was no room in the window last, and whether that was a short time after the time before.
    full: Instant,
    is_quick: bool,
    scratch: Vec<u8>,
    /// The fields of an entry of several rows, before it is known how many those are.
    fields: Vec<u8>,
    /// Exactly once: rows go out in runs.
    script: Option<Script>,
    /// Exactly once: rows go out with names, which the server is to remember for so long.
    names: Option<Names>,
    remembered: Duration,
    /// Neither of them.
    is_plain: bool,
    /// Whether there may be no room for other reasons than the window.
    holds_back: bool,
}

impl Pipeline {
    pub(crate) fn new(
        endpoint: Endpoint,
        classifier: Classifier,
        retry: Option<RetryPolicy>,
        exactly_once: Option<&ExactlyOnce>,
        durability: Option<Durability>,
        limits: Limits,
        names: &FieldNames,
    ) -> Self {
        // What was recognised is to be a write as well then, for WAIT to speak of it.
        let proves = durability.is_some();
        let (mut script, mut row_names, mut remembered) = (None, None, Duration::ZERO);
        match exactly_once {
            None => {}
            Some(ExactlyOnce::Script { ttl, run_rows }) => {
                script = Some(Script::new(Runs::new(*ttl, *run_rows, proves)));
            }
            Some(ExactlyOnce::Idmp { by_message_id, duration }) => {
                row_names = Some(Names::new(*by_message_id));
                remembered = *duration;
            }
        }
        Self {
            template: Template::new(&endpoint, names),
            outbox: Outbox::new(retry.is_some()),
            ledger: Ledger::new(&endpoint, classifier, retry, exactly_once.is_some(), durability),
            holds_back: script.is_some() || proves,
            script,
            names: row_names,
            remembered,
            is_plain: exactly_once.is_none(),
            endpoint,
            limits,
            link: Link::Closed,
            watched: Instant::now(),
            full: Instant::now(),
            is_quick: false,
            scratch: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// The outcomes so far, and the message IDs: those of a message before it is pushed.
    #[inline]
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.ledger.recorder
    }

    /// Whether no message waits for its outcome.
    pub(crate) fn is_idle(&self) -> bool {
        self.ledger.window.is_empty()
            && !self.ledger.round.is_active()
            && !self.ledger.is_uncovered()
            && !self.script.as_ref().is_some_and(Script::is_gathering)
    }

    /// Whether the next message can be encoded without waiting.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.room() > 0
            && self.ledger.window.has_room(self.limits)
            && !self.ledger.round.is_active()
            && !self.is_down()
            && !(self.holds_back && (self.waits_for_streams() || self.ledger.until_cover() == 0))
    }

    /// Whether too many streams are under way: they can be forgotten when nothing is.
    fn waits_for_streams(&self) -> bool {
        match &self.script {
            Some(script) => script.runs.is_full() && !self.ledger.window.is_empty() && !self.ledger.is_blocked(),
            None => false,
        }
    }

    /// The failure that every message of this batch meets, if connecting failed.
    pub(crate) fn down(&self) -> Option<&Arc<Failure>> {
        match &self.link {
            Link::Down(failure) => Some(failure),
            Link::Closed | Link::Open(_) => None,
        }
    }

    #[inline]
    fn is_down(&self) -> bool {
        self.down().is_some()
    }

    /// Waits until one more message can be encoded, or the link is down.
    pub(crate) fn make_room(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        if self.waits_for_streams() {
            self.close_run();
        }
        self.cover_if_due();
        if self.ledger.window.has_room(self.limits) {
            return self.drive(Goal::Room, None, watch);
        }
        let now = Instant::now();
        self.is_quick = now - std::mem::replace(&mut self.full, now) < QUICK;
        self.drive(Goal::AmpleRoom, None, watch)
    }

    /// Waits until each message has its outcome.
    pub(crate) fn drain(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        self.close_run();
        self.drive(Goal::Empty, deadline, watch)
    }

    /// Moves what can be moved without waiting. Opens no connection, and trusts none that was idle for long.
    pub(crate) fn poll(&mut self) {
        self.close_run();
        let Link::Open(connection) = &self.link else { return };
        if connection.needs_ping(&self.ledger.window) {
            return;
        }
        if let Err(broken) = self.step() {
            self.break_or_renew(&broken, &mut false);
        }
        self.take_turn(Instant::now());
    }

    /// Messages carry the present time from now on.
    #[inline]
    pub(crate) fn set_time(&mut self) {
        self.template.set_time(clock::unix_second());
    }

    /// Gives `count` messages an outcome that needs no server.
    pub(crate) fn push_failed(&mut self, failure: &Arc<Failure>, count: u64) {
        self.lose_rows(count);
        self.ledger.push_failed(failure, count);
    }

    /// The same for a fault that is not classified yet.
    pub(crate) fn push_fault(&mut self, fault: &Fault, count: u64) {
        self.lose_rows(count);
        self.push_settled_fault(fault, count);
    }

    /// The same for rows that could never be sent.
    fn push_settled_fault(&mut self, fault: &Fault, count: u64) {
        let failure = Arc::new(self.ledger.failure(fault, Written::No));
        self.ledger.push_failed(&failure, count);
    }

    /// Sends one message behind all others and waits for its outcome.
    pub(crate) fn call(
        &mut self,
        payload: &[u8],
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<EntryId, Failure>> {
        self.make_room(watch)?;
        if let Some(failure) = self.down() {
            return Ok(Err((**failure).clone()));
        }
        self.ledger.call = None;
        self.push(1, Owner::Call, |template, out| template.write_payload(out, payload));
        let driven = self.drive(Goal::Call, None, watch);
        self.ledger.call.take().ok_or_else(|| {
            self.ledger.abandon_call();
            driven.err().unwrap_or(Error::Interrupted)
        })
    }

    /// The next batch begins: it may connect anew.
    pub(crate) fn lift(&mut self) {
        if self.is_down() {
            self.link = Link::Closed;
        }
    }

    /// Ends the connection in good order. Every message has its outcome.
    pub(crate) fn close(&mut self) {
        if let Link::Open(connection) = std::mem::replace(&mut self.link, Link::Closed) {
            connection.transport.close();
        }
    }

    /// Fails every message that waits, and replaces the connection.
    pub(crate) fn abort(&mut self, fault: Fault) {
        self.break_link(&Break { is_final: true, ..fault.into() });
    }

    /// In a forked child: everything here is the parent's.
    pub(crate) fn forget(&mut self) {
        if let Link::Open(connection) = std::mem::replace(&mut self.link, Link::Closed) {
            connection.transport.forget();
        }
        self.outbox.clear();
        self.ledger.forget();
        if let Some(script) = &mut self.script {
            script.forget();
        }
        if let Some(names) = &mut self.names {
            names.begin(None, 0);
        }
    }

    fn reached(&self, goal: Goal) -> bool {
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

    fn drive(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
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
            match self.take_turn(now) {
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
                // Nobody is left to wait for: the window was emptied when the link went down.
                Link::Down(_) => return Ok(()),
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
    fn take_turn(&mut self, now: Instant) -> Option<Turn> {
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
    fn wait(&mut self, goal: Goal, started: Instant, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
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
            self.abort(Fault::new(code::TIMEOUT, message));
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
    fn step(&mut self) -> std::result::Result<bool, Break> {
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

    fn receive(&mut self) -> std::result::Result<bool, Break> {
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

    fn send(&mut self) -> std::result::Result<bool, Fault> {
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

    /// Makes a connection. If that fails, every message that waits fails with it, and so does the rest of the batch.
    fn open(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let opened = self.endpoint.settings().map_err(|error| Fault::new(code::CONFIG, error.to_string()));
        let opened = opened.map_err(ConnectError::Fault).and_then(|mut settings: Settings| {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                settings.connect_timeout = settings.connect_timeout.min(left);
            }
            let need = self.need(settings.command_timeout);
            let give_up = Instant::now() + settings.connect_timeout;
            let mut transport = connect(&self.endpoint, &settings, watch)?;
            let needed =
                need.map_or(Ok(()), |need| needs::check(&need, &mut transport, &self.endpoint, give_up, watch));
            let mut connection = Connection::new(transport, settings.command_timeout, self.script.is_some());
            match needed.and_then(|()| self.prepare_cover(&mut connection, give_up, watch)) {
                Ok(()) => Ok(connection),
                Err(error) => {
                    connection.transport.abort();
                    Err(error)
                }
            }
        });
        match opened {
            Ok(connection) => {
                self.ledger.recorder.counters().connections.add(1);
                self.link = Link::Open(Box::new(connection));
                Ok(())
            }
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                let failure = Arc::new(self.ledger.failure(&fault, Written::No));
                let tries_again = self.ledger.retries(&fault);
                // Not a byte of what waits was handed to this connection.
                self.break_link(&Break { may_be_written: false, ..fault.into() });
                if !tries_again {
                    self.link = Link::Down(failure);
                }
                Ok(())
            }
        }
    }

    /// What a new connection's server is asked before it is trusted.
    fn need(&mut self, command_timeout: Duration) -> Option<Need> {
        if let Some(script) = &mut self.script {
            return Some(Need::Script { marker_key: script.runs.marker_key(self.endpoint.stream_key()) });
        }
        // What is sent again for the last time was first sent before its server was found silent.
        self.names.is_some().then(|| Need::Idmp { duration: self.remembered.saturating_add(command_timeout) })
    }

    /// Replaces a connection that ended between messages: those that wait go out on the next one, none is in doubt.
    fn break_or_renew(&mut self, broken: &Break, renewed: &mut bool) {
        let proven = matches!(&self.link, Link::Open(connection) if connection.proven);
        if !self.ledger.window.is_between_messages() || !proven || *renewed {
            self.break_link(broken);
            return;
        }
        *renewed = true;
        self.ledger.lose_cover(&broken.fault);
        self.drop_connection();
    }

    /// Ends the connection abnormally. What waits stays.
    fn drop_connection(&mut self) {
        if let Some(script) = &mut self.script {
            script.is_known = false;
        }
        if let Link::Open(connection) = std::mem::replace(&mut self.link, Link::Closed) {
            connection.transport.abort();
        }
    }

    /// Ends the connection for good: a broken one is never used again, and what waits on it fails.
    fn break_link(&mut self, broken: &Break) {
        self.drop_connection();
        self.ledger.give_up(broken, &self.outbox);
        self.outbox.clear();
    }
}
