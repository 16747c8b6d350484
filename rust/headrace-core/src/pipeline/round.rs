//! A round of retries: from the first message that is to be sent again until none is.
//!
//! While it lasts nothing new is encoded. First everything in flight gets its reply, then, after a pause, what failed is sent
//! again in its old order, and so on. Outcomes are told in the order of the messages when all of them are known: what was
//! answered behind a message that failed waits for it here. All of it was in one window once, which bounds it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Failure, Written};
use crate::reply::EntryId;
use crate::retry::{RetryPolicy, chance};
use crate::window::Owner;

/// What became of some messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// `entries` of `rows` messages each, the first under `first`, the others under the sequence numbers that follow.
    Delivered { first: EntryId, entries: u64, rows: u64 },
    /// So many, all for one reason.
    Failed { failure: Arc<Failure>, count: u64 },
}

/// A command that is sent again.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) command: Box<[u8]>,
    pub(super) rows: u64,
    pub(super) owner: Owner,
    /// What it failed with last.
    pub(super) failure: Arc<Failure>,
}

#[derive(Debug)]
enum Held {
    Told(Outcome, Owner),
    Waiting { command: Waiting, in_flight: bool, may_be_written: bool },
}

/// What a round needs next, once nothing is in flight.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing before then.
    Pause(Instant),
    /// To send what failed.
    Resend,
    /// To tell all outcomes: every message has one.
    Tell,
}

#[derive(Debug, Default)]
pub(super) struct Round {
    held: VecDeque<Held>,
    /// How many wait.
    waiting: usize,
    /// Where the next command in flight is looked for.
    cursor: usize,
    is_resending: bool,
    attempts: u32,
    since: Option<Instant>,
    next: Option<Instant>,
    /// What went on for too long.
    exhausted: Option<Arc<Failure>>,
}

impl Round {
    /// Whether outcomes are held back.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether what is in flight was sent before.
    pub(super) fn is_resending(&self) -> bool {
        self.is_resending
    }

    /// An outcome that waits for its turn.
    pub(super) fn hold(&mut self, outcome: Outcome, owner: Owner) {
        self.held.push_back(Held::Told(outcome, owner));
    }

    /// A command that failed and comes behind all others.
    pub(super) fn wait(&mut self, command: Waiting) {
        let may_be_written = command.failure.written == Written::Unknown;
        self.since.get_or_insert_with(Instant::now);
        self.waiting += 1;
        self.held.push_back(Held::Waiting { command, in_flight: false, may_be_written });
    }

    /// The first command in flight has an outcome.
    pub(super) fn resolve(&mut self, mut outcome: Outcome) {
        if let Some((owner, may_be_written)) = self.next_in_flight().map(|(command, written)| (command.owner, *written)) {
            if let Outcome::Failed { failure, .. } = &mut outcome {
                *failure = as_written(failure, may_be_written);
            }
            if let Some(held) = self.held.get_mut(self.cursor) {
                *held = Held::Told(outcome, owner);
                self.waiting -= 1;
                self.cursor += 1;
            }
        }
    }

    /// The first command in flight failed once more, and may be sent again.
    pub(super) fn put_back(&mut self, failure: Arc<Failure>) {
        if let Some((command, may_be_written)) = self.next_in_flight() {
            *may_be_written |= failure.written == Written::Unknown;
            command.failure = failure;
            if let Some(Held::Waiting { in_flight, .. }) = self.held.get_mut(self.cursor) {
                *in_flight = false;
            }
            self.cursor += 1;
        }
    }

    fn next_in_flight(&mut self) -> Option<(&mut Waiting, &mut bool)> {
        while !matches!(self.held.get(self.cursor)?, Held::Waiting { in_flight: true, .. }) {
            self.cursor += 1;
        }
        match self.held.get_mut(self.cursor) {
            Some(Held::Waiting { command, may_be_written, .. }) => Some((command, may_be_written)),
            _ => None,
        }
    }

    /// What comes next. Nothing is in flight.
    pub(super) fn turn(&mut self, policy: &RetryPolicy, now: Instant) -> Turn {
        if self.is_resending {
            (self.is_resending, self.next) = (false, None);
        }
        if self.waiting == 0 {
            return Turn::Tell;
        }
        match self.next {
            Some(next) if next > now => Turn::Pause(next),
            Some(_) => Turn::Resend,
            None => {
                self.attempts = self.attempts.saturating_add(1);
                let since = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                if !policy.allows(self.attempts, since) {
                    self.give_up_after(since, policy);
                    return Turn::Tell;
                }
                let next = now + policy.backoff(self.attempts, chance());
                self.next = Some(next);
                Turn::Pause(next)
            }
        }
    }

    /// What waits fails for good.
    pub(super) fn give_up(&mut self) {
        for held in &mut self.held {
            if let Held::Waiting { command, may_be_written, .. } = held {
                let failure = as_written(&command.failure, *may_be_written);
                *held = Held::Told(Outcome::Failed { failure, count: command.rows }, command.owner);
            }
        }
        self.waiting = 0;
    }

    /// The same, once the policy allows no more tries.
    fn give_up_after(&mut self, since: Duration, policy: &RetryPolicy) {
        let tries = format!(" (given up after {} tries in {:.1} s)", self.attempts, since.as_secs_f64());
        let mut known: Option<(Arc<Failure>, Arc<Failure>)> = None;
        for held in &mut self.held {
            let Held::Waiting { command, .. } = held else { continue };
            let failure = match &known {
                Some((before, after)) if *before == command.failure => Arc::clone(after),
                _ => Arc::new(command.failure.with_more(&tries)),
            };
            known = Some((std::mem::replace(&mut command.failure, Arc::clone(&failure)), failure));
        }
        let last = known.map(|(_, after)| after);
        self.exhausted = last.filter(|last| since >= policy.deadline || last.is_of_connection());
        self.give_up();
    }

    /// What will not pass for messages that come now either.
    pub(super) fn exhausted(&self) -> Option<Arc<Failure>> {
        self.exhausted.as_ref().map(|failure| Arc::new(Failure { written: Written::No, ..(**failure).clone() }))
    }

    /// Everything that waits is sent again: gives each command to `send`.
    pub(super) fn resend(&mut self, mut send: impl FnMut(&Waiting, bool)) {
        (self.is_resending, self.cursor) = (true, 0);
        for held in &mut self.held {
            if let Held::Waiting { command, in_flight, .. } = held {
                *in_flight = true;
                send(command, command.failure.written == Written::Unknown);
            }
        }
    }

    /// The next outcome, in the order of the messages. With the last one the round is over.
    pub(super) fn tell(&mut self) -> Option<(Outcome, Owner)> {
        match self.held.pop_front() {
            Some(Held::Told(outcome, owner)) => Some((outcome, owner)),
            Some(waiting @ Held::Waiting { .. }) => {
                self.held.push_front(waiting);
                None
            }
            None => {
                *self = Self::default();
                None
            }
        }
    }

    /// The interrupted call no longer waits for its message.
    pub(super) fn abandon_call(&mut self) {
        for held in &mut self.held {
            let (Held::Told(_, owner) | Held::Waiting { command: Waiting { owner, .. }, .. }) = held;
            if *owner == Owner::Call {
                *owner = Owner::Nobody;
            }
        }
    }
}

/// The same failure of a message that may have been written by an earlier try.
fn as_written(failure: &Arc<Failure>, may_be_written: bool) -> Arc<Failure> {
    if may_be_written && failure.written == Written::No {
        return Arc::new(Failure { written: Written::Unknown, ..(**failure).clone() });
    }
    Arc::clone(failure)
}
