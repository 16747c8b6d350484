//! Scans the replies to XADD: fed with bytes as they arrive, it yields one reply at a time and allocates nothing.
//!
//! An XADD is answered by a bulk string that holds the entry ID, by nil (NOMKSTREAM and no such stream) or by an error
//! (<https://redis.io/docs/latest/commands/xadd/>, RESP2, since 5.0). Whatever else arrives is a protocol violation: the
//! connection can no longer be trusted to match replies to messages.

mod counts;

use std::fmt;

use crate::decimal;
use crate::resp::write_bulk;

/// The longest error line that is taken.
const MAX_LINE: usize = 64 * 1024;
/// The longest line that holds a number: 20 digits are 64 bits.
const MAX_HEADER: usize = 32;
/// The longest bulk string that is looked at; an entry ID has at most 41 bytes.
const MAX_BULK: usize = 1024;
/// The most rows of a run: its reply takes 67,095 bytes at most, each number of it with as many digits as are taken.
pub(crate) const MAX_RUN: u64 = 1000;
/// Whatever a reply is, there is room for the rest of it, and for more.
const CAPACITY: usize = 2 * MAX_LINE;
/// Less free space than this at the end, and what is unread moves to the front.
const MIN_SPACE: usize = 16 * 1024;

/// The ID of an entry in a stream: milliseconds and sequence number, ordered as the server orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the epoch, for IDs that the server chose.
    pub ms: u64,
    /// Sequence number within the millisecond.
    pub seq: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// What the server answers to one XADD, or to several that follow each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// `count` entries were appended, the first under `first`, the others under the sequence numbers that follow.
    Ids { first: EntryId, count: u64 },
    /// NOMKSTREAM was asked for and there is no such stream.
    Nil,
    /// Refused; the line without its `-` and its end.
    Error(&'a [u8]),
    /// What the script that appends a run answers.
    Run(RunReply<'a>),
    /// What WAIT and WAITAOF answer: how many have what was written before. `local`: of the server itself; WAIT says
    /// nothing of it.
    Acknowledged { local: u64, replicas: u64 },
}

/// The reply to a run of rows ([`crate::exactly_once`]).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunReply<'a> {
    /// How many of its first rows were there before.
    pub(crate) deduplicated: u64,
    /// Why the row behind the last entry ID was not written; empty: all were.
    pub(crate) refused: &'a [u8],
    /// How many rows were appended.
    pub(crate) appended: u64,
    /// Their entry IDs, as bulk strings.
    ids: &'a [u8],
}

impl RunReply<'_> {
    /// The entry IDs.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        let mut rest = self.ids;
        std::iter::from_fn(move || {
            let (id, length) = bulk(rest).ok().flatten()?;
            rest = rest.get(length..)?;
            id.and_then(entry_id)
        })
    }
}

/// Bytes that no XADD is answered by; says what was wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// What was received and not yet scanned.
#[derive(Debug)]
pub(crate) struct ReplyBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    expected: Expected,
    /// Whether commands are runs of rows.
    of_runs: bool,
    /// Whether WAIT or WAITAOF is among them.
    of_waits: bool,
}

/// The reply that comes next if the server goes on as it did: the last ID with the next sequence number. A busy server
/// gives hundreds of IDs in a millisecond, so nearly every reply is this one, and to compare is less than to parse.
#[derive(Debug)]
struct Expected {
    /// `$17\r\n1795249090487-123\r\n`, then whatever.
    bytes: [u8; Self::WIDTH],
    /// Ones where `bytes` holds the reply.
    mask: [u8; Self::WIDTH],
    /// 0: nothing is expected.
    length: usize,
    id: EntryId,
}

impl Expected {
    /// Longer than the reply to a million entries in one millisecond. Nothing is expected past it.
    const WIDTH: usize = 32;

    fn nothing() -> Self {
        Self { bytes: [0; Self::WIDTH], mask: [0; Self::WIDTH], length: 0, id: EntryId { ms: 0, seq: 0 } }
    }

    /// Whether `bytes` begin with it.
    #[inline]
    fn matches(&self, bytes: &[u8; Self::WIDTH]) -> bool {
        (0..Self::WIDTH).fold(0, |any, at| any | ((bytes[at] ^ self.bytes[at]) & self.mask[at])) == 0
    }

    /// The one after `reply`, which told `id`, is expected from now on.
    fn follow(&mut self, reply: &[u8], id: EntryId) {
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

    /// The next one is expected from now on.
    #[inline]
    fn advance(&mut self) {
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

    /// A digit more than the last one had.
    #[cold]
    fn lengthen(&mut self) {
        let mut reply = Vec::new();
        write_bulk(&mut reply, self.id.to_string().as_bytes());
        self.set(&reply);
    }
}

impl ReplyBuffer {
    /// `of_runs`: the commands are runs of rows, not single entries.
    pub(crate) fn new(of_runs: bool) -> Self {
        let bytes = vec![0; CAPACITY].into_boxed_slice();
        Self { bytes, start: 0, end: 0, expected: Expected::nothing(), of_runs, of_waits: false }
    }

    /// Takes replies to WAIT and WAITAOF from now on.
    pub(crate) fn take_acknowledgements(&mut self) {
        self.of_waits = true;
    }

    /// Room to receive into; never empty, because [`next`](Self::next) waits for no more than the longest line or run.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < MIN_SPACE {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// Says that the first `count` bytes of [`space`](Self::space) were filled.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// How many bytes are still to come for `count` replies: a guess that is low rather than high, and 1 at least.
    pub(crate) fn still_to_come(&self, count: usize) -> usize {
        // The first one may be here in part. An ID loses the digits of its sequence number when the server's clock ticks.
        let length = self.expected.length * 3 / 4;
        1 + count.saturating_sub(1).saturating_mul(length)
    }

    /// How many bytes are left that are no whole reply yet.
    pub(crate) fn unread(&self) -> usize {
        self.end - self.start
    }

    /// As new, but for what lies behind the end.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn start_anew(&mut self) {
        (self.start, self.end, self.expected) = (0, 0, Expected::nothing());
    }

    /// The next whole reply, if it is there. IDs that follow each other come together.
    pub(crate) fn next(&mut self) -> Result<Option<Reply<'_>>, Violation> {
        if let Some(run) = self.expected_run() {
            return Ok(Some(run));
        }
        let bytes = &self.bytes[self.start..self.end];
        let scanned = if self.of_waits && counts::is_of_wait(bytes, self.of_runs) {
            counts::scan(bytes)
        } else if self.of_runs {
            scan_run(bytes)
        } else {
            scan(bytes)
        };
        match scanned? {
            Some((reply, length)) => {
                if let Reply::Ids { first, .. } = reply {
                    self.expected.follow(&bytes[..length], first);
                }
                self.start += length;
                Ok(Some(reply))
            }
            None => Ok(None),
        }
    }

    /// As many replies as are the expected ones.
    #[inline]
    fn expected_run(&mut self) -> Option<Reply<'static>> {
        let first = self.expected.id;
        let mut count = 0;
        while self.expected.length > 0 && self.expected.length <= self.end - self.start {
            // What lies behind the end is not looked at.
            let Some(bytes) = self.bytes.get(self.start..).and_then(<[u8]>::first_chunk) else { break };
            if !self.expected.matches(bytes) {
                break;
            }
            self.start += self.expected.length;
            self.expected.advance();
            count += 1;
        }
        (count > 0).then_some(Reply::Ids { first, count })
    }
}

/// The reply at the start of `bytes` and its length, if the whole of it is there.
fn scan(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
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
        _ => Err(Violation("a bulk string that is no entry ID")),
    }
}

/// The reply to a run: an array of an integer and bulk strings, all of it or nothing.
fn scan_run(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    const NO_RUN: Violation = Violation("a reply that no run of rows is answered by");
    match bytes.first() {
        None => return Ok(None),
        Some(b'-') => return scan(bytes),
        Some(b'*') => {}
        Some(_) => return Err(NO_RUN),
    }
    let Some(first) = header(bytes)? else { return Ok(None) };
    let parts = decimal::parse(&first[1..]).filter(|parts| (2..=MAX_RUN + 2).contains(parts)).ok_or(NO_RUN)?;
    let mut at = first.len() + 2;
    let Some(deduplicated) = header(&bytes[at..])? else { return Ok(None) };
    at += deduplicated.len() + 2;
    let deduplicated = counts::count(deduplicated).ok_or(NO_RUN)?;
    let Some((refused, length)) = bulk(&bytes[at..])? else { return Ok(None) };
    at += length;
    let ids = at;
    for _ in 2..parts {
        let Some((id, length)) = bulk(&bytes[at..])? else { return Ok(None) };
        id.and_then(entry_id).ok_or(Violation("a bulk string that is no entry ID"))?;
        at += length;
    }
    let (refused, ids) = (refused.ok_or(NO_RUN)?, &bytes[ids..at]);
    Ok(Some((Reply::Run(RunReply { deduplicated, refused, appended: parts - 2, ids }), at)))
}

/// The bulk string at the start of `bytes`, `None` for nil, and its length with header and end.
#[allow(clippy::type_complexity)] // incomplete, nil, or bytes
fn bulk(bytes: &[u8]) -> Result<Option<(Option<&[u8]>, usize)>, Violation> {
    let Some(first) = header(bytes)? else { return Ok(None) };
    if first == b"$-1" {
        return Ok(Some((None, first.len() + 2)));
    }
    let length = first.strip_prefix(b"$").and_then(decimal::parse).and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= MAX_BULK).ok_or(Violation("a bulk string without a length"))?;
    let start = first.len() + 2;
    let Some(whole) = bytes.get(start..start + length + 2) else { return Ok(None) };
    match whole.strip_suffix(b"\r\n") {
        Some(body) => Ok(Some((Some(body), start + length + 2))),
        None => Err(Violation("a bulk string without an end")),
    }
}

/// The first line of `bytes` without its end, if the whole of it is there: an error.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Violation> {
    line_within(bytes, MAX_LINE, Violation("a line of more than 64 KiB"))
}

/// The same of a number, or of the number of bytes or parts that follow.
fn header(bytes: &[u8]) -> Result<Option<&[u8]>, Violation> {
    line_within(bytes, MAX_HEADER, Violation("a number of more than 20 digits"))
}

fn line_within(bytes: &[u8], longest: usize, too_long: Violation) -> Result<Option<&[u8]>, Violation> {
    match memchr::memchr(b'\r', &bytes[..bytes.len().min(longest)]) {
        None if bytes.len() >= longest => Err(too_long),
        None => Ok(None),
        Some(at) => match bytes.get(at + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&bytes[..at])),
            Some(_) => Err(Violation("a line end without a line feed")),
        },
    }
}

/// `<ms>-<seq>`, both in 64 bits.
pub(crate) fn entry_id(bytes: &[u8]) -> Option<EntryId> {
    let dash = bytes.iter().position(|&byte| byte == b'-')?;
    Some(EntryId { ms: decimal::parse(&bytes[..dash])?, seq: decimal::parse(&bytes[dash + 1..])? })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
