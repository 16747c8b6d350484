//! Which messages wait for their outcome, and what became of the others: the one place where a message that was sent gets
//! its outcome.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::cover::Cover;
use super::faults;
use super::link::{Break, Connection};
use super::outbox::Outbox;
use super::round::{Outcome, Round, Turn, Waiting};
use super::waits::Waits;
use crate::contain::{Panicked, contain};
use crate::durability::Durability;
use crate::endpoint::{Endpoint, Trim};
use crate::error::{Classifier, Failure, Fault, ReplyText, Written, code};
use crate::exactly_once::with_script;
use crate::fail;
use crate::reply::{EntryId, Reply, ReplyBuffer, RunReply};
use crate::report::Recorder;
use crate::retry::RetryPolicy;
use crate::window::{Answered, Owner, Unanswered, Window};

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) window: Window,
    pub(super) recorder: Recorder,
    /// The outcome that a call of `dispatch` waits for.
    pub(super) call: Option<Result<EntryId, Failure>>,
    pub(super) round: Round,
    pub(super) waits: Waits,
    /// `None`: an entry that has its ID counts as delivered.
    pub(super) cover: Option<Cover>,
    retry: Option<RetryPolicy>,
    classifier: Classifier,
    nomkstream: bool,
    /// IDs below it were trimmed as they were written.
    min_id: Option<EntryId>,
    /// Whether what was sent again cannot be written twice.
    exactly_once: bool,
    /// Whether a panic ended the reading of a reply: the call that did it is to say so.
    pub(super) defect: Option<Panicked>,
    /// Whether a row of the batch was not written: those behind it in its stream are refused.
    blocked: bool,
    /// What is known of a message that no server was asked about: that this try did not write it. An earlier try may have,
    /// in a batch whose token is the caller's.
    pub(super) unasked: Written,
}

/// Why a message was not delivered, and whether waiting may mend it.
struct Refusal {
    failure: Failure,
    may_pass: bool,
}

impl Ledger {
    pub(super) fn new(
        endpoint: &Endpoint,
        classifier: Classifier,
        retry: Option<RetryPolicy>,
        exactly_once: bool,
        durability: Option<Durability>,
    ) -> Self {
        Self {
            window: Window::default(),
            recorder: Recorder::default(),
            call: None,
            round: Round::default(),
            waits: Waits::default(),
            cover: durability.map(Cover::new),
            retry,
            classifier,
            nomkstream: endpoint.nomkstream(),
            min_id: endpoint.trim().and_then(Trim::min_id).map(|(ms, seq)| EntryId { ms, seq }),
            exactly_once,
            defect: None,
            blocked: false,
            unasked: Written::No,
        }
    }

    /// Another batch begins. `is_named`: with a token of the caller's.
    pub(super) fn begin(&mut self, is_named: bool) {
        self.blocked = false;
        self.unasked = if is_named { Written::Unknown } else { Written::No };
    }

    /// A message of the batch was not sent.
    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    /// What failed so far blocks nothing from now on.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether rows of some stream are refused because of one before them.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How a fault is told.
    pub(super) fn failure(&self, fault: &Fault, written: Written) -> Failure {
        self.classifier.failure(fault, written)
    }

    /// Whether the same may be tried again later, and is to be.
    pub(super) fn retries(&self, fault: &Fault) -> bool {
        self.retry.is_some() && self.classifier.may_pass(fault)
    }

    /// Gives `count` messages an outcome that needs no server, behind all that wait.
    pub(super) fn push_failed(&mut self, failure: &Arc<Failure>, count: u64) {
        if self.window.is_empty() {
            self.tell(Outcome::Failed { failure: Arc::clone(failure), count }, Owner::Report);
        } else {
            self.window.push_settled(count, failure);
        }
    }

    /// Gives each reply that is here to its message.
    pub(super) fn settle(&mut self, connection: &mut Connection, outbox: &mut Outbox) -> Result<(), Break> {
        let before = self.window.left();
        let settled = self.settle_each(&mut connection.replies, outbox);
        // Behind the last message no reply would come to tell of it, if this one was none.
        self.tell_settled();
        connection.proven |= self.window.left() > before;
        settled?;
        outbox.release(self.window.front());
        if connection.replies.unread() > 0 && !self.window.is_owed() {
            // Its rest would come when the next message is owed one, and be taken for that.
            return Err(faults::protocol("a reply to nothing that was sent").into());
        }
        Ok(())
    }

    fn settle_each(&mut self, replies: &mut ReplyBuffer, outbox: &Outbox) -> Result<(), Break> {
        loop {
            let reply = contain(|| {
                fail::point("scan");
                replies.next()
            });
            let reply = reply.map_err(|panicked| {
                self.defect = Some(panicked);
                Fault::new(code::INTERNAL, "a defect of headrace: a reply could not be read")
            })?;
            match reply {
                Ok(Some(Reply::Ids { first, count })) => self.appended(first, count, outbox)?,
                Ok(Some(Reply::Run(run))) => self.answered_run(&run, outbox)?,
                Ok(Some(reply)) => self.answered(&reply, outbox)?,
                Ok(None) => return Ok(()),
                Err(violation) => return Err(faults::protocol(violation.0).into()),
            }
        }
    }

    /// `count` entries got IDs that follow each other.
    fn appended(&mut self, mut id: EntryId, mut count: u64, outbox: &Outbox) -> Result<(), Break> {
        while count > 0 {
            let is_trimmed = self.min_id.is_some_and(|min_id| id < min_id);
            let each = is_trimmed || self.round.is_resending();
            let mut entries = if each { 0 } else { self.window.answer_plain(count) };
            if entries > 0 {
                fail::point("settle");
                self.tell(Outcome::Delivered { first: id, entries, rows: 1 }, Owner::Report);
                self.tell_settled();
            } else {
                self.answered(&Reply::Ids { first: id, count: 1 }, outbox)?;
                entries = 1;
            }
            count -= entries;
            id.seq = id.seq.wrapping_add(entries);
        }
        Ok(())
    }

    /// One entry got this reply.
    fn answered(&mut self, reply: &Reply<'_>, outbox: &Outbox) -> Result<(), Break> {
        fail::point("settle");
        let Some(Answered { bytes, rows, owner, whole }) = self.window.answer() else {
            return Err(faults::protocol("a reply to nothing that was sent").into());
        };
        if owner == Owner::Cover {
            self.answered_cover(reply, whole)?;
            self.tell_settled();
            return Ok(());
        }
        // What is left of a message that was answered too early must not go out: a server would read it as commands.
        let mut ends = None;
        let outcome = match *reply {
            Reply::Ids { first: id, .. } if whole => match self.min_id {
                Some(min_id) if id < min_id => Err((faults::trimmed(id, min_id), Written::Unknown)),
                Some(_) | None => Ok(id),
            },
            Reply::Nil if whole && self.nomkstream => Err((faults::no_stream(), Written::No)),
            Reply::Error(line) if Fault::from_reply(line).text == ReplyText::ProtocolError => {
                let message = "the server closed the connection over a message before this one";
                ends = Some(Break { fault: Fault::new(code::RESET, message), may_be_written: false, is_final: false });
                let fault = Fault::from_reply(line);
                let fault = if self.exactly_once && rows > 1 {
                    faults::one_too_large(rows, &fault)
                } else {
                    faults::too_large(fault)
                };
                Err((fault, self.unasked))
            }
            Reply::Error(line) if whole && self.exactly_once && faults::is_gap(line) => Err(self.gap()),
            Reply::Error(line) if whole => match faults::uncovered(line) {
                Some(fault) if self.exactly_once => Err((fault, Written::Unknown)),
                Some(_) | None => Err((Fault::from_reply(line), self.unasked)),
            },
            Reply::Ids { .. } | Reply::Nil | Reply::Error(_) | Reply::Run(_) | Reply::Acknowledged { .. } => {
                let fault = faults::protocol(match reply {
                    _ if !whole => "a reply too early",
                    Reply::Nil => "nil without NOMKSTREAM",
                    _ => "no entry ID where one was owed",
                });
                ends = Some(fault.clone().into());
                Err((fault, Written::Unknown))
            }
        };
        match outcome {
            Ok(first) => self.settle_command([Outcome::Delivered { first, entries: 1, rows }], owner),
            Err((fault, written)) => {
                let refusal = self.refusal(&fault, written);
                self.refuse(refusal, rows, owner, bytes, outbox);
            }
        }
        self.tell_settled();
        ends.map_or(Ok(()), Err)
    }

    /// A run of rows got this reply.
    fn answered_run(&mut self, reply: &RunReply<'_>, outbox: &Outbox) -> Result<(), Break> {
        let Some(Answered { bytes, rows, owner, whole }) = self.window.answer() else {
            return Err(faults::protocol("a reply to nothing that was sent").into());
        };
        if owner == Owner::Cover {
            return Err(faults::protocol("the reply to a run where none was owed").into());
        }
        fail::point("settle");
        let done = reply.deduplicated.saturating_add(reply.appended);
        if !whole || done > rows || (done == rows) != reply.refused.is_empty() {
            // What it says is not believed: the rows are in doubt.
            let broken = Break::from(faults::protocol("a reply that does not fit its run"));
            let refusal = self.refusal(&broken.fault, Written::Unknown);
            self.refuse(refusal, rows, owner, bytes, outbox);
            return Err(broken);
        }
        // The first ones were told of when the run was sent before.
        let told = if self.round.is_resending() { rows.saturating_sub(self.round.open()) } else { 0 };
        let mut outcomes = Vec::new();
        if reply.deduplicated > told {
            outcomes.push(Outcome::Deduplicated { count: reply.deduplicated - told });
        }
        for id in reply.ids().skip(told.saturating_sub(reply.deduplicated) as usize) {
            outcomes.push(match self.min_id {
                Some(min_id) if id < min_id => {
                    let failure = Arc::new(self.failure(&faults::trimmed(id, min_id), Written::Unknown));
                    Outcome::Failed { failure, count: 1 }
                }
                Some(_) | None => Outcome::Delivered { first: id, entries: 1, rows: 1 },
            });
        }
        if reply.refused.is_empty() {
            self.settle_command(outcomes, owner);
        } else {
            self.refuse_rest(reply.refused, outcomes, rows - done.max(told), rows, owner, bytes, outbox);
        }
        self.tell_settled();
        Ok(())
    }

    /// The next row of a run was refused: it and the `open - 1` rows behind it were not written.
    #[allow(clippy::too_many_arguments)] // what is known of one command
    fn refuse_rest(
        &mut self,
        refused: &[u8],
        mut outcomes: Vec<Outcome>,
        open: u64,
        rows: u64,
        owner: Owner,
        bytes: Range<u64>,
        outbox: &Outbox,
    ) {
        let fault = if refused == b"NO_STREAM" { faults::no_stream() } else { Fault::from_reply(refused) };
        let refusal = self.refusal(&fault, Written::No);
        let failure = Arc::new(refusal.failure);
        let behind = (open > 1).then(|| Arc::new(self.failure(&faults::blocked(), Written::No)));
        if refusal.may_pass && owner != Owner::Nobody {
            if self.round.is_resending() {
                self.round.put_back(outcomes, open, failure, behind);
            } else {
                let command = outbox.kept(bytes).into();
                self.round.wait(outcomes, owner, Waiting { command, rows, open, failure, behind });
            }
            return;
        }
        self.blocked = true;
        outcomes.push(Outcome::Failed { failure, count: 1 });
        outcomes.extend(behind.map(|failure| Outcome::Failed { failure, count: open - 1 }));
        self.settle_command(outcomes, owner);
    }

    /// Why the marker is not where a run begins.
    fn gap(&self) -> (Fault, Written) {
        if self.blocked || self.round.has_root() {
            return (faults::blocked(), Written::No);
        }
        let message =
            "the marker of the batch is gone, or behind rows that were acknowledged: was the server's data lost?";
        (Fault::new(code::MARKER_LOST, message), self.unasked)
    }

    fn refusal(&self, fault: &Fault, written: Written) -> Refusal {
        let surely = written == Written::No || self.exactly_once;
        let again = self.retry.as_ref().is_some_and(|retry| surely || retry.retry_unknown);
        let follows = fault.code == code::BLOCKED && self.round.has_root();
        let may_pass = again && (self.classifier.may_pass(fault) || follows);
        Refusal { failure: self.failure(fault, written), may_pass }
    }

    /// The command in these bytes failed: it is sent again, or has its outcome.
    fn refuse(&mut self, refusal: Refusal, rows: u64, owner: Owner, bytes: Range<u64>, outbox: &Outbox) {
        let failure = Arc::new(refusal.failure);
        // Nobody waits for the message of an interrupted call any more.
        let open = if self.round.is_resending() { self.round.open() } else { rows };
        if !refusal.may_pass || owner == Owner::Nobody {
            self.blocked = true;
            self.settle_command([Outcome::Failed { failure, count: open }], owner);
        } else if self.round.is_resending() {
            self.round.put_back(Vec::new(), open, failure, None);
        } else {
            let command = outbox.kept(bytes).into();
            self.round.wait(Vec::new(), owner, Waiting { command, rows, open, failure, behind: None });
        }
    }

    /// The messages of the first command in flight have their outcomes.
    fn settle_command(&mut self, outcomes: impl IntoIterator<Item = Outcome>, owner: Owner) {
        if self.round.is_resending() {
            self.round.resolve(outcomes);
        } else {
            outcomes.into_iter().for_each(|outcome| self.tell(outcome, owner));
        }
    }

    /// Tells an outcome, or has it wait for those before it.
    #[inline]
    fn tell(&mut self, outcome: Outcome, owner: Owner) {
        if self.round.is_active() {
            self.round.hold(outcome, owner);
            return;
        }
        match &mut self.cover {
            Some(cover) if cover.takes(&outcome) => cover.hold(outcome, owner),
            Some(_) | None => self.record(&outcome, owner),
        }
    }

    #[inline]
    pub(super) fn record(&mut self, outcome: &Outcome, owner: Owner) {
        match (owner, outcome) {
            (Owner::Report, Outcome::Delivered { first, entries, rows }) => {
                self.recorder.delivered(*first, *entries, *rows);
            }
            (Owner::Report, Outcome::Deduplicated { count }) => self.recorder.deduplicated(*count),
            (Owner::Report, Outcome::Failed { failure, count }) => self.recorder.failed(failure, *count),
            (Owner::Call, Outcome::Delivered { first, .. }) => {
                self.recorder.counters().delivered.add(1);
                self.call = Some(Ok(*first));
            }
            (Owner::Call, Outcome::Failed { failure, .. }) => {
                self.recorder.counters().failed(&failure.code, 1);
                self.call = Some(Err((**failure).clone()));
            }
            // There are no calls in the modes that recognise.
            (Owner::Call, Outcome::Deduplicated { .. }) | (Owner::Nobody | Owner::Cover, _) => {}
        }
    }

    /// Tells of messages that failed before they were encoded, as far as it is their turn.
    fn tell_settled(&mut self) {
        while let Some((count, failure)) = self.window.pop_settled() {
            self.tell(Outcome::Failed { failure, count }, Owner::Report);
        }
    }

    /// The connection is gone: everything that waits for a reply fails, or is sent again.
    pub(super) fn give_up(&mut self, broken: &Break, outbox: &Outbox) {
        self.lose_cover(&broken.fault);
        if broken.is_final {
            self.round.note_given_up();
        }
        while let Some(left) = self.window.give_up() {
            match left {
                Unanswered::Encoded { owner: Owner::Cover, .. } => {}
                Unanswered::Settled { count, failure } => self.tell(Outcome::Failed { failure, count }, Owner::Report),
                Unanswered::Encoded { rows, owner, bytes, handed } => {
                    let written = if handed && broken.may_be_written { Written::Unknown } else { self.unasked };
                    let mut refusal = self.refusal(&broken.fault, written);
                    refusal.may_pass &= !broken.is_final;
                    self.refuse(refusal, rows, owner, bytes, outbox);
                }
            }
        }
        self.forget_asked();
        if broken.is_final {
            self.round.give_up();
            self.tell_round();
        }
    }

    /// The link is down: what waits, and was handed to no connection, fails with it.
    pub(super) fn fail_rest(&mut self, failure: &Arc<Failure>) {
        self.round.note_given_up();
        while let Some(left) = self.window.give_up() {
            match left {
                Unanswered::Encoded { owner: Owner::Cover, .. } => {}
                Unanswered::Settled { count, failure } => self.tell(Outcome::Failed { failure, count }, Owner::Report),
                Unanswered::Encoded { rows, owner, .. } => {
                    self.blocked = true;
                    let count = if self.round.is_resending() { self.round.open() } else { rows };
                    self.settle_command([Outcome::Failed { failure: Arc::clone(failure), count }], owner);
                }
            }
        }
        self.forget_asked();
        self.round.give_up();
        self.tell_round();
    }

    /// What the retries need next, if there are any and nothing is in flight.
    pub(super) fn turn(&mut self, now: Instant) -> Option<Turn> {
        // What was answered is told, and sent again, only once it is covered.
        if !self.round.is_active() || !self.window.is_empty() || self.is_open() {
            return None;
        }
        let turn = self.retry.as_ref().map_or(Turn::Tell, |retry| self.round.turn(retry, now));
        let began = if matches!(turn, Turn::Pause(_)) { self.round.began() } else { None };
        match began {
            Some(began) => self.waits.note(began, now, self.recorder.counters()),
            None => self.waits.count(now, self.recorder.counters()),
        }
        Some(turn)
    }

    /// How often and how long it tries again, if it does.
    pub(super) fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref()
    }

    /// Sends again what waits for it.
    pub(super) fn resend(&mut self, outbox: &mut Outbox) {
        let (window, recorder, exactly_once) = (&mut self.window, &mut self.recorder, self.exactly_once);
        let mut is_first = true;
        self.round.resend(|waiting, owner, may_be_written| {
            // The server may have forgotten the script, or be another one.
            let with_script = if std::mem::take(&mut is_first) { with_script(&waiting.command) } else { None };
            let command = with_script.as_deref().unwrap_or(&waiting.command);
            outbox.bytes().extend_from_slice(command);
            window.push(command.len(), waiting.rows as u32, owner);
            recorder.sent_again(waiting.open, may_be_written && !exactly_once);
        });
    }

    /// Tells what the round held back: it is over. Returns the failure that will not pass for messages that come now.
    pub(super) fn tell_round(&mut self) -> Option<Arc<Failure>> {
        let exhausted = self.round.exhausted(self.unasked);
        let now = Instant::now();
        if let Some(ended) = self.round.ended(now) {
            self.waits.note(ended, now, self.recorder.counters());
        }
        while let Some((outcomes, owner)) = self.round.tell() {
            for outcome in &outcomes {
                self.blocked |= matches!(outcome, Outcome::Failed { .. });
                self.record(outcome, owner);
            }
        }
        exhausted
    }

    /// The interrupted call no longer waits for its message.
    pub(super) fn abandon_call(&mut self) {
        self.window.abandon_call();
        self.round.abandon_call();
        if let Some(cover) = &mut self.cover {
            cover.abandon_call();
        }
    }

    /// In a forked child: everything here is the parent's.
    pub(super) fn forget(&mut self) {
        self.recorder.forget();
        self.clear();
        self.begin(false);
    }

    /// A panic came in the middle of a change: nothing here is relied on but what was recorded. The `waiting` messages
    /// without an outcome fail.
    pub(super) fn abandon(&mut self, fault: &Fault, waiting: u64) {
        self.clear();
        self.block();
        let failure = self.failure(fault, Written::Unknown);
        self.recorder.publish();
        if waiting > 0 {
            self.recorder.failed(&failure, waiting);
        }
    }

    /// Forgets what waits.
    fn clear(&mut self) {
        self.window = Window::default();
        self.round = Round::default();
        self.waits = Waits::default();
        if let Some(cover) = &mut self.cover {
            cover.forget();
        }
        self.call = None;
    }
}
