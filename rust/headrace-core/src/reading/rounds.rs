//! The passes over connections that several sessions share: which session asks next, and which connection each session uses.

use std::time::Instant;

use super::assignment::Assignment;
use super::link::{Trouble, WATCH_EVERY};
use super::members::{Asked, Members};
use super::owners::Owners;
use super::pass::Pass;
use crate::cluster::slot;
use crate::endpoint::{Endpoint, Node};
use crate::error::{Error, Fault, code};
use crate::net::{ConnectError, Watch};

/// An error of one session: the others continue.
type Failed = (usize, Error);
type Result<T> = std::result::Result<T, Failed>;

/// Sessions for slots of a cluster, several of which share a connection. The link of the session that asked last holds the
/// socket.
#[derive(Debug)]
pub(crate) struct Rounds {
    assignment: Assignment,
    owners: Owners,
    /// The slot of each session.
    slots: Vec<u16>,
    /// When to ask the nodes again for the owners of slots.
    asks_at: Option<Instant>,
    /// The connection with which the next pass begins.
    first: usize,
}

/// The result of the passes over all connections.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) has_moved: bool,
    pub(crate) pause: Option<Instant>,
    /// At most one for each connection, and one for the nodes.
    pub(crate) failed: Vec<Failed>,
}

impl Round {
    fn add(&mut self, passed: Result<Pass>) -> std::result::Result<(), Error> {
        match passed {
            Ok(Pass::Moved) => self.has_moved = true,
            Ok(Pass::Idle) => {}
            Ok(Pass::Paused(until)) => self.pause = Some(sooner(self.pause, until)),
            Err((_, Error::Interrupted)) => return Err(Error::Interrupted),
            Err(failed) => self.failed.push(failed),
        }
        Ok(())
    }
}

impl Rounds {
    /// Each endpoint has a session, for the slot of its stream key. `assignment` distributes the connections.
    pub(crate) fn new(endpoints: &[Endpoint], assignment: Assignment) -> Option<Self> {
        Some(Self {
            assignment,
            owners: Owners::new(endpoints.first()?),
            slots: endpoints.iter().map(|endpoint| slot(endpoint.stream_key())).collect(),
            asks_at: None,
            first: 0,
        })
    }

    /// One pass over each connection. An error on one does not stop the others. After the deadline of the call, at most one
    /// attempt to connect is made or finished: the next pass begins with the connection after it.
    pub(crate) fn run(
        &mut self,
        members: &mut dyn Members,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Round, Error> {
        let mut round = Round::default();
        let began = Instant::now();
        self.assignment.tidy();
        round.add(self.find_nodes(members, watch))?;
        let total = self.assignment.len();
        for place in (self.first..self.first + total).map(|place| place % total) {
            members.link(0).ask(watch)?;
            // Only attempts to connect take this long.
            if began.elapsed() > WATCH_EVERY && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.first = place;
                break;
            }
            round.add(self.pass(place, members, watch))?;
        }
        Ok(round)
    }

    /// After a batch of session `at` was taken, the session whose turn it is requests its next page, so that the server prepares
    /// it while the caller works. No other session does, so that none with many entries gets ahead of others.
    pub(crate) fn read_ahead(&mut self, at: usize, members: &mut dyn Members) {
        let Some(place) = self.assignment.place(at) else { return };
        let Some(holder) = self.holder(place, members).filter(|holder| !members.is_busy(*holder)) else { return };
        let is_shared = self.assignment.order(place).len() > 1;
        let now = Instant::now();
        let active = self.active(place, members);
        let may_try = |at: &usize| members.link(*at).next_try().is_none_or(|next| next <= now);
        let Some(next) = active.into_iter().find(may_try) else { return };
        if members.request_ahead(next, is_shared) {
            self.assignment.took_turn(place, next);
            give(holder, next, members);
            members.send(next);
        }
    }

    /// Whether the session can use an open connection.
    pub(crate) fn is_connected(&self, at: usize, members: &mut dyn Members) -> bool {
        self.assignment.place(at).is_some_and(|place| self.holder(place, members).is_some())
    }

    /// Gives the session the connection that it uses, unless another session waits for a reply on it. Returns whether it has it
    /// now.
    pub(crate) fn lend(&mut self, at: usize, members: &mut dyn Members) -> bool {
        let Some(place) = self.assignment.place(at) else { return false };
        let Some(holder) = self.holder(place, members).filter(|holder| !members.is_busy(*holder)) else { return false };
        give(holder, at, members);
        true
    }

    /// The sessions of a connection that may continue now, starting with the one whose turn it is.
    fn active(&self, place: usize, members: &dyn Members) -> Vec<usize> {
        self.assignment.order(place).into_iter().filter(|at| members.is_active(*at)).collect()
    }

    /// The session whose link is open.
    fn holder(&self, place: usize, members: &mut dyn Members) -> Option<usize> {
        self.assignment.order(place).into_iter().find(|at| members.link(*at).is_open())
    }

    /// Gives each session without a connection one to the node that has its slot.
    fn find_nodes(&mut self, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
        let is_lost = |at: &usize| members.is_active(*at) && self.assignment.place(*at).is_none();
        let lost: Vec<usize> = (0..self.slots.len()).filter(is_lost).collect();
        let unknown = lost.iter().copied().find(|at| self.owners.get(self.slots[*at]).is_none());
        let mut found = Ok(Pass::Idle);
        if let Some(at) = unknown {
            let now = Instant::now();
            let next = self.asks_at.max(members.link(at).next_try());
            found = match next.filter(|next| *next > now) {
                Some(next) => Ok(Pass::Paused(next)),
                None => self.ask(at, members, watch).map(|()| Pass::Moved),
            };
        }
        for at in lost {
            if let Some(node) = self.owners.get(self.slots[at]) {
                self.move_to(&node, at, members, watch);
            }
        }
        found
    }

    /// Asks the nodes which of them has the slot of session `at`, and notes what they report for all slots. Before they are asked
    /// again, the existing connections get as much time as this took.
    fn ask(&mut self, at: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<()> {
        let (link, slot, began) = (members.link(at), self.slots[at], Instant::now());
        let settings = link.settings().map_err(|error| (at, error))?;
        let asked = self.owners.ask(link.endpoint(), &settings, slot, watch);
        self.asks_at = Some(Instant::now() + began.elapsed());
        let fault = match asked {
            Ok(()) if self.owners.get(slot).is_some() => return Ok(()),
            Ok(()) => Fault::new(code::NO_SLOT, format!("according to the nodes, no node has slot {slot}")),
            Err(ConnectError::Fault(fault)) => fault,
            Err(ConnectError::Interrupted) => return Err((at, Error::Interrupted)),
        };
        link.endure(fault, watch).map_err(|error| (at, error))
    }

    /// Moves session `at` to a connection to `node`, which has its slot.
    fn move_to(&mut self, node: &Node, at: usize, members: &mut dyn Members, watch: &mut dyn Watch) {
        members.link(at).lead_to(node, watch);
        let place = self.assignment.assign(at, node);
        for member in self.assignment.order(place) {
            // The server may be waiting for entries of a session that was alone: the new one would have to wait too.
            if member != at && members.blocks(member) {
                members.close(member);
            }
        }
    }

    /// One pass over a connection: connects, lets the next session ask, sends, receives.
    fn pass(&mut self, place: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
        let active = self.active(place, members);
        let Some(mut holder) = self.holder(place, members) else {
            if self.lost(place, members) {
                let last = self.assignment.turn_back(place);
                if let Some(next) = last.and_then(|at| members.link(at).next_try()) {
                    self.assignment.put_off(place, next);
                }
            }
            return self.connect(place, members, watch);
        };
        if !members.is_busy(holder) {
            let now = Instant::now();
            let is_shared = self.assignment.order(place).len() > 1;
            let rests = self.assignment.rests(place, now).filter(|_| is_shared);
            let takes_turns = members.takes_turns();
            let mut order = active.clone();
            // Without turns, the session that asked last comes last.
            if !takes_turns && let Some(last) = order.iter().position(|at| *at == holder) {
                order.rotate_left(last + 1);
            }
            let (mut asks, mut pause) = (None, None);
            for at in order {
                // Its slot was refused a moment ago, or its entries wait for more.
                let next_try = members.link(at).next_try().filter(|next| *next > now);
                match next_try.map_or_else(|| members.request(at, is_shared, rests), Asked::At) {
                    Asked::Yes => asks = Some(at),
                    Asked::No => continue,
                    Asked::At(until) => {
                        pause = Some(sooner(pause, until));
                        continue;
                    }
                }
                break;
            }
            let Some(asks) = asks else { return Ok(pause.map_or(Pass::Idle, Pass::Paused)) };
            if takes_turns {
                self.assignment.took_turn(place, asks);
            } else {
                self.assignment.asked(place, asks);
            }
            give(holder, asks, members);
            holder = asks;
        }
        match members.step(holder, watch) {
            Ok(false) => Ok(Pass::Idle),
            Ok(true) => {
                if !members.is_busy(holder)
                    && let Some(has_more) = members.answered(holder)
                {
                    self.assignment.answered(place, has_more, active.len(), Instant::now());
                }
                Ok(Pass::Moved)
            }
            Err(Trouble::Fault(fault)) if fault.code == "MOVED" => self.follow(place, holder, fault, members, watch),
            Err(Trouble::Fault(fault)) => {
                let is_refused = !code::is_away(&fault.code);
                let lost = members.lose(holder, fault, watch);
                if is_refused {
                    // The refusal concerns only this session: the next one connects, and asks.
                    self.lost(place, members);
                }
                lost.map(|()| Pass::Moved).map_err(|error| (holder, error))
            }
            Err(Trouble::Error(error)) => {
                members.close(holder);
                self.lost(place, members);
                Err((holder, error))
            }
        }
    }

    /// Notes that the connection is lost: the next one may lead to another server. Returns whether there was one.
    fn lost(&mut self, place: usize, members: &mut dyn Members) -> bool {
        let was_open = self.assignment.closed(place);
        if was_open {
            for at in self.assignment.order(place) {
                members.disconnected(at);
            }
        }
        was_open
    }

    /// Follows the slot of session `at` to another node. Replies to the session may still arrive, so none of the sessions on this
    /// connection can use it any longer.
    fn follow(
        &mut self,
        place: usize,
        at: usize,
        fault: Fault,
        members: &mut dyn Members,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        members.close(at);
        self.lost(place, members);
        self.assignment.remove(at);
        let (sender, may_follow) = (self.assignment.node(place).clone(), members.link(at).may_follow());
        match self.owners.target(&fault, &sender).filter(|_| may_follow) {
            Some(node) => self.move_to(&node, at, members, watch),
            None => self.owners.doubt(&sender),
        }
        if may_follow {
            return Ok(Pass::Moved);
        }
        members.link(at).endure(fault, watch).map(|()| Pass::Moved).map_err(|error| (at, error))
    }

    /// Connects for the first active session that may try.
    fn connect(&mut self, place: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
        let now = Instant::now();
        if let Some(at) = self.assignment.connects_at(place, now) {
            return Ok(Pass::Paused(at));
        }
        let has_failed = self.assignment.has_failed(place);
        let (mut first, mut next) = (None, None);
        for at in self.active(place, members) {
            let Some(until) = members.link(at).next_try().filter(|next| *next > now) else {
                first = Some(at);
                break;
            };
            next = Some(sooner(next, until));
        }
        let Some(at) = first else { return Ok(next.map_or(Pass::Idle, Pass::Paused)) };
        if has_failed && self.owners.get(self.slots[at]).is_none() {
            // Another node may have the slots by now.
            let asked = self.ask(at, members, watch);
            if self.owners.get(self.slots[at]).is_none() {
                self.put_off(place, at, now, asked.is_err(), members);
            }
            return asked.map(|()| Pass::Moved);
        }
        if has_failed {
            for member in self.assignment.order(place) {
                if let Some(node) = self.owners.get(self.slots[member]) {
                    self.move_to(&node, member, members, watch);
                }
            }
            if self.assignment.place(at) != Some(place) {
                return Ok(Pass::Moved);
            }
        }
        let connected = members.connect(at, &self.assignment.order(place), watch);
        if members.link(at).is_open() {
            self.assignment.opened(place, at);
        } else {
            self.owners.lose(self.assignment.node(place));
            self.put_off(place, at, now, connected.is_err(), members);
        }
        connected.map(|()| Pass::Moved).map_err(|error| (at, error))
    }

    /// Puts off connecting after session `at` did not get a connection: before the next attempt, other connections get as much
    /// time as this one took. After an error, another session tries: the refusal may concern only this one.
    fn put_off(&mut self, place: usize, at: usize, began: Instant, is_error: bool, members: &mut dyn Members) {
        let next = Instant::now() + began.elapsed();
        self.assignment.failed(place, members.link(at).next_try().map_or(next, |next_try| next_try.max(next)));
        if is_error {
            self.assignment.took_turn(place, at);
        }
    }
}

/// Gives the connection of session `holder` to session `to`.
fn give(holder: usize, to: usize, members: &mut dyn Members) {
    if holder != to {
        members.pass_on(holder, to);
    }
}

fn sooner(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.min(other))
}
