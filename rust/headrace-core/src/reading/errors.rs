//! The errors of a reader.

use crate::entries::{BadValue, escaped};
use crate::error::{Error, Fault, code};
use crate::resp::EntryId;
use crate::stream_facts::Loss;

/// The loss, in words.
fn trimmed(Loss { entries, exact }: Loss) -> String {
    let bound = if exact { "" } else { "at most " };
    let subject = match entries {
        1 => "entry was trimmed before it was read",
        _ => "entries were trimmed before they were read",
    };
    format!("{bound}{entries} {subject}")
}

/// The error for a loss. `first`: the oldest remaining entry. The error's position is set once it is returned.
pub(super) fn data_loss(stream: &[u8], loss: Loss, first: Option<EntryId>) -> Error {
    let remaining = first.map_or("no entry is left".to_owned(), |oldest| format!("the oldest entry is {oldest}"));
    let message = format!(
        "stream {}: {}, and {remaining}; continue from the position of this error, or read with on_loss 'report'",
        escaped(stream),
        trimmed(loss)
    );
    let Loss { entries, exact } = loss;
    Error::DataLoss { stream: stream.to_vec(), lost: entries, exact, position: String::new(), message }
}

/// The error for a stream that is not the one that was read before. Its position is set once it is returned.
pub(super) fn stream_replaced(stream: &[u8], reason: &str) -> Error {
    let message = format!("stream {} is not the one that was read before: {reason}", escaped(stream));
    Error::StreamReplaced { stream: stream.to_vec(), position: String::new(), message }
}

/// The error for an entry that does not fit. `lost`: the loss before the entry that was not reported. The error's position is set
/// once it is returned.
pub(super) fn bad_field(stream: &[u8], id: EntryId, value: &BadValue, lost: Option<Loss>) -> Error {
    let before = lost.map(|loss| format!("; before this entry, {}", trimmed(loss))).unwrap_or_default();
    let message = format!("stream {}, entry {id}: {value}{before}", escaped(stream));
    let Loss { entries: lost, exact } = lost.unwrap_or(Loss { entries: 0, exact: true });
    Error::Field { stream: stream.to_vec(), entry_id: id.to_string(), lost, exact, position: String::new(), message }
}

/// The error for a stream that the server refuses. `fault`: the refusal of a command.
pub(crate) fn stream_refused(stream: &[u8], fault: &Fault) -> Error {
    Error::stream_refused(stream, fault, &format!("stream {}: {}", escaped(stream), fault.message))
}

/// Whether the fault concerns a single stream: the key holds no stream, or the user may not read it. The connection remains
/// usable.
pub(crate) fn is_of_stream(fault: &Fault) -> bool {
    matches!(&*fault.code, "WRONGTYPE" | "NOPERM")
}

pub(crate) fn protocol(reason: &'static str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server's reply cannot be read: it sent {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_the_number_of_entries() {
        let text = |entries, exact| data_loss(b"s", Loss { entries, exact }, None).to_string();
        assert!(text(1, true).starts_with("stream s: 1 entry was trimmed before it was read, and no entry is left;"));
        assert!(text(2, false).starts_with("stream s: at most 2 entries were trimmed before they were read, and"));
    }
}
