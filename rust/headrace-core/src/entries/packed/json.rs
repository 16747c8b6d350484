//! JSON payloads: each is one row, an object whose members are the columns.

use super::Unreadable;
use super::room::Room;
use super::size::{Size, row_bytes};
use crate::entries::fields::{FieldColumns, FieldsPlan};
use crate::entries::json::{for_each_member, text_of};

/// Appends the row of a payload, or nothing. A null is treated like a missing member. `most`: the maximum size of a row.
pub(super) fn push(
    columns: &mut FieldColumns,
    plan: &FieldsPlan,
    most: Size,
    payload: &[u8],
    room: Room,
) -> Result<(), Unreadable> {
    let Ok(text) = simdutf8::basic::from_utf8(payload) else {
        return Err(Unreadable::Payload("it is not UTF-8".to_owned()));
    };
    // Most payloads fit whatever is in them. The others are read twice.
    if most.with_text(text.len()) > room.bytes() && row_bytes(plan.fields(), text) > room.bytes() {
        return Err(Unreadable::TooLarge);
    }
    let mut take = |name: &str, value| {
        if let Some(text) = text_of(value) {
            columns.field(name.as_bytes(), text.as_bytes());
        }
    };
    match for_each_member(text, &mut take) {
        Ok(()) => columns.end().map_err(Unreadable::Value),
        Err(error) => {
            columns.discard();
            Err(Unreadable::Payload(format!("it is not a JSON object: {error}")))
        }
    }
}
