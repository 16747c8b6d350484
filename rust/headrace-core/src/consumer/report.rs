//! The counts of the entries that a consumer read, and of what became of them.

use crate::counters::{counter, counter_table, gauge};

counter_table! {
    /// Counts of entries since the consumer was made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ReadReport in CONSUMER_COUNTERS {
        /// Of `entries`, those that had been delivered before.
        pub redelivered: u64 = counter("{entry}", "Entries that had been delivered before"),
        /// Entries taken over from other consumers.
        pub reclaimed: u64 = counter("{entry}", "Entries taken over from other consumers"),
        /// Entries acknowledged, as confirmed by the server.
        pub acked: u64 = counter("{entry}", "Entries that were acknowledged"),
        /// Entries acknowledged, failed or released when they already belonged to another consumer.
        pub stale: u64 = counter("{entry}", "Entries that belonged to another consumer when they were settled"),
        /// Entries for which the reply was lost, and it could not be determined whether the server did as requested.
        pub unknown: u64 = counter("{entry}", "Entries whose settlement could not be confirmed"),
        /// Entries given back to the group, or failed and to be retried.
        pub released: u64 = counter("{entry}", "Entries given back to the group"),
        /// Entries moved to `dead_letter_key`.
        pub dead: u64 = counter("{entry}", "Entries moved to the stream of dead letters"),
        /// Entries handed over, or read ahead, and not settled yet.
        pub pending: u64 = gauge("{entry}", "Entries returned or read ahead, and not settled yet"),
        /// Renewals of leases that the server confirmed, counted for each entry.
        pub renewals: u64 = counter("{entry}", "Renewals of leases"),
    } and {
        /// Returned to the caller in batches; each delivery counts.
        pub handed_over: u64,
        /// Trimmed or deleted before this consumer could return them.
        pub lost: u64,
    }
}

impl ReadReport {
    /// Returns the sum of both reports.
    pub(super) fn with(&self, other: &Self) -> Self {
        Self {
            redelivered: self.redelivered + other.redelivered,
            reclaimed: self.reclaimed + other.reclaimed,
            acked: self.acked + other.acked,
            stale: self.stale + other.stale,
            unknown: self.unknown + other.unknown,
            released: self.released + other.released,
            dead: self.dead + other.dead,
            pending: self.pending + other.pending,
            renewals: self.renewals + other.renewals,
            handed_over: self.handed_over + other.handed_over,
            lost: self.lost + other.lost,
        }
    }
}
