//! What is known of the entries after the last commit, if one of them failed.
//!
//! An entry that ends its process cannot be named: batches are halved until it is alone. The lease holds the count, so that the next
//! owner goes on from there.

use std::time::Duration;

use crate::resp::EntryId;

/// The first pause before entries that failed are returned again; each further one is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the lease holds about the entries after its position.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Doubt {
    /// The most entries of a batch; zero: as many as usual.
    pub(crate) limit: u64,
    /// How often an entry has failed: it was named, or was returned alone and its process ended.
    pub(crate) failures: u64,
    /// That entry. It was the first one, and may have been deleted since.
    pub(crate) failed: Option<EntryId>,
    /// Whether the first entry was returned alone.
    pub(crate) is_alone: bool,
    /// Why it failed last.
    pub(crate) reason: String,
}

impl Doubt {
    /// Notes that entries were committed: the first of the rest has not failed.
    pub(super) fn committed(&mut self) {
        self.failures = 0;
        self.failed = None;
        self.is_alone = false;
        self.reason.clear();
    }

    /// Notes which entry is the first one: another one has not failed.
    pub(super) fn begins_with(&mut self, id: EntryId) {
        if self.failed != Some(id) {
            self.committed();
        }
    }

    /// Notes that the first entry failed.
    pub(super) fn failed(&mut self, id: EntryId, reason: String) {
        self.begins_with(id);
        self.failed = Some(id);
        self.failures += 1;
        self.is_alone = false;
        self.reason = reason;
    }

    /// Notes that one of several entries failed: half of them come next.
    pub(super) fn failed_together(&mut self, entries: u64, reason: String) {
        self.limit = (entries / 2).max(1);
        self.is_alone = false;
        self.reason = reason;
    }
}

/// How long entries wait that have failed this often in a row.
pub(super) fn pause(tries: u64) -> Duration {
    let doublings = u32::try_from(tries).unwrap_or(u32::MAX).saturating_sub(1).min(16);
    if tries == 0 { Duration::ZERO } else { (SHORTEST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pauses: Vec<u128> = [0, 1, 2, 3, 9, 10, u64::MAX].map(|tries| pause(tries).as_millis()).into();
        assert_eq!(pauses, [0, 100, 200, 400, 25_600, 30_000, 30_000]);
    }
}
