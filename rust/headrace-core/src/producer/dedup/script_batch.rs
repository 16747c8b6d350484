//! The rows of a batch under a token: which number comes next, and how far each stream has come.

use std::collections::HashMap;
use std::sync::Arc;

use crate::command::script::{RowForm, ScriptRun, marker_key};
use crate::command::xadd::XaddEncoder;

/// Streams of one batch that are followed at the same time.
const MAX_STREAMS: usize = 65_536;

/// The numbers of the rows of a batch, and the markers of its streams.
#[derive(Debug)]
pub(crate) struct ScriptBatch {
    token: String,
    version: u64,
    /// Seconds that a marker lives.
    ttl: u64,
    /// Rows of a run at most.
    pub(crate) max_rows: u64,
    /// Whether a run that was there before is to be a write all the same.
    touches: bool,
    /// The number of the next row.
    next: u64,
    /// For each stream key the number behind its last row: where its marker will be once that row is written.
    streams: HashMap<Box<[u8]>, Stream>,
    /// Where every marker must be at least: rows before it were not sent.
    floor: u64,
}

#[derive(Debug)]
struct Stream {
    marker_key: Box<[u8]>,
    from: u64,
}

/// Rows that are encoded and whose run is not complete.
#[derive(Debug, Default)]
pub(crate) struct PendingRun {
    pub(crate) stream_key: Vec<u8>,
    /// The number of its first row among all messages.
    pub(crate) number: u64,
    pub(crate) rows: u64,
    pub(crate) form: Arc<RowForm>,
    /// Whether trimming is due with one of its rows.
    pub(crate) trims: bool,
    /// The sets of fields of its rows, for [`RowForm::Some`].
    pub(crate) sets: Vec<Box<[u8]>>,
    /// That of the last row.
    pub(crate) set: Vec<u8>,
    pub(crate) arguments: Vec<u8>,
    pub(crate) argument_count: usize,
    /// Bytes and number of the arguments of whole rows.
    pub(crate) whole: (usize, usize),
}

impl PendingRun {
    /// What its memory is kept at: one large run must not hold it for ever.
    const KEPT: usize = 256 * 1024;

    /// The arguments of the row with this number are complete.
    pub(crate) fn add_row(&mut self, number: u64) {
        if self.rows == 0 {
            self.number = number;
        }
        self.rows += 1;
        self.whole = (self.arguments.len(), self.argument_count);
    }

    /// The number of a set of fields, from 1 on. `write` writes as many characters as there are fields, `1` for one that is
    /// there.
    pub(crate) fn number_of_set(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        write(&mut self.set);
        let at = self.sets.iter().position(|known| **known == *self.set).unwrap_or_else(|| {
            self.sets.push(self.set.as_slice().into());
            self.sets.len() - 1
        });
        at + 1
    }

    /// Takes back the arguments of a row that is not complete.
    pub(crate) fn take_back(&mut self) {
        let (bytes, count) = self.whole;
        self.arguments.truncate(bytes);
        self.argument_count = count;
    }

    pub(crate) fn clear(&mut self) {
        (self.rows, self.argument_count, self.whole, self.trims) = (0, 0, (0, 0), false);
        self.sets.clear();
        self.arguments.clear();
        self.arguments.shrink_to(Self::KEPT);
    }
}

impl ScriptBatch {
    pub(crate) fn new(ttl: u64, max_rows: u64, touches: bool) -> Self {
        Self { token: String::new(), version: 0, ttl, max_rows, touches, next: 0, streams: HashMap::new(), floor: 0 }
    }

    /// Where the marker of the batch is for a stream.
    pub(crate) fn marker_key(&self, stream_key: &[u8]) -> Vec<u8> {
        marker_key(stream_key, &self.token)
    }

    /// Another batch begins.
    pub(crate) fn begin(&mut self, token: String, version: u64) {
        (self.token, self.version, self.next) = (token, version, 0);
        self.skip_failed();
    }

    /// Reported rows count as passed, whether they were written or not: markers may be anywhere before the next row.
    pub(crate) fn skip_failed(&mut self) {
        self.streams.clear();
        self.floor = 0;
    }

    /// `rows` rows were to be written and are not: none behind them may be.
    pub(crate) fn lose(&mut self, rows: u64) {
        self.next += rows;
        self.floor = self.next;
    }

    /// `rows` rows are passed without being written.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.next += rows;
    }

    /// The next row has this number.
    pub(crate) fn rewind(&mut self, row: u64) {
        self.next = row;
    }

    /// Whether one more stream can be followed.
    pub(crate) fn is_full(&self) -> bool {
        self.streams.len() >= MAX_STREAMS
    }

    /// Appends the command of a run; its rows get their numbers.
    pub(crate) fn write(&mut self, run: &PendingRun, encoder: &XaddEncoder, out: &mut Vec<u8>) {
        let token = &self.token;
        let stream = self
            .streams
            .entry(run.stream_key.as_slice().into())
            .or_insert_with(|| Stream { marker_key: marker_key(&run.stream_key, token).into(), from: 0 });
        let mut shared = Vec::new();
        let shared_count = encoder.write_shared(&mut shared, run.trims);
        let first = self.next;
        self.next += run.rows;
        ScriptRun {
            stream_key: &run.stream_key,
            marker_key: &stream.marker_key,
            version: self.version,
            from: stream.from.max(self.floor),
            first,
            rows: run.rows,
            ttl: self.ttl,
            touches: self.touches,
            form: &run.form,
            shared: (&shared, shared_count),
            sets: &run.sets,
            arguments: &run.arguments,
            argument_count: run.argument_count,
        }
        .write(out);
        stream.from = self.next;
    }
}
