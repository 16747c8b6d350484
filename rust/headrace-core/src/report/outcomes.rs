//! Outcomes in produce order, run-length encoded: a run of entries with consecutive IDs takes a few bytes, and so does a
//! run of equal failures.

use crate::command::EntryId;

/// Consecutive messages with one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// Delivered in entries of `rows` messages each: the first entry has the ID `first`, the others the following
    /// sequence numbers.
    Delivered { first: EntryId, entries: u64, rows: u64 },
    /// Written by an earlier attempt, whose entry IDs are unknown.
    Deduplicated { count: u64 },
    /// Failed. `failure` is an index into the report's table of failures.
    Failed { failure: u32, count: u64 },
}

impl Run {
    /// The number of messages.
    pub(crate) fn count(&self) -> u64 {
        match *self {
            Self::Delivered { entries, rows, .. } => entries * rows,
            Self::Deduplicated { count } | Self::Failed { count, .. } => count,
        }
    }
}

/// The outcomes, run-length encoded.
///
/// Each run is encoded as `count << 2 | kind`. A failure adds its index in the table; entries add their first ID, as the
/// difference from the previous run, and the rows per entry if there are several. All numbers are variable-length integers
/// with seven bits per byte.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcomes {
    packed: Vec<u8>,
    /// The last run, which may still grow and is not yet packed.
    last: Option<Run>,
    /// The first ID of the last packed run of entries.
    base: Base,
}

/// The kinds of a packed run.
const ONE_ROW_EACH: u64 = 0;
const SEVERAL_ROWS_EACH: u64 = 1;
const FAILED: u64 = 2;
const DEDUPLICATED: u64 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Base {
    ms: u64,
    seq: u64,
}

impl Outcomes {
    /// Appends `more` entries of `rows` messages each: the first has the ID `id`, the others the following sequence
    /// numbers.
    #[inline]
    pub(crate) fn push_delivered(&mut self, id: EntryId, more: u64, rows: u64) {
        if let Some(Run::Delivered { first, entries, rows: before }) = &mut self.last
            && first.ms == id.ms
            && id.seq.checked_sub(first.seq) == Some(*entries)
            && *before == rows
        {
            *entries += more;
            return;
        }
        self.start(Run::Delivered { first: id, entries: more, rows });
    }

    pub(crate) fn push_deduplicated(&mut self, more: u64) {
        if let Some(Run::Deduplicated { count }) = &mut self.last {
            *count += more;
            return;
        }
        self.start(Run::Deduplicated { count: more });
    }

    pub(crate) fn push_failed(&mut self, failure: u32, more: u64) {
        if let Some(Run::Failed { failure: index, count }) = &mut self.last
            && *index == failure
        {
            *count += more;
            return;
        }
        self.start(Run::Failed { failure, count: more });
    }

    #[cold]
    fn start(&mut self, run: Run) {
        let packed = &mut self.packed;
        match self.last.replace(run) {
            None => {}
            Some(Run::Delivered { first, entries, rows }) => {
                let head = entries << 2 | if rows == 1 { ONE_ROW_EACH } else { SEVERAL_ROWS_EACH };
                let Base { ms, seq } = self.base;
                let later = zigzag(first.ms.wrapping_sub(ms));
                // Sequence numbers start near 0 in a new millisecond, and near the last one in the same millisecond.
                let behind = if first.ms == ms { zigzag(first.seq.wrapping_sub(seq)) } else { first.seq };
                if (head | later | behind) < 0x80 {
                    packed.extend_from_slice(&[head as u8, later as u8, behind as u8]);
                } else {
                    for number in [head, later, behind] {
                        put(packed, number);
                    }
                }
                if rows != 1 {
                    put(packed, rows);
                }
                self.base = Base { ms: first.ms, seq: first.seq };
            }
            Some(Run::Deduplicated { count }) => put(packed, count << 2 | DEDUPLICATED),
            Some(Run::Failed { failure, count }) => {
                put(packed, count << 2 | FAILED);
                put(packed, u64::from(failure));
            }
        }
    }

    /// The runs, in order.
    pub(crate) fn runs(&self) -> Runs<'_> {
        Runs { outcomes: self, cursor: RunCursor::default() }
    }

    /// The size of the packed runs in bytes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.packed.len()
    }
}

/// A position in [`Outcomes`], for a reader that does not borrow the outcomes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunCursor {
    at: usize,
    base: Base,
    last_taken: bool,
}

impl RunCursor {
    /// Returns the run at this position and advances.
    pub(crate) fn next(&mut self, outcomes: &Outcomes) -> Option<Run> {
        let packed = &outcomes.packed;
        if self.at >= packed.len() {
            return if std::mem::replace(&mut self.last_taken, true) { None } else { outcomes.last };
        }
        let head = take(packed, &mut self.at);
        let count = head >> 2;
        if head & 3 == DEDUPLICATED {
            return Some(Run::Deduplicated { count });
        }
        if head & 3 == FAILED {
            let failure = take(packed, &mut self.at) as u32;
            return Some(Run::Failed { failure, count });
        }
        let ms = self.base.ms.wrapping_add(unzigzag(take(packed, &mut self.at)));
        let seq = take(packed, &mut self.at);
        let seq = if ms == self.base.ms { self.base.seq.wrapping_add(unzigzag(seq)) } else { seq };
        let rows = if head & 3 == ONE_ROW_EACH { 1 } else { take(packed, &mut self.at) };
        self.base = Base { ms, seq };
        Some(Run::Delivered { first: EntryId { ms, seq }, entries: count, rows })
    }
}

/// An iterator over the runs.
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
                Run::Delivered { first, entries, rows } => outcomes.push_delivered(first, entries, rows),
                Run::Deduplicated { count } => outcomes.push_deduplicated(count),
                Run::Failed { failure, count } => outcomes.push_failed(failure, count),
            }
        }
    }

    fn expand(runs: impl Iterator<Item = Run>) -> Vec<(u64, u64, u32)> {
        runs.flat_map(|run| {
            (0..run.count()).map(move |n| match run {
                Run::Delivered { first, rows, .. } => (first.ms, first.seq + n / rows, u32::MAX),
                Run::Deduplicated { .. } => (0, 0, u32::MAX),
                Run::Failed { failure, .. } => (0, 0, failure),
            })
        })
        .collect()
    }

    proptest! {
        #[test]
        fn outcomes_are_read_back_as_pushed(runs in prop::collection::vec(prop_oneof![
            (prop_oneof![any::<u64>(), 0..4_u64], prop_oneof![0..u64::MAX - 100, 0..4_u64], 1..9_u64, 1..4_u64)
                .prop_map(|(ms, seq, entries, rows)| Run::Delivered { first: EntryId { ms, seq }, entries, rows }),
            (1..9_u64).prop_map(|count| Run::Deduplicated { count }),
            (0..3_u32, 1..9_u64).prop_map(|(failure, count)| Run::Failed { failure, count }),
        ], 0..60)) {
            let mut outcomes = Outcomes::default();
            push(&mut outcomes, &runs);
            prop_assert_eq!(expand(outcomes.runs()), expand(runs.into_iter()));
        }
    }

    #[test]
    fn a_million_entries_of_a_busy_server_take_less_than_10_kb() {
        for rows in [1, 10] {
            let mut outcomes = Outcomes::default();
            for n in 0..1_000_000_u64 {
                outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n / 600, seq: n % 600 }, 1, rows);
            }
            assert!(outcomes.bytes() < 10_000, "{}", outcomes.bytes());
        }
    }

    #[test]
    fn isolated_outcomes_take_less_than_16_bytes_each() {
        let mut outcomes = Outcomes::default();
        for n in 0..1_000_u64 {
            outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n * 7_919, seq: n % 3 }, 1, 1);
            outcomes.push_failed(n as u32 % 5, 1);
        }
        assert!(outcomes.bytes() < 2_000 * 16, "{}", outcomes.bytes());
    }
}
