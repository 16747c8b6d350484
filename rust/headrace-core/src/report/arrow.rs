//! A report as Arrow: one row per message.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::StringBuilder;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::ids::{IdCursor, MessageId};
use super::outcomes::{Run, RunCursor};
use super::recorder::ReportData;

/// Rows of one record batch.
const BATCH_ROWS: usize = 64 * 1024;

/// The columns of a report: `message_id` and, where the message was delivered, `entry_id`; else `kind`, `code`, `message`
/// and `written`. All are utf8.
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

/// Reads a report as record batches of at most 65,536 rows.
#[derive(Debug)]
pub struct ReportBatches {
    data: Arc<ReportData>,
    runs: RunCursor,
    ids: IdCursor,
    /// What is left of the run that the last record batch cut.
    rest: Option<Run>,
}

impl ReportBatches {
    pub(super) fn new(data: Arc<ReportData>) -> Self {
        let ids = IdCursor::new(data.first_ordinal);
        Self { data, runs: RunCursor::default(), ids, rest: None }
    }

    fn next_run(&mut self, at_most: u64) -> Option<Run> {
        let run = self.rest.take().or_else(|| self.runs.next(&self.data.outcomes))?;
        let more = run.count().saturating_sub(at_most);
        if more == 0 {
            return Some(run);
        }
        let (now, later) = match run {
            Run::Failed { failure, .. } => {
                (Run::Failed { failure, count: at_most }, Run::Failed { failure, count: more })
            }
            Run::Delivered { first, .. } => {
                let mut next = first;
                next.seq += at_most;
                (Run::Delivered { first, count: at_most }, Run::Delivered { first: next, count: more })
            }
        };
        self.rest = Some(later);
        Some(now)
    }
}

impl Iterator for ReportBatches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut columns = Columns::default();
        let mut rows = 0;
        while rows < BATCH_ROWS {
            let Some(run) = self.next_run((BATCH_ROWS - rows) as u64) else { break };
            let data = &self.data;
            for _ in 0..run.count() {
                columns.push_message_id(self.ids.next(&data.ids));
            }
            columns.push_outcomes(run, data);
            rows += run.count() as usize;
        }
        (rows > 0).then(|| columns.finish())
    }
}

impl RecordBatchReader for ReportBatches {
    fn schema(&self) -> SchemaRef {
        outcome_schema()
    }
}

#[derive(Default)]
struct Columns {
    message_id: StringBuilder,
    entry_id: StringBuilder,
    kind: StringBuilder,
    code: StringBuilder,
    message: StringBuilder,
    written: StringBuilder,
}

impl Columns {
    fn push_message_id(&mut self, id: MessageId<'_>) {
        let mut digits = itoa::Buffer::new();
        self.message_id.append_value(match id {
            MessageId::Ordinal(id) | MessageId::UInt(id) => digits.format(id),
            MessageId::Int(id) => digits.format(id),
            MessageId::Text(id) => id,
        });
    }

    fn push_outcomes(&mut self, run: Run, data: &ReportData) {
        let count = run.count() as usize;
        match run {
            Run::Delivered { first, .. } => {
                let mut text = format!("{}-", first.ms);
                let prefix = text.len();
                let mut digits = itoa::Buffer::new();
                for n in 0..run.count() {
                    text.truncate(prefix);
                    text.push_str(digits.format(first.seq + n));
                    self.entry_id.append_value(&text);
                }
                for column in [&mut self.kind, &mut self.code, &mut self.message, &mut self.written] {
                    column.append_nulls(count);
                }
            }
            Run::Failed { failure, .. } => {
                self.entry_id.append_nulls(count);
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

    fn finish(mut self) -> Result<RecordBatch, ArrowError> {
        let columns = [
            &mut self.message_id,
            &mut self.entry_id,
            &mut self.kind,
            &mut self.code,
            &mut self.message,
            &mut self.written,
        ];
        RecordBatch::try_new(
            outcome_schema(),
            columns.into_iter().map(|column| Arc::new(column.finish()) as _).collect(),
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;

    use crate::error::{Failure, Kind, Written};
    use crate::reply::EntryId;
    use crate::report::Recorder;

    #[test]
    fn every_message_has_its_row_in_order_across_record_batches() {
        let mut recorder = Recorder::default();
        recorder.push_ordinals(100_000);
        let failure = Failure { kind: Kind::Permanent, code: "OOM".into(), message: "m".into(), written: Written::No };
        for n in 0..50_000 {
            recorder.delivered(EntryId { ms: 7, seq: n });
        }
        recorder.failed(&failure, 40_000);
        for n in 0..10_000 {
            recorder.delivered(EntryId { ms: 8 + n, seq: 3 });
        }
        let mut row = 0_u64;
        for batch in recorder.take(true).to_arrow() {
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
}
