//! JSON payloads: each is one row, an object whose members are the columns.

use super::Unreadable;
use crate::entries::fields::FieldColumns;
use crate::entries::json::{for_each_member, text_of};

/// Appends the row of a payload, or nothing. A null is treated like a missing member.
pub(super) fn push(columns: &mut FieldColumns, payload: &[u8]) -> Result<(), Unreadable> {
    let object = simdutf8::basic::from_utf8(payload).map_err(|_| "it is not UTF-8".to_owned()).and_then(|text| {
        let mut take = |name: &str, value| {
            if let Some(text) = text_of(value) {
                columns.field(name.as_bytes(), text.as_bytes());
            }
        };
        for_each_member(text, &mut take).map_err(|error| format!("it is not a JSON object: {error}"))
    });
    match object {
        Ok(()) => columns.end().map_err(Unreadable::Value),
        Err(reason) => {
            columns.discard();
            Err(Unreadable::Payload(reason))
        }
    }
}
