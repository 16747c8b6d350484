//! The commands of a connection that must be sent again.
//!
//! From the first failure on, nothing new is sent on the connection: everything in flight gets its reply; then, after a pause,
//! what failed is sent again in its old order, and so on until nothing is left. New commands, which can come while other
//! connections continue, queue up behind it. What a node of a cluster refuses only because of its slot is parked during the
//! pause, with the later commands of its route, and commands of other routes continue. All of them are in the window, which
//! bounds the queue. No I/O, no clock and no random number: `now` and `jitter` are arguments.
//!
//! ```text
//!        a command fails           all in flight have replies         the pause is over
//! idle ──────────────────▶ draining ────────────────────────▶ pausing ─────────────────▶ resending
//!  ▲                                                             ▲                        │    │
//!  │                                                             └──── some failed again ─┘    │
//!  ├──── the policy allows no further try: all that waits fails with the last failure ─────────┤
//!  └──── nothing is left ──────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::detours::{Commands, Detour, Detours};
use super::in_flight::{Command, Owner, Sent};
use super::numbers::Numbers;
use super::parked_routes::{ParkedRoute, ParkedRoutes};
use super::pending_retry::{Cause, PendingRetry};
use super::retry_step::{RetryEvent, RetryStep};
use super::stream_set::StreamSet;
use crate::command::Expect;
use crate::error::{Failure, Written};
use crate::retry::RetryPolicy;

/// Whether a command that should run the script by its hash failed because the server does not know it (any more).
pub(crate) fn lacks_script(expect: Expect, code: &str) -> bool {
    expect == (Expect::ScriptRun { has_source: false }) && code == "NOSCRIPT"
}

#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    pending: VecDeque<PendingRetry>,
    /// Commands that were queued during retries: they follow those in flight, which may fail as well.
    new: VecDeque<PendingRetry>,
    /// The position of the next command in flight.
    cursor: usize,
    is_resending: bool,
    attempts: u32,
    /// How many times commands were sent again.
    resends: u32,
    /// Whether retries have paused: a caller waits.
    has_paused: bool,
    /// Where the server sent commands of this round.
    detours: Detours,
    /// The commands whose redirects are not followed.
    stranded: BTreeSet<Commands>,
    /// How many commands are not in flight, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    /// The failure of the commands that were given up.
    given_up: Option<Arc<Failure>>,
    /// When the first command failed; `None`: none did.
    since: Option<Instant>,
    next: Option<Instant>,
    /// The failure that lasted for too long.
    exhausted: Option<Arc<Failure>>,
    parked: ParkedRoutes,
    /// Whether nothing new is sent, because a parked route is due.
    is_unparking: bool,
    /// Routes that are no longer waited for in this batch.
    spent: BTreeSet<u16>,
    /// The start of a wait for a parked route, until it is returned.
    parked_began: Option<RetryEvent>,
}

impl RetryQueue {
    /// Gives all commands the same route: there is no cluster.
    pub(crate) fn forget_routes(&mut self) {
        self.pending.iter_mut().chain(&mut self.new).for_each(|pending| pending.route = 0);
    }

    /// Whether retries are in progress.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// Whether no command waits, except for parked ones.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.new.is_empty()
    }

    /// Whether commands of some routes wait while others continue.
    #[inline]
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether nothing waits or is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_active() && !self.has_parked() && self.is_empty()
    }

    /// Whether a new command of this route waits behind others.
    #[inline]
    pub(crate) fn holds(&self, route: u16) -> bool {
        if self.since.is_none() && self.parked.is_empty() && !self.is_unparking {
            return false;
        }
        self.holds_any() || self.parked.has(route)
    }

    #[cold]
    fn holds_any(&self) -> bool {
        ((self.is_active() || self.is_unparking) && !self.is_empty()) || (self.is_unparking && self.has_parked())
    }

    /// Whether commands in flight may have been sent before.
    #[inline]
    pub(crate) fn is_resending(&self) -> bool {
        self.is_resending
    }

    /// The command in flight whose first message has this number, if it was sent before. Commands that were gathered before the
    /// retries started may follow those.
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
        let (parked, parked_bytes) = self.parked.load();
        (self.waiting + parked, self.waiting_bytes + parked_bytes)
    }

    /// How many messages the [waiting](Self::waiting) commands carry.
    pub(crate) fn messages(&self) -> u64 {
        if self.waiting().0 == 0 {
            return 0;
        }
        let waiting = self.pending.iter().chain(&self.new).filter(|pending| !pending.is_in_flight);
        waiting.chain(self.parked.commands()).map(|pending| pending.open).sum()
    }

    /// Whether a command waits to be sent again, before the one that is in flight.
    pub(crate) fn has_root(&self) -> bool {
        let before = if self.is_resending { self.cursor } else { self.pending.len() };
        self.pending.iter().take(before).any(|pending| !pending.is_blocked())
    }

    /// Whether every command that waits for no other one can be sent again without a policy.
    pub(crate) fn is_free(&self) -> bool {
        let mut roots = self.pending.iter().filter(|pending| !pending.is_blocked()).peekable();
        roots.peek().is_some() && roots.all(PendingRetry::is_free)
    }

    /// Adds a command that failed, after all others.
    pub(crate) fn push(&mut self, pending: PendingRetry, now: Instant) {
        let Some(pending) = self.parked.push(pending) else { return };
        self.since.get_or_insert(now);
        self.count_waiting(&pending);
        self.pending.push_back(pending);
    }

    /// Adds a command that is sent for the first time, after all others. It is [held](Self::holds).
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
        let Some(pending) = self.parked.push(pending) else { return };
        self.count_waiting(&pending);
        self.new.push_back(pending);
    }

    /// Sets the failure of commands that were never sent to that of a socket that could not be opened, in place of the one that
    /// they were queued behind.
    pub(crate) fn blame(&mut self, failure: &Arc<Failure>) {
        for pending in self.pending.iter_mut().chain(&mut self.new).filter(|pending| pending.cause == Cause::New) {
            pending.failure = Arc::clone(failure);
        }
    }

    fn count_waiting(&mut self, pending: &PendingRetry) {
        self.waiting += 1;
        self.waiting_bytes += pending.bytes.len() as u64;
    }

    /// Removes the command [in flight](Self::in_flight), which is answered: all of its messages have outcomes. Returns whether an
    /// earlier try may have written them.
    pub(crate) fn finish(&mut self) -> bool {
        self.pending.remove(self.cursor).is_some_and(|pending| pending.may_be_written)
    }

    /// Puts back the command [in flight](Self::in_flight), which failed again and may be sent again.
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

    /// Records the redirect of the next command, whose first message has the number `first`. It is not followed if the command
    /// was redirected more than `most` times in a row.
    pub(crate) fn note_detour(&mut self, first: u64, detour: Detour, most: u32) {
        let redirects = match self.in_flight(first) {
            Some(pending) => {
                pending.redirects += 1;
                pending.redirects
            }
            None => 1,
        };
        if redirects > most {
            // The nodes send it back and forth. That passes, but only a policy waits for it.
            self.detours.forget(&detour);
            self.strand(detour);
        } else {
            self.detours.note(detour);
        }
    }

    /// Leaves redirected commands to the policy, which waits until the server takes them: the redirect is not followed.
    pub(crate) fn strand(&mut self, detour: Detour) {
        self.stranded.insert((detour.route, detour.asked));
    }

    /// Gives streams of a route their own routes.
    pub(crate) fn reroute(&mut self, route: u16, streams: &BTreeMap<&[u8], u16>) {
        if let Some(parked) = self.parked.take(route) {
            for pending in parked.commands {
                self.count_waiting(&pending);
                self.pending.push_back(pending);
            }
        }
        for pending in self.pending.iter_mut().chain(&mut self.new).filter(|pending| pending.route == route) {
            if let Some(own) = streams.get(pending.stream_key()) {
                pending.route = *own;
            }
        }
    }

    /// Whether the server redirected a command of this round: nothing more of the round is then sent to it.
    #[inline]
    pub(crate) fn has_redirect(&self) -> bool {
        !self.detours.is_empty() || !self.stranded.is_empty()
    }

    /// The failure of the last redirected command.
    pub(crate) fn redirected(&self) -> Option<Arc<Failure>> {
        let mut failed = self.pending.iter().rev().filter(|pending| pending.is_free() && !pending.is_in_flight);
        failed.next().map(|pending| Arc::clone(&pending.failure))
    }

    /// Continues with parked commands that are due, if nothing else waits to be sent again. `is_quiet`: nothing is in flight;
    /// until then they only hold back new ones. Returns when the next ones are due.
    pub(crate) fn unpark(&mut self, now: Instant, is_quiet: bool) -> Option<Instant> {
        if self.is_active() {
            return None;
        }
        match self.parked.first() {
            Some((_, next)) if next > now && self.is_empty() => {
                self.is_unparking = false;
                return Some(next);
            }
            Some((route, next)) if next <= now && is_quiet => {
                self.is_unparking = false;
                let parked = self.parked.take(route)?;
                parked.commands.iter().for_each(|pending| self.count_waiting(pending));
                self.pending = parked.commands;
                (self.since, self.next, self.has_paused) = (Some(parked.since), Some(next), parked.is_reported);
                (self.attempts, self.resends) = (parked.attempts, parked.resends);
            }
            Some((_, next)) if next <= now => self.is_unparking = true,
            // The commands that were due went to another node, and those that they held back continue.
            Some(_) | None => {
                self.is_unparking = false;
                self.since = (!self.is_empty()).then_some(now);
            }
        }
        None
    }

    /// Parks the routes that wait for a policy only because of the state of their slots on the node. Returns the next step for
    /// the others.
    fn park(&mut self, policy: &RetryPolicy, now: Instant, jitter: f64) -> RetryStep {
        self.attempts = self.attempts.saturating_add(1);
        let since = self.since.unwrap_or(now);
        let passed = now.saturating_duration_since(since);
        let roots = self.pending.iter().filter(|pending| !pending.is_blocked() && !pending.is_free());
        let routes: BTreeSet<_> = roots.map(|root| root.route).filter(|route| !self.spent.contains(route)).collect();
        if !policy.allows(self.attempts, passed) {
            self.exhaust(passed, |pending| routes.contains(&pending.route));
            self.spent.extend(routes);
            return RetryStep::GiveUp;
        }
        let mut is_reported = std::mem::take(&mut self.has_paused);
        if !is_reported
            && !routes.is_empty()
            && let Some(failure) = self.reason()
        {
            let parked = self.pending.iter().filter(|pending| routes.contains(&pending.route));
            let messages = parked.map(|pending| pending.open).sum();
            self.parked_began = Some(RetryEvent::Began { messages, since, failure });
            is_reported = true;
        }
        let next = now + policy.backoff(self.attempts, jitter);
        for route in routes {
            let (of_route, others): (VecDeque<_>, VecDeque<_>) =
                self.pending.drain(..).partition(|pending| pending.route == route);
            self.pending = others;
            for pending in &of_route {
                self.forget_waiting(pending.bytes.len(), false);
            }
            let (attempts, resends) = (self.attempts, self.resends);
            let is_reported = std::mem::take(&mut is_reported);
            self.parked.add(route, ParkedRoute { commands: of_route, since, attempts, resends, next, is_reported });
        }
        if self.pending.is_empty() {
            RetryStep::Done
        } else if self.pending.iter().all(|pending| pending.cause == Cause::New) {
            RetryStep::Resume
        } else if self.pending.iter().any(|pending| !pending.is_blocked() && !pending.is_free()) {
            // Routes that are no longer waited for.
            RetryStep::GiveUp
        } else {
            RetryStep::Resend
        }
    }

    /// Lets the next batch wait for routes again.
    pub(crate) fn forgive(&mut self) {
        self.spent.clear();
    }

    /// The next step. Nothing is in flight. `policy`: without one, only what needs none is sent again. `parks`: the node may
    /// refuse some routes and take others. `jitter`: 0 to 1, a new number for each call.
    pub(crate) fn step(&mut self, policy: Option<&RetryPolicy>, parks: bool, now: Instant, jitter: f64) -> RetryStep {
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
        let mut roots = self.pending.iter().filter(|pending| !pending.is_blocked() && !pending.is_free());
        if parks && self.next.is_none() && roots.all(PendingRetry::waits_for_route) {
            return self.park(policy, now, jitter);
        }
        match self.next {
            Some(next) if next > now => RetryStep::Pause(next),
            Some(_) => RetryStep::Resend,
            None => {
                self.attempts = self.attempts.saturating_add(1);
                let since = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                if !policy.allows(self.attempts, since) {
                    let last = self.exhaust(since, |_| true);
                    self.exhausted = last.filter(|last| since >= policy.deadline || last.is_of_connection());
                    return RetryStep::GiveUp;
                }
                let next = now + policy.backoff(self.attempts, jitter);
                self.next = Some(next);
                RetryStep::Pause(next)
            }
        }
    }

    /// The wait that starts with the first pause, or with the first one of a parked route. Returned once.
    pub(crate) fn began(&mut self, is_pause: bool) -> Option<RetryEvent> {
        if self.parked_began.is_some() || !is_pause {
            return self.parked_began.take();
        }
        if std::mem::replace(&mut self.has_paused, true) {
            return None;
        }
        let messages = self.pending.iter().map(|pending| pending.open).sum();
        Some(RetryEvent::Began { messages, since: self.since?, failure: self.reason()? })
    }

    /// Ends the retries: nothing is left. Returns the end of the wait, if the caller waited, and the failure that new messages
    /// would meet as well.
    pub(crate) fn end(&mut self, now: Instant) -> (Option<RetryEvent>, Option<Arc<Failure>>) {
        let ended = std::mem::take(self);
        // Parked commands continue.
        (self.parked, self.spent, self.parked_began) = (ended.parked, ended.spent, ended.parked_began);
        let since = ended.since.filter(|_| ended.has_paused);
        let event = since.map(|since| RetryEvent::Ended {
            tries: ended.resends.saturating_add(1),
            took: now.saturating_duration_since(since),
            failure: ended.given_up,
        });
        (event, ended.exhausted)
    }

    /// Records the failure of the waiting commands before they are [taken out](Self::extract).
    pub(crate) fn note_given_up(&mut self) {
        self.given_up = self.given_up.take().or_else(|| self.reason());
    }

    /// The failure of the first command that waits for no other one.
    pub(crate) fn reason(&self) -> Option<Arc<Failure>> {
        let mut pending = self.pending.iter().chain(&self.new);
        let root = pending.clone().find(|pending| !pending.is_blocked()).or_else(|| pending.next());
        root.map(|pending| Arc::clone(&pending.failure)).or_else(|| self.parked.reason())
    }

    /// The streams whose commands fail if nothing that needs a policy is sent again; all of them if a failure lasted for too
    /// long.
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
        let (mut taken, ended) = self.parked.extract(&is_taken);
        let parked = taken.len();
        if let Some((since, is_reported)) = ended {
            self.has_paused |= is_reported;
            self.is_unparking &= self.has_parked();
            if is_reported || !(self.is_unparking || self.is_empty()) {
                // The end of the wait must still be reported, and what it held back continues.
                self.since.get_or_insert(since);
            }
        }
        for queue in [&mut self.pending, &mut self.new] {
            let (out, left): (Vec<_>, Vec<_>) = queue.drain(..).partition(|pending| is_taken(pending));
            *queue = left.into();
            taken.extend(out);
        }
        for pending in &taken[parked..] {
            self.forget_waiting(pending.bytes.len(), pending.is_in_flight);
        }
        taken
    }

    /// Since when commands have been tried again, and how many times. `is_taken`: the routes that count where they are parked.
    pub(crate) fn progress(&self, is_taken: impl Fn(u16) -> bool) -> (Option<Instant>, u32) {
        let (since, attempts) = self.parked.progress(is_taken);
        (self.since.into_iter().chain(since).min(), self.attempts.max(attempts))
    }

    /// Continues the retries of another connection whose commands were added here: the limits of a policy do not start again with
    /// each node that commands are sent to.
    pub(crate) fn go_on(&mut self, (since, attempts): (Option<Instant>, u32)) {
        self.since = self.since.into_iter().chain(since).min();
        self.attempts = self.attempts.max(attempts);
    }

    /// Takes out the commands that were queued during retries: see [`RetryStep::Resume`].
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
        let waiting = self.pending.iter().chain(&self.new).chain(self.parked.commands());
        waiting.map(|pending| pending.route).collect()
    }

    /// Adds to some failures that the policy allows no more tries. Returns the last one.
    fn exhaust(&mut self, since: Duration, is_exhausted: impl Fn(&PendingRetry) -> bool) -> Option<Arc<Failure>> {
        self.note_given_up();
        let mut known: Option<(Arc<Failure>, Arc<Failure>)> = None;
        for pending in self.pending.iter_mut().filter(|pending| is_exhausted(pending)) {
            let failure = match &known {
                Some((before, after)) if *before == pending.failure => Arc::clone(after),
                _ => Arc::new(pending.failure.given_up(self.attempts, since)),
            };
            known = Some((std::mem::replace(&mut pending.failure, Arc::clone(&failure)), failure));
        }
        known.map(|(_, after)| after)
    }

    /// Sends again everything that waits: passes each command to `send`, in order.
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
