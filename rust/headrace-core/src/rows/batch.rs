//! The rows of one record batch, ready to be written.

use super::column::{Column, Values};
use super::text::Style;
use super::{entry_id, json};
use crate::error::{Fault, code};
use crate::resp::write_bulk;

/// The rows of one record batch. A row is a number below [`Rows::len`]; with another one these methods may panic.
///
/// [`Rows::field_count`] comes first: it says whether a row can be sent at all.
pub struct Rows<'a> {
    len: usize,
    stream_keys: Option<Column<'a>>,
    entry_ids: Option<Column<'a>>,
    body: Body<'a>,
}

enum Body<'a> {
    Payload { name: &'a [u8], payloads: Column<'a> },
    Fields { columns: Vec<(&'a [u8], Column<'a>)>, always: usize },
    Json { name: &'a [u8], members: Vec<(&'a [u8], Column<'a>)> },
}

impl<'a> Rows<'a> {
    /// Names are bulk strings.
    pub(super) fn of_payload(len: usize, name: &'a [u8], payloads: Column<'a>) -> Self {
        Self::of(len, Body::Payload { name, payloads })
    }

    pub(super) fn of_fields(len: usize, columns: Vec<(&'a [u8], Column<'a>)>) -> Self {
        let always = columns.iter().filter(|(_, column)| column.is_never_null()).count();
        Self::of(len, Body::Fields { columns, always })
    }

    pub(super) fn of_json(len: usize, name: &'a [u8], members: Vec<(&'a [u8], Column<'a>)>) -> Self {
        Self::of(len, Body::Json { name, members })
    }

    fn of(len: usize, body: Body<'a>) -> Self {
        Self { len, stream_keys: None, entry_ids: None, body }
    }

    pub(super) fn routed(self, stream_keys: Option<Column<'a>>, entry_ids: Option<Column<'a>>) -> Self {
        Self { stream_keys, entry_ids, ..self }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where this row goes; `None`: to the endpoint's stream key.
    pub fn stream_key(&self, row: usize) -> Option<&'a [u8]> {
        self.stream_keys.as_ref()?.bytes(row)
    }

    /// The entry ID that this row is to have; `None`: the server's choice.
    pub fn entry_id(&self, row: usize) -> Option<&'a [u8]> {
        self.entry_ids.as_ref()?.bytes(row)
    }

    /// The payload of a row that is no more than a payload for the endpoint's stream key, which is what most rows are;
    /// `None` for any other, and for one that cannot be sent.
    #[inline]
    pub fn payload_alone(&self, row: usize) -> Option<&'a [u8]> {
        match (&self.body, &self.stream_keys, &self.entry_ids) {
            (Body::Payload { payloads, .. }, None, None) => payloads.bytes(row),
            _ => None,
        }
    }

    /// How many field-value pairs this row gives (at least one), or why it cannot be sent.
    ///
    /// The faults are `BAD_STREAM_KEY`, `BAD_ENTRY_ID`, `NULL_PAYLOAD` and `EMPTY`, in this order if there are several.
    pub fn field_count(&self, row: usize) -> Result<usize, Fault> {
        if self.stream_key(row).is_some_and(<[u8]>::is_empty) {
            return Err(Fault::new(code::BAD_STREAM_KEY, "the row's stream key is empty"));
        }
        if let Some(id) = self.entry_id(row).filter(|id| !entry_id::is_entry_id(id)) {
            let allowed = "allowed: *, <ms>, <ms>-<seq>, <ms>-*";
            return Err(Fault::new(
                code::BAD_ENTRY_ID,
                format!("not an entry ID: {:?} ({allowed})", entry_id::quoted(id)),
            ));
        }
        match &self.body {
            Body::Payload { payloads, .. } => match payloads.locate(row) {
                Some(_) => Ok(1),
                None => Err(Fault::new(code::NULL_PAYLOAD, "the payload is null")),
            },
            Body::Fields { columns, always } if *always == columns.len() => Ok(*always),
            Body::Fields { columns, .. } => {
                match columns.iter().filter(|(_, column)| column.locate(row).is_some()).count() {
                    0 => Err(Fault::new(code::EMPTY, "every field of the row is null")),
                    count => Ok(count),
                }
            }
            Body::Json { .. } => Ok(1),
        }
    }

    /// Appends the row's fields as bulk strings: [`Rows::field_count`] times a name and a value.
    ///
    /// `scratch` is overwritten. It is the caller's so that its memory serves row after row.
    pub fn write_fields(&self, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        match &self.body {
            Body::Payload { name, payloads } => {
                if let Some(payload) = payloads.bytes(row) {
                    out.extend_from_slice(name);
                    write_bulk(out, payload);
                }
            }
            Body::Fields { columns, .. } => {
                for (name, column) in columns {
                    if let Some((values, place)) = column.locate(row) {
                        out.extend_from_slice(name);
                        write_text_bulk(values, place, out, scratch);
                    }
                }
            }
            Body::Json { name, members } => {
                scratch.clear();
                json::write_object(members, row, scratch);
                out.extend_from_slice(name);
                write_bulk(out, scratch);
            }
        }
    }
}

fn write_text_bulk(values: &Values<'_>, row: usize, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
    if let Values::Text(bytes) | Values::Binary(bytes) = values {
        return write_bulk(out, bytes.get(row));
    }
    scratch.clear();
    values.write_text(row, scratch, Style::Field);
    write_bulk(out, scratch);
}
