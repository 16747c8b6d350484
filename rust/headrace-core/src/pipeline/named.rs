//! Exactly once by IDMP: each row goes out as an XADD with a name, which the server remembers.

use super::Pipeline;
use crate::error::{Fault, code};
use crate::exactly_once::{NAME_ARGUMENTS, Names};
use crate::rows::{Id, Rows};
use crate::window::Owner;

impl Pipeline {
    /// Encodes a message of one payload.
    pub(super) fn push_named_payload(&mut self, payload: &[u8], id: Option<Id<'_>>) {
        self.push_named(id, |pipeline, name| {
            let (template, out) = (&mut pipeline.template, pipeline.outbox.bytes());
            template.write_start_with(out, 1, name, NAME_ARGUMENTS);
            template.write_payload_field(out, payload);
        });
    }

    /// Encodes a row, or notes why it cannot be sent.
    #[inline(never)]
    pub(super) fn push_named_row(&mut self, rows: &Rows<'_>, row: usize, id: Option<Id<'_>>) {
        match rows.field_count(row) {
            Ok(fields) => self.push_named(id, |pipeline, name| {
                let (template, out) = (&mut pipeline.template, pipeline.outbox.bytes());
                template.write_start_with(out, fields, name, NAME_ARGUMENTS);
                rows.write_fields(row, out, &mut pipeline.scratch);
            }),
            Err(fault) => {
                self.pass_names(1);
                self.push_settled_fault(&fault, 1);
            }
        }
    }

    fn push_named(&mut self, id: Option<Id<'_>>, write: impl FnOnce(&mut Self, &[u8])) {
        let Some(mut names) = self.names.take() else { return };
        let before = self.outbox.len();
        match name(&mut names, id) {
            Ok(name) => {
                write(self, name);
                self.template.write_end(self.outbox.bytes());
                self.ledger.window.push(self.outbox.len() - before, 1, Owner::Report);
            }
            // An earlier try may have sent it, of a smaller batch.
            Err(fault) if fault.code == code::TOOMANY => self.push_fault(&fault, 1),
            Err(fault) => self.push_settled_fault(&fault, 1),
        }
        self.names = Some(names);
    }

    /// So many rows of the batch are not sent.
    pub(super) fn pass_names(&mut self, rows: u64) {
        if let Some(names) = &mut self.names {
            names.pass(rows);
        }
    }
}

fn name<'a>(names: &'a mut Names, id: Option<Id<'_>>) -> Result<&'a [u8], Fault> {
    if !names.is_by_message_id() {
        return Ok(names.of_row());
    }
    match id {
        Some(Id::Int(id)) => names.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(Id::UInt(id)) => names.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(Id::Text(id)) => names.of_message(id.as_bytes()),
        None => {
            let message = "exactly_once_key 'message_id' needs a message ID, and this message has none";
            Err(Fault::new(code::NULL_MESSAGE_ID, message))
        }
    }
}
