//! Which messages wait for their outcome, and what became of the others: the one place where a message that was sent gets
//! its outcome.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::link::{Break, Connection};
use super::outbox::Outbox;
use super::round::{Outcome, Round, Turn, Waiting};
use crate::endpoint::{Endpoint, Trim};
use crate::error::{Classifier, Failure, Fault, ReplyText, Written, code};
use crate::reply::{EntryId, Reply, ReplyBuffer};
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
    retry: Option<RetryPolicy>,
    classifier: Classifier,
    nomkstream: bool,
    /// IDs below it were trimmed as they were written.
    min_id: Option<EntryId>,
}

/// Why a message was not delivered, and whether waiting may mend it.
struct Refusal {
    failure: Failure,
    may_pass: bool,
}

impl Ledger {
    pub(super) fn new(endpoint: &Endpoint, classifier: Classifier, retry: Option<RetryPolicy>) -> Self {
        Self {
            window: Window::default(),
            recorder: Recorder::default(),
            call: None,
            round: Round::default(),
            retry,
            classifier,
            nomkstream: endpoint.nomkstream(),
            min_id: endpoint.trim().and_then(Trim::min_id).map(|(ms, seq)| EntryId { ms, seq }),
        }
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
        if !self.window.is_empty() {
            self.window.push_settled(count, failure);
        } else if self.round.is_active() {
            self.round.hold(Outcome::Failed { failure: Arc::clone(failure), count }, Owner::Report);
        } else {
            self.recorder.failed(failure, count);
        }
    }

    /// Gives each reply that is here to its message.
    pub(super) fn settle(&mut self, connection: &mut Connection, outbox: &mut Outbox) -> Result<(), Break> {
        let before = self.window.left();
        let settled = self.settle_each(&mut connection.replies, outbox);
        connection.proven |= self.window.left() > before;
        if settled.is_ok() {
            outbox.release(self.window.front());
        }
        settled
    }

    fn settle_each(&mut self, replies: &mut ReplyBuffer, outbox: &Outbox) -> Result<(), Break> {
        loop {
            match replies.next() {
                Ok(Some(Reply::Ids { first, count })) => self.appended(first, count, outbox)?,
                Ok(Some(reply)) => self.answered(&reply, outbox)?,
                Ok(None) => return Ok(()),
                Err(violation) => return Err(protocol_fault(violation.0).into()),
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
        let Some(Answered { bytes, rows, owner, whole }) = self.window.answer() else {
            return Err(protocol_fault("a reply to nothing that was sent").into());
        };
        // What is left of a message that was answered too early must not go out: a server would read it as commands.
        let mut ends = None;
        let outcome = match *reply {
            Reply::Ids { first: id, .. } if whole => match self.min_id {
                Some(min_id) if id < min_id => Err((trimmed_fault(id, min_id), Written::Unknown)),
                Some(_) | None => Ok(id),
            },
            Reply::Nil if whole && self.nomkstream => {
                let message = "the stream does not exist, and nomkstream forbids to create it";
                Err((Fault::new(code::NOSTREAM, message), Written::No))
            }
            Reply::Error(line) if Fault::from_reply(line).text == ReplyText::ProtocolError => {
                let message = "the server closed the connection over a message before this one";
                ends = Some(Break { fault: Fault::new(code::RESET, message), may_be_written: false, is_final: false });
                Err((Fault { code: code::TOOLARGE.into(), ..Fault::from_reply(line) }, Written::No))
            }
            Reply::Error(line) if whole => Err((Fault::from_reply(line), Written::No)),
            Reply::Ids { .. } | Reply::Nil | Reply::Error(_) => {
                let fault = protocol_fault(if whole { "nil without NOMKSTREAM" } else { "a reply too early" });
                ends = Some(fault.clone().into());
                Err((fault, Written::Unknown))
            }
        };
        match outcome {
            Ok(first) => self.settle_command(Outcome::Delivered { first, entries: 1, rows }, owner),
            Err((fault, written)) => {
                let refusal = self.refusal(&fault, written);
                self.refuse(refusal, rows, owner, bytes, outbox);
            }
        }
        self.tell_settled();
        ends.map_or(Ok(()), Err)
    }

    fn refusal(&self, fault: &Fault, written: Written) -> Refusal {
        let again = self.retry.as_ref().is_some_and(|retry| written == Written::No || retry.retry_unknown);
        Refusal { failure: self.failure(fault, written), may_pass: again && self.classifier.may_pass(fault) }
    }

    /// The command in these bytes failed: it is sent again, or has its outcome.
    fn refuse(&mut self, refusal: Refusal, rows: u64, owner: Owner, bytes: Range<u64>, outbox: &Outbox) {
        let failure = Arc::new(refusal.failure);
        // Nobody waits for the message of an interrupted call any more.
        if !refusal.may_pass || owner == Owner::Nobody {
            self.settle_command(Outcome::Failed { failure, count: rows }, owner);
        } else if self.round.is_resending() {
            self.round.put_back(failure);
        } else {
            let command = outbox.kept(bytes).into();
            self.round.wait(Waiting { command, rows, owner, failure });
        }
    }

    /// The first command in flight has its outcome.
    fn settle_command(&mut self, outcome: Outcome, owner: Owner) {
        if self.round.is_resending() {
            self.round.resolve(outcome);
        } else {
            self.tell(outcome, owner);
        }
    }

    /// Tells an outcome, or has it wait for those before it.
    #[inline]
    fn tell(&mut self, outcome: Outcome, owner: Owner) {
        if self.round.is_active() {
            self.round.hold(outcome, owner);
        } else {
            self.record(&outcome, owner);
        }
    }

    #[inline]
    fn record(&mut self, outcome: &Outcome, owner: Owner) {
        match (owner, outcome) {
            (Owner::Report, Outcome::Delivered { first, entries, rows }) => {
                self.recorder.delivered(*first, *entries, *rows);
            }
            (Owner::Report, Outcome::Failed { failure, count }) => self.recorder.failed(failure, *count),
            (Owner::Call, Outcome::Delivered { first, .. }) => self.call = Some(Ok(*first)),
            (Owner::Call, Outcome::Failed { failure, .. }) => self.call = Some(Err((**failure).clone())),
            (Owner::Nobody, _) => {}
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
        while let Some(left) = self.window.give_up() {
            match left {
                Unanswered::Settled { count, failure } => self.tell(Outcome::Failed { failure, count }, Owner::Report),
                Unanswered::Encoded { rows, owner, bytes, handed } => {
                    let written = if handed && broken.may_be_written { Written::Unknown } else { Written::No };
                    let mut refusal = self.refusal(&broken.fault, written);
                    refusal.may_pass &= !broken.is_final;
                    self.refuse(refusal, rows, owner, bytes, outbox);
                }
            }
        }
        if broken.is_final {
            self.round.give_up();
            self.tell_round();
        }
    }

    /// What the retries need next, if there are any and nothing is in flight.
    pub(super) fn turn(&mut self, now: Instant) -> Option<Turn> {
        if !self.round.is_active() || !self.window.is_empty() {
            return None;
        }
        Some(self.retry.as_ref().map_or(Turn::Tell, |retry| self.round.turn(retry, now)))
    }

    /// Sends again what waits for it.
    pub(super) fn resend(&mut self, outbox: &mut Outbox) {
        let (window, recorder) = (&mut self.window, &mut self.recorder);
        self.round.resend(|waiting, may_be_written| {
            let out = outbox.bytes();
            out.extend_from_slice(&waiting.command);
            window.push(waiting.command.len(), waiting.rows as u32, waiting.owner);
            recorder.sent_again(waiting.rows, may_be_written);
        });
    }

    /// Tells what the round held back: it is over. Returns the failure that will not pass for messages that come now.
    pub(super) fn tell_round(&mut self) -> Option<Arc<Failure>> {
        let exhausted = self.round.exhausted();
        while let Some((outcome, owner)) = self.round.tell() {
            self.record(&outcome, owner);
        }
        exhausted
    }

    /// The interrupted call no longer waits for its message.
    pub(super) fn abandon_call(&mut self) {
        self.window.abandon_call();
        self.round.abandon_call();
    }

    /// In a forked child: everything here is the parent's.
    pub(super) fn forget(&mut self) {
        self.window = Window::default();
        self.recorder = Recorder::default();
        self.round = Round::default();
        self.call = None;
    }
}

fn protocol_fault(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server sent {what}; the connection was replaced"))
}

fn trimmed_fault(id: EntryId, min_id: EntryId) -> Fault {
    Fault::new(
        code::TRIMMED,
        format!("the entry got the ID {id}, below minid {min_id}: it is trimmed as it is written"),
    )
}
