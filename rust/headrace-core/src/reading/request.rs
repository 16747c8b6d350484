//! The commands of a reader, as bytes.

use std::time::Duration;

use crate::resp::EntryId;
use crate::resp::{write_array_header, write_bulk};

/// Writes `XRANGE key first last COUNT count`, both ends inclusive: <https://redis.io/docs/latest/commands/xrange/>. IDs are
/// written in full: servers read `5` as 5-0 at the beginning of a range, and as 5-18446744073709551615 at its end.
pub(super) fn range(out: &mut Vec<u8>, key: &[u8], first: EntryId, last: EntryId, count: u64) {
    write_range(out, b"XRANGE", key, first, last, count);
}

/// Writes `XREVRANGE key first last COUNT count`, from the higher ID to the lower one:
/// <https://redis.io/docs/latest/commands/xrevrange/>.
pub(super) fn range_backward(out: &mut Vec<u8>, key: &[u8], first: EntryId, last: EntryId, count: u64) {
    write_range(out, b"XREVRANGE", key, first, last, count);
}

fn write_range(out: &mut Vec<u8>, name: &[u8], key: &[u8], first: EntryId, last: EntryId, count: u64) {
    write_array_header(out, 6);
    write_bulk(out, name);
    write_bulk(out, key);
    for part in [&first.to_string(), &last.to_string(), "COUNT", &count.to_string()] {
        write_bulk(out, part.as_bytes());
    }
}

/// Writes `XREAD COUNT count [BLOCK ms] STREAMS keys… ids…`, for entries after the IDs,
/// <https://redis.io/docs/latest/commands/xread/>. BLOCK 0 would wait for ever, so a wait lasts at least a millisecond.
pub(super) fn follow<'a>(
    out: &mut Vec<u8>,
    streams: impl ExactSizeIterator<Item = (&'a [u8], EntryId)> + Clone,
    count: u64,
    block: Option<Duration>,
) {
    let block = block.map(|block| block.as_millis().max(1).to_string());
    write_array_header(out, 4 + if block.is_some() { 2 } else { 0 } + 2 * streams.len());
    for part in ["XREAD", "COUNT", &count.to_string()] {
        write_bulk(out, part.as_bytes());
    }
    if let Some(block) = block {
        write_bulk(out, b"BLOCK");
        write_bulk(out, block.as_bytes());
    }
    write_bulk(out, b"STREAMS");
    for (key, _) in streams.clone() {
        write_bulk(out, key);
    }
    for (_, after) in streams {
        write_bulk(out, after.to_string().as_bytes());
    }
}

/// Writes `HELLO`, which shows the role of the server and changes nothing: <https://redis.io/docs/latest/commands/hello/>.
pub(super) fn hello(out: &mut Vec<u8>) {
    write_array_header(out, 1);
    write_bulk(out, b"HELLO");
}

/// Writes `XINFO STREAM key`.
pub(super) fn info(out: &mut Vec<u8>, key: &[u8]) {
    write_array_header(out, 3);
    for part in [b"XINFO", &b"STREAM"[..], key] {
        write_bulk(out, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: EntryId = EntryId { ms: 5, seq: 0 };

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8_lossy(&out).lines().filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn commands_use_full_ids_and_never_block_for_ever() {
        assert_eq!(
            text(|out| range(out, b"k", ID, EntryId::MAX, 17)),
            "XRANGE k 5-0 18446744073709551615-18446744073709551615 COUNT 17"
        );
        let streams = [(&b"a"[..], ID), (&b"b"[..], EntryId { ms: 6, seq: 7 })];
        assert_eq!(text(|out| follow(out, streams.into_iter(), 3, None)), "XREAD COUNT 3 STREAMS a b 5-0 6-7");
        let block = Some(Duration::from_micros(3));
        assert_eq!(text(|out| follow(out, streams.into_iter(), 3, block)), "XREAD COUNT 3 BLOCK 1 STREAMS a b 5-0 6-7");
        assert_eq!(text(|out| info(out, b"k")), "XINFO STREAM k");
    }
}
