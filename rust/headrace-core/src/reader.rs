//! Reads streams by position: entries become record batches, and the caller stores the position.

mod drive;
mod event_loop;
mod line;
mod members;
mod options;
mod sessions;
mod stop;

use std::collections::BTreeSet;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;

use crate::admin::check_shards_once;
use crate::contain::{Panicked, contain, contained};
use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::entries::ColumnsPlan;
use crate::error::{Error, Result};
use crate::net::{Interest, Watch, Within, block_on};
use crate::reading::{
    Backward, BackwardSession, End, Pages, Paging, Pool, ReadBatch, Session, SessionOptions, Start, Stream, by_slot,
    endpoint_of,
};
use crate::resp::EntryId;
use crate::shown::shown_names;

pub use event_loop::LoopReader;
pub(crate) use options::PAGE_OPTIONS;
pub use options::{READER_OPTIONS, ReaderOptions};

use drive::Drive;
use options::{Beginning, Way};
pub(crate) use sessions::Sessions;
pub use stop::ReaderStop;

/// Reads the entries of streams, each stream in the order of its IDs. It uses one connection; in a cluster, one for each slot
/// that holds some of the streams, unless slots share connections (option `connections`).
///
/// [`open`](Self::open) connects, and determines where each stream begins and ends. Then [`wait`](Self::wait) and
/// [`take_batch`](Self::take_batch) read on. Nothing changes on the server: a later reader starts at the position of a batch,
/// which the caller stores with its rows.
#[derive(Debug)]
pub struct Reader {
    sessions: Sessions,
    drive: Drive,
    columns: Arc<ColumnsPlan>,
    counters: Arc<ReadCounters>,
    fork: forkguard::Guard,
    is_closed: bool,
    /// Whether the caller wants no further batch.
    stop: ReaderStop,
    endpoint: Endpoint,
    /// The arguments that the reader was created with, until it is known whether the streams are in a cluster.
    undecided: Option<Box<(Vec<Vec<u8>>, ReaderOptions)>>,
    /// Whether the number of the stream's shards has yet to be checked.
    is_unchecked: bool,
    /// Whether a field that is probably misspelt has been reported.
    has_told_of_misspelt: bool,
}

impl Reader {
    /// `streams`: the stream keys; if empty, those of the endpoint. Opens no connection.
    pub fn new(endpoint: &Endpoint, streams: &[Vec<u8>], options: &ReaderOptions) -> Result<Self> {
        let keys = if streams.is_empty() { endpoint.stream_keys() } else { streams };
        let mut seen = BTreeSet::new();
        if let Some(twice) = keys.iter().find(|key| !seen.insert(key.as_slice())) {
            let message = format!("streams must name each stream once, got '{}' twice", twice.escape_ascii());
            return Err(Error::config("streams", message));
        }
        check_position(&options.beginning, &options.way, &seen)?;
        let counters = Arc::new(ReadCounters::default());
        let columns = Arc::new(options.columns.clone());
        let (sessions, drive) = connections(endpoint, keys, options, &columns, &counters)?;
        Ok(Self {
            columns,
            sessions,
            drive,
            counters,
            fork: forkguard::new(),
            is_closed: false,
            stop: ReaderStop::default(),
            endpoint: endpoint.clone(),
            undecided: endpoint.is_undecided().then(|| Box::new((keys.to_vec(), options.clone()))),
            is_unchecked: endpoint.shards().is_some() && streams.is_empty(),
            has_told_of_misspelt: false,
        })
    }

    /// The schema of the record batches. `None`: the first entry determines it, and none was read.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.columns.known_schema()
    }

    /// The counters, which can be read from any thread.
    pub fn counters(&self) -> &Arc<ReadCounters> {
        &self.counters
    }

    /// Connects, and determines where each stream begins and ends.
    pub fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        block_on(self.opened(watch))
    }

    /// Like [`open`](Self::open), with waits that the watch may defer.
    pub(crate) async fn opened(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        let begun = contained(self.begin(watch)).await;
        self.ended(begun)
    }

    /// Connects, then checks the shards. The drive connects first, because it waits for a server as its policy requires.
    async fn begin(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.drive.until_begun(&mut self.sessions, self.undecided.is_some(), watch).await?;
        if self.enters_cluster()? {
            self.drive.until_begun(&mut self.sessions, false, watch).await?;
        }
        if self.is_unchecked {
            check_shards_once(&self.endpoint, watch).await?;
            self.is_unchecked = false;
        }
        Ok(())
    }

    /// Notes what the server said if the endpoint left open whether the streams are in a cluster. Returns whether they are: each
    /// slot then has a connection, which has yet to be opened.
    fn enters_cluster(&mut self) -> Result<bool> {
        let Some(made_of) = self.undecided.take() else { return Ok(false) };
        if let Some(endpoint) = self.drive.endpoint() {
            self.endpoint = endpoint.clone();
        }
        if self.endpoint.cluster().is_none() {
            return Ok(false);
        }
        let (keys, options) = *made_of;
        self.drive.close(&mut self.sessions, false);
        (self.sessions, self.drive) = connections(&self.endpoint, &keys, &options, &self.columns, &self.counters)?;
        Ok(true)
    }

    /// Waits until [`take_batch`](Self::take_batch) has a batch or an error, everything was read, or `timeout` is over. A caller
    /// that asks [`take_doubt`](Self::take_doubt) in between learns of a doubt before the batch that follows it.
    pub fn wait(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<()> {
        block_on(self.waited(timeout, watch))
    }

    /// Like [`wait`](Self::wait), with waits that the watch may defer.
    pub(crate) async fn waited(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<()> {
        self.enter()?;
        let ready = contained(self.until_ready(timeout, watch)).await;
        let ready = self.ended(ready);
        self.counters.lost.set(self.sessions.lost().0);
        ready
    }

    async fn until_ready(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<()> {
        if self.stop.is_stopped() {
            return Ok(());
        }
        if self.is_unchecked || self.undecided.is_some() {
            self.begin(watch).await?;
        }
        let stop = self.stop.clone();
        let mut is_stopped = || stop.is_stopped();
        let mut watch = Within::new(&mut is_stopped, watch);
        let ready = self.drive.until_ready(&mut self.sessions, timeout, &mut watch).await;
        watch.ended(ready).map(drop)
    }

    /// What [`stop`](ReaderStop::stop)s it, from any thread.
    pub fn stopper(&self) -> ReaderStop {
        self.stop.clone()
    }

    /// The next batch, if one has arrived: [`wait`](Self::wait) for it. It neither connects nor waits.
    ///
    /// An error leaves the reader where it was: the next call continues from there.
    pub fn take_batch(&mut self) -> Result<Option<ReadBatch>> {
        self.enter()?;
        if self.stop.is_stopped() {
            return Ok(None);
        }
        let read = contain(|| self.drive.take(&mut self.sessions));
        let mut read = self.ended(read);
        if let Ok(Some(batch)) = &mut read {
            batch.misspelt.take_if(|_| replace(&mut self.has_told_of_misspelt, true));
            self.counters.handed_out(batch.record_batch().num_rows(), batch.entries, batch.last_id().ms);
        }
        read
    }

    /// Whether everything was read, so that no further batch follows.
    pub fn is_finished(&self) -> bool {
        self.sessions.is_finished()
    }

    /// The position after the batches so far: a reader that starts there reads what follows.
    pub fn position(&self) -> String {
        self.sessions.position().to_text()
    }

    /// The entry that the position in a stream follows; `None`: it follows none, as where a stream begins.
    pub fn last_entry(&self, stream: &[u8]) -> Option<EntryId> {
        self.sessions.position().get(stream).filter(|place| place.is_entry).map(|place| place.id)
    }

    /// The number of entries of all streams that were trimmed before they were read; and whether it is exact or an upper bound.
    pub fn lost(&self) -> (u64, bool) {
        self.sessions.lost()
    }

    /// Why the number of entries that were lost is not known or not exact: the server does not count them, as before Redis 7.0,
    /// or did not when the position was made at which this reader began. Said once.
    pub fn take_doubt(&mut self) -> Option<&'static str> {
        self.sessions.take_doubt()
    }

    /// A note for the caller about streams that did not exist when reading began: a misspelt key looks like an empty stream.
    /// Returned once.
    pub fn take_missing(&mut self) -> Option<String> {
        let missing: Vec<_> = self.sessions.take_missing().iter().map(|stream| stream.to_vec()).collect();
        let (names, endpoint) = (shown_names(&missing), &self.endpoint);
        match missing.len() {
            0 => None,
            // A shard without messages does not exist.
            _ if self.endpoint.shards().is_some() => None,
            1 => Some(format!("stream {names} does not exist at {endpoint:#}, and counts as empty")),
            _ => Some(format!("streams {names} do not exist at {endpoint:#}, and count as empty")),
        }
    }

    /// Stops reading a stream, for good: neither a position nor the end of the reader depends on it from now on.
    pub fn drop_stream(&mut self, stream: &[u8]) -> Result<()> {
        if !self.sessions.drop_stream(stream) {
            let message = format!("stream must be one of the reader's streams, got '{}'", stream.escape_ascii());
            return Err(Error::config("stream", message));
        }
        if let Some(made_of) = &mut self.undecided {
            made_of.0.retain(|key| key != stream);
        }
        Ok(())
    }

    /// The sockets of all connections that are open.
    pub(crate) fn open_sockets(&mut self) -> Vec<Interest> {
        self.drive.open_sockets()
    }

    /// Reads one of its streams that was dropped, from here.
    pub(crate) fn read_stream(&mut self, stream: &[u8], start: Start) {
        let is_known = self.sessions.read_stream(stream, start);
        debug_assert!(is_known, "a stream of the reader");
    }

    /// Reads one of its streams no longer, until [`read_stream`](Self::read_stream).
    pub(crate) fn leave_stream(&mut self, stream: &[u8]) {
        self.sessions.drop_stream(stream);
    }

    /// Closes the connections.
    pub fn close(&mut self) {
        self.is_closed = true;
        let is_forked = self.fork.clone().detected_fork();
        self.drive.close(&mut self.sessions, is_forked);
    }

    fn enter(&mut self) -> Result<()> {
        if self.is_closed {
            return Err(Error::Closed { what: "reader" });
        }
        if self.fork.detected_fork() {
            // The connection belongs to the parent: this process continues over its own, from the parent's position.
            self.drive.close(&mut self.sessions, true);
        }
        Ok(())
    }

    /// The result of a call. A panic closes the reader.
    fn ended<T>(&mut self, done: std::result::Result<Result<T>, Panicked>) -> Result<T> {
        done.unwrap_or_else(|_| {
            self.close();
            Err(Error::Internal { message: "reading ended; the reader is closed".to_owned() })
        })
    }
}

/// The sessions of the streams, and their sockets.
fn connections(
    endpoint: &Endpoint,
    keys: &[Vec<u8>],
    options: &ReaderOptions,
    columns: &Arc<ColumnsPlan>,
    counters: &Arc<ReadCounters>,
) -> Result<(Sessions, Drive)> {
    let in_order = matches!(options.way, Way::Backward(..));
    let groups = by_slot(endpoint, keys, in_order);
    let endpoints: Vec<Endpoint> = groups.iter().map(|keys| endpoint_of(endpoint, keys)).collect::<Result<_>>()?;
    // Streams that are read one after the other use one connection at a time anyway.
    let most = options.connections.filter(|_| !in_order).unwrap_or(usize::MAX);
    let pool = Pool::new(&endpoints, most, options.block);
    let sessions = groups.iter().map(|keys| session(keys, options, columns, groups.len())).collect();
    let sessions = Sessions::new(sessions, in_order, options.limit);
    Ok((sessions, Drive::new(endpoints, pool, options.retry.as_ref(), counters)))
}

/// The session of streams that share a connection, one of `sessions`.
fn session(keys: &[&[u8]], options: &ReaderOptions, columns: &Arc<ColumnsPlan>, sessions: usize) -> Box<dyn Pages> {
    let session_options = SessionOptions {
        batch_rows: options.batch_rows,
        // The entries that wait for their batches take no more memory than those of a single session.
        batch_bytes: options.batch_bytes.div_ceil(sessions),
        block: options.block,
        linger: options.linger,
        limit: options.limit,
        follows: options.way == Way::Forward(End::Never),
        fails_on_loss: options.fails_on_loss,
    };
    let paging = || Paging::new(options.page_bytes, options.batch_rows as u64);
    match options.way {
        Way::Forward(end) => {
            let streams = keys.iter().map(|key| {
                let start = match &options.beginning {
                    Beginning::Start(start) => *start,
                    // A stream that was added to those of the position.
                    Beginning::Position(position) => position.get(key).map_or(Start::Earliest, Start::After),
                };
                Stream::new(Arc::from(*key), start, end, paging())
            });
            Box::new(Session::new(streams.collect(), session_options, Arc::clone(columns)))
        }
        Way::Backward(first, last) => {
            let streams = keys.iter().map(|key| {
                let first = match &options.beginning {
                    Beginning::Start(_) => Some(first),
                    Beginning::Position(position) => position.get(key).map_or(Some(first), |place| place.id.previous()),
                };
                Backward::new(Arc::from(*key), first, last, paging())
            });
            Box::new(BackwardSession::new(streams.collect(), session_options, columns))
        }
    }
}

fn check_position(beginning: &Beginning, way: &Way, keys: &BTreeSet<&[u8]>) -> Result<()> {
    let Beginning::Position(position) = beginning else { return Ok(()) };
    let reads_backward = matches!(way, Way::Backward(..));
    if position.is_reverse != reads_backward {
        let (of, takes) = if position.is_reverse {
            ("from new entries to old ones", "True")
        } else {
            ("from old entries to new ones", "False")
        };
        return Err(Error::config("start", format!("start is a position of a reader {of}: it needs reverse={takes}")));
    }
    match position.streams().find(|key| !keys.contains(key)) {
        None => Ok(()),
        Some(missing) => {
            let key = missing.escape_ascii();
            Err(Error::config(
                "start",
                format!("start is a position in stream '{key}', which is not among the streams"),
            ))
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.is_closed {
            self.close();
        }
    }
}
