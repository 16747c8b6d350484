//! Finds where a reply of any shape ends. Bytes in, a length out: no I/O, and nothing is kept or allocated for what a header
//! merely declares.
//!
//! RESP2 only (<https://redis.io/docs/latest/develop/reference/protocol-spec/>): a connection that never asked for RESP3 gets
//! none of it.

use memchr::memchr;

use crate::decimal;

/// The maximum size of a reply, and so of what is buffered: XINFO STREAM shows a whole entry.
pub(crate) const MAX_REPLY: usize = 64 * 1024 * 1024;
/// The maximum number of parts of a reply, at any depth: a part takes more memory than it has bytes. XINFO STREAM shows two
/// entries, and those of `rows_per_entry` have 131,074 parts.
pub(crate) const MAX_PARTS: u64 = 1 << 20;
/// How deep arrays may be nested. Servers' replies to the commands used here have three levels.
pub(super) const MAX_DEPTH: usize = 8;
/// The longest line: an error.
pub(super) const MAX_LINE: usize = 64 * 1024;
/// The longest line that holds a number: 20 digits are 64 bits.
const MAX_HEADER: usize = 32;

/// How far a reply has been looked at, as its bytes arrive.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    /// Where the next part starts.
    at: usize,
    nesting: Nesting,
    parts: u64,
}

/// Why bytes are not a reply.
pub(crate) type Wrong = &'static str;

impl Framing {
    /// The length of the reply, if all of it has arrived. `bytes`: all that have arrived. Not to be called again once there is a
    /// result.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, Wrong> {
        loop {
            let Some(more) = self.part(bytes.get(self.at..).unwrap_or_default())? else { return Ok(None) };
            self.parts = self.parts.saturating_add(more);
            if self.parts > MAX_PARTS {
                return Err("a reply of too many parts");
            }
            if self.nesting.pass(more)? {
                return Ok(Some(self.at));
            }
        }
    }

    /// Passes one part, or the header of an array. In the latter case, returns how many parts the array has.
    fn part(&mut self, bytes: &[u8]) -> Result<Option<u64>, Wrong> {
        let Some(head) = Head::read(bytes)? else { return Ok(None) };
        let (mut length, mut parts) = (head.length, 0);
        match (head.kind, head.declared) {
            (b'*', declared) => parts = declared.unwrap_or(0),
            (b'$', Some(body)) => {
                let body =
                    usize::try_from(body).ok().filter(|body| *body <= MAX_REPLY).ok_or("a reply that is too large")?;
                match bytes.get(length + body..length + body + 2) {
                    None => return Ok(None),
                    Some(b"\r\n") => length += body + 2,
                    Some(_) => return Err("a bulk string without an end"),
                }
            }
            _ => {}
        }
        self.at += length;
        Ok(Some(parts))
    }
}

/// The first line of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    /// The first byte of the line.
    pub(crate) kind: u8,
    /// Including the line end.
    pub(crate) length: usize,
    /// The parts of an array or the bytes of a bulk string; `None`: nil, or another kind.
    pub(crate) declared: Option<u64>,
}

impl Head {
    /// The line at the start of these bytes, if all of it has arrived.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, Wrong> {
        let longest = match bytes.first() {
            None => return Ok(None),
            Some(b'+' | b'-') => MAX_LINE,
            Some(b':' | b'$' | b'*') => MAX_HEADER,
            Some(_) => return Err("a reply that is not RESP2"),
        };
        let line = match memchr(b'\r', &bytes[..bytes.len().min(longest)]) {
            None if bytes.len() >= longest => return Err("a line that is too long"),
            None => return Ok(None),
            Some(end) => &bytes[..end],
        };
        match bytes.get(line.len() + 1) {
            None => return Ok(None),
            Some(b'\n') => {}
            Some(_) => return Err("a line end without a line feed"),
        }
        let declared = if matches!(bytes[0], b'$' | b'*') { declared(&line[1..])? } else { None };
        Ok(Some(Self { kind: bytes[0], length: line.len() + 2, declared }))
    }
}

/// The open arrays, each with how many of its parts are still to come.
#[derive(Debug, Default)]
pub(crate) struct Nesting(Vec<u64>);

impl Nesting {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// How many arrays are open.
    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Passes a part, which itself has `parts` parts. Returns whether the reply is complete.
    pub(crate) fn pass(&mut self, parts: u64) -> Result<bool, Wrong> {
        if parts > 0 {
            if self.0.len() == MAX_DEPTH {
                return Err("arrays that are too deep in one another");
            }
            self.0.push(parts);
            return Ok(false);
        }
        while let Some(left) = self.0.last_mut() {
            *left -= 1;
            if *left > 0 {
                return Ok(false);
            }
            self.0.pop();
        }
        Ok(true)
    }
}

/// The number that a header declares; `None`: nil.
fn declared(digits: &[u8]) -> Result<Option<u64>, Wrong> {
    match (digits, decimal::parse(digits)) {
        (b"-1", _) => Ok(None),
        (_, Some(declared)) => Ok(Some(declared)),
        (_, None) => Err("a length that is not a number"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Replies of each shape.
    pub(crate) const REPLIES: [&[u8]; 10] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$3\r\na\r\n\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n",
        b"*3\r\n*1\r\n*1\r\n+a\r\n:1\r\n-ERR in it\r\n",
    ];

    /// The result for all bytes together, after checking that bytes which arrive in small pieces give the same.
    fn find(bytes: &[u8]) -> Result<Option<usize>, Wrong> {
        let mut by_and_by = Framing::default();
        let ends = (0..bytes.len()).step_by(1 + bytes.len() / 1000).chain([bytes.len()]);
        let found = ends.map(|end| by_and_by.find(&bytes[..end])).find(|found| *found != Ok(None));
        let at_once = Framing::default().find(bytes);
        assert_eq!(found.unwrap_or(Ok(None)), at_once, "{}", bytes.escape_ascii());
        at_once
    }

    #[test]
    fn a_reply_ends_where_its_last_part_does() {
        for reply in REPLIES {
            assert_eq!(find(reply), Ok(Some(reply.len())), "{}", reply.escape_ascii());
            assert_eq!(find(&[reply, b"*"].concat()), Ok(Some(reply.len())), "what follows is not looked at");
            assert_eq!(find(&reply[..reply.len() - 1]), Ok(None), "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn a_malformed_or_oversized_reply_is_refused_before_it_is_complete() {
        let deep = |depth| b"*1\r\n".repeat(depth);
        for bytes in [
            &b"\r\n"[..],
            b"HTTP/1.1",
            b"_\r\n",
            b"%1\r\n",
            b">1\r\n",
            b"$-2\r\n",
            b"$\r\n",
            b"*x\r\n",
            b"$1\r\nab\r\n",
            b"+OK\rx",
            b"$67108865\r\n",
            b"*1048577\r\n",
            b"*2\r\n*1048575\r\n",
            b"*18446744073709551615\r\n",
            b"*18446744073709551616\r\n",
            &[&b"$"[..], &[b'0'; 40]].concat(),
            &b"+".repeat(MAX_LINE),
            &deep(MAX_DEPTH + 1),
        ] {
            assert!(find(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert_eq!(find(&[deep(MAX_DEPTH), b":1\r\n".to_vec()].concat()), Ok(Some(4 * MAX_DEPTH + 4)));
        assert_eq!(find(b"*1048576\r\n:1\r\n"), Ok(None));
    }
}
