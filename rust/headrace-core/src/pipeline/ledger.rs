//! Which messages wait for their outcome, and what became of the others: the one place where a message that was sent gets
//! its outcome.

use std::sync::Arc;

use super::link::{Break, Connection};
use crate::endpoint::{Endpoint, Trim};
use crate::error::{Classifier, Failure, Fault, ReplyText, Written, code};
use crate::reply::{EntryId, Reply, ReplyBuffer};
use crate::report::Recorder;
use crate::window::{Answered, Owner, Unanswered, Window};

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) window: Window,
    pub(super) recorder: Recorder,
    /// The outcome that a call of `dispatch` waits for.
    pub(super) call: Option<Result<EntryId, Failure>>,
    classifier: Classifier,
    nomkstream: bool,
    /// IDs below it were trimmed as they were written.
    min_id: Option<EntryId>,
}

impl Ledger {
    pub(super) fn new(endpoint: &Endpoint, classifier: Classifier) -> Self {
        Self {
            window: Window::default(),
            recorder: Recorder::default(),
            call: None,
            classifier,
            nomkstream: endpoint.nomkstream(),
            min_id: endpoint.trim().and_then(Trim::min_id).map(|(ms, seq)| EntryId { ms, seq }),
        }
    }

    /// How a fault is told.
    pub(super) fn failure(&self, fault: &Fault, written: Written) -> Failure {
        self.classifier.failure(fault, written)
    }

    /// Gives `count` messages an outcome that needs no server, behind all that wait.
    pub(super) fn push_failed(&mut self, failure: &Arc<Failure>, count: u64) {
        if self.window.is_empty() {
            self.recorder.failed(failure, count);
        } else {
            self.window.push_settled(count, failure);
        }
    }

    /// Gives each reply that is here to its message.
    pub(super) fn settle(&mut self, connection: &mut Connection) -> Result<(), Break> {
        let before = self.window.left();
        let settled = self.settle_each(&mut connection.replies);
        connection.proven |= self.window.left() > before;
        settled
    }

    fn settle_each(&mut self, replies: &mut ReplyBuffer) -> Result<(), Break> {
        loop {
            match replies.next() {
                Ok(Some(Reply::Ids { first, count })) => self.appended(first, count)?,
                Ok(Some(reply)) => self.answered(&reply)?,
                Ok(None) => return Ok(()),
                Err(violation) => return Err(protocol_fault(violation.0).into()),
            }
        }
    }

    /// `count` entries got IDs that follow each other.
    fn appended(&mut self, mut id: EntryId, mut count: u64) -> Result<(), Break> {
        while count > 0 {
            let is_trimmed = self.min_id.is_some_and(|min_id| id < min_id);
            let mut entries = if is_trimmed { 0 } else { self.window.answer_plain(count) };
            if entries > 0 {
                self.recorder.delivered(id, entries, 1);
                self.tell_settled();
            } else {
                self.answered(&Reply::Ids { first: id, count: 1 })?;
                entries = 1;
            }
            count -= entries;
            id.seq = id.seq.wrapping_add(entries);
        }
        Ok(())
    }

    /// One entry got this reply.
    fn answered(&mut self, reply: &Reply<'_>) -> Result<(), Break> {
        let Some(Answered { rows, owner, whole }) = self.window.answer() else {
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
                ends = Some(Break { fault: Fault::new(code::RESET, message), may_be_written: false });
                Err((Fault { code: code::TOOLARGE.into(), ..Fault::from_reply(line) }, Written::No))
            }
            Reply::Error(line) if whole => Err((Fault::from_reply(line), Written::No)),
            Reply::Ids { .. } | Reply::Nil | Reply::Error(_) => {
                let fault = protocol_fault(if whole { "nil without NOMKSTREAM" } else { "a reply too early" });
                ends = Some(fault.clone().into());
                Err((fault, Written::Unknown))
            }
        };
        let outcome = outcome.map_err(|(fault, written)| self.classifier.failure(&fault, written));
        match owner {
            Owner::Report => match &outcome {
                Ok(id) => self.recorder.delivered(*id, 1, rows),
                Err(failure) => self.recorder.failed(failure, rows),
            },
            Owner::Call => self.call = Some(outcome),
            Owner::Nobody => {}
        }
        self.tell_settled();
        ends.map_or(Ok(()), Err)
    }

    /// Tells of messages that failed before they were encoded, as far as it is their turn.
    fn tell_settled(&mut self) {
        while let Some((count, failure)) = self.window.pop_settled() {
            self.recorder.failed(&failure, count);
        }
    }

    /// The connection is gone: everything that waits fails.
    pub(super) fn give_up(&mut self, broken: &Break) {
        let failure = |written| self.classifier.failure(&broken.fault, written);
        let (unknown, not_written) = (failure(Written::Unknown), failure(Written::No));
        while let Some(left) = self.window.give_up() {
            match left {
                Unanswered::Settled { count, failure } => self.recorder.failed(&failure, count),
                Unanswered::Encoded { rows, owner, handed } => {
                    let failure = if handed && broken.may_be_written { &unknown } else { &not_written };
                    match owner {
                        Owner::Report => self.recorder.failed(failure, rows),
                        Owner::Call => self.call = Some(Err(failure.clone())),
                        Owner::Nobody => {}
                    }
                }
            }
        }
    }

    /// In a forked child: everything here is the parent's.
    pub(super) fn forget(&mut self) {
        self.window = Window::default();
        self.recorder = Recorder::default();
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
