//! Outcomes in the order of the messages, packed: a run of entries with consecutive IDs takes a few bytes, and so does a
//! run of equal failures.

use crate::command::EntryId;

/// Consecutive messages with one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// Delivered in entries of `rows` messages each: the first entry under `first`, the others under the sequence numbers
    /// that follow.
    Delivered { first: EntryId, entries: u64, rows: u64 },
    /// There before: written by an earlier try, whose entry IDs are not known.
    Deduplicated { count: u64 },
    /// Failed, all as `failure` of the report's table says.
    Failed { failure: u32, count: u64 },
}

impl Run {
    /// How many messages these are.
    pub(crate) fn count(&self) -> u64 {
        match *self {
            Self::Delivered { entries, rows, .. } => entries * rows,
            Self::Deduplicated { count } | Self::Failed { count, .. } => count,
        }
    }
}

/// The packed list. Each run is `count << 2 | kind`; then, of a failure, its index in the table; of entries the ID, as
/// differences to the run before, and the rows of an entry where there are several. All are variable-length integers of
/// seven bits a byte.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcomes {
    packed: Vec<u8>,
    /// The run that may still grow.
    open: Option<Run>,
    /// The first ID of the last packed run of entries.
    base: Base,
}

/// The kinds of a packed run.
const ONE_ROW_EACH: u64 = 0;
const SEVERAL_ROWS_EACH: u64 = 1;
const FAILED: u64 = 2;
const RECOGNISED: u64 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Base {
    ms: u64,
    seq: u64,
}

impl Outcomes {
    /// `more` entries of `rows` messages each, the first under `id`, the others under the sequence numbers that follow.
    #[inline]
    pub(crate) fn push_delivered(&mut self, id: EntryId, more: u64, rows: u64) {
        if let Some(Run::Delivered { first, entries, rows: before }) = &mut self.open
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
        if let Some(Run::Deduplicated { count }) = &mut self.open {
            *count += more;
            return;
        }
        self.start(Run::Deduplicated { count: more });
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
        let packed = &mut self.packed;
        match self.open.replace(run) {
            None => {}
            Some(Run::Delivered { first, entries, rows }) => {
                put(packed, entries << 2 | if rows == 1 { ONE_ROW_EACH } else { SEVERAL_ROWS_EACH });
                let Base { ms, seq } = self.base;
                put(packed, zigzag(first.ms.wrapping_sub(ms)));
                // In a new millisecond sequence numbers begin near 0; in the same one near the last.
                put(packed, if first.ms == ms { zigzag(first.seq.wrapping_sub(seq)) } else { first.seq });
                if rows != 1 {
                    put(packed, rows);
                }
                self.base = Base { ms: first.ms, seq: first.seq };
            }
            Some(Run::Deduplicated { count }) => put(packed, count << 2 | RECOGNISED),
            Some(Run::Failed { failure, count }) => {
                put(packed, count << 2 | FAILED);
                put(packed, u64::from(failure));
            }
        }
    }

    /// The runs, in order.
    pub(crate) fn runs(&self) -> ScriptBatch<'_> {
        ScriptBatch { outcomes: self, cursor: RunCursor::default() }
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
        let count = head >> 2;
        if head & 3 == RECOGNISED {
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

/// Iterates over the runs.
#[derive(Debug)]
pub(crate) struct ScriptBatch<'a> {
    outcomes: &'a Outcomes,
    cursor: RunCursor,
}

impl Iterator for ScriptBatch<'_> {
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
        fn what_goes_in_comes_out(runs in prop::collection::vec(prop_oneof![
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
    fn a_million_entries_of_a_busy_server_take_a_few_kilobytes() {
        for rows in [1, 10] {
            let mut outcomes = Outcomes::default();
            for n in 0..1_000_000_u64 {
                outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n / 600, seq: n % 600 }, 1, rows);
            }
            assert!(outcomes.bytes() < 10_000, "{}", outcomes.bytes());
        }
    }

    #[test]
    fn a_trickle_stays_within_sixteen_bytes_a_message() {
        let mut outcomes = Outcomes::default();
        for n in 0..1_000_u64 {
            outcomes.push_delivered(EntryId { ms: 1_790_000_000_000 + n * 7_919, seq: n % 3 }, 1, 1);
            outcomes.push_failed(n as u32 % 5, 1);
        }
        assert!(outcomes.bytes() < 2_000 * 16, "{}", outcomes.bytes());
    }
}
