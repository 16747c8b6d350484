//! The counts of the entries that a consumer read, and of what became of them.

use crate::counters::{CounterSpec, CounterValues, counter, counter_table, gauge, report_only, stats_only};

counter_table! {
    /// Counts of entries since the consumer was made.
    ///
    /// Users unpack reports, in the order of the rows: a new counter is the last row.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ReadReport in CONSUMER_COUNTERS {
        /// Entries returned in batches; each delivery counts.
        pub handed_over: u64 = report_only(),
        /// Entries read that had been delivered before, to this consumer or another one.
        pub redelivered: u64 = counter("{entry}", "Entries that had been delivered before"),
        /// Entries taken over from other consumers, which had held them for longer than `min_idle`.
        pub reclaimed: u64 = counter("{entry}", "Entries taken over from other consumers"),
        /// Entries acknowledged, as confirmed by the server: the group does not deliver them again.
        pub acked: u64 = counter("{entry}", "Entries that were acknowledged"),
        /// Entries acknowledged, failed or released when another consumer already had them, or had acknowledged them: each is a
        /// possible duplicate.
        pub stale: u64 = counter("{entry}", "Entries that belonged to another consumer when they were settled"),
        /// Entries for which the reply was lost, and it could not be determined whether the server did as requested.
        pub unknown: u64 = counter("{entry}", "Entries whose settlement could not be confirmed"),
        /// Entries given back to the group, or failed and to be retried.
        pub released: u64 = counter("{entry}", "Entries given back to the group"),
        /// Entries moved to `dead_letter_key`.
        pub dead: u64 = counter("{entry}", "Entries moved to the stream of dead letters"),
        /// Entries trimmed or deleted while they were pending.
        pub lost: u64 = report_only(),
        /// Entries handed over, or read ahead, and not settled yet.
        pub pending: u64 = gauge("{entry}", "Entries returned or read ahead, and not settled yet"),
        /// Renewals of leases that the server confirmed, counted for each entry.
        pub renewals: u64 = stats_only(counter("{entry}", "Renewals of leases")),
    }
}

impl ReadReport {
    /// The counts of the report, in the order of the table.
    pub fn counts(&self) -> CounterValues {
        self.of(|row| row.in_report)
    }

    /// The counters that statistics have, in the order of the table.
    pub(super) fn stats(&self) -> CounterValues {
        self.of(|row| row.in_stats)
    }

    fn of(&self, has: impl Fn(&CounterSpec) -> bool) -> CounterValues {
        let rows = CONSUMER_COUNTERS.iter().zip(self.values());
        rows.filter(|(row, _)| has(row)).map(|(_, value)| value).collect()
    }
}
