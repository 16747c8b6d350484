//! Encodes messages into the send buffers of the lanes, each command with its slot in the in-flight window.
//!
//! Nothing is sent here: once a chunk is full there is no room, and making room runs the loop of the producer.

mod gather;
mod row;

use std::ops::Range;

use arrow_array::RecordBatch;

use row::{encode_row, target_of, write_row_to};

use super::dedup::{IDMP_ARGUMENTS, IdempotencyIds};
use super::lanes::Lanes;
use super::sender::Sender;
use crate::command::Expect;
use crate::command::xadd::{Target, XaddEncoder};
use crate::connection::{Numbers, Owner};
use crate::error::{Fault, code};
use crate::fail;
use crate::ipc;
use crate::rows::{CallerId, Constants, Rows};

pub(super) use gather::form_of;

/// The capacity that the buffer for an entry of several rows keeps: one large entry must not hold its memory forever.
const KEPT_FIELDS: usize = 256 * 1024;
/// Payloads of this size and more are not copied, but sent from where they are. A smaller copy costs less than another slice
/// costs the kernel.
const LENT_FROM: usize = 8 * 1024;

/// Turns messages into commands. Rows that are deduplicated also need the state of their mode.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) xadd: XaddEncoder,
    scratch: Vec<u8>,
    /// The fields of an entry of several rows, until their number is known.
    fields: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(xadd: XaddEncoder) -> Self {
        Self { xadd, scratch: Vec::new(), fields: Vec::new() }
    }

    /// Encodes a message of one payload.
    #[inline]
    pub(super) fn push_payload(&mut self, payload: &[u8], to: &mut Sender) {
        let connection = to.lanes.begin_at_home();
        let out = connection.send.bytes();
        let before = out.len();
        self.xadd.write_payload(out, payload);
        let length = out.len() - before;
        fail::point("encode");
        connection.in_flight.align(to.outcomes.next());
        to.outcomes.count_one();
        connection.in_flight.push_plain(length);
    }

    /// Encodes one or more rows. Whatever is checked here costs time for every row, so the room is measured only once.
    pub(super) fn push_rows(&mut self, rows: &Rows<'_>, range: Range<usize>, to: &mut Sender) -> usize {
        let (route, limits) = (to.lanes.home_route(), to.lanes.limits_at_home(to.limits));
        let connection = to.lanes.at_home();
        let room = connection.in_flight.room(limits);
        let until_wait = usize::try_from(connection.until_wait()).unwrap_or(usize::MAX);
        let most = if connection.is_asking(route) { 1 } else { room.entries.min(until_wait) };
        let end = range.end.min(range.start.saturating_add(most));
        connection.begin_command(route);
        let out = connection.send.room().min(room.bytes);
        let has_payload_alone = rows.has_payload_alone();
        connection.in_flight.align(to.outcomes.next());
        let mut row = range.start;
        let mut encoded = 0;
        while row < end && encoded < out {
            let Self { xadd, scratch, .. } = self;
            let Sender { lanes, outcomes, .. } = to;
            let connection = lanes.at_home();
            let mut bad = None;
            while row < end && encoded < out {
                let length = match if has_payload_alone { rows.payload_alone(row) } else { None } {
                    Some(payload) if payload.len() < LENT_FROM => {
                        let out = connection.send.bytes();
                        let before = out.len();
                        xadd.write_payload(out, payload);
                        fail::point("encode");
                        out.len() - before
                    }
                    Some(_) => break,
                    None => match encode_row(rows, row, xadd, connection.send.bytes(), scratch) {
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
                to.refuse(&fault, 1);
                // Failures may take up the last room.
                return row + 1;
            }
            if row < end && encoded < out {
                encoded += self.push_large_payload(rows, row, to);
                row += 1;
            }
        }
        row
    }

    /// Encodes a payload that stays where it is until it is sent, if it is in an Arrow buffer. Returns the size of its command in
    /// bytes.
    fn push_large_payload(&mut self, rows: &Rows<'_>, row: usize, to: &mut Sender) -> usize {
        let Some(payload) = rows.payload_buffer(row) else { return self.push_row(rows, row, to) };
        let connection = to.lanes.at_home();
        let send = &mut connection.send;
        let before = send.len();
        self.xadd.write_payload_start(send.bytes(), payload.len());
        send.lend(payload);
        fail::point("encode");
        self.xadd.write_payload_end(send.bytes());
        let length = send.len() - before;
        to.outcomes.count_one();
        connection.in_flight.push_plain(length);
        length
    }

    /// Encodes rows for the nodes that have their streams, or fails those that are not sent, until the window or the send buffer
    /// of a node is full. The room is measured once. `row` becomes the first row that is left.
    pub(super) fn push_routed_rows(&mut self, rows: &Rows<'_>, row: &mut usize, end: usize, to: &mut Sender) {
        let load = to.lanes.load();
        let most = to.limits.max_entries.saturating_sub(load.entries + to.outcomes.early()).max(1);
        let mut bytes = to.limits.max_bytes.saturating_sub(load.bytes);
        let end = end.min(row.saturating_add(most));
        while *row < end {
            let pushed = self.push_routed_row(rows, *row, to);
            *row += 1;
            let Some((length, is_full)) = pushed else { return };
            bytes = bytes.saturating_sub(length as u64);
            if is_full || bytes == 0 {
                return;
            }
        }
    }

    /// Encodes a row for the node that has its stream, or fails it if it is not sent. Returns the size of its command in bytes,
    /// and whether what is encoded must go out now.
    fn push_routed_row(&mut self, rows: &Rows<'_>, row: usize, to: &mut Sender) -> Option<(usize, bool)> {
        let fields = match rows.field_count(row) {
            Ok(fields) => fields,
            Err(fault) => {
                to.refuse(&fault, 1);
                return None;
            }
        };
        let target = target_of(rows, row, &mut self.xadd);
        let (route, at) = self.lane_of(target, &to.lanes);
        if let Some(failure) = to.lanes.get(at).down().cloned() {
            to.fail(&failure, 1);
            return None;
        }
        Some(self.push_to(at, route, Owner::Report, to, |encoder, out, scratch| {
            write_row_to(rows, row, fields, target, encoder, out, scratch);
        }))
    }

    /// The route of a stream, and its lane.
    #[inline]
    pub(super) fn lane_of(&self, target: Target<'_>, lanes: &Lanes) -> (u16, usize) {
        match self.xadd.key_and_slot(target) {
            None => (lanes.home_route(), lanes.home()),
            Some((key, slot)) => lanes.of_stream(key, slot),
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
        to: &mut Sender,
        write: impl FnOnce(&mut XaddEncoder, &mut Vec<u8>, &mut Vec<u8>),
    ) -> (usize, bool) {
        let Self { xadd, scratch, .. } = self;
        let Sender { lanes, outcomes, .. } = to;
        let connection = &mut lanes.get_mut(at).connection;
        let is_queued = connection.is_held(route);
        if !is_queued {
            if connection.until_wait() == 0 {
                connection.request_wait();
            }
            connection.begin_command(route);
        }
        let out = connection.send.bytes();
        let before = out.len();
        write(xadd, out, scratch);
        fail::point("encode");
        let (length, number) = (out.len() - before, outcomes.number(1));
        if is_queued {
            connection.queue(length, route, Numbers::From(number), 1, Expect::EntryId);
        } else {
            connection.push(length, number, 1, owner);
        }
        (length, connection.send.room() == 0 && !connection.is_stuck())
    }

    /// The stream of a message.
    pub(super) fn target_of<'a>(&mut self, message: &Rows<'a>) -> Target<'a> {
        target_of(message, 0, &mut self.xadd)
    }

    /// Encodes the message of a call, with this many `fields`, for the [lane](Self::lane_of) of its stream.
    pub(super) fn push_call(
        &mut self,
        message: &Rows<'_>,
        fields: usize,
        target: Target<'_>,
        (route, at): (u16, usize),
        to: &mut Sender,
    ) {
        let write = |encoder: &mut XaddEncoder, out: &mut Vec<u8>, scratch: &mut Vec<u8>| {
            write_row_to(message, 0, fields, target, encoder, out, scratch);
        };
        if matches!(target, Target::Own) {
            self.push(1, Owner::Call, to, write);
        } else {
            self.push_to(at, route, Owner::Call, to, write);
        }
    }

    /// Encodes a row of any kind and returns the size of its command in bytes, or fails a row that cannot be sent.
    fn push_row(&mut self, rows: &Rows<'_>, row: usize, to: &mut Sender) -> usize {
        let connection = to.lanes.at_home();
        match encode_row(rows, row, &mut self.xadd, connection.send.bytes(), &mut self.scratch) {
            Ok(length) => {
                to.outcomes.count_one();
                connection.in_flight.push_plain(length);
                length
            }
            Err(fault) => {
                to.refuse(&fault, 1);
                0
            }
        }
    }

    /// Encodes one entry of as many rows as there are names, or fewer. It ends before a row that cannot be sent, so that outcomes
    /// stay in the order of the rows, and after the row with which it fills the window by itself.
    pub(super) fn push_payloads_of_one(
        &mut self,
        rows: &Rows<'_>,
        names: &[Vec<u8>],
        constants: &Constants,
        range: Range<usize>,
        to: &mut Sender,
    ) -> usize {
        let max_bytes = usize::try_from(to.limits.max_bytes).unwrap_or(usize::MAX);
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
            let connection = to.lanes.begin_at_home();
            connection.in_flight.align(to.outcomes.next());
            self.push_row(rows, range.start, to);
            count = 1;
        } else {
            self.push(count as u32, Owner::Report, to, |encoder, out, _| {
                encoder.write_own_start(out, count + constants.count());
                out.extend_from_slice(&fields);
                out.extend_from_slice(constants.bulk());
                encoder.write_end(out);
            });
        }
        fields.clear();
        fields.shrink_to(KEPT_FIELDS);
        self.fields = fields;
        range.start + count
    }

    /// Encodes all rows of the range as one entry.
    pub(super) fn push_arrow(
        &mut self,
        encoder: &mut ipc::Encoder,
        batch: &RecordBatch,
        constants: &Constants,
        range: Range<usize>,
        to: &mut Sender,
    ) -> usize {
        let (end, rows) = (range.end, range.len());
        let mut stream = Vec::new();
        match encoder.encode(batch, range, &mut stream) {
            Ok(length) => {
                let connection = to.lanes.begin_at_home();
                let send = &mut connection.send;
                let before = send.len();
                self.xadd.write_payload_start_with(send.bytes(), length, constants.count());
                fail::point("encode");
                for part in stream {
                    if part.len() < LENT_FROM {
                        send.bytes().extend_from_slice(&part);
                    } else {
                        send.lend(part);
                    }
                }
                self.xadd.write_payload_end_with(send.bytes(), constants.bulk());
                let length = send.len() - before;
                let number = to.outcomes.number(rows as u64);
                connection.push(length, number, rows as u32, Owner::Report);
            }
            Err(fault) => to.refuse(&fault, rows as u64),
        }
        end
    }

    /// Encodes a command of the next `rows` messages: `write` appends it.
    #[inline]
    pub(super) fn push(
        &mut self,
        rows: u32,
        owner: Owner,
        to: &mut Sender,
        write: impl FnOnce(&mut XaddEncoder, &mut Vec<u8>, &mut Vec<u8>),
    ) {
        let Self { xadd, scratch, .. } = self;
        let connection = to.lanes.begin_at_home();
        let before = connection.send.len();
        write(xadd, connection.send.bytes(), scratch);
        fail::point("encode");
        let length = connection.send.len() - before;
        connection.push(length, to.outcomes.number(rows.into()), rows, owner);
    }

    #[cold] // for most dispatchers
    pub(super) fn push_payload_with_id(
        &mut self,
        ids: &mut IdempotencyIds,
        payload: &[u8],
        id: Option<CallerId<'_>>,
        to: &mut Sender,
    ) -> Result<(), Refused> {
        self.push_with_id(ids, 1, id, to, |encoder, out, _| encoder.write_payload_field(out, payload))
    }

    /// Encodes a row with its IDMP ID.
    #[inline(never)]
    pub(super) fn push_row_with_id(
        &mut self,
        ids: &mut IdempotencyIds,
        rows: &Rows<'_>,
        row: usize,
        id: Option<CallerId<'_>>,
        to: &mut Sender,
    ) -> Result<(), Refused> {
        let fields = rows.field_count(row).map_err(Refused::Ever)?;
        self.push_with_id(ids, fields, id, to, |_, out, scratch| rows.write_fields(row, out, scratch))
    }

    /// `write` appends the fields of the command that has been started.
    fn push_with_id(
        &mut self,
        ids: &mut IdempotencyIds,
        fields: usize,
        id: Option<CallerId<'_>>,
        to: &mut Sender,
        write: impl FnOnce(&XaddEncoder, &mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), Refused> {
        let id = idmp_id(ids, id)?;
        let connection = to.lanes.begin_at_home();
        let before = connection.send.len();
        let out = connection.send.bytes();
        self.xadd.write_start_with(out, fields, id, IDMP_ARGUMENTS);
        write(&self.xadd, out, &mut self.scratch);
        fail::point("encode");
        self.xadd.write_end(out);
        let length = connection.send.len() - before;
        connection.push(length, to.outcomes.number(1), 1, Owner::Report);
        Ok(())
    }
}

/// Why a row is not sent.
pub(super) enum Refused {
    /// The row can never be sent, and counts as passed.
    Ever(Fault),
    /// The row cannot be sent now. An earlier try may have written it.
    Now(Fault),
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
