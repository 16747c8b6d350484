//! The counters of a reader, or of the reading of a consumer.

use std::time::Duration;

use super::cell::{Counter, Seconds, Time};
use super::table::{counter, counter_table, time};

counter_table! {
    /// The counters of a reader, or of the reading of a consumer. One thread at a time writes them.
    #[derive(Debug, Default)]
    pub struct ReadCounters in READER_COUNTERS {
        /// Batches that were returned.
        batches: Counter = counter("{batch}", "Batches returned"),
        /// Entries in these batches.
        entries: Counter = counter("{entry}", "Entries in batches"),
        /// Rows in these batches.
        rows: Counter = counter("{row}", "Rows in batches"),
        /// Entries that were trimmed or deleted before they could be returned.
        pub(crate) lost: Counter =
            counter("{entry}", "Entries that were trimmed or deleted before they could be returned"),
        /// Bytes received, after decryption.
        pub(crate) bytes_received: Counter = counter("By", "Bytes received, after decryption"),
        /// Requests that were sent, each with all its commands.
        pub(crate) requests: Counter = counter("{request}", "Requests that were sent"),
        /// Connections that were opened and authenticated.
        connections: Counter = counter("{connection}", "Connections that were made"),
        /// The part of `connections` that replaced a lost connection, or one whose stream has moved to another node.
        reconnects: Counter = counter("{connection}", "Connections that replaced a lost one"),
        /// Waits for a server that was unreachable or busy, regardless of the number of attempts (`retry`).
        pub(crate) retry_waits: Counter = counter("{wait}", "Waits for a server that was unreachable or busy"),
        /// The duration of these waits in seconds, each from its first failure, including a wait in progress.
        retry_wait_seconds: Seconds = counter("s", "Time spent waiting for a server"),
        /// The time of the last entry that was returned, taken from its ID, in seconds since 1970. None: there was none.
        last_entry_time: Time = time("seconds_behind", "Age of the last entry returned"),
    } and {
        lost_connections: Counter,
    }
}

impl ReadCounters {
    /// Counts a batch that was returned.
    pub(crate) fn handed_out(&self, rows: usize, entries: u64, last_ms: u64) {
        self.batches.add(1);
        self.rows.add(rows as u64);
        self.entries.add(entries);
        self.last_entry_time.set(Some(last_ms));
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
        self.retry_wait_seconds.add(time);
    }
}
