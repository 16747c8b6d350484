//! The counters of a dispatcher, and those of a reader or a consumer: written by their owner, readable from any thread at any
//! time.

mod nodes;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use nodes::NodeCounters;
pub use nodes::NodeValues;

use nodes::NodeList;

/// Upper bounds of the flush histogram, in seconds; the last bucket is unbounded.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, f64::INFINITY];

/// The maximum number of codes that are counted separately; failures with further codes count as `ERR`.
const MAX_CODES: usize = 256;

/// Counters that only grow. One thread writes them, so that only failures take a lock.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) messages: Counter,
    pub(crate) delivered: Counter,
    pub(crate) deduplicated: Counter,
    pub(crate) possible_duplicates: Counter,
    pub(crate) retries: Counter,
    pub(crate) retry_waits: Counter,
    retry_wait_nanos: Counter,
    pub(crate) connections: Counter,
    pub(crate) reconnects: Counter,
    pub(crate) redirects: Counter,
    pub(crate) refreshes: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) script_calls: Counter,
    pub(crate) script_rows_shared: Counter,
    pub(crate) script_rows_whole: Counter,
    failed: Mutex<BTreeMap<Cow<'static, str>, u64>>,
    flushes: [Counter; BOUNDS.len()],
    flush_nanos: Counter,
    nodes: NodeList,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only one thread may do so: this is a load and a store, not an atomic addition.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Adds a duration, in nanoseconds.
    fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Sets a value that is not a sum.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of a reader, or of the reading of a consumer. One thread at a time writes them.
#[derive(Debug, Default)]
pub struct ReadCounters {
    pub(crate) batches: Counter,
    pub(crate) rows: Counter,
    pub(crate) entries: Counter,
    pub(crate) lost: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) requests: Counter,
    connections: Counter,
    lost_connections: Counter,
    reconnects: Counter,
    pub(crate) retry_waits: Counter,
    retry_wait_nanos: Counter,
    last_entry_ms: Counter,
}

/// The values of [`ReadCounters`] at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReadCounterValues {
    /// Batches returned.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Their entries.
    pub entries: u64,
    /// Entries that were lost to trimming or deletion.
    pub lost: u64,
    /// Bytes received, after TLS and without handshakes.
    pub bytes_received: u64,
    /// Requests that were sent, each with all its commands.
    pub requests: u64,
    /// Connections whose handshake succeeded.
    pub connections: u64,
    /// Connections that replaced one that was lost or whose stream is on another node now.
    pub reconnects: u64,
    /// Waits for a server that is unreachable or busy, including the current one.
    pub retry_waits: u64,
    /// Total seconds of these waits so far.
    pub retry_wait_seconds: f64,
    /// The milliseconds of the entry that was returned last.
    pub last_entry_ms: Option<u64>,
}

impl ReadCounters {
    /// Counts a batch that was returned.
    pub(crate) fn handed_out(&self, rows: usize, entries: u64, last_ms: u64) {
        self.batches.add(1);
        self.rows.add(rows as u64);
        self.entries.add(entries);
        // 0: no entry was returned.
        self.last_entry_ms.set(last_ms.saturating_add(1));
    }

    /// Counts a new connection: if several connections read, the next one after a loss replaces the lost one.
    pub(crate) fn connected(&self) {
        self.connections.add(1);
        if self.reconnects.get() < self.lost_connections.get() {
            self.reconnects.add(1);
        }
    }

    /// Counts a connection that was lost, or whose stream is on another node.
    pub(crate) fn lost_connection(&self) {
        self.lost_connections.add(1);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.retry_wait_nanos.add_time(time);
    }

    /// Reads all counters. Counters that change during the call may not be consistent with each other.
    pub fn read(&self) -> ReadCounterValues {
        ReadCounterValues {
            batches: self.batches.get(),
            rows: self.rows.get(),
            entries: self.entries.get(),
            lost: self.lost.get(),
            bytes_received: self.bytes_received.get(),
            requests: self.requests.get(),
            connections: self.connections.get(),
            reconnects: self.reconnects.get(),
            retry_waits: self.retry_waits.get(),
            retry_wait_seconds: Duration::from_nanos(self.retry_wait_nanos.get()).as_secs_f64(),
            last_entry_ms: self.last_entry_ms.get().checked_sub(1),
        }
    }
}

/// The values of all counters at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterValues {
    /// Messages accepted.
    pub messages: u64,
    /// Messages delivered, including deduplicated ones.
    pub delivered: u64,
    /// Messages that an earlier attempt had written.
    pub deduplicated: u64,
    /// Failed messages, by code.
    pub failed_by_code: BTreeMap<Cow<'static, str>, u64>,
    /// Retries that may have written a message a second time.
    pub possible_duplicates: u64,
    /// Messages sent again.
    pub retries: u64,
    /// Waits before messages are sent again, including the current one.
    pub retry_waits: u64,
    /// Total seconds of these waits so far.
    pub retry_wait_seconds: f64,
    /// Connections whose handshake succeeded.
    pub connections: u64,
    /// Connections that replaced one that was lost.
    pub reconnects: u64,
    /// How many times it continued with another node of a cluster, because that node has the stream now.
    pub redirects: u64,
    /// How many times nodes of a cluster were asked which of them has which slots.
    pub refreshes: u64,
    /// Bytes sent, before TLS and without handshakes.
    pub bytes_sent: u64,
    /// Calls of the script (exactly once).
    pub script_calls: u64,
    /// Messages in these calls whose field names were sent once for all of a call.
    pub script_rows_shared: u64,
    /// Messages in these calls that were sent with all their arguments.
    pub script_rows_whole: u64,
    /// The flush histogram: for each upper bound in seconds, the flushes that took at most that long and longer than the
    /// previous bound.
    pub flush_seconds: Vec<(f64, u64)>,
    /// Total seconds of all flushes.
    pub flush_seconds_sum: f64,
    /// The nodes of a cluster, in the order in which they were found.
    pub nodes: Vec<NodeValues>,
}

impl Counters {
    #[expect(clippy::ptr_arg, reason = "most codes are static, and are kept without a copy")]
    pub(crate) fn failed(&self, code: &Cow<'static, str>, count: u64) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = failed.get_mut(code) {
            *known += count;
        } else {
            let code = if failed.len() < MAX_CODES { code.clone() } else { Cow::Borrowed("ERR") };
            *failed.entry(code).or_default() += count;
        }
    }

    pub(crate) fn flushed(&self, took: Duration) {
        let place = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len() - 1);
        self.flushes[place].add(1);
        self.flush_nanos.add_time(took);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.retry_wait_nanos.add_time(time);
    }

    /// Reads all counters. Counters that change during the call may not be consistent with each other.
    pub fn read(&self) -> CounterValues {
        CounterValues {
            messages: self.messages.get(),
            delivered: self.delivered.get(),
            deduplicated: self.deduplicated.get(),
            failed_by_code: self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            possible_duplicates: self.possible_duplicates.get(),
            retries: self.retries.get(),
            retry_waits: self.retry_waits.get(),
            retry_wait_seconds: Duration::from_nanos(self.retry_wait_nanos.get()).as_secs_f64(),
            connections: self.connections.get(),
            reconnects: self.reconnects.get(),
            redirects: self.redirects.get(),
            refreshes: self.refreshes.get(),
            bytes_sent: self.bytes_sent.get(),
            script_calls: self.script_calls.get(),
            script_rows_shared: self.script_rows_shared.get(),
            script_rows_whole: self.script_rows_whole.get(),
            flush_seconds: BOUNDS.into_iter().zip(self.flushes.iter().map(Counter::get)).collect(),
            flush_seconds_sum: Duration::from_nanos(self.flush_nanos.get()).as_secs_f64(),
            nodes: self.nodes.read(),
        }
    }

    /// Lists a node, unless it is listed already.
    pub(crate) fn list(&self, node: &Arc<NodeCounters>) {
        self.nodes.add(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_counted_in_the_first_bucket_that_includes_it() {
        let counters = Counters::default();
        for millis in [0, 1, 2, 3, 61_000] {
            counters.flushed(Duration::from_millis(millis));
        }
        let counted = counters.read();
        let counts: Vec<u64> = counted.flush_seconds.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!((counted.flush_seconds_sum - 61.006).abs() < 1e-9);
    }

    #[test]
    fn the_number_of_codes_is_bounded() {
        let counters = Counters::default();
        for n in 0..10_000 {
            counters.failed(&Cow::Owned(format!("CODE{n}")), 2);
        }
        let failed = counters.read().failed_by_code;
        assert!(failed.len() <= MAX_CODES + 1);
        assert_eq!(failed.values().sum::<u64>(), 20_000);
    }
}
