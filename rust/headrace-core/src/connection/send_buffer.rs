//! The send buffer of a connection: encoded bytes that the transport does not have yet and, between them, large payloads that
//! stay where they are. No I/O.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use arrow_buffer::Buffer;

/// Encoded bytes go out when there are this many: large writes cost less, especially under TLS.
const CHUNK: usize = 64 * 1024;
/// The capacity that the buffer keeps: one large message must not hold its memory forever.
const KEPT_CAPACITY: usize = 4 * CHUNK;
/// The maximum number of slices in one write; the rest goes with the next write.
pub(crate) const MAX_SLICES: usize = 64;

#[derive(Debug)]
pub(crate) struct SendBuffer {
    bytes: Vec<u8>,
    /// How many of `bytes` the transport has.
    taken: usize,
    /// Whether sent bytes stay until they are [released](Self::release): they may have to be sent again.
    keeps: bool,
    /// How many of `bytes` are no longer needed.
    done: usize,
    /// Where `bytes` start, in offsets of the connection.
    offset: u64,
    lent: VecDeque<Lent>,
    /// How many bytes of `lent` the transport does not have.
    lent_bytes: usize,
}

/// A payload that goes out from the buffer that holds it.
#[derive(Debug)]
struct Lent {
    /// The payload's position: before this index of `bytes`.
    at: usize,
    payload: Buffer,
    /// Whether the payload is our own copy.
    owned: bool,
}

impl SendBuffer {
    pub(crate) fn new(keeps: bool) -> Self {
        Self {
            bytes: Vec::with_capacity(CHUNK + CHUNK / 4),
            taken: 0,
            keeps,
            done: 0,
            offset: 0,
            lent: VecDeque::new(),
            lent_bytes: 0,
        }
    }

    /// Sets whether sent bytes stay from now on. None has been sent.
    pub(crate) fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Releases the bytes before the offset `until`: they are answered and need not be kept.
    #[inline]
    pub(crate) fn release(&mut self, until: u64) {
        if self.keeps {
            self.done = until.saturating_sub(self.offset) as usize;
            self.tidy();
        }
    }

    /// Bytes that are kept, by their offsets.
    pub(crate) fn kept(&self, bytes: Range<u64>) -> &[u8] {
        let place = |offset: u64| offset.saturating_sub(self.offset) as usize;
        self.bytes.get(place(bytes.start)..place(bytes.end)).unwrap_or_default()
    }

    /// How many bytes are left to send.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken + self.lent_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more bytes may be encoded before the buffer goes out. The message that exceeds the limit is let through.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        CHUNK.saturating_sub(self.len())
    }

    /// Where encoded bytes are appended.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a payload, which is not empty, without copying it, unless it must be kept.
    pub(crate) fn lend(&mut self, payload: Buffer) {
        if self.keeps {
            self.bytes.extend_from_slice(&payload);
            return;
        }
        self.lent_bytes += payload.len();
        self.lent.push_back(Lent { at: self.bytes.len(), payload, owned: false });
    }

    /// The last `length` bytes, if bytes are kept.
    pub(crate) fn last(&self, length: usize) -> &[u8] {
        self.bytes.get(self.bytes.len().saturating_sub(length)..).unwrap_or_default()
    }

    /// Removes the last bytes, so that `len` are left to be sent.
    pub(crate) fn truncate(&mut self, len: usize) {
        while self.len() > len {
            let excess = self.len() - len;
            match self.lent.back() {
                Some(lent) if lent.at == self.bytes.len() => {
                    self.lent_bytes -= lent.payload.len();
                    self.lent.pop_back();
                }
                last => {
                    let start = last.map_or(self.taken, |lent| lent.at.max(self.taken));
                    self.bytes.truncate(start.max(self.bytes.len().saturating_sub(excess)));
                }
            }
        }
    }

    /// Copies lent payloads that have not been sent yet: their owner may change them from now on.
    pub(crate) fn own(&mut self) {
        for lent in self.lent.iter_mut().filter(|lent| !lent.owned) {
            lent.payload = Buffer::from(lent.payload.as_slice());
            lent.owned = true;
        }
    }

    /// The bytes to send next, if they are in one piece.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        if self.lent.is_empty() { self.bytes.get(self.taken..) } else { None }
    }

    /// Fills in the bytes to send next, piece by piece. Returns the number of pieces.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut places = slices.iter_mut();
        let mut start = self.taken;
        let mut filled = 0;
        let mut add = |slice: &'a [u8]| {
            if !slice.is_empty()
                && let Some(place) = places.next()
            {
                *place = IoSlice::new(slice);
                filled += 1;
            }
        };
        for lent in self.lent.iter().take(MAX_SLICES) {
            add(&self.bytes[start..lent.at]);
            add(&lent.payload);
            start = lent.at;
        }
        if self.lent.len() <= MAX_SLICES {
            add(&self.bytes[start..]);
        }
        filled
    }

    /// Advances past the first `count` bytes, which the transport took.
    pub(crate) fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let (until, is_lent) = match self.lent.front() {
                Some(lent) if lent.at == self.taken => (lent.payload.len(), true),
                Some(lent) => (lent.at - self.taken, false),
                None => (count, false),
            };
            let step = count.min(until);
            count -= step;
            if !is_lent {
                self.taken += step;
                continue;
            }
            self.lent_bytes -= step;
            if step == until {
                self.lent.pop_front();
            } else if let Some(lent) = self.lent.front_mut() {
                lent.payload.advance(step);
            }
        }
        self.tidy();
    }

    /// Frees memory that is no longer needed.
    fn tidy(&mut self) {
        if !self.keeps {
            self.done = self.taken;
        }
        let offset = self.offset + self.done as u64;
        if self.done == self.bytes.len() && self.is_empty() {
            self.clear();
            self.offset = offset;
        } else if self.done >= CHUNK && self.done >= self.bytes.len() - self.done {
            // Only once the rest is the smaller part: a message of many megabytes is not moved for each chunk of it.
            self.bytes.drain(..self.done);
            for lent in &mut self.lent {
                lent.at -= self.done;
            }
            self.taken -= self.done;
            (self.done, self.offset) = (0, offset);
        }
    }

    /// Drops everything. Offsets start at 0 again.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.lent.clear();
        self.lent.shrink_to(MAX_SLICES);
        (self.taken, self.done, self.offset, self.lent_bytes) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::net::Transport;

    proptest! {
        /// However much the socket takes at a time.
        #[test]
        fn bytes_are_sent_in_the_order_in_which_they_were_added(parts in prop::collection::vec((any::<bool>(), 1..120_000_usize), 1..30)) {
            let (mut transport, mut peer) = Transport::pair();
            peer.set_nonblocking(true).unwrap();
            let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(120_000 + 30).collect();
            let (mut buffer, mut expected, mut seen) = (SendBuffer::new(false), Vec::new(), Vec::new());
            let mut drain = |buffer: &mut SendBuffer| {
                while !buffer.is_empty() {
                    let before = buffer.len();
                    let count = if let Some(bytes) = buffer.contiguous() {
                        transport.send(bytes).unwrap()
                    } else {
                        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                        let filled = buffer.slices(&mut slices);
                        transport.send_vectored(&slices[..filled]).unwrap()
                    };
                    buffer.advance(count);
                    assert_eq!(buffer.len(), before - count);
                    let mut some = vec![0; 70_000];
                    while let Ok(count @ 1..) = peer.read(&mut some) {
                        seen.extend_from_slice(&some[..count]);
                    }
                }
            };
            for (number, (is_lent, length)) in parts.into_iter().enumerate() {
                let part = bytes[number..number + length].to_vec();
                expected.extend_from_slice(&part);
                if is_lent { buffer.lend(part.into()) } else { buffer.bytes().extend_from_slice(&part) }
                if number % 7 == 6 { drain(&mut buffer) }
            }
            drain(&mut buffer);
            prop_assert!(seen == expected);
            prop_assert!(buffer.lent.is_empty() && buffer.bytes.is_empty());
        }
    }
}
