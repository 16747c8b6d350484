//! Encodes messages for its lanes, drives them, and collects the outcomes in the order of the messages.
//!
//! No threads, no locks: every public call of the dispatcher runs the loop here as far as it needs to. The [`Encoder`] turns
//! messages into commands, the [`Sender`] moves them: each [`Lane`](lane::Lane) has one connection, to the only server or to a
//! node. What replies and losses mean is decided in [`connection`](crate::connection).

mod clock;
mod dedup;
mod encode;
mod lane;
mod lanes;
mod node_state;
mod outcome_queue;
mod preflight;
mod preparation;
mod replica_count;
mod retry_waits;
mod sender;
mod server_changes;
mod shard_registry;
mod stream_routes;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::command::EntryId;
use crate::command::xadd::{FieldNames, Target, XaddEncoder};
use crate::connection::{BatchState, Connection, Limits, Owner, Rules};
use crate::durability::Durability;
use crate::endpoint::{Endpoint, Trim};
use crate::error::{Classifier, Error, Failure, Fault, Result, Written, code};
use crate::net::{Interest, Watch, block_on};
use crate::random;
use crate::report::Recorder;
use crate::retry::RetryPolicy;
use crate::rows::{CallerId, RowIds, Rows};

pub(crate) use dedup::ExactlyOnce;
#[cfg(any(test, fuzzing))]
pub(crate) use dedup::{IDMP_ARGUMENTS, IdempotencyIds, OpenRun, ScriptBatch};
#[cfg(any(test, fuzzing))]
pub(crate) use lanes::Lanes;
#[cfg(any(test, fuzzing))]
pub(crate) use outcome_queue::OutcomeQueue;
pub(crate) use sender::Errand;

use dedup::Dedup;
use encode::{Encoder, Refused, form_of};
use lane::Lane;
#[cfg(not(any(test, fuzzing)))]
use lanes::Lanes;
#[cfg(not(any(test, fuzzing)))]
use outcome_queue::OutcomeQueue;
use sender::{Goal, Pass, Sender, WATCH_EVERY, earliest};

/// If a quarter of the window drains within this time, the next wait ends with the first byte.
const QUICK: Duration = Duration::from_micros(500);
/// How many rows are encoded before the watch is asked again: bad rows take no room in the window, and so never wait.
const WATCH_ROWS: usize = 1024;

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

/// How far a producer got without waiting.
#[derive(Debug)]
pub(crate) enum Advance {
    /// All that can be done now is done. The time when there is more to do if no [socket](Producer::interests) is ready before;
    /// `None`: only the sockets matter.
    Done(Option<Instant>),
    /// Servers must be asked first: [`run`](Producer::run) the errand of this lane, and advance again.
    Errand(usize, Errand),
}

#[derive(Debug)]
pub(crate) struct Producer {
    encoder: Encoder,
    dedup: Dedup,
    sender: Sender,
    /// When the watch was last asked.
    watched: Instant,
    /// When the window last had no room.
    full: Instant,
    /// Whether the window had no room again after a short time.
    is_quick: bool,
    /// While rows are encoded together: the first of them, and how many commands had been added before it.
    encoding: Option<(usize, u64)>,
}

impl Producer {
    pub(crate) fn new(endpoint: Endpoint, options: ProducerOptions) -> Self {
        let ProducerOptions { classifier, retry, exactly_once, durability, limits, names } = options;
        let xadd = XaddEncoder::new(&endpoint, &names);
        let mut dedup = Dedup::new(exactly_once.as_ref(), durability.is_some(), limits.max_bytes, &xadd);
        if !matches!(dedup, Dedup::Off) {
            dedup.begin(random::token(), 0);
        }
        let mut outcomes = OutcomeQueue::default();
        let max_redirects = endpoint.cluster().map(|cluster| cluster.max_redirects);
        let lanes = if max_redirects.is_some() || endpoint.is_undecided() {
            Lanes::of_cluster(endpoint.stream_key(), durability, Arc::clone(outcomes.recorder().counters()))
        } else {
            Lanes::of_server(retry.is_some() || matches!(dedup, Dedup::Script(_)), durability)
        };
        let rules = Rules {
            classifier,
            retry,
            nomkstream: endpoint.nomkstream(),
            min_id: endpoint.trim().and_then(Trim::min_id).map(|(ms, seq)| EntryId { ms, seq }),
            exactly_once: exactly_once.is_some(),
            forgets_ids: matches!(dedup, Dedup::Idmp(_)),
            max_redirects,
        };
        let now = Instant::now();
        Self {
            encoder: Encoder::new(xadd),
            dedup,
            sender: Sender::new(endpoint, limits, rules, lanes, outcomes),
            watched: now,
            full: now,
            is_quick: false,
            encoding: None,
        }
    }

    /// The recorded outcomes, and the message IDs. The ID of a message is added before the message is encoded.
    #[inline]
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        self.sender.outcomes.recorder()
    }

    /// Whether every message has its outcome.
    pub(crate) fn is_idle(&self) -> bool {
        self.sender.is_idle()
    }

    /// Whether the next message can be encoded without waiting.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sender.has_room(self.dedup.runs_in_window())
    }

    /// Whether there is room in the window.
    pub(crate) fn has_room_in_window(&self) -> bool {
        self.sender.has_room_in_window()
    }

    /// Whether a quarter of the window is free.
    pub(crate) fn has_ample_room(&self) -> bool {
        self.sender.has_ample_room()
    }

    /// The failure of every message of the endpoint's stream in this batch, if connecting failed. `None` if messages go to
    /// several streams.
    pub(crate) fn down(&self) -> Option<&Arc<Failure>> {
        self.sender.down()
    }

    /// Waits until one more message can be encoded, or the link is down.
    pub(crate) fn make_room(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        let connection = self.sender.lanes.at_home();
        if connection.until_wait() == 0 {
            connection.request_wait();
        }
        if self.sender.has_room_in_window() {
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
        self.sender.lanes.rest_asking(Instant::now());
        driven
    }

    fn reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Room => self.has_room() || self.down().is_some(),
            Goal::AmpleRoom => (self.has_room() && self.sender.has_ample_room()) || self.down().is_some(),
            Goal::Empty => self.is_idle(),
            Goal::Call => self.sender.outcomes.is_call_settled(),
        }
    }

    /// Asks the watch, unless it was asked a short time ago.
    pub(crate) fn check(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<()> {
        if now.saturating_duration_since(self.watched) < WATCH_EVERY {
            return Ok(());
        }
        self.watched = now;
        if watch.interrupted() || watch.gives_way() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Receives, sends and waits until the goal of a call is reached.
    fn drive(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let driven = self.drive_on(goal, deadline, watch);
        self.sender.end_call(driven.is_err());
        self.sender.report_waits(watch);
        self.sender.report_changes(goal == Goal::Empty, watch);
        self.publish_nodes();
        driven
    }

    fn drive_on(&mut self, goal: Goal, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let started = Instant::now();
        self.sender.begin_call();
        self.sender.leave_openings(|opening, _| opening.is_missed(started));
        while !self.reached(goal) {
            let now = Instant::now();
            self.check(now, watch)?;
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.time_out(goal, watch);
                continue;
            }
            let is_quiet = |connection: &Connection| connection.in_flight.is_empty() && !connection.retry.is_active();
            if self.sender.lanes.connections().all(is_quiet) {
                // The messages without an outcome are in an open run.
                self.close_runs();
            }
            let mut moved = false;
            let mut until = deadline;
            let mut at = 0;
            // Lanes may be added meanwhile.
            while at < self.sender.lanes.len() {
                match self.sender.pass(at, goal, now, watch) {
                    Pass::Moved => moved = true,
                    Pass::Errand(Errand::Open) if watch.gives_way() => return Err(Error::Interrupted),
                    Pass::Errand(errand) => {
                        block_on(self.sender.run(at, errand, &self.dedup, deadline, watch))?;
                        moved = true;
                    }
                    Pass::Idle => {}
                    Pass::Paused(pause) => until = earliest(until, Some(pause)),
                }
                at += 1;
            }
            self.sender.report_changes(false, watch);
            if !moved && !self.reached(goal) {
                self.publish_nodes();
                self.sender.wait(goal, (started, until), self.is_quick, watch)?;
            }
        }
        Ok(())
    }

    /// The caller stops waiting.
    fn time_out(&mut self, goal: Goal, watch: &dyn Watch) {
        self.sender.hear_out(watch);
        if !self.reached(goal) {
            let message = format!("no reply from {} before flush timed out", self.sender.endpoint);
            self.abort(&Fault::new(code::TIMEOUT, message));
        }
    }

    /// Does what can be done now for every message that waits, for a caller that has its own event loop.
    pub(crate) fn advance(&mut self, watch: &mut dyn Watch) -> Advance {
        self.sender.begin_call();
        let advanced = self.advance_lanes(watch);
        self.sender.report_waits(watch);
        let is_idle = self.is_idle();
        if is_idle {
            self.sender.lanes.rest_asking(Instant::now());
        }
        self.sender.report_changes(is_idle, watch);
        self.publish_nodes();
        advanced
    }

    fn advance_lanes(&mut self, watch: &mut dyn Watch) -> Advance {
        loop {
            self.close_runs();
            let now = Instant::now();
            let (mut moved, mut until) = (false, None);
            let mut at = 0;
            // Lanes may be added meanwhile.
            while at < self.sender.lanes.len() {
                match self.sender.pass_for_loop(at, now, watch) {
                    Pass::Moved => moved = true,
                    Pass::Idle => {}
                    Pass::Paused(pause) => until = earliest(until, Some(pause)),
                    Pass::Errand(errand) => return Advance::Errand(at, errand),
                }
                at += 1;
            }
            self.sender.report_changes(false, watch);
            if !moved && let Ok(next) = self.sender.next_step() {
                return Advance::Done(earliest(until, next));
            }
        }
    }

    /// Runs an errand for a lane.
    pub(crate) async fn run(&mut self, at: usize, errand: Errand, watch: &mut dyn Watch) -> Result<()> {
        self.sender.run(at, errand, &self.dedup, None, watch).await
    }

    /// See [`Sender::interests`].
    pub(crate) fn interests(&mut self) -> (Vec<Interest>, bool) {
        self.sender.interests()
    }

    /// Sends and receives what it can without waiting. Opens no connection, and does not trust one that was idle for long.
    pub(crate) fn poll(&mut self) {
        self.close_runs();
        self.sender.poll();
        self.publish_nodes();
    }

    /// Reports to the watch which waits for a retry began or ended since the last call.
    pub(crate) fn report_waits(&mut self, watch: &mut dyn Watch) {
        self.sender.report_waits(watch);
    }

    fn publish_nodes(&self) {
        self.sender.publish_nodes(self.dedup.runs_in_window());
    }

    /// Requests the WAIT that answered entries need, unless it has been requested. Does not wait.
    pub(crate) fn confirm_answered(&mut self) {
        let requested = self.sender.lanes.connections_mut().map(Connection::request_wait_for_answered);
        if requested.fold(false, |any, one| any | one) {
            self.poll();
        }
    }

    /// Makes messages carry the current time from now on.
    #[inline]
    pub(crate) fn refresh_time(&mut self) {
        let second = clock::unix_second();
        if self.encoder.xadd.is_new_time(second) {
            // The rows of a run share their time.
            self.close_runs();
            self.encoder.xadd.set_time(second);
        }
    }

    /// Makes messages carry no time until it is [refreshed](Self::refresh_time).
    pub(crate) fn drop_time(&mut self) {
        if self.encoder.xadd.has_time() {
            // The rows of a run share their time, or the lack of it.
            self.close_runs();
            self.encoder.xadd.drop_time();
        }
    }

    /// Encodes a message of one payload. There must be [room](Self::make_room), and the caller must still [close a full
    /// run](Self::close_full_runs).
    #[inline]
    pub(crate) fn push_payload(&mut self, payload: &[u8], id: Option<CallerId<'_>>) {
        let Self { encoder, dedup, sender, .. } = self;
        let encoded = match dedup {
            Dedup::Off => return encoder.push_payload(payload, sender),
            Dedup::Script(script) => encoder.gather_payload(script, None, payload, sender),
            Dedup::Idmp(ids) => encoder.push_payload_with_id(ids, payload, id, sender),
        };
        if let Err(refused) = encoded {
            self.refuse(refused);
        }
    }

    /// Like [`push_payload`](Self::push_payload), for the stream of a shard.
    pub(crate) fn push_payload_to_shard(&mut self, payload: &[u8], shard: usize) {
        let Self { encoder, dedup, sender, .. } = self;
        let Some(shards) = sender.endpoint.shards().cloned() else { return };
        if let Dedup::Script(script) = dedup {
            if let Err(refused) = encoder.gather_payload(script, Some(shards.key(shard)), payload, sender) {
                self.refuse(refused);
            }
            return;
        }
        let target = Target::of_shard(shard);
        let (route, at) = encoder.lane_of(target, &sender.lanes);
        if let Some(failure) = sender.lanes.get(at).down().cloned() {
            sender.fail(&failure, 1);
            return;
        }
        encoder.push_to(at, route, Owner::Report, sender, |xadd, out, _| xadd.write_payload_to(out, target, payload));
    }

    /// Prepares the rows of a record batch for [`push_batch`](Self::push_batch), once.
    pub(crate) fn begin_rows(&mut self, batch: &mut Batch<'_>) {
        self.route(batch.has_stream_keys());
        if let (Batch::Rows(rows), Dedup::Script(script)) = (batch, &mut self.dedup) {
            script.set_form(form_of(rows));
        }
    }

    /// Notes whether the next messages may name streams of their own.
    pub(crate) fn route(&mut self, names_streams: bool) {
        let Sender { lanes, endpoint, .. } = &mut self.sender;
        lanes.set_routed(names_streams || endpoint.shards().is_some());
        if lanes.is_routed() {
            lanes.name_streams();
        }
    }

    /// Encodes rows while there is [room](Self::make_room) for one more entry, or fails one that cannot be sent. `row` becomes
    /// the first row that is left: it may stop before the room is used up, so that the watch can be asked. After a panic,
    /// [`first_left`](Self::first_left) returns that row.
    pub(crate) fn push_batch(&mut self, batch: &mut Batch<'_>, ids: RowIds<'_>, row: &mut usize, end: usize) {
        let watched = end.min(row.saturating_add(WATCH_ROWS));
        while *row < watched && self.has_room() {
            let Self { encoder, dedup, sender, .. } = self;
            match (&mut *batch, dedup) {
                (Batch::Rows(rows), Dedup::Off) if sender.lanes.is_routed() => {
                    encoder.push_routed_rows(rows, row, watched, sender);
                }
                (Batch::Rows(rows), Dedup::Off) => {
                    let added = sender.lanes.at_home().in_flight.added();
                    self.encoding = Some((*row, added));
                    *row = encoder.push_rows(rows, *row..watched, sender);
                    self.encoding = None;
                }
                (Batch::Rows(rows), Dedup::Script(script)) => {
                    if let Err(refused) = encoder.gather_rows(script, rows, row, watched, sender) {
                        self.refuse(refused);
                        *row += 1;
                    }
                    self.close_full_runs();
                }
                (Batch::Rows(rows), Dedup::Idmp(idempotency)) => {
                    if let Err(refused) = encoder.push_row_with_id(idempotency, rows, *row, ids.get(*row), sender) {
                        self.refuse(refused);
                    }
                    *row += 1;
                }
                (Batch::Payloads(rows, names, constants), _) => {
                    *row = encoder.push_payloads_of_one(rows, names, constants, *row..end, sender);
                }
                (Batch::Arrow { encoder: arrow, batch, rows_per_entry, constants }, _) => {
                    let range = *row..end.min(*row + *rows_per_entry);
                    *row = encoder.push_arrow(arrow, batch, constants, range, sender);
                }
            }
        }
    }

    /// The first row that is left after a panic. Rows that were encoded together are counted by their commands: storing a number
    /// for each row would slow down every row.
    pub(crate) fn first_left(&mut self, row: usize) -> usize {
        match self.encoding.take() {
            Some((first, added)) => first + (self.sender.lanes.at_home().in_flight.added() - added) as usize,
            None => row,
        }
    }

    /// Removes the row that a panic left half-encoded: no byte of it was sent. `passed`: how many rows of the exactly-once batch
    /// come before it.
    pub(crate) fn take_back(&mut self, passed: u64) {
        for connection in self.sender.lanes.connections_mut() {
            connection.send.truncate(connection.in_flight.unsent());
        }
        self.dedup.take_back(passed);
    }

    /// Gives the caller's record batch back: payloads that were not sent are copied.
    pub(crate) fn give_back(&mut self) {
        self.sender.route_to_shards();
        self.sender.lanes.connections_mut().for_each(|connection| connection.send.own());
    }

    /// Encodes the open runs, if rows are gathered into runs.
    fn close_runs(&mut self) {
        if let Dedup::Script(script) = &mut self.dedup {
            script.close_all(&mut self.sender.sink(&self.encoder.xadd));
        }
    }

    /// Encodes the run of the last row if it has as many rows or bytes as a run may have, and other runs if all of them together
    /// have too many bytes.
    pub(crate) fn close_full_runs(&mut self) {
        if let Dedup::Script(script) = &mut self.dedup {
            script.close_full(&mut self.sender.sink(&self.encoder.xadd));
        }
    }

    /// Gives a row that is not sent its outcome.
    #[cold]
    fn refuse(&mut self, refused: Refused) {
        if let Dedup::Idmp(ids) = &mut self.dedup {
            ids.pass(1);
        }
        match refused {
            Refused::Ever(fault) => self.sender.refuse(&fault, 1),
            Refused::Now(fault) => {
                let failure = self.unsent(&fault);
                self.fail(&failure, 1);
            }
        }
    }

    /// Skips a row of this stream key (`None`: the endpoint's) in the deduplication: it is not sent.
    fn lose_row(&mut self, stream_key: Option<&[u8]>) {
        match &mut self.dedup {
            Dedup::Off => {}
            Dedup::Script(script) => {
                let mut sink = self.sender.sink(&self.encoder.xadd);
                let stream_key = stream_key.unwrap_or(sink.own_key);
                script.lose_row((!stream_key.is_empty()).then_some(stream_key), &mut sink);
            }
            Dedup::Idmp(ids) => ids.pass(1),
        }
    }

    /// Gives `count` messages of the endpoint's stream, or of one of its shards, an outcome that needs no server.
    pub(crate) fn push_failed(&mut self, failure: &Arc<Failure>, count: u64, shard: Option<usize>) {
        let shards = self.sender.endpoint.shards().cloned();
        let stream_key = shards.as_ref().zip(shard).map(|(shards, shard)| shards.key(shard));
        for _ in 0..count {
            self.lose_row(stream_key);
        }
        self.fail(failure, count);
    }

    /// Gives rows of a record batch an outcome that needs no server.
    pub(crate) fn push_failed_rows(&mut self, failure: &Arc<Failure>, batch: &Batch<'_>, rows: Range<usize>) {
        let count = rows.len() as u64;
        rows.for_each(|row| self.lose_row(batch.stream_key(row)));
        self.fail(failure, count);
    }

    /// Gives messages that were lost in a panic an outcome: their streams are unknown.
    pub(crate) fn push_lost(&mut self, fault: &Fault, count: u64) {
        self.close_runs();
        match &mut self.dedup {
            Dedup::Off => {}
            Dedup::Script(script) => script.batch.lose_all(),
            Dedup::Idmp(ids) => ids.pass(count),
        }
        let failure = self.unsent(fault);
        self.fail(&failure, count);
    }

    fn fail(&mut self, failure: &Arc<Failure>, count: u64) {
        self.sender.batch.is_blocked |= matches!(self.dedup, Dedup::Script(_));
        self.sender.fail(failure, count);
    }

    /// The failure of messages that this try did not send.
    pub(crate) fn unsent(&self, fault: &Fault) -> Arc<Failure> {
        self.sender.unsent(fault)
    }

    /// Sends one message after all others and waits for its outcome.
    pub(crate) fn call(
        &mut self,
        message: &Rows<'_>,
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<EntryId, Failure>> {
        let fields = match message.field_count(0) {
            Ok(fields) => fields,
            Err(fault) => {
                let failure = self.sender.failure(&fault, Written::No);
                return Ok(Err(self.failed_call(&failure)));
            }
        };
        self.make_room(watch)?;
        let target = self.encoder.target_of(message);
        if !matches!(target, Target::Own) {
            // The command of a call does not queue behind others that must be sent again.
            self.drive(Goal::Empty, None, watch)?;
        }
        let Self { encoder, sender, .. } = self;
        let lane = encoder.lane_of(target, &sender.lanes);
        if let Some(failure) = sender.lanes.get(lane.1).down().cloned() {
            return Ok(Err(self.failed_call(&failure)));
        }
        sender.outcomes.begin_call();
        encoder.push_call(message, fields, target, lane, sender);
        let driven = self.drive(Goal::Call, None, watch);
        // The retries may have ended with this message, which must be reported now.
        let (lane, mut cx) = self.sender.lane(lane.1, Instant::now());
        lane.take_own_retry_step(&mut cx);
        self.report_waits(watch);
        self.sender.outcomes.end_call().ok_or_else(|| driven.err().unwrap_or(Error::Interrupted))
    }

    /// The failure of a call that sends nothing.
    fn failed_call(&mut self, failure: &Failure) -> Failure {
        self.recorder().counters().failed(&failure.code, 1);
        failure.clone()
    }

    /// Allows the next batch to connect again.
    pub(crate) fn lift(&mut self) {
        self.sender.lanes.all_mut().for_each(Lane::lift);
    }

    /// Starts another batch; every message has its outcome. `token`: the caller's, if it names the batch.
    pub(crate) fn begin(&mut self, token: Option<String>, version: u64) {
        let unattempted = if token.is_some() { Written::Unknown } else { Written::No };
        self.sender.batch = BatchState { is_blocked: false, unattempted };
        if !matches!(self.dedup, Dedup::Off) {
            let token = token.unwrap_or_else(random::token);
            // With a different number of shards, rows would count in different streams.
            let token =
                self.sender.endpoint.shards().map_or(token.clone(), |shards| format!("{token}/{}", shards.count()));
            self.dedup.begin(token, version);
        }
    }

    /// Counts all reported messages as passed. Returns whether another batch started instead.
    ///
    /// After rows of unknown streams were lost, the numbers of later rows are unknown too: these stay blocked until the caller
    /// begins the batch again. Only a batch without the caller's token, which is never repeated, can be replaced here.
    pub(crate) fn skip_failed(&mut self) -> bool {
        let Dedup::Script(script) = &mut self.dedup else { return false };
        let (is_lost, is_named) = (script.batch.is_lost(), self.sender.batch.unattempted != Written::No);
        if !is_lost {
            script.batch.skip_failed();
            self.sender.batch.is_blocked = false;
        } else if !is_named {
            self.begin(None, 0);
        }
        is_lost && !is_named
    }

    /// Closes the connections cleanly. Every message has its outcome.
    pub(crate) fn close(&mut self) {
        self.sender.close();
    }

    /// Fails every message that waits, and replaces the connections that they wait for.
    pub(crate) fn abort(&mut self, fault: &Fault) {
        self.sender.abort(fault);
    }

    /// Whether a call must report that a panic ended the reading of replies. Returns true once.
    pub(crate) fn take_defect(&mut self) -> bool {
        self.sender.lanes.connections_mut().map(Connection::take_defect).fold(false, |any, one| any | one)
    }

    /// Gives up the connections and everything that waits, after a panic in the middle of a change: it is unknown whether the
    /// `waiting` messages without an outcome were written. `passed`: how many rows of the exactly-once batch were handed over.
    pub(crate) fn abandon(&mut self, fault: &Fault, waiting: u64, passed: u64) {
        self.sender.abandon();
        self.publish_nodes();
        self.sender.batch.is_blocked = true;
        let failure = self.sender.failure(fault, Written::Unknown);
        let recorder = self.recorder();
        recorder.publish();
        if waiting > 0 {
            recorder.failed(&failure, waiting);
        }
        self.dedup.abandon(passed);
    }

    /// Forgets everything in a forked child: it belongs to the parent.
    pub(crate) fn forget(&mut self) {
        self.sender.forget();
        self.publish_nodes();
        self.begin(None, 0);
    }
}
