//! The leases of a member: what it owns, what it wants, and what the caller has done. No I/O and no clock.
//!
//! The keeper asks what to send and brings the replies; the caller's thread asks what has changed, and notes what it returns and
//! commits.

use std::collections::{BTreeSet, VecDeque};
use std::mem::take;
use std::time::Duration;

use redis::Value;

use super::doubt::Doubt;
use super::lease::{Lease, Pin};
use super::owned::{AfterFailure, Failed, Owned};
use super::report::ShardReport;
use super::request::{Action, Changed, Commit, LeaseNames, Request};
use super::share::share;
use crate::error::{Error, Fault, Result};
use crate::reading::{Place, Position, Start};
use crate::resp::value::{bytes, integer, list};
use crate::resp::{EntryId, entry_id};

/// How often a member says that it is there, at most: others see that it came or left, and that leases are free.
const BEATS_EVERY: Duration = Duration::from_millis(500);
/// How long it waits after a refusal before it asks again.
const TRIES_EVERY: Duration = Duration::from_secs(1);
/// What a change of pins adds to the count of leases that were given up: its upper half counts these changes.
pub(crate) const PINS_CHANGED: i64 = 1 << 32;
/// Other members' clocks say when a lease ends; it is tried this much later.
const AFTER: Duration = Duration::from_millis(10);

/// A change of what this member owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// It owns a stream from now on.
    Assigned { stream: usize },
    /// It reads a stream from here.
    Reads { stream: usize, epoch: u64, start: Start },
    /// An entry has failed: what was read of the stream is of no use.
    Failed { stream: usize },
    /// It gives a stream up: it returns no further batch of it, and the caller may commit those that it has.
    Revoked { stream: usize },
    /// It has lost a stream: commits have no effect.
    Lost { stream: usize },
}

/// A batch that was returned: what its commit names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stream: usize,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// Whether a batch may be returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOut {
    Now(Ticket),
    /// The lease may have ended: the server has to be asked first.
    Later,
    /// The stream belongs to this member no longer, or not since the batch was read.
    Never,
    /// Its only entry has failed too often, and is moved.
    Moved,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a separate fact
pub(crate) struct Leases {
    names: LeaseNames,
    /// The stream whose slot has the list of members.
    home: usize,
    /// What it knows of the lease of each stream.
    streams: Vec<Lease>,
    /// All members, ascending, as the server last said. Empty: it has not said.
    members: Vec<Vec<u8>>,
    /// When to say that this member is there.
    beats_at: Duration,
    is_beating: bool,
    /// Why the server refuses the list of members.
    beat_refusal: Option<Error>,
    /// How many leases this member has given up since it last said so.
    gave_up: u64,
    /// How often any member had given up a lease, and pins were changed, when the server last said.
    released: Option<i64>,
    changes: VecDeque<Change>,
    /// The streams that are read from a certain time on.
    waiting: BTreeSet<usize>,
    /// The errors that the caller does not know, at most one of each stream and one of the members.
    errors: VecDeque<Error>,
    /// Until when it takes leases of an earlier process of its name, which end by then. A process that was stopped for longer takes
    /// none from a later one.
    inherits_until: Option<Duration>,
    /// Whether another process uses the name of this member: it has taken streams from this one.
    has_namesake: bool,
    report: ShardReport,
    /// Whether all leases are given up, and this member leaves.
    ends: bool,
    has_left: bool,
}

impl Leases {
    /// Knows no lease. `streams`: their number; `home`: the one whose slot has the list of members, the same for all of them.
    pub(crate) fn new(names: LeaseNames, streams: usize, home: usize) -> Self {
        Self {
            names,
            home,
            streams: (0..streams).map(|_| Lease::new()).collect(),
            members: Vec::new(),
            beats_at: Duration::ZERO,
            is_beating: false,
            beat_refusal: None,
            gave_up: 0,
            released: None,
            changes: VecDeque::new(),
            waiting: BTreeSet::new(),
            errors: VecDeque::new(),
            inherits_until: None,
            has_namesake: false,
            report: ShardReport::default(),
            ends: false,
            has_left: false,
        }
    }

    pub(crate) fn names(&self) -> &LeaseNames {
        &self.names
    }

    // For the keeper. A line is the streams of one session; that of the home has the list of members too.

    /// The time until there is something to send about these streams.
    pub(super) fn left(&self, line: &[usize], now: Duration) -> Duration {
        let beats = line.contains(&self.home).then(|| self.until_beat(now)).flatten();
        let takes = self.may_take();
        let of_streams = line.iter().filter_map(|stream| self.due(*stream, takes, now));
        of_streams.chain(beats).min().unwrap_or(Duration::MAX)
    }

    /// The next command about these streams.
    pub(super) fn take(&mut self, line: &[usize], now: Duration) -> Option<Request> {
        if line.contains(&self.home) && self.until_beat(now) == Some(Duration::ZERO) {
            self.is_beating = true;
            let lease = if self.leaves() { Duration::ZERO } else { self.names.lease };
            let action = Action::Beat { lease, released: take(&mut self.gave_up) };
            return Some(Request { stream: self.home, action, sent: now });
        }
        let takes = self.may_take();
        // Each member begins elsewhere: those that come together do not ask for the same streams.
        let rank = self.members.iter().position(|member| *member == self.names.member).unwrap_or_default();
        let first = rank * line.len() / self.members.len().max(1);
        let turns = (first..first + line.len()).map(|at| line[at % line.len()]);
        let stream = turns.into_iter().find(|stream| self.due(*stream, takes, now) == Some(Duration::ZERO))?;
        let lease = &mut self.streams[stream];
        lease.is_asked = true;
        let action = match &mut lease.owned {
            None => {
                let inherits = !self.ends && self.inherits_until.is_some_and(|until| now < until);
                Action::Take { from_namesake: inherits, only_pinned: lease.asks_pin.is_some() && !self.ends }
            }
            Some(owned)
                if owned.gives_up_at.is_some_and(|at| at <= now)
                    || (owned.gives_up_at.is_some() && owned.is_done()) =>
            {
                owned.is_released = true;
                owned.doubt.is_alone = false;
                Action::Release { epoch: owned.epoch, changed: owned.take_changed() }
            }
            Some(owned) => Action::Keep { epoch: owned.epoch, changed: owned.take_changed() },
        };
        if let Action::Keep { changed: Some(changed), .. } | Action::Release { changed: Some(changed), .. } = &action {
            lease.under_way = changed.entries();
        }
        Some(Request { stream, action, sent: now })
    }

    /// The time until this member has to say that it is there, or that it leaves. Others learn immediately what it has given up.
    fn until_beat(&self, now: Duration) -> Option<Duration> {
        let has_news = self.beat_refusal.is_none() && (self.gave_up > 0 || self.leaves());
        let at = if has_news { now } else { self.beats_at };
        (!self.is_beating && !self.has_left).then(|| at.saturating_sub(now))
    }

    /// Whether this member leaves now: after it has given everything up, so that others find what is free.
    fn leaves(&self) -> bool {
        self.ends && self.streams.iter().all(Lease::is_ended)
    }

    /// When there is something to do about a stream. `takes`: whether this member may take one more.
    fn due(&self, stream: usize, takes: bool, now: Duration) -> Option<Duration> {
        let lease = &self.streams[stream];
        if lease.is_asked {
            return None;
        }
        let Some(owned) = &lease.owned else {
            // What it may have taken unknowingly it takes again, to give it up.
            let is_own = (lease.pin == Pin::Own || lease.asks_pin.is_some()) && !self.ends && !self.has_namesake;
            let takes = takes || is_own || (self.ends && lease.may_be_taken);
            return takes.then(|| lease.try_at.saturating_sub(now));
        };
        let until_tried = lease.try_at.saturating_sub(now);
        let until_renewal = (owned.renewed + self.names.lease / 3).saturating_sub(now);
        let until_given_up =
            owned.gives_up_at.map(|at| if owned.is_done() { Duration::ZERO } else { at.saturating_sub(now) });
        let is_news = owned.has_changed() || lease.asks_pin.is_some();
        let first =
            until_given_up.into_iter().chain(is_news.then_some(Duration::ZERO)).fold(until_renewal, Duration::min);
        Some(first.max(until_tried))
    }

    /// Whether this member has less than its share, also if all it has asked for is granted. What is pinned to it does not count.
    fn may_take(&self) -> bool {
        let has = |lease: &&Lease| lease.pin != Pin::Own && (lease.owned.is_some() || lease.is_asked);
        !self.ends && !self.has_namesake && self.streams.iter().filter(has).count() < self.share()
    }

    /// Its share of the streams that are not pinned.
    fn share(&self) -> usize {
        let free = self.streams.iter().filter(|lease| lease.pin == Pin::Free).count();
        share(free, &self.members, &self.names.member)
    }

    /// Reads the reply to a command. `None`: it does not fit.
    pub(super) fn replied(&mut self, request: &Request, reply: &Value, now: Duration) -> Option<()> {
        self.asked_no_more(request);
        *self.refusal(request) = None;
        match &request.action {
            Action::Beat { lease, .. } => {
                let [released, members @ ..] = list(reply)? else { return None };
                let released = integer(released)?;
                let mut members: Vec<_> =
                    members.iter().map(|name| bytes(name).map(<[u8]>::to_vec)).collect::<Option<_>>()?;
                members.sort_unstable();
                if lease.is_zero() {
                    self.has_left = true;
                    return Some(());
                }
                self.beats_at = request.sent + BEATS_EVERY.min(self.names.lease / 4);
                self.saw(members, released, now);
            }
            Action::Take { only_pinned, .. } => match list(reply)? {
                [epoch, position, last, read, limit, failures, reason, failed] => {
                    let number = |value: &Value| u64::try_from(integer(value)?).ok();
                    let start = beginning(bytes(position)?, bytes(last)?, integer(read)).ok()?;
                    let reason = String::from_utf8_lossy(bytes(reason)?).into_owned();
                    let failed = entry_id(bytes(failed)?);
                    let (limit, failures) = (number(limit)?, number(failures)?);
                    let doubt = Doubt { limit, failures, failed, is_alone: false, reason };
                    self.taken(request, number(epoch)?, start, doubt, now);
                    self.saw_pin(request, self.may_be_own(request.stream, *only_pinned), now);
                }
                [why, left, who] => {
                    let lease = &mut self.streams[request.stream];
                    lease.may_be_taken = false;
                    let left = Duration::from_millis(u64::try_from(integer(left)?).unwrap_or_default());
                    let is_pinned = !bytes(who)?.is_empty();
                    let pin = if integer(why)? >= 0 {
                        lease.try_at = now + left + AFTER;
                        self.may_be_own(request.stream, *only_pinned)
                    } else if is_pinned {
                        lease.try_at = now + self.names.lease;
                        Pin::Other
                    } else {
                        Pin::Free
                    };
                    self.saw_pin(request, pin, now);
                }
                _ => return None,
            },
            Action::Keep { epoch, changed } => match done(reply)? {
                Ok(pin) => {
                    self.confirmed(changed.as_ref());
                    self.kept(request, *epoch, now);
                    self.saw_pin(request, pin, now);
                }
                Err(owner) => self.lose(request.stream, *epoch, changed.as_ref(), owner, now),
            },
            Action::Release { epoch, changed } => match done(reply)? {
                Ok(pin) => {
                    self.saw_pin(request, pin, now);
                    self.confirmed(changed.as_ref());
                    // One that was renounced meanwhile counts as lost.
                    self.report.streams_given_up += u64::from(self.free(request.stream, *epoch, now));
                    self.gave_up += 1;
                }
                Err(owner) => self.lose(request.stream, *epoch, changed.as_ref(), owner, now),
            },
        }
        Some(())
    }

    /// Notes that the server of these streams could not be reached.
    pub(super) fn faulted(&mut self, line: &[usize], fault: &Fault, now: Duration) {
        for stream in line {
            self.streams[*stream].faulted(fault, now);
        }
    }

    /// Notes that it was.
    pub(super) fn reached(&mut self, line: &[usize]) {
        for stream in line {
            self.streams[*stream].reached();
        }
    }

    /// Notes that a command has no reply: the connection was lost.
    pub(super) fn returned(&mut self, request: &Request) {
        self.asked_no_more(request);
        match &request.action {
            // How many were given up may be counted twice, which costs others a look.
            Action::Beat { released, .. } => self.gave_up += *released,
            Action::Take { .. } => self.streams[request.stream].may_be_taken = true,
            Action::Keep { epoch, changed } | Action::Release { epoch, changed } => {
                let mut changed = changed.clone();
                if let Some(commit) = changed.as_mut().and_then(|changed| changed.commit.as_mut()) {
                    commit.repeated = commit.entries;
                }
                self.put_back(request.stream, *epoch, changed);
            }
        }
    }

    /// Notes that the server did not execute a command, and why. Nothing about the stream is sent for a while.
    pub(super) fn refused(&mut self, request: &Request, error: Error, now: Duration) {
        self.pauses(request, error, now);
        self.unsent(request);
    }

    /// The same for one that the server executed, and that its replicas may not have.
    pub(super) fn unproven(&mut self, request: &Request, error: Error, now: Duration) {
        self.pauses(request, error, now);
        self.returned(request);
    }

    /// Whether the replicas have to have what a command changed: each commit, and all else until this member ends.
    pub(super) fn needs_proof(&self, request: &Request) -> bool {
        match &request.action {
            Action::Keep { changed: Some(changed), .. } | Action::Release { changed: Some(changed), .. }
                if changed.commit.is_some() =>
            {
                true
            }
            Action::Release { .. } => false,
            _ => !self.ends,
        }
    }

    fn pauses(&mut self, request: &Request, error: Error, now: Duration) {
        if self.refusal(request).replace(error.clone()).is_none() {
            self.errors.push_back(error);
        }
        if matches!(request.action, Action::Beat { .. }) {
            self.beats_at = now + TRIES_EVERY;
        } else {
            self.streams[request.stream].try_at = now + TRIES_EVERY;
        }
    }

    /// Notes that the server did not execute a command, which is sent again.
    pub(super) fn unsent(&mut self, request: &Request) {
        self.asked_no_more(request);
        match &request.action {
            Action::Beat { released, .. } => self.gave_up += *released,
            Action::Take { .. } => {}
            Action::Keep { epoch, changed } | Action::Release { epoch, changed } => {
                self.put_back(request.stream, *epoch, changed.clone());
            }
        }
    }

    /// Keeps what was not confirmed, to be sent again.
    fn put_back(&mut self, stream: usize, epoch: u64, changed: Option<Changed>) {
        match (self.streams[stream].of(epoch), changed) {
            (Some(owned), Some(changed)) => owned.put_back(changed),
            (_, changed) => self.fenced(changed.as_ref().and_then(|changed| changed.commit.as_ref())),
        }
    }

    fn confirmed(&mut self, changed: Option<&Changed>) {
        let Some(commit) = changed.and_then(|changed| changed.commit.as_ref()) else { return };
        self.report.committed += commit.entries;
        self.report.dead += commit.moved.len() as u64;
    }

    fn asked_no_more(&mut self, request: &Request) {
        if matches!(request.action, Action::Beat { .. }) {
            self.is_beating = false;
        } else {
            let lease = &mut self.streams[request.stream];
            (lease.is_asked, lease.under_way) = (false, 0);
        }
    }

    fn refusal(&mut self, request: &Request) -> &mut Option<Error> {
        match request.action {
            Action::Beat { .. } => &mut self.beat_refusal,
            _ => &mut self.streams[request.stream].refusal,
        }
    }

    /// Notes who is there, and gives up what is above this member's share.
    fn saw(&mut self, members: Vec<Vec<u8>>, released: i64, now: Duration) {
        let is_news = self.members != members || self.released != Some(released);
        if self.released.unwrap_or_default() / PINS_CHANGED != released / PINS_CHANGED {
            self.streams.iter_mut().for_each(|lease| lease.asks_pin = Some(now));
        }
        (self.members, self.released) = (members, Some(released));
        self.inherits_until.get_or_insert(now + self.names.lease);
        if is_news {
            for lease in self.streams.iter_mut().filter(|lease| lease.owned.is_none() && lease.refusal.is_none()) {
                lease.try_at = lease.try_at.min(now);
            }
        }
        let keeps = |lease: &Lease| {
            lease.pin != Pin::Own && lease.owned.as_ref().is_some_and(|owned| owned.gives_up_at.is_none())
        };
        let mut above = self.streams.iter().filter(|lease| keeps(lease)).count().saturating_sub(self.share());
        // First those of which the caller has nothing in hand.
        for is_done in [true, false] {
            for stream in (0..self.streams.len()).rev() {
                let lease = &mut self.streams[stream];
                let owned = lease.owned.as_mut().filter(|owned| lease.pin != Pin::Own && owned.gives_up_at.is_none());
                if above > 0
                    && let Some(owned) = owned.filter(|owned| !is_done || owned.is_done())
                {
                    owned.gives_up_at = Some(now + self.names.lease);
                    self.changes.push_back(Change::Revoked { stream });
                    above -= 1;
                }
            }
        }
    }

    /// The pin of a lease that is not pinned to another member. The server says that it is pinned to this one only if asked.
    fn may_be_own(&self, stream: usize, only_pinned: bool) -> Pin {
        if only_pinned || self.streams[stream].pin == Pin::Own { Pin::Own } else { Pin::Free }
    }

    /// Notes which member alone may take a lease. If it is another one, this one gives it up.
    fn saw_pin(&mut self, request: &Request, pin: Pin, now: Duration) {
        let stream = request.stream;
        let lease = &mut self.streams[stream];
        lease.pin = pin;
        // A command that was sent before does not know better.
        lease.asks_pin = lease.asks_pin.filter(|since| request.sent < *since);
        let owned = lease.owned.as_mut().filter(|owned| pin == Pin::Other && owned.gives_up_at.is_none());
        if let Some(owned) = owned {
            owned.gives_up_at = Some(now + self.names.lease);
            self.changes.push_back(Change::Revoked { stream });
        }
    }

    fn taken(&mut self, request: &Request, epoch: u64, start: Start, doubt: Doubt, now: Duration) {
        let stream = request.stream;
        let lease = &mut self.streams[stream];
        lease.may_be_taken = false;
        lease.try_at = now;
        lease.owned = Some(Owned::new(epoch, request.sent, start, doubt, now));
        self.report.streams_taken += 1;
        if self.ends {
            self.give_up(stream, now);
        } else {
            self.changes.push_back(Change::Assigned { stream });
            self.waiting.insert(stream);
        }
    }

    fn kept(&mut self, request: &Request, epoch: u64, now: Duration) {
        let lease = self.names.lease;
        let Some(owned) = self.streams[request.stream].of(epoch) else { return };
        if !owned.is_valid(lease, now) {
            // Nobody has taken it, but the caller may have been told that somebody could have: it begins again after the last commit.
            if let Some(at) = &mut owned.gives_up_at {
                *at = now;
                return;
            }
            self.lapse(request.stream, epoch, now);
            return;
        }
        owned.renewed = owned.renewed.max(request.sent);
    }

    /// Notes that the server has another lease of the stream, of this owner.
    fn lose(&mut self, stream: usize, epoch: u64, changed: Option<&Changed>, owner: &[u8], now: Duration) {
        if owner == self.names.member && self.streams[stream].of(epoch).is_some() {
            self.has_namesake = true;
        }
        self.fence(stream, epoch, changed.and_then(|changed| changed.commit.as_ref()), now);
    }

    /// Ends a lease that this member may no longer use, and still has at the server.
    fn lapse(&mut self, stream: usize, epoch: u64, now: Duration) {
        self.streams[stream].may_be_taken |= self.streams[stream].of(epoch).is_some();
        self.fence(stream, epoch, None, now);
    }

    /// Ends a lease that this member may no longer use.
    fn fence(&mut self, stream: usize, epoch: u64, commit: Option<&Commit>, now: Duration) {
        self.fenced(commit);
        if self.free(stream, epoch, now) {
            self.report.streams_lost += 1;
            self.changes.push_back(Change::Lost { stream });
        }
    }

    /// Forgets a lease. What the caller has committed since the last command comes too late. Returns whether this member had it.
    fn free(&mut self, stream: usize, epoch: u64, now: Duration) -> bool {
        let lease = &mut self.streams[stream];
        let had = lease.of(epoch).is_some();
        if had {
            lease.try_at = now;
            let commit = lease.end(epoch);
            self.fenced(commit.as_ref());
        }
        had
    }

    /// Counts a commit that has no effect.
    fn fenced(&mut self, commit: Option<&Commit>) {
        let (entries, repeated) = commit.map_or((0, 0), |commit| (commit.entries, commit.repeated));
        self.report.unknown += repeated;
        self.report.fenced += entries - repeated;
    }

    fn give_up(&mut self, stream: usize, at: Duration) {
        if let Some(owned) = &mut self.streams[stream].owned {
            owned.gives_up_at = Some(owned.gives_up_at.map_or(at, |before| before.min(at)));
        }
    }

    // For the caller's thread.

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self, now: Duration) -> Vec<Change> {
        let mut changes: Vec<_> = self.changes.drain(..).collect();
        let streams = &mut self.streams;
        self.waiting.retain(|stream| {
            let Some(owned) = streams[*stream].owned.as_mut().filter(|owned| owned.gives_up_at.is_none()) else {
                return false;
            };
            let start = owned.begin(now);
            changes.extend(start.map(|start| Change::Reads { stream: *stream, epoch: owned.epoch, start }));
            start.is_none()
        });
        changes
    }

    /// Whether [`take_changes`](Self::take_changes) or [`take_error`](Self::take_error) has something.
    pub(crate) fn has_news(&self, now: Duration) -> bool {
        let is_there = !self.changes.is_empty() || !self.errors.is_empty() || self.has_namesake;
        is_there || self.begins_at().is_some_and(|at| at <= now)
    }

    /// When a stream is read that waits.
    pub(crate) fn begins_at(&self) -> Option<Duration> {
        self.waiting.iter().filter_map(|stream| self.streams[*stream].owned.as_ref()?.begins_at()).min()
    }

    /// An error that the caller does not know.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.errors.pop_front()
    }

    /// Why a server cannot be reached, if that has been so for this time.
    pub(crate) fn outage(&self, most: Duration, now: Duration) -> Option<&Fault> {
        self.streams.iter().find_map(|lease| lease.outage(most, now))
    }

    /// The same, if only servers that cannot be reached have yet to reply to commits, or to the end of this member.
    pub(crate) fn last_outage(&self, most: Duration, now: Duration) -> Option<&Fault> {
        let mut rest = self.rest();
        let Some(first) = rest.next() else {
            // Only the list of members is left.
            return self.streams.get(self.home).filter(|_| self.leaves() && !self.has_left)?.outage(most, now);
        };
        let first = first.outage(most, now)?;
        rest.all(|lease| lease.outage(most, now).is_some()).then_some(first)
    }

    /// Forgets outages, of which the caller knows now: other attempts may succeed.
    pub(crate) fn forget_outages(&mut self) {
        self.streams.iter_mut().for_each(Lease::reached);
    }

    /// Whether another process uses the name of this member, and takes its streams from it.
    pub(crate) fn has_namesake(&self) -> bool {
        self.has_namesake
    }

    /// Whether the server refuses all that is left to do: commits, the end of leases, or that this member leaves.
    pub(crate) fn is_refused(&self) -> bool {
        let mut rest = self.rest().peekable();
        let is_left = rest.peek().is_some();
        (is_left && rest.all(|lease| lease.refusal.is_some())) || (self.leaves() && self.beat_refusal.is_some())
    }

    /// The leases whose commits, or whose end, the server has not confirmed.
    fn rest(&self) -> impl Iterator<Item = &Lease> {
        let is_done = |lease: &&Lease| if self.ends { lease.is_ended() } else { lease.is_settled() };
        self.streams.iter().filter(move |lease| !is_done(lease))
    }

    /// Why it does, of the first such stream. The caller knows it then.
    pub(crate) fn take_commit_refusal(&mut self) -> Option<Error> {
        let refusal = self.commit_refusal().cloned()?;
        self.errors.retain(|error| *error != refusal);
        Some(refusal)
    }

    fn commit_refusal(&self) -> Option<&Error> {
        let waits = |lease: &&Lease| lease.owned.as_ref().is_some_and(Owned::has_changed);
        self.streams.iter().filter(waits).find_map(|lease| lease.refusal.as_ref())
    }

    /// The most entries of the next batch of a stream.
    pub(crate) fn limit(&self, stream: usize) -> u64 {
        let Some(owned) = &self.streams[stream].owned else { return u64::MAX };
        match owned.doubt.limit {
            _ if self.has_failed_enough(owned) => 1,
            0 => u64::MAX,
            limit => limit,
        }
    }

    /// Whether an entry has failed so often that it is moved, if it is still the first one that is not committed.
    fn has_failed_enough(&self, owned: &Owned) -> bool {
        self.names.moves.as_ref().is_some_and(|(most, _)| owned.doubt.failures >= *most)
    }

    /// Notes that a batch is returned, if it may be. `epoch`: that of the lease when reading the stream began.
    pub(crate) fn hand_out(&mut self, stream: usize, epoch: u64, place: Place, entries: u64, now: Duration) -> HandOut {
        let has_failed = |owned: &Owned| self.has_failed_enough(owned) && owned.doubt.failed == Some(place.id);
        let moves = self.streams[stream].owned.as_ref().is_some_and(has_failed);
        let lease = &mut self.streams[stream];
        let is_asked = lease.is_asked;
        let Some(owned) = lease.of(epoch).filter(|owned| owned.gives_up_at.is_none() && owned.is_read()) else {
            return HandOut::Never;
        };
        if !owned.is_valid(self.names.lease, now) || !(moves || owned.is_told(place.id, is_asked)) {
            return HandOut::Later;
        }
        let number = owned.hand_out(place, entries);
        if moves {
            owned.bury(number, place.id, (place, 0));
            return HandOut::Moved;
        }
        self.report.handed_over += entries;
        HandOut::Now(Ticket { stream, epoch, number })
    }

    /// Gives up a lease under which the stream cannot be read, and takes it again after a while, if no other member does.
    pub(crate) fn renounce(&mut self, stream: usize, epoch: u64, now: Duration) {
        self.lapse(stream, epoch, now);
        self.streams[stream].try_at = now + TRIES_EVERY;
    }

    /// Commits a batch and all before it of its stream; with `part`, up to this place in it, after which it has as many entries.
    pub(crate) fn commit(&mut self, ticket: Ticket, part: Option<(Place, u64)>) {
        let lease = &mut self.streams[ticket.stream];
        if let Some(owned) = lease.of(ticket.epoch) {
            owned.commit(ticket.number, part);
        } else {
            self.report.fenced += lease.commit_late(ticket.epoch, ticket.number, part);
        }
    }

    /// Notes that a batch, or an entry of it, has failed: the stream is returned again from there.
    pub(crate) fn fail(&mut self, ticket: Ticket, failed: Failed, now: Duration) -> AfterFailure {
        let most = self.names.moves.as_ref().map(|(most, _)| *most);
        let Some(owned) = self.streams[ticket.stream].of(ticket.epoch) else { return AfterFailure::Nothing };
        let after = owned.fail(ticket.number, failed, most, now);
        if let AfterFailure::Again(entries) = after {
            self.report.failed += 1;
            self.report.repeated += entries;
            self.changes.push_back(Change::Failed { stream: ticket.stream });
            self.waiting.insert(ticket.stream);
        }
        after
    }

    /// Whether nobody else can have the stream of a batch. If somebody can, the caller undoes what it did with it: nothing more is
    /// returned of this lease, also if the server has renewed it meanwhile.
    pub(crate) fn check(&mut self, ticket: Ticket, now: Duration) -> bool {
        let lease = self.names.lease;
        let Some(owned) = self.streams[ticket.stream].of(ticket.epoch) else { return false };
        owned.is_lapsed |= !owned.is_valid(lease, now);
        !owned.is_lapsed
    }

    /// Whether a batch was neither committed nor forgotten.
    pub(crate) fn is_in_hand(&self, ticket: Ticket) -> bool {
        let owned = self.streams[ticket.stream].owned.as_ref().filter(|owned| owned.epoch == ticket.epoch);
        owned.is_some_and(|owned| owned.has(ticket.number))
    }

    /// The same, without a caller.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_valid(&self, ticket: Ticket, now: Duration) -> bool {
        let owned = self.streams[ticket.stream].owned.as_ref();
        owned.is_some_and(|owned| owned.epoch == ticket.epoch && owned.is_valid(self.names.lease, now))
    }

    /// The streams that this member owns and does not give up.
    pub(crate) fn assignment(&self) -> impl Iterator<Item = usize> + '_ {
        let keeps = |lease: &Lease| lease.owned.as_ref().is_some_and(|owned| owned.gives_up_at.is_none());
        self.streams.iter().enumerate().filter(move |(_, lease)| keeps(lease)).map(|(stream, _)| stream)
    }

    /// Whether the server has every commit.
    pub(crate) fn is_settled(&self) -> bool {
        self.streams.iter().all(Lease::is_settled)
    }

    /// The number of entries whose commit would be lost if the process ended now.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.streams.iter().map(Lease::unconfirmed).sum()
    }

    pub(crate) fn report(&self) -> ShardReport {
        let pending: u64 = self.streams.iter().filter_map(|lease| lease.owned.as_ref()).map(Owned::uncommitted).sum();
        let streams_owned = self.assignment().count() as u64;
        ShardReport { pending: self.report.pending + pending, streams_owned, ..self.report }
    }

    /// Sends immediately what the server has refused.
    pub(crate) fn try_now(&mut self, now: Duration) {
        for lease in &mut self.streams {
            if lease.refusal.take().is_some() {
                lease.try_at = now;
            }
        }
    }

    /// Begins to give everything up: what was returned and is not committed by now, the next owners return again.
    pub(crate) fn end(&mut self, now: Duration) {
        self.ends = true;
        self.try_now(now);
        for stream in 0..self.streams.len() {
            self.give_up(stream, now);
        }
    }

    /// Whether everything was given up, and the other members know.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_left
    }

    /// Notes that no reply comes any more. What was not sent stays pending.
    pub(crate) fn abandon(&mut self) {
        for lease in &mut self.streams {
            let Some(owned) = lease.owned.take() else { continue };
            let (entries, repeated) = owned.commit.as_ref().map_or((0, 0), |commit| (commit.entries, commit.repeated));
            self.report.unknown += repeated;
            self.report.pending += owned.uncommitted() + entries - repeated;
        }
    }
}

/// The pin of the lease, if the server did as requested; `Err`: whose the lease is. `None`: the reply does not fit.
fn done(reply: &Value) -> Option<std::result::Result<Pin, &[u8]>> {
    match integer(reply) {
        Some(1) => Some(Ok(Pin::Free)),
        Some(2) => Some(Ok(Pin::Own)),
        Some(3) => Some(Ok(Pin::Other)),
        Some(_) => None,
        None => bytes(reply).map(Err),
    }
}

/// Whether a reply gives a lease, or continues or ends it, as requested.
pub(super) fn is_granted(request: &Request, reply: &Value) -> bool {
    match request.action {
        Action::Beat { .. } => false,
        Action::Take { .. } => list(reply).is_some_and(|parts| parts.len() > 3),
        Action::Keep { .. } | Action::Release { .. } => integer(reply).is_some(),
    }
}

/// Why the lease that a reply gives to this member cannot be used: its position is none of headrace.
pub(super) fn unreadable(request: &Request, reply: &Value) -> Option<Error> {
    let [_, position, last, read, ..] = list(reply).filter(|_| matches!(request.action, Action::Take { .. }))? else {
        return None;
    };
    beginning(bytes(position)?, bytes(last)?, integer(read)).err()
}

/// Where to read a stream whose lease was taken. `position`: the last commit, or empty: nobody has committed, and the group is
/// behind the entry `last`, the `read`-th.
fn beginning(position: &[u8], last: &[u8], read: Option<i64>) -> Result<Start> {
    if position.is_empty() {
        let id = entry_id(last).unwrap_or_default();
        if id == EntryId::default() {
            return Ok(Start::Earliest);
        }
        let added = read.and_then(|read| u64::try_from(read).ok());
        return Ok(Start::After(Place { id, is_entry: false, added, removed: None }));
    }
    let parsed = Position::parse("position", &String::from_utf8_lossy(position))?;
    let place = parsed.streams().next().and_then(|key| parsed.get(key));
    place
        .map(Start::After)
        .ok_or_else(|| Error::config("position", "position is not a position of a reader: it names no stream"))
}

#[cfg(test)]
mod tests;
