//! The fields of a message that is given by itself.

use super::line::Line;
use super::value::Value;

/// The fields of one message: its payload, if it has one, then the others, then the key of its shard, if that is kept.
pub(super) struct Given<'a> {
    /// The name of its field and the payload.
    pub(super) payload: Option<(&'a [u8], &'a [u8])>,
    /// Names and values.
    pub(super) fields: &'a [(&'a [u8], Value<'a>)],
    /// The name of its field and the key of the shard.
    pub(super) key: Option<(&'a [u8], &'a [u8])>,
}

impl Given<'_> {
    /// The number of fields; 0: there is nothing to send, besides a key.
    pub(super) fn count(&self) -> usize {
        match usize::from(self.payload.is_some()) + self.fields.len() {
            0 => 0,
            count => count + usize::from(self.key.is_some()),
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
