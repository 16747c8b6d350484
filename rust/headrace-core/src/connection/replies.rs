//! The receive buffer of a connection: bytes in as they arrive, one reply out at a time. It allocates nothing.

use crate::command::{Expect, NextId, Reply};
use crate::resp::decode::{MAX_LINE, Violation};

/// Room for the rest of any expected reply, and for more.
const CAPACITY: usize = 2 * MAX_LINE;
/// With less free space than this at the end, unread bytes move to the front.
const MIN_SPACE: usize = 16 * 1024;

/// Bytes that were received and not decoded yet.
#[derive(Debug)]
pub(crate) struct ReplyBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    next_id: NextId,
    /// The lengths of the last two replies to runs of the script.
    runs: [usize; 2],
}

impl ReplyBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0, next_id: NextId::none(), runs: [0; 2] }
    }

    /// Room to receive into. It is never empty, because [`next`](Self::next) waits for no more than the longest reply.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < MIN_SPACE {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// Marks the first `count` bytes of [`space`](Self::space) as received.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// An estimate of the bytes still to come for `count` replies: rather too low than too high, and at least 1.
    pub(crate) fn still_to_come(&self, count: usize) -> usize {
        // The first reply may have arrived in part. An ID loses the digits of its sequence number when the server's clock ticks.
        let length = self.next_id.length().max(self.runs[0].min(self.runs[1])) * 3 / 4;
        1 + count.saturating_sub(1).saturating_mul(length)
    }

    /// How many bytes are not decoded yet.
    pub(crate) fn unread(&self) -> usize {
        self.end - self.start
    }

    /// Empties the buffer without clearing its bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn reset(&mut self) {
        (self.start, self.end, self.next_id, self.runs) = (0, 0, NextId::none(), [0; 2]);
    }

    /// The next reply, once all of it has arrived. Entry IDs that follow each other are returned together, even beyond the
    /// commands that expect them: the caller matches each one to its command.
    pub(crate) fn next(&mut self, expect: Expect) -> Result<Option<Reply<'_>>, Violation> {
        if expect == Expect::EntryId
            && let Some(ids) = self.predicted_ids()
        {
            return Ok(Some(ids));
        }
        let bytes = &self.bytes[self.start..self.end];
        match expect.decode(bytes)? {
            Some((reply, length)) => {
                match reply {
                    Reply::Ids { first, .. } => self.next_id.follow(&bytes[..length], first),
                    Reply::Run(_) => self.runs = [length, self.runs[0]],
                    _ => {}
                }
                self.start += length;
                Ok(Some(reply))
            }
            None => Ok(None),
        }
    }

    /// As many replies as match the prediction.
    #[inline]
    fn predicted_ids(&mut self) -> Option<Reply<'static>> {
        let first = self.next_id.id();
        let mut count = 0;
        while self.next_id.length() > 0 && self.next_id.length() <= self.end - self.start {
            // Bytes after the end are not used.
            let Some(bytes) = self.bytes.get(self.start..).and_then(<[u8]>::first_chunk) else { break };
            if !self.next_id.matches(bytes) {
                break;
            }
            self.start += self.next_id.length();
            self.next_id.advance();
            count += 1;
        }
        (count > 0).then_some(Reply::Ids { first, count })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
