//! Moves bytes between the output buffer, the window and the transport, and tells outcomes as replies come in.
//!
//! One thread, no locks: every public call of the dispatcher runs this loop as far as it needs to. What was encoded stays
//! in the outbox until the transport takes it; what the transport took stays in the window until its reply is here.

mod clock;
mod cover;
mod drive;
mod faults;
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
mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::durability::Durability;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Failure, Fault, Result, Written};
use crate::exactly_once::{ExactlyOnce, Names, Runs};
use crate::reply::EntryId;
use crate::report::Recorder;
use crate::retry::RetryPolicy;
use crate::transport::Watch;
use crate::window::{Limits, Owner};
use crate::xadd::{FieldNames, Template};

use drive::Goal;
use ledger::Ledger;
use link::{Break, Link};
use outbox::Outbox;
use run::Script;

/// A server that answers a quarter of the window within this time is not worth going to sleep for.
const QUICK: Duration = Duration::from_micros(500);

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
    /// Exactly once: rows go out with names.
    names: Option<Names>,
    /// Neither of them.
    is_plain: bool,
    /// Whether there may be no room for other reasons than the window.
    holds_back: bool,
    /// While rows are pushed together: the first of them, and how many entries had been added before it.
    pushing: Option<(usize, u64)>,
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
        // What was deduplicated is to be a write as well then, for WAIT to speak of it.
        let proves = durability.is_some();
        let (mut script, mut row_names) = (None, None);
        match exactly_once {
            None => {}
            Some(ExactlyOnce::Script { ttl, run_rows }) => {
                script = Some(Script::new(Runs::new(*ttl, *run_rows, proves)));
            }
            Some(ExactlyOnce::Idmp { by_message_id, duration }) => {
                row_names = Some(Names::new(*by_message_id, *duration));
            }
        }
        Self {
            template: Template::new(&endpoint, names),
            outbox: Outbox::new(retry.is_some()),
            ledger: Ledger::new(&endpoint, classifier, retry, exactly_once.is_some(), durability),
            holds_back: script.is_some() || proves,
            script,
            names: row_names,
            is_plain: exactly_once.is_none(),
            endpoint,
            limits,
            link: Link::Closed,
            watched: Instant::now(),
            full: Instant::now(),
            is_quick: false,
            scratch: Vec::new(),
            fields: Vec::new(),
            pushing: None,
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
        let failure = Arc::new(self.ledger.failure(fault, self.ledger.unasked));
        self.push_failed(&failure, count);
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

    /// Whether a call is to say that a panic ended the reading of replies. Asked once.
    pub(crate) fn take_defect(&mut self) -> bool {
        self.ledger.defect.take().is_some()
    }

    /// A panic came in the middle of a change. The connection and everything that waits are given up: of `waiting` messages
    /// without an outcome it is not known whether they were written. `passed`: how many rows of the exactly-once batch were
    /// handed over.
    pub(crate) fn abandon(&mut self, fault: &Fault, waiting: u64, passed: u64) {
        self.drop_connection();
        self.outbox.clear();
        self.ledger.abandon(fault, waiting);
        if let Some(script) = &mut self.script {
            script.abandon(passed);
        }
        if let Some(names) = &mut self.names {
            names.rewind(passed);
        }
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
}
