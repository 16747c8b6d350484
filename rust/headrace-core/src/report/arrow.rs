//! A report in Arrow format: one row per message.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::data::ReportData;
use super::ids::{IdCursor, MessageIds, ReportedId, Span};
use super::outcomes::{Run, RunCursor};
use super::texts::Texts;
use crate::command::EntryId;
use crate::fail;

/// The maximum number of rows in one record batch.
const BATCH_ROWS: usize = 64 * 1024;
/// The lengths of typical IDs in bytes, so that most columns are allocated once. Longer IDs make the column grow.
const USUAL_MESSAGE_ID: usize = 8;
const USUAL_ENTRY_ID: usize = 18;

/// The schema of a report: `message_id`, then `entry_id` for a delivered message, or `kind`, `code`, `message` and
/// `written` for a failed one. All columns are utf8.
pub fn outcome_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let nullable = |name| Field::new(name, DataType::Utf8, true);
        Arc::new(Schema::new(vec![
            Field::new("message_id", DataType::Utf8, false),
            nullable("entry_id"),
            nullable("kind"),
            nullable("code"),
            nullable("message"),
            nullable("written"),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// An iterator over a report as record batches of at most 65,536 rows.
#[derive(Debug)]
pub struct ReportBatches {
    data: Arc<ReportData>,
    runs: RunCursor,
    ids: IdCursor,
    /// The remainder of the run that the last record batch split.
    rest: Option<Run>,
    only_failed: bool,
    /// The number of messages that are not yet in a record batch.
    remaining: u64,
}

impl ReportBatches {
    pub(super) fn new(data: Arc<ReportData>, only_failed: bool) -> Self {
        let ids = IdCursor::new(data.first_ordinal);
        let remaining = if only_failed { data.failed } else { data.delivered + data.failed };
        Self { data, runs: RunCursor::default(), ids, rest: None, only_failed, remaining }
    }

    /// Up to `at_most` messages of the next run to report. Also returns `None` if one entry has more messages than that,
    /// because the messages of an entry stay together.
    fn next_run(&mut self, at_most: u64) -> Option<Run> {
        let run = loop {
            let run = self.rest.take().or_else(|| self.runs.next(&self.data.outcomes))?;
            if !self.only_failed || matches!(run, Run::Failed { .. }) {
                break run;
            }
            self.ids.skip(&self.data.ids, run.count());
        };
        if run.count() <= at_most {
            return Some(run);
        }
        let (now, later) = match run {
            Run::Failed { failure, count } => {
                (Run::Failed { failure, count: at_most }, Run::Failed { failure, count: count - at_most })
            }
            Run::Deduplicated { count } => {
                (Run::Deduplicated { count: at_most }, Run::Deduplicated { count: count - at_most })
            }
            Run::Delivered { first, entries, rows } => {
                let fitting = at_most / rows;
                let next = EntryId { seq: first.seq.wrapping_add(fitting), ..first };
                (
                    Run::Delivered { first, entries: fitting, rows },
                    Run::Delivered { first: next, entries: entries - fitting, rows },
                )
            }
        };
        self.rest = Some(later);
        (now.count() > 0).then_some(now)
    }
}

impl Iterator for ReportBatches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        fail::point("report");
        let mut columns = Columns::new(BATCH_ROWS.min(usize::try_from(self.remaining).unwrap_or(BATCH_ROWS)));
        let mut rows = 0;
        while rows < BATCH_ROWS {
            let Some(run) = self.next_run((BATCH_ROWS - rows) as u64) else { break };
            columns.push_message_ids(&mut self.ids, &self.data.ids, run.count());
            columns.push_outcomes(run, &self.data);
            rows += run.count() as usize;
        }
        self.remaining -= rows as u64;
        (rows > 0).then(|| columns.finish())
    }
}

impl RecordBatchReader for ReportBatches {
    fn schema(&self) -> SchemaRef {
        outcome_schema()
    }
}

struct Columns {
    message_id: Texts,
    entry_id: Texts,
    kind: StringBuilder,
    code: StringBuilder,
    message: StringBuilder,
    written: StringBuilder,
    /// The number of delivered messages since the last failure. Their nulls in the failure columns are appended together.
    pending_nulls: usize,
}

impl Columns {
    fn new(rows: usize) -> Self {
        let [kind, code, message, written] = std::array::from_fn(|_| StringBuilder::new());
        let (message_id, entry_id) =
            (Texts::with_capacity(rows, USUAL_MESSAGE_ID), Texts::with_capacity(rows, USUAL_ENTRY_ID));
        Self { message_id, entry_id, kind, code, message, written, pending_nulls: 0 }
    }

    fn push_message_ids(&mut self, cursor: &mut IdCursor, ids: &MessageIds, count: u64) {
        let column = &mut self.message_id;
        let mut digits = itoa::Buffer::new();
        cursor.spans(ids, count, |span| match span {
            Span::Ordinals { first, count } => column.push_numbers("", first, count as usize),
            // Most IDs are one greater than the previous ID.
            Span::Ints(ids) => ids.chunk_by(|id, next| id.checked_add(1) == Some(*next)).for_each(|run| {
                match run.first().and_then(|first| u64::try_from(*first).ok()) {
                    Some(first) => column.push_numbers("", first, run.len()),
                    None => run.iter().for_each(|id| column.push(digits.format(*id))),
                }
            }),
            Span::One(ReportedId::Text(id)) => column.push(id),
            Span::One(ReportedId::Int(id)) => column.push(digits.format(id)),
            Span::One(ReportedId::UInt(id) | ReportedId::Ordinal(id)) => column.push(digits.format(id)),
        });
    }

    fn push_outcomes(&mut self, run: Run, data: &ReportData) {
        let count = run.count() as usize;
        match run {
            Run::Delivered { first, entries, rows } => {
                let prefix = format!("{}-", first.ms);
                if rows == 1 {
                    self.entry_id.push_numbers(&prefix, first.seq, entries as usize);
                } else {
                    for entry in 0..entries {
                        let id = format!("{prefix}{}", first.seq.wrapping_add(entry));
                        (0..rows).for_each(|_| self.entry_id.push(&id));
                    }
                }
                self.pending_nulls += count;
            }
            Run::Deduplicated { .. } => {
                self.entry_id.push_nulls(count);
                self.pending_nulls += count;
            }
            Run::Failed { failure, .. } => {
                self.append_pending_nulls();
                self.entry_id.push_nulls(count);
                let Some(failure) = data.failures.get(failure as usize) else { return };
                for _ in 0..count {
                    self.kind.append_value(failure.kind.as_str());
                    self.code.append_value(&failure.code);
                    self.message.append_value(&failure.message);
                    self.written.append_value(failure.written.as_str());
                }
            }
        }
    }

    fn append_pending_nulls(&mut self) {
        let count = std::mem::take(&mut self.pending_nulls);
        for column in [&mut self.kind, &mut self.code, &mut self.message, &mut self.written] {
            column.append_nulls(count);
        }
    }

    fn finish(mut self) -> Result<RecordBatch, ArrowError> {
        self.append_pending_nulls();
        let others = [&mut self.kind, &mut self.code, &mut self.message, &mut self.written];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.message_id.finish()?), Arc::new(self.entry_id.finish()?)];
        columns.extend(others.map(|column| Arc::new(column.finish()) as ArrayRef));
        RecordBatch::try_new(outcome_schema(), columns)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::cast::AsArray as _;
    use arrow_array::{Array as _, RecordBatch};

    use crate::command::EntryId;
    use crate::error::{Failure, Kind, Written};
    use crate::report::Recorder;

    #[test]
    fn rows_keep_the_order_of_the_messages_across_record_batches() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(100_000);
        let failure = Failure { kind: Kind::Permanent, code: "OOM".into(), message: "m".into(), written: Written::No };
        for n in 0..50_000 {
            recorder.delivered(EntryId { ms: 7, seq: n }, 1, 1);
        }
        recorder.failed(&failure, 40_000);
        for n in 0..10_000 {
            recorder.delivered(EntryId { ms: 8 + n, seq: 3 }, 1, 1);
        }
        let mut row = 0_u64;
        for batch in recorder.take(true).to_arrow(false) {
            let batch = batch.unwrap();
            let text = |column: usize| batch.column(column).as_string::<i32>();
            for at in 0..batch.num_rows() {
                assert_eq!(text(0).value(at), row.to_string());
                let failed = (50_000..90_000).contains(&row);
                assert_eq!(text(1).is_null(at), failed);
                assert_eq!(text(3).is_valid(at), failed);
                match row {
                    0..50_000 => assert_eq!(text(1).value(at), format!("7-{row}")),
                    90_000.. => assert_eq!(text(1).value(at), format!("{}-3", 8 + row - 90_000)),
                    _ => assert_eq!((text(2).value(at), text(5).value(at)), ("permanent", "no")),
                }
                row += 1;
            }
        }
        assert_eq!(row, 100_000);
    }

    #[test]
    fn messages_of_one_entry_share_its_id_and_one_record_batch() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(150_000);
        recorder.delivered(EntryId { ms: 7, seq: 0 }, 5, 30_000);
        let batches: Vec<_> = recorder.take(true).to_arrow(false).map(Result::unwrap).collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [60_000, 60_000, 30_000]);
        let ids = batches.iter().flat_map(|batch| batch.column(1).as_string::<i32>().iter().flatten());
        assert!(ids.enumerate().all(|(row, id)| id == format!("7-{}", row / 30_000)));
    }

    #[test]
    fn only_failed_keeps_the_message_ids() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(200_000);
        let failure = Failure { kind: Kind::Permanent, code: "OOM".into(), message: "m".into(), written: Written::No };
        for n in 0..100 {
            recorder.delivered(EntryId { ms: n, seq: 0 }, 1_000, 1);
            recorder.failed(&failure, 1_000);
        }
        let batches: Vec<_> = recorder.take(true).to_arrow(true).map(Result::unwrap).collect();
        let ids = batches.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter().flatten());
        let expected = (0..200_000).filter(|n| n / 1_000 % 2 == 1).map(|n: u64| n.to_string());
        assert!(ids.eq(expected));
        assert!(batches.iter().all(|batch| batch.column(1).null_count() == batch.num_rows()));
    }
}
