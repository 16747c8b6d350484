//! The public API of the core: messages go in, outcomes come out.

mod event_loop;
mod layout;
mod options;
mod routed;
mod shared;
mod tasks;

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::batch::{Batch, BatchLayout, BatchPlan};
use crate::command::EntryId;
use crate::command::xadd::FieldNames;
use crate::connection::Limits;
use crate::contain::{Panicked, contain};
use crate::counters::Counters;
use crate::durability::Durability;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Failure, Fault, Result, code};
use crate::fail;
use crate::net::Watch;
use crate::producer::{Advance, Errand, ExactlyOnce, Producer, ProducerOptions};
use crate::report::DeliveryReport;
use crate::rows::{CallerId, IdColumn, Layout, MAX_MESSAGE_ID, Message, RowIds, Rows};
use crate::shards::Shards;

pub use event_loop::{LoopDispatcher, Progress};
pub use layout::{JsonColumns, LAYOUT_OPTIONS, LayoutOptions};
pub use options::{DISPATCHER_OPTIONS, DispatcherOptions};
pub use routed::RoutedDispatcher;
pub use shared::SharedDispatcher;
pub use tasks::TaskDispatcher;

/// The longest token, in bytes.
const MAX_TOKEN: usize = 1024;
/// The highest version: scripts count in floating-point numbers.
const MAX_VERSION: u64 = 1 << 53;

/// The caller's name for one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdArgument<'a> {
    /// None: reports name the message by its ordinal since the last flush.
    None,
    /// An integer.
    Int(i64),
    /// A text of at most [`MAX_MESSAGE_ID`] bytes.
    Text(&'a str),
}

impl<'a> From<IdArgument<'a>> for Option<CallerId<'a>> {
    fn from(id: IdArgument<'a>) -> Self {
        match id {
            IdArgument::None => None,
            IdArgument::Int(id) => Some(CallerId::Int(id)),
            IdArgument::Text(id) => Some(CallerId::Text(id)),
        }
    }
}

/// Sends messages to one endpoint, over one connection or one to each node of a cluster, and reports the outcome of each message.
///
/// No connection exists before it is needed. `produce*` encode and, when a chunk is full, send; `flush` waits until every message
/// has its outcome. A forked process finds its dispatcher empty: what was handed over before the fork belongs to the parent.
#[derive(Debug)]
pub struct Dispatcher {
    producer: Producer,
    names: Arc<FieldNames>,
    shards: Option<Arc<Shards>>,
    exactly_once: Option<ExactlyOnce>,
    fork: forkguard::Guard,
    closed: bool,
    /// Messages without an outcome in a report.
    unreported: u64,
    /// The number of messages before the batch that was started last.
    begun_at: u64,
}

impl Dispatcher {
    /// Opens no connection. Refuses options that exclude options of the endpoint.
    pub fn new(endpoint: Endpoint, options: DispatcherOptions) -> Result<Self> {
        if let (Some(ExactlyOnce::Idmp { .. }), Some(_)) = (&options.exactly_once, endpoint.shards()) {
            let message =
                "exactly_once 'idmp' and shards are mutually exclusive: names belong to one stream; use 'script'";
            return Err(Error::config("exactly_once", message));
        }
        // A command is one row, or a run of them.
        let rows = match options.exactly_once {
            Some(ExactlyOnce::Script { run_rows, .. }) => run_rows,
            Some(ExactlyOnce::Idmp { .. }) | None => 1,
        };
        let max_entries = options.window_max_entries.div_ceil(rows as usize);
        let durability =
            options.durability.map(|durability| Durability { every: durability.every.div_ceil(rows), ..durability });
        let limits = Limits { max_entries, max_bytes: options.window_max_bytes };
        let classifier = Classifier::new(options.classify, options.error_overrides);
        let names = FieldNames {
            payload: options.payload_field,
            ts: options.ts_field,
            is_ts_given: options.is_ts_given,
            key: endpoint.key_field().map(str::to_owned),
        };
        check_key_field(&names)?;
        Ok(Self {
            shards: endpoint.shards().cloned(),
            producer: Producer::new(
                endpoint,
                ProducerOptions {
                    classifier,
                    retry: options.retry,
                    exactly_once: options.exactly_once.clone(),
                    durability,
                    limits,
                    names: names.clone(),
                },
            ),
            names: Arc::new(names),
            exactly_once: options.exactly_once,
            fork: forkguard::new(),
            closed: false,
            unreported: 0,
            begun_at: 0,
        })
    }

    /// The dispatcher's counters, which outlive it.
    pub fn counters(&mut self) -> Arc<Counters> {
        Arc::clone(self.producer.recorder().counters())
    }

    /// How many messages have no outcome in a report yet.
    pub fn unreported(&self) -> u64 {
        if self.is_forked() { 0 } else { self.unreported }
    }

    /// Whether [`produce`](Self::produce) can take a message now. If not, [`make_room`](Self::make_room) waits for it.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool> {
        self.enter()?;
        Ok(self.producer.has_room())
    }

    /// Whether the window has no room for another message.
    fn is_window_full(&self) -> bool {
        !self.producer.has_room_in_window()
    }

    /// Whether a quarter of the window is free.
    fn has_ample_room(&self) -> bool {
        self.producer.has_ample_room()
    }

    /// Waits until there is room for one more message.
    pub fn make_room(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        self.guarded(|dispatcher| dispatcher.producer.make_room(watch))
    }

    /// Takes one message without waiting. Without [room](Self::has_room) it takes nothing: [`Error::Full`]. Shards take turns.
    #[inline]
    pub fn produce(&mut self, payload: &[u8], id: IdArgument<'_>) -> Result<()> {
        self.enter()?;
        if self.shards.is_some() {
            return self.produce_to_shard(payload, id);
        }
        if !self.producer.has_room() {
            return self.produce_without_room(id, None);
        }
        self.add_id(id)?;
        self.producer.refresh_time();
        if contain(|| self.producer.push_payload(payload, id.into())).is_err() {
            return self.give_up_message(None);
        }
        self.close_full_runs()
    }

    /// Like [`produce`](Self::produce), for a message with fields, a shard key, or a stream key or an entry ID of its own. Without
    /// room, [`make_room_for`](Self::make_room_for) waits for it.
    pub fn produce_message(&mut self, message: &Message<'_>, id: IdArgument<'_>) -> Result<()> {
        self.enter()?;
        self.with_rows(message, |dispatcher, rows| {
            let mut batch = Batch::Rows(rows);
            dispatcher.producer.begin_rows(&mut batch);
            dispatcher.take_message(&mut batch, id)
        })
    }

    /// Takes a message without waiting, and returns whether there was room for it.
    #[inline]
    fn take(&mut self, message: &Message<'_>, id: IdArgument<'_>) -> Result<bool> {
        let produced = match *message {
            Message { payload: Some(payload), fields: [], stream_key: None, entry_id: None, key: None } => {
                self.produce(payload, id)
            }
            _ => self.produce_message(message, id),
        };
        match produced {
            Err(Error::Full) => Ok(false),
            produced => produced.map(|()| true),
        }
    }

    /// Waits until there is room for this message.
    pub fn make_room_for(&mut self, message: &Message<'_>, watch: &mut dyn Watch) -> Result<()> {
        self.make_room_in(message.stream_key.is_some(), watch)
    }

    /// Waits until there is room for a message, which may name a stream of its own.
    fn make_room_in(&mut self, names_stream: bool, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        self.producer.route(names_stream);
        let made = self.guarded(|dispatcher| dispatcher.producer.make_room(watch));
        self.producer.give_back();
        made
    }

    /// Passes the message to `take` as the only row of a batch. Refuses what the endpoint or the options rule out.
    fn with_rows<T>(
        &mut self,
        message: &Message<'_>,
        take: impl FnOnce(&mut Self, Rows<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_message(message)?;
        let shard =
            if self.shards.is_none() && message.key.is_none() { None } else { Some(self.shard_of(message.key)?) };
        let (names, shards) = (Arc::clone(&self.names), self.shards.clone());
        let key_ends = message.key_ends();
        let shard = shards.as_deref().zip(shard);
        let rows = message.rows(&names.payload, names.key.as_deref(), shard, &key_ends);
        let taken = take(self, rows);
        self.producer.give_back();
        taken
    }

    /// Takes the only message of a batch.
    fn take_message(&mut self, batch: &mut Batch<'_>, id: IdArgument<'_>) -> Result<()> {
        // At the turn of a second this closes the runs of the messages before, which may fill the window.
        self.producer.refresh_time();
        if !self.producer.has_room() {
            let failure = self.producer.down().cloned().ok_or(Error::Full)?;
            self.add_id(id)?;
            self.producer.push_failed_rows(&failure, batch, 0..1);
            return Ok(());
        }
        self.add_id(id)?;
        let (ids, mut taken) = (RowIds::from(Option::<CallerId<'_>>::from(id)), 0);
        if contain(|| self.producer.push_batch(batch, ids, &mut taken, 1)).is_err() || taken == 0 {
            self.fail_from(batch, 0, 1);
            return Err(Error::Internal { message: "the message was not encoded".to_owned() });
        }
        Ok(())
    }

    fn check_message(&self, message: &Message<'_>) -> Result<()> {
        let (has_stream_key, has_entry_id) = (message.stream_key.is_some(), message.entry_id.is_some());
        if has_stream_key && self.shards.is_some() {
            let message = "stream_key and shards are mutually exclusive: shards are streams of the endpoint's stream key; take key";
            return Err(Error::config("stream_key", message));
        }
        if matches!(self.exactly_once, Some(ExactlyOnce::Idmp { .. })) {
            check_own_stream(has_stream_key, has_entry_id)?;
        }
        let is_named = |name: &str| message.fields.iter().any(|(field, _)| *field == name.as_bytes());
        if let Some(ts) = self.names.ts.as_deref().filter(|ts| is_named(ts)) {
            return Err(Error::message(format!(
                "fields has {ts:?}, which is also the name of the entry's time: rename the field, or choose another ts_field"
            )));
        }
        if let Some(key) = self.names.key.as_deref().filter(|key| is_named(key)) {
            return Err(Error::message(format!(
                "fields has {key:?}, which is also the key_field of the endpoint: rename the field, or choose another key_field"
            )));
        }
        if let Some(name) = message.payload.map(|_| &self.names.payload).filter(|name| is_named(name)) {
            return Err(Error::message(format!(
                "fields has {name:?}, which is also the name of the payload's field: rename the field, or choose another \
                 payload_field"
            )));
        }
        Ok(())
    }

    #[inline(never)]
    fn produce_to_shard(&mut self, payload: &[u8], id: IdArgument<'_>) -> Result<()> {
        let shard = self.shard_of(None)?;
        if !self.producer.has_room() {
            return self.produce_without_room(id, Some(shard));
        }
        self.add_id(id)?;
        self.producer.refresh_time();
        if contain(|| self.producer.push_payload_to_shard(payload, shard)).is_err() {
            return self.give_up_message(Some(shard));
        }
        self.close_full_runs()
    }

    #[inline]
    fn close_full_runs(&mut self) -> Result<()> {
        if self.exactly_once.is_some() {
            return self.guarded(|dispatcher| {
                dispatcher.producer.close_full_runs();
                Ok(())
            });
        }
        Ok(())
    }

    /// Fails the message whose encoding ended in a panic.
    #[cold]
    fn give_up_message(&mut self, shard: Option<usize>) -> Result<()> {
        let passed = self.passed() - 1;
        self.producer.take_back(passed);
        let failure = self.producer.unsent(&not_encoded());
        self.producer.push_failed(&failure, 1, shard);
        Err(Error::Internal { message: "the message was not encoded".to_owned() })
    }

    /// Refuses a message for which there is no room, or fails it with the others if connecting failed.
    #[cold]
    fn produce_without_room(&mut self, id: IdArgument<'_>, shard: Option<usize>) -> Result<()> {
        let failure = self.producer.down().cloned().ok_or(Error::Full)?;
        self.add_id(id)?;
        self.producer.push_failed(&failure, 1, shard);
        Ok(())
    }

    /// The number of the shard of the next message.
    fn shard_of(&mut self, key: Option<&[u8]>) -> Result<usize> {
        let Some(shards) = &self.shards else {
            return Err(Error::config("key", "key needs the option shards of the endpoint: the number of streams"));
        };
        if let Some(key) = key {
            return Ok(shards.of_key(key));
        }
        let shards = Arc::clone(shards);
        Ok(shards.of_ordinal(self.passed()))
    }

    #[inline]
    fn add_id(&mut self, id: IdArgument<'_>) -> Result<()> {
        match id {
            IdArgument::None => self.producer.recorder().push_ordinals(1),
            IdArgument::Int(id) => self.producer.recorder().push_int(id),
            IdArgument::Text(id) if id.len() > MAX_MESSAGE_ID => {
                let length = id.len();
                return Err(Error::message(format!("a message ID has at most {MAX_MESSAGE_ID} bytes: got {length}")));
            }
            IdArgument::Text(id) => self.producer.recorder().push_text(id),
        }
        self.unreported += 1;
        self.producer.recorder().counters().messages.add(1);
        Ok(())
    }

    /// Resolves `layout` against `schema`: once for all record batches of that schema.
    pub fn plan(&mut self, schema: &SchemaRef, layout: &BatchLayout) -> Result<BatchPlan> {
        self.enter()?;
        match (&self.exactly_once, layout) {
            (None, _) | (Some(ExactlyOnce::Script { .. }), BatchLayout::Rows(_)) => {}
            (Some(ExactlyOnce::Idmp { by_message_id, .. }), BatchLayout::Rows(layout)) => {
                check_named(layout, *by_message_id)?;
            }
            (Some(_), BatchLayout::Payloads(..) | BatchLayout::Arrow { .. }) => {
                let message = "exactly_once excludes rows_per_entry and arrow_ipc: an entry has one row then";
                return Err(Error::config("exactly_once", message));
            }
        }
        BatchPlan::new(schema, layout, &self.names, self.shards.as_ref())
    }

    /// Takes every row of a record batch, each as a message, and waits for room if necessary. The record batch is not read after
    /// this returns.
    ///
    /// If `watch` interrupts it, the rows that were not taken fail: retryable, `INTERRUPTED`, written no (unknown in a batch that
    /// was started with [`begin`](Self::begin)). If it panics, they fail likewise: permanent, `INTERNAL`.
    pub fn produce_batch(&mut self, batch: &RecordBatch, plan: &mut BatchPlan, watch: &mut dyn Watch) -> Result<()> {
        let mut row = 0;
        let taken = self.take_batch(batch, &mut row, plan, watch);
        if let Some(fault) = taken.as_ref().err().and_then(fault_of_rest) {
            self.refuse_rows(batch, row, plan, &fault);
        }
        taken
    }

    /// Like [`produce_batch`](Self::produce_batch), from `row` on, which becomes the first row that has no outcome and was not
    /// taken: if it is interrupted or panics, the caller decides on the others.
    fn take_batch(
        &mut self,
        batch: &RecordBatch,
        row: &mut usize,
        plan: &mut BatchPlan,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        self.enter()?;
        let from = *row;
        let rest = &batch.slice(from, batch.num_rows() - from);
        let (count, carries_time) = (rest.num_rows(), plan.carries_time());
        let first = self.passed();
        let bound = contain(|| {
            fail::point("bind");
            plan.bind(rest, first)
        });
        let Ok(bound) = bound else {
            *row = batch.num_rows();
            return Err(self.give_up_batch(rest, plan));
        };
        let (mut rows, ids) = bound?;
        let mut taken = 0;
        let ended = self.guarded(|dispatcher| {
            let ended = dispatcher.take_rows(&mut rows, ids.as_ref(), &mut taken, count, carries_time, watch);
            dispatcher.producer.give_back();
            ended
        });
        *row += taken;
        match ended? {
            None => Ok(()),
            Some(row) => Err(Error::Internal { message: plan.describe(batch, from + row) }),
        }
    }

    /// Like [`produce_batch`](Self::produce_batch), but without waiting or sending: takes rows from row `from` on while there is
    /// [room](Self::has_room), and returns how many. The caller continues after them, immediately or when a later
    /// [`advance`](LoopDispatcher::advance) has made room.
    ///
    /// One call encodes about 1,024 rows at most, or one entry of `rows_per_entry` rows, so that it takes a few milliseconds. If
    /// it panics, the same number of rows still get an outcome: permanent, `INTERNAL`.
    pub fn produce_rows(&mut self, batch: &RecordBatch, from: usize, plan: &mut BatchPlan) -> Result<usize> {
        self.enter()?;
        let slice = &batch.slice(from, plan.slice_rows().min(batch.num_rows() - from));
        let (count, carries_time) = (slice.num_rows(), plan.carries_time());
        let first = self.passed();
        let bound = contain(|| {
            fail::point("bind");
            plan.bind(slice, first)
        });
        let Ok(bound) = bound else { return Err(self.give_up_batch(slice, plan)) };
        let (mut rows, ids) = bound?;
        let taken = self.guarded(|dispatcher| {
            let taken = dispatcher.take_first_rows(&mut rows, ids.as_ref(), count, carries_time);
            dispatcher.producer.give_back();
            Ok(taken)
        });
        match taken? {
            Ok(taken) => Ok(taken),
            Err(row) => Err(Error::Internal { message: plan.describe(batch, from + row) }),
        }
    }

    /// Returns how many rows were taken; `Err`: the row at which a panic ended the call. This row and those after it have failed.
    fn take_first_rows(
        &mut self,
        rows: &mut Batch<'_>,
        ids: Option<&IdColumn>,
        count: usize,
        carries_time: bool,
    ) -> std::result::Result<usize, usize> {
        self.producer.begin_rows(rows);
        if let Some(failure) = self.producer.down().cloned() {
            self.add_ids(ids, 0..count);
            self.producer.push_failed_rows(&failure, rows, 0..count);
            return Ok(count);
        }
        if carries_time {
            self.producer.refresh_time();
        } else {
            self.producer.drop_time();
        }
        let mut row = 0;
        if contain(|| self.producer.push_batch(rows, ids.into(), &mut row, count)).is_err() {
            self.add_ids(ids, 0..count);
            return Err(self.fail_from(rows, row, count));
        }
        self.add_ids(ids, 0..row);
        Ok(row)
    }

    /// Adds the IDs of these rows, of all IDs of the record batch.
    fn add_ids(&mut self, ids: Option<&IdColumn>, rows: Range<usize>) {
        let count = rows.len() as u64;
        match ids {
            None => self.producer.recorder().push_ordinals(count),
            Some(ids) => self.producer.recorder().push_column(ids.slice(rows.start, rows.len())),
        }
        self.unreported += count;
        self.producer.recorder().counters().messages.add(count);
    }

    /// Fails the rows of a record batch from `from` on: nothing of them was sent.
    #[cold]
    fn refuse_rows(&mut self, batch: &RecordBatch, from: usize, plan: &mut BatchPlan, fault: &Fault) {
        if from >= batch.num_rows() {
            return;
        }
        let batch = &batch.slice(from, batch.num_rows() - from);
        let first = self.passed();
        let Ok(Ok((rows, ids))) = contain(|| plan.bind(batch, first)) else {
            self.give_up_batch(batch, plan);
            return;
        };
        let refused = self.guarded(|dispatcher| {
            dispatcher.add_ids(ids.as_ref(), 0..batch.num_rows());
            let failure = dispatcher.producer.unsent(fault);
            dispatcher.producer.push_failed_rows(&failure, &rows, 0..batch.num_rows());
            Ok(())
        });
        drop(refused);
    }

    /// Fails all rows of a record batch whose columns a panic left unread.
    #[cold]
    fn give_up_batch(&mut self, batch: &RecordBatch, plan: &BatchPlan) -> Error {
        let (ids, count) = (contain(|| plan.ids(batch)).ok().and_then(Result::ok).flatten(), batch.num_rows());
        let given_up = self.guarded(|dispatcher| {
            dispatcher.add_ids(ids.as_ref(), 0..count);
            if plan.has_stream_keys() {
                dispatcher.producer.push_lost(&not_encoded(), count as u64);
            } else {
                let failure = dispatcher.producer.unsent(&not_encoded());
                dispatcher.producer.push_failed(&failure, count as u64, None);
            }
            Ok(())
        });
        given_up.err().unwrap_or_else(|| Error::Internal { message: plan.describe(batch, 0) })
    }

    /// After a panic, fails the row that caused it and those after it, up to `end`. Returns which row it was.
    #[cold]
    fn fail_from(&mut self, rows: &Batch<'_>, row: usize, end: usize) -> usize {
        let row = self.producer.first_left(row);
        let passed = self.passed() - (end - row) as u64;
        self.producer.take_back(passed);
        self.fail_rest(rows, row..end);
        row
    }

    /// Fails rows that were handed over and not taken because of a panic.
    fn fail_rest(&mut self, rows: &Batch<'_>, range: Range<usize>) {
        // The column that panicked may be the one with the stream keys.
        let keys = contain(|| range.clone().filter_map(|row| rows.stream_key(row)).count());
        if keys.is_ok() {
            let failure = self.producer.unsent(&not_encoded());
            self.producer.push_failed_rows(&failure, rows, range);
        } else {
            self.producer.push_lost(&not_encoded(), range.len() as u64);
        }
    }

    /// Returns the row at which a panic ended the call, if one did: this row and those after it have failed. `row` becomes the
    /// first row that was not taken.
    fn take_rows(
        &mut self,
        rows: &mut Batch<'_>,
        ids: Option<&IdColumn>,
        row: &mut usize,
        count: usize,
        carries_time: bool,
        watch: &mut dyn Watch,
    ) -> Result<Option<usize>> {
        self.producer.begin_rows(rows);
        while *row < count {
            self.producer.check(Instant::now(), watch)?;
            self.producer.make_room(watch)?;
            let from = *row;
            if let Some(failure) = self.producer.down().cloned() {
                *row = count;
                self.add_ids(ids, from..count);
                self.producer.push_failed_rows(&failure, rows, from..count);
                break;
            }
            if carries_time {
                self.producer.refresh_time();
            } else {
                self.producer.drop_time();
            }
            if contain(|| self.producer.push_batch(rows, ids.into(), row, count)).is_err() {
                self.add_ids(ids, from..count);
                let failed = self.fail_from(rows, *row, count);
                *row = count;
                return Ok(Some(failed));
            }
            self.add_ids(ids, from..*row);
        }
        self.producer.poll();
        self.producer.report_waits(watch);
        Ok(None)
    }

    /// Returns the outcomes since the last report. Never waits.
    pub fn poll(&mut self, watch: &mut dyn Watch) -> Result<DeliveryReport> {
        self.enter()?;
        self.guarded(|dispatcher| {
            dispatcher.producer.poll();
            dispatcher.producer.confirm_answered();
            dispatcher.producer.report_waits(watch);
            if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
        })?;
        Ok(self.report(false))
    }

    /// Does what [`flush`](Self::flush) does for every message, as far as possible without waiting.
    fn advance(&mut self, watch: &mut dyn Watch) -> Result<Advance> {
        self.enter()?;
        self.guarded(|dispatcher| Ok(dispatcher.producer.advance(watch)))
    }

    /// Asks servers what [`advance`](Self::advance) needs to know, for this lane.
    async fn run(&mut self, at: usize, errand: Errand, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        let ran = {
            let mut run = pin!(self.producer.run(at, errand, watch));
            poll_fn(|cx| match contain(|| run.as_mut().poll(cx)) {
                Ok(polled) => polled.map(Ok),
                Err(panicked) => Poll::Ready(Err(panicked)),
            })
            .await
        };
        self.contained(ran)
    }

    /// Lets the next message connect again, if connecting failed.
    fn lift(&mut self) {
        self.producer.lift();
    }

    /// The outcomes since the last report, and the sockets to wait for. `deadline`: when to stop waiting. `lifts`: whether the next
    /// message connects again if no message is left without an outcome in a report.
    fn progress(&mut self, deadline: Option<Instant>, lifts: bool) -> Progress {
        let report = Some(self.report(false));
        if lifts && self.unreported == 0 {
            self.lift();
        }
        let (sockets, has_bytes) = self.producer.interests();
        let deadline = if has_bytes { Some(Instant::now()) } else { deadline };
        Progress { report, sockets, deadline }
    }

    /// Waits until every message has its outcome, and returns all outcomes that no report has held yet.
    ///
    /// `timeout`: after this time, messages without a reply fail (`TIMEOUT`), and the connection is replaced. If `watch`
    /// interrupts it, nothing is lost: another flush continues.
    pub fn flush(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<DeliveryReport> {
        self.flush_from(Instant::now(), timeout, watch)
    }

    /// As [`flush`](Self::flush), for a call that began to wait at `started`.
    fn flush_from(
        &mut self,
        started: Instant,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<DeliveryReport> {
        self.enter()?;
        self.guarded(|dispatcher| {
            let drained =
                dispatcher.producer.drain(timeout.and_then(|timeout| Instant::now().checked_add(timeout)), watch);
            dispatcher.producer.recorder().counters().flushed(started.elapsed());
            drained?;
            // After this point, an interrupt would lose the report; before it, the outcomes stay here.
            if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
        })?;
        self.producer.lift();
        Ok(self.report(true))
    }

    /// Sends one message after all others, and waits for its outcome, which is in no report.
    pub fn dispatch(
        &mut self,
        message: &Message<'_>,
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<EntryId, Failure>> {
        self.enter()?;
        if self.exactly_once.is_some() {
            let message = "dispatch is not for exactly_once: produce the message and flush";
            return Err(Error::config("exactly_once", message));
        }
        let outcome = self.with_rows(message, |dispatcher, rows| {
            // The message is a batch of its own, so it may connect again.
            dispatcher.producer.lift();
            dispatcher.producer.recorder().counters().messages.add(1);
            dispatcher.producer.refresh_time();
            dispatcher.producer.route(rows.has_stream_keys());
            dispatcher.guarded(|dispatcher| dispatcher.producer.call(&rows, watch))
        });
        if self.unreported == 0 {
            self.producer.lift();
        }
        outcome
    }

    /// Exactly once: names the batch that starts here. Its rows are numbered from 0 in the order in which they are produced. Rows
    /// that an earlier try under the same token wrote are deduplicated, not written again. `version`: a batch with a higher
    /// version takes over the token; in a batch with a lower version, every row is deduplicated. If a row fails before the server
    /// was asked about it, it is unknown whether it was written: an earlier try may have written it.
    pub fn begin(&mut self, token: &str, version: u64) -> Result<()> {
        self.enter()?;
        if self.exactly_once.is_none() {
            let message = "begin needs exactly_once 'auto', 'idmp' or 'script', got 'off'";
            return Err(Error::config("exactly_once", message));
        }
        if token.is_empty() || token.len() > MAX_TOKEN {
            let length = token.len();
            return Err(Error::message(format!("a token has 1 to {MAX_TOKEN} bytes, got {length}")));
        }
        if version > MAX_VERSION {
            return Err(wrong_version(version));
        }
        if !self.producer.is_idle() {
            return Err(Error::state("messages wait for their outcomes: flush before begin"));
        }
        self.producer.begin(Some(token.to_owned()), version);
        self.begun_at += self.passed();
        Ok(())
    }

    /// Exactly once: counts reported rows as passed, whether they were written or not. Without this, rows after a row that was
    /// not written are refused. If a panic left rows unsent whose streams are unknown, rows of a batch with a token stay refused
    /// until it begins again.
    pub fn skip_failed(&mut self) -> Result<()> {
        self.enter()?;
        if !self.producer.is_idle() {
            return Err(Error::state("messages wait for their outcomes: flush before skip_failed"));
        }
        if self.producer.skip_failed() {
            self.begun_at += self.passed();
        }
        Ok(())
    }

    /// Closes the connection; the dispatcher accepts no more messages. Messages without an outcome are given up: flush first.
    pub fn close(&mut self) {
        self.closed = true;
        let is_forked = self.is_forked();
        let closed = contain(|| {
            if is_forked {
                self.producer.forget();
            } else if self.producer.is_idle() {
                self.producer.close();
            } else {
                self.producer.abort(&Fault::new(code::RESET, "the dispatcher was closed"));
            }
        });
        if closed.is_err() {
            self.abandon();
        }
    }

    /// Runs the part of a call that changes waiting messages. If it panics, all waiting messages fail with an outcome that the
    /// next report has, and the dispatcher remains usable.
    fn guarded<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let ran = contain(|| run(self));
        self.contained(ran)
    }

    /// See [`guarded`](Self::guarded).
    fn contained<T>(&mut self, ran: std::result::Result<Result<T>, Panicked>) -> Result<T> {
        let Ok(result) = ran else {
            self.abandon();
            return Err(Error::Internal {
                message: "messages without an outcome are reported as failed, and may have been written".to_owned(),
            });
        };
        if self.producer.take_defect() {
            let message = "a reply could not be read; the connection was replaced".to_owned();
            return Err(Error::Internal { message });
        }
        result
    }

    fn abandon(&mut self) {
        let fault = Fault::new(code::INTERNAL, "a defect in headrace ended the call in which this message was sent");
        let waiting = self.unreported.saturating_sub(self.producer.recorder().recorded());
        let passed = self.passed();
        if contain(|| self.producer.abandon(&fault, waiting, passed)).is_err() {
            // Closing the connection failed; it is gone by now.
            self.producer.abandon(&fault, waiting, passed);
        }
    }

    /// How many messages the batch has that was started last.
    fn passed(&mut self) -> u64 {
        self.producer.recorder().counters().messages.get() - self.begun_at
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn report(&mut self, restart: bool) -> DeliveryReport {
        self.producer.recorder().publish();
        let report = self.producer.recorder().take(restart);
        self.unreported -= report.delivered() + report.failed();
        report
    }

    fn is_forked(&self) -> bool {
        self.fork.clone().detected_fork()
    }

    #[inline]
    fn enter(&mut self) -> Result<()> {
        if self.closed {
            return Err(Error::Closed { what: "dispatcher" });
        }
        if self.fork.detected_fork() {
            self.producer.forget();
            self.unreported = 0;
            self.begun_at += self.passed();
        }
        Ok(())
    }
}

/// Why the rows of a record batch fail that a call did not take because of this error; `None`: it refused all of them.
fn fault_of_rest(error: &Error) -> Option<Fault> {
    match error {
        Error::Interrupted => Some(not_sent()),
        Error::Internal { .. } => Some(not_encoded()),
        _ => None,
    }
}

fn not_sent() -> Fault {
    Fault::new(code::INTERRUPTED, "the call was interrupted before this message was sent")
}

fn not_encoded() -> Fault {
    let message = "a defect in headrace: this message, or a row before it in its record batch, could not be encoded";
    Fault::new(code::INTERNAL, message)
}

/// Refuses a version, including one that [`Dispatcher::begin`] cannot take because it is negative or has more than 64 bits.
pub fn wrong_version(got: impl fmt::Display) -> Error {
    Error::message(format!("a version is a number from 0 to {MAX_VERSION}, got {got}"))
}

/// Refuses what cannot be combined with rows that have names.
fn check_named(layout: &Layout, by_message_id: bool) -> Result<()> {
    check_own_stream(layout.stream_key.is_some(), layout.entry_id.is_some())?;
    if by_message_id && layout.message_id.is_none() {
        let message = "exactly_once_key 'message_id' needs message_id: the column that names the rows";
        return Err(Error::config("exactly_once_key", message));
    }
    Ok(())
}

/// Refuses a field for keys that has the name of another field.
fn check_key_field(names: &FieldNames) -> Result<()> {
    let others = [("payload_field", Some(&names.payload)), ("ts_field", names.ts.as_ref())];
    let other = others.iter().find(|(_, name)| names.key.is_some() && *name == names.key.as_ref());
    other.map_or(Ok(()), |(option, name)| {
        let name = name.map(String::as_str).unwrap_or_default();
        Err(Error::config("key_field", format!("key_field must differ from {option}, got {name:?} for both")))
    })
}

/// Refuses stream keys and entry IDs for messages that have names.
fn check_own_stream(has_stream_key: bool, has_entry_id: bool) -> Result<()> {
    for (name, is_given) in [("stream_key", has_stream_key), ("entry_id", has_entry_id)] {
        if is_given {
            let message = format!(
                "exactly_once 'idmp' and {name} are mutually exclusive: names belong to one stream, and go with IDs of the \
                 server's choice; take 'script'"
            );
            return Err(Error::config("exactly_once", message));
        }
    }
    Ok(())
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        if !self.closed {
            self.close();
        }
    }
}
