//! The delivery report: what `flush` returns.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::arrow::ReportBatches;
use super::data::ReportData;
use super::ids::{IdCursor, ReportedId};
use super::outcomes::Run;
use crate::command::EntryId;
use crate::error::Failure;

/// The outcome of each message since the last report, in produce order.
#[derive(Debug, Clone)]
pub struct DeliveryReport {
    data: Arc<ReportData>,
}

/// A message that was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedMessage<'a> {
    /// The ID of the message.
    pub message_id: ReportedId<'a>,
    /// Why the message failed.
    pub failure: &'a Failure,
}

impl DeliveryReport {
    pub(super) fn new(data: ReportData) -> Self {
        Self { data: Arc::new(data) }
    }

    pub(super) fn data(&self) -> &ReportData {
        &self.data
    }

    #[cfg(test)]
    pub(super) fn distinct_failures(&self) -> usize {
        self.data.failures.len()
    }

    /// The entry ID of each message; `None` if it failed or the ID is unknown.
    #[cfg(test)]
    pub(crate) fn entry_ids(&self) -> Vec<Option<EntryId>> {
        let of_run = |run: Run| {
            (0..run.count()).map(move |nth| match run {
                Run::Delivered { first, rows, .. } => Some(first.after(nth / rows)),
                Run::Deduplicated { .. } | Run::Failed { .. } => None,
            })
        };
        self.data.outcomes.runs().flat_map(of_run).collect()
    }

    /// The number of messages that are in their stream.
    pub fn delivered(&self) -> u64 {
        self.data.delivered
    }

    /// The number of messages that failed.
    pub fn failed(&self) -> u64 {
        self.data.failed
    }

    /// How many of the [`delivered`](Self::delivered) messages had been written by an earlier attempt with the same token.
    pub fn deduplicated(&self) -> u64 {
        self.data.deduplicated
    }

    /// How many times a message was sent again. Includes messages in flight, whose outcome is in a later report.
    pub fn retries(&self) -> u64 {
        self.data.retries
    }

    /// How many of the [`retries`](Self::retries) may have written a message a second time.
    pub fn possible_duplicates(&self) -> u64 {
        self.data.possible_duplicates
    }

    /// The failed messages, in order.
    pub fn failures(&self) -> impl Iterator<Item = FailedMessage<'_>> {
        let data = &*self.data;
        let mut ids = IdCursor::new(data.first_ordinal);
        data.outcomes.runs().flat_map(move |run| {
            let (failure, count) = match run {
                Run::Delivered { .. } | Run::Deduplicated { .. } => {
                    ids.skip(&data.ids, run.count());
                    (None, 0)
                }
                Run::Failed { failure, count } => (data.failures.get(failure as usize), count),
            };
            // The IDs of a run are read lazily; the next run continues after them.
            let mut of_run = ids.clone();
            if count > 0 {
                ids.skip(&data.ids, count);
            }
            (0..count).filter_map(move |_| {
                let message_id = of_run.next(&data.ids);
                failure.map(|failure| FailedMessage { message_id, failure })
            })
        })
    }

    /// The number of failed messages per code.
    pub fn failed_by_code(&self) -> BTreeMap<Cow<'static, str>, u64> {
        let mut counts = BTreeMap::new();
        for run in self.data.outcomes.runs() {
            if let Run::Failed { failure, count } = run
                && let Some(failure) = self.data.failures.get(failure as usize)
            {
                *counts.entry(failure.code.clone()).or_default() += count;
            }
        }
        counts
    }

    /// The entry ID of the first delivered message.
    pub fn first_entry_id(&self) -> Option<EntryId> {
        self.data.outcomes.runs().find_map(|run| match run {
            Run::Delivered { first, .. } => Some(first),
            Run::Deduplicated { .. } | Run::Failed { .. } => None,
        })
    }

    /// All outcomes, or only the failures, as record batches, each built when it is read.
    pub fn to_arrow(&self, only_failed: bool) -> ReportBatches {
        ReportBatches::new(Arc::clone(&self.data), only_failed)
    }
}
