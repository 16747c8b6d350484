//! The connections of several sessions: which of them each session uses, which session asks next, and when to connect.
//!
//! A session finds its node, then uses a connection to it, alone or in turn with others:
//!
//! ```text
//!               owner known          connected        a session asks
//! without node ────────────▶ closed ──────────▶ idle ───────────────▶ busy
//!      ▲                      ▲ ▲ │              ▲                     │ │
//!      │                      │ └─┘ failed:      └──── replies read ───┘ │
//!      │                      │     a pause                              │
//!      │                      └────────── fault: a pause ────────────────┤
//!      └────────────── MOVED: another node has the slot ─────────────────┘
//! ```

use std::time::{Duration, Instant};

use super::assignment::Assignment;
use super::channel::Channel;
use super::link::WATCH_EVERY;
use super::members::{Asked, Members};
use super::pass::Pass;
use super::trouble::Trouble;
use crate::cluster::{ClusterMap, Node, Redirect, Redirected, slot};
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, code};
use crate::net::{ConnectError, Transport, Wanted, Watch, ask_any, block_on};

/// An error of one session: the others continue.
type Failed = (usize, Error);
type Result<T> = std::result::Result<T, Failed>;

/// The connections of a reader, a consumer or a keeper: one; in a cluster, some to each node that has some of the streams.
#[derive(Debug)]
pub(crate) struct Pool {
    assignment: Assignment<Channel>,
    /// `None`: there is one server, and one session.
    map: Option<ClusterMap>,
    /// The slot of each session.
    slots: Vec<u16>,
    /// When to ask the nodes again for the owners of slots.
    asks_at: Option<Instant>,
    /// When to connect again: before the next attempt, other connections get as much time as the last one took.
    connects_at: Option<Instant>,
    /// The connection with which the next pass begins.
    first: usize,
}

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

impl Pool {
    /// Each endpoint has a session, for the slot of its stream key. At most `most` connections to each node. `block`: how long the
    /// server would wait for entries.
    pub(crate) fn new(endpoints: &[Endpoint], most: usize, block: Duration) -> Self {
        Self {
            assignment: Assignment::new(most, block),
            map: endpoints
                .first()
                .filter(|first| first.cluster().is_some())
                .map(|first| ClusterMap::new(first.node_map())),
            slots: endpoints.iter().map(|endpoint| slot(endpoint.stream_key())).collect(),
            asks_at: None,
            connects_at: None,
            first: 0,
        }
    }

    /// Does what can be done on each connection without waiting for its replies; only connecting waits. An error on one does not stop
    /// the others. After the deadline of the call, at most one attempt to connect is made or finished: the next pass begins with
    /// the connection after it.
    pub(crate) fn advance(
        &mut self,
        members: &mut dyn Members,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Advance, Error> {
        let mut passed = Advance::default();
        let began = Instant::now();
        members.link(0).ask(watch)?;
        self.assignment.tidy();
        passed.add(self.find_nodes(members, watch))?;
        let total = self.assignment.len();
        for place in (self.first..self.first + total).map(|place| place % total) {
            members.link(0).ask(watch)?;
            // Only attempts to connect take this long.
            if began.elapsed() > WATCH_EVERY && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.first = place;
                break;
            }
            passed.add(self.pass(place, members, watch))?;
        }
        if !passed.has_moved && passed.failed.is_empty() {
            passed.add(self.check_silence(members, watch))?;
        }
        Ok(passed)
    }

    /// After a batch of session `at` was taken, the session whose turn it is requests its next page, so that the server prepares
    /// it while the caller works. No other session does, so that none with many entries gets ahead of others.
    pub(crate) fn read_ahead(&mut self, at: usize, members: &mut dyn Members) {
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

    /// Whether the session can use an open connection.
    pub(crate) fn is_connected(&self, at: usize) -> bool {
        self.assignment.place(at).is_some_and(|place| self.assignment.holder(place).is_some())
    }

    /// Whether the session has stopped in the middle of a reply that has arrived.
    pub(crate) fn is_suspended(&mut self, at: usize) -> bool {
        self.assignment.channels().any(|(channel, holder)| holder == at && channel.is_suspended())
    }

    /// Gives the session the connection that it uses, unless another session waits for a reply on it.
    pub(crate) fn lend(&mut self, at: usize, members: &mut dyn Members) -> Option<&mut Channel> {
        let place = self.idle_place(at, members)?;
        self.give(place, at, members);
        self.assignment.channel(place)
    }

    /// The sockets on which the caller waits for replies, each with the events to wait for.
    pub(crate) fn sockets<'a>(&'a mut self, members: &'a dyn Members) -> Vec<(&'a mut Transport, Wanted)> {
        self.awaited(members).map(|(channel, _)| channel.wanted()).collect()
    }

    /// Waits until one of the sockets is ready, or until `until`.
    pub(crate) fn wait(
        &mut self,
        members: &dyn Members,
        until: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Error> {
        let now = Instant::now();
        let timeout = until.map_or(WATCH_EVERY, |until| until.saturating_duration_since(now).min(WATCH_EVERY));
        let is_interrupted = Transport::wait_any(&mut self.sockets(members), &[], timeout);
        self.waited(members, now.elapsed());
        if is_interrupted && watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Notes that the caller waited for its replies.
    fn waited(&mut self, members: &dyn Members, time: Duration) {
        self.awaited(members).for_each(|(channel, _)| channel.waited(time));
    }

    /// The connections on which the caller waits for replies, each with the session that uses it.
    fn awaited<'a>(&'a mut self, members: &'a dyn Members) -> impl Iterator<Item = (&'a mut Channel, usize)> {
        self.assignment.channels().filter(|(_, at)| members.waits(*at))
    }

    /// Gives up the connection to a server that was silent for too long. If there is none, returns when there may be one.
    fn check_silence(&mut self, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
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
    pub(crate) fn lose(
        &mut self,
        at: usize,
        fault: Fault,
        members: &mut dyn Members,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Failed> {
        let Some(place) = self.assignment.place(at) else { return Ok(()) };
        let is_away = code::is_away(&fault.code);
        let lost = members.lose(at, fault, watch).map_err(|error| (at, error));
        self.end(place, members);
        // A refusal concerns only this session: the next one connects, and asks.
        if is_away {
            let asked_last = self.assignment.turn_back(place);
            if let Some(next) = asked_last.and_then(|at| members.link(at).next_try()) {
                self.assignment.put_off(place, next);
            }
        }
        lost
    }

    /// Ends all connections; `is_parents`: they belong to the process that this one was forked from.
    pub(crate) fn close(&mut self, members: &mut dyn Members, is_parents: bool) {
        for place in 0..self.assignment.len() {
            if is_parents && let Some(channel) = self.assignment.take(place) {
                channel.forget();
                self.assignment.order(place).for_each(|at| members.disconnected(at));
            }
            self.end(place, members);
        }
        (0..self.slots.len()).for_each(|at| members.link(at).close(is_parents));
    }

    /// Ends the connections over which a server waits for entries.
    pub(crate) fn end_blocked(&mut self, members: &mut dyn Members) {
        for place in 0..self.assignment.len() {
            if self.assignment.holder(place).is_some_and(|at| blocks(at, members)) {
                self.end(place, members);
            }
        }
    }

    /// Ends a connection, if there is one.
    fn end(&mut self, place: usize, members: &mut dyn Members) {
        let Some(holder) = self.assignment.holder(place) else { return };
        if let Some(channel) = self.assignment.take(place) {
            channel.close(members.session(holder).awaits_reply());
        }
        // The next one may lead to another server.
        self.assignment.order(place).for_each(|at| members.disconnected(at));
    }

    /// The connection of session `at`, if it is open, and no reply is due on it.
    fn idle_place(&self, at: usize, members: &dyn Members) -> Option<usize> {
        let place = self.assignment.place(at)?;
        self.assignment.holder(place).filter(|holder| !members.session(*holder).awaits_reply()).map(|_| place)
    }

    /// Gives the connection to a session. No reply may be due on it.
    fn give(&mut self, place: usize, to: usize, members: &mut dyn Members) {
        let Some(from) = self.assignment.holder(place).filter(|holder| *holder != to) else { return };
        self.assignment.give(place, to);
        members.hand_over(from, to);
    }

    /// The sessions of a connection that may continue now, starting with the one whose turn it is.
    fn active(&self, place: usize, members: &dyn Members) -> Vec<usize> {
        self.assignment.order(place).filter(|at| members.is_active(*at)).collect()
    }

    /// Gives each session without a connection one to the node that has its slot.
    fn find_nodes(&mut self, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
        let Some(map) = &self.map else {
            (0..self.slots.len()).for_each(|at| _ = self.assignment.assign(at, None));
            return Ok(Pass::Idle);
        };
        let is_lost = |at: &usize| members.is_active(*at) && self.assignment.place(*at).is_none();
        let lost: Vec<usize> = (0..self.slots.len()).filter(is_lost).collect();
        let unknown = lost.iter().copied().find(|at| map.owner(self.slots[*at]).is_none());
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
            self.move_to_owner(at, members, watch);
        }
        found
    }

    /// Asks the nodes which of them has the slot of session `at`, and notes what they report for all slots. Before they are asked
    /// again, the existing connections get as much time as this took.
    fn ask(&mut self, at: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<()> {
        let Some(map) = &mut self.map else { return Ok(()) };
        let (link, slot, began) = (members.link(at), self.slots[at], Instant::now());
        let settings = link.settings().map_err(|error| (at, error))?;
        let asked = block_on(ask_any(map, link.endpoint(), &settings, slot, watch));
        self.asks_at = Some(Instant::now() + began.elapsed());
        let fault = match asked {
            Ok(_) if map.owner(slot).is_some() => return Ok(()),
            Ok(_) => Fault::new(code::NO_SLOT, format!("according to the nodes, no node has slot {slot}")),
            Err(ConnectError::Fault(fault)) => fault,
            Err(ConnectError::Interrupted) => return Err((at, Error::Interrupted)),
        };
        link.endure(fault, watch).map_err(|error| (at, error))
    }

    /// The node that has the slot of session `at`, if known.
    fn owner(&self, at: usize) -> Option<Node> {
        self.map.as_ref()?.owner(self.slots[at]).cloned()
    }

    /// Moves session `at` to a connection to the node that has its slot, if known.
    fn move_to_owner(&mut self, at: usize, members: &mut dyn Members, watch: &mut dyn Watch) {
        if let Some(node) = self.owner(at) {
            self.move_to(&node, at, members, watch);
        }
    }

    /// Moves session `at` to a connection to `node`, which has its slot.
    fn move_to(&mut self, node: &Node, at: usize, members: &mut dyn Members, watch: &mut dyn Watch) {
        members.link(at).lead_to(node, watch);
        let place = self.assignment.assign(at, Some(node));
        // The server may be waiting for entries of a session that was alone: the new one would have to wait too.
        if self.assignment.holder(place).is_some_and(|holder| holder != at && blocks(holder, members)) {
            self.end(place, members);
        }
    }

    /// One pass over a connection: connects, lets the next session ask, sends, receives.
    fn pass(&mut self, place: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
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
        let Some(channel) = self.assignment.channel(place) else { return Ok(Pass::Idle) };
        match members.step(holder, channel, watch) {
            Ok(false) => Ok(Pass::Idle),
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
        members.link(at).endure(fault, watch).map(|()| Pass::Moved).map_err(|error| (at, error))
    }

    /// Connects for the first active session that may try.
    fn connect(&mut self, place: usize, members: &mut dyn Members, watch: &mut dyn Watch) -> Result<Pass> {
        let now = Instant::now();
        let put_off = self.assignment.connects_at(place, now).max(self.connects_at.filter(|at| *at > now));
        if let Some(at) = put_off {
            return Ok(Pass::Paused(at));
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
            let asked = self.ask(at, members, watch);
            if self.owner(at).is_none() {
                self.put_off(place, at, now, asked.is_err(), members);
            }
            return asked.map(|()| Pass::Moved);
        }
        if may_have_moved {
            for member in self.assignment.order(place).collect::<Vec<_>>() {
                self.move_to_owner(member, members, watch);
            }
            if self.assignment.place(at) != Some(place) {
                return Ok(Pass::Moved);
            }
        }
        let sharing: Vec<usize> = self.assignment.order(place).collect();
        match members.connect(at, &sharing, watch) {
            Ok(Some(channel)) => {
                self.assignment.opened(place, at, channel);
                Ok(Pass::Moved)
            }
            failed => {
                if let (Some(map), Some(node)) = (&mut self.map, self.assignment.node(place)) {
                    map.lost(node);
                }
                self.put_off(place, at, now, failed.is_err(), members);
                failed.map(|_| Pass::Moved).map_err(|error| (at, error))
            }
        }
    }

    /// Puts off connecting after session `at` did not get a connection. Another connection is tried next; after an error, for another
    /// session: the refusal may concern only this one.
    fn put_off(&mut self, place: usize, at: usize, began: Instant, is_error: bool, members: &mut dyn Members) {
        let (now, total) = (Instant::now(), self.assignment.len());
        if total > 1 {
            (self.connects_at, self.first) =
                (now.checked_add(now.saturating_duration_since(began)), (place + 1) % total);
        }
        self.assignment.failed(place, members.link(at).next_try().unwrap_or(now));
        if is_error {
            self.assignment.took_turn(place, at);
        }
    }
}

/// Whether the server waits for entries before it replies to the session.
fn blocks(at: usize, members: &dyn Members) -> bool {
    !members.session(at).blocks_for().is_zero()
}

fn sooner(one: Option<Instant>, other: Instant) -> Instant {
    one.map_or(other, |one| one.min(other))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use super::super::buffers::Buffers;
    use super::super::exchange::Exchange;
    use super::super::link::Link;
    use super::*;
    use crate::endpoint::{Form, OptionValue};
    use crate::net::{Mock, NeverInterrupted, Readiness};

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
    }

    impl Members for Only {
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

        fn connect(&mut self, _: usize, _: &[usize], _: &mut dyn Watch) -> std::result::Result<Option<Channel>, Error> {
            Ok(Some(Channel::new(Transport::mock(Box::new(Arc::clone(&self.server))), self.silence)))
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

    fn pool(silence: Duration) -> (Pool, Only) {
        let given = [("host", "h"), ("stream_key", "s"), ("topology", "single")];
        let endpoint =
            Endpoint::new(given.map(|(name, text)| (name.to_owned(), OptionValue::text(text))), Form::Text).unwrap();
        let pool = Pool::new(std::slice::from_ref(&endpoint), 1, Duration::ZERO);
        let link = Link::new(endpoint, None, Arc::default());
        (pool, Only { link, session: Session::default(), server: Arc::default(), silence })
    }

    #[test]
    fn a_pass_tells_what_to_wait_for_and_does_not_wait() {
        let (mut pool, mut only) = pool(HOUR);
        let mut advance = |only: &mut Only, moves: bool, writable: &[bool]| {
            let began = Instant::now();
            let passed = pool.advance(only, None, &mut NeverInterrupted).unwrap();
            assert_eq!((passed.has_moved, passed.failed.len()), (moves, 0));
            let wanted: Vec<bool> = pool.sockets(only).iter().map(|(_, wanted)| wanted.writable).collect();
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
        let mut advance = || pool.advance(&mut only, None, &mut NeverInterrupted).unwrap();
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
}
