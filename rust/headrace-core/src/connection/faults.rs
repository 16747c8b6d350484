//! Faults for replies that carry no error text of their own, and the prefixes of the script's own errors.

use crate::command::EntryId;
use crate::error::{Fault, code};

/// Why WAIT cannot cover a run that was there before, if that is what an error reply of the script reports.
pub(crate) fn uncovered(line: &[u8]) -> Option<Fault> {
    let why = Fault::from_reply(line.strip_prefix(b"UNCOVERED ")?);
    Some(Fault { code: code::NOT_REPLICATED.into(), ..why })
}

/// Whether an error reply of the script reports that the marker is before the run.
pub(crate) fn is_gap(line: &[u8]) -> bool {
    line.starts_with(b"GAP ")
}

pub(crate) fn no_stream() -> Fault {
    Fault::new(code::NO_STREAM, "the stream does not exist, and nomkstream forbids to create it")
}

pub(crate) fn too_large(fault: Fault) -> Fault {
    Fault { code: code::TOO_LARGE.into(), ..fault }
}

/// Of a run: the other rows can be written, so none is called permanent.
pub(crate) fn one_too_large(rows: u64, fault: &Fault) -> Fault {
    let reason = &fault.message;
    let message =
        format!("one of {rows} rows is larger than the server takes; script_run_rows=1 tells which: {reason}");
    Fault::new("ERR", message)
}

pub(crate) fn blocked() -> Fault {
    Fault::new(code::BLOCKED, "a row before this one was not written, and rows of one stream stay in order")
}

pub(crate) fn protocol(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server sent {what}; the connection was replaced"))
}

pub(crate) fn trimmed(id: EntryId, min_id: EntryId) -> Fault {
    Fault::new(
        code::TRIMMED,
        format!("the entry got the ID {id}, below minid {min_id}: it is trimmed as it is written"),
    )
}
