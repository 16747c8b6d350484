//! The passes over connections that several sessions share: who asks next, and which connection each session uses.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::line::{Line, Pass, left};
use super::sessions::Sessions;
use crate::cluster::slot;
use crate::endpoint::{Endpoint, Node};
use crate::error::{Error, Fault, Result, code};
use crate::net::{ConnectError, Watch};
use crate::reading::{Assignment, Owners};

/// Sessions of slots of a cluster, of which several share a connection. The socket is in the line of the session that asked last.
#[derive(Debug)]
pub(super) struct Rounds {
    assignment: Assignment,
    owners: Owners,
    /// The slot of each session.
    slots: Vec<u16>,
    /// When to ask the nodes again for the owners of slots.
    asks_at: Option<Instant>,
}

/// What the passes over all connections came to.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) has_moved: bool,
    pub(super) pause: Option<Instant>,
}

impl Round {
    fn add(&mut self, pass: &Pass) {
        match pass {
            Pass::Moved => self.has_moved = true,
            Pass::Idle => {}
            Pass::Paused(until) => self.pause = Some(sooner(self.pause, *until)),
        }
    }
}

impl Rounds {
    /// The session of each endpoint is of the slot of its stream. At most `most` connections to each node; `block`: for how long the
    /// server may wait for entries.
    pub(super) fn new(endpoints: &[Endpoint], most: usize, block: Duration) -> Option<Self> {
        Some(Self {
            assignment: Assignment::new(most, block),
            owners: Owners::new(endpoints.first()?),
            slots: endpoints.iter().map(|endpoint| slot(endpoint.stream_key())).collect(),
            asks_at: None,
        })
    }

    /// One pass over each connection. Errors of one go to `failed`; the others go on.
    pub(super) fn run(
        &mut self,
        lines: &mut [Line],
        sessions: &mut Sessions,
        deadline: Option<Instant>,
        failed: &mut VecDeque<Error>,
        watch: &mut dyn Watch,
    ) -> Result<Round> {
        let begins = !sessions.has_begun();
        let mut round = Round::default();
        let mut note = |passed: Result<Pass>| match passed {
            Ok(pass) => {
                round.add(&pass);
                Ok(())
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                failed.push_back(error);
                Ok(())
            }
        };
        self.assignment.tidy();
        note(self.find_nodes(lines, sessions, watch))?;
        for place in 0..self.assignment.len() {
            if let Some(line) = lines.first_mut() {
                line.link.ask(watch)?;
            }
            let readers: Vec<usize> = self.assignment.order(place);
            let readers = readers.into_iter().filter(|at| sessions.is_active(*at));
            let readers: Vec<usize> = readers.filter(|at| !begins || !sessions.get(*at).has_begun()).collect();
            note(self.pass(place, &readers, lines, sessions, deadline, watch))?;
        }
        Ok(round)
    }

    /// The session of a batch that was taken, or the one whose turn it is, gets its next page ready while the caller works. A fault shows
    /// again in the next call.
    pub(super) fn read_ahead(&mut self, at: usize, lines: &mut [Line], sessions: &mut Sessions) {
        let Some(place) = self.assignment.place(at) else { return };
        let order = self.assignment.order(place);
        let Some(holder) = order.iter().copied().find(|at| lines[*at].link.is_open()) else { return };
        if is_busy(sessions, holder) {
            return;
        }
        let is_shared = order.len() > 1;
        let now = Instant::now();
        for next in order {
            let may_try = lines[next].link.next_try().is_none_or(|at| at <= now);
            if may_try && sessions.is_active(next) && request(sessions, next, is_shared, None) {
                self.give(place, holder, next, lines);
                let link = &mut lines[next].link;
                let _ = sessions.with(next, |session| link.send(session));
                return;
            }
        }
    }

    /// Gives each session that has none a connection to the node that has its slot.
    fn find_nodes(&mut self, lines: &mut [Line], sessions: &mut Sessions, watch: &mut dyn Watch) -> Result<Pass> {
        let is_lost = |at: &usize| sessions.is_active(*at) && self.assignment.place(*at).is_none();
        let lost: Vec<usize> = (0..self.slots.len()).filter(is_lost).collect();
        let unknown = lost.iter().copied().find(|at| self.owners.get(self.slots[*at]).is_none());
        let mut found = Ok(Pass::Idle);
        if let Some(at) = unknown {
            let now = Instant::now();
            let next = self.asks_at.max(lines[at].link.next_try());
            found = match next.filter(|next| *next > now) {
                Some(next) => Ok(Pass::Paused(next)),
                None => self.ask(at, lines, watch).map(|()| Pass::Moved),
            };
        }
        for at in lost {
            if let Some(node) = self.owners.get(self.slots[at]) {
                self.move_to(&node, at, lines, sessions, watch);
            }
        }
        found
    }

    /// Asks the nodes which has the slot of session `at`, and notes what they say of all slots. The time that this took is given to the
    /// connections that there are before they are asked again.
    fn ask(&mut self, at: usize, lines: &mut [Line], watch: &mut dyn Watch) -> Result<()> {
        let (link, slot, began) = (&mut lines[at].link, self.slots[at], Instant::now());
        let asked = self.owners.ask(link.endpoint(), slot, watch);
        self.asks_at = Some(Instant::now() + began.elapsed());
        let fault = match asked? {
            Ok(()) if self.owners.get(slot).is_some() => return Ok(()),
            Ok(()) => Fault::new(code::NO_SLOT, format!("the nodes say that no node has slot {slot}")),
            Err(ConnectError::Fault(fault)) => fault,
            Err(ConnectError::Interrupted) => return Err(Error::Interrupted),
        };
        link.endure(fault, watch)
    }

    /// The node has the slot of session `at`, which uses a connection to it from now on.
    fn move_to(&mut self, node: &Node, at: usize, lines: &mut [Line], sessions: &mut Sessions, watch: &mut dyn Watch) {
        lines[at].link.lead_to(node, watch);
        let place = self.assignment.assign(at, node);
        for member in self.assignment.order(place) {
            // The server may wait for entries of the session that was alone: the other one would have to wait, too.
            if member != at && !sessions.get(member).blocks_for().is_zero() {
                let link = &mut lines[member].link;
                sessions.with(member, |session| link.close(session, false));
            }
        }
    }

    /// One pass over a connection: connects, lets the next session ask, sends, receives. `readers`: the sessions that go on now, from
    /// the one whose turn it is.
    fn pass(
        &mut self,
        place: usize,
        readers: &[usize],
        lines: &mut [Line],
        sessions: &mut Sessions,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        let members = self.assignment.order(place);
        let Some(mut holder) = members.iter().copied().find(|at| lines[*at].link.is_open()) else {
            if self.lost(place, sessions) {
                self.assignment.turn_back(place);
                if let Some(next) = self.assignment.order(place).first().and_then(|at| lines[*at].link.next_try()) {
                    self.assignment.put_off(place, next);
                }
            }
            return self.connect(place, readers, lines, sessions, watch);
        };
        if !is_busy(sessions, holder) {
            let now = Instant::now();
            let is_shared = members.len() > 1;
            if let Some(until) = self.assignment.rests(place, now).filter(|_| is_shared) {
                return Ok(Pass::Paused(until));
            }
            let waits = if is_shared { Duration::ZERO } else { left(deadline) };
            let (mut asks, mut pause) = (None, None);
            for at in readers.iter().copied() {
                let line = &mut lines[at];
                // Its slot was refused a moment ago, or its entries wait for more.
                let next_try = line.link.next_try().filter(|next| *next > now);
                if let Some(until) = next_try.or_else(|| line.lingers(at, sessions, deadline)) {
                    pause = Some(sooner(pause, until));
                } else if request(sessions, at, is_shared, Some(waits)) {
                    asks = Some(at);
                    break;
                }
            }
            let Some(asks) = asks else { return Ok(pause.map_or(Pass::Idle, Pass::Paused)) };
            self.give(place, holder, asks, lines);
            holder = asks;
        }
        let link = &mut lines[holder].link;
        match sessions.with(holder, |session| link.step(session, watch)) {
            Ok(moved) => {
                if moved && !is_busy(sessions, holder) {
                    let has_more = sessions.get(holder).has_more();
                    self.assignment.answered(place, has_more, readers.len(), Instant::now());
                }
                Ok(if moved { Pass::Moved } else { Pass::Idle })
            }
            Err(fault) if fault.code == "MOVED" => self.follow(place, holder, fault, lines, sessions, watch),
            Err(fault) => {
                let is_refused = !code::is_away(&fault.code);
                let lost = sessions.with(holder, |session| link.lose(session, fault, watch));
                if is_refused {
                    // It is a matter of this session: the next one connects, and asks.
                    self.lost(place, sessions);
                }
                lost.map(|()| Pass::Moved)
            }
        }
    }

    /// There is no connection. If there was one, the next one may lead to another server. Returns whether there was one.
    fn lost(&mut self, place: usize, sessions: &mut Sessions) -> bool {
        let was_open = self.assignment.closed(place);
        if was_open {
            for at in self.assignment.order(place) {
                sessions.with(at, |session| session.disconnected());
            }
        }
        was_open
    }

    /// The connection is that of session `to` now, which has asked.
    fn give(&mut self, place: usize, holder: usize, to: usize, lines: &mut [Line]) {
        self.assignment.took_turn(place, to);
        if let Ok([from, to]) = lines.get_disjoint_mut([holder, to]) {
            from.link.pass_on(&mut to.link);
        }
    }

    /// Another node has the slot of session `at`. Replies to it may still come, so the connection is of no further use, to none of its
    /// sessions.
    fn follow(
        &mut self,
        place: usize,
        at: usize,
        fault: Fault,
        lines: &mut [Line],
        sessions: &mut Sessions,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        let link = &mut lines[at].link;
        sessions.with(at, |session| link.close(session, false));
        self.lost(place, sessions);
        self.assignment.remove(at);
        let (sender, may_follow) = (self.assignment.node(place).clone(), link.may_follow());
        match self.owners.target(&fault, &sender).filter(|_| may_follow) {
            Some(node) => self.move_to(&node, at, lines, sessions, watch),
            None => self.owners.doubt(&sender),
        }
        if may_follow { Ok(Pass::Moved) } else { lines[at].link.endure(fault, watch).map(|()| Pass::Moved) }
    }

    /// Connects, for the first of `readers` that may try.
    fn connect(
        &mut self,
        place: usize,
        readers: &[usize],
        lines: &mut [Line],
        sessions: &mut Sessions,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        let now = Instant::now();
        if let Some(at) = self.assignment.connects_at(place, now) {
            return Ok(Pass::Paused(at));
        }
        let has_failed = self.assignment.has_failed(place);
        let waits = |at: usize, lines: &mut [Line]| lines[at].link.next_try().filter(|next| *next > now);
        let Some(at) = readers.iter().copied().find(|at| waits(*at, lines).is_none()) else {
            let next = readers.iter().filter_map(|at| waits(*at, lines)).min();
            return Ok(next.map_or(Pass::Idle, Pass::Paused));
        };
        if has_failed && self.owners.get(self.slots[at]).is_none() {
            // Another node may have the slots by now.
            let asked = self.ask(at, lines, watch);
            if self.owners.get(self.slots[at]).is_none() {
                self.put_off(place, at, now, asked.is_err(), lines);
            }
            return asked.map(|()| Pass::Moved);
        }
        if has_failed {
            for member in self.assignment.order(place) {
                if let Some(node) = self.owners.get(self.slots[member]) {
                    self.move_to(&node, member, lines, sessions, watch);
                }
            }
            if self.assignment.place(at) != Some(place) {
                return Ok(Pass::Moved);
            }
        }
        let link = &mut lines[at].link;
        let connected = sessions.with(at, |session| link.connect(session, watch, |_, _, _| Ok(())));
        if link.is_open() {
            self.assignment.opened(place, at);
        } else {
            self.owners.lose(self.assignment.node(place));
            self.put_off(place, at, now, connected.is_err(), lines);
        }
        connected.map(|()| Pass::Moved)
    }

    /// Session `at` did not get a connection: the time that this took is given to other connections before the next try. After an error,
    /// another session tries: what was refused may concern this one alone.
    fn put_off(&mut self, place: usize, at: usize, began: Instant, is_error: bool, lines: &mut [Line]) {
        let next = Instant::now() + began.elapsed();
        self.assignment.failed(place, lines[at].link.next_try().map_or(next, |next_try| next_try.max(next)));
        if is_error {
            self.assignment.took_turn(place, at);
        }
    }
}

/// Whether the reply to a session is on its way, or here and not read to its end.
fn is_busy(sessions: &Sessions, at: usize) -> bool {
    let session = sessions.get(at);
    session.awaits_reply() || session.is_suspended()
}

/// Lets a session ask for what comes next. Returns whether it did.
fn request(sessions: &mut Sessions, at: usize, is_shared: bool, waits: Option<Duration>) -> bool {
    sessions.with(at, |session| {
        session.share(is_shared);
        session.request(waits);
        session.awaits_reply()
    })
}

fn sooner(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.min(other))
}
