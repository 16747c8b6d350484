//! The counters of a dispatcher.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::cell::{Counter, Seconds};
use super::nodes::{NodeCounters, NodeList};
use super::table::{CounterValues, counter, counter_table};

/// Upper bounds of the flush histogram, in seconds; the last bucket is unbounded.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, f64::INFINITY];

/// The maximum number of codes that are counted separately; failures with further codes count as `ERR`.
const MAX_CODES: usize = 256;

counter_table! {
    /// Counters that only grow. One thread writes them, so that only failures take a lock.
    #[derive(Debug, Default)]
    pub struct Counters in DISPATCHER_COUNTERS {
        /// Messages that were accepted.
        pub(crate) messages: Counter = counter("{message}", "Messages accepted"),
        /// Messages that are in their stream.
        pub(crate) delivered: Counter = counter("{message}", "Messages that are in their stream"),
        /// The part of `delivered` that an earlier attempt had written (exactly once).
        pub(crate) deduplicated: Counter =
            counter("{message}", "Delivered messages that were already in their stream"),
        /// Messages that were sent again although an earlier attempt may have been written.
        pub(crate) possible_duplicates: Counter =
            counter("{message}", "Messages sent again although an earlier attempt may have been written"),
        /// How often a message was sent again.
        pub(crate) retries: Counter = counter("{message}", "Messages that were sent again"),
        /// How often a call started to wait for retries, regardless of their number.
        pub(crate) retry_waits: Counter = counter("{wait}", "Waits for retries"),
        /// The duration of these waits in seconds, each from its first failure, including a wait in progress.
        retry_wait_seconds: Seconds = counter("s", "Time spent waiting for retries"),
        /// Connections that were opened and authenticated.
        pub(crate) connections: Counter = counter("{connection}", "Connections that were made"),
        /// The part of `connections` that replaced a lost connection.
        pub(crate) reconnects: Counter = counter("{connection}", "Connections that replaced a lost one"),
        /// How often the dispatcher switched to another node of a cluster, because that node now has the stream.
        pub(crate) redirects: Counter = counter("{redirect}", "Changes to another node of a cluster"),
        /// How often nodes of a cluster were asked which node has which slots, including the first time.
        pub(crate) refreshes: Counter = counter("{refresh}", "Requests for the slot map of a cluster"),
        /// Bytes sent, before encryption.
        pub(crate) bytes_sent: Counter = counter("By", "Bytes sent, before encryption"),
        /// Script calls that were encoded (`exactly_once="script"`).
        pub(crate) script_calls: Counter = counter("{call}", "Script calls"),
        /// Messages in them whose field names were sent once per call.
        pub(crate) script_rows_shared: Counter =
            counter("{message}", "Messages in script calls whose field names were sent once per call"),
        /// Messages in them that were sent with all their arguments, because they have entry IDs of their own.
        pub(crate) script_rows_whole: Counter =
            counter("{message}", "Messages in script calls that were sent with all their arguments"),
    } and {
        failed: Mutex<BTreeMap<Cow<'static, str>, u64>>,
        flushes: [Counter; BOUNDS.len()],
        flush_time: Seconds,
        nodes: NodeList,
    }
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
        self.flush_time.add(took);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.retry_wait_seconds.add(time);
    }

    /// Lists a node, unless it is listed already.
    pub(crate) fn list(&self, node: &Arc<NodeCounters>) {
        self.nodes.add(node);
    }

    /// Failed messages, by code.
    pub fn failed_by_code(&self) -> BTreeMap<Cow<'static, str>, u64> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The flush histogram: for each upper bound in seconds, the flushes that took at most that long and longer than the
    /// previous bound.
    pub fn flush_seconds(&self) -> Vec<(f64, u64)> {
        BOUNDS.into_iter().zip(self.flushes.iter().map(Counter::get)).collect()
    }

    /// Total seconds of all flushes.
    pub fn flush_seconds_sum(&self) -> f64 {
        self.flush_time.get()
    }

    /// The nodes of a cluster, in the order in which they were found: host and port as the cluster lists them, and the counters.
    pub fn nodes(&self) -> Vec<(String, CounterValues)> {
        self.nodes.read()
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
        let counts: Vec<u64> = counters.flush_seconds().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!((counters.flush_seconds_sum() - 61.006).abs() < 1e-9);
    }

    #[test]
    fn the_number_of_codes_is_bounded() {
        let counters = Counters::default();
        for n in 0..10_000 {
            counters.failed(&Cow::Owned(format!("CODE{n}")), 2);
        }
        let failed = counters.failed_by_code();
        assert!(failed.len() <= MAX_CODES + 1);
        assert_eq!(failed.values().sum::<u64>(), 20_000);
    }
}
