//! The router: passes outcomes to the callers that await them individually, and all others to a report.

use std::collections::VecDeque;

use super::data::ReportData;
use super::delivery::DeliveryReport;
use super::ids::{IdCursor, ReportedId};
use super::outcomes::Run;
use super::recorder::Recorder;
use crate::command::EntryId;
use crate::error::Failure;

/// The outcome of a message that a caller awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedOutcome<'a> {
    /// The ID of the message.
    pub message_id: ReportedId<'a>,
    /// The entry ID, which is `None` if an earlier attempt wrote the message; or the reason that it was not delivered.
    pub outcome: Result<Option<EntryId>, &'a Failure>,
}

/// Passes each outcome to the caller that awaits its message, or otherwise to the next report.
///
/// A dispatcher returns outcomes in produce order. The router therefore only records, in this order, whether each message is
/// awaited.
#[derive(Debug, Default)]
pub struct OutcomeRouter {
    /// The messages without an outcome, in produce order, as runs: whether they are awaited, and how many follow each other.
    expected: VecDeque<(bool, u64)>,
    /// The outcomes for the next report.
    unclaimed: Recorder,
    /// Whether awaited messages take no ordinals.
    skips_awaited: bool,
    /// How many ordinals of the dispatcher they have taken since these began at 0.
    skipped: u64,
}

impl OutcomeRouter {
    /// A router whose reports number only the messages that no caller awaits. Its callers give no outcome back.
    pub fn skipping_awaited() -> Self {
        Self { skips_awaited: true, ..Self::default() }
    }

    /// Records that the dispatcher accepted `count` more messages.
    #[inline]
    pub fn expect(&mut self, is_awaited: bool, count: u64) {
        match self.expected.back_mut() {
            Some((awaited, messages)) if *awaited == is_awaited => *messages += count,
            _ => self.expected.push_back((is_awaited, count)),
        }
    }

    /// Passes on the outcomes of `report`. `receive` gets each awaited outcome and returns whether its caller still awaits
    /// it; if not, the outcome goes to the next report too.
    pub fn route(&mut self, report: &DeliveryReport, mut receive: impl FnMut(AwaitedOutcome<'_>) -> bool) {
        let data = report.data();
        self.unclaimed.add_retries(data);
        if data.first_ordinal == 0 {
            self.skipped = 0;
        }
        let mut ids = IdCursor::new(data.first_ordinal - self.skipped);
        for run in data.outcomes.runs() {
            let mut at = 0;
            while at < run.count() {
                let (is_awaited, more) = self.take_expected(run.count() - at);
                if is_awaited {
                    for nth in at..at + more {
                        let awaited = awaited(data, run, nth, ids.next(&data.ids));
                        if self.skips_awaited {
                            self.skipped += 1;
                            ids.skip_ordinal();
                        }
                        if !receive(awaited) {
                            self.put_back(awaited);
                        }
                    }
                } else {
                    self.unclaimed.push_from(&data.ids, &mut ids, more);
                    self.record(data, run, at, more);
                }
                at += more;
            }
        }
    }

    /// Returns an outcome that a caller received but no longer awaits: it goes to the next report.
    pub fn put_back(&mut self, awaited: AwaitedOutcome<'_>) {
        self.unclaimed.push_id(awaited.message_id);
        match awaited.outcome {
            Ok(Some(entry_id)) => self.unclaimed.delivered(entry_id, 1, 1),
            Ok(None) => self.unclaimed.deduplicated(1),
            Err(failure) => self.unclaimed.failed(failure, 1),
        }
    }

    /// Takes back a report that its caller did not get: its outcomes are the first ones of the next report.
    pub fn put_back_report(&mut self, report: &DeliveryReport) {
        let later = self.take();
        for report in [report, &later] {
            let data = report.data();
            self.unclaimed.add_retries(data);
            let mut ids = IdCursor::new(data.first_ordinal);
            for run in data.outcomes.runs() {
                self.unclaimed.push_from(&data.ids, &mut ids, run.count());
                self.record(data, run, 0, run.count());
            }
        }
    }

    /// The number of outcomes for the next report.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed.recorded()
    }

    /// Whether [`take`](Self::take) would return the next report unchanged, if no caller awaits a message of it.
    pub fn is_idle(&self) -> bool {
        self.expected.is_empty() && self.unclaimed.is_empty() && self.skipped == 0
    }

    /// Returns a report of all outcomes since the last one that were not passed to a caller.
    pub fn take(&mut self) -> DeliveryReport {
        self.unclaimed.take(false)
    }

    /// Resets the router in a forked child, where its content belongs to the parent.
    pub fn forget(&mut self) {
        *self = Self { skips_awaited: self.skips_awaited, ..Self::default() };
    }

    /// Whether the next messages are awaited, and the number of messages this holds for, at most `most`.
    fn take_expected(&mut self, most: u64) -> (bool, u64) {
        let Some((is_awaited, count)) = self.expected.front_mut() else { return (false, most) };
        let (is_awaited, more) = (*is_awaited, most.min(*count));
        *count -= more;
        if *count == 0 {
            self.expected.pop_front();
        }
        (is_awaited, more)
    }

    /// Records the outcomes of `count` messages of a run, starting with the one at `at`.
    fn record(&mut self, data: &ReportData, run: Run, at: u64, count: u64) {
        match run {
            Run::Delivered { first, rows, .. } if at.is_multiple_of(rows) && count.is_multiple_of(rows) => {
                self.unclaimed.delivered(first.after(at / rows), count / rows, rows);
            }
            // Only part of an entry: its messages are recorded individually.
            Run::Delivered { first, rows, .. } => {
                (at..at + count).for_each(|nth| self.unclaimed.delivered(first.after(nth / rows), 1, 1));
            }
            Run::Deduplicated { .. } => self.unclaimed.deduplicated(count),
            Run::Failed { failure, .. } => self.unclaimed.failed(&data.failures[failure as usize], count),
        }
    }
}

/// The outcome of the message at index `nth` of a run.
fn awaited<'a>(data: &'a ReportData, run: Run, nth: u64, message_id: ReportedId<'a>) -> AwaitedOutcome<'a> {
    let outcome = match run {
        Run::Delivered { first, rows, .. } => Ok(Some(first.after(nth / rows))),
        Run::Deduplicated { .. } => Ok(None),
        Run::Failed { failure, .. } => Err(&data.failures[failure as usize]),
    };
    AwaitedOutcome { message_id, outcome }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::borrow::Cow;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field};
    use proptest::prelude::*;

    use super::*;
    use crate::error::{Kind, Written};
    use crate::rows::IdColumn;

    fn failure(message: &str) -> Failure {
        Failure { kind: Kind::Permanent, code: Cow::Borrowed("OOM"), message: message.to_owned(), written: Written::No }
    }

    #[derive(Debug, Clone)]
    enum Given {
        Ordinal,
        Int(i64),
        Text(String),
        Row(Option<i64>),
    }

    fn given() -> impl Strategy<Value = Given> {
        prop_oneof![
            Just(Given::Ordinal),
            any::<i64>().prop_map(Given::Int),
            ".{0,5}".prop_map(Given::Text),
            any::<Option<i64>>().prop_map(Given::Row),
        ]
    }

    /// The ID and the outcome of each message of a report, as text.
    fn read(report: &DeliveryReport) -> Vec<String> {
        let (data, entry_ids) = (report.data(), report.entry_ids());
        let mut ids = IdCursor::new(data.first_ordinal);
        let mut failures = report.failures();
        let outcomes = data.outcomes.runs().flat_map(|run| (0..run.count()).map(move |_| run));
        let read = outcomes.zip(entry_ids).map(|(run, entry_id)| {
            let id = ids.next(&data.ids);
            match (run, entry_id) {
                (Run::Delivered { .. }, Some(entry_id)) => format!("{id:?} {entry_id}"),
                (Run::Failed { .. }, None) => {
                    let failed = failures.next().unwrap();
                    assert_eq!(failed.message_id, id);
                    format!("{id:?} {}", failed.failure.message)
                }
                (Run::Deduplicated { .. }, None) => format!("{id:?} deduplicated"),
                (run, entry_id) => unreachable!("{run:?} {entry_id:?}"),
            }
        });
        read.collect()
    }

    proptest! {
        #[test]
        fn each_outcome_is_received_or_reported_in_order(
            messages in prop::collection::vec((given(), 0..4_u8, any::<bool>(), any::<bool>()), 0..60),
            cuts in prop::collection::vec(0..9_usize, 0..20),
        ) {
            let (mut recorder, mut router) = (Recorder::default(), OutcomeRouter::default());
            let (mut expected_received, mut expected_reported) = (vec![], vec![]);
            let (mut received, mut reported) = (vec![], vec![]);
            let mut cuts = cuts.into_iter();
            let mut until_cut = cuts.next();
            for (number, (given, outcome, is_awaited, is_received)) in messages.iter().enumerate() {
                let id = match given {
                    Given::Ordinal => {
                        recorder.push_ordinals(1);
                        ReportedId::Ordinal(number as u64)
                    }
                    Given::Int(id) => {
                        recorder.push_int(*id);
                        ReportedId::Int(*id)
                    }
                    Given::Text(id) => {
                        recorder.push_text(id);
                        ReportedId::Text(id)
                    }
                    Given::Row(id) => {
                        let array: ArrayRef = Arc::new(Int64Array::from(vec![*id]));
                        recorder.push_column(IdColumn::new(array, &Field::new("id", DataType::Int64, true)).unwrap());
                        id.map_or(ReportedId::Ordinal(number as u64), ReportedId::Int)
                    }
                };
                let entry_id = EntryId { ms: 1, seq: number as u64 };
                let text = match outcome {
                    0 => {
                        recorder.failed(&failure("full"), 1);
                        "full".to_owned()
                    }
                    1 => {
                        recorder.deduplicated(1);
                        "deduplicated".to_owned()
                    }
                    _ => {
                        recorder.delivered(entry_id, 1, 1);
                        entry_id.to_string()
                    }
                };
                router.expect(*is_awaited, 1);
                let expected = if *is_awaited && *is_received { &mut expected_received } else { &mut expected_reported };
                expected.push(format!("{id:?} {text}"));
                if until_cut == Some(0) || number + 1 == messages.len() {
                    let mut awaited = messages.iter().filter(|message| message.2).skip(received.len());
                    let report = recorder.take(false);
                    router.route(&report, |outcome| {
                        let is_received = awaited.next().unwrap().3;
                        let text = match outcome.outcome {
                            Ok(Some(entry_id)) => entry_id.to_string(),
                            Ok(None) => "deduplicated".to_owned(),
                            Err(failure) => failure.message.clone(),
                        };
                        received.push((is_received, format!("{:?} {text}", outcome.message_id)));
                        is_received
                    });
                    reported.extend(read(&router.take()));
                    until_cut = cuts.next();
                } else {
                    until_cut = until_cut.map(|left| left - 1);
                }
            }
            let received: Vec<_> = received.into_iter().filter_map(|(is, text)| is.then_some(text)).collect();
            prop_assert_eq!((received, reported), (expected_received, expected_reported));
        }
    }

    #[test]
    fn rows_that_share_an_entry_keep_its_id_wherever_the_report_splits() {
        let (mut recorder, mut router) = (Recorder::default(), OutcomeRouter::default());
        recorder.push_ordinals(6);
        recorder.delivered(EntryId { ms: 1, seq: 0 }, 2, 3);
        router.expect(false, 2);
        router.expect(true, 1);
        router.expect(false, 3);
        let mut received = vec![];
        router.route(&recorder.take(false), |awaited| {
            received.push(format!("{awaited:?}"));
            true
        });
        assert_eq!(received.len(), 1);
        assert_eq!(
            read(&router.take()),
            ["Ordinal(0) 1-0", "Ordinal(1) 1-0", "Ordinal(3) 1-1", "Ordinal(4) 1-1", "Ordinal(5) 1-1"]
        );
    }

    #[test]
    fn awaited_messages_take_no_ordinals_where_they_are_skipped() {
        let (mut recorder, mut router) = (Recorder::default(), OutcomeRouter::skipping_awaited());
        let mut report = |expected: &[bool], restart| {
            recorder.push_ordinals(expected.len() as u64);
            recorder.delivered(EntryId { ms: 1, seq: 0 }, expected.len() as u64, 1);
            for is_awaited in expected {
                router.expect(*is_awaited, 1);
            }
            router.route(&recorder.take(restart), |_| true);
            read(&router.take())
        };
        assert_eq!(report(&[false, true, false], false), ["Ordinal(0) 1-0", "Ordinal(1) 1-2"]);
        assert_eq!(report(&[true, true, false], true), ["Ordinal(2) 1-2"]);
        assert_eq!(report(&[false], false), ["Ordinal(0) 1-0"]);
    }

    #[test]
    fn a_report_that_is_put_back_comes_before_what_is_new() {
        let (mut recorder, mut router) = (Recorder::default(), OutcomeRouter::skipping_awaited());
        recorder.push_ordinals(2);
        recorder.delivered(EntryId { ms: 1, seq: 0 }, 2, 1);
        let report = recorder.take(true);
        router.expect(true, 1);
        let failure = failure("full");
        router.put_back(AwaitedOutcome { message_id: ReportedId::Ordinal(7), outcome: Err(&failure) });
        router.put_back_report(&report);
        assert_eq!(read(&router.take()), ["Ordinal(0) 1-0", "Ordinal(1) 1-1", "Ordinal(7) full"]);
        assert_eq!(read(&router.take()), [""; 0]);
    }

    #[test]
    fn an_outcome_that_is_put_back_is_in_the_next_report() {
        let mut router = OutcomeRouter::default();
        let failure = failure("full");
        router.put_back(AwaitedOutcome { message_id: ReportedId::Ordinal(7), outcome: Err(&failure) });
        router.put_back(AwaitedOutcome { message_id: ReportedId::Text("a"), outcome: Ok(None) });
        assert_eq!(read(&router.take()), ["Ordinal(7) full", "Text(\"a\") deduplicated"]);
        assert_eq!(read(&router.take()), [""; 0]);
    }
}
