//! The fields of a message that is given by itself.

use super::line::Line;
use super::value::Value;
use crate::error::{Fault, code};

/// The fields of one message: its payload, if it has one, then the others, then the key of its shard, if that is kept.
pub(super) struct Given<'a> {
    /// The name of its field and the payload.
    pub(super) payload: Option<(&'a [u8], &'a [u8])>,
    /// Names and values.
    pub(super) fields: &'a [(&'a [u8], Value<'a>)],
    /// The name of its field and the key of the shard.
    pub(super) key: Option<(&'a [u8], &'a [u8])>,
    /// Whether the key of its stream is empty.
    pub(super) has_no_stream: bool,
}

impl Given<'_> {
    /// The number of fields, or the fault of a message that cannot be sent: `BAD_STREAM_KEY`, `EMPTY`.
    pub(super) fn count(&self) -> Result<usize, Fault> {
        if self.has_no_stream {
            return Err(Fault::new(code::BAD_STREAM_KEY, "the message's stream key is empty"));
        }
        // A key alone is nothing to send.
        match usize::from(self.payload.is_some()) + self.fields.len() {
            0 => Err(Fault::new(code::EMPTY, "the message has no field")),
            count => Ok(count + usize::from(self.key.is_some())),
        }
    }

    /// Appends each field as two bulk strings.
    #[inline(never)] // keeps it out of the code for rows
    pub(super) fn write_fields(&self, line: &mut Line<'_>) {
        if let Some((name, payload)) = self.payload {
            line.push_bulk(name);
            line.push_bulk(payload);
        }
        for (name, value) in self.fields {
            line.push_bulk(name);
            value.write_bulk(line);
        }
        if let Some((name, key)) = self.key {
            line.push_bulk(name);
            line.push_bulk(key);
        }
        line.flush();
    }
}
