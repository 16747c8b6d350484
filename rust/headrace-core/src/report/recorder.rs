//! Records outcomes as they come in, and hands them out as a report.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::arrow::ReportBatches;
use super::ids::{IdCursor, MessageId, MessageIds};
use super::outcomes::{Outcomes, Run};
use crate::command::EntryId;
use crate::counters::Counters;
use crate::error::Failure;
use crate::rows::IdColumn;

/// Different sentences that one report keeps, and half of the different failures: past those, codes become `ERR`. A
/// server's errors are few; only one that makes them up passes this, and must not fill the memory.
const MAX_SENTENCES: usize = 1024;
/// What stands in place of the sentences past [`MAX_SENTENCES`].
const NOT_KEPT: &str = "(not kept: this report holds over a thousand different errors)";

/// The outcomes since the last report, and the IDs of all messages that are not in a report yet.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Of the first message that is not in a report yet.
    first_ordinal: u64,
    ids: MessageIds,
    outcomes: Outcomes,
    failures: FailureTable,
    delivered: u64,
    failed: u64,
    retries: u64,
    possible_duplicates: u64,
    deduplicated: u64,
    /// What is not told to the counters yet.
    uncounted: u64,
    counters: Arc<Counters>,
}

impl Recorder {
    /// Where everything is counted that is recorded.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Tells the counters of what was delivered.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.counters.delivered.add(std::mem::take(&mut self.uncounted));
    }

    /// In a forked child: everything starts anew, and is counted by the same counters.
    pub(crate) fn forget(&mut self) {
        *self = Self { counters: Arc::clone(&self.counters), ..Self::default() };
    }

    pub(crate) fn push_ordinals(&mut self, count: u64) {
        self.ids.push_ordinals(count);
    }

    pub(crate) fn push_int(&mut self, id: i64) {
        self.ids.push_int(id);
    }

    pub(crate) fn push_text(&mut self, id: &str) {
        self.ids.push_text(id);
    }

    pub(crate) fn push_column(&mut self, column: IdColumn) {
        self.ids.push_column(column);
    }

    /// The next messages in order were delivered: `entries` of `rows` messages each, the first under `first`, the others
    /// under the sequence numbers that follow.
    #[inline]
    pub(crate) fn delivered(&mut self, first: EntryId, entries: u64, rows: u64) {
        self.delivered += entries * rows;
        self.uncounted += entries * rows;
        self.outcomes.push_delivered(first, entries, rows);
    }

    /// The next `count` messages in order had been written by an earlier try.
    pub(crate) fn deduplicated(&mut self, count: u64) {
        self.delivered += count;
        self.deduplicated += count;
        self.uncounted += count;
        self.counters.deduplicated.add(count);
        self.outcomes.push_deduplicated(count);
    }

    /// The next `count` messages in order failed.
    pub(crate) fn failed(&mut self, failure: &Failure, count: u64) {
        self.failed += count;
        self.counters.failed(&failure.code, count);
        let index = self.failures.index(failure);
        self.outcomes.push_failed(index, count);
    }

    /// So many messages are sent once more.
    pub(crate) fn sent_again(&mut self, count: u64, may_be_written: bool) {
        self.retries += count;
        self.counters.retries.add(count);
        if may_be_written {
            self.counters.possible_duplicates.add(count);
            self.possible_duplicates += count;
        }
    }

    /// How many messages have an outcome in the next report.
    pub(crate) fn recorded(&self) -> u64 {
        self.delivered + self.failed
    }

    /// Hands out what was recorded. `restart`: the next message's ordinal is 0; all messages have their outcome then.
    pub(crate) fn take(&mut self, restart: bool) -> DeliveryReport {
        let recorded = self.recorded();
        let report = ReportData {
            first_ordinal: self.first_ordinal,
            ids: self.ids.take_front(recorded),
            outcomes: std::mem::take(&mut self.outcomes),
            failures: std::mem::take(&mut self.failures).list,
            delivered: std::mem::take(&mut self.delivered),
            failed: std::mem::take(&mut self.failed),
            retries: std::mem::take(&mut self.retries),
            possible_duplicates: std::mem::take(&mut self.possible_duplicates),
            deduplicated: std::mem::take(&mut self.deduplicated),
        };
        self.first_ordinal = if restart { 0 } else { self.first_ordinal + recorded };
        DeliveryReport { data: Arc::new(report) }
    }
}

/// Each failure once.
#[derive(Debug, Default)]
struct FailureTable {
    list: Vec<Failure>,
    index: HashMap<Failure, u32>,
}

impl FailureTable {
    fn index(&mut self, failure: &Failure) -> u32 {
        if let Some(index) = self.index.get(failure) {
            return *index;
        }
        if self.list.len() >= 2 * MAX_SENTENCES && failure.code != "ERR" {
            return self.index(&Failure {
                code: Cow::Borrowed("ERR"),
                message: NOT_KEPT.to_owned(),
                ..failure.clone()
            });
        }
        if self.list.len() >= MAX_SENTENCES && failure.message != NOT_KEPT {
            return self.index(&Failure { message: NOT_KEPT.to_owned(), ..failure.clone() });
        }
        let index = self.list.len() as u32;
        self.list.push(failure.clone());
        self.index.insert(failure.clone(), index);
        index
    }
}

/// What one report is about; shared with the readers that turn it into Arrow.
#[derive(Debug)]
pub(super) struct ReportData {
    pub(super) first_ordinal: u64,
    pub(super) ids: MessageIds,
    pub(super) outcomes: Outcomes,
    pub(super) failures: Vec<Failure>,
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) retries: u64,
    pub(super) possible_duplicates: u64,
    pub(super) deduplicated: u64,
}

/// One outcome for each of a run of messages, in the order in which they were produced.
#[derive(Debug, Clone)]
pub struct DeliveryReport {
    data: Arc<ReportData>,
}

/// A message that was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedMessage<'a> {
    /// The caller's name for it.
    pub message_id: MessageId<'a>,
    /// What became of it.
    pub failure: &'a Failure,
}

impl DeliveryReport {
    /// How many messages are in their stream.
    pub fn delivered(&self) -> u64 {
        self.data.delivered
    }

    /// How many messages failed.
    pub fn failed(&self) -> u64 {
        self.data.failed
    }

    /// How many of [`delivered`](Self::delivered) had been written by an earlier try under the same token.
    pub fn deduplicated(&self) -> u64 {
        self.data.deduplicated
    }

    /// How many times a message was sent again. Those that are under way count too, whose outcome another report tells.
    pub fn retries(&self) -> u64 {
        self.data.retries
    }

    /// How many of [`retries`](Self::retries) may have written a message that was written before.
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
            // The IDs of a run are read while it is walked; the next run goes on where they ended.
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

    /// How many messages failed with each code.
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

    /// All outcomes, or those of the failed messages, as record batches, made one at a time as they are read.
    pub fn to_arrow(&self, only_failed: bool) -> ReportBatches {
        ReportBatches::new(Arc::clone(&self.data), only_failed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::{Kind, Written};

    fn failure(code: &str, message: &str) -> Failure {
        Failure {
            kind: Kind::Retryable,
            code: Cow::Owned(code.to_owned()),
            message: message.to_owned(),
            written: Written::No,
        }
    }

    #[test]
    fn a_report_takes_what_was_answered_and_leaves_the_ids_of_the_rest() {
        let mut recorder = Recorder::default();
        for id in [10, 11, 12, 13] {
            recorder.push_int(id);
        }
        recorder.delivered(EntryId { ms: 1, seq: 0 }, 1, 1);
        recorder.failed(&failure("OOM", "no memory"), 1);
        let first = recorder.take(false);
        assert_eq!((first.delivered(), first.failed()), (1, 1));
        assert_eq!(first.failures().map(|f| f.message_id).collect::<Vec<_>>(), [MessageId::Int(11)]);

        recorder.push_ordinals(2);
        recorder.failed(&failure("OOM", "no memory"), 4);
        let second = recorder.take(true);
        let ids: Vec<_> = second.failures().map(|f| f.message_id).collect();
        assert_eq!(ids, [MessageId::Int(12), MessageId::Int(13), MessageId::Ordinal(4), MessageId::Ordinal(5)]);
        assert_eq!(second.failed_by_code(), BTreeMap::from([("OOM".into(), 4)]));

        recorder.push_ordinals(1);
        recorder.failed(&failure("OOM", "no memory"), 1);
        assert_eq!(recorder.take(true).failures().next().unwrap().message_id, MessageId::Ordinal(0));
    }

    #[test]
    fn errors_that_are_all_different_do_not_fill_the_memory_and_keep_their_codes() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(10_000);
        for n in 0..10_000 {
            recorder.failed(&failure(if n % 2 == 0 { "OOM" } else { "ERR" }, &n.to_string()), 1);
        }
        let report = recorder.take(true);
        assert!(report.data.failures.len() <= MAX_SENTENCES + 2);
        assert_eq!(report.failed_by_code(), BTreeMap::from([("ERR".into(), 5_000), ("OOM".into(), 5_000)]));

        recorder.push_ordinals(10_000);
        for n in 0..10_000 {
            recorder.failed(&failure(&format!("CODE{n}"), "m"), 1);
        }
        let report = recorder.take(true);
        assert_eq!((report.failed(), report.failures().count()), (10_000, 10_000));
        assert!(report.data.failures.len() <= 2 * MAX_SENTENCES + 1);
    }
}
