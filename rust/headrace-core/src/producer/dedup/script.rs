//! Exactly once by script: rows are gathered into runs, which a script appends.

use std::sync::Arc;

use super::super::lanes::Lanes;
use super::open_runs::{OpenRuns, Place};
use super::script_batch::Stream;
use super::{OpenRun, ScriptBatch};
use crate::command::script::RowForm;
use crate::command::xadd::XaddEncoder;
use crate::counters::Counters;
use crate::error::{Fault, code};

/// The rows of a batch, and the runs that they are gathered into: one for each stream.
#[derive(Debug)]
pub(crate) struct ScriptDedup {
    pub(crate) batch: ScriptBatch,
    runs: OpenRuns,
    /// The maximum size of all open runs together, in bytes.
    max_bytes: usize,
    /// The run of the last row.
    current: Option<Place>,
    /// The form of the next rows.
    form: Arc<RowForm>,
    /// The form of messages of one payload.
    payload_form: Arc<RowForm>,
    /// The marks of the fields of the next rows, while rows are gathered.
    pub(crate) marks: Vec<u64>,
}

/// Where runs go.
pub(crate) struct Sink<'a> {
    pub(crate) encoder: &'a XaddEncoder,
    pub(crate) lanes: &'a mut Lanes,
    pub(crate) counters: &'a Counters,
    /// The key of the endpoint's stream.
    pub(crate) own_key: &'a [u8],
}

impl ScriptDedup {
    /// `payload_name`: the name of a payload's field, as a bulk string.
    pub(super) fn new(batch: ScriptBatch, max_bytes: u64, payload_name: Vec<u8>) -> Self {
        let payload_form = Arc::new(RowForm::One(payload_name.into()));
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let (runs, form) = (OpenRuns::default(), Arc::clone(&payload_form));
        Self { batch, runs, max_bytes, current: None, form, payload_form, marks: Vec::new() }
    }

    /// How many runs are open.
    pub(crate) fn open_runs(&self) -> usize {
        self.runs.len()
    }

    /// Sets the form of the next messages: one payload each.
    #[inline]
    pub(crate) fn set_payload_form(&mut self) {
        if !Arc::ptr_eq(&self.form, &self.payload_form) {
            self.form = Arc::clone(&self.payload_form);
        }
    }

    /// Sets the form of the next rows.
    pub(crate) fn set_form(&mut self, form: RowForm) {
        if form == *self.payload_form {
            self.set_payload_form();
        } else if form != *self.form {
            self.form = Arc::new(form);
        }
    }

    /// Whether the next rows share nothing.
    pub(crate) fn has_whole_form(&self) -> bool {
        matches!(*self.form, RowForm::Whole)
    }

    /// The open run that a row of this stream key joins, or a new one. A fault if the batch has too many streams.
    pub(crate) fn run_of(&mut self, stream_key: &[u8], sink: &mut Sink<'_>) -> Result<&mut OpenRun, Fault> {
        let joins = |run: &OpenRun| Arc::ptr_eq(&run.form, &self.form) && run.stream_key == stream_key;
        let place = match self.current {
            Some(place) if self.runs.get(place).is_some_and(|run| joins(run)) => place,
            Some(_) | None => self.other_run_of(stream_key, sink)?,
        };
        self.current = Some(place);
        self.runs.get(place).ok_or_else(|| Fault::new(code::INTERNAL, "a run is not open"))
    }

    fn other_run_of(&mut self, stream_key: &[u8], sink: &mut Sink<'_>) -> Result<Place, Fault> {
        if self.batch.would_be_second(stream_key) {
            self.close_all(sink);
        }
        if let Some(place) = self.batch.stream(stream_key)?.run {
            if self.runs.get(place).is_some_and(|run| Arc::ptr_eq(&run.form, &self.form)) {
                return Ok(place);
            }
            self.close(place, sink);
        }
        let stream = self.batch.stream(stream_key)?;
        let place = self.runs.open(stream_key, stream.next, &self.form);
        stream.run = Some(place);
        Ok(place)
    }

    /// Completes the row that was added last, as the message with this number. `trims`: whether it must trim.
    pub(crate) fn add_row(&mut self, message: u64, trims: bool) {
        if let Some(place) = self.current
            && let Some(run) = self.runs.get(place)
        {
            run.trims |= trims;
            run.add_row(message);
            self.runs.count(place);
        }
    }

    /// Adds rows to the run of the last row until it is [full](Self::close_full). `add` adds one row to the run, and returns
    /// whether it did.
    #[inline]
    pub(crate) fn fill(&mut self, mut add: impl FnMut(&mut OpenRun) -> bool) {
        let Some(place) = self.current else { return };
        let left = self.max_bytes.saturating_sub(self.runs.bytes());
        let Some(run) = self.runs.get(place) else { return };
        let most = run.bytes().saturating_add(left);
        while !run.is_full(self.batch.max_rows) && run.bytes() < most && add(run) {}
        self.runs.count(place);
    }

    /// If the row whose arguments were added last must be a run of its own, takes them back and encodes the run before it.
    /// Returns whether it did.
    pub(crate) fn close_before_large(&mut self, sink: &mut Sink<'_>) -> bool {
        let Some(place) = self.current else { return false };
        let Some(run) = self.runs.get(place) else { return false };
        let is_large = run.ends_before_large();
        if is_large {
            self.close(place, sink);
        }
        is_large
    }

    fn close(&mut self, place: Place, sink: &mut Sink<'_>) {
        let Some(run) = self.runs.close(place) else { return };
        if run.rows > 0 {
            let Self { batch, .. } = self;
            let Sink { encoder, lanes, counters, .. } = sink;
            counters.script_calls.add(1);
            match &*run.form {
                RowForm::Whole => counters.script_rows_whole.add(run.rows),
                RowForm::One(_) | RowForm::All(_) | RowForm::Sparse(_) | RowForm::Gathered => {
                    counters.script_rows_shared.add(run.rows);
                }
            }
            let (route, at) = lanes.of_key(&run.stream_key);
            let write = |out: &mut Vec<u8>| batch.write(&run, encoder, out);
            lanes.get_mut(at).connection.push_script(route, &run.messages, run.rows as u32, write);
        } else {
            self.batch.forget_run(&run.stream_key);
        }
        self.runs.recycle(run);
    }

    /// Encodes every open run, in the order in which they were opened.
    pub(crate) fn close_all(&mut self, sink: &mut Sink<'_>) {
        if !self.runs.is_empty() {
            for place in self.runs.places() {
                self.close(place, sink);
            }
        }
    }

    /// Encodes the run of the last row if it has as many rows, bytes or sets of fields as a run may have, and the largest ones as
    /// long as all of them together take too much.
    pub(crate) fn close_full(&mut self, sink: &mut Sink<'_>) {
        if let Some(place) = self.current
            && let Some(run) = self.runs.get(place)
            && run.is_full(self.batch.max_rows)
        {
            if run.has_many_sets && run.names.differ(run.rows) {
                // The next record batch tries again to share names.
                self.set_form(RowForm::Whole);
            }
            self.close(place, sink);
        }
        while self.runs.bytes() >= self.max_bytes
            && let Some(place) = self.runs.largest()
        {
            self.close(place, sink);
        }
    }

    /// Counts a row of this stream key as passed because it can never be sent: rows after it need not wait. `None`: its key is
    /// not valid.
    pub(crate) fn pass_row(&mut self, stream_key: Option<&[u8]>, sink: &mut Sink<'_>) {
        match stream_key {
            None => {
                // The row counts with the stream of the row before it.
                self.close_all(sink);
                self.batch.pass_unplaced();
            }
            Some(stream_key) => self.skip(stream_key, sink, Stream::pass),
        }
    }

    /// Counts a row of this stream key as lost: it was not written, so no row after it may be. `None`: its key is not valid.
    pub(crate) fn lose_row(&mut self, stream_key: Option<&[u8]>, sink: &mut Sink<'_>) {
        match stream_key {
            None => self.pass_row(None, sink),
            Some(stream_key) => self.skip(stream_key, sink, Stream::lose),
        }
    }

    fn skip(&mut self, stream_key: &[u8], sink: &mut Sink<'_>, note: impl FnOnce(&mut Stream)) {
        if self.batch.would_be_second(stream_key) {
            self.close_all(sink);
        }
        // No row of a stream beyond the limit is ever written.
        if let Ok(Some(place)) = self.batch.stream(stream_key).map(|stream| stream.run) {
            self.close(place, sink);
        }
        if let Ok(stream) = self.batch.stream(stream_key) {
            note(stream);
        }
    }

    pub(super) fn begin(&mut self, token: String, version: u64) {
        self.batch.begin(token, version);
        self.forget_runs();
    }

    fn forget_runs(&mut self) {
        self.runs.clear();
        self.current = None;
    }

    /// Removes the row that a panic left half-encoded.
    pub(super) fn take_back(&mut self) {
        if let Some(run) = self.current.and_then(|place| self.runs.get(place)) {
            run.take_back();
        }
    }

    /// Gives up all `passed` rows of the batch so far after a panic: neither they nor rows after them may be written.
    pub(super) fn abandon(&mut self, passed: u64) {
        for place in self.runs.places() {
            if let Some(run) = self.runs.get(place) {
                self.batch.pass_run(&run.stream_key, run.first + run.rows);
            }
        }
        self.forget_runs();
        self.batch.abandon(passed);
    }
}
