//! The reply to a command that belongs to no message: a simple string, or an error.

use super::reply::Reply;
use crate::resp::decode::{Violation, line};

/// The reply at the start of `bytes` and its length, once all of it has arrived.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    let reply = match bytes.first() {
        None => return Ok(None),
        Some(b'+') => Reply::Status,
        Some(b'-') => Reply::Error,
        Some(_) => return Err(Violation("neither a simple string nor an error where one was expected")),
    };
    Ok(line(bytes)?.map(|line| (reply(&line[1..]), line.len() + 2)))
}
