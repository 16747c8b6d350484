//! The rows of a batch under a token: each stream counts its own rows, and how far it has come.

use std::collections::HashMap;

use super::OpenRun;
use super::open_runs::Place;
use crate::command::script::{RowForm, ScriptRun, marker_key};
use crate::command::xadd::XaddEncoder;
use crate::error::{Fault, code};

/// The maximum number of streams in one batch.
const MAX_STREAMS: usize = 262_144;

/// The streams of a batch.
#[derive(Debug)]
pub(crate) struct ScriptBatch {
    token: String,
    version: u64,
    /// The lifetime of a marker, in seconds.
    ttl: u64,
    /// The maximum number of rows in a run.
    pub(crate) max_rows: u64,
    /// Whether a run that was written before is made a write again.
    touches: bool,
    streams: HashMap<Box<[u8]>, Stream>,
    /// The stream key of the last row. Rows without a valid stream key count with it.
    last: Vec<u8>,
    /// The number of such rows before the first stream: they count with that stream.
    unplaced: u64,
    /// Whether rows were lost whose streams are unknown: nothing after them may be written.
    is_lost: bool,
    /// The arguments of the last run, where they were packed.
    scratch: Vec<u8>,
}

/// The rows of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The number of the next row, if no run is open.
    pub(crate) next: u64,
    /// The lowest position that the marker must have: after the last row that was encoded or lost.
    from: u64,
    /// In a batch of several streams: how many rows this one had while it was the only one.
    alone: Option<u64>,
    /// The stream's open run.
    pub(crate) run: Option<Place>,
}

impl ScriptBatch {
    pub(crate) fn new(ttl: u64, max_rows: u64, touches: bool) -> Self {
        Self {
            token: String::new(),
            version: 0,
            ttl,
            max_rows,
            touches,
            streams: HashMap::new(),
            last: Vec::new(),
            unplaced: 0,
            is_lost: false,
            scratch: Vec::new(),
        }
    }

    /// The key of the batch's marker for a stream.
    pub(crate) fn marker_key(&self, stream_key: &[u8]) -> Vec<u8> {
        marker_key(stream_key, &self.token)
    }

    /// The keys of the streams in the batch.
    pub(crate) fn stream_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.streams.keys().map(|key| &**key)
    }

    /// Starts another batch.
    pub(crate) fn begin(&mut self, token: String, version: u64) {
        (self.token, self.version) = (token, version);
        self.streams = HashMap::new();
        self.last.clear();
        (self.unplaced, self.is_lost) = (0, false);
    }

    /// Counts reported rows as passed, whether they were written or not: markers may be anywhere before the next row.
    pub(crate) fn skip_failed(&mut self) {
        for stream in self.streams.values_mut() {
            stream.from = 0;
        }
    }

    /// Whether a row of this stream key would add the second stream.
    pub(crate) fn would_be_second(&self, stream_key: &[u8]) -> bool {
        self.streams.len() == 1 && !self.streams.contains_key(stream_key)
    }

    /// The stream of a row; a fault if there are too many streams. No run is open when this adds the
    /// [second](Self::would_be_second) one.
    pub(crate) fn stream(&mut self, stream_key: &[u8]) -> Result<&mut Stream, Fault> {
        if self.last != stream_key {
            self.last.clear();
            self.last.extend_from_slice(stream_key);
        }
        if !self.streams.contains_key(stream_key) && self.streams.len() < MAX_STREAMS {
            self.add_stream(stream_key);
        }
        self.streams.get_mut(stream_key).ok_or_else(|| {
            let message = format!("exactly_once 'script' takes at most {MAX_STREAMS} streams in a batch");
            Fault::new(code::TOO_MANY, message)
        })
    }

    #[cold]
    fn add_stream(&mut self, stream_key: &[u8]) {
        if self.streams.len() == 1 {
            self.streams.values_mut().for_each(|first| first.alone = Some(first.next));
        }
        let alone = (!self.streams.is_empty()).then_some(0);
        let stream = Stream { next: std::mem::take(&mut self.unplaced), alone, ..Stream::default() };
        self.streams.insert(stream_key.into(), stream);
    }

    /// Forgets the open run of this stream.
    pub(crate) fn forget_run(&mut self, stream_key: &[u8]) {
        if let Some(stream) = self.streams.get_mut(stream_key) {
            stream.run = None;
        }
    }

    /// The stream that a row without a valid stream key counts with.
    fn last(&mut self) -> Option<&mut Stream> {
        self.streams.get_mut(&self.last[..])
    }

    /// Counts a row without a valid stream key as passed.
    pub(crate) fn pass_unplaced(&mut self) {
        match self.last() {
            Some(stream) => stream.pass(),
            None => self.unplaced += 1,
        }
    }

    /// Counts the rows of an open run as passed.
    pub(crate) fn pass_run(&mut self, stream_key: &[u8], next: u64) {
        if let Some(stream) = self.streams.get_mut(stream_key) {
            (stream.next, stream.run) = (next, None);
        }
    }

    /// Gives up the `passed` rows of the batch after a panic in the middle of a change: no row after them may be written.
    pub(crate) fn abandon(&mut self, passed: u64) {
        let counted = self.unplaced + self.streams.values().map(|stream| stream.next).sum::<u64>();
        // Rows that were not encoded may belong to any stream, so rows after them have no certain number.
        self.is_lost |= counted != passed;
        for stream in self.streams.values_mut() {
            (stream.from, stream.run) = (stream.next, None);
        }
    }

    /// Marks the batch as lost: rows of unknown streams were not written, so no row after them may be.
    pub(crate) fn lose_all(&mut self) {
        self.is_lost = true;
    }

    /// Whether no further row may be written until another batch starts.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Appends the command of a run.
    pub(crate) fn write(&mut self, run: &OpenRun, encoder: &XaddEncoder, out: &mut Vec<u8>) {
        let mut shared = Vec::new();
        let shared_count = encoder.write_shared(&mut shared, run.trims);
        let Some(stream) = self.streams.get_mut(&run.stream_key[..]) else { return };
        let from = if self.is_lost { u64::MAX } else { stream.from };
        (stream.next, stream.run) = (run.first + run.rows, None);
        stream.from = stream.next;
        let lists = run.names.sets();
        ScriptRun {
            stream_key: &run.stream_key,
            marker_key: &marker_key(&run.stream_key, &self.token),
            version: self.version,
            from,
            first: run.first,
            rows: run.rows,
            ttl: self.ttl,
            touches: self.touches,
            alone: stream.alone,
            form: &run.form,
            shared: (&shared, shared_count),
            gathered: run.names.names(),
            sets: if matches!(*run.form, RowForm::Gathered) { &lists } else { &run.sets },
            arguments: &run.arguments,
            argument_count: run.argument_count,
        }
        .write(out, &mut self.scratch);
    }
}

impl Stream {
    /// Counts a row as passed without writing it. No run is open.
    pub(crate) fn pass(&mut self) {
        self.next += 1;
    }

    /// Counts a row as lost: it was not written, so no row after it may be. No run is open.
    pub(crate) fn lose(&mut self) {
        self.next += 1;
        self.from = self.next;
    }
}
