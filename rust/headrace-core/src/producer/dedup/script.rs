//! Exactly once by script: rows are gathered into runs, which a script appends.

use std::sync::Arc;

use super::{PendingRun, ScriptBatch};
use crate::command::script::RowForm;
use crate::command::xadd::XaddEncoder;
use crate::connection::Connection;
use crate::error::{Fault, code};

/// A run is sent once it has this many bytes. A row that has as many is a run of its own: if it is larger than the server
/// takes, no other row fails with it.
const RUN_BYTES: usize = 64 * 1024;
/// A run is sent once it has as many sets of fields: the script makes a table for each.
const MAX_SETS: usize = 64;

/// The rows of a batch, and the run that they are gathered into.
#[derive(Debug)]
pub(crate) struct ScriptDedup {
    pub(crate) batch: ScriptBatch,
    pub(crate) pending: PendingRun,
    /// The form of the rows that come next.
    form: Arc<RowForm>,
    /// That of messages of one payload.
    payload_form: Arc<RowForm>,
}

impl ScriptDedup {
    /// `payload_name`: of a payload's field, as a bulk string.
    pub(super) fn new(batch: ScriptBatch, payload_name: Vec<u8>) -> Self {
        let payload_form = Arc::new(RowForm::One(payload_name.into()));
        Self { batch, pending: PendingRun::default(), form: Arc::clone(&payload_form), payload_form }
    }

    /// The messages that come next have one payload.
    #[inline]
    pub(crate) fn set_payload_form(&mut self) {
        if !Arc::ptr_eq(&self.form, &self.payload_form) {
            self.form = Arc::clone(&self.payload_form);
        }
    }

    /// The rows that come next have this form.
    pub(crate) fn set_form(&mut self, form: RowForm) {
        if form == *self.payload_form {
            self.set_payload_form();
        } else if form != *self.form {
            self.form = Arc::new(form);
        }
    }

    /// The run that a row of this stream key joins: the pending one, or else a new one. A fault if there is no room for
    /// another stream. `is_blocked`: whether a row of the batch was not written.
    pub(crate) fn run_of(
        &mut self,
        stream_key: &[u8],
        encoder: &XaddEncoder,
        connection: &mut Connection,
        is_blocked: bool,
    ) -> Result<&mut PendingRun, Fault> {
        let PendingRun { rows, form, .. } = &self.pending;
        if *rows == 0 || !Arc::ptr_eq(form, &self.form) || self.pending.stream_key != stream_key {
            self.close_run(encoder, connection);
            if self.batch.is_full() && connection.in_flight.is_empty() && !is_blocked {
                self.batch.skip_failed();
            }
            if self.batch.is_full() {
                return Err(Fault::new(code::BLOCKED, "rows of too many streams wait for one that was not written"));
            }
            self.pending.stream_key = stream_key.to_vec();
            self.pending.form = Arc::clone(&self.form);
        }
        Ok(&mut self.pending)
    }

    /// If the row whose arguments were added last has to be a run of its own, takes them back and encodes the run before it.
    /// Returns whether it did.
    pub(crate) fn close_before_large(&mut self, encoder: &XaddEncoder, connection: &mut Connection) -> bool {
        let PendingRun { rows, arguments, whole, .. } = &self.pending;
        let is_large = *rows > 0 && arguments.len() - whole.0 >= RUN_BYTES;
        if is_large {
            self.pending.take_back();
            self.close_run(encoder, connection);
        }
        is_large
    }

    /// Encodes the pending run, if there is one.
    pub(crate) fn close_run(&mut self, encoder: &XaddEncoder, connection: &mut Connection) {
        let Self { batch, pending, .. } = self;
        if pending.rows > 0 {
            connection.push_script(pending.number, pending.rows as u32, |out| batch.write(pending, encoder, out));
            pending.clear();
        }
    }

    /// Encodes the pending run, if it has as many rows, bytes or sets of fields as a run may have.
    pub(crate) fn close_full_run(&mut self, encoder: &XaddEncoder, connection: &mut Connection) {
        let PendingRun { rows, arguments, sets, .. } = &self.pending;
        if *rows >= self.batch.max_rows || arguments.len() >= RUN_BYTES || sets.len() >= MAX_SETS {
            self.close_run(encoder, connection);
        }
    }

    pub(super) fn begin(&mut self, token: String, version: u64) {
        self.batch.begin(token, version);
        self.pending.clear();
    }

    /// Removes the row that a panic left half-encoded. `passed`: how many rows of the batch are before it.
    pub(super) fn take_back(&mut self, passed: u64) {
        self.pending.take_back();
        self.batch.rewind(passed.saturating_sub(self.pending.rows));
    }

    /// All rows of the batch so far are given up: neither they nor rows behind them may be written.
    pub(super) fn abandon(&mut self, passed: u64) {
        self.pending.clear();
        self.batch.rewind(0);
        self.batch.lose(passed);
    }
}
