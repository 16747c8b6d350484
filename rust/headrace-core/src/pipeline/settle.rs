//! Gives each reply to its message: the one place where a message that was sent gets its outcome from the server.

use super::Pipeline;
use super::link::{Break, Link};
use crate::error::{Fault, ReplyText, Written, code};
use crate::reply::{EntryId, Reply};
use crate::window::Owner;

impl Pipeline {
    /// Gives each reply that is here to its message.
    pub(super) fn settle(&mut self) -> Result<(), Break> {
        let Link::Open(connection) = &mut self.link else { return Ok(()) };
        loop {
            let reply = match connection.replies.next() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(violation) => return Err(protocol_fault(violation.0).into()),
            };
            let Some((owner, whole)) = self.window.answer() else {
                return Err(protocol_fault("a reply to nothing that was sent").into());
            };
            connection.proven = true;
            // What is left of a message that was answered too early must not go out: a server would read it as commands.
            let mut ends = None;
            let outcome = match reply {
                Reply::Id(id) if whole => match self.min_id {
                    Some(min_id) if id < min_id => Err((trimmed_fault(id, min_id), Written::Unknown)),
                    Some(_) | None => Ok(id),
                },
                Reply::Nil if whole && self.endpoint.nomkstream() => {
                    let message = "the stream does not exist, and nomkstream forbids to create it";
                    Err((Fault::new(code::NOSTREAM, message), Written::No))
                }
                Reply::Error(line) if Fault::from_reply(line).text == ReplyText::ProtocolError => {
                    let message = "the server closed the connection over a message before this one";
                    ends = Some(Break { fault: Fault::new(code::RESET, message), may_be_written: false });
                    Err((Fault { code: code::TOOLARGE.into(), ..Fault::from_reply(line) }, Written::No))
                }
                Reply::Error(line) if whole => Err((Fault::from_reply(line), Written::No)),
                Reply::Id(_) | Reply::Nil | Reply::Error(_) => {
                    let fault = protocol_fault(if whole { "nil without NOMKSTREAM" } else { "a reply too early" });
                    ends = Some(fault.clone().into());
                    Err((fault, Written::Unknown))
                }
            };
            let outcome = outcome.map_err(|(fault, written)| self.classifier.failure(&fault, written));
            match owner {
                Owner::Report => match &outcome {
                    Ok(id) => self.recorder.delivered(*id),
                    Err(failure) => self.recorder.failed(failure, 1),
                },
                Owner::Call => self.call = Some(outcome),
                Owner::Nobody => {}
            }
            while let Some((count, failure)) = self.window.pop_settled() {
                self.recorder.failed(&failure, count);
            }
            if let Some(broken) = ends {
                return Err(broken);
            }
        }
    }
}

fn protocol_fault(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server sent {what}; the connection was replaced"))
}

fn trimmed_fault(id: EntryId, min_id: EntryId) -> Fault {
    Fault::new(
        code::TRIMMED,
        format!("the entry got the ID {id}, below minid {min_id}: it is trimmed as it is written"),
    )
}
