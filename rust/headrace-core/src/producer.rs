//! Encodes messages for its connections, drives their sockets, and collects the outcomes in the order of the messages.
//!
//! One thread, no locks: every public call of the dispatcher runs the loop in [`drive`] as far as it needs to. The loop and
//! [`link`] do all I/O and ask the clock; what replies and losses mean is decided in [`connection`](crate::connection).

mod advance;
mod clock;
mod dedup;
mod drive;
mod encode;
mod lanes;
mod link;
mod node_states;
mod opening;
mod outcome_queue;
mod preflight;
mod preparation;
mod replica_count;
mod retry_waits;
mod shard_registry;
mod slot_owners;
mod stream_routes;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::command::EntryId;
use crate::command::xadd::{FieldNames, Target, XaddEncoder};
use crate::connection::{BatchState, Connection, Context, Disconnect, Limits, Outcome, Outcomes, Owner, Rules};
use crate::durability::Durability;
use crate::endpoint::{Endpoint, Trim};
use crate::error::{Classifier, Error, Failure, Fault, Result, Written};
use crate::net::{ClusterNodes, ServerLookup, Watch};
use crate::random;
use crate::report::Recorder;
use crate::retry::RetryPolicy;

pub(crate) use advance::Advance;
pub(crate) use dedup::ExactlyOnce;
#[cfg(any(test, fuzzing))]
pub(crate) use dedup::{IDMP_ARGUMENTS, IdempotencyIds, OpenRun, ScriptBatch};
#[cfg(any(test, fuzzing))]
pub(crate) use lanes::Lanes;
pub(crate) use link::Errand;
#[cfg(any(test, fuzzing))]
pub(crate) use outcome_queue::OutcomeQueue;

use dedup::Dedup;
use drive::Goal;
#[cfg(not(any(test, fuzzing)))]
use lanes::Lanes;
use link::Link;
use node_states::NodeStates;
#[cfg(not(any(test, fuzzing)))]
use outcome_queue::OutcomeQueue;
use preparation::{Groups, Registry};
use retry_waits::RetryWaits;

/// If a quarter of the window drains within this time, the next wait ends with the first byte.
const QUICK: Duration = Duration::from_micros(500);

/// What a [`Producer`] is built from, in addition to its endpoint.
#[derive(Debug)]
pub(crate) struct ProducerOptions {
    pub(crate) classifier: Classifier,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) exactly_once: Option<ExactlyOnce>,
    pub(crate) durability: Option<Durability>,
    pub(crate) limits: Limits,
    pub(crate) names: FieldNames,
}

#[derive(Debug)]
pub(crate) struct Producer {
    endpoint: Endpoint,
    limits: Limits,
    encoder: XaddEncoder,
    dedup: Dedup,
    rules: Rules,
    batch: BatchState,
    outcomes: OutcomeQueue,
    lanes: Lanes,
    /// One for each lane.
    links: Vec<Link>,
    /// One for each lane.
    retry_waits: Vec<RetryWaits>,
    /// How many sockets have been opened.
    opened: u64,
    /// For each lane, the number of its socket among these.
    numbers: Vec<u64>,
    /// How many waits there have been for sockets that are opened while others are in use.
    waits: u64,
    /// Finds the server to connect to, if there is only one.
    servers: ServerLookup,
    /// The nodes of a cluster.
    nodes: ClusterNodes,
    /// The state of these nodes.
    node_states: NodeStates,
    /// When the nodes were last asked which of them has which slots.
    located: Option<Instant>,
    /// Whether messages may go to several nodes: the rows that are encoded name their streams, or all messages go to shards.
    is_routed: bool,
    registry: Registry,
    groups: Groups,
    /// When the watch was last asked.
    watched: Instant,
    /// When the window last had no room.
    full: Instant,
    /// Whether that was a short time after the previous time.
    is_quick: bool,
    scratch: Vec<u8>,
    /// The fields of an entry of several rows, until their number is known.
    fields: Vec<u8>,
    /// Whether there may be no room for reasons other than the window.
    holds_back: bool,
    /// While rows are encoded together: the first of them, and how many commands had been added before it.
    encoding: Option<(usize, u64)>,
}

impl Producer {
    pub(crate) fn new(endpoint: Endpoint, options: ProducerOptions) -> Self {
        let ProducerOptions { classifier, retry, exactly_once, durability, limits, names } = options;
        let waits = durability.is_some();
        let encoder = XaddEncoder::new(&endpoint, &names);
        let mut dedup = Dedup::new(exactly_once.as_ref(), waits, limits.max_bytes, &encoder);
        if !matches!(dedup, Dedup::Off) {
            dedup.begin(random::token(), 0);
        }
        let max_redirects = endpoint.cluster().map(|cluster| cluster.max_redirects);
        let lanes = if max_redirects.is_some() || endpoint.is_undecided() {
            Lanes::of_cluster(endpoint.stream_key(), durability)
        } else {
            Lanes::of_server(retry.is_some() || matches!(dedup, Dedup::Script(_)), durability)
        };
        let (servers, nodes) = (ServerLookup::new(&endpoint), ClusterNodes::new(endpoint.node_map()));
        let has_shards_on_nodes = lanes.is_of_cluster() && endpoint.shards().is_some();
        let now = Instant::now();
        Self {
            encoder,
            lanes,
            holds_back: waits,
            rules: Rules {
                classifier,
                retry,
                nomkstream: endpoint.nomkstream(),
                min_id: endpoint.trim().and_then(Trim::min_id).map(|(ms, seq)| EntryId { ms, seq }),
                exactly_once: exactly_once.is_some(),
                max_redirects,
            },
            batch: BatchState::default(),
            outcomes: OutcomeQueue::default(),
            dedup,
            endpoint,
            limits,
            links: vec![Link::Closed],
            retry_waits: vec![RetryWaits::default()],
            opened: 0,
            numbers: vec![0],
            waits: 0,
            servers,
            nodes,
            node_states: NodeStates::default(),
            located: None,
            is_routed: has_shards_on_nodes,
            registry: Registry::Unknown,
            groups: Groups::Unknown,
            watched: now,
            full: now,
            is_quick: false,
            scratch: Vec::new(),
            fields: Vec::new(),
            encoding: None,
        }
    }

    /// Whether messages go to shards, which may be on several nodes.
    fn has_shards_on_nodes(&self) -> bool {
        self.lanes.is_of_cluster() && self.endpoint.shards().is_some()
    }

    /// The outcomes so far, and the message IDs. The ID of a message is added before the message is encoded.
    #[inline]
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        self.outcomes.recorder()
    }

    /// A connection, and what it needs to resolve messages.
    fn connection(&mut self, at: usize, now: Instant) -> (&mut Connection, Context<'_, OutcomeQueue>) {
        let Self { lanes, rules, batch, outcomes, .. } = self;
        (lanes.get_mut(at), Context { rules, batch, outcomes, now })
    }

    /// Whether every message has its outcome.
    pub(crate) fn is_idle(&self) -> bool {
        self.outcomes.is_settled() && self.lanes.is_idle()
    }

    /// Whether the next message can be encoded without waiting.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        if self.lanes.is_of_cluster() {
            return self.has_room_in_cluster();
        }
        let connection = self.lanes.get(0);
        connection.send.room() > 0
            && connection.in_flight.has_room(self.limits, self.outcomes.early() + self.open_runs())
            && self.takes_more(connection)
            && !matches!(self.links.first(), Some(Link::Down(_)))
    }

    /// Whether another message of the endpoint's stream may follow, as far as its connection alone decides it.
    #[inline]
    fn takes_more(&self, connection: &Connection) -> bool {
        let retry = &connection.retry;
        let is_waiting = retry.is_active() || (retry.has_parked() && retry.holds(self.lanes.home_route()));
        !(is_waiting || (self.holds_back && connection.until_wait() == 0))
    }

    fn has_room_in_cluster(&self) -> bool {
        if !self.lanes.load().has_room(self.limits, self.outcomes.early() + self.open_runs()) {
            return false;
        }
        if self.is_routed {
            // A node that takes no bytes does not stop messages for others. A node that sent some elsewhere does: nothing more
            // goes to it before they have gone there.
            let is_full = |connection: &Connection| connection.send.room() == 0 && !connection.is_stuck();
            return !self.lanes.all().any(|connection| is_full(connection) || connection.is_to_redirect());
        }
        let connection = self.lanes.get(self.lanes.home());
        connection.send.room() > 0 && self.takes_more(connection) && !self.is_down()
    }

    /// Whether there is room in the window.
    fn has_room_in_window(&self) -> bool {
        if self.lanes.is_of_cluster() {
            return self.lanes.load().has_room(self.limits, 0);
        }
        self.lanes.get(0).in_flight.has_room(self.limits, 0)
    }

    /// Whether a quarter of the window is free.
    fn has_ample_room(&self) -> bool {
        if self.lanes.is_of_cluster() {
            return self.lanes.load().has_ample_room(self.limits);
        }
        self.lanes.get(0).in_flight.has_ample_room(self.limits)
    }

    /// How many open runs take room in the window: all but one, so that rows of one stream always make whole runs.
    #[inline]
    fn open_runs(&self) -> usize {
        match &self.dedup {
            Dedup::Script(script) => script.open_runs().saturating_sub(1),
            Dedup::Off | Dedup::Idmp(_) => 0,
        }
    }

    /// Whether the outcomes that wait for an earlier one form as many runs as commands may be in flight.
    fn is_crowded(&self) -> bool {
        self.outcomes.early() >= self.limits.max_entries
    }

    /// The failure of every message of the endpoint's stream in this batch, if connecting failed. `None` if messages go to
    /// several streams.
    pub(crate) fn down(&self) -> Option<&Arc<Failure>> {
        self.lane_down(self.lanes.home()).filter(|_| !self.is_routed)
    }

    /// The failure of every message of a lane in this batch, if connecting failed.
    fn lane_down(&self, at: usize) -> Option<&Arc<Failure>> {
        match self.links.get(at) {
            Some(Link::Down(failure)) => Some(failure),
            Some(Link::Closed | Link::Opening(_) | Link::Open(_)) | None => None,
        }
    }

    #[inline]
    fn is_down(&self) -> bool {
        self.down().is_some()
    }

    /// Waits until one more message can be encoded, or the link is down.
    pub(crate) fn make_room(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        let connection = self.lanes.at_home();
        if connection.until_wait() == 0 {
            connection.request_wait();
        }
        if self.has_room_in_window() {
            return self.drive(Goal::Room, None, watch);
        }
        let now = Instant::now();
        self.is_quick = now - std::mem::replace(&mut self.full, now) < QUICK;
        self.drive(Goal::AmpleRoom, None, watch)
    }

    /// Waits until each message has its outcome.
    pub(crate) fn drain(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        self.close_runs();
        let driven = self.drive(Goal::Empty, deadline, watch);
        self.lanes.rest_asking(Instant::now());
        driven
    }

    /// Sends and receives what it can without waiting. Opens no connection, and does not trust one that was idle for long.
    pub(crate) fn poll(&mut self) {
        self.close_runs();
        for at in 0..self.links.len() {
            if !matches!(self.links[at], Link::Open(_)) || self.lanes.get(at).needs_ping(Instant::now()) {
                continue;
            }
            if let Err(broken) = self.step(at) {
                self.disconnect_or_renew(at, &broken, &mut Vec::new());
            }
            self.take_own_retry_step(at);
        }
        self.publish_nodes();
    }

    /// Requests the WAIT that answered entries need, unless it has been requested. Does not wait.
    pub(crate) fn confirm_answered(&mut self) {
        let requested = self.lanes.all_mut().map(Connection::request_wait_for_answered);
        if requested.fold(false, |any, one| any | one) {
            self.poll();
        }
    }

    /// Makes messages carry the current time from now on.
    #[inline]
    pub(crate) fn refresh_time(&mut self) {
        let second = clock::unix_second();
        if self.encoder.is_new_time(second) {
            // The rows of a run share their time.
            self.close_runs();
            self.encoder.set_time(second);
        }
    }

    /// Makes messages carry no time until it is [refreshed](Self::refresh_time).
    pub(crate) fn drop_time(&mut self) {
        if self.encoder.has_time() {
            // The rows of a run share their time, or the lack of it.
            self.close_runs();
            self.encoder.drop_time();
        }
    }

    /// Gives `count` messages of the endpoint's stream, or of one of its shards, an outcome that needs no server.
    pub(crate) fn push_failed(&mut self, failure: &Arc<Failure>, count: u64, shard: Option<usize>) {
        let shards = self.endpoint.shards().cloned();
        let stream_key = shards.as_ref().zip(shard).map(|(shards, shard)| shards.key(shard));
        for _ in 0..count {
            self.lose_row(stream_key);
        }
        self.resolve_failed(failure, count);
    }

    /// The same for rows of a record batch.
    pub(crate) fn push_failed_rows(&mut self, failure: &Arc<Failure>, batch: &Batch<'_>, rows: Range<usize>) {
        let count = rows.len() as u64;
        rows.for_each(|row| self.lose_row(batch.stream_key(row)));
        self.resolve_failed(failure, count);
    }

    /// The same for messages that were lost in a panic: their streams are unknown.
    pub(crate) fn push_lost(&mut self, fault: &Fault, count: u64) {
        self.close_runs();
        match &mut self.dedup {
            Dedup::Off => {}
            Dedup::Script(script) => script.batch.lose_all(),
            Dedup::Idmp(ids) => ids.pass(count),
        }
        let failure = self.failure(fault, self.batch.unattempted);
        self.resolve_failed(&failure, count);
    }

    fn resolve_failed(&mut self, failure: &Arc<Failure>, count: u64) {
        self.batch.is_blocked |= matches!(self.dedup, Dedup::Script(_));
        self.resolve_next(Outcome::Failed { failure: Arc::clone(failure), count });
    }

    /// The failure of messages that this try did not send.
    pub(crate) fn unsent(&self, fault: &Fault) -> Arc<Failure> {
        self.failure(fault, self.batch.unattempted)
    }

    /// The same for rows that could never be sent.
    fn push_bad_rows(&mut self, fault: &Fault, count: u64) {
        let failure = self.failure(fault, Written::No);
        self.resolve_next(Outcome::Failed { failure, count });
    }

    /// Gives the next messages, if there are any, this outcome.
    fn resolve_next(&mut self, outcome: Outcome) {
        if outcome.count() == 0 {
            return;
        }
        let number = self.outcomes.number(outcome.count());
        self.outcomes.resolve(number, outcome, Owner::Report);
    }

    fn failure(&self, fault: &Fault, written: Written) -> Arc<Failure> {
        Arc::new(self.rules.classifier.failure(fault, written))
    }

    /// Sends one message after all others and waits for its outcome.
    pub(crate) fn call(
        &mut self,
        payload: &[u8],
        shard: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<EntryId, Failure>> {
        self.make_room(watch)?;
        let target = shard.map(Target::of_shard);
        if target.is_some() {
            // The command of a call does not queue behind others that must be sent again.
            self.drive(Goal::Empty, None, watch)?;
        }
        let (route, at) = target.map_or((0, self.lanes.home()), |target| self.lane_of(target));
        if let Some(failure) = self.lane_down(at) {
            return Ok(Err((**failure).clone()));
        }
        self.outcomes.begin_call();
        match target {
            None => self.push(1, Owner::Call, |encoder, out| encoder.write_payload(out, payload)),
            Some(target) => {
                self.push_to(at, route, Owner::Call, |encoder, out, _| {
                    encoder.write_payload_to(out, target, payload);
                });
            }
        }
        let driven = self.drive(Goal::Call, None, watch);
        // The retries may have ended with this message, which must be reported now.
        self.take_own_retry_step(at);
        self.report_waits(watch);
        self.outcomes.end_call().ok_or_else(|| driven.err().unwrap_or(Error::Interrupted))
    }

    /// Allows the next batch to connect again.
    pub(crate) fn lift(&mut self) {
        for link in self.links.iter_mut().filter(|link| matches!(link, Link::Down(_))) {
            *link = Link::Closed;
        }
        self.lanes.all_mut().for_each(|connection| connection.retry.forgive());
    }

    /// Starts another batch; every message has its outcome. `token`: the caller's, if it names the batch.
    pub(crate) fn begin(&mut self, token: Option<String>, version: u64) {
        let unattempted = if token.is_some() { Written::Unknown } else { Written::No };
        self.batch = BatchState { is_blocked: false, unattempted };
        if !matches!(self.dedup, Dedup::Off) {
            let token = token.unwrap_or_else(random::token);
            // With a different number of shards, rows would count in different streams.
            let token = self.endpoint.shards().map_or(token.clone(), |shards| format!("{token}/{}", shards.count()));
            self.dedup.begin(token, version);
        }
    }

    /// Counts all reported messages as passed. Returns whether another batch started instead.
    ///
    /// After rows of unknown streams were lost, the numbers of later rows are unknown too: these stay blocked until the caller
    /// begins the batch again. Only a batch without the caller's token, which is never repeated, can be replaced here.
    pub(crate) fn skip_failed(&mut self) -> bool {
        let Dedup::Script(script) = &mut self.dedup else { return false };
        let (is_lost, is_named) = (script.batch.is_lost(), self.batch.unattempted != Written::No);
        if !is_lost {
            script.batch.skip_failed();
            self.batch.is_blocked = false;
        } else if !is_named {
            self.begin(None, 0);
        }
        is_lost && !is_named
    }

    /// Closes the connections cleanly. Every message has its outcome.
    pub(crate) fn close(&mut self) {
        (0..self.links.len()).for_each(|at| self.close_socket(at));
        self.servers.close();
    }

    /// Fails every message that waits, and replaces the connections that they wait for.
    pub(crate) fn abort(&mut self, fault: &Fault) {
        self.leave_openings(|_, connection| connection.is_idle());
        let failure = self.failure(fault, self.batch.unattempted);
        for at in 0..self.links.len() {
            if self.links.len() == 1 || !self.lanes.get(at).is_idle() {
                if matches!(self.links[at], Link::Opening(_)) {
                    self.lanes.get_mut(at).retry.blame(&failure);
                }
                self.disconnect(at, &Disconnect { is_final: true, ..fault.clone().into() });
            }
        }
    }

    /// Whether a call must report that a panic ended the reading of replies. Returns true once.
    pub(crate) fn take_defect(&mut self) -> bool {
        self.lanes.all_mut().map(Connection::take_defect).fold(false, |any, one| any | one)
    }

    /// Gives up the connections and everything that waits, after a panic in the middle of a change: it is unknown whether the
    /// `waiting` messages without an outcome were written. `passed`: how many rows of the exactly-once batch were handed over.
    pub(crate) fn abandon(&mut self, fault: &Fault, waiting: u64, passed: u64) {
        for at in 0..self.links.len() {
            self.drop_socket(at);
            self.lanes.get_mut(at).forget();
            self.retry_waits[at] = RetryWaits::default();
        }
        self.outcomes.clear();
        self.node_states.forget();
        self.publish_nodes();
        self.is_routed = self.has_shards_on_nodes();
        self.batch.is_blocked = true;
        let failure = self.failure(fault, Written::Unknown);
        let recorder = self.recorder();
        recorder.publish();
        if waiting > 0 {
            recorder.failed(&failure, waiting);
        }
        self.dedup.abandon(passed);
    }

    /// Forgets everything in a forked child: it belongs to the parent.
    pub(crate) fn forget(&mut self) {
        for at in 0..self.links.len() {
            if let Link::Open(transport) = std::mem::replace(&mut self.links[at], Link::Closed) {
                transport.forget();
            }
            self.lanes.get_mut(at).forget();
            self.retry_waits[at] = RetryWaits::default();
        }
        self.servers.forget();
        self.node_states.forget();
        self.publish_nodes();
        self.is_routed = self.has_shards_on_nodes();
        self.outcomes.clear();
        self.outcomes.recorder.forget();
        self.begin(None, 0);
    }
}
