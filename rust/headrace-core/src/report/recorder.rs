//! The recorder: collects outcomes as they arrive, and turns them into a report.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::data::ReportData;
use super::delivery::DeliveryReport;
use super::ids::{IdCursor, MessageIds, ReportedId};
use super::outcomes::Outcomes;
use crate::command::EntryId;
use crate::counters::Counters;
use crate::error::Failure;
use crate::rows::IdColumn;

/// The maximum number of distinct error texts that one report keeps. The maximum number of distinct failures is twice that;
/// beyond it, codes become `ERR`. A real server has few errors; the limit bounds memory use if a server sends a new one each
/// time.
const MAX_ERROR_TEXTS: usize = 1024;
/// Replaces the error texts beyond [`MAX_ERROR_TEXTS`].
const NOT_KEPT: &str = "(not kept: this report holds over a thousand different errors)";

/// The outcomes since the last report, and the IDs of all messages that are not yet in a report.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The ordinal of the first message that is not yet in a report.
    first_ordinal: u64,
    ids: MessageIds,
    outcomes: Outcomes,
    failures: FailureTable,
    delivered: u64,
    failed: u64,
    retries: u64,
    possible_duplicates: u64,
    deduplicated: u64,
    /// The number of delivered messages that are not yet in the counters.
    uncounted: u64,
    counters: Arc<Counters>,
}

impl Recorder {
    /// The counters of all recorded outcomes.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Adds the delivered messages to the counters.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.counters.delivered.add(std::mem::take(&mut self.uncounted));
    }

    /// Resets everything except the counters, in a forked child.
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

    /// Appends one ID. An ordinal keeps its value.
    pub(super) fn push_id(&mut self, id: ReportedId<'_>) {
        self.ids.push_id(id);
    }

    /// Appends the IDs of the next `count` messages of another report.
    pub(super) fn push_from(&mut self, ids: &MessageIds, cursor: &mut IdCursor, count: u64) {
        self.ids.push_from(ids, cursor, count);
    }

    /// Records that the next messages in order were delivered, in `entries` entries of `rows` messages each: the first entry
    /// has the ID `first`, the others have the following sequence numbers.
    #[inline]
    pub(crate) fn delivered(&mut self, first: EntryId, entries: u64, rows: u64) {
        self.delivered += entries * rows;
        self.uncounted += entries * rows;
        self.outcomes.push_delivered(first, entries, rows);
    }

    /// Records that an earlier attempt had written the next `count` messages in order.
    pub(crate) fn deduplicated(&mut self, count: u64) {
        self.delivered += count;
        self.deduplicated += count;
        self.uncounted += count;
        self.counters.deduplicated.add(count);
        self.outcomes.push_deduplicated(count);
    }

    /// Records that the next `count` messages in order failed.
    pub(crate) fn failed(&mut self, failure: &Failure, count: u64) {
        self.failed += count;
        self.counters.failed(&failure.code, count);
        let index = self.failures.index(failure);
        self.outcomes.push_failed(index, count);
    }

    /// Records that `count` messages are sent again.
    pub(crate) fn sent_again(&mut self, count: u64, may_be_written: bool) {
        self.retries += count;
        self.counters.retries.add(count);
        if may_be_written {
            self.counters.possible_duplicates.add(count);
            self.possible_duplicates += count;
        }
    }

    /// Adds another report's counts of messages that were sent again.
    pub(super) fn add_retries(&mut self, report: &ReportData) {
        self.retries += report.retries;
        self.possible_duplicates += report.possible_duplicates;
    }

    /// The number of messages that have an outcome in the next report.
    pub(crate) fn recorded(&self) -> u64 {
        self.delivered + self.failed
    }

    /// Whether the next report would have neither outcomes nor counts.
    pub(super) fn is_empty(&self) -> bool {
        self.recorded() == 0 && self.retries == 0 && self.possible_duplicates == 0
    }

    /// Returns the recorded outcomes as a report. If `restart` is true, the next message's ordinal is 0, which requires that
    /// every message has an outcome.
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
        DeliveryReport::new(report)
    }
}

/// The distinct failures of a report.
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
        if self.list.len() >= 2 * MAX_ERROR_TEXTS && failure.code != "ERR" {
            return self.index(&Failure {
                code: Cow::Borrowed("ERR"),
                message: NOT_KEPT.to_owned(),
                ..failure.clone()
            });
        }
        if self.list.len() >= MAX_ERROR_TEXTS && failure.message != NOT_KEPT {
            return self.index(&Failure { message: NOT_KEPT.to_owned(), ..failure.clone() });
        }
        let index = self.list.len() as u32;
        self.list.push(failure.clone());
        self.index.insert(failure.clone(), index);
        index
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::{Kind, Written};
    use crate::report::ReportedId;

    fn failure(code: &str, message: &str) -> Failure {
        Failure {
            kind: Kind::Retryable,
            code: Cow::Owned(code.to_owned()),
            message: message.to_owned(),
            written: Written::No,
        }
    }

    #[test]
    fn a_report_takes_messages_with_an_outcome_and_leaves_the_other_ids() {
        let mut recorder = Recorder::default();
        for id in [10, 11, 12, 13] {
            recorder.push_int(id);
        }
        recorder.delivered(EntryId { ms: 1, seq: 0 }, 1, 1);
        recorder.failed(&failure("OOM", "no memory"), 1);
        let first = recorder.take(false);
        assert_eq!((first.delivered(), first.failed()), (1, 1));
        assert_eq!(first.failures().map(|f| f.message_id).collect::<Vec<_>>(), [ReportedId::Int(11)]);

        recorder.push_ordinals(2);
        recorder.failed(&failure("OOM", "no memory"), 4);
        let second = recorder.take(true);
        let ids: Vec<_> = second.failures().map(|f| f.message_id).collect();
        assert_eq!(ids, [ReportedId::Int(12), ReportedId::Int(13), ReportedId::Ordinal(4), ReportedId::Ordinal(5)]);
        assert_eq!(second.failed_by_code(), BTreeMap::from([("OOM".into(), 4)]));

        recorder.push_ordinals(1);
        recorder.failed(&failure("OOM", "no memory"), 1);
        assert_eq!(recorder.take(true).failures().next().unwrap().message_id, ReportedId::Ordinal(0));
    }

    #[test]
    fn distinct_errors_are_bounded_and_keep_their_codes() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(10_000);
        for n in 0..10_000 {
            recorder.failed(&failure(if n % 2 == 0 { "OOM" } else { "ERR" }, &n.to_string()), 1);
        }
        let report = recorder.take(true);
        assert!(report.distinct_failures() <= MAX_ERROR_TEXTS + 2);
        assert_eq!(report.failed_by_code(), BTreeMap::from([("ERR".into(), 5_000), ("OOM".into(), 5_000)]));

        recorder.push_ordinals(10_000);
        for n in 0..10_000 {
            recorder.failed(&failure(&format!("CODE{n}"), "m"), 1);
        }
        let report = recorder.take(true);
        assert_eq!((report.failed(), report.failures().count()), (10_000, 10_000));
        assert!(report.distinct_failures() <= 2 * MAX_ERROR_TEXTS + 1);
    }
}
