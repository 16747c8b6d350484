//! The batches that a consumer holds, and the search for an entry in them.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::held::{Held, State};
use crate::resp::EntryId;

/// The batches with entries that are not settled, by their numbers. The time to find an entry hardly depends on their number.
#[derive(Debug, Default)]
pub(super) struct Batches {
    held: BTreeMap<u64, Held>,
    /// The number and the first entry of each batch, by its stream and last entry. The batches of a layer do not overlap. New
    /// entries come after all earlier ones, so nearly all batches are in the first layer: only entries that were delivered again
    /// lie between those of another batch.
    layers: Vec<BTreeMap<(usize, EntryId), (u64, EntryId)>>,
    /// The number of entries that are not settled.
    open: usize,
    /// The batch and the index of the entry that was found last: the next one is usually right behind it.
    last: Cell<(u64, usize)>,
}

impl Batches {
    pub(super) fn insert(&mut self, number: u64, held: Held) {
        let (Some(first), Some(last)) = (held.ids.first().copied(), held.ids.last().copied()) else { return };
        let stream = held.stream;
        self.open += held.open();
        self.held.insert(number, held);
        let is_free = |layer: &BTreeMap<_, (u64, EntryId)>| {
            let next = layer.range((stream, first)..).next();
            next.is_none_or(|((of, _), (_, begins))| *of != stream || last < *begins)
        };
        let at = self.layers.iter().position(is_free).unwrap_or(self.layers.len());
        if at == self.layers.len() {
            self.layers.push(BTreeMap::new());
        }
        self.layers[at].insert((stream, last), (number, first));
    }

    pub(super) fn get(&self, number: u64) -> Option<&Held> {
        self.held.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Held> {
        self.held.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Held> {
        let held = self.held.remove(&number)?;
        self.open -= held.open();
        let place = (held.stream, held.ids.last().copied().unwrap_or_default());
        for layer in &mut self.layers {
            if layer.get(&place).is_some_and(|(of, _)| *of == number) {
                layer.remove(&place);
                break;
            }
        }
        while self.layers.last().is_some_and(BTreeMap::is_empty) {
            self.layers.pop();
        }
        Some(held)
    }

    /// Sets the state of an entry. A batch whose entries are all settled is removed.
    pub(super) fn set(&mut self, number: u64, at: usize, state: State) {
        let Some(held) = self.held.get_mut(&number) else { return };
        let before = held.open();
        held.set(at, state);
        let left = held.open();
        self.open -= before - left;
        if left == 0 {
            self.remove(number);
        }
    }

    /// The numbers of the batches that have the entry, and its index in each.
    pub(super) fn places(&self, stream: usize, id: EntryId) -> impl Iterator<Item = (u64, usize)> {
        self.layers.iter().filter_map(move |layer| {
            let (_, (number, _)) = layer.range((stream, id)..).next().filter(|((of, _), _)| *of == stream)?;
            Some((*number, self.held.get(number)?.find(id)?))
        })
    }

    /// The number of a batch in which the entry is in this state, and its index there.
    pub(super) fn place(&self, stream: usize, id: EntryId, state: State) -> Option<(u64, usize)> {
        let (number, at) = self.last.get();
        let next = at + 1;
        let is_next = self.held.get(&number).is_some_and(|held| {
            held.stream == stream && held.ids.get(next) == Some(&id) && held.state(next) == Some(state)
        });
        let found = if is_next {
            Some((number, next))
        } else {
            self.places(stream, id).find(|(number, at)| self.state(*number, *at) == Some(state))
        };
        if let Some(found) = found {
            self.last.set(found);
        }
        found
    }

    pub(super) fn state(&self, number: u64, at: usize) -> Option<State> {
        self.held.get(&number).and_then(|held| held.state(at))
    }

    /// The number of entries that are not settled.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// The numbers of the batches of these streams.
    pub(super) fn numbers(&self, of: impl Fn(usize) -> bool) -> Vec<u64> {
        self.held.iter().filter(|(_, held)| of(held.stream)).map(|(number, _)| *number).collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    fn held(stream: usize, ids: &[u64]) -> Held {
        Held::new(stream, ids.iter().copied().map(id).collect(), vec![1], Duration::ZERO)
    }

    #[test]
    fn batches_of_new_entries_are_in_one_layer() {
        let mut batches = Batches::default();
        for number in 0..1_000 {
            batches.insert(number, held((number % 3) as usize, &[2 * number, 2 * number + 1]));
        }
        assert_eq!((batches.layers.len(), batches.open()), (1, 2_000));
        // Within the span of a batch, around one, and a copy of one.
        for (number, ids) in [(1_000, &[60, 61][..]), (1_001, &[59, 62]), (1_002, &[60, 61])] {
            batches.insert(number, held(0, ids));
        }
        assert_eq!(batches.layers.len(), 4);
        let mut found: Vec<_> = batches.places(0, id(60)).collect();
        found.sort_unstable();
        assert_eq!(found, [(30, 0), (1_000, 0), (1_002, 0)]);
        for number in [1_001, 1_000, 1_002] {
            assert!(batches.remove(number).is_some());
        }
        assert_eq!((batches.layers.len(), batches.open()), (1, 2_000));
    }

    #[test]
    fn a_batch_is_removed_once_its_last_entry_is_settled() {
        let mut batches = Batches::default();
        batches.insert(7, held(0, &[1, 5]));
        batches.set(7, 0, State::Settled);
        batches.set(7, 0, State::Settled);
        assert_eq!((batches.open(), batches.place(0, id(5), State::Held)), (1, Some((7, 1))));
        batches.set(7, 1, State::Settled);
        assert_eq!((batches.open(), batches.numbers(|_| true), batches.layers.len()), (0, vec![], 0));
    }

    proptest! {
        /// Compared with a search of all batches.
        #[test]
        fn every_entry_is_found_in_all_of_its_batches(
            steps in prop::collection::vec((0..2_usize, prop::collection::btree_set(0..40_u64, 0..6), 0..8_u64), 1..60)
        ) {
            let mut batches = Batches::default();
            let mut all: BTreeMap<u64, (usize, Vec<u64>)> = BTreeMap::new();
            for (number, (stream, ids, removed)) in (0..).zip(steps) {
                let ids: Vec<u64> = ids.into_iter().collect();
                batches.insert(number, held(stream, &ids));
                if !ids.is_empty() {
                    all.insert(number, (stream, ids));
                }
                let removed = number.saturating_sub(removed + 1);
                prop_assert_eq!(batches.remove(removed).is_some(), all.remove(&removed).is_some());
                for (stream, ms) in (0..2).flat_map(|stream| (0..40).map(move |ms| (stream, ms))) {
                    let mut found: Vec<_> = batches.places(stream, id(ms)).collect();
                    found.sort_unstable();
                    let of_stream = all.iter().filter(|(_, (of, _))| *of == stream);
                    let expected: Vec<_> = of_stream
                        .filter_map(|(number, (_, ids))| ids.binary_search(&ms).ok().map(|at| (*number, at)))
                        .collect();
                    prop_assert_eq!(found, expected);
                }
                prop_assert_eq!(batches.open(), all.values().map(|(_, ids)| ids.len()).sum::<usize>());
            }
            for number in batches.numbers(|_| true) {
                batches.remove(number);
            }
            prop_assert!(batches.layers.is_empty());
        }
    }
}
