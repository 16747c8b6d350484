//! The rules for entries that came back: when one is delivered alone, and when it becomes a dead letter. The consumers of a group
//! share only the server's counter of deliveries, so it holds two counts: up to [`MOST_DELIVERIES`], deliveries together with
//! other entries; above it, failures.

/// The limit in the counter of an entry: up to it the counter holds deliveries together with other entries, above it failures.
/// Twenty halvings make any batch a single entry.
pub const MOST_DELIVERIES: u64 = 20;

/// The maximum number of entries of a batch with an entry that was delivered this often before: half as many for each delivery.
pub(super) fn company(batch_rows: usize, deliveries: u64) -> usize {
    let halvings = deliveries.min(u64::from(usize::BITS) - 1) as u32;
    if deliveries >= MOST_DELIVERIES { 1 } else { (batch_rows >> halvings).max(1) }
}

/// The number of failures of an entry with this counter: it was alone in its batch, or the caller named it.
pub(super) fn failures(deliveries: u64) -> u64 {
    deliveries.saturating_sub(MOST_DELIVERIES)
}

/// The new counter of an entry that the caller marks as failed; `deliveries`: the counter with which it was delivered.
pub(super) fn failed(deliveries: u64) -> u64 {
    deliveries.max(MOST_DELIVERIES + 1)
}

/// The new counter of an entry that is about to be delivered alone. Only the server gets it: the session and the ledger go on
/// from the one before.
pub(super) fn isolated(deliveries: u64) -> u64 {
    deliveries.max(MOST_DELIVERIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_redelivered_entries_are_halved_down_to_one_entry() {
        let sizes: Vec<usize> = (0..=8).map(|deliveries| company(100, deliveries)).collect();
        assert_eq!(sizes, [100, 50, 25, 12, 6, 3, 1, 1, 1]);
        assert_eq!(company(1 << 20, MOST_DELIVERIES), 1);
        assert_eq!(company(1, 0), 1);
        assert_eq!(company(8_192, u64::MAX), 1);
    }

    #[test]
    fn only_isolated_deliveries_and_named_failures_count_as_failures() {
        assert_eq!((0..MOST_DELIVERIES).map(failures).max(), Some(0), "deliveries in company");
        // Alone for the first time: delivered once more, then it crashes.
        assert_eq!(failures(isolated(3)), 0);
        assert_eq!(failures(isolated(3) + 1), 1);
        assert_eq!(failures(isolated(isolated(3) + 1) + 1), 2);
        // Named by the caller after a delivery in company, and again after a delivery alone.
        assert_eq!(failures(failed(1)), 1);
        assert_eq!(failures(failed(failed(1) + 1)), 2);
    }
}
