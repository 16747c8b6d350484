//! Faults for replies that carry no error text of their own, and the prefixes of the script's own errors.

use crate::command::EntryId;
use crate::error::{Fault, code};

/// Why WAIT cannot cover a run that was written before, if that is what an error reply of the script reports.
pub(crate) fn uncovered(line: &[u8]) -> Option<Fault> {
    let why = Fault::from_reply(line.strip_prefix(b"UNCOVERED ")?);
    Some(Fault { code: code::NOT_REPLICATED.into(), ..why })
}

/// Whether an error reply of the script reports that the marker is before the run.
pub(crate) fn is_gap(line: &[u8]) -> bool {
    line.starts_with(b"GAP ")
}

/// What the server lost, from the reply that reports a gap: where the marker is, where it was, and the stream.
pub(crate) fn marker_lost(line: &[u8]) -> Fault {
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(4, ' ').skip(1);
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let message = match (number(), number(), words.next()) {
        (Some(marker), Some(before @ 1..), Some(stream)) => {
            let place = if marker == 0 { "gone".to_owned() } else { format!("at {marker}") };
            let last = before - 1;
            // The sentence must end within the part of it that is kept.
            let stream: String = stream.chars().take(60).collect();
            format!(
                "the marker of the batch in {stream:?} is {place}: of its messages in this stream those from {marker} to {last} \
                 (from 0) were acknowledged, and may be lost"
            )
        }
        _ => "the marker of the batch is missing, or behind messages that were acknowledged".into(),
    };
    Fault::new(code::MARKER_LOST, message)
}

pub(crate) fn no_stream() -> Fault {
    Fault::new(code::NO_STREAM, "the stream does not exist, and nomkstream forbids to create it")
}

pub(crate) fn too_large(fault: Fault) -> Fault {
    Fault { code: code::TOO_LARGE.into(), ..fault }
}

/// For a run: the other rows can be written, so none is called permanent.
pub(crate) fn one_too_large(rows: u64, fault: &Fault) -> Fault {
    let reason = &fault.message;
    let message =
        format!("one of {rows} rows is larger than the server accepts; script_run_rows=1 shows which: {reason}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_marker_names_the_messages_and_their_stream() {
        let said = |line: &[u8]| marker_lost(line).message;
        assert_eq!(
            said(b"GAP 20 50 orders 3"),
            "the marker of the batch in \"orders 3\" is at 20: of its messages in this stream those from 20 to 49 (from 0) were \
             acknowledged, and may be lost"
        );
        assert!(said(b"GAP 0 1 s").starts_with("the marker of the batch in \"s\" is gone: "), "{}", said(b"GAP 0 1 s"));
        assert!(said(b"GAP 0 1 s").contains("those from 0 to 0"));
        for other in [&b"GAP "[..], b"GAP 5", b"GAP 5 x s", b"GAP 0 0 s"] {
            assert_eq!(said(other), "the marker of the batch is missing, or behind messages that were acknowledged");
        }
        let long = [b"GAP 1234567890123456 1234567890123456 ".as_slice(), &[b'k'; 100]].concat();
        assert!(said(&long).ends_with("may be lost"), "{}", said(&long));
    }
}
