//! What was encoded and is not with the transport yet: bytes, and between them large payloads that stay where they are.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use arrow_buffer::Buffer;

use crate::error::Fault;
use crate::transport::Transport;

/// Encoded bytes go out when there are this many: large writes cost less, most of all under TLS.
const CHUNK: usize = 64 * 1024;
/// What the buffer keeps: one large message must not hold its memory for ever.
const KEPT_CAPACITY: usize = 4 * CHUNK;
/// The most slices of one write; what is left goes with the next.
const MAX_SLICES: usize = 64;

#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// How many of `bytes` are with the transport.
    taken: usize,
    /// Whether what the transport took stays until it is [released](Self::release): it may have to be sent again.
    keeps: bool,
    /// How many of `bytes` are of no more use.
    done: usize,
    /// Where `bytes` begin, in offsets of the connection.
    offset: u64,
    lent: VecDeque<Lent>,
    /// How many bytes of `lent` are not with the transport.
    lent_bytes: usize,
}

/// A payload that goes out from the buffer that holds it.
#[derive(Debug)]
struct Lent {
    /// Where it stands: before this one of `bytes`.
    at: usize,
    payload: Buffer,
    /// Whether it is a copy of ours.
    owned: bool,
}

impl Outbox {
    pub(super) fn new(keeps: bool) -> Self {
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

    /// What is before this offset was answered.
    #[inline]
    pub(super) fn release(&mut self, until: u64) {
        if self.keeps {
            self.done = until.saturating_sub(self.offset) as usize;
            self.tidy();
        }
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self, bytes: Range<u64>) -> &[u8] {
        let place = |offset: u64| offset.saturating_sub(self.offset) as usize;
        self.bytes.get(place(bytes.start)..place(bytes.end)).unwrap_or_default()
    }

    /// How many bytes are to be sent.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken + self.lent_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more bytes are to be encoded before these go out. The message that passes the limit is let through.
    #[inline]
    pub(super) fn room(&self) -> usize {
        CHUNK.saturating_sub(self.len())
    }

    /// Where encoded bytes are appended.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a payload, which is not empty, without copying it, if it need not be kept.
    pub(super) fn lend(&mut self, payload: Buffer) {
        if self.keeps {
            self.bytes.extend_from_slice(&payload);
            return;
        }
        self.lent_bytes += payload.len();
        self.lent.push_back(Lent { at: self.bytes.len(), payload, owned: false });
    }

    /// Takes back what was appended last: this many bytes are left to be sent.
    pub(super) fn truncate(&mut self, len: usize) {
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

    /// Copies what is lent and not yet sent: the caller may change it from now on.
    pub(super) fn own(&mut self) {
        for lent in self.lent.iter_mut().filter(|lent| !lent.owned) {
            lent.payload = Buffer::from(lent.payload.as_slice());
            lent.owned = true;
        }
    }

    /// Gives the transport as much as it takes in one call; returns how much.
    pub(super) fn send(&mut self, transport: &mut Transport) -> Result<usize, Fault> {
        let count = if self.lent.is_empty() {
            transport.send(&self.bytes[self.taken..])?
        } else {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let filled = self.fill(&mut slices);
            transport.send_vectored(&slices[..filled])?
        };
        self.advance(count);
        Ok(count)
    }

    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
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

    fn advance(&mut self, mut count: usize) {
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

    /// Gives up memory that is no longer needed.
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

    /// Forgets everything. Offsets start anew.
    pub(super) fn clear(&mut self) {
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

    proptest! {
        /// However much the socket takes at a time.
        #[test]
        fn what_goes_in_comes_out_in_order(parts in prop::collection::vec((any::<bool>(), 1..120_000_usize), 1..30)) {
            let (mut transport, mut peer) = Transport::pair();
            peer.set_nonblocking(true).unwrap();
            let (mut outbox, mut expected, mut seen) = (Outbox::new(false), Vec::new(), Vec::new());
            let mut drain = |outbox: &mut Outbox| {
                while !outbox.is_empty() {
                    let before = outbox.len();
                    let count = outbox.send(&mut transport).unwrap();
                    assert_eq!(outbox.len(), before - count);
                    let mut some = vec![0; 70_000];
                    while let Ok(count @ 1..) = peer.read(&mut some) {
                        seen.extend_from_slice(&some[..count]);
                    }
                }
            };
            for (number, (is_lent, length)) in parts.into_iter().enumerate() {
                let part: Vec<u8> = (0..length).map(|at| (at + number) as u8).collect();
                expected.extend_from_slice(&part);
                if is_lent { outbox.lend(part.into()) } else { outbox.bytes().extend_from_slice(&part) }
                if number % 7 == 6 { drain(&mut outbox) }
            }
            drain(&mut outbox);
            prop_assert!(seen == expected);
            prop_assert!(outbox.lent.is_empty() && outbox.bytes.is_empty());
        }
    }
}
