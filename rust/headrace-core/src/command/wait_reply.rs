//! The replies to WAIT and WAITAOF: an integer, and an array of two.

use super::reply::Reply;
use super::xadd_reply;
use crate::resp::decode::{Violation, header, integer};

/// The reply to WAIT or WAITAOF at the start of `bytes` and its length, once all of it has arrived.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    const NO_COUNT: Violation = Violation("a reply that is not one to WAIT or WAITAOF");
    if bytes.first() == Some(&b'-') {
        return xadd_reply::decode(bytes);
    }
    let Some(first) = header(bytes)? else { return Ok(None) };
    if first.starts_with(b":") {
        let replicas = integer(first).ok_or(NO_COUNT)?;
        return Ok(Some((Reply::Acknowledged { local: 0, replicas }, first.len() + 2)));
    }
    if first != b"*2" {
        return Err(NO_COUNT);
    }
    let mut at = first.len() + 2;
    let mut counts = [0; 2];
    for place in &mut counts {
        let Some(line) = header(&bytes[at..])? else { return Ok(None) };
        *place = integer(line).ok_or(NO_COUNT)?;
        at += line.len() + 2;
    }
    let [local, replicas] = counts;
    Ok(Some((Reply::Acknowledged { local, replicas }, at)))
}
