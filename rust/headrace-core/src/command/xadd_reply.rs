//! The reply to XADD: an entry ID, nil (NOMKSTREAM and no such stream) or an error.
//!
//! <https://redis.io/docs/latest/commands/xadd/>, RESP2, since 5.0. Anything else is a protocol violation: replies can then
//! no longer be matched to messages on this connection.

use super::reply::Reply;
use crate::decimal;
use crate::resp::decode::{MAX_BULK, Violation, header, line};
use crate::resp::{EntryId, entry_id, write_bulk};

/// The most likely next reply: the last entry ID with the next sequence number.
///
/// A busy server assigns hundreds of IDs in a millisecond, so nearly every reply is this one, and comparing costs less than
/// parsing.
#[derive(Debug)]
pub(crate) struct NextId {
    /// `$17\r\n1795249090487-123\r\n`, then any bytes.
    bytes: [u8; Self::WIDTH],
    /// Ones where `bytes` holds the reply.
    mask: [u8; Self::WIDTH],
    /// 0: there is no prediction.
    length: usize,
    id: EntryId,
}

impl NextId {
    /// Longer than the reply to a million entries in one millisecond. Longer replies are not predicted.
    const WIDTH: usize = 32;

    pub(crate) fn none() -> Self {
        Self { bytes: [0; Self::WIDTH], mask: [0; Self::WIDTH], length: 0, id: EntryId { ms: 0, seq: 0 } }
    }

    /// The length of the predicted reply in bytes; 0 without a prediction.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The predicted ID.
    #[inline]
    pub(crate) fn id(&self) -> EntryId {
        self.id
    }

    /// Whether `bytes` start with the predicted reply.
    #[inline]
    pub(crate) fn matches(&self, bytes: &[u8; Self::WIDTH]) -> bool {
        (0..Self::WIDTH).fold(0, |any, at| any | ((bytes[at] ^ self.bytes[at]) & self.mask[at])) == 0
    }

    /// Predicts the reply after `reply`, which holds `id`.
    pub(crate) fn follow(&mut self, reply: &[u8], id: EntryId) {
        self.set(reply);
        self.id = id;
        if self.length > 0 {
            self.advance();
        }
    }

    fn set(&mut self, reply: &[u8]) {
        if reply.len() > Self::WIDTH {
            self.length = 0;
            return;
        }
        self.bytes[..reply.len()].copy_from_slice(reply);
        if self.length != reply.len() {
            self.length = reply.len();
            self.mask = std::array::from_fn(|at| if at < reply.len() { 0xff } else { 0 });
        }
    }

    /// Predicts the reply after the predicted one.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let Some(seq) = self.id.seq.checked_add(1) else {
            self.length = 0;
            return;
        };
        self.id.seq = seq;
        // The digits end before the line end.
        if !decimal::count_up(&mut self.bytes[..self.length - 2]) {
            self.lengthen();
        }
    }

    /// Adds a digit to the sequence number.
    #[cold]
    fn lengthen(&mut self) {
        let mut reply = Vec::new();
        write_bulk(&mut reply, self.id.to_string().as_bytes());
        self.set(&reply);
    }
}

/// The reply to an XADD at the start of `bytes` and its length, once all of it has arrived.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    match bytes.first() {
        None => Ok(None),
        Some(b'$') => scan_bulk(bytes),
        Some(b'-') => Ok(line(bytes)?.map(|line| (Reply::Error(&line[1..]), line.len() + 2))),
        Some(_) => Err(Violation("a reply that is neither a bulk string, nil nor an error")),
    }
}

fn scan_bulk(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    // Nearly every reply is an ID of ten to 41 bytes: two digits of length, and no search for the line end.
    let (length, body) = if let [b'$', tens @ b'0'..=b'9', units @ b'0'..=b'9', b'\r', b'\n', ..] = bytes {
        (usize::from(tens - b'0') * 10 + usize::from(units - b'0'), 5)
    } else {
        let Some(line) = header(bytes)? else { return Ok(None) };
        if line == b"$-1" {
            return Ok(Some((Reply::Nil, line.len() + 2)));
        }
        match decimal::parse(&line[1..]).and_then(|length| usize::try_from(length).ok()) {
            Some(length) if length <= MAX_BULK => (length, line.len() + 2),
            Some(_) => return Err(Violation("a bulk string that is too long for an entry ID")),
            None => return Err(Violation("a bulk string without a length")),
        }
    };
    let Some(whole) = bytes.get(body..body + length + 2) else { return Ok(None) };
    let (id, end) = whole.split_at(length);
    match (entry_id(id), end) {
        (Some(first), b"\r\n") => Ok(Some((Reply::Ids { first, count: 1 }, body + length + 2))),
        _ => Err(Violation("a bulk string that is not an entry ID")),
    }
}
