//! A set of slots, or of other 16-bit numbers.

use super::slot::SLOTS;

/// One bit per number: 2 KiB for slots, 8 KiB once a greater number is inserted.
#[derive(Debug, Clone)]
pub(crate) struct SlotSet(Vec<u64>);

impl Default for SlotSet {
    fn default() -> Self {
        Self(vec![0; usize::from(SLOTS / 64)])
    }
}

impl SlotSet {
    #[inline]
    pub(crate) fn contains(&self, slot: u16) -> bool {
        self.0.get(usize::from(slot / 64)).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, slot: u16) {
        let at = usize::from(slot / 64);
        if self.0.len() <= at {
            self.0.resize(usize::from(u16::MAX / 64) + 1, 0);
        }
        if let Some(word) = self.0.get_mut(at) {
            *word |= 1 << (slot % 64);
        }
    }

    pub(crate) fn remove(&mut self, slot: u16) {
        if let Some(word) = self.0.get_mut(usize::from(slot / 64)) {
            *word &= !(1 << (slot % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_inserted_and_removed() {
        let mut set = SlotSet::default();
        for slot in [0, 63, 64, SLOTS - 1] {
            assert!(!set.contains(slot));
            set.insert(slot);
            assert!(set.contains(slot) && !set.contains(slot ^ 1));
        }
        set.remove(64);
        assert!(!set.contains(64) && set.contains(63) && set.contains(SLOTS - 1) && !set.contains(SLOTS));
        set.insert(u16::MAX);
        assert!(set.contains(u16::MAX) && set.contains(63) && !set.contains(SLOTS));
        set.remove(u16::MAX);
        assert!(!set.contains(u16::MAX));
    }
}
