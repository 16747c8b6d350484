//! Reads replies and commands one byte at a time, and reports invalid bytes as early as possible. Deliberately simple: the
//! scanner and the encoder are compared with it.

use crate::command::{Expect, MAX_RUN};
use crate::resp::stream_reply::{Limits, Shape};

const MAX_LINE: usize = 64 * 1024;
const MAX_BULK: usize = 1024;

/// A reply that the producer accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Id(u64, u64),
    Nil,
    Error(Vec<u8>),
    Run { deduplicated: u64, refused: Vec<u8>, ids: Vec<(u64, u64)> },
    Counts { local: u64, replicas: u64 },
    Status(Vec<u8>),
}

/// Why bytes are not a complete reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// They may be the start of a reply.
    More,
    /// They are not a reply, whatever follows.
    Wrong,
}

pub struct Reader<'a> {
    bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::More)?;
        self.at += 1;
        Ok(byte)
    }

    fn exactly(&mut self, expected: &[u8]) -> Result<(), Stop> {
        for expected in expected {
            if self.byte()? != *expected {
                return Err(Stop::Wrong);
            }
        }
        Ok(())
    }

    /// Reads 1 to 20 digits and the end of the line.
    fn number(&mut self, largest: u64) -> Result<u64, Stop> {
        let (mut value, mut digits) = (0_u128, 0);
        loop {
            match self.byte()? {
                digit @ b'0'..=b'9' if digits < 20 => value = value * 10 + u128::from(digit - b'0'),
                b'\r' if digits > 0 => break,
                _ => return Err(Stop::Wrong),
            }
            digits += 1;
            if value > u128::from(largest) {
                return Err(Stop::Wrong);
            }
        }
        self.exactly(b"\n")?;
        Ok(value as u64)
    }

    /// Reads a bulk string, starting with its length; `None` is nil.
    fn bulk(&mut self, longest: usize) -> Result<Option<Vec<u8>>, Stop> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.exactly(b"-1\r\n")?;
            return Ok(None);
        }
        let length = self.number(longest as u64)?;
        let body = (0..length).map(|_| self.byte()).collect::<Result<_, _>>()?;
        self.exactly(b"\r\n")?;
        Ok(Some(body))
    }

    /// Reads up to the end of a line of at most `longest` bytes, one of which has already been read.
    fn line(&mut self, longest: usize) -> Result<Vec<u8>, Stop> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\r' => break,
                _ if line.len() + 2 > longest => return Err(Stop::Wrong),
                other => line.push(other),
            }
        }
        self.exactly(b"\n")?;
        Ok(line)
    }

    /// Reads the reply that is expected.
    pub fn reply(&mut self, expect: Expect) -> Result<Reply, Stop> {
        match (self.byte()?, expect) {
            (b'-', _) => Ok(Reply::Error(self.line(MAX_LINE - 1)?)),
            (b'+', Expect::Status) => Ok(Reply::Status(self.line(MAX_LINE - 1)?)),
            (b'$', Expect::EntryId) => match self.bulk(MAX_BULK)? {
                None => Ok(Reply::Nil),
                Some(id) => entry_id(&id).map(|(ms, seq)| Reply::Id(ms, seq)).ok_or(Stop::Wrong),
            },
            (b'*', Expect::ScriptRun { .. }) => self.run(),
            (b':', Expect::Wait) => Ok(Reply::Counts { local: 0, replicas: self.number(u64::MAX)? }),
            (b'*', Expect::Wait) => {
                self.exactly(b"2\r\n:")?;
                let local = self.number(u64::MAX)?;
                self.exactly(b":")?;
                Ok(Reply::Counts { local, replicas: self.number(u64::MAX)? })
            }
            _ => Err(Stop::Wrong),
        }
    }

    fn run(&mut self) -> Result<Reply, Stop> {
        let parts = self.number(MAX_RUN + 3)?;
        if parts < 3 {
            return Err(Stop::Wrong);
        }
        self.exactly(b":")?;
        let deduplicated = self.number(u64::MAX)?;
        self.exactly(b"$")?;
        let refused = self.bulk(MAX_BULK)?.ok_or(Stop::Wrong)?;
        self.exactly(b":")?;
        let appended = self.number(u64::MAX)?;
        let is_range = parts == 5 && (3..=MAX_RUN).contains(&appended);
        if parts - 3 != appended && !is_range {
            return Err(Stop::Wrong);
        }
        let mut ids = Vec::new();
        for _ in 3..parts {
            self.exactly(b"$")?;
            let id = self.bulk(MAX_BULK)?.ok_or(Stop::Wrong)?;
            ids.push(entry_id(&id).ok_or(Stop::Wrong)?);
        }
        if is_range {
            let (first, last) = (ids[0], ids[1]);
            let all = (0..appended).map(|more| (first.0, u128::from(first.1) + u128::from(more)));
            if all.clone().next_back() != Some((last.0, u128::from(last.1))) {
                return Err(Stop::Wrong);
            }
            ids = all.map(|(ms, seq)| (ms, seq as u64)).collect();
        }
        Ok(Reply::Run { deduplicated, refused, ids })
    }

    /// Reads a command as clients send it: an array of bulk strings.
    pub fn command(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        self.exactly(b"*")?;
        let mut arguments = Vec::new();
        for _ in 0..self.number(1 << 20)? {
            self.exactly(b"$")?;
            arguments.push(self.bulk(512 << 20)?.ok_or(Stop::Wrong)?);
        }
        Ok(arguments)
    }
}

fn entry_id(text: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (ms, seq) = text.split_once('-')?;
    let number = |digits: &str| {
        let fits = (1..=20).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        if fits { digits.parse().ok() } else { None }
    };
    Some((number(ms)?, number(seq)?))
}

/// All replies at the start of `bytes`, each with its end position, and the reason that the rest is not a complete reply.
pub fn replies(bytes: &[u8], expect: impl Fn(usize) -> Expect) -> (Vec<(Reply, usize)>, Stop) {
    let (mut found, mut start) = (Vec::new(), 0);
    loop {
        let mut reader = Reader::new(&bytes[start..]);
        match reader.reply(expect(found.len())) {
            Ok(reply) => {
                start += reader.at;
                found.push((reply, start));
            }
            Err(stop) => return (found, stop),
        }
    }
}

/// The lines that reply to control commands; `awaited` is the number of lines expected.
pub fn lines(bytes: &[u8], awaited: usize) -> Result<Vec<Vec<u8>>, Stop> {
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    for byte in bytes {
        line.push(*byte);
        let is_line = b"+-:".contains(&line[0]) && line.len() <= MAX_LINE + 2;
        if !is_line || lines.len() == awaited {
            return Err(Stop::Wrong);
        }
        if *byte == b'\n' {
            match line.strip_suffix(b"\r\n") {
                Some(whole) => lines.push(whole.to_vec()),
                None => return Err(Stop::Wrong),
            }
            line.clear();
        }
    }
    Ok(lines)
}

/// The length of the reply of any shape at the start of `bytes`.
pub fn extent(bytes: &[u8]) -> Result<usize, Stop> {
    let mut reader = Reader::new(bytes);
    reader.any(0, &mut 0)?;
    Ok(reader.at)
}

impl Reader<'_> {
    fn any(&mut self, depth: usize, parts: &mut u64) -> Result<(), Stop> {
        match self.byte()? {
            b'+' | b'-' => self.line(MAX_LINE - 1).map(|_| ()),
            b':' => self.line(31).map(|_| ()),
            b'$' => self.bulk(64 << 20).map(|_| ()),
            b'*' if self.bytes.get(self.at) == Some(&b'-') => self.exactly(b"-1\r\n"),
            b'*' => {
                let count = self.number((1 << 20) - *parts)?;
                *parts += count;
                if count > 0 && depth == 8 {
                    return Err(Stop::Wrong);
                }
                (0..count).try_for_each(|_| self.any(depth + 1, parts))
            }
            _ => Err(Stop::Wrong),
        }
    }
}

/// Names and values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A part of a reply with entries of streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPart {
    Stream(Vec<u8>),
    Entry { id: (u64, u64), fields: Option<Pairs> },
}

/// The end of a reply with entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The reply is complete, with this many bytes.
    Whole(usize),
    /// The reply is an error with this text.
    Error(Vec<u8>),
    Not(Stop),
}

/// The streams and entries in the reply at the start of `bytes`, each with its end position.
pub fn stream_parts(bytes: &[u8], shape: Shape, limits: &Limits) -> (Vec<(StreamPart, usize)>, StreamEnd) {
    let (mut reader, mut parts) = (Reader::new(bytes), Vec::new());
    let end = match reader.stream_reply(shape, limits, &mut parts) {
        Ok(None) => StreamEnd::Whole(reader.at),
        Ok(Some(error)) => StreamEnd::Error(error),
        Err(stop) => StreamEnd::Not(stop),
    };
    (parts, end)
}

impl Reader<'_> {
    /// Reads a nil after its marker, if it is one.
    fn nil(&mut self) -> Result<bool, Stop> {
        let is_nil = self.bytes.get(self.at) == Some(&b'-');
        if is_nil {
            self.exactly(b"-1\r\n")?;
        }
        Ok(is_nil)
    }

    /// The text of an error reply; `None` for any other reply.
    fn stream_reply(
        &mut self,
        shape: Shape,
        limits: &Limits,
        parts: &mut Vec<(StreamPart, usize)>,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let mut entries = limits.reply_entries;
        match self.byte()? {
            b'-' => return Ok(Some(self.line(MAX_LINE - 1)?)),
            b'$' => return if self.nil()? { Ok(None) } else { Err(self.more_or_wrong()) },
            b'*' if self.nil()? => {}
            b'*' if shape == Shape::Entries => self.entries(limits, &mut entries, parts)?,
            b'*' => {
                for _ in 0..self.number(limits.streams)? {
                    self.exactly(b"*")?;
                    // Its number may have leading zeros.
                    if self.number(2)? != 2 {
                        return Err(Stop::Wrong);
                    }
                    let start = self.at;
                    self.exactly(b"$")?;
                    let key = self.bulk_within(start + limits.entry_bytes, 0)?;
                    parts.push((StreamPart::Stream(key), self.at));
                    self.exactly(b"*")?;
                    if !self.nil()? {
                        self.entries(limits, &mut entries, parts)?;
                    }
                }
            }
            _ => return Err(Stop::Wrong),
        }
        Ok(None)
    }

    fn more_or_wrong(&self) -> Stop {
        if self.at == self.bytes.len() { Stop::More } else { Stop::Wrong }
    }

    /// Reads a bulk string, starting with its length, that must end before `end`; `behind` is the number of bytes that must
    /// follow it.
    fn bulk_within(&mut self, end: usize, behind: usize) -> Result<Vec<u8>, Stop> {
        let length = self.number(u64::MAX)?;
        if self.at as u128 + u128::from(length) + 2 + behind as u128 > end as u128 {
            return Err(Stop::Wrong);
        }
        let body = (0..length).map(|_| self.byte()).collect::<Result<_, _>>()?;
        self.exactly(b"\r\n")?;
        Ok(body)
    }

    fn entries(&mut self, limits: &Limits, left: &mut u64, parts: &mut Vec<(StreamPart, usize)>) -> Result<(), Stop> {
        let entries = self.number(*left)?;
        *left -= entries;
        for _ in 0..entries {
            let end = self.at + limits.entry_bytes;
            self.exactly(b"*")?;
            if self.number(2)? != 2 {
                return Err(Stop::Wrong);
            }
            self.exactly(b"$")?;
            let id = entry_id(&self.bulk(41)?.ok_or(Stop::Wrong)?).ok_or(Stop::Wrong)?;
            let fields = match self.byte()? {
                b'$' | b'*' if self.nil()? => None,
                b'$' => return Err(self.more_or_wrong()),
                b'*' => Some(self.fields(limits, end)?),
                _ => return Err(Stop::Wrong),
            };
            if self.at > end {
                return Err(Stop::Wrong);
            }
            parts.push((StreamPart::Entry { id, fields }, self.at));
        }
        Ok(())
    }

    fn fields(&mut self, limits: &Limits, end: usize) -> Result<Pairs, Stop> {
        const LEAST: usize = b"$0\r\n\r\n".len();
        let count = self.number(u64::MAX)?;
        if count % 2 == 1 || count / 2 > limits.fields || self.at as u64 + LEAST as u64 * count > end as u64 {
            return Err(Stop::Wrong);
        }
        let (mut strings, mut left) = (Vec::new(), count as usize);
        while left > 0 {
            left -= 1;
            self.exactly(b"$")?;
            match self.bulk_within(end, LEAST * left) {
                // The length has too many leading zeros and is not even complete.
                Err(Stop::More) if self.bytes.len() + 1 + LEAST * left > end => return Err(Stop::Wrong),
                string => strings.push(string?),
            }
        }
        let mut strings = strings.into_iter();
        Ok(std::iter::from_fn(|| Some((strings.next()?, strings.next()?))).collect())
    }
}
