//! The leases of a member: what it owns, what it wants, and what the caller has done. No I/O and no clock.
//!
//! The keeper asks what to send and brings the replies; the caller's thread asks what has changed, and notes what it returns and
//! commits.

use std::collections::VecDeque;
use std::mem::{replace, take};
use std::time::Duration;

use redis::Value;

use super::lease::{Lease, Owned};
use super::report::ShardReport;
use super::request::{Action, Commit, LeaseNames, Request};
use super::share::share;
use crate::error::Error;
use crate::reading::{Place, Position, Start};
use crate::resp::value::{bytes, integer, list};
use crate::resp::{EntryId, entry_id};

/// How often a member says that it is there, at most: others see that it came or left, and that leases are free.
const BEATS_EVERY: Duration = Duration::from_millis(500);
/// How long it waits after a refusal before it asks again.
const TRIES_EVERY: Duration = Duration::from_secs(1);
/// Other members' clocks say when a lease ends; it is tried this much later.
const AFTER: Duration = Duration::from_millis(10);

/// A change of what this member owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// It owns a stream from now on, and reads it from here.
    Assigned { stream: usize, epoch: u64, start: Start },
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
}

#[derive(Debug)]
pub(crate) struct Leases {
    names: LeaseNames,
    leases: Vec<Lease>,
    /// All members, ascending, as the server last said. Empty: it has not said.
    members: Vec<Vec<u8>>,
    /// When to say that this member is there.
    beats_at: Duration,
    is_beating: bool,
    /// Whether the server refused the list of members, and the caller knows.
    is_beat_refused: bool,
    /// How many leases this member has given up since it last said so.
    gave_up: u64,
    /// How often any member had given up a lease when the server last said.
    released: Option<i64>,
    changes: VecDeque<Change>,
    error: Option<Error>,
    report: ShardReport,
    /// Whether all leases are given up, and this member leaves.
    ends: bool,
    has_left: bool,
}

impl Leases {
    /// Knows no lease. `streams`: their number.
    pub(crate) fn new(names: LeaseNames, streams: usize) -> Self {
        Self {
            names,
            leases: (0..streams).map(|_| Lease::new()).collect(),
            members: Vec::new(),
            beats_at: Duration::ZERO,
            is_beating: false,
            is_beat_refused: false,
            gave_up: 0,
            released: None,
            changes: VecDeque::new(),
            error: None,
            report: ShardReport::default(),
            ends: false,
            has_left: false,
        }
    }

    pub(crate) fn names(&self) -> &LeaseNames {
        &self.names
    }

    // For the keeper. A line is the streams of one session; the first one has the list of members too.

    /// The time until there is something to send about these streams.
    pub(super) fn left(&self, line: &[usize], now: Duration) -> Duration {
        let beats =
            (line.contains(&0) && !self.is_beating && !self.has_left).then(|| self.beats_at.saturating_sub(now));
        let takes = self.may_take();
        let of_streams = line.iter().filter_map(|stream| self.due(*stream, takes, now));
        of_streams.chain(beats).min().unwrap_or(Duration::MAX)
    }

    /// The next command about these streams.
    pub(super) fn take(&mut self, line: &[usize], now: Duration) -> Option<Request> {
        if line.contains(&0) && !self.is_beating && !self.has_left && self.beats_at <= now {
            // It leaves after it has given everything up, so that others find what is free.
            let leaves = self.ends && self.leases.iter().all(|lease| lease.owned.is_none() && !lease.is_asked);
            self.is_beating = true;
            let lease = if leaves { Duration::ZERO } else { self.names.lease };
            let action = Action::Beat { lease, released: take(&mut self.gave_up) };
            return Some(Request { stream: 0, action, sent: now });
        }
        let takes = self.may_take();
        // Each member begins elsewhere: those that come together do not ask for the same streams.
        let rank = self.members.iter().position(|member| *member == self.names.member).unwrap_or_default();
        let first = rank * line.len() / self.members.len().max(1);
        let turns = (first..first + line.len()).map(|at| line[at % line.len()]);
        let stream = turns.into_iter().find(|stream| self.due(*stream, takes, now) == Some(Duration::ZERO))?;
        let lease = &mut self.leases[stream];
        lease.is_asked = true;
        let action = match &mut lease.owned {
            None => Action::Take,
            Some(owned)
                if owned.gives_up_at.is_some_and(|at| at <= now)
                    || (owned.gives_up_at.is_some() && owned.is_done()) =>
            {
                Action::Release { epoch: owned.epoch, commit: owned.commit.take() }
            }
            Some(owned) => Action::Keep { epoch: owned.epoch, commit: owned.commit.take() },
        };
        Some(Request { stream, action, sent: now })
    }

    /// When there is something to do about a stream. `takes`: whether this member may take one more.
    fn due(&self, stream: usize, takes: bool, now: Duration) -> Option<Duration> {
        let lease = &self.leases[stream];
        if lease.is_asked {
            return None;
        }
        let Some(owned) = &lease.owned else { return takes.then(|| lease.try_at.saturating_sub(now)) };
        let until_tried = lease.try_at.saturating_sub(now);
        let until_renewal = (owned.renewed + self.names.lease / 3).saturating_sub(now);
        let until_given_up =
            owned.gives_up_at.map(|at| if owned.is_done() { Duration::ZERO } else { at.saturating_sub(now) });
        let until_commit = owned.commit.as_ref().map(|_| Duration::ZERO);
        let first = until_given_up.into_iter().chain(until_commit).fold(until_renewal, Duration::min);
        Some(first.max(until_tried))
    }

    /// Whether this member has less than its share, also if all it has asked for is granted.
    fn may_take(&self) -> bool {
        let has = |lease: &&Lease| lease.owned.is_some() || lease.is_asked;
        !self.ends && self.leases.iter().filter(has).count() < self.share()
    }

    fn share(&self) -> usize {
        let pinned = self.leases.iter().filter(|lease| lease.is_pinned).count();
        share(self.leases.len() - pinned, &self.members, &self.names.member)
    }

    /// Reads the reply to a command. `None`: it does not fit.
    pub(super) fn replied(&mut self, request: &Request, reply: &Value, now: Duration) -> Option<()> {
        self.asked_no_more(request);
        *self.is_refused(request) = false;
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
            Action::Take => match list(reply)? {
                [epoch, position, last, read] => {
                    let epoch = u64::try_from(integer(epoch)?).ok()?;
                    let start = beginning(bytes(position)?, bytes(last)?, integer(read))?;
                    self.taken(request, epoch, start, now);
                }
                [why, left, _] => {
                    let lease = &mut self.leases[request.stream];
                    lease.is_pinned = integer(why)? < 0;
                    let left = Duration::from_millis(u64::try_from(integer(left)?).unwrap_or_default());
                    lease.try_at = now + if lease.is_pinned { self.names.lease } else { left + AFTER };
                }
                _ => return None,
            },
            Action::Keep { epoch, commit } => match integer(reply)? {
                1 => self.kept(request, *epoch, commit.as_ref()),
                0 => self.lose(request.stream, *epoch, commit.as_ref(), now),
                _ => return None,
            },
            Action::Release { epoch, commit } => match integer(reply)? {
                1 => {
                    self.report.committed += commit.as_ref().map_or(0, |commit| commit.entries);
                    self.free(request.stream, *epoch, now);
                    self.report.streams_given_up += 1;
                    self.gave_up += 1;
                    // Others learn of it now.
                    self.beats_at = now;
                }
                0 => self.lose(request.stream, *epoch, commit.as_ref(), now),
                _ => return None,
            },
        }
        Some(())
    }

    /// Notes that a command has no reply: the connection was lost.
    pub(super) fn returned(&mut self, request: Request) {
        self.asked_no_more(&request);
        match request.action {
            // How many were given up may be counted twice, which costs others a look.
            Action::Beat { released, .. } => self.gave_up += released,
            Action::Take => {}
            Action::Keep { epoch, commit } | Action::Release { epoch, commit } => {
                if let (Some(commit), Some(owned)) = (commit, self.leases[request.stream].of(epoch)) {
                    owned.put_back(commit);
                }
            }
        }
    }

    /// Notes that the server did not execute a command, and why. Nothing about the stream is sent for a while.
    pub(super) fn refused(&mut self, request: Request, error: Error, now: Duration) {
        let (stream, is_beat) = (request.stream, matches!(request.action, Action::Beat { .. }));
        let was_refused = replace(self.is_refused(&request), true);
        self.unsent(request);
        if is_beat {
            self.beats_at = now + TRIES_EVERY;
        } else {
            self.leases[stream].try_at = now + TRIES_EVERY;
        }
        if !was_refused {
            self.error.get_or_insert(error);
        }
    }

    /// Notes that the server did not execute a command, which is sent again.
    pub(super) fn unsent(&mut self, request: Request) {
        let stream = request.stream;
        let repeated = match &request.action {
            Action::Keep { commit: Some(commit), .. } | Action::Release { commit: Some(commit), .. } => {
                Some(commit.repeated)
            }
            _ => None,
        };
        self.returned(request);
        let commit = self.leases[stream].owned.as_mut().and_then(|owned| owned.commit.as_mut());
        if let (Some(repeated), Some(commit)) = (repeated, commit) {
            commit.repeated = repeated;
        }
    }

    fn asked_no_more(&mut self, request: &Request) {
        match request.action {
            Action::Beat { .. } => self.is_beating = false,
            _ => self.leases[request.stream].is_asked = false,
        }
    }

    fn is_refused(&mut self, request: &Request) -> &mut bool {
        match request.action {
            Action::Beat { .. } => &mut self.is_beat_refused,
            _ => &mut self.leases[request.stream].is_refused,
        }
    }

    /// Notes who is there, and gives up what is above this member's share.
    fn saw(&mut self, members: Vec<Vec<u8>>, released: i64, now: Duration) {
        let is_news = self.members != members || self.released != Some(released);
        (self.members, self.released) = (members, Some(released));
        if is_news {
            for lease in self.leases.iter_mut().filter(|lease| lease.owned.is_none() && !lease.is_refused) {
                lease.try_at = lease.try_at.min(now);
            }
        }
        let keeps = |lease: &Lease| lease.owned.as_ref().is_some_and(|owned| owned.gives_up_at.is_none());
        let mut above = self.leases.iter().filter(|lease| keeps(lease)).count().saturating_sub(self.share());
        // First those of which the caller has nothing in hand.
        for is_done in [true, false] {
            for stream in (0..self.leases.len()).rev() {
                let owned = self.leases[stream].owned.as_mut().filter(|owned| owned.gives_up_at.is_none());
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

    fn taken(&mut self, request: &Request, epoch: u64, start: Start, now: Duration) {
        let stream = request.stream;
        let lease = &mut self.leases[stream];
        lease.is_pinned = false;
        lease.try_at = now;
        lease.owned = Some(Owned::new(epoch, request.sent));
        self.report.streams_taken += 1;
        if self.ends {
            self.give_up(stream, now);
        } else {
            self.changes.push_back(Change::Assigned { stream, epoch, start });
        }
    }

    fn kept(&mut self, request: &Request, epoch: u64, commit: Option<&Commit>) {
        self.report.committed += commit.map_or(0, |commit| commit.entries);
        if let Some(owned) = self.leases[request.stream].of(epoch) {
            owned.renewed = owned.renewed.max(request.sent);
        }
    }

    /// Notes that the server has another lease of the stream.
    fn lose(&mut self, stream: usize, epoch: u64, commit: Option<&Commit>, now: Duration) {
        let Some(owned) = self.leases[stream].of(epoch) else { return };
        for commit in [commit, owned.commit.as_ref()].into_iter().flatten() {
            self.report.unknown += commit.repeated;
            self.report.fenced += commit.entries - commit.repeated;
        }
        self.report.streams_lost += 1;
        self.free(stream, epoch, now);
        self.changes.push_back(Change::Lost { stream });
    }

    fn free(&mut self, stream: usize, epoch: u64, now: Duration) {
        let lease = &mut self.leases[stream];
        if lease.of(epoch).is_some() {
            lease.owned = None;
            lease.try_at = now;
        }
    }

    fn give_up(&mut self, stream: usize, at: Duration) {
        if let Some(owned) = &mut self.leases[stream].owned {
            owned.gives_up_at = Some(owned.gives_up_at.map_or(at, |before| before.min(at)));
        }
    }

    // For the caller's thread.

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.changes.drain(..).collect()
    }

    /// Whether [`take_changes`](Self::take_changes) or [`take_error`](Self::take_error) has something.
    pub(crate) fn has_news(&self) -> bool {
        !self.changes.is_empty() || self.error.is_some()
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Notes that a batch is returned, if it may be. `epoch`: that of the lease when reading the stream began.
    pub(crate) fn hand_out(&mut self, stream: usize, epoch: u64, place: Place, entries: u64, now: Duration) -> HandOut {
        let lease = self.names.lease;
        let Some(owned) = self.leases[stream].of(epoch).filter(|owned| owned.gives_up_at.is_none()) else {
            return HandOut::Never;
        };
        if owned.valid_until(lease) <= now {
            return HandOut::Later;
        }
        self.report.handed_over += entries;
        HandOut::Now(Ticket { stream, epoch, number: owned.hand_out(place, entries) })
    }

    /// Commits a batch and all before it of its stream; with `part`, up to this place in it, after which it has as many entries.
    /// `entries`: those of the batch.
    pub(crate) fn commit(&mut self, ticket: Ticket, entries: u64, part: Option<(Place, u64)>) {
        match self.leases[ticket.stream].of(ticket.epoch) {
            Some(owned) => owned.commit(ticket.number, part),
            None => self.report.fenced += entries - part.map_or(0, |(_, left)| left),
        }
    }

    /// Whether nobody else can have the stream of a batch.
    pub(crate) fn is_valid(&self, ticket: Ticket, now: Duration) -> bool {
        let owned = self.leases[ticket.stream].owned.as_ref();
        owned.is_some_and(|owned| owned.epoch == ticket.epoch && now < owned.valid_until(self.names.lease))
    }

    /// The streams that this member owns and does not give up.
    pub(crate) fn assignment(&self) -> impl Iterator<Item = usize> + '_ {
        let keeps = |lease: &Lease| lease.owned.as_ref().is_some_and(|owned| owned.gives_up_at.is_none());
        self.leases.iter().enumerate().filter(move |(_, lease)| keeps(lease)).map(|(stream, _)| stream)
    }

    /// Whether the server has every commit.
    pub(crate) fn is_settled(&self) -> bool {
        self.leases
            .iter()
            .all(|lease| lease.owned.as_ref().is_none_or(|owned| owned.commit.is_none() && !lease.is_asked))
    }

    /// The number of entries whose commit would be lost if the process ended now.
    pub(crate) fn unconfirmed(&self) -> u64 {
        let waiting = |lease: &Lease| {
            lease.owned.as_ref().and_then(|owned| owned.commit.as_ref()).map_or(0, |commit| commit.entries)
        };
        self.leases.iter().map(waiting).sum()
    }

    pub(crate) fn report(&self) -> ShardReport {
        let pending = self.leases.iter().filter_map(|lease| lease.owned.as_ref()).map(Owned::uncommitted).sum();
        ShardReport { pending, ..self.report }
    }

    /// Begins to give everything up: what was returned and is not committed by now, the next owners return again.
    pub(crate) fn end(&mut self, now: Duration) {
        self.ends = true;
        for stream in 0..self.leases.len() {
            self.give_up(stream, now);
        }
        self.beats_at = now;
    }

    /// Whether everything was given up, and the other members know.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_left
    }

    /// Notes that no reply comes any more.
    pub(crate) fn abandon(&mut self) {
        for lease in &mut self.leases {
            let Some(owned) = lease.owned.take() else { continue };
            if let Some(commit) = owned.commit {
                self.report.unknown += commit.entries;
            }
        }
    }
}

/// Where to read a stream whose lease was taken. `position`: the last commit, or empty: nobody has committed, and the group is
/// behind the entry `last`, the `read`-th.
fn beginning(position: &[u8], last: &[u8], read: Option<i64>) -> Option<Start> {
    if position.is_empty() {
        let id = entry_id(last)?;
        if id == EntryId::default() {
            return Some(Start::Earliest);
        }
        let added = read.and_then(|read| u64::try_from(read).ok());
        return Some(Start::After(Place { id, is_entry: false, added, removed: None }));
    }
    let position = Position::parse("position", std::str::from_utf8(position).ok()?).ok()?;
    let key = position.streams().next()?;
    position.get(key).map(Start::After)
}
