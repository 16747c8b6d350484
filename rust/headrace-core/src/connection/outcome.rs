//! The outcome of messages.

use std::sync::Arc;

use crate::command::EntryId;
use crate::error::{Failure, Written};

/// The outcome of one message, or of several that follow each other and have the same outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// `entries` of `rows` messages each, the first under `first`, the others under the sequence numbers that follow.
    Delivered { first: EntryId, entries: u64, rows: u64 },
    /// The messages were written by an earlier try; their entry IDs are not known.
    Deduplicated { count: u64 },
    /// The messages failed, all for one reason.
    Failed { failure: Arc<Failure>, count: u64 },
}

impl Outcome {
    /// How many messages the outcome covers.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        match *self {
            Self::Delivered { entries, rows, .. } => entries * rows,
            Self::Deduplicated { count } | Self::Failed { count, .. } => count,
        }
    }

    /// Whether the messages are in their stream.
    pub(crate) fn is_written(&self) -> bool {
        match self {
            Self::Delivered { .. } | Self::Deduplicated { .. } => true,
            Self::Failed { .. } => false,
        }
    }

    /// The outcome of the first `count` messages, and that of the others. For entries of several rows, `count` covers whole
    /// entries.
    pub(crate) fn split(self, count: u64) -> (Self, Option<Self>) {
        let rest = self.count().saturating_sub(count);
        if rest == 0 {
            return (self, None);
        }
        match self {
            Self::Delivered { first, entries, rows } => {
                let taken = count / rows;
                let behind = Self::Delivered { first: first.after(taken), entries: entries - taken, rows };
                (Self::Delivered { first, entries: taken, rows }, Some(behind))
            }
            Self::Deduplicated { .. } => (Self::Deduplicated { count }, Some(Self::Deduplicated { count: rest })),
            Self::Failed { failure, .. } => {
                (Self::Failed { failure: Arc::clone(&failure), count }, Some(Self::Failed { failure, count: rest }))
            }
        }
    }

    /// Returns the outcome of the same messages if they fail with `failure`.
    pub(crate) fn failed_with(&self, failure: &Arc<Failure>) -> Self {
        Self::Failed { failure: Arc::clone(failure), count: self.count() }
    }

    /// Returns the outcome for messages that an earlier try may have written.
    #[must_use]
    pub(crate) fn after_doubt(self) -> Self {
        match self {
            Self::Failed { failure, count } if failure.written == Written::No => {
                let failure = Arc::new(Failure { written: Written::Unknown, ..(*failure).clone() });
                Self::Failed { failure, count }
            }
            other => other,
        }
    }

    /// Absorbs the outcome of the messages that follow, if both can be one. Returns whether it did.
    pub(crate) fn absorb(&mut self, next: &Self) -> bool {
        match (self, next) {
            (
                Self::Delivered { first, entries, rows },
                Self::Delivered { first: id, entries: more, rows: its_rows },
            ) if first.ms == id.ms && id.seq.checked_sub(first.seq) == Some(*entries) && rows == its_rows => {
                *entries += more;
                true
            }
            (Self::Deduplicated { count }, Self::Deduplicated { count: more }) => {
                *count += more;
                true
            }
            (Self::Failed { failure, count }, Self::Failed { failure: other, count: more }) if failure == other => {
                *count += more;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn entries_with_different_numbers_of_rows_are_separate_runs() {
        let of = |rows, seq, entries| Outcome::Delivered { first: EntryId { ms: 7, seq }, entries, rows };
        let mut run = of(10, 0, 1);
        assert!(run.absorb(&of(10, 1, 1)) && !run.absorb(&of(3, 2, 1)) && !run.absorb(&of(10, 1, 1)));
        assert_eq!(run, of(10, 0, 2));
        let failure =
            Failure { kind: Kind::Permanent, code: "OOM".into(), message: String::new(), written: Written::No };
        let failure = Arc::new(failure);
        assert_eq!(run.failed_with(&failure), Outcome::Failed { failure: Arc::clone(&failure), count: 20 });
        let Outcome::Failed { failure: doubtful, .. } = run.failed_with(&failure).after_doubt() else { return };
        assert_eq!(doubtful.written, Written::Unknown);
    }
}
