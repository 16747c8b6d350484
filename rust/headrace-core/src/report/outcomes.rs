//! Outcomes in the order of the messages, packed: a run of entries with consecutive IDs takes a few bytes, and so does a
//! run of equal failures.

use crate::reply::EntryId;

/// Consecutive messages with one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// Delivered: the first under `first`, the others under the sequence numbers that follow.
    Delivered { first: EntryId, count: u64 },
    /// Failed, all as `failure` of the report's table says.
    Failed { failure: u32, count: u64 },
}

impl Run {
    pub(crate) fn count(&self) -> u64 {
        match *self {
            Self::Delivered { count, .. } | Self::Failed { count, .. } => count,
        }
    }
}

/// The packed list. Each run is `count << 1 | failed`, then the table index, or the ID as differences to the run before
/// it; all as variable-length integers of seven bits a byte.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcomes {
    packed: Vec<u8>,
    /// The run that may still grow.
    open: Option<Run>,
    /// The first ID of the last packed run of entries.
    base: Base,
}

#[derive(Debug, Clone, Copy, Default)]
struct Base {
    ms: u64,
    seq: u64,
}

impl Outcomes {
    #[inline]
    pub(crate) fn push_delivered(&mut self, id: EntryId) {
        if let Some(Run::Delivered { first, count }) = &mut self.open
            && first.ms == id.ms
            && id.seq.checked_sub(first.seq) == Some(*count)
        {
            *count += 1;
            return;
        }
        self.start(Run::Delivered { first: id, count: 1 });
    }

    pub(crate) fn push_failed(&mut self, failure: u32, more: u64) {
        if let Some(Run::Failed { failure: last, count }) = &mut self.open
            && *last == failure
        {
            *count += more;
            return;
        }
        self.start(Run::Failed { failure, count: more });
    }

    #[cold]
    fn start(&mut self, run: Run) {
        match self.open.replace(run) {
            None => {}
            Some(Run::Delivered { first, count }) => {
                put(&mut self.packed, count << 1);
                let Base { ms, seq } = self.base;
                put(&mut self.packed, zigzag(first.ms.wrapping_sub(ms)));
                // In a new millisecond sequence numbers begin near 0; in the same one near the last.
                put(&mut self.packed, if first.ms == ms { zigzag(first.seq.wrapping_sub(seq)) } else { first.seq });
                self.base = Base { ms: first.ms, seq: first.seq };
            }
            Some(Run::Failed { failure, count }) => {
                put(&mut self.packed, count << 1 | 1);
                put(&mut self.packed, u64::from(failure));
            }
        }
    }

    /// The runs, in order.
    pub(crate) fn runs(&self) -> Runs<'_> {
        Runs { outcomes: self, cursor: RunCursor::default() }
    }

    /// How many bytes the packed runs take.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.packed.len()
    }
}

/// A place in the list, for a reader that does not borrow it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunCursor {
    at: usize,
    base: Base,
    open_taken: bool,
}

impl RunCursor {
    /// The run at this place; moves on.
    pub(crate) fn next(&mut self, outcomes: &Outcomes) -> Option<Run> {
        let packed = &outcomes.packed;
        if self.at >= packed.len() {
            return if std::mem::replace(&mut self.open_taken, true) { None } else { outcomes.open };
        }
        let head = take(packed, &mut self.at);
        let count = head >> 1;
        if head & 1 == 1 {
            let failure = take(packed, &mut self.at) as u32;
            return Some(Run::Failed { failure, count });
        }
        let ms = self.base.ms.wrapping_add(unzigzag(take(packed, &mut self.at)));
        let seq = take(packed, &mut self.at);
        let seq = if ms == self.base.ms { self.base.seq.wrapping_add(unzigzag(seq)) } else { seq };
        self.base = Base { ms, seq };
        Some(Run::Delivered { first: EntryId { ms, seq }, count })
    }
}

/// Iterates over the runs.
#[derive(Debug)]
pub(crate) struct Runs<'a> {
    outcomes: &'a Outcomes,
    cursor: RunCursor,
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.cursor.next(self.outcomes)
    }
}

fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

fn unzigzag(packed: u64) -> u64 {
    (packed >> 1) ^ (packed & 1).wrapping_neg()
}

fn put(packed: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        packed.push(value as u8 | 0x80);
        value >>= 7;
    }
    packed.push(value as u8);
}

fn take(packed: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0_u64, 0);
    while let Some(byte) = packed.get(*at) {
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(outcomes: &mut Outcomes, runs: &[Run]) {
        for run in runs {
            match *run {
                Run::Delivered { first, count } => {
                    for n in 0..count {
                        outcomes.push_delivered(EntryId { ms: first.ms, seq: first.seq.saturating_add(n) });
                    }
                }
                Run::Failed { failure, count } => outcomes.push_failed(failure, count),
            }
        }
    }

    fn expand(runs: impl Iterator<Item = Run>) -> Vec<(u64, u64, u32)> {
        runs.flat_map(|run| {
            (0..run.count()).map(move |n| match run {
                Run::Delivered { first, .. } => (first.ms, first.seq + n, u32::MAX),
                Run::Failed { failure, .. } => (0, 0, failure),
            })
        })
        .collect()
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(runs in prop::collection::vec(prop_oneof![
            (prop_oneof![any::<u64>(), 0..4_u64], prop_oneof![0..u64::MAX - 100, 0..4_u64], 1..9_u64)
                .prop_map(|(ms, seq, count)| Run::Delivered { first: EntryId { ms, seq }, count }),
            (0..3_u32, 1..9_u64).prop_map(|(failure, count)| Run::Failed { failure, count }),
        ], 0..60)) {
            let mut outcomes = Outcomes::default();
            push(&mut outcomes, &runs);
            prop_assert_eq!(expand(outcomes.runs()), expand(runs.into_iter()));
        }
    }

    #[test]
    fn a_million_entries_of_a_busy_server_take_a_few_kilobytes() {
        let mut outcomes = Outcomes::default();
        for n in 0..1_000_000_u64 {
            outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n / 600, seq: n % 600 });
        }
        assert!(outcomes.bytes() < 10_000, "{}", outcomes.bytes());
    }

    #[test]
    fn a_trickle_stays_within_sixteen_bytes_a_message() {
        let mut outcomes = Outcomes::default();
        for n in 0..1_000_u64 {
            outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n * 7_919, seq: n % 3 });
            outcomes.push_failed(n as u32 % 5, 1);
        }
        assert!(outcomes.bytes() < 2_000 * 16, "{}", outcomes.bytes());
    }
}
