//! Reads streams as a member of a group in which each stream has one owner: the entries of a stream are in order.
//!
//! A [`Reader`] reads those that this member owns, by position. `Leases` records what it owns and what the caller has committed;
//! the keeper takes, renews and gives up the leases, and sends the commits.

mod batch;
mod event_loop;
mod handle;
mod options;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;

use crate::admin::{KeptConnections, check_shards_once};
use crate::contain::{Panicked, contained};
use crate::dead_letters::check_dead_letter_key;
use crate::endpoint::Endpoint;
use crate::entries::escaped;
use crate::error::{Error, Fault, Result};
use crate::keeper::{Keeper, Keeping, clock};
use crate::leases::{Change, HandOut, LeaseSession, Leases, ShardReport, has_slot_of_stream};
use crate::net::{Watch, Within, block_on, ends_at, rest};
use crate::reader::Reader;
use crate::reading::{ReadBatch, Start, by_slot, endpoint_of, failed};

pub use batch::ShardBatch;
pub use event_loop::LoopShardConsumer;
pub use handle::ShardHandle;
pub use options::{SHARD_CONSUMER_OPTIONS, ShardConsumerOptions};

use options::LOOKS_EVERY;
use shared::Shared;

const CLOSED: Error = Error::Closed { what: "consumer" };

/// The number of the next consumer of this process.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// What a call for a batch returned.
#[derive(Debug)]
pub enum Polled {
    /// Entries of a stream that this member owns.
    Batch(Box<ShardBatch>),
    /// The member has got these streams.
    Assigned(Vec<Vec<u8>>),
    /// It gives these streams up, or has lost them.
    Revoked(Vec<Vec<u8>>),
    /// The caller is stopping, or its time is over.
    Nothing,
}

/// A stream that a member owns and reads.
#[derive(Debug)]
struct Owned {
    epoch: u64,
    /// Where reading it began: at the last commit.
    start: Start,
    /// Whether a batch was returned since then.
    has_read: bool,
}

impl Polled {
    /// `None` for [`Nothing`](Self::Nothing).
    fn something(self) -> Option<Self> {
        Some(self).filter(|polled| !matches!(polled, Self::Nothing))
    }
}

/// A member of a group that shares streams.
#[derive(Debug)]
pub struct ShardConsumer {
    reader: Reader,
    keeper: Option<Keeper>,
    shared: Arc<Shared>,
    endpoint: Endpoint,
    keys: Arc<[Vec<u8>]>,
    options: ShardConsumerOptions,
    number: u64,
    /// The streams of which the caller knows that they are its own.
    assigned: BTreeSet<usize>,
    /// The streams that the reader reads.
    owned: BTreeMap<usize, Owned>,
    /// The places that streams were not at, because they were replaced, or a failover undid entries: the caller knows.
    replaced: BTreeMap<usize, Start>,
    /// What was read and cannot be returned yet: the rest of a batch, or one whose lease may have ended.
    held: VecDeque<ReadBatch>,
    /// What the caller has yet to learn.
    news: Vec<Polled>,
    /// Whether the number of the stream's shards has yet to be checked.
    is_unchecked: bool,
    is_open: bool,
    is_closed: bool,
    fork: forkguard::Guard,
}

impl ShardConsumer {
    /// `streams`: the stream keys, the same for all members; if empty, those of the endpoint. Opens no connection.
    pub fn new(endpoint: &Endpoint, streams: &[Vec<u8>], options: ShardConsumerOptions) -> Result<Self> {
        let keys: Arc<[Vec<u8>]> = if streams.is_empty() { endpoint.stream_keys() } else { streams }.into();
        let reader = reader(endpoint, &keys, &options)?;
        if let Some((_, given)) = &options.names.moves {
            check_dead_letter_key(endpoint, &keys, given)?;
        }
        // Whatever the order in which members name the streams, they have one list.
        let home = (0..keys.len()).min_by_key(|at| &keys[*at]).unwrap_or_default();
        Ok(Self {
            reader,
            keeper: None,
            shared: Arc::new(Shared::new(Leases::new(options.names.clone(), keys.len(), home))),
            endpoint: endpoint.clone(),
            keys,
            options,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            assigned: BTreeSet::new(),
            owned: BTreeMap::new(),
            replaced: BTreeMap::new(),
            held: VecDeque::new(),
            news: Vec::new(),
            is_unchecked: endpoint.shards().is_some() && streams.is_empty(),
            is_open: false,
            is_closed: false,
            fork: forkguard::new(),
        })
    }

    /// The schema of the record batches. `None`: the first entry determines it, and none was read.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.reader.schema()
    }

    /// The handle through which any thread commits.
    pub fn handle(&self) -> ShardHandle {
        ShardHandle {
            shared: Arc::clone(&self.shared),
            owner: self.number,
            keys: Arc::clone(&self.keys),
            fork: self.fork.clone(),
        }
    }

    /// Finds out where the streams are, and starts the keeper's thread. Takes no lease yet.
    pub fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        block_on(self.opened(watch))?;
        self.keeper = Some(
            Keeper::start(self.keeping()?)
                .map_err(|error| Error::Internal { message: format!("the keeper's thread did not start: {error}") })?,
        );
        Ok(())
    }

    /// Like [`open`](Self::open), with waits that the watch may defer, and without a thread.
    pub(crate) async fn opened(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        let mut connections = KeptConnections::new(&self.endpoint);
        let decided = connections.decided(watch).await.cloned();
        connections.close();
        let decided = decided?;
        if decided.cluster().is_some()
            && let Some(key) = self.keys.iter().find(|key| !has_slot_of_stream(key))
        {
            let message =
                format!("streams in a cluster must have no '}}' without a '{{' before it, got '{}'", escaped(key));
            return Err(Error::config("streams", message));
        }
        if self.is_unchecked {
            check_shards_once(&decided, watch).await?;
            self.is_unchecked = false;
        }
        if self.endpoint.is_undecided() {
            self.reader = reader(&decided, &self.keys, &self.options)?;
        }
        self.shared.counters.get_or_init(|| Arc::clone(self.reader.counters()));
        self.endpoint = decided;
        self.is_open = true;
        Ok(())
    }

    /// The work of the keeper.
    fn keeping(&self) -> Result<Keeping<LeaseSession>> {
        let groups = by_slot(&self.endpoint, &self.keys, false);
        let endpoints = groups.iter().map(|keys| endpoint_of(&self.endpoint, keys)).collect::<Result<Vec<_>>>()?;
        let number = |key: &&[u8]| self.keys.iter().position(|other| other == key).unwrap_or_default();
        let session = |keys: &Vec<&[u8]>| {
            LeaseSession::new(
                Arc::clone(&self.shared.leases),
                Arc::clone(&self.keys),
                keys.iter().map(number).collect(),
            )
        };
        let sessions: Vec<_> = groups.iter().map(session).collect();
        let retry = self.options.retry.clone().unwrap_or_default();
        Ok(Keeping::new(endpoints, sessions, Arc::clone(&self.shared.doze), self.options.names.lease / 12, &retry))
    }

    /// The next batch, or what has changed. An error leaves the consumer where it was: the next call continues from there.
    pub fn poll(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<Polled> {
        block_on(self.polled(timeout, watch))
    }

    /// Like [`poll`](Self::poll), with waits that the watch may defer.
    pub(crate) async fn polled(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<Polled> {
        self.enter()?;
        let polled = contained(self.until_something(timeout, watch)).await;
        self.ended(polled)
    }

    async fn until_something(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<Polled> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.shared.stops() {
                return Ok(Polled::Nothing);
            }
            self.follow_changes()?;
            if !self.news.is_empty() {
                return Ok(self.news.remove(0));
            }
            if let Some(batch) = self.take()? {
                return Ok(Polled::Batch(Box::new(batch)));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Polled::Nothing);
            }
            self.wait(deadline, watch).await?;
        }
    }

    /// Waits until the reader has a batch, or something has changed.
    async fn wait(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        if self.owned.is_empty() || !self.held.is_empty() {
            if let Some(error) = self.outage(Leases::outage) {
                self.shared.leases().forget_outages();
                return Err(error);
            }
            let until = Instant::now() + LOOKS_EVERY;
            return pause(deadline.map_or(until, |deadline| deadline.min(until)), watch).await;
        }
        let shared = Arc::clone(&self.shared);
        let mut has_news = || shared.stops() || shared.leases().has_news(clock::now());
        let mut watch = Within::new(&mut has_news, watch);
        let begins_at = self.shared.leases().begins_at();
        let until_begin = begins_at.map(|at| at.saturating_sub(clock::now()));
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.into_iter().chain(until_begin).min();
        let waited = Box::pin(self.reader.waited(left, &mut watch)).await;
        watch.ended(waited).map(drop)
    }

    /// The error of a keeper that cannot reach a server, for longer than the policy allows.
    fn outage(&self, of: impl Fn(&Leases, Duration, Duration) -> Option<&Fault>) -> Option<Error> {
        let most = self.options.retry.as_ref().map_or(Duration::ZERO, |retry| retry.deadline);
        of(&self.shared.leases(), most, clock::now()).map(failed)
    }

    /// Reads what this member owns now, and nothing else.
    fn follow_changes(&mut self) -> Result<()> {
        let (changes, error) = {
            let mut leases = self.shared.leases();
            let namesake = leases.has_namesake().then(|| self.namesake());
            (leases.take_changes(clock::now()), leases.take_error().or(namesake))
        };
        for change in changes {
            match change {
                Change::Assigned { stream } => {
                    self.assigned.insert(stream);
                    self.tell(stream, true);
                }
                Change::Reads { stream, epoch, start } => {
                    self.owned.insert(stream, Owned { epoch, start, has_read: false });
                    let is_known = self.replaced.get(&stream) == Some(&start);
                    self.reader.read_stream(&self.keys[stream], if is_known { start.without_claims() } else { start });
                }
                Change::Failed { stream } => self.leave(stream),
                Change::Revoked { stream } | Change::Lost { stream } => {
                    self.leave(stream);
                    if self.assigned.remove(&stream) {
                        self.tell(stream, false);
                    }
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Reads a stream no longer, and forgets what was read of it.
    fn leave(&mut self, stream: usize) {
        if self.owned.remove(&stream).is_some() {
            self.reader.leave_stream(&self.keys[stream]);
            self.held.retain(|batch| *batch.stream != *self.keys[stream]);
        }
    }

    /// The error of a member whose name another process uses.
    fn namesake(&self) -> Error {
        let member = escaped(&self.options.names.member);
        Error::state(format!(
            "another process uses the member name '{member}' and has taken streams from this one, which takes none any more: give \
             each process a name of its own"
        ))
    }

    /// Lets the caller know, together with other streams that came or went just before.
    fn tell(&mut self, stream: usize, is_assigned: bool) {
        let key = self.keys[stream].clone();
        match (self.news.last_mut(), is_assigned) {
            (Some(Polled::Assigned(keys)), true) | (Some(Polled::Revoked(keys)), false) => keys.push(key),
            (_, true) => self.news.push(Polled::Assigned(vec![key])),
            (_, false) => self.news.push(Polled::Revoked(vec![key])),
        }
    }

    /// Begins again at the last commit if a stream is not the one that was read before: a failover may have undone entries. If it is
    /// not the one that was committed either, reading goes on behind that place the next time, whatever the stream is.
    fn renounce(&mut self, error: &Error) {
        let Error::StreamReplaced { stream, .. } = error else { return };
        let Some(stream) = self.keys.iter().position(|key| *key == *stream) else { return };
        let Some(Owned { epoch, start, has_read }) = self.owned.get(&stream) else { return };
        if !has_read {
            self.replaced.insert(stream, *start);
        }
        self.shared.leases().renounce(stream, *epoch, clock::now());
    }

    /// A batch that was read, if this member still owns its stream.
    fn take(&mut self) -> Result<Option<ShardBatch>> {
        loop {
            let batch = match self.held.pop_front() {
                None => match self.reader.take_batch() {
                    Ok(batch) => batch,
                    Err(error) => {
                        self.renounce(&error);
                        return Err(error);
                    }
                },
                held => held,
            };
            let Some(mut batch) = batch else { return Ok(None) };
            let Some(stream) = self.keys.iter().position(|key| *key == *batch.stream) else { continue };
            let limit = self.shared.leases().limit(stream);
            let rest = batch.split(limit);
            let place = batch.position.get(&batch.stream);
            let Some((owned, place)) = self.owned.get_mut(&stream).zip(place) else { continue };
            let handed = self.shared.leases().hand_out(stream, owned.epoch, place, batch.entries, clock::now());
            owned.has_read |= matches!(handed, HandOut::Now(_));
            match handed {
                HandOut::Now(ticket) => {
                    self.hold(rest);
                    return Ok(Some(ShardBatch { batch, ticket, owner: self.number }));
                }
                HandOut::Later => {
                    self.shared.doze.added(false);
                    self.hold(rest);
                    self.hold(Some(batch));
                    return Ok(None);
                }
                HandOut::Moved => {
                    self.shared.doze.added(false);
                    self.hold(rest);
                }
                HandOut::Never => {}
            }
        }
    }

    /// Keeps what was read, before what is kept already.
    fn hold(&mut self, batch: Option<ReadBatch>) {
        if let Some(batch) = batch {
            self.held.push_front(batch);
        }
    }

    /// Waits until the server has every commit, or `timeout` is over.
    pub fn flush(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<ShardReport> {
        block_on(self.flushed(timeout, watch))
    }

    /// Like [`flush`](Self::flush), with waits that the watch may defer.
    pub(crate) async fn flushed(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<ShardReport> {
        self.enter()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.shared.leases().try_now(clock::now());
        if !self.until(deadline, watch, Leases::is_settled).await? {
            let refusal = self.shared.leases().take_commit_refusal();
            if let Some(error) = refusal.or_else(|| self.outage(Leases::last_outage)) {
                return Err(error);
            }
        }
        self.handle().report()
    }

    /// Ends the consumer: sends its commits, and gives its streams up, so that others have them immediately. Gives up after
    /// `timeout`: others then take the streams when the leases end, and the report counts what is not known.
    pub fn close(&mut self, timeout: Duration, watch: &mut dyn Watch) -> Result<ShardReport> {
        block_on(self.closed(timeout, watch))
    }

    /// Like [`close`](Self::close), with waits that the watch may defer.
    pub(crate) async fn closed(&mut self, timeout: Duration, watch: &mut dyn Watch) -> Result<ShardReport> {
        if self.fork.clone().detected_fork() {
            self.abandon();
            return Ok(ShardReport::default());
        }
        if self.is_closed {
            return self.handle().report();
        }
        let deadline = Instant::now().checked_add(timeout);
        self.shared.leases().end(clock::now());
        self.shared.doze.wake();
        let waited = if self.is_open { self.until(deadline, watch, Leases::has_ended).await } else { Ok(true) };
        let refusal = self.shared.leases().take_commit_refusal();
        self.abandon();
        self.shared.leases().abandon();
        waited?;
        refusal.map_or_else(|| self.handle().report(), Err)
    }

    /// Waits until the leases are as they should be, a server refuses what they need, all that have yet to reply cannot
    /// be reached, or the deadline.
    /// Returns whether they are.
    async fn until(
        &mut self,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
        is_done: impl Fn(&Leases) -> bool + Send,
    ) -> Result<bool> {
        let mut is_over = ends_at(deadline);
        let mut watch = Within::new(&mut is_over, watch);
        self.shared.doze.wake();
        loop {
            {
                let leases = self.shared.leases();
                if is_done(&leases) {
                    return Ok(true);
                }
                if leases.is_refused() {
                    return Ok(false);
                }
            }
            if self.outage(Leases::last_outage).is_some() || deadline.is_some_and(|deadline| deadline <= Instant::now())
            {
                return Ok(false);
            }
            let waited = pause(Instant::now() + Duration::from_millis(1), &mut watch).await;
            if watch.ended(waited)?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Ends the connections without sending a command to the server.
    fn abandon(&mut self) {
        self.is_closed = true;
        if self.fork.clone().detected_fork() {
            // The thread belongs to the parent, which may have held the lock.
            if let Some(keeper) = &mut self.keeper {
                keeper.forget();
            }
        } else {
            self.shared.doze.end();
            if let Some(keeper) = &mut self.keeper {
                keeper.join();
            }
        }
        self.reader.close();
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

impl Drop for ShardConsumer {
    fn drop(&mut self) {
        if !self.is_closed {
            self.abandon();
        }
    }
}

/// A reader of these streams that reads none of them yet.
fn reader(endpoint: &Endpoint, keys: &[Vec<u8>], options: &ShardConsumerOptions) -> Result<Reader> {
    let mut reader = Reader::new(endpoint, keys, &options.reading)?;
    keys.iter().try_for_each(|key| reader.drop_stream(key))?;
    Ok(reader)
}

/// Waits until this time.
async fn pause(until: Instant, watch: &mut dyn Watch) -> Result<()> {
    if watch.defers() {
        return rest(Vec::new(), Some(until), watch).await;
    }
    if watch.interrupted() {
        return Err(Error::Interrupted);
    }
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    Ok(())
}
