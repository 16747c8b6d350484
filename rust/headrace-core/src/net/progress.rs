//! The progress of a server that a call waits for.

use std::time::{Duration, Instant};

/// A piece of a reply is progress if it has this many bytes: a large entry may take longer than `command_timeout` to arrive.
const PIECE: usize = 4096;

/// The time of a server's last progress: a whole reply, or a piece of one. A single byte is none, because a server that sends one
/// from time to time would hold up a call for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    last: Instant,
    /// The number of bytes that moved since the last progress.
    bytes: usize,
}

impl Progress {
    pub(crate) fn new(now: Instant) -> Self {
        Self { last: now, bytes: 0 }
    }

    /// Counts `now` as progress: a reply is complete, or a request was sent, whose reply is due from now on.
    pub(crate) fn made(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Counts bytes that moved. Returns whether they are progress.
    pub(crate) fn moved(&mut self, count: usize, now: Instant) -> bool {
        self.bytes = self.bytes.saturating_add(count);
        let is_piece = self.bytes >= PIECE;
        if is_piece {
            self.made(now);
        }
        is_piece
    }

    /// The time since the last progress.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_progress_only_in_pieces() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::new(start);
        assert!(!progress.moved(1, at(1)));
        assert!(!progress.moved(PIECE - 2, at(2)));
        assert_eq!(progress.age(at(2)), Duration::from_secs(2));
        assert!(progress.moved(1, at(3)));
        assert!(!progress.moved(PIECE - 1, at(4)));
        assert_eq!(progress.age(at(4)), Duration::from_secs(1));
        progress.made(at(5));
        assert!(!progress.moved(1, at(6)), "the bytes before a reply count for that reply");
        assert_eq!(progress.age(at(6)), Duration::from_secs(1));
    }
}
