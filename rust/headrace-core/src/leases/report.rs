//! The counts of what became of the entries of a member.

use crate::counters::{CounterSpec, CounterValues, counter, counter_table, gauge, report_only, stats_only};

counter_table! {
    /// Counts since the consumer was made, of entries unless something else is said.
    ///
    /// Users unpack reports, in the order of the rows: a new counter is the last row.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ShardReport in SHARD_CONSUMER_COUNTERS {
        /// Entries returned in batches; each time counts.
        pub handed_over: u64 = report_only(),
        /// Entries committed, as confirmed by the server: the next owner of the stream begins after them.
        pub committed: u64 = counter("{entry}", "Entries that were committed"),
        /// Entries whose commit came too late: the stream had another owner, or its lease was deleted, and nothing was changed.
        /// Each is a possible duplicate.
        pub fenced: u64 = counter("{entry}", "Entries whose commit came after the lease was lost"),
        /// Entries for which the reply to the commit was lost, and it could not be determined whether the server did as requested.
        pub unknown: u64 = counter("{entry}", "Entries whose commit could not be confirmed"),
        /// Entries trimmed before they were read, of the streams that this member read.
        pub lost: u64 = report_only(),
        /// Entries returned and not committed, of streams that this member owns.
        pub pending: u64 = gauge("{entry}", "Entries returned and not committed"),
        /// How often this member took a stream.
        pub streams_taken: u64 = counter("{stream}", "How often a stream was taken"),
        /// How often it gave one up: others had less than their share, or it was closed.
        pub streams_given_up: u64 = counter("{stream}", "How often a stream was given up"),
        /// How often it lost one: its lease was not renewed in time and another member took it, or the lease was deleted.
        pub streams_lost: u64 = counter("{stream}", "How often a stream was lost"),
        /// How often `fail` was called, for a batch or an entry.
        pub failed: u64 = counter("{failure}", "How often a batch or an entry failed"),
        /// Entries that were returned and are returned again because they, or an entry before them, failed.
        pub repeated: u64 = counter("{entry}", "Entries that are returned again after a failure"),
        /// Entries moved to `dead_letter_key`; `committed` counts them too.
        pub dead: u64 = counter("{entry}", "Entries that were moved to the stream of dead letters"),
        /// Streams that this member owns now, without those that it gives up.
        pub streams_owned: u64 = stats_only(gauge("{stream}", "Streams that the member owns")),
    } and {}
}

impl ShardReport {
    /// The counts of the report, in the order of the table.
    pub fn counts(&self) -> CounterValues {
        self.of(|row| row.in_report)
    }

    /// The counters that statistics have, in the order of the table.
    pub(crate) fn stats(&self) -> CounterValues {
        self.of(|row| row.in_stats)
    }

    fn of(&self, has: impl Fn(&CounterSpec) -> bool) -> CounterValues {
        let rows = SHARD_CONSUMER_COUNTERS.iter().zip(self.values());
        rows.filter(|(row, _)| has(row)).map(|(_, value)| value).collect()
    }
}
