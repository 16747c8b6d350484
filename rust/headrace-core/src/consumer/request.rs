//! The commands of a consumer, as bytes.

use std::time::Duration;

use super::work::Names;
use crate::resp::{EntryId, write_array_header, write_bulk};

fn write(out: &mut Vec<u8>, parts: &[&[u8]]) {
    write_array_header(out, parts.len());
    for part in parts {
        write_bulk(out, part);
    }
}

/// Writes `XREADGROUP … STREAMS keys… >…`, for entries that no consumer of the group has had yet,
/// <https://redis.io/docs/latest/commands/xreadgroup/>. BLOCK 0 would wait for ever, so a wait lasts at least a millisecond.
pub(super) fn read_new(
    out: &mut Vec<u8>,
    names: &Names,
    keys: &[&[u8]],
    count: u64,
    block: Option<Duration>,
    acks: bool,
) {
    let count = count.to_string();
    let block = block.map(|block| block.as_millis().max(1).to_string());
    let mut parts: Vec<&[u8]> =
        vec![b"XREADGROUP", b"GROUP", &names.group, &names.consumer, b"COUNT", count.as_bytes()];
    if let Some(block) = &block {
        parts.extend([&b"BLOCK"[..], block.as_bytes()]);
    }
    if !acks {
        parts.push(b"NOACK");
    }
    parts.push(b"STREAMS");
    parts.extend(keys);
    parts.extend(keys.iter().map(|_| &b">"[..]));
    write(out, &parts);
}

/// Writes XREADGROUP for this consumer's pending entries after `after`: each counts as delivered once more.
pub(super) fn read_pending(out: &mut Vec<u8>, names: &Names, key: &[u8], after: EntryId, count: u64) {
    let (after, count) = (after.to_string(), count.to_string());
    write(
        out,
        &[
            b"XREADGROUP",
            b"GROUP",
            &names.group,
            &names.consumer,
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            key,
            after.as_bytes(),
        ],
    );
}

/// Writes `XPENDING key group first last count consumer`, for this consumer's pending entries in a range, without delivering
/// them.
pub(super) fn pending(out: &mut Vec<u8>, names: &Names, key: &[u8], first: EntryId, last: EntryId, count: u64) {
    let (first, last, count) = (first.to_string(), last.to_string(), count.to_string());
    write(out, &[b"XPENDING", key, &names.group, first.as_bytes(), last.as_bytes(), count.as_bytes(), &names.consumer]);
}

/// Writes `XAUTOCLAIM … JUSTID`: entries that have been idle for `min_idle` become this consumer's, without counting as
/// delivered.
pub(super) fn claim(out: &mut Vec<u8>, names: &Names, key: &[u8], min_idle: Duration, from: EntryId, count: u64) {
    let (idle, from, count) = (min_idle.as_millis().to_string(), from.to_string(), count.to_string());
    write(
        out,
        &[
            b"XAUTOCLAIM",
            key,
            &names.group,
            &names.consumer,
            idle.as_bytes(),
            from.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"JUSTID",
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>, &Names)) -> String {
        let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: None };
        let mut out = Vec::new();
        write(&mut out, &names);
        String::from_utf8_lossy(&out).lines().filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn commands_never_block_for_ever() {
        let keys = [&b"a"[..], b"b"];
        assert_eq!(
            text(|out, names| read_new(out, names, &keys, 5, None, true)),
            "XREADGROUP GROUP g c COUNT 5 STREAMS a b > >"
        );
        let block = Some(Duration::from_micros(3));
        assert_eq!(
            text(|out, names| read_new(out, names, &keys[..1], 5, block, false)),
            "XREADGROUP GROUP g c COUNT 5 BLOCK 1 NOACK STREAMS a >"
        );
        let (id, last) = (EntryId { ms: 1, seq: 2 }, EntryId { ms: 3, seq: 0 });
        assert_eq!(
            text(|out, names| read_pending(out, names, b"a", id, 7)),
            "XREADGROUP GROUP g c COUNT 7 STREAMS a 1-2"
        );
        assert_eq!(text(|out, names| pending(out, names, b"a", id, last, 7)), "XPENDING a g 1-2 3-0 7 c");
        let idle = Duration::from_secs(60);
        assert_eq!(
            text(|out, names| claim(out, names, b"a", idle, id, 7)),
            "XAUTOCLAIM a g c 60000 1-2 COUNT 7 JUSTID"
        );
    }
}
