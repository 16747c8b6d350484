//! Entries that were found but not passed on yet.

use std::collections::VecDeque;

use super::EntrySink;
use super::entry::{Entry, Slot, pass_on};
use crate::resp::entry_id::EntryId;

/// How many fields may have been found before the memory for their places is freed: 1 MiB.
const KEPT_SLOTS: usize = 65_536;

/// A complete entry.
#[derive(Debug)]
struct Whole {
    id: EntryId,
    fields: Option<usize>,
    /// The entry's size in bytes.
    length: usize,
}

/// The entries between those that were passed on and the one that is being found.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    entries: VecDeque<Whole>,
    /// The places of the entries' fields, one entry after the other, from `passed` on.
    slots: Vec<Slot>,
    passed: usize,
    bytes: usize,
}

impl Ahead {
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The size of its entries in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn last(&self) -> Option<EntryId> {
        self.entries.back().map(|entry| entry.id)
    }

    /// Adds the entry that was found, which has `length` bytes.
    #[inline]
    pub(super) fn push(&mut self, entry: &mut Entry, length: usize) {
        let Some((id, fields)) = entry.take(&mut self.slots) else { return };
        self.bytes += length;
        self.entries.push_back(Whole { id, fields, length });
    }

    /// Passes on the next entry, which is at the start of `bytes`, and returns its length.
    #[inline]
    pub(super) fn pass_on(&mut self, bytes: &[u8], sink: &mut impl EntrySink) -> Option<usize> {
        let Whole { id, fields, length } = self.entries.pop_front()?;
        let slots = self.passed..self.passed + fields.unwrap_or(0);
        self.passed = slots.end;
        pass_on(id, fields, self.slots.get(slots).unwrap_or_default(), bytes, sink);
        self.bytes -= length;
        if self.entries.is_empty() {
            self.passed = 0;
            self.slots.clear();
            if self.slots.capacity() > KEPT_SLOTS {
                self.slots = Vec::new();
            }
        }
        Some(length)
    }
}

/// A sink for entries that are not needed.
pub(crate) struct Nowhere;

impl EntrySink for Nowhere {
    fn stream(&mut self, _: &[u8]) {}

    fn entry(&mut self, _: EntryId, _: Option<usize>) {}

    fn field(&mut self, _: &[u8], _: &[u8]) {}

    fn end(&mut self) {}
}
