//! Exactly once by IDMP: each row goes out as an XADD with a name, which the server remembers.

use super::Pipeline;
use crate::error::{Fault, code};
use crate::exactly_once::{NAME_ARGUMENTS, Names};
use crate::fail;
use crate::rows::{CallerId, Rows};
use crate::window::Owner;
use crate::xadd::Template;

impl Pipeline {
    /// Encodes a message of one payload.
    pub(super) fn push_named_payload(&mut self, payload: &[u8], id: Option<CallerId<'_>>) {
        self.push_named(1, id, |template, out, _| template.write_payload_field(out, payload));
    }

    /// Encodes a row, or notes why it cannot be sent.
    #[inline(never)]
    pub(super) fn push_named_row(&mut self, rows: &Rows<'_>, row: usize, id: Option<CallerId<'_>>) {
        match rows.field_count(row) {
            Ok(fields) => self.push_named(fields, id, |_, out, scratch| rows.write_fields(row, out, scratch)),
            Err(fault) => {
                self.pass_names(1);
                self.push_settled_fault(&fault, 1);
            }
        }
    }

    /// `write` appends the fields of the command that is begun.
    fn push_named(
        &mut self,
        fields: usize,
        id: Option<CallerId<'_>>,
        write: impl FnOnce(&Template, &mut Vec<u8>, &mut Vec<u8>),
    ) {
        let Some(names) = &mut self.names else { return };
        let before = self.outbox.len();
        match name(names, id) {
            Ok(name) => {
                let out = self.outbox.bytes();
                self.template.write_start_with(out, fields, name, NAME_ARGUMENTS);
                write(&self.template, out, &mut self.scratch);
                fail::point("encode");
                self.template.write_end(out);
                self.ledger.window.push(self.outbox.len() - before, 1, Owner::Report);
            }
            // An earlier try may have sent it, of a smaller batch.
            Err(fault) if fault.code == code::TOO_MANY => self.push_fault(&fault, 1),
            Err(fault) => self.push_settled_fault(&fault, 1),
        }
    }

    /// So many rows of the batch are not sent.
    pub(super) fn pass_names(&mut self, rows: u64) {
        if let Some(names) = &mut self.names {
            names.pass(rows);
        }
    }
}

fn name<'a>(names: &'a mut Names, id: Option<CallerId<'_>>) -> Result<&'a [u8], Fault> {
    if !names.is_by_message_id() {
        return Ok(names.of_row());
    }
    match id {
        Some(CallerId::Int(id)) => names.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(CallerId::UInt(id)) => names.of_message(itoa::Buffer::new().format(id).as_bytes()),
        Some(CallerId::Text(id)) => names.of_message(id.as_bytes()),
        None => {
            let message = "exactly_once_key 'message_id' needs a message ID, and this message has none";
            Err(Fault::new(code::NULL_MESSAGE_ID, message))
        }
    }
}
