//! The bound rows of one record batch, ready to be encoded.

use std::ops::Range;

use arrow_buffer::Buffer;

use super::added::Added;
use super::bytes::span;
use super::column::Column;
use super::entry_ids::EntryIds;
use super::given::Given;
use super::items::Items;
use super::line::{self, Line, Piece};
use super::stream_keys::{RowStream, StreamKeys};
use super::text::Style;
use super::{entry_id, json};
use crate::error::{Fault, code};
use crate::resp::write_bulk;

/// The bound rows of one record batch. A row is an index below [`Rows::len`]; the methods may panic for others.
///
/// Call [`Rows::field_count`] first: it returns the fault of a row that cannot be sent.
pub struct Rows<'a> {
    len: usize,
    stream_keys: StreamKeys<'a>,
    entry_ids: EntryIds<'a>,
    body: Body<'a>,
    /// The number of fields, if every row is known to be valid and to have this many.
    every_row: Option<usize>,
    /// The columns that may hold invalid values, by index and name: only these are checked.
    unchecked: Vec<(usize, &'a str)>,
    /// Offsets and bytes of the payloads, if every row is only a payload, in the most common Arrow layout.
    plain: Option<(&'a [i32], &'a [u8])>,
    /// Like `plain`, for rows that go to other streams, with entry IDs chosen by the server.
    plain_elsewhere: Option<(&'a [i32], &'a [u8])>,
}

enum Body<'a> {
    Payload {
        name: &'a [u8],
        payloads: Column<'a>,
    },
    Fields(Vec<(Piece<'a>, Column<'a>)>),
    Json {
        name: &'a [u8],
        members: Vec<(Piece<'a>, Column<'a>)>,
    },
    Items(Items<'a>),
    /// Of the only row.
    Given(Given<'a>),
    /// Other fields, and then those that are added to every row.
    With(Box<(Body<'a>, Added<'a>)>),
}

impl<'a> Rows<'a> {
    /// Rows whose only field is a payload. `name` is the field's name as a bulk string.
    pub(super) fn of_payload(len: usize, name: &'a [u8], payloads: Column<'a>) -> Self {
        Self::of(len, Body::Payload { name, payloads })
    }

    pub(super) fn of_fields(len: usize, columns: Vec<(Piece<'a>, Column<'a>)>) -> Self {
        Self::of(len, Body::Fields(columns))
    }

    pub(super) fn of_json(len: usize, name: &'a [u8], members: Vec<(Piece<'a>, Column<'a>)>) -> Self {
        Self::of(len, Body::Json { name, members })
    }

    pub(super) fn of_items(len: usize, items: Items<'a>) -> Self {
        Self::of(len, Body::Items(items))
    }

    pub(super) fn of_message(given: Given<'a>) -> Self {
        Self::of(1, Body::Given(given))
    }

    fn of(len: usize, body: Body<'a>) -> Self {
        let every_row = match &body {
            Body::Payload { payloads, .. } => payloads.is_never_null().then_some(1),
            Body::Fields(columns) => columns.iter().all(|(_, column)| column.is_never_null()).then_some(columns.len()),
            Body::Json { .. } => Some(1),
            Body::Items(_) | Body::Given(_) | Body::With(_) => None,
        };
        let plain = match &body {
            Body::Payload { payloads, .. } => payloads.plain(),
            Body::Fields(_) | Body::Json { .. } | Body::Items(_) | Body::Given(_) | Body::With(_) => None,
        };
        Self {
            len,
            stream_keys: StreamKeys::Endpoint,
            entry_ids: EntryIds::Server,
            body,
            every_row,
            unchecked: Vec::new(),
            plain,
            plain_elsewhere: None,
        }
    }

    /// Enables the check for invalid values, so that their rows fail. `names` are the names of the columns.
    pub(super) fn checked(self, names: impl Iterator<Item = &'a str>) -> Self {
        let mut unchecked: Vec<_> = names.enumerate().collect();
        unchecked.retain(|(at, _)| self.columns()[*at].1.may_be_outside_day(0..self.len));
        let every_row = self.every_row.filter(|_| unchecked.is_empty());
        Self { every_row, unchecked, ..self }
    }

    /// The columns of fields or JSON.
    fn columns(&self) -> &[(Piece<'a>, Column<'a>)] {
        self.body.columns()
    }

    /// Adds fields. Call it before [`Rows::routed`].
    pub(super) fn with(self, added: Added<'a>) -> Self {
        if added.is_empty() {
            return self;
        }
        let every_row = self.every_row.zip(added.count_of_every_row()).map(|(own, added)| own + added);
        Self { body: Body::With(Box::new((self.body, added))), every_row, plain: None, ..self }
    }

    pub(super) fn routed(self, stream_keys: StreamKeys<'a>, entry_ids: EntryIds<'a>) -> Self {
        if !stream_keys.are_own() && !entry_ids.are_own() {
            return self;
        }
        let every_row = self.every_row.filter(|_| stream_keys.are_valid() && !entry_ids.are_own());
        let plain_elsewhere = self.plain.filter(|_| every_row.is_some());
        Self { stream_keys, entry_ids, every_row, plain: None, plain_elsewhere, ..self }
    }

    /// Removes the names from the rows, and returns them as bulk strings with their number: from then on
    /// [`write_fields`](Rows::write_fields) writes only values. For a caller that sends the names once for many rows. Rows with
    /// [names of their own](Rows::has_own_names) keep them.
    pub(crate) fn take_names(&mut self) -> (Vec<u8>, usize) {
        match &mut self.body {
            Body::Payload { name, .. } | Body::Json { name, .. } => (std::mem::take(name).to_vec(), 1),
            Body::Fields(columns) => {
                let mut names = Vec::new();
                for (start, _) in &mut *columns {
                    names.extend_from_slice(start.take_name());
                }
                (names, columns.len())
            }
            Body::Items(_) | Body::Given(_) | Body::With(_) => (Vec::new(), 0),
        }
    }

    /// Whether rows may have any field names, which [`write_names`](Rows::write_names) writes.
    pub(crate) fn has_own_names(&self) -> bool {
        matches!(self.body, Body::Items(_))
    }

    /// Appends the names of a row that has its own, as bulk strings.
    pub(crate) fn write_names(&self, row: usize, out: &mut Vec<u8>) {
        if let Body::Items(items) = &self.body {
            items.write_names(row, out);
        }
    }

    /// Appends the values of a row that has its own names, as bulk strings.
    pub(crate) fn write_values(&self, row: usize, out: &mut Vec<u8>) {
        if let Body::Items(items) = &self.body {
            items.write_values(row, out);
        }
    }

    /// Whether rows have several fields, some of which they may lack.
    pub(crate) fn is_sparse(&self) -> bool {
        match &self.body {
            Body::Payload { .. } | Body::Json { .. } | Body::Items(_) | Body::Given(_) | Body::With(_) => false,
            Body::Fields(columns) => !columns.iter().all(|(_, column)| column.is_never_null()),
        }
    }

    /// Whether rows consist of separate fields rather than a payload.
    pub(crate) fn has_fields(&self) -> bool {
        matches!(self.body, Body::Fields(_))
    }

    /// Whether rows may have entry IDs of their own.
    pub(crate) fn has_entry_ids(&self) -> bool {
        self.entry_ids.are_own()
    }

    /// Whether fields cannot be sent without their names: those of the only row, a message, and those with
    /// added fields.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.body, Body::Given(_) | Body::With(_))
    }

    /// A number that identifies the fields of this row. With up to 64 fields, bit `n` shows whether the row has field `n`; with
    /// more, rows with different fields may have the same number.
    pub(crate) fn field_mark(&self, row: usize) -> u64 {
        let has_field = |(_, column): &(Piece<'_>, Column<'_>)| u64::from(column.locate(row).is_some());
        self.columns().iter().rev().fold(0, |mark, column| mark.rotate_left(1) ^ has_field(column))
    }

    /// Writes the [marks](Self::field_mark) of these rows to `marks`, column by column, which is cheaper. Leaves it empty if rows
    /// need another check, or have more than 64 fields.
    pub(crate) fn field_marks(&self, rows: Range<usize>, marks: &mut Vec<u64>) {
        marks.clear();
        let Body::Fields(columns) = &self.body else { return };
        if columns.len() > 64 || self.is_routed() || !self.unchecked.is_empty() {
            return;
        }
        marks.resize(rows.len(), 0);
        for (place, (_, column)) in columns.iter().enumerate() {
            column.mark_valid(rows.start, 1 << place, marks);
        }
    }

    /// The number of fields that a row can have.
    pub(crate) fn most_fields(&self) -> usize {
        self.columns().len()
    }

    /// The set of the fields of this row, as one character per field: `1` if the row has it, otherwise `0`.
    pub(crate) fn field_set(&self, row: usize, set: &mut Vec<u8>) {
        set.clear();
        set.extend(self.columns().iter().map(|(_, column)| b'0' + u8::from(column.locate(row).is_some())));
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether rows may have stream keys or entry IDs of their own.
    #[inline]
    pub fn is_routed(&self) -> bool {
        self.stream_keys.are_own() || self.entry_ids.are_own()
    }

    /// Whether rows may belong to streams other than the endpoint's.
    pub(crate) fn has_stream_keys(&self) -> bool {
        self.stream_keys.are_own()
    }

    /// The stream key of this row; `None`: the endpoint's.
    pub fn stream_key(&self, row: usize) -> Option<&'a [u8]> {
        self.stream_keys.get(row)
    }

    /// The stream of this row; `None`: the endpoint's.
    #[inline]
    pub(crate) fn stream(&self, row: usize) -> Option<RowStream<'a>> {
        self.stream_keys.stream(row)
    }

    /// The payload of a row that is only a payload for another stream, in the most common Arrow layout; `None` for other rows.
    #[inline]
    pub(crate) fn payload_elsewhere(&self, row: usize) -> Option<&'a [u8]> {
        self.plain_elsewhere.map(|(offsets, payloads)| &payloads[span(offsets, row)])
    }

    /// The entry ID of this row; `None`: chosen by the server.
    pub fn entry_id(&self, row: usize) -> Option<&'a [u8]> {
        self.entry_ids.get(row)
    }

    /// Whether rows may be a [payload alone](Self::payload_alone).
    #[inline]
    pub fn has_payload_alone(&self) -> bool {
        !self.is_routed() && matches!(self.body, Body::Payload { .. })
    }

    /// The payload of a row that is only a payload for the endpoint's stream key, the most common case; `None` for other
    /// rows and for one that cannot be sent.
    #[inline]
    pub fn payload_alone(&self, row: usize) -> Option<&'a [u8]> {
        match self.plain {
            Some((offsets, payloads)) => Some(&payloads[span(offsets, row)]),
            None => self.other_payload_alone(row),
        }
    }

    fn other_payload_alone(&self, row: usize) -> Option<&'a [u8]> {
        match &self.body {
            Body::Payload { payloads, .. } if self.has_payload_alone() => payloads.bytes(row),
            _ => None,
        }
    }

    /// The payload of a row as a slice of the column's buffer, which the slice keeps alive: the bytes that
    /// [`Rows::write_fields`] writes. `None` if it is null or inline in a view, and for rows without a payload.
    pub fn payload_buffer(&self, row: usize) -> Option<Buffer> {
        match &self.body {
            Body::Payload { payloads, .. } => payloads.buffer(row),
            Body::Fields(_) | Body::Json { .. } | Body::Items(_) | Body::Given(_) | Body::With(_) => None,
        }
    }

    /// The number of field-value pairs of this row (at least one), or the fault of a row that cannot be sent.
    ///
    /// The faults are `BAD_STREAM_KEY`, `BAD_ENTRY_ID`, `BAD_VALUE`, `NULL_PAYLOAD` and `EMPTY`; the first in this order
    /// is returned.
    #[inline]
    pub fn field_count(&self, row: usize) -> Result<usize, Fault> {
        match self.every_row {
            Some(count) => Ok(count),
            None => self.count_fields(row),
        }
    }

    fn count_fields(&self, row: usize) -> Result<usize, Fault> {
        if self.stream_keys.is_empty(row) {
            return Err(Fault::new(code::BAD_STREAM_KEY, "the row's stream key is empty"));
        }
        if let Some(id) = self.entry_id(row).filter(|id| !entry_id::is_entry_id(id)) {
            let allowed = "allowed: *, <ms>, <ms>-<seq>, <ms>-*";
            return Err(Fault::new(
                code::BAD_ENTRY_ID,
                format!("not an entry ID: {:?} ({allowed})", entry_id::quoted(id)),
            ));
        }
        let columns = self.columns();
        let outside = |(at, name): &(usize, &str)| columns[*at].1.outside_day(row).map(|outside| outside.message(name));
        if let Some(message) = self.unchecked.iter().find_map(outside) {
            return Err(Fault::new(code::BAD_VALUE, message));
        }
        self.body.count_fields(row)
    }

    /// Appends the row's fields as bulk strings: [`Rows::field_count`] times a name and a value.
    ///
    /// `scratch` is overwritten. The caller owns it so that its few KiB are allocated once for all rows; pass it unchanged.
    #[inline]
    pub fn write_fields(&self, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        self.body.write_fields(row, out, scratch);
    }

    /// Appends the row's payload or JSON as a field; `name` is its name as a bulk string. Rows with separate fields have neither.
    pub fn write_payload(&self, row: usize, name: &[u8], out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        self.body.write_payload(row, name, out, scratch);
    }
}

impl<'a> Body<'a> {
    /// The columns of fields or JSON.
    fn columns(&self) -> &[(Piece<'a>, Column<'a>)] {
        match self {
            Self::Payload { .. } | Self::Items(_) | Self::Given(_) => &[],
            Self::Fields(columns) | Self::Json { members: columns, .. } => columns,
            Self::With(with) => with.0.columns(),
        }
    }

    fn count_fields(&self, row: usize) -> Result<usize, Fault> {
        match self {
            Body::Payload { payloads, .. } => match payloads.locate(row) {
                Some(_) => Ok(1),
                None => Err(Fault::new(code::NULL_PAYLOAD, "the payload is null")),
            },
            Body::Fields(columns) => match columns.iter().filter(|(_, column)| column.locate(row).is_some()).count() {
                0 => Err(Fault::new(code::EMPTY, "every field of the row is null")),
                count => Ok(count),
            },
            Body::Json { .. } => Ok(1),
            Body::Items(items) => items.count(row),
            Body::Given(given) => given.count(),
            Body::With(with) => {
                let (body, added) = &**with;
                let count = body.count_fields(row)?;
                let Body::Items(items) = body else { return Ok(count + added.count(row)) };
                let message = if let Some(key) = added.key.as_ref().filter(|key| items.has_name(row, key.name)) {
                    let name = key.name;
                    format!("the row has a field {name:?}, which is also the key_field of the endpoint")
                } else if let Some(name) = added.constants.names().iter().find(|name| items.has_name(row, name)) {
                    format!("the row has a field {name:?}, which trace_context adds to every row")
                } else {
                    return Ok(count + added.count(row));
                };
                Err(Fault::new(code::BAD_VALUE, message))
            }
        }
    }

    #[inline]
    fn write_fields(&self, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        match self {
            Body::Payload { name, .. } | Body::Json { name, .. } => self.write_payload(row, name, out, scratch),
            Body::Fields(columns) => {
                let Some(room) = room(scratch) else { return };
                write_columns(columns, row, &mut Line::new(room, out));
            }
            Body::Items(items) => {
                let Some(room) = room(scratch) else { return };
                items.write_fields(row, &mut Line::new(room, out));
            }
            Body::Given(given) => {
                let Some(room) = room(scratch) else { return };
                given.write_fields(&mut Line::new(room, out));
            }
            Body::With(with) => with.0.write_fields_with(&with.1, row, out, scratch),
        }
    }

    #[inline(never)] // keeps it out of the code for other kinds of rows
    fn write_fields_with(&self, added: &Added<'_>, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        self.write_fields(row, out, scratch);
        out.extend_from_slice(added.constants.bulk());
        let Some(room) = room(scratch) else { return };
        added.write_key(row, &mut Line::new(room, out));
    }

    fn write_payload(&self, row: usize, name: &[u8], out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        match self {
            Body::Payload { payloads, .. } => {
                if let Some(payload) = payloads.bytes(row) {
                    out.extend_from_slice(name);
                    write_bulk(out, payload);
                }
            }
            Body::Json { members, .. } => {
                let Some(room) = room(scratch) else { return };
                out.extend_from_slice(name);
                let mut line = Line::new(room, out);
                let start = line.begin_bulk();
                json::write_object(members, row, &mut line);
                line.end_bulk(start);
            }
            Body::Fields(_) | Body::Items(_) | Body::Given(_) | Body::With(_) => {}
        }
    }
}

impl Rows<'_> {
    /// Appends the row as a JSON object, without a field around it. Rows that are not JSON have none.
    pub(super) fn write_json(&self, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        if let (Body::Json { members, .. }, Some(room)) = (&self.body, room(scratch)) {
            let mut line = Line::new(room, out);
            json::write_object(members, row, &mut line);
            line.flush();
        }
    }
}

/// The part of `scratch` in which a line is assembled. Never `None`: the memory is allocated if necessary.
fn room(scratch: &mut Vec<u8>) -> Option<&mut [u8; line::SIZE]> {
    if scratch.len() < line::SIZE {
        scratch.resize(line::SIZE, 0);
    }
    scratch.first_chunk_mut()
}

#[inline]
fn write_columns(columns: &[(Piece<'_>, Column<'_>)], row: usize, line: &mut Line<'_>) {
    for (start, column) in columns {
        let Some((values, place)) = column.locate(row) else { continue };
        line.make_room();
        let value = line.begin_field(start);
        let mut has_ended = false;
        values.write_text_with(place, line, Style::Field, |line, bytes| {
            has_ended = bytes.len() > 99;
            if has_ended {
                line.end_field_with(bytes);
            } else {
                line.push_text(bytes);
            }
        });
        if !has_ended {
            line.end_field(value);
        }
    }
    line.flush();
}
