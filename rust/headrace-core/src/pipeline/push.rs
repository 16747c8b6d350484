//! Encodes messages into the outbox, each entry with its slot in the window.

use std::ops::Range;

use arrow_array::RecordBatch;

use super::Pipeline;
use crate::batch::Batch;
use crate::fail;
use crate::ipc::Encoder;
use crate::rows::{CallerId, IdColumn, Rows};
use crate::window::Owner;
use crate::xadd::Template;

/// Rows that are encoded without asking the watch: bad ones need no room in the window, and so no wait.
const WATCH_ROWS: usize = 1024;
/// What the buffer for an entry of several rows keeps: one large entry must not hold its memory for ever.
const KEPT_FIELDS: usize = 256 * 1024;
/// Payloads from this size on are not copied, but sent from where they are. Below it the copy costs less than what the
/// kernel does for another slice.
const LENT_FROM: usize = 8 * 1024;

impl Pipeline {
    /// Encodes a message of one payload. There must be [room](Self::make_room). [A full run](Self::close_full_run) is still
    /// to be closed.
    #[inline]
    pub(crate) fn push_payload(&mut self, payload: &[u8], id: Option<CallerId<'_>>) {
        if !self.is_plain {
            return self.push_once(payload, id);
        }
        self.push(1, Owner::Report, |template, out| template.write_payload(out, payload));
    }

    #[cold] // for most dispatchers
    fn push_once(&mut self, payload: &[u8], id: Option<CallerId<'_>>) {
        if self.script.is_some() {
            self.gather_payload(payload);
        } else {
            self.push_named_payload(payload, id);
        }
    }

    /// Encodes rows as long as there is [room](Self::make_room) for one more entry, or notes why one cannot be sent.
    /// `row` is the first row that is left: it may come before the room ends, so that the watch can be asked. Where a panic ends
    /// this, [`first_left`](Self::first_left) says which one it is.
    pub(crate) fn push_batch(&mut self, batch: &mut Batch<'_>, ids: Option<&IdColumn>, row: &mut usize, end: usize) {
        let watched = end.min(row.saturating_add(WATCH_ROWS));
        while *row < watched && self.has_room() {
            match batch {
                Batch::Rows(rows) if self.script.is_some() => {
                    self.gather_row(rows, *row);
                    *row += 1;
                    self.close_full_run();
                }
                Batch::Rows(rows) if !self.is_plain => {
                    self.push_named_row(rows, *row, ids.and_then(|ids| ids.get(*row)));
                    *row += 1;
                }
                Batch::Rows(rows) => {
                    let added = self.ledger.window.added();
                    self.pushing = Some((*row, added));
                    *row = self.push_rows(rows, *row..watched);
                    self.pushing = None;
                }
                Batch::Payloads(rows, names) => *row = self.push_payloads_of_one(rows, names, *row..end),
                Batch::Arrow { encoder, batch, rows_per_entry } => {
                    *row = self.push_arrow(encoder, batch, *row..end.min(*row + *rows_per_entry));
                }
            }
        }
    }

    /// Encodes one row or more. What a row is asked for here, every row pays for: so the room is measured once.
    fn push_rows(&mut self, rows: &Rows<'_>, range: Range<usize>) -> usize {
        let room = self.ledger.window.room(self.limits);
        let until_cover = usize::try_from(self.ledger.until_cover()).unwrap_or(usize::MAX);
        let end = range.end.min(range.start.saturating_add(room.entries.min(until_cover)));
        let out = self.outbox.room().min(room.bytes);
        let has_payload_alone = rows.has_payload_alone();
        let mut row = range.start;
        let mut encoded = 0;
        while row < end && encoded < out {
            let payload = if has_payload_alone { rows.payload_alone(row) } else { None };
            let length = match payload {
                Some(payload) if payload.len() < LENT_FROM => {
                    let out = self.outbox.bytes();
                    let before = out.len();
                    self.template.write_payload(out, payload);
                    let length = out.len() - before;
                    fail::point("encode");
                    self.ledger.window.push(length, 1, Owner::Report);
                    Some(length)
                }
                Some(_) => self.push_large_payload(rows, row),
                None => self.push_other_row(rows, row),
            };
            row += 1;
            // Failures take room in the window as well: it is to be measured anew.
            let Some(length) = length else { break };
            encoded += length;
        }
        row
    }

    /// Encodes a payload that stays where it is until it is sent, if it is in a buffer of Arrow's. Returns the
    /// bytes of its command.
    fn push_large_payload(&mut self, rows: &Rows<'_>, row: usize) -> Option<usize> {
        let Some(payload) = rows.payload_buffer(row) else { return self.push_other_row(rows, row) };
        let before = self.outbox.len();
        self.template.write_payload_start(self.outbox.bytes(), payload.len());
        self.outbox.lend(payload);
        fail::point("encode");
        self.template.write_payload_end(self.outbox.bytes());
        let length = self.outbox.len() - before;
        self.ledger.window.push(length, 1, Owner::Report);
        Some(length)
    }

    /// Encodes a row of whatever kind and returns the bytes of its command, or notes why it cannot be sent.
    #[inline]
    fn push_other_row(&mut self, rows: &Rows<'_>, row: usize) -> Option<usize> {
        let fields = match rows.field_count(row) {
            Ok(fields) => fields,
            Err(fault) => {
                self.push_settled_fault(&fault, 1);
                return None;
            }
        };
        let out = self.outbox.bytes();
        let before = out.len();
        if rows.is_routed() {
            self.template.write_start(out, fields, rows.stream_key(row), rows.entry_id(row));
        } else {
            self.template.write_own_start(out, fields);
        }
        rows.write_fields(row, out, &mut self.scratch);
        fail::point("encode");
        self.template.write_end(out);
        let length = out.len() - before;
        self.ledger.window.push(length, 1, Owner::Report);
        Some(length)
    }

    /// Encodes one entry of as many rows as there are names, or of fewer: it ends before a row that cannot be sent, so that
    /// outcomes stay in the order of the rows, and with the row that fills the window by itself.
    fn push_payloads_of_one(&mut self, rows: &Rows<'_>, names: &[Vec<u8>], range: Range<usize>) -> usize {
        let max_bytes = usize::try_from(self.limits.max_bytes).unwrap_or(usize::MAX);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut fields = std::mem::take(&mut self.fields);
        let mut count = 0;
        for (row, name) in range.clone().zip(names) {
            if fields.len() >= max_bytes || rows.field_count(row).is_err() {
                break;
            }
            rows.write_payload(row, name, &mut fields, &mut scratch);
            fail::point("encode");
            count += 1;
        }
        self.scratch = scratch;
        if count == 0 {
            self.push_other_row(rows, range.start);
            count = 1;
        } else {
            self.push(count as u32, Owner::Report, |template, out| {
                template.write_own_start(out, count);
                out.extend_from_slice(&fields);
                template.write_end(out);
            });
        }
        fields.clear();
        fields.shrink_to(KEPT_FIELDS);
        self.fields = fields;
        range.start + count
    }

    /// Encodes all rows of the range as one entry.
    fn push_arrow(&mut self, encoder: &mut Encoder, batch: &RecordBatch, range: Range<usize>) -> usize {
        let (end, rows) = (range.end, range.len());
        let mut stream = Vec::new();
        match encoder.encode(batch, range, &mut stream) {
            Ok(length) => {
                let before = self.outbox.len();
                self.template.write_payload_start(self.outbox.bytes(), length);
                fail::point("encode");
                for part in stream {
                    if part.len() < LENT_FROM {
                        self.outbox.bytes().extend_from_slice(&part);
                    } else {
                        self.outbox.lend(part);
                    }
                }
                self.template.write_payload_end(self.outbox.bytes());
                self.ledger.window.push(self.outbox.len() - before, rows as u32, Owner::Report);
            }
            Err(fault) => self.push_settled_fault(&fault, rows as u64),
        }
        end
    }

    /// The first row that is left after a panic. Rows that were pushed together are counted by their entries: a number that is
    /// stored for each row would cost each row.
    pub(crate) fn first_left(&mut self, row: usize) -> usize {
        match self.pushing.take() {
            Some((first, added)) => first + (self.ledger.window.added() - added) as usize,
            None => row,
        }
    }

    /// Takes back the row that a panic left half-encoded: no byte of it has left. `passed`: how many rows of the exactly-once
    /// batch are before it.
    pub(crate) fn take_back(&mut self, passed: u64) {
        self.outbox.truncate(self.ledger.window.unsent());
        if let Some(script) = &mut self.script {
            script.take_back(passed);
        }
        if let Some(names) = &mut self.names {
            names.rewind(passed);
        }
    }

    /// The caller's record batch is given back: what was not sent of it is copied.
    pub(crate) fn give_back(&mut self) {
        self.outbox.own();
    }

    #[inline]
    pub(super) fn push(&mut self, rows: u32, owner: Owner, write: impl FnOnce(&mut Template, &mut Vec<u8>)) {
        let before = self.outbox.len();
        write(&mut self.template, self.outbox.bytes());
        fail::point("encode");
        self.ledger.window.push(self.outbox.len() - before, rows, owner);
    }
}
