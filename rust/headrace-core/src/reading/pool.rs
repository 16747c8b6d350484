//! The connections of several sessions: which of them each session uses, which session asks next, and when to connect.
//!
//! A session finds its node, then uses a connection to it, alone or in turn with others:
//!
//! ```text
//!               owner known         may try           connected       a session asks
//! without node ────────────▶ closed ────────▶ opening ──────────▶ idle ───────────────▶ busy
//!      ▲                      ▲ ▲                │                 ▲                     │ │
//!      │                      │ └────────────────┘ failed: a pause └──── replies read ───┘ │
//!      │                      └────────── fault: a pause ──────────────────────────────────┤
//!      └────────────── MOVED: another node has the slot ───────────────────────────────────┘
//! ```
//!
//! Connections are opened side by side, and others are used in the meantime. So are the nodes of a cluster asked for its slots, and
//! sentinels for the master.

use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::assignment::Assignment;
use super::attempt::Attempted;
use super::channel::Channel;
use super::link::WATCH_EVERY;
use super::members::{Asked, Members};
use super::pass::Pass;
use super::trouble::Trouble;
use crate::cluster::{ClusterMap, Node, Redirect, Redirected, slot};
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, code};
use crate::net::{ConnectError, Interest, MasterCheck, Opening, Transport, Wanted, Watch, ask_any, rest};

/// How many connections to one node are opened at a time: a reader of a thousand slots must not open them all at once.
const MOST_OPENING: usize = 8;

/// An error of one session: the others continue.
type Failed = (usize, Error);
type Result<T> = std::result::Result<T, Failed>;

/// The connections of a reader, a consumer or a keeper: one; in a cluster, some to each node that has some of the streams. `F`:
/// what is found out on each new connection.
#[derive(Debug)]
pub(crate) struct Pool<F> {
    assignment: Assignment<Channel, Opening<Attempted<F>>>,
    /// `None`: there is one server, and one session.
    map: Option<ClusterMap>,
    /// The slot of each session.
    slots: Vec<u16>,
    /// The nodes are being asked for the owners of slots, for this session.
    asking: Option<(Opening<Answered>, usize)>,
    /// The sentinels are being asked whether the only server is still the master.
    checking: Option<Opening<MasterCheck>>,
    /// The nodes to which the current pass opens no further connection.
    full: Vec<Option<Node>>,
    /// The connection with which the next pass begins: the last pass ended before it, because the event loop had to have its turn.
    from: usize,
    /// How many connections there have been.
    connections: u64,
    /// How many waits of openings there have been.
    waits: u64,
}

/// A socket, and the events to wait for.
type Socket<'a> = (&'a mut Transport, Wanted);

/// What the nodes of a cluster answered: the map that they were asked with, and whether it has changed.
type Answered = (ClusterMap, std::result::Result<(), ConnectError>);

/// The result of a pass over all connections.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    /// Whether another pass may move more. If not, it is time to wait for the [sockets](Pool::sockets), until `until`.
    pub(crate) has_moved: bool,
    /// When to continue even if no socket is ready by then.
    pub(crate) until: Option<Instant>,
    /// At most one for each connection, and one for the nodes.
    pub(crate) failed: Vec<Failed>,
}

impl Advance {
    fn add(&mut self, pass: Result<Pass>) -> std::result::Result<(), Error> {
        match pass {
            Ok(Pass::Moved) => self.has_moved = true,
            Ok(Pass::Idle) => {}
            Ok(Pass::Paused(until)) => self.until = Some(sooner(self.until, until)),
            Err((_, Error::Interrupted)) => return Err(Error::Interrupted),
            Err(failed) => self.failed.push(failed),
        }
        Ok(())
    }
}

impl<F: 'static> Pool<F> {
    /// Each endpoint has a session, for the slot of its stream key. At most `most` connections to each node. `block`: how long
    /// the server would wait for entries.
    pub(crate) fn new(endpoints: &[Endpoint], most: usize, block: Duration) -> Self {
        Self {
            assignment: Assignment::new(most, block),
            map: endpoints
                .first()
                .filter(|first| first.cluster().is_some())
                .map(|first| ClusterMap::new(first.node_map())),
            slots: endpoints.iter().map(|endpoint| slot(endpoint.stream_key())).collect(),
            asking: None,
            checking: None,
            full: Vec::new(),
            from: 0,
            connections: 0,
            waits: 0,
        }
    }

    /// Does what can be done on each connection without waiting. An error on one does not stop the others.
    pub(crate) fn advance(
        &mut self,
        members: &mut dyn Members<F>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Advance, Error> {
        let mut passed = Advance::default();
        members.link(0).check_interrupt(watch)?;
        self.assignment.drop_empty();
        passed.add(self.find_nodes(members, watch))?;
        self.full.clear();
        let places = self.assignment.len();
        let from = std::mem::take(&mut self.from);
        for place in (0..places).map(|offset| (from + offset) % places) {
            if passed.has_moved && watch.yields() {
                self.from = place;
                return Ok(passed);
            }
            members.link(0).check_interrupt(watch)?;
            passed.add(self.pass(place, members, watch))?;
        }
        if !passed.has_moved && passed.failed.is_empty() {
            passed.add(self.check_silence(members, watch))?;
        }
        Ok(passed)
    }

    /// After a batch of session `at` was taken, the session whose turn it is requests its next page, so that the server prepares
    /// it while the caller works. No other session does, so that none with many entries gets ahead of others.
    pub(crate) fn read_ahead(&mut self, at: usize, members: &mut dyn Members<F>) {
        let Some(place) = self.idle_place(at, members) else { return };
        let is_shared = self.assignment.is_shared(place);
        let now = Instant::now();
        let active = self.active(place, members);
        let may_try = |at: &usize| members.link(*at).next_try().is_none_or(|next| next <= now);
        let Some(next) = active.into_iter().find(may_try) else { return };
        let Some(channel) = self.assignment.channel(place) else { return };
        if members.request_ahead(next, is_shared, channel.buffers()) {
            channel.asked();
            // A fault shows again in the next pass.
            let _ = members.link(next).send(channel);
            self.assignment.took_turn(place, next);
            self.give(place, next, members);
        }
    }

    /// Whether the connection of the session is being opened, or nodes are asked for the session.
    pub(crate) fn is_opening_for(&self, at: usize) -> bool {
        self.assignment.opens_for(at) || self.asking.as_ref().is_some_and(|(_, by)| *by == at)
    }

    /// Whether the session can use an open connection.
    pub(crate) fn is_connected(&self, at: usize) -> bool {
        self.assignment.place(at).is_some_and(|place| self.assignment.holder(place).is_some())
    }

    /// Whether the session has stopped in the middle of a reply that has arrived.
    pub(crate) fn is_suspended(&mut self, at: usize) -> bool {
        self.assignment.channels().any(|(channel, holder)| holder == at && channel.is_suspended())
    }

    /// The sockets on which the caller waits for replies, each with the events to wait for, and those of connections that are
    /// being opened, or over which others are asked, each with whether it waits to send.
    pub(crate) fn sockets<'a>(
        &'a mut self,
        members: &dyn Members<F>,
    ) -> (Vec<Socket<'a>>, Vec<(BorrowedFd<'a>, bool)>) {
        let (mut sockets, mut opening) = (Vec::new(), Vec::new());
        if self.is_any_active(members) {
            opening.extend(self.asking.iter().filter_map(|(asking, _)| asking.socket()));
        }
        for (channel, opens) in self.assignment.all() {
            if let Some((channel, _)) = channel.filter(|(_, at)| members.waits(*at)) {
                sockets.push(channel.wanted());
                opening.extend(self.checking.iter().filter_map(Opening::socket));
            }
            let goes_on = opens.filter(|(_, members_of)| members_of.iter().any(|at| members.is_active(*at)));
            opening.extend(goes_on.and_then(|(opens, _)| opens.socket()));
        }
        (sockets, opening)
    }

    /// The sockets for an event loop to wait for: those of [`sockets`](Self::sockets). `None`: bytes can be received without
    /// waiting.
    fn interests(&mut self, members: &dyn Members<F>) -> Option<Vec<Interest>> {
        let mut interests = Vec::new();
        if self.is_any_active(members) {
            interests.extend(self.asking.iter().filter_map(|(asking, _)| asking.interest()));
        }
        for (channel, opens) in self.assignment.all() {
            if let Some((channel, _)) = channel.filter(|(_, at)| members.waits(*at)) {
                interests.push(channel.interest()?);
                interests.extend(self.checking.iter().filter_map(Opening::interest));
            }
            let goes_on = opens.filter(|(_, members_of)| members_of.iter().any(|at| members.is_active(*at)));
            interests.extend(goes_on.and_then(|(opens, _)| opens.interest()));
        }
        Some(interests)
    }

    /// The sockets of all connections that are open.
    pub(crate) fn open_sockets(&mut self) -> Vec<Interest> {
        self.assignment.channels().map(|(channel, _)| channel.socket()).collect()
    }

    /// Waits until one of the sockets is ready, or until `until`.
    pub(crate) async fn wait(
        &mut self,
        members: &mut dyn Members<F>,
        until: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Error> {
        let now = Instant::now();
        if watch.defers() {
            let (sockets, until) =
                self.interests(members).map_or((Vec::new(), Some(now)), |interests| (interests, until));
            let rested = rest(sockets, until, watch).await;
            self.waited(members, now.elapsed());
            return rested;
        }
        let timeout = until.map_or(WATCH_EVERY, |until| until.saturating_duration_since(now).min(WATCH_EVERY));
        let (mut sockets, opening) = self.sockets(members);
        let is_interrupted = Transport::wait_any(&mut sockets, &opening, timeout);
        self.waited(members, now.elapsed());
        if is_interrupted && watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Notes that the caller waited for its replies.
    fn waited(&mut self, members: &dyn Members<F>, time: Duration) {
        self.awaited(members).for_each(|(channel, _)| channel.waited(time));
    }

    /// The connections on which the caller waits for replies, each with the session that uses it.
    fn awaited<'a>(&'a mut self, members: &'a dyn Members<F>) -> impl Iterator<Item = (&'a mut Channel, usize)> {
        self.assignment.channels().filter(|(_, at)| members.waits(*at))
    }

    /// Gives up the connection to a server that was silent for too long. If there is none, returns when there may be one.
    fn check_silence(&mut self, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        let now = Instant::now();
        let (mut until, mut silent) = (None, None);
        for (channel, at) in self.awaited(members) {
            match channel.patience(members.session(at), now) {
                Ok(patience) => until = now.checked_add(patience).map(|at| sooner(until, at)).or(until),
                Err(time) => silent = Some((at, time)),
            }
        }
        let Some((at, time)) = silent else { return Ok(until.map_or(Pass::Idle, Pass::Paused)) };
        let seconds = time.as_secs_f64();
        let message = format!("{} sent no complete reply for {seconds:.3} s", members.link(at).endpoint());
        self.lose(at, Fault::new(code::TIMEOUT, message), members, watch).map(|()| Pass::Moved)
    }

    /// Gives up the connection that session `at` uses because of this fault. Its requests are repeated on another one.
    fn lose(
        &mut self,
        at: usize,
        fault: Fault,
        members: &mut dyn Members<F>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Failed> {
        let Some(place) = self.assignment.place(at) else { return Ok(()) };
        let is_away = code::is_away(&fault.code);
        let lost = members.lose(at, fault, watch).map_err(|error| (at, error));
        self.end(place, members);
        // A refusal concerns only this session: the next one connects, and asks.
        if is_away && let Some(asked_last) = self.assignment.turn_back(place) {
            self.assignment.lost(place, asked_last);
        }
        lost
    }

    /// Ends all connections; `is_parents`: they belong to the process that this one was forked from.
    pub(crate) fn close(&mut self, members: &mut dyn Members<F>, is_parents: bool) {
        (self.asking, self.checking) = (None, None);
        for place in 0..self.assignment.len() {
            self.assignment.leave_opening(place);
            if is_parents && let Some(channel) = self.assignment.take(place) {
                channel.forget();
                self.assignment.order(place).for_each(|at| members.disconnected(at));
            }
            self.end(place, members);
        }
        if is_parents {
            (0..self.slots.len()).for_each(|at| members.link(at).forget());
        }
    }

    /// Ends the connections over which a server waits for entries.
    pub(crate) fn end_blocked(&mut self, members: &mut dyn Members<F>) {
        for place in 0..self.assignment.len() {
            if self.assignment.holder(place).is_some_and(|at| blocks(at, members)) {
                self.end(place, members);
            }
        }
    }

    /// Ends a connection, if there is one.
    fn end(&mut self, place: usize, members: &mut dyn Members<F>) {
        let Some(holder) = self.assignment.holder(place) else { return };
        if let Some(channel) = self.assignment.take(place) {
            channel.close(members.session(holder).awaits_reply());
        }
        self.checking = None;
        // The next one may lead to another server.
        self.assignment.order(place).for_each(|at| members.disconnected(at));
    }

    fn is_any_active(&self, members: &dyn Members<F>) -> bool {
        (0..self.slots.len()).any(|at| members.is_active(at))
    }

    /// The connection of session `at`, if it is open, and no reply is due on it.
    fn idle_place(&self, at: usize, members: &dyn Members<F>) -> Option<usize> {
        let place = self.assignment.place(at)?;
        self.assignment.holder(place).filter(|holder| !members.session(*holder).awaits_reply()).map(|_| place)
    }

    /// Gives the connection to a session. No reply may be due on it.
    fn give(&mut self, place: usize, to: usize, members: &mut dyn Members<F>) {
        let Some(from) = self.assignment.holder(place).filter(|holder| *holder != to) else { return };
        self.assignment.give(place, to);
        members.hand_over(from, to);
    }

    /// The sessions of a connection that may continue now, starting with the one whose turn it is.
    fn active(&self, place: usize, members: &dyn Members<F>) -> Vec<usize> {
        self.assignment.order(place).filter(|at| members.is_active(*at)).collect()
    }

    /// Gives each session without a connection one to the node that has its slot.
    fn find_nodes(&mut self, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        let asked = self.go_on_asking(members, watch);
        let Some(map) = &self.map else {
            (0..self.slots.len()).for_each(|at| _ = self.assignment.assign(at, None));
            return asked;
        };
        let is_lost = |at: &usize| members.is_active(*at) && self.assignment.place(*at).is_none();
        let lost: Vec<usize> = (0..self.slots.len()).filter(is_lost).collect();
        let unknown = lost.iter().copied().find(|at| map.owner(self.slots[*at]).is_none());
        for at in lost {
            self.move_to_owner(at, members, watch);
        }
        match unknown {
            Some(at) if self.asking.is_none() && asked.is_ok() => {
                let next = members.link(at).next_try().filter(|next| *next > Instant::now());
                next.map_or_else(|| self.ask_nodes(at, members), |next| Ok(Pass::Paused(next)))
            }
            _ => asked,
        }
    }

    /// Begins to ask the nodes which of them has the slot of session `at`, unless they are being asked.
    fn ask_nodes(&mut self, at: usize, members: &mut dyn Members<F>) -> Result<Pass> {
        let (Some(map), None) = (&self.map, &self.asking) else { return Ok(Pass::Idle) };
        let (mut map, slot, endpoint) = (map.clone(), self.slots[at], members.link(at).endpoint().clone());
        let settings = endpoint.settings().map_err(|error| (at, error))?;
        let asking = Opening::new(settings.connect_timeout, |mut watch, _| async move {
            let asked = ask_any(&mut map, &endpoint, &settings, slot, &mut watch).await.map(drop);
            (map, asked)
        });
        self.asking = Some((asking, at));
        Ok(Pass::Moved)
    }

    /// Continues to ask the nodes, and notes what they answer for all slots.
    fn go_on_asking(&mut self, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        let is_wanted = self.is_any_active(members);
        let Some((asking, at)) = self.asking.as_mut().filter(|_| is_wanted) else { return Ok(Pass::Idle) };
        let Poll::Ready((map, asked)) = asking.poll(&mut self.waits, watch) else {
            return Ok(Pass::Paused(asking.wakes()));
        };
        let (at, slot) = (*at, self.slots[*at]);
        self.asking = None;
        let fault = match asked {
            Ok(()) => {
                let is_known = map.owner(slot).is_some();
                // What redirects said in the meantime, they say again.
                self.map = Some(map);
                if is_known {
                    return Ok(Pass::Moved);
                }
                Fault::new(code::NO_SLOT, format!("according to the nodes, no node has slot {slot}"))
            }
            // As in `go_on_opening`.
            Err(ConnectError::Fault(_)) if !members.is_active(at) => return Ok(Pass::Moved),
            Err(ConnectError::Fault(fault)) => fault,
            Err(ConnectError::Interrupted) => return Err((at, Error::Interrupted)),
        };
        let scheduled = members.link(at).schedule_retry(fault, watch);
        if let Some(place) = self.assignment.place(at).filter(|place| self.assignment.holder(*place).is_none()) {
            self.failed(place, at, scheduled.is_err());
        }
        scheduled.map(|()| Pass::Moved).map_err(|error| (at, error))
    }

    /// The node that has the slot of session `at`, if known.
    fn owner(&self, at: usize) -> Option<Node> {
        self.map.as_ref()?.owner(self.slots[at]).cloned()
    }

    /// Moves session `at` to a connection to the node that has its slot, if known.
    fn move_to_owner(&mut self, at: usize, members: &mut dyn Members<F>, watch: &mut dyn Watch) {
        if let Some(node) = self.owner(at) {
            self.move_to(&node, at, members, watch);
        }
    }

    /// Moves session `at` to a connection to `node`, which has its slot.
    fn move_to(&mut self, node: &Node, at: usize, members: &mut dyn Members<F>, watch: &mut dyn Watch) {
        members.link(at).set_node(node, watch);
        let place = self.assignment.assign(at, Some(node));
        // The server may be waiting for entries of a session that was alone: the new one would have to wait too.
        if self.assignment.holder(place).is_some_and(|holder| holder != at && blocks(holder, members)) {
            self.end(place, members);
        }
    }

    /// One pass over a connection: connects, lets the next session ask, sends, receives.
    fn pass(&mut self, place: usize, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        let Some(mut holder) = self.assignment.holder(place) else { return self.connect(place, members, watch) };
        let mut active = self.active(place, members);
        let count = active.len();
        let is_shared = self.assignment.is_shared(place);
        if members.session(holder).awaits_reply() {
            if !is_shared
                && !active.is_empty()
                && let Some(channel) = self.assignment.channel(place)
            {
                members.want(holder, channel.buffers());
            }
        } else {
            let now = Instant::now();
            if self.assignment.order(place).all(|at| members.is_over(at)) {
                self.end(place, members);
                return Ok(Pass::Idle);
            }
            let rests = self.assignment.rests(place, now).filter(|_| is_shared);
            let takes_turns = members.takes_turns();
            // Without turns, the session that asked last comes last.
            if !takes_turns && let Some(last) = active.iter().position(|at| *at == holder) {
                active.rotate_left(last + 1);
            }
            let Some(channel) = self.assignment.channel(place) else { return Ok(Pass::Idle) };
            let (mut asks, mut pause) = (None, None);
            for at in active {
                // Its slot was refused a moment ago, or its entries wait for more.
                let next_try = members.link(at).next_try().filter(|next| *next > now);
                let request = || members.request(at, is_shared, rests, channel.buffers());
                match next_try.map_or_else(request, Asked::At) {
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
            channel.asked();
            if takes_turns {
                self.assignment.took_turn(place, asks);
            } else {
                self.assignment.asked(place, asks);
            }
            self.give(place, asks, members);
            holder = asks;
        }
        let next_check = match self.check_server(holder, members, watch) {
            Ok(next) => next,
            Err(switched) => return self.lose(holder, switched, members, watch).map(|()| Pass::Moved),
        };
        let Some(channel) = self.assignment.channel(place) else { return Ok(Pass::Idle) };
        match members.step(holder, channel, watch) {
            Ok(false) => Ok(next_check.map_or(Pass::Idle, Pass::Paused)),
            Ok(true) => {
                if !members.session(holder).awaits_reply()
                    && let Some(has_more) = members.answered(holder)
                {
                    self.assignment.answered(place, has_more, count, Instant::now());
                }
                Ok(Pass::Moved)
            }
            Err(Trouble::Fault(fault)) if fault.code == "MOVED" && self.map.is_some() => {
                self.follow(place, holder, fault, members, watch)
            }
            Err(Trouble::Fault(fault)) => self.lose(holder, fault, members, watch).map(|()| Pass::Moved),
            Err(Trouble::Error(error)) => {
                self.end(place, members);
                Err((holder, error))
            }
        }
    }

    /// Begins to ask the sentinels if it is time, or continues. Returns when to continue. Fails if they name another master.
    fn check_server(
        &mut self,
        at: usize,
        members: &mut dyn Members<F>,
        watch: &dyn Watch,
    ) -> std::result::Result<Option<Instant>, Fault> {
        let link = members.link(at);
        if self.checking.is_none() {
            self.checking = link.begin_check();
        }
        if let Some(checking) = &mut self.checking {
            let Poll::Ready(check) = checking.poll(&mut self.waits, watch) else { return Ok(Some(checking.wakes())) };
            self.checking = None;
            link.checked(check)?;
        }
        Ok(link.next_check())
    }

    /// Follows the slot of session `at` to another node. Replies to the session may still arrive, so none of the sessions on this
    /// connection can use it any longer.
    fn follow(
        &mut self,
        place: usize,
        at: usize,
        fault: Fault,
        members: &mut dyn Members<F>,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        self.end(place, members);
        self.assignment.remove(at);
        let may_follow = members.link(at).may_follow();
        if let (Some(map), Some(sender)) = (&mut self.map, self.assignment.node(place)) {
            let redirect = Redirect::within(&fault.message);
            match map.redirected(self.slots[at], redirect.as_ref(), sender) {
                Redirected::Goes(node) if may_follow => self.move_to(&node, at, members, watch),
                // After the most redirects in a row the nodes are asked, too.
                _ => map.doubt(self.slots[at], sender),
            }
        }
        if may_follow {
            return Ok(Pass::Moved);
        }
        members.link(at).schedule_retry(fault, watch).map(|()| Pass::Moved).map_err(|error| (at, error))
    }

    /// Connects for the first active session that may try.
    fn connect(&mut self, place: usize, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        if self.assignment.opening(place).is_some() {
            return self.go_on_opening(place, members, watch);
        }
        let now = Instant::now();
        let waits_for = self.assignment.waits_for(place).and_then(|at| members.link(at).next_try());
        if let Some(next) = waits_for.filter(|next| *next > now) {
            return Ok(Pass::Paused(next));
        }
        let may_have_moved = self.map.is_some() && self.assignment.has_failed(place);
        let (mut first, mut next) = (None, None);
        for at in self.active(place, members) {
            let Some(until) = members.link(at).next_try().filter(|next| *next > now) else {
                first = Some(at);
                break;
            };
            next = Some(sooner(next, until));
        }
        let Some(at) = first else { return Ok(next.map_or(Pass::Idle, Pass::Paused)) };
        if may_have_moved && self.owner(at).is_none() {
            // Another node may have the slots by now.
            return self.ask_nodes(at, members);
        }
        if may_have_moved {
            for member in self.assignment.order(place).collect::<Vec<_>>() {
                self.move_to_owner(member, members, watch);
            }
            if self.assignment.place(at) != Some(place) {
                return Ok(Pass::Moved);
            }
        }
        let node = self.assignment.node(place);
        if self.full.iter().any(|full| full.as_ref() == node) {
            return Ok(Pass::Idle);
        }
        if self.assignment.opens_to(node) >= MOST_OPENING {
            self.full.push(node.cloned());
            return Ok(Pass::Idle);
        }
        let sharing: Vec<usize> = self.assignment.order(place).collect();
        self.assignment.opens(place, at, members.open(at, &sharing));
        self.go_on_opening(place, members, watch)
    }

    /// Continues with the connection that is being opened, if a session needs it now.
    fn go_on_opening(&mut self, place: usize, members: &mut dyn Members<F>, watch: &mut dyn Watch) -> Result<Pass> {
        let is_wanted = self.assignment.order(place).any(|at| members.is_active(at));
        let Some((opening, at)) = self.assignment.opening(place).filter(|_| is_wanted) else { return Ok(Pass::Idle) };
        let Poll::Ready(attempted) = opening.poll(&mut self.waits, watch) else {
            return Ok(Pass::Paused(opening.wakes()));
        };
        let at = *at;
        self.assignment.leave_opening(place);
        // The session does not need the connection now, another one does: that one tries itself.
        if attempted.has_failed() && !members.is_active(at) {
            return Ok(Pass::Moved);
        }
        match members.opened(at, attempted, watch) {
            Ok(Some(channel)) => {
                self.connections += 1;
                self.assignment.opened(place, at, channel.numbered(self.connections));
                Ok(Pass::Moved)
            }
            failed => {
                if let (Some(map), Some(node)) = (&mut self.map, self.assignment.node(place)) {
                    map.lost(node);
                }
                self.failed(place, at, failed.is_err());
                failed.map(|_| Pass::Moved).map_err(|error| (at, error))
            }
        }
    }

    /// Notes that session `at` did not get a connection. After an error, the next attempt is for another session: the refusal may
    /// concern only this one.
    fn failed(&mut self, place: usize, at: usize, is_error: bool) {
        self.assignment.failed(place, at);
        if is_error {
            self.assignment.took_turn(place, at);
        }
    }
}

/// Whether the server waits for entries before it replies to the session.
fn blocks<F>(at: usize, members: &dyn Members<F>) -> bool {
    !members.session(at).blocks_for().is_zero()
}

fn sooner(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.min(other))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::super::buffers::Buffers;
    use super::super::exchange::Exchange;
    use super::super::link::Link;
    use super::super::outage::Outage;
    use super::*;
    use crate::endpoint::{Form, OptionValue};
    use crate::net::{Mock, NeverInterrupted, Readiness, ServerLookup};

    const HOUR: Duration = Duration::from_secs(3600);

    /// How many bytes it accepts, and what it has sent.
    #[derive(Debug, Default)]
    struct Server {
        accepts: usize,
        sent: Vec<u8>,
    }

    impl Mock for Arc<Mutex<Server>> {
        fn receive(&mut self, buf: &mut [u8]) -> std::result::Result<usize, Fault> {
            let mut server = self.lock().unwrap();
            let count = server.sent.len().min(buf.len());
            server.sent.drain(..count).zip(buf).for_each(|(byte, to)| *to = byte);
            Ok(count)
        }

        fn send(&mut self, bytes: &[u8]) -> std::result::Result<usize, Fault> {
            let mut server = self.lock().unwrap();
            let count = server.accepts.min(bytes.len());
            server.accepts -= count;
            Ok(count)
        }

        fn wait(&mut self, _: bool, _: Duration) -> Readiness {
            unreachable!("a pass waits")
        }
    }

    /// Asks again as soon as a reply was read.
    #[derive(Debug, Default)]
    struct Session {
        is_due: bool,
    }

    impl Exchange for Session {
        fn awaits_reply(&self) -> bool {
            self.is_due
        }

        fn answer(&mut self, buffers: &mut Buffers) -> std::result::Result<bool, Fault> {
            self.is_due = buffers.take_reply()?.is_none();
            Ok(!self.is_due)
        }

        fn disconnected(&mut self) {
            self.is_due = false;
        }
    }

    /// One session. `silence`: how long its server may take for a reply.
    struct Only {
        link: Link,
        session: Session,
        server: Arc<Mutex<Server>>,
        silence: Duration,
        /// What connecting finds out about its server.
        servers: Option<ServerLookup>,
        /// Whether it connects to the server of its endpoint.
        is_real: bool,
    }

    impl Members<()> for Only {
        fn link(&mut self, _: usize) -> &mut Link {
            &mut self.link
        }

        fn session(&self, _: usize) -> &dyn Exchange {
            &self.session
        }

        fn is_active(&self, _: usize) -> bool {
            true
        }

        fn request(&mut self, _: usize, _: bool, _: Option<Instant>, buffers: &mut Buffers) -> Asked {
            buffers.out.extend_from_slice(b"PING\r\n");
            self.session.is_due = true;
            Asked::Yes
        }

        fn open(&mut self, _: usize, _: &[usize]) -> Opening<Attempted<()>> {
            if self.is_real {
                return self.link.open(());
            }
            let (server, silence) = (Box::new(Arc::clone(&self.server)), self.silence);
            let connected = Ok(Some((Channel::new(Transport::mock(server), silence), ())));
            let (endpoint, servers) =
                (self.link.endpoint().clone(), self.servers.take().unwrap_or(ServerLookup::Fixed));
            Opening::new(HOUR, |_, _| async move { Attempted { connected, endpoint, servers } })
        }

        fn opened(
            &mut self,
            _: usize,
            attempted: Attempted<()>,
            watch: &mut dyn Watch,
        ) -> std::result::Result<Option<Channel>, Error> {
            Ok(self.link.opened(attempted, watch)?.map(|(channel, ())| channel))
        }

        fn step(
            &mut self,
            _: usize,
            channel: &mut Channel,
            watch: &mut dyn Watch,
        ) -> std::result::Result<bool, Trouble> {
            self.link.step(channel, &mut self.session, watch).map_err(Trouble::Fault)
        }

        fn answered(&mut self, _: usize) -> Option<bool> {
            None
        }

        fn disconnected(&mut self, _: usize) {
            self.session.disconnected();
        }
    }

    fn pool(silence: Duration) -> (Pool<()>, Only) {
        pool_of(&[("host", "h"), ("stream_key", "s"), ("topology", "single")], silence)
    }

    fn pool_of(given: &[(&str, &str)], silence: Duration) -> (Pool<()>, Only) {
        let given = given.iter().map(|(name, text)| ((*name).to_owned(), OptionValue::text(text)));
        let endpoint = Endpoint::new(given, Form::Text).unwrap();
        let pool = Pool::new(std::slice::from_ref(&endpoint), 1, Duration::ZERO);
        let link = Link::new(endpoint, Outage::new(None), Arc::default());
        let (session, server) = (Session::default(), Arc::default());
        (pool, Only { link, session, server, silence, servers: None, is_real: false })
    }

    #[test]
    fn a_pass_tells_what_to_wait_for_and_does_not_wait() {
        let (mut pool, mut only) = pool(HOUR);
        let mut advance = |only: &mut Only, moves: bool, writable: &[bool]| {
            let began = Instant::now();
            let passed = pool.advance(only, &mut NeverInterrupted).unwrap();
            assert_eq!((passed.has_moved, passed.failed.len()), (moves, 0));
            let wanted: Vec<bool> = pool.sockets(only).0.iter().map(|(_, wanted)| wanted.writable).collect();
            assert_eq!(wanted, writable);
            // Until then the server may be silent.
            let until = passed.until.map(|until| until >= began && until <= Instant::now() + HOUR);
            assert_eq!(until, (!moves).then_some(true));
        };
        advance(&mut only, true, &[]);
        advance(&mut only, false, &[true]);
        only.server.lock().unwrap().accepts = 3;
        advance(&mut only, true, &[true]);
        only.server.lock().unwrap().accepts = 100;
        advance(&mut only, true, &[false]);
        advance(&mut only, false, &[false]);
        only.server.lock().unwrap().sent.extend_from_slice(b"+PO");
        advance(&mut only, true, &[false]);
        only.server.lock().unwrap().sent.extend_from_slice(b"NG\r\n");
        advance(&mut only, true, &[]);
        advance(&mut only, true, &[false]);
    }

    #[test]
    fn a_pass_gives_up_a_server_that_is_silent_for_too_long() {
        let (mut pool, mut only) = pool(Duration::ZERO);
        let server = Arc::clone(&only.server);
        server.lock().unwrap().accepts = usize::MAX;
        let mut advance = || pool.advance(&mut only, &mut NeverInterrupted).unwrap();
        // After a reply, a connection is replaced once without an error.
        for step in ["connects", "asks", "reads", "asks", "gives up", "connects", "asks"] {
            if step == "reads" {
                server.lock().unwrap().sent.extend_from_slice(b"+PONG\r\n");
            }
            let passed = advance();
            assert_eq!((passed.has_moved, passed.failed.len()), (true, 0), "{step}");
        }
        let failed = advance().failed;
        assert!(matches!(&failed[..], [(0, Error::Connection { .. })]), "{failed:?}");
    }

    #[test]
    fn a_pass_does_not_wait_for_a_server_that_does_not_say_what_it_is() {
        let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = silent.local_addr().unwrap().port().to_string();
        let given = [("host", "127.0.0.1"), ("port", &*port), ("stream_key", "s"), ("connect_timeout", "60")];
        let (mut pool, mut only) = pool_of(&given, HOUR);
        assert!(only.link.endpoint().is_undecided());
        only.is_real = true;
        let began = Instant::now();
        let passed = pool.advance(&mut only, &mut NeverInterrupted).unwrap();
        assert_eq!((passed.has_moved, passed.failed.len(), pool.sockets(&only).1.len()), (false, 0, 1));
        assert!(passed.until.is_some_and(|until| until <= Instant::now() + HOUR));
        assert!(began.elapsed() < Duration::from_secs(60), "a pass waited for the server");
    }

    #[test]
    fn a_pass_does_not_wait_for_a_silent_sentinel() {
        let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let node = silent.local_addr().unwrap().to_string();
        let given = [("nodes", &*node), ("sentinel_master", "m"), ("stream_key", "s")];
        let (mut pool, mut only) = pool_of(&given, HOUR);
        // It may take 60 s to connect to the sentinel in place of the one that was lost.
        let took = Duration::from_secs(30);
        only.servers = Some(ServerLookup::without_sentinel(took));
        only.server.lock().unwrap().accepts = 100;
        let began = Instant::now();
        let mut advance = |only: &mut Only, moves: bool| {
            let passed = pool.advance(only, &mut NeverInterrupted).unwrap();
            assert_eq!((passed.has_moved, passed.failed.len()), (moves, 0));
            (passed.until, pool.sockets(only).1.len())
        };
        advance(&mut only, true);
        advance(&mut only, true);
        let (until, others) = advance(&mut only, false);
        assert_eq!(others, 1, "the sentinel's socket");
        assert!(until.is_some_and(|until| until <= Instant::now() + 2 * took));
        only.server.lock().unwrap().sent.extend_from_slice(b"+PONG\r\n");
        advance(&mut only, true);
        assert!(began.elapsed() < took, "a pass waited for the sentinel");
    }
}
