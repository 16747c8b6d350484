//! One stream of a consumer: the entries read from it, and the pending entries that must be looked at.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::rules;
use crate::entries::{BadValue, EntryColumns};
use crate::reading::{Paging, Standing};
use crate::resp::EntryId;

/// A pending entry of this consumer that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) id: EntryId,
    pub(super) deliveries: u64,
}

/// Entries that are being collected into a batch.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) columns: Box<EntryColumns>,
    pub(super) ids: Vec<EntryId>,
    /// The server's counters of deliveries; empty: each was delivered for the first time.
    pub(super) deliveries: Vec<u64>,
    /// Whether the entries belonged to another consumer.
    pub(super) is_reclaimed: bool,
    /// The entries were delivered at this time or later.
    pub(super) since: Duration,
}

/// An entry that does not fit its columns.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) entry: Pending,
    pub(super) value: BadValue,
    /// The entry was delivered at this time or later.
    pub(super) since: Duration,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) key: Arc<[u8]>,
    pub(super) paging: Paging,
    pub(super) standing: Standing,
    /// Whether a read without BLOCK may return entries.
    pub(super) is_behind: bool,
    pub(super) open: Option<Open>,
    /// The range of this consumer's pending entries that must be looked at: its first and last ID.
    pub(super) recovery: Option<(EntryId, EntryId)>,
    /// The entries that were claimed and not looked at yet.
    pub(super) claimed: Vec<EntryId>,
    /// The entries in this range that must be read: each part becomes a batch.
    pub(super) planned: VecDeque<Vec<Pending>>,
    /// The idle entries of other consumers up to this ID were claimed.
    pub(super) claim_cursor: EntryId,
    /// When to look for more idle entries of other consumers.
    pub(super) claims_at: Duration,
    /// Whether the entries being recovered were claimed, and not read by this consumer before.
    pub(super) is_reclaimed: bool,
    /// Entries that do not fit their columns, in the order in which they were read.
    pub(super) bad: Vec<Bad>,
    /// The entry that was read alone and not returned, with its state before that read.
    pub(super) interrupted: Option<Pending>,
    /// When to look at this consumer's pending entries again: a request of a lost connection may have been executed late.
    pub(super) rechecks_at: Option<Duration>,
}

impl Stream {
    pub(super) fn new(key: Arc<[u8]>, paging: Paging) -> Self {
        Self {
            key,
            paging,
            standing: Standing::default(),
            is_behind: true,
            open: None,
            recovery: Some((EntryId::default(), EntryId::MAX)),
            claimed: Vec::new(),
            planned: VecDeque::new(),
            claim_cursor: EntryId::default(),
            claims_at: Duration::ZERO,
            is_reclaimed: false,
            bad: Vec::new(),
            interrupted: None,
            rechecks_at: None,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.ids.len())
    }

    pub(super) fn bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.columns.bytes())
    }

    /// Whether this consumer's pending entries come before new ones.
    pub(super) fn is_recovering(&self) -> bool {
        !self.standing.is_left_out() && (self.recovery.is_some() || !self.planned.is_empty())
    }

    /// Whether a read without BLOCK may return entries now.
    pub(super) fn may_have_new(&self) -> bool {
        self.is_behind && !self.standing.is_left_out()
    }

    /// The entries that belong to this consumer and were not read.
    pub(super) fn unread(&self) -> Vec<EntryId> {
        let planned = self.planned.iter().flatten().map(|entry| entry.id);
        planned.chain(self.claimed.iter().copied()).collect()
    }

    /// Schedules a look at all pending entries of this consumer.
    pub(super) fn recover_all(&mut self) {
        self.planned.clear();
        self.is_reclaimed = false;
        self.recovery = Some((EntryId::default(), EntryId::MAX));
    }

    /// Plans how `entries`, which ascend, are read: each in a batch as large as its deliveries allow. A read returns all pending
    /// entries of this consumer after an ID, so no other entry may lie between those of a part: `breaks` marks an entry that
    /// follows one which must not be read.
    pub(super) fn plan(&mut self, entries: impl IntoIterator<Item = (Pending, bool)>, batch_rows: usize) {
        let mut part: Vec<Pending> = Vec::new();
        let mut most = 0;
        for (entry, breaks) in entries {
            let company = rules::company(batch_rows, entry.deliveries);
            if !part.is_empty() && (breaks || part.len() >= most.min(company)) {
                self.planned.push_back(std::mem::take(&mut part));
            }
            most = if part.is_empty() { company } else { most.min(company) };
            part.push(entry);
        }
        if !part.is_empty() {
            self.planned.push_back(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(entries: &[(u64, u64, bool)], batch_rows: usize) -> Vec<Vec<u64>> {
        let mut stream = Stream::new(Arc::from(&b"s"[..]), Paging::new(1 << 20, 100));
        let entries = entries.iter().map(|(ms, deliveries, breaks)| {
            (Pending { id: EntryId { ms: *ms, seq: 0 }, deliveries: *deliveries }, *breaks)
        });
        stream.plan(entries, batch_rows);
        stream.planned.iter().map(|part| part.iter().map(|entry| entry.id.ms).collect()).collect()
    }

    #[test]
    fn redelivered_entries_are_read_in_halves() {
        let once: Vec<_> = (1..=8).map(|ms| (ms, 1, false)).collect();
        assert_eq!(planned(&once, 8), [vec![1, 2, 3, 4], vec![5, 6, 7, 8]]);
        assert_eq!(planned(&once, 100), [(1..=8).collect::<Vec<_>>()]);
        let twice: Vec<_> = (1..=5).map(|ms| (ms, 2, false)).collect();
        assert_eq!(planned(&twice, 8), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(planned(&[(1, 0, false), (2, 0, false)], 2), [vec![1, 2]], "released entries were not at fault");
    }

    #[test]
    fn an_isolated_entry_is_read_alone_and_a_held_entry_splits_a_read() {
        let entries = [(1, 1, false), (2, 9, false), (3, 1, false), (4, 1, true), (5, 1, false)];
        assert_eq!(planned(&entries, 8), [vec![1], vec![2], vec![3], vec![4, 5]]);
    }
}
