//! Sends what waits in the lanes, receives the replies, and collects the outcomes.
//!
//! A pass does for one lane what can be done without waiting. Between passes the caller waits: here, or in an event loop of its
//! own. What needs a question to a server is an [`Errand`].

mod errands;

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::clock;
use super::dedup::Sink;
use super::lane::{Lane, Link};
use super::lanes::{Lanes, Load};
use super::outcome_queue::OutcomeQueue;
use super::preparation::{Ended, Groups, Registry};
use super::server_changes::ServerChanges;
use crate::cluster::ClusterMap;
use crate::command::xadd::XaddEncoder;
use crate::connection::{
    BatchState, Connection, Context, Disconnect, Limits, Outcome, Outcomes as _, Owner, RetryEvent, RetryStep, Rules,
};
use crate::endpoint::Endpoint;
use crate::error::{Error, Failure, Fault, Result, Written, code};
use crate::net::{Interest, Opening, ServerLookup, Transport, Wanted, Watch};
use crate::retry::{RetryEnd, RetryWait};

pub(crate) use errands::Errand;

/// How long one wait may last before the caller is asked whether to continue: Ctrl-C must be noticed within 0.1 s.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long one wait for many replies may last: the estimate of their length may be too high.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The goal of a call that runs the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Room for one more message.
    Room,
    /// Room for many, because there was none in the window.
    AmpleRoom,
    /// An outcome for every message.
    Empty,
    /// The outcome of the call's own message.
    Call,
}

/// The result of a pass over a lane.
pub(super) enum Pass {
    /// Something moved, or may move now.
    Moved,
    /// Servers must be asked before the lane continues.
    Errand(Errand),
    /// The lane waits for its socket, or for nothing.
    Idle,
    /// The lane waits until it is time to send again what failed.
    Paused(Instant),
}

#[derive(Debug)]
pub(super) struct Sender {
    pub(super) endpoint: Endpoint,
    pub(super) limits: Limits,
    pub(super) batch: BatchState,
    pub(super) outcomes: OutcomeQueue,
    pub(super) lanes: Lanes,
    rules: Rules,
    /// How many sockets have been opened.
    opened: u64,
    /// How many waits there have been for sockets that are opened while others are in use.
    waits: u64,
    /// Finds the server to connect to, if there is only one.
    servers: ServerLookup,
    /// The nodes of a cluster, and which of them has which slots.
    map: ClusterMap,
    /// When the nodes were last asked which of them has which slots.
    located: Option<Instant>,
    /// What became of these nodes.
    changes: ServerChanges,
    registry: Registry,
    groups: Groups,
    /// Whether there may be no room for reasons other than the window.
    holds_back: bool,
}

impl Sender {
    /// `outcomes`: whose counters list the nodes of `lanes`.
    pub(super) fn new(endpoint: Endpoint, limits: Limits, rules: Rules, lanes: Lanes, outcomes: OutcomeQueue) -> Self {
        let mut sender = Self {
            limits,
            batch: BatchState::default(),
            outcomes,
            holds_back: lanes.get(0).connection.wait.is_some(),
            lanes,
            rules,
            opened: 0,
            waits: 0,
            servers: ServerLookup::new(&endpoint),
            map: ClusterMap::new(endpoint.node_map()),
            located: None,
            changes: ServerChanges::default(),
            registry: Registry::Unknown,
            groups: Groups::Unknown,
            endpoint,
        };
        sender.route_to_shards();
        sender
    }

    /// A lane, and what it needs to resolve messages.
    pub(super) fn lane(&mut self, at: usize, now: Instant) -> (&mut Lane, Context<'_, OutcomeQueue>) {
        let Self { lanes, rules, batch, outcomes, .. } = self;
        (lanes.get_mut(at), Context { rules, batch, outcomes, now })
    }

    /// Where the runs of a script go.
    pub(super) fn sink<'a>(&'a mut self, encoder: &'a XaddEncoder) -> Sink<'a> {
        let Self { endpoint, lanes, outcomes, .. } = self;
        Sink { encoder, lanes, counters: outcomes.recorder.counters(), own_key: endpoint.stream_key() }
    }

    /// Notes that the next messages name no streams of their own.
    pub(super) fn route_to_shards(&mut self) {
        self.lanes.set_routed(self.endpoint.shards().is_some());
    }

    /// Whether every message has its outcome.
    pub(super) fn is_idle(&self) -> bool {
        self.outcomes.is_settled() && self.lanes.is_idle()
    }

    /// Whether the next message can be encoded without waiting, if `runs` take room in addition.
    #[inline]
    pub(super) fn has_room(&self, runs: usize) -> bool {
        if self.lanes.is_of_cluster() {
            return self.has_room_in_cluster(runs);
        }
        let lane = self.lanes.get(0);
        lane.connection.send.room() > 0
            && lane.connection.in_flight.has_room(self.limits, self.outcomes.early() + runs)
            && self.takes_more(&lane.connection)
            && lane.down().is_none()
    }

    /// Whether another message of the endpoint's stream may follow, as far as its connection alone decides it.
    #[inline]
    fn takes_more(&self, connection: &Connection) -> bool {
        let retry = &connection.retry;
        let is_waiting = retry.is_active() || (retry.has_parked() && retry.holds(self.lanes.home_route()));
        !(is_waiting || (self.holds_back && connection.until_wait() == 0))
    }

    fn has_room_in_cluster(&self, runs: usize) -> bool {
        if !self.lanes.load().has_room(self.limits, self.outcomes.early() + runs) {
            return false;
        }
        if self.lanes.is_routed() {
            // A node that takes no bytes does not stop messages for others. A node that sent some elsewhere does: nothing more
            // goes to it before they have gone there.
            let is_full = |connection: &Connection| connection.send.room() == 0 && !connection.is_stuck();
            return !self.lanes.connections().any(|connection| is_full(connection) || connection.is_to_redirect());
        }
        let home = self.lanes.get(self.lanes.home());
        home.connection.send.room() > 0 && self.takes_more(&home.connection) && home.down().is_none()
    }

    /// Whether there is room in the window.
    pub(super) fn has_room_in_window(&self) -> bool {
        if self.lanes.is_of_cluster() {
            return self.lanes.load().has_room(self.limits, 0);
        }
        self.lanes.get(0).connection.in_flight.has_room(self.limits, 0)
    }

    /// Whether a quarter of the window is free.
    pub(super) fn has_ample_room(&self) -> bool {
        if self.lanes.is_of_cluster() {
            return self.lanes.load().has_ample_room(self.limits);
        }
        self.lanes.get(0).connection.in_flight.has_ample_room(self.limits)
    }

    /// The failure of every message of the endpoint's stream in this batch, if connecting failed. `None` if messages go to
    /// several streams.
    pub(super) fn down(&self) -> Option<&Arc<Failure>> {
        self.lanes.get(self.lanes.home()).down().filter(|_| !self.lanes.is_routed())
    }

    pub(super) fn failure(&self, fault: &Fault, written: Written) -> Arc<Failure> {
        Arc::new(self.rules.classifier.failure(fault, written))
    }

    /// The failure of messages that this try did not send.
    pub(super) fn unsent(&self, fault: &Fault) -> Arc<Failure> {
        self.failure(fault, self.batch.unattempted)
    }

    /// Fails the next messages, which can never be sent.
    pub(super) fn refuse(&mut self, fault: &Fault, count: u64) {
        let failure = self.failure(fault, Written::No);
        self.fail(&failure, count);
    }

    /// Fails the next messages, if there are any, without a server.
    pub(super) fn fail(&mut self, failure: &Arc<Failure>, count: u64) {
        if count > 0 {
            let number = self.outcomes.number(count);
            self.outcomes.resolve(number, Outcome::Failed { failure: Arc::clone(failure), count }, Owner::Report);
        }
    }

    /// Notes that a call begins.
    pub(super) fn begin_call(&mut self) {
        self.lanes.all_mut().for_each(Lane::begin_call);
    }

    /// Notes that a call that waited ends. `is_broken`: it was interrupted.
    pub(super) fn end_call(&mut self, is_broken: bool) {
        if is_broken {
            for at in 0..self.lanes.len() {
                let (lane, mut cx) = self.lane(at, Instant::now());
                if lane.connection.awaits_control() {
                    // If a later call read the reply to PING, it would no longer show that the server is reachable.
                    lane.renew(&Fault::new(code::INTERRUPTED, "the call was interrupted"), &mut cx);
                }
            }
        }
        self.leave_openings(|_, connection| is_broken || connection.is_idle());
    }

    /// Gives up the sockets that are being opened and for which `is_left` returns true. What waits for them stays.
    pub(super) fn leave_openings(&mut self, is_left: impl Fn(&Opening<Ended>, &Connection) -> bool) {
        self.lanes.all_mut().for_each(|lane| lane.leave_opening(&is_left));
    }

    /// Does what can be done for one lane without waiting.
    pub(super) fn pass(&mut self, at: usize, goal: Goal, now: Instant, watch: &mut dyn Watch) -> Pass {
        if self.lanes.is_of_cluster() && self.lanes.get(at).connection.is_idle() {
            return Pass::Idle;
        }
        self.request_wait_for(at, goal);
        if self.lanes.is_of_cluster() {
            let (lane, mut cx) = self.lane(at, now);
            lane.connection.give_up_unprovable(&mut cx);
            if let Poll::Ready(errand) = self.go_on_opening(at, watch) {
                return errand.map_or(Pass::Moved, Pass::Errand);
            }
        }
        let (lane, mut cx) = self.lane(at, now);
        let step = lane.take_retry_step(&mut cx);
        if step.is_some() {
            self.report_waits(watch);
        }
        match step {
            None => {}
            Some(RetryStep::Pause(until)) => return Pass::Paused(until),
            Some(RetryStep::Redirect(detours)) => return Pass::Errand(Errand::Follow(detours)),
            Some(RetryStep::Resend | RetryStep::Resume | RetryStep::GiveUp | RetryStep::Done) => {
                return Pass::Moved;
            }
        }
        let is_due = self.servers.is_due(now);
        let (lane, mut cx) = self.lane(at, now);
        match &lane.link {
            Link::Down(_) => lane.fail_all(&mut cx),
            Link::Closed => return Pass::Errand(Errand::Open),
            Link::Opening(_) => return Pass::Idle,
            Link::Open(_) if is_due => return Pass::Errand(Errand::CheckMaster),
            Link::Open(_) if lane.connection.needs_ping(now) => lane.connection.ping(),
            Link::Open(_) => match lane.step(&mut cx) {
                Ok(true) => {}
                Ok(false) => return Pass::Idle,
                Err(broken) => {
                    cx.now = Instant::now();
                    lane.disconnect_or_renew(&broken, &mut cx);
                }
            },
        }
        Pass::Moved
    }

    /// The same for a caller that does not wait here: it watches every socket, also those of lanes that wait for nothing.
    pub(super) fn pass_for_loop(&mut self, at: usize, now: Instant, watch: &mut dyn Watch) -> Pass {
        let lane = self.lanes.get_mut(at);
        let pass = if lane.connection.is_idle() {
            lane.leave_opening(|_, _| true);
            Pass::Idle
        } else {
            self.pass(at, Goal::Empty, now, watch)
        };
        let (lane, mut cx) = self.lane(at, now);
        // A server that closes its socket would make it readable forever.
        if matches!(pass, Pass::Paused(_)) || (matches!(pass, Pass::Idle) && !lane.connection.awaits_answer()) {
            match lane.receive(&mut cx) {
                Ok(false) => {}
                Ok(true) => return Pass::Moved,
                Err(broken) => {
                    cx.now = Instant::now();
                    lane.disconnect_or_renew(&broken, &mut cx);
                    return Pass::Moved;
                }
            }
        }
        pass
    }

    /// Sends and receives what the open sockets take and have. Does not trust one that was idle for long.
    pub(super) fn poll(&mut self) {
        self.begin_call();
        for at in 0..self.lanes.len() {
            let now = Instant::now();
            let (lane, mut cx) = self.lane(at, now);
            if !matches!(lane.link, Link::Open(_)) || lane.connection.needs_ping(now) {
                continue;
            }
            let stepped = lane.step(&mut cx);
            cx.now = Instant::now();
            if let Err(broken) = stepped {
                lane.disconnect_or_renew(&broken, &mut cx);
            }
            lane.take_own_retry_step(&mut cx);
        }
    }

    /// Hears what counts before the caller stops waiting: replies that have already arrived, and connects that have failed by
    /// now, which give the reason.
    pub(super) fn hear_out(&mut self, watch: &dyn Watch) {
        for at in 0..self.lanes.len() {
            self.end_opening(at, watch);
            let (lane, mut cx) = self.lane(at, Instant::now());
            if let Err(broken) = lane.receive(&mut cx) {
                lane.disconnect(&broken, &mut cx);
            }
        }
    }

    /// Requests the WAIT that is due, also if nothing will follow: for the last entries, for those that are sent again, and where
    /// outcomes wait for one that needs it.
    fn request_wait_for(&mut self, at: usize, goal: Goal) {
        // The outcomes that wait for an earlier one form as many runs as commands may be in flight.
        let is_crowded = self.outcomes.early() >= self.limits.max_entries;
        let connection = &mut self.lanes.get_mut(at).connection;
        let is_last = matches!(goal, Goal::Empty | Goal::Call) || connection.retry.is_active();
        if is_last || is_crowded || connection.until_wait() == 0 {
            connection.request_wait();
        }
    }

    /// Waits until a socket is ready, or `until` has come; gives up on a server that is silent for too long. `started`: when the
    /// call began. `is_quick`: the first byte that arrives ends the wait.
    pub(super) fn wait(
        &mut self,
        goal: Goal,
        (started, until): (Instant, Option<Instant>),
        is_quick: bool,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        // No pass continues these openings: a socket that is ready would end each wait.
        self.leave_openings(|_, connection| connection.is_idle());
        let now = Instant::now();
        let mut timeout = WATCH_EVERY;
        if let Some(until) = until {
            timeout = timeout.min(until.saturating_duration_since(now));
        }
        for at in 0..self.lanes.len() {
            let lane = self.lanes.get(at);
            if let Link::Opening(opening) = &lane.link {
                timeout = timeout.min(opening.wakes().saturating_duration_since(now));
            }
            let Some((silent, patience)) = lane.silence(Some(started), now) else { continue };
            if silent >= patience {
                self.give_up_silent(at, silent);
                return Ok(());
            }
            timeout = timeout.min(patience.saturating_sub(silent));
        }
        let replies = self.replies_to_wait_for(goal);
        let interrupted = if self.lanes.len() == 1
            && let Lane { connection, link: Link::Open(transport), .. } = self.lanes.get_mut(0)
            && let Some(Wanted { bytes, writable }) = wanted(connection, transport, replies, is_quick)
        {
            transport.wait_for(bytes, writable, patience_for(bytes, timeout)).interrupted
        } else {
            let (mut sockets, mut openings) = (Vec::with_capacity(self.lanes.len()), Vec::new());
            for Lane { connection, link, .. } in self.lanes.all_mut() {
                match link {
                    Link::Open(transport) => {
                        let Some(wanted) = wanted(connection, transport, replies, is_quick) else { continue };
                        timeout = patience_for(wanted.bytes, timeout);
                        sockets.push((&mut **transport, wanted));
                    }
                    Link::Opening(opening) => openings.extend(opening.socket()),
                    Link::Closed | Link::Down(_) => {}
                }
            }
            Transport::wait_any(&mut sockets, &openings, timeout)
        };
        if interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// How many replies of a lane to wait for.
    fn replies_to_wait_for(&self, goal: Goal) -> usize {
        match goal {
            Goal::AmpleRoom if self.lanes.is_of_cluster() => {
                let busy = self.lanes.connections().filter(|connection| !connection.in_flight.is_empty()).count();
                self.lanes.load().until_ample_room(self.limits).div_ceil(busy.max(1)).max(1)
            }
            Goal::AmpleRoom => self.lanes.get(0).connection.in_flight.until_ample_room(self.limits),
            Goal::Room | Goal::Empty | Goal::Call => usize::MAX,
        }
    }

    fn give_up_silent(&mut self, at: usize, silent: Duration) {
        let message = format!("{} sent no complete reply for {:.3} s", self.endpoint, silent.as_secs_f64());
        let broken = Disconnect::from(Fault::new(code::TIMEOUT, message));
        let (lane, mut cx) = self.lane(at, Instant::now());
        if lane.connection.awaits_control() {
            lane.disconnect_or_renew(&broken, &mut cx);
        } else {
            let change = lane.failed(&broken.fault, cx.now, clock::unix_millis());
            lane.disconnect(&broken, &mut cx);
            self.changes.note(change);
        }
    }

    /// Gives up on a server that has been silent for too long and returns `Err`, because something moved. Otherwise returns
    /// when to continue if no socket is ready before: a server will have been silent for too long, the sentinels must be asked
    /// again, or a socket that is being opened has waited long enough.
    pub(super) fn next_step(&mut self) -> std::result::Result<Option<Instant>, ()> {
        let now = Instant::now();
        let mut until = None;
        for at in 0..self.lanes.len() {
            let Some((silent, patience)) = self.lanes.get(at).silence(None, now) else { continue };
            if silent >= patience {
                self.give_up_silent(at, silent);
                return Err(());
            }
            until = earliest(until, Some(now + patience.saturating_sub(silent)));
        }
        // The sentinels are only asked while messages wait.
        let check = if self.lanes.get(0).connection.awaits_answer() { self.servers.due() } else { None };
        let opening = self.lanes.all().filter_map(Lane::wakes).min();
        Ok(earliest(earliest(until, check), opening))
    }

    /// The sockets that are open and those that are being opened, prepared for a wait by the caller. Also returns whether
    /// received bytes of one are already waiting here, in which case the caller must not wait.
    pub(super) fn interests(&mut self) -> (Vec<Interest>, bool) {
        let (mut interests, mut has_bytes) = (Vec::with_capacity(self.lanes.len()), false);
        for lane in self.lanes.all_mut() {
            let (interest, has) = lane.interest();
            interests.extend(interest);
            has_bytes |= has;
        }
        (interests, has_bytes)
    }

    /// Reports to the watch which waits began or ended since the last call.
    pub(super) fn report_waits(&mut self, watch: &mut dyn Watch) {
        let deadline = self.rules.retry.as_ref().map_or(Duration::ZERO, |retry| retry.deadline);
        let Self { endpoint, lanes, .. } = self;
        while let Some(event) = lanes.all_mut().find_map(|lane| lane.retry_waits.next()) {
            match event {
                RetryEvent::Began { messages, since, failure } => watch.retry_began(&RetryWait {
                    endpoint,
                    messages: Some(messages),
                    left: deadline.saturating_sub(since.elapsed()),
                    failure: &failure,
                }),
                RetryEvent::Ended { tries, took, failure } => {
                    let failure = failure.as_deref();
                    watch.retry_ended(&RetryEnd { endpoint, is_reading: false, tries, took, failure });
                }
            }
        }
    }

    /// Reports to the watch which nodes changed. `is_last`: the call ends.
    pub(super) fn report_changes(&mut self, is_last: bool, watch: &mut dyn Watch) {
        while self.changes.has_changes()
            && let Some(change) = self.changes.next_change(is_last, Instant::now())
        {
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Writes to the counters what is in flight to each node, and which node the full window waits for. `runs` take room in
    /// addition.
    pub(super) fn publish_nodes(&self, runs: usize) {
        if !self.lanes.is_of_cluster() {
            return;
        }
        let is_full = !self.lanes.load().has_room(self.limits, self.outcomes.early() + runs);
        let Limits { max_entries, max_bytes } = self.limits;
        let share = |(_, connection): &(usize, &Connection)| {
            let Load { entries, bytes } = Load::of(connection);
            // Compared as shares of the limits, without fractions.
            (entries as u128 * u128::from(max_bytes)).max(u128::from(bytes) * max_entries as u128)
        };
        let fullest = self.lanes.connections().enumerate().max_by_key(share).map(|(at, _)| at);
        for (at, lane) in self.lanes.all().enumerate() {
            let (Some(state), connection) = (&lane.state, &lane.connection) else { continue };
            let messages = connection.in_flight.messages() + connection.retry.messages();
            state.counters.in_flight.set(messages);
            state.counters.in_flight_bytes.set(Load::of(connection).bytes);
            let fills_window = is_full && messages > 0 && fullest == Some(at);
            state.counters.fills_window.set(fills_window);
            let oldest_shard = if fills_window { self.oldest_shard(connection) } else { None };
            state.counters.waiting_shard.set(oldest_shard);
        }
    }

    /// The shard of the first message that waits for a node: for its reply, or else to be sent again.
    fn oldest_shard(&self, connection: &Connection) -> Option<usize> {
        let shards = self.endpoint.shards()?;
        let route = connection.in_flight.commands_from(0).find_map(|command| command.route);
        let route = route.or_else(|| connection.retry.routes().first().copied())?;
        shards.only_in_slot(self.lanes.slot(route))
    }

    /// Fails every message that waits, and replaces the connections that they wait for.
    pub(super) fn abort(&mut self, fault: &Fault) {
        self.leave_openings(|_, connection| connection.is_idle());
        let failure = self.unsent(fault);
        let is_only = self.lanes.len() == 1;
        for at in 0..self.lanes.len() {
            let (lane, mut cx) = self.lane(at, Instant::now());
            if is_only || !lane.connection.is_idle() {
                if matches!(lane.link, Link::Opening(_)) {
                    lane.connection.retry.blame(&failure);
                }
                lane.disconnect(&Disconnect { is_final: true, ..fault.clone().into() }, &mut cx);
            }
        }
    }

    /// Closes the sockets cleanly. Every message has its outcome.
    pub(super) fn close(&mut self) {
        self.lanes.all_mut().for_each(Lane::close_socket);
        self.servers.close();
    }

    /// Gives up the sockets and everything that waits. Nothing is recorded.
    pub(super) fn abandon(&mut self) {
        for lane in self.lanes.all_mut() {
            lane.drop_socket();
            lane.forget();
        }
        self.forget_messages();
    }

    /// Forgets everything in a forked child: it belongs to the parent.
    pub(super) fn forget(&mut self) {
        self.lanes.all_mut().for_each(Lane::forget);
        self.servers.forget();
        self.forget_messages();
        self.outcomes.recorder.forget();
    }

    fn forget_messages(&mut self) {
        self.outcomes.clear();
        self.changes.forget();
        self.route_to_shards();
    }
}

/// What to wait for on an open socket: up to this number of replies, or any byte. `None`: nothing.
fn wanted(connection: &mut Connection, transport: &Transport, replies: usize, is_quick: bool) -> Option<Wanted> {
    // A server with nothing to answer may have closed its socket, which would end every wait immediately.
    connection.awaits_answer().then(|| {
        let most = replies.min(connection.in_flight.len());
        let bytes = if is_quick { 1 } else { connection.still_to_come(most) };
        Wanted { bytes, writable: connection.has_unsent() || transport.wants_write() }
    })
}

/// How long to wait for this many bytes, whose number may be too high.
fn patience_for(bytes: usize, timeout: Duration) -> Duration {
    if bytes > 1 { timeout.min(LOOK_EVERY) } else { timeout }
}

/// The earlier of two instants, if there are any.
pub(super) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
