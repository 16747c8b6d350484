//! Exactly once: rows are gathered into runs, which a script appends.

use super::Pipeline;
use crate::error::{Fault, code};
use crate::exactly_once::{MAX_ARGUMENTS, OpenRun, Runs, with_script};
use crate::fail;
use crate::rows::Rows;
use crate::window::Owner;

/// A run is sent when it has this many bytes.
const RUN_BYTES: usize = 64 * 1024;

/// The batch that is under way.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) runs: Runs,
    open: OpenRun,
    /// Whether this connection's server was sent the script.
    pub(super) is_known: bool,
}

impl Script {
    pub(super) fn new(runs: Runs) -> Self {
        Self { runs, open: OpenRun::default(), is_known: false }
    }

    /// Whether rows wait for their run to be complete.
    pub(super) fn is_gathering(&self) -> bool {
        self.open.rows > 0
    }

    /// Takes back the row that a panic left half-encoded. `passed`: how many rows of the batch are before it.
    pub(super) fn take_back(&mut self, passed: u64) {
        self.open.take_back();
        self.runs.rewind(passed.saturating_sub(self.open.rows));
    }

    /// All rows of the batch so far are given up: none of these, and none behind them, may be written.
    pub(super) fn abandon(&mut self, passed: u64) {
        self.open.clear();
        self.runs.rewind(0);
        self.runs.lose(passed);
        self.is_known = false;
    }

    /// In a forked child: the batch is the parent's.
    pub(super) fn forget(&mut self) {
        self.runs.begin(None, 0);
        self.open.clear();
        self.is_known = false;
    }
}

impl Pipeline {
    /// Encodes the run of the rows that were gathered.
    pub(super) fn close_run(&mut self) {
        let Some(Script { runs, open, is_known }) = &mut self.script else { return };
        if open.rows == 0 {
            return;
        }
        let out = self.outbox.bytes();
        let before = out.len();
        runs.write(open, out);
        if !std::mem::replace(is_known, true)
            && let Some(command) = with_script(&out[before..])
        {
            out.truncate(before);
            out.extend_from_slice(&command);
        }
        let length = out.len() - before;
        self.ledger.window.push(length, open.rows as u32, Owner::Report);
        open.clear();
    }

    /// Adds a message of one payload to the run.
    pub(super) fn gather_payload(&mut self, payload: &[u8]) {
        if !self.enter_stream(None) {
            return;
        }
        let Some(script) = &mut self.script else { return };
        let out = &mut script.open.arguments;
        script.open.argument_count += self.template.write_payload_arguments(out, payload);
        fail::point("encode");
        script.open.add_row();
    }

    /// Adds a row to the run, or notes why it cannot be sent. [A full run](Self::close_full_run) is still to be closed.
    #[inline(never)]
    pub(super) fn gather_row(&mut self, rows: &Rows<'_>, row: usize) {
        let fields = match rows.field_count(row) {
            Ok(fields) if 2 * fields <= MAX_ARGUMENTS => fields,
            Ok(fields) => {
                let most = MAX_ARGUMENTS / 2;
                let message = format!("exactly_once takes rows of at most {most} fields, this one has {fields}");
                return self.refuse_row(&Fault::new(code::TOO_LARGE, message));
            }
            Err(fault) => return self.refuse_row(&fault),
        };
        let (stream_key, entry_id) = (rows.stream_key(row), rows.entry_id(row));
        if !self.enter_stream(stream_key) {
            return;
        }
        let Some(script) = &mut self.script else { return };
        let out = &mut script.open.arguments;
        script.open.argument_count += self.template.write_arguments(out, fields, stream_key, entry_id);
        rows.write_fields(row, out, &mut self.scratch);
        fail::point("encode");
        self.template.write_end(out);
        script.open.add_row();
    }

    /// A row that cannot be sent: it counts as passed.
    fn refuse_row(&mut self, fault: &Fault) {
        self.close_run();
        if let Some(script) = &mut self.script {
            script.runs.pass(1);
        }
        self.push_settled_fault(fault, 1);
    }

    /// Makes the open run one of this stream key; `None`: the endpoint's. Without room for another stream the row fails.
    fn enter_stream(&mut self, stream_key: Option<&[u8]>) -> bool {
        let stream_key = stream_key.unwrap_or_else(|| self.endpoint.stream_key());
        match &self.script {
            Some(script) if script.open.rows > 0 && script.open.stream_key == stream_key => return true,
            _ => {}
        }
        let stream_key = stream_key.to_vec();
        self.close_run();
        let is_idle = self.ledger.window.is_empty();
        let Some(script) = &mut self.script else { return false };
        if script.runs.is_full() {
            if is_idle && !self.ledger.is_blocked() {
                script.runs.skip_failed();
            } else {
                let fault = Fault::new(code::BLOCKED, "rows of too many streams wait for one that was not written");
                self.push_fault(&fault, 1);
                return false;
            }
        }
        if let Some(script) = &mut self.script {
            script.open.stream_key = stream_key;
        }
        true
    }

    /// Encodes the run if it has as many rows or bytes as a run may have.
    pub(crate) fn close_full_run(&mut self) {
        let Some(script) = &self.script else { return };
        if script.open.rows >= script.runs.max_rows || script.open.arguments.len() >= RUN_BYTES {
            self.close_run();
        }
    }

    /// Messages fail that could have been sent: what comes behind them is refused, until the batch begins anew.
    pub(super) fn lose_rows(&mut self, count: u64) {
        self.close_run();
        if let Some(script) = &mut self.script {
            script.runs.lose(count);
            self.ledger.block();
        }
        self.pass_names(count);
    }

    /// Another batch begins; nothing is outstanding.
    pub(crate) fn begin(&mut self, token: Option<String>, version: u64) {
        self.ledger.begin(token.is_some());
        if let Some(script) = &mut self.script {
            script.runs.begin(token, version);
        } else if let Some(names) = &mut self.names {
            names.begin(token, version);
        }
    }

    /// All that was told counts as passed.
    pub(crate) fn skip_failed(&mut self) {
        if let Some(script) = &mut self.script {
            script.runs.skip_failed();
            self.ledger.unblock();
        }
    }
}
