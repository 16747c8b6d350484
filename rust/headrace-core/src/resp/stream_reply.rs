//! The replies of XRANGE, XREVRANGE, XREAD and XREADGROUP, read as their bytes arrive: each entry is passed on once all of it has
//! arrived. Bytes in, entries out: no I/O, and nothing is allocated for what a header merely declares.
//!
//! RESP2 (<https://redis.io/docs/latest/commands/xrange/>, <https://redis.io/docs/latest/commands/xread/>). XRANGE replies with
//! an array of entries, XREAD with an array of streams, each with its key and its entries, or nil if there are none. An entry is
//! its ID and an array of alternating names and values; XREADGROUP replies with nil instead of that array if the entry was
//! deleted while it was pending.

mod ahead;
mod entry;
mod part;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::ahead::Ahead;
pub(crate) use self::ahead::Nowhere;
use self::entry::Entry;
use self::part::{Bulk, Found, Header, bulk, header};
use super::decode::{Violation, line};
use super::entry_id::EntryId;

/// Where the entries of a reply go. An entry is passed on whole, or not at all: `entry`, its fields, `end`.
pub(crate) trait EntrySink {
    /// Entries of this stream follow. A reply names streams if it is of [`Shape::Streams`]; for another reply, the caller calls
    /// this before it scans.
    fn stream(&mut self, key: &[u8]);

    /// An entry starts. `fields`: how many calls of `field` follow; `None`: the entry was deleted while it was pending.
    fn entry(&mut self, id: EntryId, fields: Option<usize>);

    /// A field of the entry. Names may repeat.
    fn field(&mut self, name: &[u8], value: &[u8]);

    /// The entry that started last is complete.
    fn end(&mut self);

    /// Whether the scan must stop before the next entry. It continues with the next call of [`StreamReply::scan`].
    fn is_full(&self) -> bool {
        false
    }
}

/// What a reply consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Entries: XRANGE, XREVRANGE.
    Entries,
    /// Streams with their entries: XREAD, XREADGROUP.
    Streams,
}

/// The limits of a reply. One that declares more breaks off with a [`Violation`] before it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of an entry in the reply, and of a stream key. At most 4 GiB.
    pub(crate) entry_bytes: usize,
    /// Entries of the whole reply.
    pub(crate) reply_entries: u64,
    /// Fields of an entry.
    pub(crate) fields: u64,
    /// Streams of the reply.
    pub(crate) streams: u64,
}

impl Limits {
    /// The names and values of an entry have at most 1 GiB together (`STREAM_LISTPACK_MAX_SIZE` of Redis and Valkey), and each
    /// of them 512 MiB unless the server is configured otherwise. A quarter more is for their headers.
    pub(crate) const ENTRY_BYTES: usize = (1 << 30) + (1 << 28);
}

impl Default for Limits {
    fn default() -> Self {
        Self { entry_bytes: Self::ENTRY_BYTES, reply_entries: 1 << 32, fields: 1 << 24, streams: 1 << 16 }
    }
}

/// How far a scan got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// How many bytes were read to their end. The next scan gets what follows them.
    pub(crate) consumed: usize,
    /// The reply is complete. Further bytes belong to the next one.
    pub(crate) done: bool,
    /// How many bytes there must be, from the first one that was not consumed, before another scan can read more; always more
    /// than there are. 0: the reply is complete, or the sink is full. The number comes from the server, so a buffer should not
    /// reserve that much immediately.
    pub(crate) needed: usize,
}

/// Why there are no further entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The bytes are not such a reply, or exceed a limit. Entries before that were passed on.
    Violation(Violation),
    /// The reply is an error: the range of its text in the bytes, without marker and line end.
    Error(Range<usize>),
}

impl From<Violation> for Wrong {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// The next part of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Reply,
    Stream,
    Key,
    Entries,
    Entry,
    Nothing,
}

/// A reply that is arriving. One object per reply.
#[derive(Debug)]
pub(crate) struct StreamReply {
    shape: Shape,
    /// `reply_entries` is reduced by the entries that were declared.
    limits: Limits,
    next: Next,
    /// Streams still to come, including the one whose entries are being read.
    streams: u64,
    /// Entries of this stream still to come.
    entries: u64,
    entry: Entry,
    /// The entries found ahead, after the `header` bytes that were read.
    ahead: Ahead,
    header: usize,
    /// The violation after the entries found ahead.
    violation: Option<Violation>,
}

/// The rest of a reply whose bytes have all arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The entries that were not passed on yet.
    pub(crate) entries: u64,
    /// The ID of the last one.
    pub(crate) last: EntryId,
}

impl StreamReply {
    pub(crate) fn new(shape: Shape, limits: Limits) -> Self {
        // The places within an entry are stored in 32 bits.
        let limits = Limits { entry_bytes: limits.entry_bytes.min(u32::MAX as usize), ..limits };
        Self {
            shape,
            limits,
            next: Next::Reply,
            streams: 0,
            entries: 0,
            entry: Entry::default(),
            ahead: Ahead::default(),
            header: 0,
            violation: None,
        }
    }

    /// Finds the entries that are complete in `bytes` without passing them on; only the key of their stream is passed on. The
    /// next scan passes them on, and reports what is wrong with them. Returns what is left of the reply once all of it has
    /// arrived. For replies of one stream.
    pub(crate) fn look_ahead(&mut self, bytes: &[u8], sink: &mut impl EntrySink) -> Option<Rest> {
        loop {
            if self.streams > 1 || self.next == Next::Nothing {
                return None;
            }
            if self.next == Next::Entry {
                break;
            }
            let rest = bytes.get(self.header..).unwrap_or_default();
            let Ok(Found::Whole(length)) = self.outside_entries(rest, sink) else { return None };
            self.header += length;
        }
        while self.violation.is_none() && self.ahead.len() < self.entries {
            let rest = bytes.get(self.header + self.ahead.bytes()..).unwrap_or_default();
            match self.entry.find(rest, &self.limits) {
                Ok(Found::Whole(length)) => self.ahead.push(&mut self.entry, length),
                Ok(Found::Missing(_)) => return None,
                Err(violation) => {
                    self.violation = Some(violation);
                    return None;
                }
            }
        }
        Some(Rest { entries: self.entries, last: self.ahead.last()? })
    }

    /// Passes on every entry that is complete in `bytes`: what has arrived and was not consumed yet. After an error, the reply
    /// must not be scanned further.
    pub(crate) fn scan(&mut self, bytes: &[u8], sink: &mut impl EntrySink) -> Result<Scanned, Wrong> {
        let mut consumed = std::mem::take(&mut self.header);
        loop {
            let rest = bytes.get(consumed..).unwrap_or_default();
            let missing = match self.next {
                Next::Entry if self.entries == 0 => {
                    self.next = if self.shape == Shape::Streams { Next::Stream } else { Next::Nothing };
                    self.streams = self.streams.saturating_sub(1);
                    continue;
                }
                Next::Entry if sink.is_full() => 0,
                Next::Entry => match self.pass_entry(rest, sink)? {
                    Found::Whole(length) => {
                        self.entries -= 1;
                        consumed += length;
                        continue;
                    }
                    Found::Missing(needed) => needed,
                },
                Next::Nothing => return Ok(Scanned { consumed, done: true, needed: 0 }),
                _ => match self.outside_entries(rest, sink)? {
                    Found::Whole(length) => {
                        consumed += length;
                        continue;
                    }
                    Found::Missing(needed) => needed,
                },
            };
            return Ok(Scanned { consumed, done: false, needed: missing });
        }
    }

    /// Passes on the entry at the start of `bytes`, if all of it has arrived.
    #[inline]
    fn pass_entry(&mut self, bytes: &[u8], sink: &mut impl EntrySink) -> Result<Found, Violation> {
        if let Some(length) = self.ahead.pass_on(bytes, sink) {
            return Ok(Found::Whole(length));
        }
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        let found = self.entry.find(bytes, &self.limits)?;
        if let Found::Whole(_) = found {
            self.entry.pass_on(bytes, sink);
        }
        Ok(found)
    }

    /// Reads one part outside of the entries.
    #[inline(never)]
    fn outside_entries(&mut self, bytes: &[u8], sink: &mut impl EntrySink) -> Result<Found, Wrong> {
        let (next, length) = match self.next {
            Next::Reply => match bytes.first() {
                Some(b'-') => {
                    return match line(bytes)? {
                        Some(line) => Err(Wrong::Error(1..line.len())),
                        None => Ok(Found::Missing(bytes.len() + 1)),
                    };
                }
                // Nil is a bulk string or an array, depending on version and command.
                Some(b'$') => match header(bytes, 0, b'$')? {
                    Header::Nil(end) => (Next::Nothing, end),
                    Header::Number(..) => return Err(Violation("a reply that is not an array of entries").into()),
                    Header::Missing => return Ok(Found::Missing(bytes.len() + 1)),
                },
                _ => match header(bytes, 0, b'*')? {
                    Header::Nil(end) => (Next::Nothing, end),
                    Header::Number(entries, end) if self.shape == Shape::Entries => (self.declare(entries)?, end),
                    Header::Number(streams, _) if streams > self.limits.streams => {
                        return Err(Violation("a reply with more streams than were asked for").into());
                    }
                    Header::Number(streams, end) => {
                        self.streams = streams;
                        (Next::Stream, end)
                    }
                    Header::Missing => return Ok(Found::Missing(bytes.len() + 1)),
                },
            },
            Next::Stream if self.streams == 0 => (Next::Nothing, 0),
            Next::Stream => match header(bytes, 0, b'*')? {
                Header::Number(2, end) => (Next::Key, end),
                Header::Missing => return Ok(Found::Missing(bytes.len() + 1)),
                _ => return Err(Violation("a stream that is not an array of a key and entries").into()),
            },
            Next::Key => match bulk(bytes, 0, self.limits.entry_bytes)? {
                Bulk::Whole(_, end) if end + 2 > self.limits.entry_bytes => return Err(part::TOO_LARGE.into()),
                Bulk::Whole(start, end) => {
                    sink.stream(&bytes[start..end]);
                    (Next::Entries, end + 2)
                }
                Bulk::Missing(needed) => return Ok(Found::Missing(needed)),
            },
            _ => match header(bytes, 0, b'*')? {
                Header::Number(entries, end) => (self.declare(entries)?, end),
                Header::Nil(end) => (self.declare(0)?, end),
                Header::Missing => return Ok(Found::Missing(bytes.len() + 1)),
            },
        };
        self.next = next;
        Ok(Found::Whole(length))
    }

    /// Sets how many entries follow, within the limit.
    fn declare(&mut self, entries: u64) -> Result<Next, Violation> {
        let left = self.limits.reply_entries.checked_sub(entries);
        self.limits.reply_entries = left.ok_or(Violation("a reply with more entries than were asked for"))?;
        self.entries = entries;
        Ok(Next::Entry)
    }
}
