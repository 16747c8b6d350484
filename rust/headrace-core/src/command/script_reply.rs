//! The reply to a run of the script: how many rows were there before, why the next one was not written, the entry IDs.

use super::entry_id::entry_id;
use super::reply::{Reply, ScriptReply};
use super::xadd_reply;
use crate::decimal;
use crate::resp::decode::{Violation, bulk, header, integer};

/// The most rows of a run: its reply takes 67,095 bytes at most, each number of it with as many digits as are accepted.
pub(crate) const MAX_RUN: u64 = 1000;

/// The reply to a run at the start of `bytes` and its length, once all of it has arrived: an array of an integer and bulk
/// strings.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    const NO_RUN: Violation = Violation("a reply that no run of rows is answered by");
    match bytes.first() {
        None => return Ok(None),
        Some(b'-') => return xadd_reply::decode(bytes),
        Some(b'*') => {}
        Some(_) => return Err(NO_RUN),
    }
    let Some(first) = header(bytes)? else { return Ok(None) };
    let parts = decimal::parse(&first[1..]).filter(|parts| (2..=MAX_RUN + 2).contains(parts)).ok_or(NO_RUN)?;
    let mut at = first.len() + 2;
    let Some(deduplicated) = header(&bytes[at..])? else { return Ok(None) };
    at += deduplicated.len() + 2;
    let deduplicated = integer(deduplicated).ok_or(NO_RUN)?;
    let Some((refused, length)) = bulk(&bytes[at..])? else { return Ok(None) };
    at += length;
    let ids = at;
    for _ in 2..parts {
        let Some((id, length)) = bulk(&bytes[at..])? else { return Ok(None) };
        id.and_then(entry_id).ok_or(Violation("a bulk string that is no entry ID"))?;
        at += length;
    }
    let (refused, ids) = (refused.ok_or(NO_RUN)?, &bytes[ids..at]);
    Ok(Some((Reply::Run(ScriptReply { deduplicated, refused, appended: parts - 2, ids }), at)))
}
