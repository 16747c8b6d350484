//! Encodes messages into the send buffer, each command with its slot in the in-flight window.
//!
//! Nothing is sent here: once a chunk is full there is no room, and making room runs the loop in [`drive`](super::drive).

mod gather;
mod row;

use std::ops::Range;

use arrow_array::RecordBatch;

use gather::form_of;
use row::{encode_row, target_of, write_row_to};

use super::dedup::{Dedup, IDMP_ARGUMENTS, IdempotencyIds, Sink};
use super::{Lanes, OutcomeQueue, Producer};
use crate::batch::Batch;
use crate::command::Expect;
use crate::command::xadd::{Target, XaddEncoder};
use crate::connection::{Numbers, Owner};
use crate::endpoint::Endpoint;
use crate::error::{Fault, code};
use crate::fail;
use crate::ipc::Encoder;
use crate::rows::{CallerId, IdColumn, Rows};

/// How many rows are encoded before the watch is asked again: bad rows take no room in the window, and so never wait.
const WATCH_ROWS: usize = 1024;
/// The capacity that the buffer for an entry of several rows keeps: one large entry must not hold its memory forever.
const KEPT_FIELDS: usize = 256 * 1024;
/// Payloads of this size and more are not copied, but sent from where they are. A smaller copy costs less than another slice
/// costs the kernel.
const LENT_FROM: usize = 8 * 1024;

/// The [`Parts`] of a producer whose mode is already borrowed.
macro_rules! parts_of {
    ($producer:ident) => {
        Parts {
            endpoint: &$producer.endpoint,
            encoder: &mut $producer.encoder,
            lanes: &mut $producer.lanes,
            outcomes: &mut $producer.outcomes,
            scratch: &mut $producer.scratch,
        }
    };
}

/// The [`Sink`] of a producer whose mode is already borrowed.
macro_rules! sink_of {
    ($producer:ident) => {
        Sink {
            encoder: &$producer.encoder,
            lanes: &mut $producer.lanes,
            counters: $producer.outcomes.recorder.counters(),
        }
    };
}

impl Producer {
    /// Encodes a message of one payload. There must be [room](Self::make_room), and the caller must still [close a full
    /// run](Self::close_full_runs).
    #[inline]
    pub(crate) fn push_payload(&mut self, payload: &[u8], id: Option<CallerId<'_>>) {
        let encoded = match &mut self.dedup {
            Dedup::Off => {
                let connection = self.lanes.begin_at_home();
                let out = connection.send.bytes();
                let before = out.len();
                self.encoder.write_payload(out, payload);
                let length = out.len() - before;
                fail::point("encode");
                connection.in_flight.align(self.outcomes.next());
                self.outcomes.count_one();
                connection.in_flight.push_plain(length);
                return;
            }
            Dedup::Script(script) => parts_of!(self).gather_payload(script, None, payload),
            Dedup::Idmp(ids) => parts_of!(self).push_payload_with_id(ids, payload, id),
        };
        if let Err(refused) = encoded {
            self.refuse(refused);
        }
    }

    /// The same for the stream of a shard.
    pub(crate) fn push_payload_to_shard(&mut self, payload: &[u8], shard: usize) {
        let Some(shards) = self.endpoint.shards().cloned() else { return };
        let key = shards.key(shard);
        if let Dedup::Script(script) = &mut self.dedup {
            if let Err(refused) = parts_of!(self).gather_payload(script, Some(key), payload) {
                self.refuse(refused);
            }
            return;
        }
        let target = Target::of_shard(shard);
        let (route, at) = self.lane_of(target);
        if let Some(failure) = self.lane_down(at).cloned() {
            self.resolve_failed(&failure, 1);
            return;
        }
        self.push_to(at, route, Owner::Report, |encoder, out, _| encoder.write_payload_to(out, target, payload));
    }

    /// Prepares the rows of a record batch for [`push_batch`](Self::push_batch), once.
    pub(crate) fn begin_rows(&mut self, batch: &mut Batch<'_>) {
        self.is_routed = self.lanes.is_of_cluster() && (batch.has_stream_keys() || self.has_shards_on_nodes());
        if self.is_routed {
            self.lanes.name_streams();
        }
        if let (Batch::Rows(rows), Dedup::Script(script)) = (batch, &mut self.dedup) {
            script.set_form(form_of(rows));
        }
    }

    /// Encodes rows while there is [room](Self::make_room) for one more entry, or notes why one cannot be sent. `row` becomes the
    /// first row that is left: it may stop before the room is used up, so that the watch can be asked. After a panic,
    /// [`first_left`](Self::first_left) returns that row.
    pub(crate) fn push_batch(&mut self, batch: &mut Batch<'_>, ids: Option<&IdColumn>, row: &mut usize, end: usize) {
        let watched = end.min(row.saturating_add(WATCH_ROWS));
        while *row < watched && self.has_room() {
            match (&mut *batch, &mut self.dedup) {
                (Batch::Rows(rows), Dedup::Off) if self.is_routed => self.push_routed_rows(rows, row, watched),
                (Batch::Rows(rows), Dedup::Off) => {
                    let added = self.lanes.at_home().in_flight.added();
                    self.encoding = Some((*row, added));
                    *row = self.push_rows(rows, *row..watched);
                    self.encoding = None;
                }
                (Batch::Rows(rows), Dedup::Script(script)) => {
                    if let Err(refused) = parts_of!(self).gather_rows(script, rows, row, watched) {
                        self.refuse(refused);
                        *row += 1;
                    }
                    self.close_full_runs();
                }
                (Batch::Rows(rows), Dedup::Idmp(idempotency)) => {
                    let id = ids.and_then(|ids| ids.get(*row));
                    if let Err(refused) = parts_of!(self).push_row_with_id(idempotency, rows, *row, id) {
                        self.refuse(refused);
                    }
                    *row += 1;
                }
                (Batch::Payloads(rows, names), _) => *row = self.push_payloads_of_one(rows, names, *row..end),
                (Batch::Arrow { encoder, batch, rows_per_entry }, _) => {
                    *row = self.push_arrow(encoder, batch, *row..end.min(*row + *rows_per_entry));
                }
            }
        }
    }

    /// Encodes one or more rows. Whatever is checked here costs time for every row, so the room is measured only once.
    fn push_rows(&mut self, rows: &Rows<'_>, range: Range<usize>) -> usize {
        let (route, limits) = (self.lanes.home_route(), self.lanes.limits_at_home(self.limits));
        let connection = self.lanes.at_home();
        let room = connection.in_flight.room(limits);
        let until_wait = usize::try_from(connection.until_wait()).unwrap_or(usize::MAX);
        let most = if connection.is_asking(route) { 1 } else { room.entries.min(until_wait) };
        let end = range.end.min(range.start.saturating_add(most));
        connection.begin_command(route);
        let out = connection.send.room().min(room.bytes);
        let has_payload_alone = rows.has_payload_alone();
        connection.in_flight.align(self.outcomes.next());
        let mut row = range.start;
        let mut encoded = 0;
        while row < end && encoded < out {
            let Self { lanes, encoder, outcomes, scratch, .. } = self;
            let connection = lanes.at_home();
            let mut bad = None;
            while row < end && encoded < out {
                let length = match if has_payload_alone { rows.payload_alone(row) } else { None } {
                    Some(payload) if payload.len() < LENT_FROM => {
                        let out = connection.send.bytes();
                        let before = out.len();
                        encoder.write_payload(out, payload);
                        fail::point("encode");
                        out.len() - before
                    }
                    Some(_) => break,
                    None => match encode_row(rows, row, encoder, connection.send.bytes(), scratch) {
                        Ok(length) => length,
                        Err(fault) => {
                            bad = Some(fault);
                            break;
                        }
                    },
                };
                outcomes.count_one();
                connection.in_flight.push_plain(length);
                row += 1;
                encoded += length;
            }
            if let Some(fault) = bad {
                self.push_bad_rows(&fault, 1);
                // Failures may take up the last room.
                return row + 1;
            }
            if row < end && encoded < out {
                encoded += self.push_large_payload(rows, row);
                row += 1;
            }
        }
        row
    }

    /// Encodes a payload that stays where it is until it is sent, if it is in an Arrow buffer. Returns the size of its command in
    /// bytes.
    fn push_large_payload(&mut self, rows: &Rows<'_>, row: usize) -> usize {
        let Some(payload) = rows.payload_buffer(row) else { return self.push_row(rows, row) };
        let connection = self.lanes.at_home();
        let send = &mut connection.send;
        let before = send.len();
        self.encoder.write_payload_start(send.bytes(), payload.len());
        send.lend(payload);
        fail::point("encode");
        self.encoder.write_payload_end(send.bytes());
        let length = send.len() - before;
        self.outcomes.count_one();
        connection.in_flight.push_plain(length);
        length
    }

    /// Encodes rows for the nodes that have their streams, or notes why they are not sent, until the window or the send buffer of
    /// a node is full. The room is measured once. `row` becomes the first row that is left.
    fn push_routed_rows(&mut self, rows: &Rows<'_>, row: &mut usize, end: usize) {
        let load = self.lanes.load();
        let most = self.limits.max_entries.saturating_sub(load.entries + self.outcomes.early()).max(1);
        let mut bytes = self.limits.max_bytes.saturating_sub(load.bytes);
        let end = end.min(row.saturating_add(most));
        while *row < end {
            let pushed = self.push_routed_row(rows, *row);
            *row += 1;
            let Some((length, is_full)) = pushed else { return };
            bytes = bytes.saturating_sub(length as u64);
            if is_full || bytes == 0 {
                return;
            }
        }
    }

    /// Encodes a row for the node that has its stream, or notes why it is not sent. Returns the size of its command in bytes, and
    /// whether what is encoded must go out now.
    fn push_routed_row(&mut self, rows: &Rows<'_>, row: usize) -> Option<(usize, bool)> {
        let fields = match rows.field_count(row) {
            Ok(fields) => fields,
            Err(fault) => {
                self.push_bad_rows(&fault, 1);
                return None;
            }
        };
        let target = target_of(rows, row, &mut self.encoder);
        let (route, at) = self.lane_of(target);
        if let Some(failure) = self.lane_down(at).cloned() {
            self.resolve_failed(&failure, 1);
            return None;
        }
        Some(self.push_to(at, route, Owner::Report, |encoder, out, scratch| {
            write_row_to(rows, row, fields, target, encoder, out, scratch);
        }))
    }

    /// The route of a stream, and its lane.
    #[inline]
    pub(super) fn lane_of(&self, target: Target<'_>) -> (u16, usize) {
        match self.encoder.key_and_slot(target) {
            None => (self.lanes.home_route(), self.lanes.home()),
            Some((key, slot)) => self.lanes.of_stream(key, slot),
        }
    }

    /// Encodes a message for a stream of this lane: `write` appends its command. Returns the size of the command in bytes, and
    /// whether what is encoded must go out now.
    #[inline]
    pub(super) fn push_to(
        &mut self,
        at: usize,
        route: u16,
        owner: Owner,
        write: impl FnOnce(&mut XaddEncoder, &mut Vec<u8>, &mut Vec<u8>),
    ) -> (usize, bool) {
        let Self { lanes, encoder, outcomes, scratch, .. } = self;
        let connection = lanes.get_mut(at);
        let is_queued = connection.is_held(route);
        if !is_queued {
            if connection.until_wait() == 0 {
                connection.request_wait();
            }
            connection.begin_command(route);
        }
        let out = connection.send.bytes();
        let before = out.len();
        write(encoder, out, scratch);
        fail::point("encode");
        let (length, number) = (out.len() - before, outcomes.number(1));
        if is_queued {
            connection.queue(length, route, Numbers::From(number), 1, Expect::EntryId);
        } else {
            connection.push(length, number, 1, owner);
        }
        (length, connection.send.room() == 0 && !connection.is_stuck())
    }

    /// Encodes a row of any kind and returns the size of its command in bytes, or notes why it cannot be sent.
    fn push_row(&mut self, rows: &Rows<'_>, row: usize) -> usize {
        let connection = self.lanes.at_home();
        match encode_row(rows, row, &mut self.encoder, connection.send.bytes(), &mut self.scratch) {
            Ok(length) => {
                self.outcomes.count_one();
                connection.in_flight.push_plain(length);
                length
            }
            Err(fault) => {
                self.push_bad_rows(&fault, 1);
                0
            }
        }
    }

    /// Encodes one entry of as many rows as there are names, or fewer. It ends before a row that cannot be sent, so that outcomes
    /// stay in the order of the rows, and after the row with which it fills the window by itself.
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
            let connection = self.lanes.begin_at_home();
            connection.in_flight.align(self.outcomes.next());
            self.push_row(rows, range.start);
            count = 1;
        } else {
            self.push(count as u32, Owner::Report, |encoder, out| {
                encoder.write_own_start(out, count);
                out.extend_from_slice(&fields);
                encoder.write_end(out);
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
                let connection = self.lanes.begin_at_home();
                let send = &mut connection.send;
                let before = send.len();
                self.encoder.write_payload_start(send.bytes(), length);
                fail::point("encode");
                for part in stream {
                    if part.len() < LENT_FROM {
                        send.bytes().extend_from_slice(&part);
                    } else {
                        send.lend(part);
                    }
                }
                self.encoder.write_payload_end(send.bytes());
                let length = send.len() - before;
                self.finish_command(length, rows as u32, Owner::Report);
            }
            Err(fault) => self.push_bad_rows(&fault, rows as u64),
        }
        end
    }

    /// The first row that is left after a panic. Rows that were encoded together are counted by their commands: storing a number
    /// for each row would slow down every row.
    pub(crate) fn first_left(&mut self, row: usize) -> usize {
        match self.encoding.take() {
            Some((first, added)) => first + (self.lanes.at_home().in_flight.added() - added) as usize,
            None => row,
        }
    }

    /// Removes the row that a panic left half-encoded: no byte of it was sent. `passed`: how many rows of the exactly-once batch
    /// come before it.
    pub(crate) fn take_back(&mut self, passed: u64) {
        for connection in self.lanes.all_mut() {
            connection.send.truncate(connection.in_flight.unsent());
        }
        self.dedup.take_back(passed);
    }

    /// Gives the caller's record batch back: what was not sent of it is copied.
    pub(crate) fn give_back(&mut self) {
        self.is_routed = self.has_shards_on_nodes();
        self.lanes.all_mut().for_each(|connection| connection.send.own());
    }

    #[inline]
    pub(super) fn push(&mut self, rows: u32, owner: Owner, write: impl FnOnce(&mut XaddEncoder, &mut Vec<u8>)) {
        let connection = self.lanes.begin_at_home();
        let before = connection.send.len();
        write(&mut self.encoder, connection.send.bytes());
        fail::point("encode");
        let length = connection.send.len() - before;
        self.finish_command(length, rows, owner);
    }

    /// Finishes a command of the next `rows` messages: the last `length` bytes of the send buffer.
    #[inline]
    fn finish_command(&mut self, length: usize, rows: u32, owner: Owner) {
        let number = self.outcomes.number(rows.into());
        self.lanes.at_home().push(length, number, rows, owner);
    }

    /// Notes why a row is not sent.
    #[cold]
    fn refuse(&mut self, refused: Refused) {
        if let Dedup::Idmp(ids) = &mut self.dedup {
            ids.pass(1);
        }
        match refused {
            Refused::Ever(fault) => self.push_bad_rows(&fault, 1),
            Refused::Now(fault) => {
                let failure = self.unsent(&fault);
                self.resolve_failed(&failure, 1);
            }
        }
    }

    /// Notes that a row of this stream key (`None`: the endpoint's) is not sent.
    pub(super) fn lose_row(&mut self, stream_key: Option<&[u8]>) {
        match &mut self.dedup {
            Dedup::Off => {}
            Dedup::Script(script) => {
                let stream_key = stream_key.unwrap_or_else(|| self.endpoint.stream_key());
                let stream_key = (!stream_key.is_empty()).then_some(stream_key);
                script.lose_row(stream_key, &mut sink_of!(self));
            }
            Dedup::Idmp(ids) => ids.pass(1),
        }
    }

    /// Encodes the open runs, if rows are gathered into runs.
    pub(super) fn close_runs(&mut self) {
        if let Dedup::Script(script) = &mut self.dedup {
            script.close_all(&mut sink_of!(self));
        }
    }

    /// Encodes the run of the last row if it has as many rows or bytes as a run may have, and other runs if all of them together
    /// have too many bytes.
    pub(crate) fn close_full_runs(&mut self) {
        if let Dedup::Script(script) = &mut self.dedup {
            script.close_full(&mut sink_of!(self));
        }
    }
}

/// Why a row is not sent.
enum Refused {
    /// It can never be sent, and counts as passed.
    Ever(Fault),
    /// It cannot be sent now. An earlier try may have written it.
    Now(Fault),
}

/// The parts of a [`Producer`] that encode a row, without the state of its mode.
struct Parts<'a> {
    endpoint: &'a Endpoint,
    encoder: &'a mut XaddEncoder,
    lanes: &'a mut Lanes,
    outcomes: &'a mut OutcomeQueue,
    scratch: &'a mut Vec<u8>,
}

impl Parts<'_> {
    #[cold] // for most dispatchers
    fn push_payload_with_id(
        self,
        ids: &mut IdempotencyIds,
        payload: &[u8],
        id: Option<CallerId<'_>>,
    ) -> Result<(), Refused> {
        self.push_with_id(ids, 1, id, |encoder, out, _| encoder.write_payload_field(out, payload))
    }

    /// Encodes a row with its IDMP ID.
    #[inline(never)]
    fn push_row_with_id(
        self,
        ids: &mut IdempotencyIds,
        rows: &Rows<'_>,
        row: usize,
        id: Option<CallerId<'_>>,
    ) -> Result<(), Refused> {
        let fields = rows.field_count(row).map_err(Refused::Ever)?;
        self.push_with_id(ids, fields, id, |_, out, scratch| rows.write_fields(row, out, scratch))
    }

    /// `write` appends the fields of the command that has been started.
    fn push_with_id(
        self,
        ids: &mut IdempotencyIds,
        fields: usize,
        id: Option<CallerId<'_>>,
        write: impl FnOnce(&XaddEncoder, &mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), Refused> {
        let id = idmp_id(ids, id)?;
        let connection = self.lanes.begin_at_home();
        let before = connection.send.len();
        let out = connection.send.bytes();
        self.encoder.write_start_with(out, fields, id, IDMP_ARGUMENTS);
        write(self.encoder, out, self.scratch);
        fail::point("encode");
        self.encoder.write_end(out);
        let length = connection.send.len() - before;
        connection.push(length, self.outcomes.number(1), 1, Owner::Report);
        Ok(())
    }
}

fn idmp_id<'a>(ids: &'a mut IdempotencyIds, id: Option<CallerId<'_>>) -> Result<&'a [u8], Refused> {
    if !ids.is_by_message_id() {
        return Ok(ids.of_row());
    }
    let named = match id {
        Some(CallerId::Int(id)) => ids.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(CallerId::UInt(id)) => ids.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(CallerId::Text(id)) => ids.of_message(id.as_bytes()),
        None => {
            let message = "exactly_once_key 'message_id' needs a message ID, and this message has none";
            Err(Fault::new(code::NULL_MESSAGE_ID, message))
        }
    };
    // An earlier try with a smaller batch may have sent it.
    named.map_err(|fault| if fault.code == code::TOO_MANY { Refused::Now(fault) } else { Refused::Ever(fault) })
}
