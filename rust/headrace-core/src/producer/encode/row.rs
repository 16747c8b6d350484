//! The command of one row.

use crate::command::xadd::{Target, XaddEncoder};
use crate::error::Fault;
use crate::fail;
use crate::rows::{RowStream, Rows};

/// Appends the command of a row of any kind and returns its length, or why it cannot be sent.
#[inline]
pub(super) fn encode_row(
    rows: &Rows<'_>,
    row: usize,
    encoder: &mut XaddEncoder,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<usize, Fault> {
    let fields = rows.field_count(row)?;
    let before = out.len();
    if rows.is_routed() {
        let target = target_of(rows, row, encoder);
        write_row_to(rows, row, fields, target, encoder, out, scratch);
        fail::point("encode");
        return Ok(out.len() - before);
    }
    encoder.write_own_start(out, fields);
    rows.write_fields(row, out, scratch);
    fail::point("encode");
    encoder.write_end(out);
    Ok(out.len() - before)
}

/// The stream of a row.
#[inline]
pub(super) fn target_of<'a>(rows: &Rows<'a>, row: usize, encoder: &mut XaddEncoder) -> Target<'a> {
    match rows.stream(row) {
        None => Target::Own,
        Some(RowStream::Key(key)) => encoder.target_of_key(key),
        Some(RowStream::Shard(shard)) => Target::of_shard(shard),
    }
}

/// Appends the command of a row with this many `fields` for this stream.
#[inline]
pub(super) fn write_row_to(
    rows: &Rows<'_>,
    row: usize,
    fields: usize,
    target: Target<'_>,
    encoder: &mut XaddEncoder,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) {
    if let Some(payload) = rows.payload_elsewhere(row) {
        return encoder.write_payload_to(out, target, payload);
    }
    encoder.write_start(out, fields, target, rows.entry_id(row));
    rows.write_fields(row, out, scratch);
    encoder.write_end(out);
}
