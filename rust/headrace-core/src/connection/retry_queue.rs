//! The commands of a connection that are to be sent again.
//!
//! From the first one on, nothing new is sent on the connection: everything in flight gets its reply, then, after a pause,
//! what failed is sent again in its old order, and so on until none is left. New commands, if there are any while other
//! connections go on, queue up behind it. All of them are in the window, which bounds the queue. No I/O, no clock and no random
//! number: `now` and `jitter` are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::detours::{Commands, Detour, Detours};
use super::in_flight::{Command, Owner, Sent};
use super::numbers::Numbers;
use super::outcome::Outcome;
use super::retry_step::{RetryEvent, RetryStep};
use super::stream_set::StreamSet;
use crate::command::{Expect, stream_key};
use crate::error::{Failure, Written, code};
use crate::retry::RetryPolicy;

/// Why a command waits to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It failed: a policy says whether and when it is sent again.
    Failed,
    /// The server only lacked the script, or another node has its slot: no policy is needed.
    Free,
    /// It was never sent, and only came while others waited.
    New,
}

impl Cause {
    fn of(is_free: bool) -> Self {
        if is_free { Self::Free } else { Self::Failed }
    }
}

/// A command that is to be sent again, or was.
#[derive(Debug)]
pub(crate) struct PendingRetry {
    pub(crate) bytes: Box<[u8]>,
    /// The numbers of its messages, and how many it carries.
    pub(crate) numbers: Numbers,
    pub(crate) rows: u64,
    /// The route of its key in a cluster.
    pub(crate) route: u16,
    pub(crate) expect: Expect,
    pub(crate) owner: Owner,
    /// How many of its last messages have no outcome.
    pub(crate) open: u64,
    /// What the first of these failed with last.
    pub(crate) failure: Arc<Failure>,
    /// What the others failed with, if they failed for another reason.
    pub(crate) behind: Option<Arc<Failure>>,
    /// Whether any try may have written it.
    pub(crate) may_be_written: bool,
    cause: Cause,
    /// How many nodes in a row sent it elsewhere.
    redirects: u32,
    is_in_flight: bool,
}

impl PendingRetry {
    /// Of a `command` that failed with `failure`.
    pub(crate) fn new(command: &Command, bytes: Box<[u8]>, failure: Arc<Failure>) -> Self {
        let may_be_written = failure.written == Written::Unknown;
        let Command { rows, route, expect, owner, .. } = *command;
        let numbers = command.numbers.clone();
        Self {
            bytes,
            numbers,
            rows,
            route,
            expect,
            owner,
            open: rows,
            failure,
            behind: None,
            may_be_written,
            cause: Cause::Failed,
            redirects: 0,
            is_in_flight: false,
        }
    }

    /// Its first messages have their outcome: `open` are left, and fail with `behind` from the second one on.
    #[must_use]
    pub(crate) fn with_open(self, open: u64, behind: Option<Arc<Failure>>) -> Self {
        Self { open, behind, ..self }
    }

    /// It needs no policy to be sent again, if `is_free`.
    #[must_use]
    pub(crate) fn free_if(self, is_free: bool) -> Self {
        Self { cause: Cause::of(is_free), ..self }
    }

    /// A node sent it elsewhere, for the first time.
    #[must_use]
    pub(crate) fn after_redirect(self) -> Self {
        Self { redirects: 1, ..self }
    }

    /// The key of its stream.
    pub(crate) fn stream_key(&self) -> &[u8] {
        stream_key(&self.bytes)
    }

    /// Whether it was sent before, and not only to a server that could not take it.
    pub(crate) fn was_tried(&self) -> bool {
        self.cause == Cause::Failed
    }

    fn is_free(&self) -> bool {
        self.cause != Cause::Failed
    }

    /// How many of its first messages have their outcome.
    pub(crate) fn known(&self) -> u64 {
        self.rows - self.open
    }

    /// Whether it was refused because of a row before it.
    fn is_blocked(&self) -> bool {
        self.failure.code == code::BLOCKED
    }

    /// What it fails with if it is not sent again.
    pub(crate) fn outcomes(self) -> impl Iterator<Item = Outcome> {
        let first = if self.behind.is_some() { self.open.min(1) } else { self.open };
        let rest = self.behind.filter(|_| self.open > first);
        let outcomes = [
            Some(Outcome::Failed { failure: self.failure, count: first }),
            rest.map(|failure| Outcome::Failed { failure, count: self.open - first }),
        ];
        let may_be_written = self.may_be_written;
        outcomes.into_iter().flatten().map(move |one| if may_be_written { one.after_doubt() } else { one })
    }
}

/// Whether a command that was to run the script by its hash failed because the server does not know it (any more).
pub(crate) fn lacks_script(expect: Expect, code: &str) -> bool {
    expect == (Expect::ScriptRun { has_source: false }) && code == "NOSCRIPT"
}

#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    pending: VecDeque<PendingRetry>,
    /// Commands that came meanwhile: they are behind those in flight, which may fail as well.
    new: VecDeque<PendingRetry>,
    /// Where the next command in flight is.
    cursor: usize,
    is_resending: bool,
    attempts: u32,
    /// How often commands were sent again.
    resends: u32,
    /// Whether it has paused: a caller waits.
    has_paused: bool,
    /// Where the server sent commands of this round.
    detours: Detours,
    /// The commands that nodes sent elsewhere too often.
    stranded: BTreeSet<Commands>,
    /// How many commands are not in flight, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    /// What was given up.
    given_up: Option<Arc<Failure>>,
    /// When the first command failed; `None`: none did.
    since: Option<Instant>,
    next: Option<Instant>,
    /// What lasted for too long.
    exhausted: Option<Arc<Failure>>,
}

impl RetryQueue {
    /// All keys have the same route: there is no cluster.
    pub(crate) fn forget_routes(&mut self) {
        self.pending.iter_mut().chain(&mut self.new).for_each(|pending| pending.route = 0);
    }

    /// Whether retries go on.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// Whether no command waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.new.is_empty()
    }

    /// Whether commands in flight may have been sent before.
    #[inline]
    pub(crate) fn is_resending(&self) -> bool {
        self.is_resending
    }

    /// The command in flight whose first message has this number, if it was sent before. Commands that were gathered before
    /// the retries began may come behind those.
    pub(crate) fn in_flight(&mut self, first: u64) -> Option<&mut PendingRetry> {
        if !self.is_resending {
            return None;
        }
        while !self.pending.get(self.cursor)?.is_in_flight {
            self.cursor += 1;
        }
        self.pending.get_mut(self.cursor).filter(|pending| pending.numbers.first() == first)
    }

    /// How many commands are not in flight, and how many bytes they have.
    #[inline]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.waiting, self.waiting_bytes)
    }

    /// How many messages these carry.
    pub(crate) fn messages(&self) -> u64 {
        if self.waiting == 0 {
            return 0;
        }
        let waiting = self.pending.iter().chain(&self.new).filter(|pending| !pending.is_in_flight);
        waiting.map(|pending| pending.open).sum()
    }

    /// Whether a command waits to be sent again, before the one that is in flight.
    pub(crate) fn has_root(&self) -> bool {
        let before = if self.is_resending { self.cursor } else { self.pending.len() };
        self.pending.iter().take(before).any(|pending| !pending.is_blocked())
    }

    /// Whether every command that waits for no other one needs no policy.
    pub(crate) fn is_free(&self) -> bool {
        let mut roots = self.pending.iter().filter(|pending| !pending.is_blocked()).peekable();
        roots.peek().is_some() && roots.all(PendingRetry::is_free)
    }

    /// Adds a command that failed, behind all others.
    pub(crate) fn push(&mut self, pending: PendingRetry, now: Instant) {
        self.since.get_or_insert(now);
        self.count_waiting(&pending);
        self.pending.push_back(pending);
    }

    /// Adds a command that is sent for the first time, behind all others. There is one at least.
    pub(crate) fn queue(&mut self, bytes: Box<[u8]>, route: u16, numbers: Numbers, rows: u64, expect: Expect) {
        let Some(failure) = self.reason() else { return };
        let (sent, owner) = (Sent::Nothing, Owner::Report);
        let command = Command { bytes: 0..0, numbers, rows, route, expect, owner, sent };
        let failure = match failure.written {
            Written::No => failure,
            Written::Unknown => Arc::new(Failure { written: Written::No, ..(*failure).clone() }),
        };
        let pending = PendingRetry::new(&command, bytes, failure);
        let pending = PendingRetry { cause: Cause::New, ..pending };
        self.count_waiting(&pending);
        self.new.push_back(pending);
    }

    fn count_waiting(&mut self, pending: &PendingRetry) {
        self.waiting += 1;
        self.waiting_bytes += pending.bytes.len() as u64;
    }

    /// The command [in flight](Self::in_flight) is answered: all of its messages have outcomes. Returns whether an earlier try
    /// may have written them.
    pub(crate) fn finish(&mut self) -> bool {
        self.pending.remove(self.cursor).is_some_and(|pending| pending.may_be_written)
    }

    /// The command [in flight](Self::in_flight) failed again, and may be sent again.
    pub(crate) fn put_back(&mut self, open: u64, failure: Arc<Failure>, behind: Option<Arc<Failure>>, is_free: bool) {
        if let Some(pending) = self.pending.get_mut(self.cursor) {
            pending.may_be_written |= failure.written == Written::Unknown;
            pending.cause = Cause::of(is_free);
            (pending.open, pending.failure, pending.behind) = (open, failure, behind);
            pending.is_in_flight = false;
            self.cursor += 1;
            self.waiting += 1;
            self.waiting_bytes += pending.bytes.len() as u64;
        }
    }

    /// The server sent the command that comes next elsewhere, whose first message has this number. It is not followed, if the
    /// command was sent elsewhere more than `most` times in a row.
    pub(crate) fn note_detour(&mut self, first: u64, detour: Detour, most: u32) {
        let redirects = match self.in_flight(first) {
            Some(pending) => {
                pending.redirects += 1;
                pending.redirects
            }
            None => 1,
        };
        if redirects > most {
            // The nodes send it to and fro. That passes, but only a policy waits for it.
            self.detours.forget(&detour);
            self.strand(detour);
        } else {
            self.detours.note(detour);
        }
    }

    /// Commands that the server sent elsewhere are not sent there: only a policy waits until it takes them.
    pub(crate) fn strand(&mut self, detour: Detour) {
        self.stranded.insert((detour.route, detour.asked));
    }

    /// Streams of a route have routes of their own from now on.
    pub(crate) fn reroute(&mut self, route: u16, streams: &BTreeMap<&[u8], u16>) {
        for pending in self.pending.iter_mut().chain(&mut self.new).filter(|pending| pending.route == route) {
            if let Some(own) = streams.get(pending.stream_key()) {
                pending.route = *own;
            }
        }
    }

    /// Whether the server sent a command of this round elsewhere: then nothing more of the round is sent to it.
    #[inline]
    pub(crate) fn has_redirect(&self) -> bool {
        !self.detours.is_empty() || !self.stranded.is_empty()
    }

    /// What a command failed with that the server sent elsewhere: the last one that did.
    pub(crate) fn redirected(&self) -> Option<Arc<Failure>> {
        let mut failed = self.pending.iter().rev().filter(|pending| pending.is_free() && !pending.is_in_flight);
        failed.next().map(|pending| Arc::clone(&pending.failure))
    }

    /// What comes next. Nothing is in flight. `policy`: without one, only what needs none is sent again.
    /// `jitter`: 0 to 1, another number for each call.
    pub(crate) fn step(&mut self, policy: Option<&RetryPolicy>, now: Instant, jitter: f64) -> RetryStep {
        if self.is_resending {
            (self.is_resending, self.next) = (false, None);
        }
        self.pending.append(&mut self.new);
        if self.pending.is_empty() {
            return RetryStep::Done;
        }
        if !self.detours.is_empty() {
            self.next = None;
            return RetryStep::Redirect(self.detours.take());
        }
        for (route, stream_key) in std::mem::take(&mut self.stranded) {
            let is_of = |pending: &PendingRetry| stream_key.as_deref().is_none_or(|key| key == pending.stream_key());
            for pending in self.pending.iter_mut().filter(|pending| pending.route == route && is_of(pending)) {
                (pending.cause, pending.redirects) = (Cause::Failed, 0);
            }
        }
        if self.pending.iter().all(|pending| pending.cause == Cause::New) {
            return RetryStep::Resume;
        }
        if self.next.is_none() && !self.has_root() {
            // What they waited for has failed for good.
            return RetryStep::GiveUp;
        }
        if self.next.is_none() && self.is_free() {
            return RetryStep::Resend;
        }
        let Some(policy) = policy else { return RetryStep::GiveUp };
        match self.next {
            Some(next) if next > now => RetryStep::Pause(next),
            Some(_) => RetryStep::Resend,
            None => {
                self.attempts = self.attempts.saturating_add(1);
                let since = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                if !policy.allows(self.attempts, since) {
                    self.exhaust(since, policy);
                    return RetryStep::GiveUp;
                }
                let next = now + policy.backoff(self.attempts, jitter);
                self.next = Some(next);
                RetryStep::Pause(next)
            }
        }
    }

    /// The wait that begins with the first pause. Returned once.
    pub(crate) fn began(&mut self) -> Option<RetryEvent> {
        if std::mem::replace(&mut self.has_paused, true) {
            return None;
        }
        let messages = self.pending.iter().map(|pending| pending.open).sum();
        Some(RetryEvent::Began { messages, since: self.since?, failure: self.reason()? })
    }

    /// Ends the retries: nothing is left. Returns the end of the wait, if the caller waited, and the failure that messages
    /// which come now would meet as well.
    pub(crate) fn end(&mut self, now: Instant) -> (Option<RetryEvent>, Option<Arc<Failure>>) {
        let ended = std::mem::take(self);
        let since = ended.since.filter(|_| ended.has_paused);
        let event = since.map(|since| RetryEvent::Ended {
            tries: ended.resends.saturating_add(1),
            took: now.saturating_duration_since(since),
            failure: ended.given_up,
        });
        (event, ended.exhausted)
    }

    /// Notes, before they are [taken out](Self::extract), what the waiting commands failed with.
    pub(crate) fn note_given_up(&mut self) {
        self.given_up = self.given_up.take().or_else(|| self.reason());
    }

    /// What the first command failed with that waits for no other one.
    pub(crate) fn reason(&self) -> Option<Arc<Failure>> {
        let mut pending = self.pending.iter().chain(&self.new);
        let root = pending.clone().find(|pending| !pending.is_blocked()).or_else(|| pending.next());
        root.map(|pending| Arc::clone(&pending.failure))
    }

    /// The streams whose commands fail when nothing is sent again that needs a policy: with one that lasted for too long, all.
    pub(crate) fn streams_to_give_up(&self) -> StreamSet {
        let all = || self.pending.iter();
        let needs_policy = |pending: &&PendingRetry| !pending.is_free() && !pending.is_blocked();
        let is_all = self.exhausted.is_some() || !all().any(|pending| needs_policy(&pending));
        let mut streams = StreamSet::default();
        for pending in all().filter(|pending| is_all || needs_policy(pending)) {
            streams.insert(pending.route, pending.stream_key());
        }
        streams
    }

    /// Takes out some commands, in order. None of them is in flight.
    pub(crate) fn extract(&mut self, is_taken: impl Fn(&PendingRetry) -> bool) -> Vec<PendingRetry> {
        let mut taken = Vec::new();
        for queue in [&mut self.pending, &mut self.new] {
            let (out, left): (Vec<_>, Vec<_>) = queue.drain(..).partition(|pending| is_taken(pending));
            *queue = left.into();
            taken.extend(out);
        }
        for pending in &taken {
            self.forget_waiting(pending.bytes.len(), pending.is_in_flight);
        }
        taken
    }

    /// Since when commands are tried again, and how often they were.
    pub(crate) fn progress(&self) -> (Option<Instant>, u32) {
        (self.since, self.attempts)
    }

    /// Goes on where the retries of another connection were, whose commands were added here: what a policy allows does not begin
    /// again with each node that commands are sent to.
    pub(crate) fn go_on(&mut self, (since, attempts): (Option<Instant>, u32)) {
        self.since = self.since.into_iter().chain(since).min();
        self.attempts = self.attempts.max(attempts);
    }

    /// Takes out what came meanwhile: see [`RetryStep::Resume`].
    pub(crate) fn take_new(&mut self) -> VecDeque<PendingRetry> {
        (self.waiting, self.waiting_bytes) = (0, 0);
        std::mem::take(&mut self.pending)
    }

    fn forget_waiting(&mut self, length: usize, is_in_flight: bool) {
        if !is_in_flight {
            self.waiting -= 1;
            self.waiting_bytes -= length as u64;
        }
    }

    /// The routes of the commands that wait, each once.
    pub(crate) fn routes(&self) -> BTreeSet<u16> {
        self.pending.iter().chain(&self.new).map(|pending| pending.route).collect()
    }

    /// Says in each failure that the policy allows no more tries.
    fn exhaust(&mut self, since: Duration, policy: &RetryPolicy) {
        self.note_given_up();
        let mut known: Option<(Arc<Failure>, Arc<Failure>)> = None;
        for pending in &mut self.pending {
            let failure = match &known {
                Some((before, after)) if *before == pending.failure => Arc::clone(after),
                _ => Arc::new(pending.failure.given_up(self.attempts, since)),
            };
            known = Some((std::mem::replace(&mut pending.failure, Arc::clone(&failure)), failure));
        }
        let last = known.map(|(_, after)| after);
        self.exhausted = last.filter(|last| since >= policy.deadline || last.is_of_connection());
    }

    /// Sends everything again that waits: passes each command to `send`, in order.
    pub(crate) fn resend(&mut self, mut send: impl FnMut(&mut PendingRetry)) {
        (self.is_resending, self.cursor) = (true, 0);
        self.resends = self.resends.saturating_add(1);
        (self.waiting, self.waiting_bytes) = (0, 0);
        for pending in &mut self.pending {
            pending.is_in_flight = true;
            send(pending);
            if pending.cause == Cause::New {
                pending.cause = Cause::Free;
            }
        }
    }
}
