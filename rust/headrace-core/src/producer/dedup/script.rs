//! Exactly once by script: rows are gathered into runs, which a script appends.

use super::{PendingRun, ScriptBatch};
use crate::connection::Connection;
use crate::error::{Fault, code};

/// A run is sent once it has this many bytes.
const RUN_BYTES: usize = 64 * 1024;

/// The rows of a batch, and the run that they are gathered into.
#[derive(Debug)]
pub(crate) struct ScriptDedup {
    pub(crate) batch: ScriptBatch,
    pub(crate) pending: PendingRun,
}

impl ScriptDedup {
    pub(super) fn new(batch: ScriptBatch) -> Self {
        Self { batch, pending: PendingRun::default() }
    }

    /// The run that a row of this stream key joins: the pending one, or else a new one. A fault if there is no room for
    /// another stream. `is_blocked`: whether a row of the batch was not written.
    pub(crate) fn run_of(
        &mut self,
        stream_key: &[u8],
        connection: &mut Connection,
        is_blocked: bool,
    ) -> Result<&mut PendingRun, Fault> {
        if self.pending.rows == 0 || self.pending.stream_key != stream_key {
            self.close_run(connection);
            if self.batch.is_full() && connection.in_flight.is_empty() && !is_blocked {
                self.batch.skip_failed();
            }
            if self.batch.is_full() {
                return Err(Fault::new(code::BLOCKED, "rows of too many streams wait for one that was not written"));
            }
            self.pending.stream_key = stream_key.to_vec();
        }
        Ok(&mut self.pending)
    }

    /// Encodes the pending run, if there is one.
    pub(crate) fn close_run(&mut self, connection: &mut Connection) {
        let Self { batch, pending } = self;
        if pending.rows > 0 {
            connection.push_script(pending.number, pending.rows as u32, |out| batch.write(pending, out));
            pending.clear();
        }
    }

    /// Encodes the pending run, if it has as many rows or bytes as a run may have.
    pub(crate) fn close_full_run(&mut self, connection: &mut Connection) {
        if self.pending.rows >= self.batch.max_rows || self.pending.arguments.len() >= RUN_BYTES {
            self.close_run(connection);
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
