//! Which messages a command carries.

use std::sync::Arc;

use super::outcome::Outcome;

/// Messages whose numbers follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// The numbers of the messages of a command, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Consecutive numbers from this one on.
    From(u64),
    /// Not consecutive: other commands carry messages between them.
    Scattered(Arc<[Span]>),
}

impl Numbers {
    /// The numbers of the messages of `spans`.
    pub(crate) fn of(spans: &[Span]) -> Self {
        match spans {
            [] => Self::From(0),
            [span] => Self::From(span.first),
            _ => Self::Scattered(spans.into()),
        }
    }

    /// The number of the first message. No two commands have the same.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        match self {
            Self::From(first) => *first,
            Self::Scattered(spans) => spans.first().map_or(0, |span| span.first),
        }
    }

    /// Passes each outcome of the messages after the first `skipped` ones to `visit`, with the number of its first message. An
    /// outcome of messages whose numbers do not follow each other is split.
    #[inline]
    pub(crate) fn assign(
        &self,
        skipped: u64,
        outcomes: impl IntoIterator<Item = Outcome>,
        mut visit: impl FnMut(u64, Outcome),
    ) {
        match self {
            Self::From(first) => {
                let mut number = first + skipped;
                for outcome in outcomes {
                    let count = outcome.count();
                    visit(number, outcome);
                    number += count;
                }
            }
            Self::Scattered(spans) => assign_scattered(spans, skipped, outcomes, visit),
        }
    }
}

#[inline(never)]
fn assign_scattered(
    spans: &[Span],
    mut skipped: u64,
    outcomes: impl IntoIterator<Item = Outcome>,
    mut visit: impl FnMut(u64, Outcome),
) {
    let mut spans = spans.iter().filter_map(|span| {
        let skip = skipped.min(span.count);
        skipped -= skip;
        let rest = Span { first: span.first + skip, count: span.count - skip };
        (rest.count > 0).then_some(rest)
    });
    let mut span = spans.next();
    for mut outcome in outcomes {
        while let Some(Span { first, count }) = span {
            let taken = outcome.count().min(count);
            span = if taken < count { Some(Span { first: first + taken, count: count - taken }) } else { spans.next() };
            match outcome.split(taken) {
                (front, Some(rest)) => {
                    visit(first, front);
                    outcome = rest;
                }
                (all, None) => {
                    visit(first, all);
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::EntryId;

    #[test]
    fn outcomes_are_split_where_the_numbers_are_not_consecutive() {
        let delivered = |seq, entries| Outcome::Delivered { first: EntryId { ms: 7, seq }, entries, rows: 1 };
        let spans = [(3, 2), (9, 1), (20, 3)].map(|(first, count)| Span { first, count });
        let seen = |numbers: &Numbers, skipped, outcomes: &[Outcome]| {
            let mut seen = Vec::new();
            numbers.assign(skipped, outcomes.iter().cloned(), |number, outcome| seen.push((number, outcome)));
            seen
        };
        let numbers = Numbers::of(&spans);
        assert_eq!(numbers.first(), 3);
        assert_eq!(
            seen(&numbers, 0, &[Outcome::Deduplicated { count: 1 }, delivered(0, 5)]),
            [
                (3, Outcome::Deduplicated { count: 1 }),
                (4, delivered(0, 1)),
                (9, delivered(1, 1)),
                (20, delivered(2, 3))
            ]
        );
        assert_eq!(seen(&numbers, 4, &[delivered(8, 2)]), [(21, delivered(8, 2))]);
        assert_eq!(seen(&Numbers::of(&spans[..1]), 1, &[delivered(8, 1)]), [(4, delivered(8, 1))]);
    }
}
