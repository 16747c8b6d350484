//! Which XADD carries the trim options. No I/O.

use std::collections::HashMap;

/// Which XADD carries the trim options: the first of each stream key and every n-th after it.
#[derive(Debug)]
pub(super) struct TrimSchedule {
    /// 0: none.
    every: u64,
    /// How many more XADDs of the endpoint's own key go without the options.
    own: u64,
    /// How many more XADDs of each key of a row go without the options.
    routed: HashMap<Box<[u8]>, u64>,
}

impl TrimSchedule {
    /// How many keys are counted at the same time. Beyond that, the table is cleared, and the next XADD of each key trims.
    const MAX_KEYS: usize = 4096;

    pub(super) fn new(every: u64) -> Self {
        Self { every, own: 0, routed: HashMap::new() }
    }

    #[inline]
    pub(super) fn is_due(&mut self, key: Option<&[u8]>) -> bool {
        if self.every <= 1 {
            return self.every == 1;
        }
        let left = match key {
            None => &mut self.own,
            Some(key) => {
                if !self.routed.contains_key(key) {
                    if self.routed.len() == Self::MAX_KEYS {
                        self.routed.clear();
                    }
                    self.routed.insert(key.into(), 0);
                }
                match self.routed.get_mut(key) {
                    Some(left) => left,
                    None => return true,
                }
            }
        };
        let due = *left == 0;
        *left = if due { self.every - 1 } else { *left - 1 };
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_command_of_each_key_and_every_nth_after_it_trims() {
        let mut schedule = TrimSchedule::new(100);
        let mut due = [0, 0];
        for _ in 0..250 {
            due[0] += u32::from(schedule.is_due(None));
            due[1] += u32::from(schedule.is_due(Some(b"other")));
        }
        assert_eq!(due, [3, 3]);
        assert!((0..9).all(|_| TrimSchedule::new(1).is_due(None)));
        assert!((0..9).all(|_| !TrimSchedule::new(0).is_due(None)));
    }

    #[test]
    fn the_table_of_keys_is_bounded_and_a_forgotten_key_trims() {
        let mut schedule = TrimSchedule::new(10);
        assert!(schedule.is_due(Some(b"first")));
        assert!(!schedule.is_due(Some(b"first")));
        for n in 0..TrimSchedule::MAX_KEYS * 3 {
            assert!(schedule.is_due(Some(n.to_string().as_bytes())));
            assert!(schedule.routed.len() <= TrimSchedule::MAX_KEYS);
        }
        assert!(schedule.is_due(Some(b"first")));
    }
}
