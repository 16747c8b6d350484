//! Bytes from a server that have not been read yet.

/// The space kept free for the next read, and the size of the buffer while entries are small.
const SIZE: usize = 256 * 1024;
/// A buffer that grew beyond this for a large entry is released.
const LARGE: usize = 4 * SIZE;

/// A growing buffer of at most four times the bytes of the largest entry.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// The bytes that have not been consumed.
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// The space for the next bytes. It grows only as bytes arrive, not by what a header declares.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > LARGE {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end < SIZE / 4 {
            // The rest of a page is small compared to the page.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let wanted = SIZE.max(2 * self.end);
            if self.bytes.len() < wanted {
                self.bytes.resize(wanted, 0);
            }
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Adds the `count` bytes that arrived in [`space`](Self::space).
    pub(super) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// Advances past the first `count` bytes, which were read.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Takes the first `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        let start = self.start;
        self.consume(count);
        self.bytes.get(start..self.start).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_order_however_many_are_consumed() {
        let mut input = Input::default();
        let (mut written, mut read) = (0_u8, 0_u8);
        for step in 0..20_000_usize {
            let space = input.space();
            let count = (step * 7 % 97).min(space.len());
            for byte in &mut space[..count] {
                *byte = written;
                written = written.wrapping_add(1);
            }
            input.filled(count);
            let consumed = (step * 5 % 89).min(input.unread().len());
            for byte in &input.unread()[..consumed] {
                assert_eq!(*byte, read);
                read = read.wrapping_add(1);
            }
            input.consume(consumed);
        }
    }

    #[test]
    fn memory_grows_with_unread_bytes_and_is_released_afterwards() {
        let mut input = Input::default();
        while input.unread().len() < 4 << 20 {
            let count = input.space().len().min(60_000);
            input.filled(count);
        }
        let held = input.unread().len();
        assert!(input.bytes.len() <= 2 * held);
        input.consume(held);
        assert_eq!(input.space().len(), SIZE);
    }
}
