//! The counts of what a consumer read, and what became of it.

/// Counts of entries since the consumer was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadReport {
    /// Returned to the caller in batches; each delivery counts.
    pub handed_over: u64,
    /// Of those, entries that had been delivered before.
    pub redelivered: u64,
    /// Taken over from other consumers that had held them for longer than `min_idle`.
    pub reclaimed: u64,
    /// Acknowledged: the group will not deliver them again.
    pub acked: u64,
    /// Acknowledged, failed or released by the caller when they already belonged to another consumer, which may work on them too.
    pub stale: u64,
    /// The reply was lost, and it is not known whether the server applied the caller's decision.
    pub unknown: u64,
    /// Given back to the group, or failed and waiting for another attempt.
    pub released: u64,
    /// Moved to the stream of dead letters.
    pub dead: u64,
    /// Trimmed or deleted before this consumer could return them.
    pub lost: u64,
    /// With the caller, or with a decision that is on its way to the server.
    pub pending: u64,
}

impl ReadReport {
    /// The sum of both.
    pub(super) fn with(&self, other: &Self) -> Self {
        Self {
            handed_over: self.handed_over + other.handed_over,
            redelivered: self.redelivered + other.redelivered,
            reclaimed: self.reclaimed + other.reclaimed,
            acked: self.acked + other.acked,
            stale: self.stale + other.stale,
            unknown: self.unknown + other.unknown,
            released: self.released + other.released,
            dead: self.dead + other.dead,
            lost: self.lost + other.lost,
            pending: self.pending + other.pending,
        }
    }
}
