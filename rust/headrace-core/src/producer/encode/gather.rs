//! Gathers rows into the runs of a script.

use super::super::dedup::{OpenRun, ScriptDedup};
use super::super::sender::Sender;
use super::{Encoder, Refused};
use crate::command::script::{MAX_ARGUMENTS, NameList, RowForm};
use crate::command::xadd::XaddEncoder;
use crate::error::{Fault, code};
use crate::fail;
use crate::resp::write_bulk;
use crate::rows::Rows;

/// How many rows have their fields determined together.
const MARKED: usize = 256;

impl Encoder {
    #[cold] // for most dispatchers
    pub(crate) fn gather_payload(
        &mut self,
        script: &mut ScriptDedup,
        stream_key: Option<&[u8]>,
        payload: &[u8],
        to: &mut Sender,
    ) -> Result<(), Refused> {
        script.set_payload_form();
        self.gather(script, stream_key, to, |_, _, run, _| {
            write_bulk(&mut run.arguments, payload);
            1
        })
    }

    /// Adds a row to its open run, and also the rows after it that join the same run. `row` becomes the first row that is left;
    /// if this fails, the row that is refused.
    #[inline(never)]
    pub(crate) fn gather_rows(
        &mut self,
        script: &mut ScriptDedup,
        rows: &Rows<'_>,
        row: &mut usize,
        end: usize,
        to: &mut Sender,
    ) -> Result<(), Refused> {
        self.gather_row(script, rows, *row, to)?;
        *row += 1;
        if !rows.is_routed() && !script.has_whole_form() {
            self.gather_more(script, rows, row, end, to);
        }
        Ok(())
    }

    fn gather_row(
        &mut self,
        script: &mut ScriptDedup,
        rows: &Rows<'_>,
        row: usize,
        to: &mut Sender,
    ) -> Result<(), Refused> {
        let fields = match rows.field_count(row) {
            Ok(fields) if 2 * fields <= MAX_ARGUMENTS => fields,
            Ok(fields) => {
                let most = MAX_ARGUMENTS / 2;
                let message = format!("exactly_once takes rows of at most {most} fields, this one has {fields}");
                return self.pass_row(script, rows, row, to, Fault::new(code::TOO_LARGE, message));
            }
            Err(fault) => return self.pass_row(script, rows, row, to, fault),
        };
        self.gather(script, rows.stream_key(row), to, |encoder, trims, run, scratch| match &*run.form {
            RowForm::Whole => {
                let count = encoder.write_arguments(&mut run.arguments, trims, fields, rows.entry_id(row));
                rows.write_fields(row, &mut run.arguments, scratch);
                encoder.write_end(&mut run.arguments);
                count
            }
            RowForm::One(_) | RowForm::All(_) | RowForm::Sparse(_) | RowForm::Gathered => {
                write_shared(rows, row, fields, run, scratch)
            }
        })
    }

    /// Adds rows to the run of the row before them, which has the same stream key, until it is full: the run is looked up once
    /// for all of them. Special rows are left to [`gather_row`](Self::gather_row).
    fn gather_more(&mut self, script: &mut ScriptDedup, rows: &Rows<'_>, row: &mut usize, end: usize, to: &mut Sender) {
        let has_payload_alone = rows.has_payload_alone();
        let mut marks = std::mem::take(&mut script.marks);
        let mut marked = *row;
        script.fill(|run| {
            if *row >= end {
                return false;
            }
            if matches!(*run.form, RowForm::Sparse(_)) && *row >= marked + marks.len() {
                marked = *row;
                rows.field_marks(*row..end.min(*row + MARKED), &mut marks);
            }
            let payload = if has_payload_alone { rows.payload_alone(*row) } else { None };
            run.argument_count += if let Some(payload) = payload {
                write_bulk(&mut run.arguments, payload);
                1
            } else if let Some(mark) = marks.get(*row - marked)
                && *mark != 0
            {
                write_marked(rows, *row, *mark, run, &mut self.scratch);
                1 + mark.count_ones() as usize
            } else if let Ok(fields) = rows.field_count(*row)
                && 2 * fields <= MAX_ARGUMENTS
            {
                write_shared(rows, *row, fields, run, &mut self.scratch)
            } else {
                return false;
            };
            if run.ends_before_large() {
                return false;
            }
            fail::point("encode");
            run.trims |= self.xadd.is_trim_due(None);
            run.add_row(to.outcomes.number(1));
            *row += 1;
            true
        });
        marks.clear();
        script.marks = marks;
    }

    /// Adds a row of this stream key (`None`: the endpoint's) to its open run. `write` appends its arguments and returns their
    /// number; it receives whether the row must trim.
    fn gather(
        &mut self,
        script: &mut ScriptDedup,
        stream_key: Option<&[u8]>,
        to: &mut Sender,
        write: impl Fn(&XaddEncoder, bool, &mut OpenRun, &mut Vec<u8>) -> usize,
    ) -> Result<(), Refused> {
        let Self { xadd, scratch, .. } = self;
        let trims = xadd.is_trim_due(stream_key);
        loop {
            let mut sink = to.sink(xadd);
            let run = script.run_of(stream_key.unwrap_or(sink.own_key), &mut sink).map_err(Refused::Now)?;
            run.argument_count += write(xadd, trims, run, scratch);
            if !script.close_before_large(&mut sink) {
                break;
            }
        }
        fail::point("encode");
        script.add_row(to.outcomes.number(1), trims);
        Ok(())
    }

    /// Counts a row as passed because it can never be sent.
    #[cold]
    fn pass_row(
        &self,
        script: &mut ScriptDedup,
        rows: &Rows<'_>,
        row: usize,
        to: &mut Sender,
        fault: Fault,
    ) -> Result<(), Refused> {
        let mut sink = to.sink(&self.xadd);
        let stream_key = rows.stream_key(row).unwrap_or(sink.own_key);
        script.pass_row((!stream_key.is_empty()).then_some(stream_key), &mut sink);
        Err(Refused::Ever(fault))
    }
}

/// Appends the arguments of a row in a form other than [`RowForm::Whole`], and returns their number.
#[inline]
fn write_shared(rows: &Rows<'_>, row: usize, fields: usize, run: &mut OpenRun, scratch: &mut Vec<u8>) -> usize {
    match &*run.form {
        RowForm::Sparse(_) => {
            write_marked(rows, row, rows.field_mark(row), run, scratch);
            1 + fields
        }
        RowForm::Gathered => {
            let number = run.number_of_names(fields, |out| rows.write_names(row, out));
            write_number(number, &mut run.arguments);
            rows.write_values(row, &mut run.arguments);
            1 + fields
        }
        RowForm::Whole | RowForm::One(_) | RowForm::All(_) => {
            rows.write_fields(row, &mut run.arguments, scratch);
            fields
        }
    }
}

/// Appends the number of the set of a row's fields, and their values.
#[inline]
fn write_marked(rows: &Rows<'_>, row: usize, mark: u64, run: &mut OpenRun, scratch: &mut Vec<u8>) {
    let number = run.number_of_set(rows.most_fields(), mark, |set| rows.field_set(row, set));
    write_number(number, &mut run.arguments);
    rows.write_fields(row, &mut run.arguments, scratch);
}

fn write_number(number: usize, out: &mut Vec<u8>) {
    write_bulk(out, itoa::Buffer::new().format(number).as_bytes());
}

/// The form of the rows. The names that they share are moved out of them.
pub(crate) fn form_of(rows: &mut Rows<'_>) -> RowForm {
    if rows.has_entry_ids() || rows.is_whole() {
        return RowForm::Whole;
    }
    if rows.has_own_names() {
        return RowForm::Gathered;
    }
    let (has_fields, is_sparse) = (rows.has_fields(), rows.is_sparse());
    let (bulks, count) = rows.take_names();
    match (has_fields, is_sparse) {
        (false, _) => RowForm::One(bulks.into()),
        (true, false) => RowForm::All(NameList { bulks, count }),
        (true, true) => RowForm::Sparse(NameList { bulks, count }),
    }
}
