//! A round of retries: from the first message that is to be sent again until none is.
//!
//! While it lasts nothing new is encoded. First everything in flight gets its reply, then, after a pause, what failed is sent
//! again in its old order, and so on. Outcomes are told in the order of the messages when all of them are known: what was
//! answered behind a message that failed waits for it here. All of it was in one window once, which bounds it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::waits::Event;
use crate::error::{Failure, Written, code};
use crate::reply::EntryId;
use crate::retry::{RetryPolicy, chance};
use crate::window::Owner;

/// What became of some messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// `entries` of `rows` messages each, the first under `first`, the others under the sequence numbers that follow.
    Delivered { first: EntryId, entries: u64, rows: u64 },
    /// So many had been written before.
    Deduplicated { count: u64 },
    /// So many, all for one reason.
    Failed { failure: Arc<Failure>, count: u64 },
}

/// A command that is to be sent again.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) command: Box<[u8]>,
    /// How many messages it carries, and how many of those have no outcome.
    pub(super) rows: u64,
    pub(super) open: u64,
    /// What it failed with last.
    pub(super) failure: Arc<Failure>,
    /// What the others are told if only the first message without an outcome failed with that.
    pub(super) behind: Option<Arc<Failure>>,
}

/// A command: what became of its first messages, and what is still to be done for the others.
#[derive(Debug)]
struct Held {
    told: Vec<Outcome>,
    /// How many of these need no cover any more.
    covered: usize,
    owner: Owner,
    waiting: Option<Waiting>,
    in_flight: bool,
    may_be_written: bool,
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
    /// How often what failed was sent again.
    resends: u32,
    /// Whether it has paused: a caller waits.
    has_paused: bool,
    /// What was given up.
    given_up: Option<Arc<Failure>>,
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

    /// Whether the first command in flight was sent before. Rows that were gathered before the round may come behind those
    /// that were.
    pub(super) fn is_resending(&self) -> bool {
        self.is_resending && self.held.iter().skip(self.cursor).any(|held| held.in_flight)
    }

    /// Whether a message waits to be sent again, after the one that is in flight.
    pub(super) fn has_root(&self) -> bool {
        let is_root = |held: &Held| held.waiting.as_ref().is_some_and(|waiting| !waiting.is_blocked());
        let before = if self.is_resending { self.cursor } else { self.held.len() };
        self.held.iter().take(before).any(is_root)
    }

    /// An outcome that waits for its turn.
    pub(super) fn hold(&mut self, outcome: Outcome, owner: Owner) {
        let (told, may_be_written) = (vec![outcome], false);
        self.held.push_back(Held { told, covered: 0, owner, waiting: None, in_flight: false, may_be_written });
    }

    /// A command that failed, behind all others. `told`: what became of its first messages.
    pub(super) fn wait(&mut self, told: Vec<Outcome>, owner: Owner, waiting: Waiting) {
        let may_be_written = waiting.failure.written == Written::Unknown;
        self.since.get_or_insert_with(Instant::now);
        self.waiting += 1;
        let (covered, waiting, in_flight) = (0, Some(waiting), false);
        self.held.push_back(Held { told, covered, owner, waiting, in_flight, may_be_written });
    }

    /// How many messages of the first command in flight have no outcome.
    pub(super) fn open(&mut self) -> u64 {
        self.next_in_flight().and_then(|held| held.waiting.as_ref()).map_or(0, |waiting| waiting.open)
    }

    /// All open messages of the first command in flight have their outcomes.
    pub(super) fn resolve(&mut self, outcomes: impl IntoIterator<Item = Outcome>) {
        let Some(held) = self.next_in_flight() else { return };
        let may_be_written = held.may_be_written;
        held.told.extend(outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Failed { failure, count } => {
                Outcome::Failed { failure: as_written(&failure, may_be_written), count }
            }
            other => other,
        }));
        (held.waiting, held.in_flight) = (None, false);
        self.waiting -= 1;
        self.cursor += 1;
    }

    /// The first command in flight failed once more, and may be sent again. `outcomes`: of the first of its open messages.
    pub(super) fn put_back(
        &mut self,
        outcomes: Vec<Outcome>,
        open: u64,
        failure: Arc<Failure>,
        behind: Option<Arc<Failure>>,
    ) {
        let Some(held) = self.next_in_flight() else { return };
        held.may_be_written |= failure.written == Written::Unknown;
        held.told.extend(outcomes);
        held.in_flight = false;
        if let Some(waiting) = &mut held.waiting {
            (waiting.open, waiting.failure, waiting.behind) = (open, failure, behind);
        }
        self.cursor += 1;
    }

    fn next_in_flight(&mut self) -> Option<&mut Held> {
        while !self.held.get(self.cursor)?.in_flight {
            self.cursor += 1;
        }
        self.held.get_mut(self.cursor)
    }

    /// What comes next. Nothing is in flight.
    pub(super) fn turn(&mut self, policy: &RetryPolicy, now: Instant) -> Turn {
        if self.is_resending {
            (self.is_resending, self.next) = (false, None);
        }
        if self.waiting > 0 && self.next.is_none() && !self.has_root() {
            // Whatever they wait for has failed for good.
            self.give_up();
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

    /// The wait that begins with the first pause.
    pub(super) fn began(&mut self) -> Option<Event> {
        if std::mem::replace(&mut self.has_paused, true) {
            return None;
        }
        let messages = self.waiting().map(|waiting| waiting.open).sum();
        Some(Event::Began { messages, since: self.since?, failure: self.reason()? })
    }

    /// The end of that wait, before the last outcome is reported.
    pub(super) fn ended(&self, now: Instant) -> Option<Event> {
        let took = now.saturating_duration_since(self.since.filter(|_| self.has_paused)?);
        Some(Event::Ended { tries: self.resends.saturating_add(1), took, failure: self.given_up.clone() })
    }

    /// Nothing is sent again any more: notes why what waits now was to be.
    pub(super) fn note_given_up(&mut self) {
        self.given_up = self.given_up.take().or_else(|| self.reason());
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.held.iter().filter_map(|held| held.waiting.as_ref())
    }

    /// What the first message failed with that waits for no other one.
    fn reason(&self) -> Option<Arc<Failure>> {
        let root = self.waiting().find(|waiting| !waiting.is_blocked()).or_else(|| self.waiting().next());
        root.map(|waiting| Arc::clone(&waiting.failure))
    }

    /// What waits fails for good.
    pub(super) fn give_up(&mut self) {
        self.note_given_up();
        for held in &mut self.held {
            if let Some(waiting) = held.waiting.take() {
                let first = if waiting.behind.is_some() { waiting.open.min(1) } else { waiting.open };
                let failure = as_written(&waiting.failure, held.may_be_written);
                held.told.push(Outcome::Failed { failure, count: first });
                if let Some(behind) = waiting.behind.filter(|_| waiting.open > first) {
                    let failure = as_written(&behind, held.may_be_written);
                    held.told.push(Outcome::Failed { failure, count: waiting.open - first });
                }
            }
        }
        self.waiting = 0;
    }

    /// The same, once the policy allows no more tries.
    fn give_up_after(&mut self, since: Duration, policy: &RetryPolicy) {
        // Before each failure says so itself.
        self.note_given_up();
        let tries = format!(" (given up after {} tries in {:.1} s)", self.attempts, since.as_secs_f64());
        let mut known: Option<(Arc<Failure>, Arc<Failure>)> = None;
        for waiting in self.held.iter_mut().filter_map(|held| held.waiting.as_mut()) {
            let failure = match &known {
                Some((before, after)) if *before == waiting.failure => Arc::clone(after),
                _ => Arc::new(waiting.failure.with_more(&tries)),
            };
            known = Some((std::mem::replace(&mut waiting.failure, Arc::clone(&failure)), failure));
        }
        let last = known.map(|(_, after)| after);
        self.exhausted = last.filter(|last| since >= policy.deadline || last.is_of_connection());
        self.give_up();
    }

    /// What will not pass for messages that come now either.
    pub(super) fn exhausted(&self, written: Written) -> Option<Arc<Failure>> {
        self.exhausted.as_ref().map(|failure| Arc::new(Failure { written, ..(**failure).clone() }))
    }

    /// Everything that waits is sent again: gives each command to `send`, with its owner and whether it may be written.
    pub(super) fn resend(&mut self, mut send: impl FnMut(&Waiting, Owner, bool)) {
        (self.is_resending, self.cursor) = (true, 0);
        self.resends = self.resends.saturating_add(1);
        for held in &mut self.held {
            if let Some(waiting) = &held.waiting {
                held.in_flight = true;
                send(waiting, held.owner, waiting.failure.written == Written::Unknown);
            }
        }
    }

    /// The outcomes of the next command, in the order of the messages. With the last one the round is over.
    pub(super) fn tell(&mut self) -> Option<(Vec<Outcome>, Owner)> {
        let told = self.held.pop_front().map(|held| (held.told, held.owner));
        if told.is_none() {
            *self = Self::default();
        }
        told
    }

    /// What was told of written messages so far is covered, or fails for want of it. Returns whether any failed.
    pub(super) fn cover(&mut self, missing: Option<&Arc<Failure>>) -> bool {
        let mut any_failed = false;
        for held in &mut self.held {
            if let Some(failure) = missing {
                for outcome in held.told.iter_mut().skip(held.covered).filter(|outcome| outcome.is_written()) {
                    *outcome = outcome.failed_with(failure);
                    any_failed = true;
                }
            }
            held.covered = held.told.len();
        }
        any_failed
    }

    /// The interrupted call no longer waits for its message.
    pub(super) fn abandon_call(&mut self) {
        for held in &mut self.held {
            if held.owner == Owner::Call {
                held.owner = Owner::Nobody;
            }
        }
    }
}

impl Waiting {
    /// Whether it was refused because of a row before it.
    fn is_blocked(&self) -> bool {
        self.failure.code == code::BLOCKED
    }
}

/// The same failure of a message that may have been written by an earlier try.
fn as_written(failure: &Arc<Failure>, may_be_written: bool) -> Arc<Failure> {
    if may_be_written && failure.written == Written::No {
        return Arc::new(Failure { written: Written::Unknown, ..(**failure).clone() });
    }
    Arc::clone(failure)
}
