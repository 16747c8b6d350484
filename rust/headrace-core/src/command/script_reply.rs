//! The reply to a run of the script: how many rows were written before, why the next one was not written, and the entry IDs.

use super::reply::{Reply, ScriptReply};
use super::xadd_reply;
use crate::decimal;
use crate::resp::decode::{Violation, bulk, header, integer};
use crate::resp::entry_id;

/// The maximum number of rows in a run: its reply takes 67,119 bytes at most, if each of its numbers has as many digits as are
/// accepted.
pub(crate) const MAX_RUN: u64 = 1000;

/// How many parts of the reply come before the entry IDs.
const BEFORE_IDS: u64 = 3;

/// The reply to a run at the start of `bytes` and its length, once all of it has arrived: an array of an integer, a bulk string,
/// an integer, and the entry IDs: all of them, or only the first and the last.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    const NO_RUN: Violation = Violation("a reply that no run of rows is answered by");
    match bytes.first() {
        None => return Ok(None),
        Some(b'-') => return xadd_reply::decode(bytes),
        Some(b'*') => {}
        Some(_) => return Err(NO_RUN),
    }
    let Some(first) = header(bytes)? else { return Ok(None) };
    let parts = decimal::parse(&first[1..])
        .filter(|parts| (BEFORE_IDS..=MAX_RUN + BEFORE_IDS).contains(parts))
        .ok_or(NO_RUN)?;
    let mut at = first.len() + 2;
    let Some(deduplicated) = header(&bytes[at..])? else { return Ok(None) };
    at += deduplicated.len() + 2;
    let deduplicated = integer(deduplicated).ok_or(NO_RUN)?;
    let Some((refused, length)) = bulk(&bytes[at..])? else { return Ok(None) };
    at += length;
    let refused = refused.ok_or(NO_RUN)?;
    let Some(appended) = header(&bytes[at..])? else { return Ok(None) };
    at += appended.len() + 2;
    let appended = integer(appended).ok_or(NO_RUN)?;
    let count = parts - BEFORE_IDS;
    let is_range = count == 2 && (3..=MAX_RUN).contains(&appended);
    if count != appended && !is_range {
        return Err(Violation("another number of entry IDs than of rows"));
    }
    let start = at;
    let mut ends = [None; 2];
    for _ in 0..count {
        let Some((id, length)) = bulk(&bytes[at..])? else { return Ok(None) };
        let id = id.and_then(entry_id).ok_or(Violation("a bulk string that is not an entry ID"))?;
        ends = [ends[0].or(Some(id)), Some(id)];
        at += length;
    }
    if let (true, [Some(first), Some(last)]) = (is_range, ends)
        && (first.ms != last.ms || last.seq.checked_sub(first.seq) != Some(appended - 1))
    {
        return Err(Violation("the ends of another number of entry IDs than of rows"));
    }
    Ok(Some((Reply::Run(ScriptReply { deduplicated, refused, appended, is_range, ids: &bytes[start..at] }), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted(rows: u64, first: u64, last: u64) -> bool {
        let bulk = |seq| format!("${}\r\n7-{seq}\r\n", format!("7-{seq}").len());
        let reply = format!("*5\r\n:0\r\n$0\r\n\r\n:{rows}\r\n{}{}", bulk(first), bulk(last));
        let Ok(decoded) = decode(reply.as_bytes()) else { return false };
        let whole =
            matches!(&decoded, Some((Reply::Run(run), length)) if *length == reply.len() && run.ids().count() == 1);
        assert!(whole, "{reply}: {decoded:?}");
        true
    }

    #[test]
    fn a_last_id_that_is_off_by_one_is_a_violation() {
        for rows in [3, 400, MAX_RUN] {
            // Lua's numbers have 53 bits: near 2^53 and at the end, it cannot tell two neighbours apart.
            for last in [rows, 1 << 53, (1 << 53) + 1, (1 << 53) + rows, u64::MAX - 2, u64::MAX - 1] {
                let first = last - (rows - 1);
                assert!(is_accepted(rows, first, last), "{rows} {last}");
                assert!(!is_accepted(rows, first, last - 1), "{rows} {last}");
                assert!(!is_accepted(rows, first, last + 1), "{rows} {last}");
                assert!(!is_accepted(rows, last, first), "{rows} {last}: backwards");
            }
        }
    }
}
