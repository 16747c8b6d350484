//! What the replies to messages mean that have no words of their own for it, or whose words are the script's.

use crate::error::{Fault, code};
use crate::reply::EntryId;

/// Why WAIT will not cover a run that was deduplicated, if that is what an error reply of the script says.
pub(super) fn uncovered(line: &[u8]) -> Option<Fault> {
    let why = Fault::from_reply(line.strip_prefix(b"UNCOVERED ")?);
    Some(Fault { code: code::NOT_REPLICATED.into(), ..why })
}

/// Whether an error reply of the script says that the marker is before the run.
pub(super) fn is_gap(line: &[u8]) -> bool {
    line.starts_with(b"GAP ")
}

pub(super) fn no_stream() -> Fault {
    Fault::new(code::NO_STREAM, "the stream does not exist, and nomkstream forbids to create it")
}

pub(super) fn too_large(fault: Fault) -> Fault {
    Fault { code: code::TOO_LARGE.into(), ..fault }
}

/// Of a run: the others can be written, so none is called permanent.
pub(super) fn one_too_large(rows: u64, fault: &Fault) -> Fault {
    let said = &fault.message;
    let message = format!("one of {rows} rows is larger than the server takes; script_run_rows=1 tells which: {said}");
    Fault::new("ERR", message)
}

pub(super) fn blocked() -> Fault {
    Fault::new(code::BLOCKED, "a row before this one was not written, and rows of one stream stay in order")
}

pub(super) fn protocol(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server sent {what}; the connection was replaced"))
}

pub(super) fn trimmed(id: EntryId, min_id: EntryId) -> Fault {
    Fault::new(
        code::TRIMMED,
        format!("the entry got the ID {id}, below minid {min_id}: it is trimmed as it is written"),
    )
}
