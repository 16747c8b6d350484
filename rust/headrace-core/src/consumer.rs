//! Reads streams through a consumer group: each entry is delivered until it is acknowledged.
//!
//! [`Session`] reads; [`Ledger`] knows what is with the caller and what the caller said of it; the keeper's thread renews leases
//! and sends what the caller said while the session waits.

mod batch;
mod client_name;
mod clock;
mod drive;
mod held;
mod keeper;
mod ledger;
mod options;
mod report;
mod request;
mod rules;
mod session;
mod setup;
mod shared;
mod sink;
mod stream;
mod work;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::{Schema, SchemaRef};

use crate::admin::check_shards_once;
use crate::contain::contain;
use crate::counters::{ReadCounterValues, ReadCounters};
use crate::endpoint::Endpoint;
use crate::entries::escaped;
use crate::error::{Error, Result};
use crate::net::Watch;
use crate::reading::Paging;
use crate::resp::EntryId;

pub use batch::ConsumerBatch;
pub use options::{CONSUMER_OPTIONS, ConsumerOptions};
pub use report::ReadReport;

use drive::Drive;
use keeper::Keeper;
use ledger::{Ledger, LedgerOptions};
use session::{Session, SessionOptions};
use setup::Create;
use shared::Shared;
use stream::Stream;

const CLOSED: Error = Error::Closed { what: "consumer" };
/// How long the end of a consumer waits for entries that are on their way to it.
const DRAIN: Duration = Duration::from_millis(1_500);

/// One consumer of a group, over a connection that reads and one that keeps its leases.
///
/// [`open`](Self::open) connects. [`next_batch`](Self::next_batch) hands out entries, which stay pending until the caller says
/// of them, by the [`handle`](Self::handle), that they are done, failed or released.
#[derive(Debug)]
pub struct Consumer {
    session: Session,
    drive: Drive,
    keeper: Option<Keeper>,
    shared: Arc<Shared>,
    counters: Arc<ReadCounters>,
    endpoint: Endpoint,
    options: ConsumerOptions,
    schema: SchemaRef,
    fork: forkguard::Guard,
    is_closed: bool,
    /// The endpoint whose shards are read, until it was checked whether the stream has as many.
    unchecked: Option<Endpoint>,
}

/// What any thread may say of the entries of a consumer, at any time: nothing here waits for a server.
#[derive(Debug, Clone)]
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    counters: Arc<ReadCounters>,
    keys: Arc<[Arc<[u8]>]>,
    fork: forkguard::Guard,
}

/// The counters of a consumer at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ConsumerStats {
    /// What was read.
    pub read: ReadCounterValues,
    /// What became of it.
    pub report: ReadReport,
    /// Renewals of entries that the server confirmed.
    pub renewals: u64,
}

impl Consumer {
    /// `streams`: their keys, that of the endpoint if there is none. Opens no connection.
    pub fn new(mut endpoint: Endpoint, streams: &[Vec<u8>], options: ConsumerOptions) -> Result<Self> {
        let asked = endpoint.clone();
        let unchecked = asked.shards().filter(|_| streams.is_empty()).map(|_| asked.clone());
        let keys = if streams.is_empty() { asked.stream_keys() } else { streams };
        let mut seen = BTreeSet::new();
        if let Some(twice) = keys.iter().find(|key| !seen.insert(key.as_slice())) {
            let message = format!("streams must name each stream once, got '{}' twice", twice.escape_ascii());
            return Err(Error::config("streams", message));
        }
        let dead = options.names.dead_letter_key.as_deref();
        if let Some(dead) = dead.filter(|dead| seen.contains(dead)) {
            let message = format!("dead_letter_key must be none of the streams, got '{}'", dead.escape_ascii());
            return Err(Error::config("dead_letter_key", message));
        }
        endpoint = endpoint.for_keys("streams", keys.iter().map(Vec::as_slice))?;
        endpoint = endpoint.for_keys("dead_letter_key", [endpoint.stream_key()].into_iter().chain(dead))?;
        let keys: Vec<Arc<[u8]>> = keys.iter().map(|key| Arc::from(key.as_slice())).collect();
        let streams = keys
            .iter()
            .map(|key| Stream::new(Arc::clone(key), Paging::new(options.page_bytes, options.batch_rows as u64)));
        let ledger = Ledger::new(
            keys.clone(),
            LedgerOptions {
                min_idle: options.min_idle,
                max_processing: options.max_processing,
                max_failures: options.max_failures,
                deletes: options.deletes,
            },
        );
        let shared = Arc::new(Shared::new(ledger));
        let session = SessionOptions {
            names: options.names.clone(),
            batch_rows: options.batch_rows,
            batch_bytes: options.batch_bytes,
            block: options.block,
            linger: options.linger,
            min_idle: options.min_idle,
            claim_interval: options.claim_interval,
            long_claim_interval: options.long_claim_interval,
            acks: options.acks,
            max_failures: options.max_failures,
            buries_bad: options.buries_bad,
            extra: options.extra.clone(),
        };
        let plan = Arc::new(options.columns.clone());
        let schema: Schema = options.extra.schema(&plan.schema());
        let create = options.creates.then(|| Create { after: options.start.last_delivered() });
        let counters = Arc::new(ReadCounters::default());
        let drive = Drive::new(
            endpoint.clone(),
            options.retry.clone(),
            Arc::clone(&counters),
            Arc::clone(&shared),
            options.names.clone(),
            (options.acks, options.claim_interval.is_some()),
            create,
        );
        Ok(Self {
            session: Session::new(streams.collect(), session, plan, Arc::clone(&shared.ledger)),
            drive,
            keeper: None,
            shared,
            counters,
            endpoint,
            options,
            schema: Arc::new(schema),
            fork: forkguard::new(),
            is_closed: false,
            unchecked,
        })
    }

    /// The schema of the record batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether another connection had the name of this consumer when it connected: each sees the other's pending entries as its
    /// own. A connection of a machine that is gone may be among them.
    pub fn has_namesake(&self) -> bool {
        self.drive.has_namesake
    }

    /// What any thread may say of the entries.
    pub fn handle(&self) -> ConsumerHandle {
        let keys = Arc::from(self.shared.ledger().keys());
        let (shared, counters) = (Arc::clone(&self.shared), Arc::clone(&self.counters));
        ConsumerHandle { shared, counters, keys, fork: self.fork.clone() }
    }

    /// Connects, makes the groups, and starts the keeper.
    pub fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        self.contained(|consumer| {
            consumer.drive.until_open(&mut consumer.session, watch)?;
            if let Some(endpoint) = &consumer.unchecked {
                check_shards_once(endpoint, watch)?;
                consumer.unchecked = None;
            }
            if consumer.options.acks {
                let renews = consumer.options.renews.then(|| consumer.options.min_idle / 3);
                let names = consumer.options.names.clone();
                let keeper = Keeper::start(
                    consumer.endpoint.clone(),
                    Arc::clone(&consumer.shared),
                    names,
                    renews,
                    consumer.options.retry.clone().unwrap_or_default(),
                );
                let failed = |error| Error::Internal { message: format!("the keeper's thread did not start: {error}") };
                consumer.keeper = Some(keeper.map_err(failed)?);
            }
            Ok(())
        })
    }

    /// The next batch. `None`: the caller stops, or `timeout` is over.
    ///
    /// An error leaves the consumer where it was: the next call goes on.
    pub fn next_batch(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<Option<ConsumerBatch>> {
        self.enter()?;
        let read = self.contained(|consumer| consumer.drive.until_batch(&mut consumer.session, timeout, watch));
        if let Ok(Some(batch)) = &read {
            let last = batch.ids().last().copied().unwrap_or_default();
            self.counters.handed_out(batch.record_batch().num_rows(), batch.ids().len() as u64, last.ms);
        }
        read
    }

    /// Waits until the server knows what the caller said so far, or `timeout` is over.
    pub fn flush(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<ReadReport> {
        self.enter()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.contained(|consumer| consumer.drive.until_settled(&mut consumer.session, deadline, watch))?;
        Ok(self.shared.ledger().report())
    }

    /// Ends the consumer. What the caller said of entries is sent; with `releases`, what it did not speak of is given back to the
    /// group, so that others get it at once. Gives up after `timeout`: then the entries stay pending, until others take them over.
    pub fn close(&mut self, releases: bool, timeout: Duration, watch: &mut dyn Watch) -> Result<ReadReport> {
        if self.fork.clone().detected_fork() {
            self.abandon();
            return Ok(ReadReport::default());
        }
        if self.is_closed {
            return Ok(self.shared.ledger().report());
        }
        let now = Instant::now();
        let deadline = now + timeout;
        let drains_until = now + DRAIN.min(timeout / 2);
        let settled = contain(|| self.settle(releases, drains_until, deadline, watch));
        self.abandon();
        let report = {
            let mut ledger = self.shared.ledger();
            ledger.give_up();
            ledger.report()
        };
        match settled {
            Ok(Ok(())) => Ok(report),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Internal { message: "the consumer is closed".to_owned() }),
        }
    }

    fn settle(
        &mut self,
        releases: bool,
        drains_until: Instant,
        deadline: Instant,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        // A server that waits for entries with a long BLOCK is not waited for: the connection is closed instead.
        self.session.closes = true;
        let drained = self.drive.drain(&mut self.session, drains_until, watch);
        if drained == Err(Error::Interrupted) {
            return drained;
        }
        if self.session.blocks() {
            self.drive.close(&mut self.session);
        }
        // What the caller said comes first: the rest may stay pending.
        let is_settled = self.drive.until_settled(&mut self.session, Some(deadline), watch)?;
        if !releases || !is_settled || self.drive.finds_namesake(&mut self.session, deadline, watch)? {
            return Ok(());
        }
        self.session.drop_ready(self.drive.may_come_late);
        self.shared.ledger().release_all(clock::now());
        self.drive.until_settled(&mut self.session, Some(deadline), watch).map(drop)
    }

    /// Ends the connections without a word to the server.
    fn abandon(&mut self) {
        let is_forked = self.fork.clone().detected_fork();
        self.is_closed = true;
        if is_forked {
            // The thread and the connections are the parent's, and it may have held the lock.
            if let Some(keeper) = &mut self.keeper {
                keeper.forget();
            }
            self.drive.forget();
            return;
        }
        self.shared.end();
        if let Some(keeper) = &mut self.keeper {
            keeper.join();
        }
        self.drive.close(&mut self.session);
    }

    fn enter(&mut self) -> Result<()> {
        if self.fork.clone().detected_fork() {
            return Err(Error::state("the consumer belongs to the process that made it: make one in each process"));
        }
        if self.is_closed { Err(CLOSED) } else { Ok(()) }
    }

    fn contained<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        contain(|| call(self)).unwrap_or_else(|_| {
            self.abandon();
            Err(Error::Internal { message: "reading ended; the consumer is closed".to_owned() })
        })
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if !self.is_closed {
            self.abandon();
        }
    }
}

impl ConsumerHandle {
    /// The entries of a batch are done; with `mask` those that it names by rows. They will not be delivered again.
    pub fn ack(&self, batch: &ConsumerBatch, mask: Option<&[bool]>) -> Result<()> {
        self.check_arguments(batch, mask)?;
        self.say(|ledger, now| ledger.ack(batch.number(), mask, now))
    }

    /// The same by IDs.
    pub fn ack_ids(&self, stream: &[u8], ids: &[EntryId]) -> Result<()> {
        let stream = self.stream(stream)?;
        self.say(|ledger, now| ledger.ack_ids(stream, ids, now))
    }

    /// The caller could not work on the entries of a batch, or on those that `mask` names. Each comes again after `delay`, by
    /// default after 1 s and twice as long each time, at most `min_idle`; or it becomes a dead letter with this reason.
    pub fn fail(
        &self,
        batch: &ConsumerBatch,
        mask: Option<&[bool]>,
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<()> {
        self.check_arguments(batch, mask)?;
        self.say(|ledger, now| ledger.fail(batch.number(), mask, reason, delay, now))
    }

    /// The same by IDs; returns those that this consumer does not have.
    pub fn fail_ids(
        &self,
        stream: &[u8],
        ids: &[EntryId],
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Vec<EntryId>> {
        let stream = self.stream(stream)?;
        self.say(|ledger, now| ledger.fail_ids(stream, ids, reason, delay, now))
    }

    /// The entries of a batch, or those that `mask` names, go back to the group as if they had not been delivered. Others get
    /// them after `delay`.
    pub fn release(&self, batch: &ConsumerBatch, mask: Option<&[bool]>, delay: Duration) -> Result<()> {
        self.check_arguments(batch, mask)?;
        self.say(|ledger, now| ledger.release(batch.number(), mask, delay, now))
    }

    /// The same by IDs; returns those that this consumer does not have.
    pub fn release_ids(&self, stream: &[u8], ids: &[EntryId], delay: Duration) -> Result<Vec<EntryId>> {
        let stream = self.stream(stream)?;
        self.say(|ledger, now| ledger.release_ids(stream, ids, delay, now))
    }

    /// [`Error::LeaseLost`] if entries of the batch may be another consumer's: they were not renewed for `min_idle`.
    pub fn check(&self, batch: &ConsumerBatch) -> Result<()> {
        self.check_arguments(batch, None)?;
        self.shared.ledger().check(batch.number(), clock::now())
    }

    /// No further batch is handed out.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// What was read so far, and what became of it.
    pub fn report(&self) -> Result<ReadReport> {
        match self.enter() {
            Ok(()) | Err(Error::Closed { .. }) => Ok(self.shared.ledger().report()),
            Err(error) => Err(error),
        }
    }

    /// The counters so far, also of a consumer that was closed. In a forked process there are none.
    pub fn stats(&self) -> ConsumerStats {
        // The parent may have held the lock as it forked.
        if self.fork.clone().detected_fork() {
            return ConsumerStats::default();
        }
        let (report, renewals) = {
            let ledger = self.shared.ledger();
            (ledger.report(), ledger.renewals())
        };
        let read = ReadCounterValues { lost: report.lost, ..self.counters.read() };
        ConsumerStats { read, report, renewals }
    }

    fn check_arguments(&self, batch: &ConsumerBatch, mask: Option<&[bool]>) -> Result<()> {
        self.enter()?;
        if batch.owner() != self.shared.ledger().number {
            return Err(Error::config("batch", "batch must be one of this consumer, got one of another"));
        }
        mask.map_or(Ok(()), |mask| batch.check_mask(mask))
    }

    fn stream(&self, key: &[u8]) -> Result<usize> {
        self.keys.iter().position(|known| **known == *key).ok_or_else(|| {
            Error::config("stream", format!("stream must be one of the consumer's streams, got '{}'", escaped(key)))
        })
    }

    fn say<T>(&self, say: impl FnOnce(&mut Ledger, Duration) -> T) -> Result<T> {
        self.enter()?;
        let now = clock::now();
        let (said, is_urgent) = {
            let mut ledger = self.shared.ledger();
            (say(&mut ledger, now), ledger.reader_waits)
        };
        self.shared.added(is_urgent);
        Ok(said)
    }

    /// The parent may have held the lock as it forked.
    fn enter(&self) -> Result<()> {
        if self.fork.clone().detected_fork() {
            return Err(Error::state("the consumer belongs to the process that made it: make one in each process"));
        }
        if self.shared.ends() { Err(CLOSED) } else { Ok(()) }
    }
}
