//! Reads streams through a consumer group: each entry is delivered until it is acknowledged.
//!
//! `Session` reads. `Ledger` records which entries the caller holds and the caller's decision on each: acknowledged, failed
//! or released. The keeper's thread renews leases, and sends the decisions while the session waits.

#[cfg(any(test, fuzzing))]
mod bare;
mod batch;
mod batches;
mod beginning;
mod chosen;
mod client_name;
mod drive;
mod event_loop;
mod held;
mod keeper_session;
mod ledger;
mod line;
mod members;
mod options;
mod report;
mod request;
mod right;
mod rules;
mod session;
mod setup;
mod shared;
mod sink;
mod start;
mod stream;
#[cfg(all(test, feature = "shuttle"))]
mod thread_tests;
mod turns;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;

use crate::admin::check_shards_once;
use crate::contain::{Panicked, contained};
use crate::counters::{CounterValue, CounterValues, ReadCounters};
use crate::dead_letters::check_dead_letter_key;
use crate::endpoint::Endpoint;
use crate::entries::{ColumnsPlan, escaped};
use crate::error::{Error, Result};
use crate::keeper::{Keeper, Keeping, clock};
use crate::net::{Watch, Within, block_on, ends_at};
use crate::reading::{Link, Outage, Paging, Pool, by_slot, endpoint_of};
use crate::resp::EntryId;
use crate::retry::RetryPolicy;

#[cfg(any(test, fuzzing))]
pub(crate) use bare::Bare;
pub use batch::ConsumerBatch;
pub use chosen::Chosen;
pub use event_loop::LoopConsumer;
pub use options::{CONSUMER_OPTIONS, ConsumerOptions};
pub use report::{CONSUMER_COUNTERS, ReadReport};
pub use rules::MOST_DELIVERIES;

use client_name::ClientName;
use drive::Drive;
use keeper_session::KeeperSession;
use ledger::{Ledger, LedgerOptions};
use line::Line;
use session::{Session, SessionOptions};
use shared::Shared;
use start::Start;
use stream::Stream;
use work::Names;

const CLOSED: Error = Error::Closed { what: "consumer" };
/// The maximum number of entries that a consumer remembers as released.
const MAX_RELEASED: usize = 65_536;
/// How long a closing consumer waits for entries in flight.
const DRAIN: Duration = Duration::from_millis(1_500);

/// One consumer of a group, with one connection that reads and one that renews its leases. In a cluster, one connection reads for
/// each slot that holds some of its streams, unless slots share connections (option `connections`), and one to each node renews
/// leases.
///
/// [`open`](Self::open) connects. [`next_batch`](Self::next_batch) returns entries, which stay pending until the caller
/// acknowledges, fails or releases them through the [`handle`](Self::handle).
#[derive(Debug)]
pub struct Consumer {
    drive: Drive,
    keeper: Option<Keeper>,
    shared: Arc<Shared>,
    places: Arc<Places>,
    counters: Arc<ReadCounters>,
    endpoint: Endpoint,
    /// The keys passed by the caller.
    streams: Vec<Vec<u8>>,
    /// The endpoints to read from: one for the streams of each slot, outside a cluster one for all streams.
    endpoints: Vec<Endpoint>,
    options: ConsumerOptions,
    columns: Arc<ColumnsPlan>,
    fork: forkguard::Guard,
    is_closed: bool,
    has_told_of_misspelt: bool,
    /// The endpoint whose shards are read, until a check has shown whether the stream has as many.
    unchecked: Option<Endpoint>,
}

/// Acknowledges, fails and releases the entries of a consumer, from any thread and at any time: no method waits for a server.
#[derive(Debug, Clone)]
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    counters: Arc<ReadCounters>,
    places: Arc<Places>,
    fork: forkguard::Guard,
}

/// The place of each stream, by its key: the index of its ledger, and the stream's index in that ledger.
type Places = BTreeMap<Box<[u8]>, (usize, usize)>;

impl Consumer {
    /// `streams`: the stream keys; if empty, those of the endpoint. Opens no connection.
    pub fn new(endpoint: &Endpoint, streams: &[Vec<u8>], options: ConsumerOptions) -> Result<Self> {
        let unchecked = endpoint.shards().filter(|_| streams.is_empty()).map(|_| endpoint.clone());
        let keys = if streams.is_empty() { endpoint.stream_keys() } else { streams };
        check_keys(endpoint, keys, &options)?;
        let groups = by_slot(endpoint, keys, false);
        let endpoints: Vec<Endpoint> = groups.iter().map(|keys| endpoint_of(endpoint, keys)).collect::<Result<_>>()?;
        let shared = Arc::new(shared(&groups, &options));
        let plan = Arc::new(options.columns.clone());
        let counters = Arc::new(ReadCounters::default());
        let start = Arc::new(Start {
            client_name: Arc::new(ClientName::new(&options.names.group, &options.names.consumer)),
            names: options.names.clone(),
            needs: (options.acks, options.claim_interval.is_some()),
            creates_after: options.creates.then(|| options.start.last_delivered()),
            is_of_cluster: endpoint.cluster().is_some(),
        });
        let lines = endpoints.iter().zip(&groups).zip(shared.shares()).enumerate();
        let lines = lines.map(|(place, ((endpoint, keys), ledger))| {
            let session = session(keys, &options, groups.len(), &plan, (Arc::clone(&shared), place));
            let link = Link::new(endpoint.clone(), Outage::new(options.retry.clone()), Arc::clone(&counters));
            Line::new(session, link, Arc::clone(ledger), Arc::clone(&start))
        });
        let most = options.connections.unwrap_or(usize::MAX);
        let pool = Pool::new(&endpoints, most, options.block);
        Ok(Self {
            drive: Drive::new(lines.collect(), pool, Arc::clone(&shared), options.min_idle),
            keeper: None,
            places: Arc::new(places(&groups)),
            shared,
            counters,
            endpoint: endpoint.clone(),
            streams: streams.to_vec(),
            endpoints,
            options,
            columns: plan,
            fork: forkguard::new(),
            is_closed: false,
            has_told_of_misspelt: false,
            unchecked,
        })
    }

    /// The schema of the record batches. `None`: the first entry determines it, and none was read.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.columns.known_schema().map(|schema| Arc::new(self.options.extra.schema(&schema)))
    }

    /// The handle through which any thread settles entries. Call [`open`](Self::open) first.
    pub fn handle(&self) -> ConsumerHandle {
        let (shared, counters) = (Arc::clone(&self.shared), Arc::clone(&self.counters));
        ConsumerHandle { shared, counters, places: Arc::clone(&self.places), fork: self.fork.clone() }
    }

    /// Connects, creates the groups, and starts the keeper's thread.
    pub fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        block_on(self.opened(watch))?;
        let keeper = self.keeping().map(Keeper::start).transpose();
        self.keeper = keeper
            .map_err(|error| Error::Internal { message: format!("the keeper's thread did not start: {error}") })?;
        Ok(())
    }

    /// Connects and creates the groups, with waits that the watch may defer.
    pub(crate) async fn opened(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        let opened = contained(self.until_open(watch)).await;
        self.ended(opened)
    }

    async fn until_open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.drive.until_open(self.endpoint.is_undecided(), watch).await?;
        if self.enters_cluster()? {
            self.drive.until_open(false, watch).await?;
        }
        if let Some(endpoint) = &self.unchecked {
            check_shards_once(endpoint, watch).await?;
            self.unchecked = None;
        }
        Ok(())
    }

    /// The work of the keeper, if there is any.
    fn keeping(&self) -> Option<Keeping<KeeperSession>> {
        let options = &self.options;
        options.acks.then(|| {
            let renews = options.renews.then(|| options.min_idle / 3);
            let retry = options.retry.clone().unwrap_or_default();
            keeping(self.endpoints.clone(), &self.shared, &options.names, renews, &retry)
        })
    }

    /// Notes what the server said if the endpoint left open whether the streams are in a cluster. Returns whether they are: each
    /// slot then has a connection, which has yet to be opened.
    fn enters_cluster(&mut self) -> Result<bool> {
        if !self.endpoint.is_undecided() {
            return Ok(false);
        }
        let endpoint = self.drive.lines[0].link.endpoint().clone();
        if endpoint.cluster().is_some() {
            let stops = self.shared.stops();
            *self = Self::new(&endpoint, &self.streams, self.options.clone())?;
            if stops {
                self.shared.stop();
            }
            return Ok(true);
        }
        self.endpoints = vec![endpoint.clone()];
        self.endpoint = endpoint;
        Ok(false)
    }

    /// The next batch. `None`: the caller is stopping, or `timeout` is over.
    ///
    /// An error leaves the consumer where it was: the next call continues from there.
    pub fn next_batch(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<Option<ConsumerBatch>> {
        block_on(self.polled(timeout, watch))
    }

    /// Like [`next_batch`](Self::next_batch), with waits that the watch may defer.
    pub(crate) async fn polled(
        &mut self,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<Option<ConsumerBatch>> {
        self.enter()?;
        let read = contained(self.drive.until_batch(timeout, watch)).await;
        let mut read = self.ended(read);
        if let Ok(Some(batch)) = &mut read {
            batch.misspelt.take_if(|_| replace(&mut self.has_told_of_misspelt, true));
            let last = batch.ids().last().copied().unwrap_or_default();
            self.counters.handed_out(batch.record_batch().num_rows(), batch.ids().len() as u64, last.ms);
        }
        read
    }

    /// Stops reading a stream, for good. Its entries that were read and not returned stay pending: other consumers take them
    /// over. Entries that the caller has can still be settled.
    pub fn drop_stream(&mut self, stream: &[u8]) -> Result<()> {
        let place = self.places.get(stream);
        let is_dropped = place.is_some_and(|(line, at)| self.drive.lines[*line].session.drop_stream(*at));
        if is_dropped { Ok(()) } else { Err(unknown_stream(stream)) }
    }

    /// Waits until the server has every decision that the caller has made, or `timeout` is over.
    pub fn flush(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<ReadReport> {
        block_on(self.flushed(timeout, watch))
    }

    /// Like [`flush`](Self::flush), with waits that the watch may defer.
    pub(crate) async fn flushed(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<ReadReport> {
        self.enter()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = ends_at(deadline);
        let mut watch = Within::new(&mut is_over, watch);
        let settled = contained(self.drive.until_settled(None, deadline, &mut watch)).await;
        let settled = self.ended(settled);
        watch.ended(settled)?.and_then(|settled| settled.error).map_or_else(|| Ok(self.shared.report()), Err)
    }

    /// Ends the consumer. The caller's decisions are sent; with `releases`, entries without a decision are given back to the
    /// group, so that others get them immediately. Gives up after `timeout`, or if the server is away and the policy does not
    /// allow a wait for it: the entries then stay pending until others take them over, and the report counts them.
    pub fn close(&mut self, releases: bool, timeout: Duration, watch: &mut dyn Watch) -> Result<ReadReport> {
        block_on(self.closed(releases, timeout, watch))
    }

    /// Like [`close`](Self::close), with waits that the watch may defer.
    pub(crate) async fn closed(
        &mut self,
        releases: bool,
        timeout: Duration,
        watch: &mut dyn Watch,
    ) -> Result<ReadReport> {
        if self.fork.clone().detected_fork() {
            self.abandon();
            return Ok(ReadReport::default());
        }
        if self.is_closed {
            return Ok(self.shared.report());
        }
        let now = Instant::now();
        let deadline = now.checked_add(timeout);
        let drains_until = now + DRAIN.min(timeout / 2);
        let mut refused = None;
        let mut is_over = ends_at(deadline);
        let mut watch = Within::new(&mut is_over, watch);
        let settled = contained(self.settle(releases, drains_until, deadline, &mut refused, &mut watch)).await;
        let settled = settled.map(|settled| watch.ended(settled));
        self.abandon();
        self.shared.ledgers().for_each(|mut ledger| ledger.give_up());
        let report = self.shared.report();
        match settled {
            Ok(Ok(_)) => refused.map_or(Ok(report), Err),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Internal { message: "the consumer is closed".to_owned() }),
        }
    }

    /// Sends the caller's decisions before the connections end. `refused`: the error of a server that answered; a lost connection
    /// shows in the report.
    async fn settle(
        &mut self,
        releases: bool,
        drains_until: Instant,
        deadline: Option<Instant>,
        refused: &mut Option<Error>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let mut note = |error: Option<Error>| {
            *refused = refused.take().or(error.filter(|error| !matches!(error, Error::Connection { .. })));
        };
        // Do not wait for a server that waits for entries with a long BLOCK: close the connection instead.
        self.drive.lines.iter_mut().for_each(|line| line.session.closes = true);
        let drained = self.drive.drain(drains_until, watch).await;
        if drained == Err(Error::Interrupted) {
            return drained;
        }
        self.drive.end_blocked();
        // The caller's decisions come first: the rest may stay pending.
        let settled = self.drive.until_settled(None, deadline, watch).await?;
        note(settled.error);
        if !releases {
            return Ok(());
        }
        let alone = self.drive.until_alone(&settled.lines, deadline, watch).await?;
        note(alone.error);
        for (line, _) in self.drive.lines.iter_mut().zip(&alone.lines).filter(|(_, is_alone)| **is_alone) {
            line.session.now = clock::now();
            line.session.drop_ready(line.may_come_late);
            line.session.release_all();
        }
        note(self.drive.until_settled(Some(&alone.lines), deadline, watch).await?.error);
        Ok(())
    }

    /// Ends the connections without sending a command to the server.
    fn abandon(&mut self) {
        let is_forked = self.fork.clone().detected_fork();
        self.is_closed = true;
        if is_forked {
            // The thread and the connections belong to the parent, which may have held the lock.
            if let Some(keeper) = &mut self.keeper {
                keeper.forget();
            }
            self.drive.close(true);
            return;
        }
        self.shared.doze.end();
        if let Some(keeper) = &mut self.keeper {
            keeper.join();
        }
        self.drive.close(false);
    }

    fn enter(&mut self) -> Result<()> {
        if self.fork.clone().detected_fork() {
            return Err(Error::state("the consumer belongs to the process that made it: make one in each process"));
        }
        if self.is_closed { Err(CLOSED) } else { Ok(()) }
    }

    /// The result of a call. A panic closes the consumer.
    fn ended<T>(&mut self, done: std::result::Result<Result<T>, Panicked>) -> Result<T> {
        done.unwrap_or_else(|_| {
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
    /// Acknowledges the entries in these rows of a batch. They will not be delivered again.
    pub fn ack(&self, batch: &ConsumerBatch, rows: Chosen<'_>) -> Result<()> {
        let at = self.place(batch, rows)?;
        self.say(at, |ledger, now| ledger.ack(batch.number(), rows, now))
    }

    /// Acknowledges the entries of a stream with these IDs. They will not be delivered again.
    pub fn ack_ids(&self, stream: &[u8], ids: &[EntryId]) -> Result<()> {
        let (at, stream) = self.stream(stream)?;
        self.say(at, |ledger, now| ledger.ack_ids(stream, ids, now))
    }

    /// Marks the entries in these rows of a batch as failed. Each is delivered again after `delay`, by default after 1 s and
    /// twice as long each time, at most `min_idle`; or it becomes a dead letter with this reason.
    pub fn fail(&self, batch: &ConsumerBatch, rows: Chosen<'_>, reason: &str, delay: Option<Duration>) -> Result<()> {
        let at = self.place(batch, rows)?;
        self.say(at, |ledger, now| ledger.fail(batch.number(), rows, reason, delay, now))
    }

    /// Marks the entries of a stream with these IDs as failed; returns the IDs that this consumer does not have.
    pub fn fail_ids(
        &self,
        stream: &[u8],
        ids: &[EntryId],
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Vec<EntryId>> {
        let (at, stream) = self.stream(stream)?;
        self.say(at, |ledger, now| ledger.fail_ids(stream, ids, reason, delay, now))
    }

    /// Gives the entries of a batch, or the rows that `mask` selects, back to the group as if they had not been delivered. Others
    /// get them after `delay`.
    pub fn release(&self, batch: &ConsumerBatch, rows: Chosen<'_>, delay: Duration) -> Result<()> {
        let at = self.place(batch, rows)?;
        self.say(at, |ledger, now| ledger.release(batch.number(), rows, delay, now))
    }

    /// Gives the entries of a stream with these IDs back to the group; returns the IDs that this consumer does not have.
    pub fn release_ids(&self, stream: &[u8], ids: &[EntryId], delay: Duration) -> Result<Vec<EntryId>> {
        let (at, stream) = self.stream(stream)?;
        self.say(at, |ledger, now| ledger.release_ids(stream, ids, delay, now))
    }

    /// Fails with [`Error::LeaseLost`] if entries of the batch may belong to another consumer: they were not renewed for
    /// `min_idle`.
    pub fn check(&self, batch: &ConsumerBatch) -> Result<()> {
        let at = self.place(batch, Chosen::All)?;
        self.shared.ledger(at).check(batch.number(), clock::now())
    }

    /// Whether another consumer of the same name was connected when this one connected, and half a second later: each sees the
    /// other's pending entries as its own. The other one's connection may belong to a machine that no longer runs.
    pub fn has_namesake(&self) -> bool {
        self.enter().is_ok() && self.shared.ledgers().any(|ledger| ledger.has_namesake())
    }

    /// Stops reading: no further batch is returned.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stops()
    }

    /// The counts of the entries that were read, and of what became of them.
    pub fn report(&self) -> Result<ReadReport> {
        match self.enter() {
            Ok(()) | Err(Error::Closed { .. }) => Ok(self.shared.report()),
            Err(error) => Err(error),
        }
    }

    /// The number of entries that were acknowledged, failed or released, and whose decision would be lost if the consumer ended
    /// now: the server has not replied to it. Zero for a closed consumer, and in a forked process.
    pub fn unconfirmed(&self) -> u64 {
        let count = || self.shared.ledgers().map(|ledger| ledger.unconfirmed() as u64).sum();
        self.enter().map_or(0, |()| count())
    }

    /// The values of [`READER_COUNTERS`](crate::READER_COUNTERS), and those of [`CONSUMER_COUNTERS`] that statistics have, also of
    /// a closed consumer. In a forked process they are all zero.
    pub fn stats(&self) -> CounterValues {
        // The parent may have held the lock when it forked.
        if self.fork.clone().detected_fork() {
            return [ReadCounters::default().values(), ReadReport::default().stats()].concat();
        }
        let report = self.shared.report();
        let mut values = [self.counters.values(), report.stats()].concat();
        // A consumer's ledgers count lost entries; a reader's sessions count them.
        values.retain(|(name, _)| *name != "lost");
        values.push(("lost", CounterValue::Count(report.lost)));
        values
    }

    /// The index of the ledger that holds the batch.
    fn place(&self, batch: &ConsumerBatch, rows: Chosen<'_>) -> Result<usize> {
        self.enter()?;
        let Some(at) = self.shared.place(batch.owner()) else {
            return Err(Error::config("batch", "batch must belong to this consumer, got one of another consumer"));
        };
        if let Chosen::Mask(mask) = rows {
            batch.check_mask(mask)?;
        }
        Ok(at)
    }

    fn stream(&self, key: &[u8]) -> Result<(usize, usize)> {
        self.places.get(key).copied().ok_or_else(|| unknown_stream(key))
    }

    fn say<T>(&self, at: usize, say: impl FnOnce(&mut Ledger, Duration) -> T) -> Result<T> {
        self.enter()?;
        let now = clock::now();
        let (said, is_urgent) = {
            let mut ledger = self.shared.ledger(at);
            (say(&mut ledger, now), ledger.reader_waits)
        };
        self.shared.doze.added(is_urgent);
        Ok(said)
    }

    /// Fails once the consumer has ended, and in a forked process, whose parent may have held the lock when it forked.
    fn enter(&self) -> Result<()> {
        if self.fork.clone().detected_fork() {
            return Err(Error::state("the consumer belongs to the process that made it: make one in each process"));
        }
        if self.shared.doze.ends() { Err(CLOSED) } else { Ok(()) }
    }
}

fn unknown_stream(key: &[u8]) -> Error {
    Error::config("stream", format!("stream must be one of the consumer's streams, got '{}'", escaped(key)))
}

/// Checks that each stream is named once, and that its dead letters go to another stream, in a cluster to one of the same slot.
fn check_keys(endpoint: &Endpoint, keys: &[Vec<u8>], options: &ConsumerOptions) -> Result<()> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = keys.iter().find(|key| !seen.insert(key.as_slice())) {
        let message = format!("streams must name each stream once, got '{}' twice", twice.escape_ascii());
        return Err(Error::config("streams", message));
    }
    options.names.dead_letter_key.as_ref().map_or(Ok(()), |given| check_dead_letter_key(endpoint, keys, given))
}

/// The ledgers of `groups`, the streams of each session.
fn shared(groups: &[Vec<&[u8]>], options: &ConsumerOptions) -> Shared {
    let ledger = |keys: &Vec<&[u8]>| {
        let options = LedgerOptions {
            min_idle: options.min_idle,
            max_processing: options.max_processing,
            max_failures: options.max_failures,
            deletes: options.deletes,
            max_released: MAX_RELEASED.div_ceil(groups.len()),
        };
        Ledger::new(keys.iter().map(|key| Arc::from(*key)).collect(), options)
    };
    Shared::new(groups.iter().map(ledger).collect())
}

/// The work of the keeper. `endpoints`: one for each ledger. `renews`: how often leases are renewed; `None`: never.
fn keeping(
    endpoints: Vec<Endpoint>,
    shared: &Shared,
    names: &Names,
    renews: Option<Duration>,
    retry: &RetryPolicy,
) -> Keeping<KeeperSession> {
    let now = clock::now();
    let session = |ledger: &Arc<_>| KeeperSession::new(Arc::clone(ledger), names.clone(), renews, now);
    let sessions: Vec<_> = shared.shares().iter().map(session).collect();
    // Leases must not end because of a pause.
    let most = renews.map_or(Duration::MAX, |every| every / 4);
    Keeping::new(endpoints, sessions, Arc::clone(&shared.doze), most, retry)
}

/// The session of the streams `keys`, one of `sessions`.
fn session(
    keys: &[&[u8]],
    options: &ConsumerOptions,
    sessions: usize,
    plan: &Arc<ColumnsPlan>,
    shared: (Arc<Shared>, usize),
) -> Session {
    let paging = || Paging::new(options.page_bytes, options.batch_rows as u64);
    let streams = keys.iter().map(|key| Stream::new(Arc::from(*key), paging()));
    let session = SessionOptions {
        names: options.names.clone(),
        batch_rows: options.batch_rows,
        // The entries that wait for their batches take no more memory than those of a single session.
        batch_bytes: options.batch_bytes.div_ceil(sessions),
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
    Session::new(streams.collect(), session, Arc::clone(plan), shared)
}

fn places(groups: &[Vec<&[u8]>]) -> Places {
    let of_group = |(at, keys): (usize, &Vec<&[u8]>)| {
        keys.iter().enumerate().map(move |(stream, key)| (Box::from(*key), (at, stream))).collect::<Vec<_>>()
    };
    groups.iter().enumerate().flat_map(of_group).collect()
}
