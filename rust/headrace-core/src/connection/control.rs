//! A command that belongs to no message, and that must be answered before messages go out.

/// A command that goes out before everything that is encoded, and alone: nothing else is sent until its reply has arrived.
#[derive(Debug)]
pub(crate) struct Control {
    command: &'static [u8],
    sent: usize,
}

impl Control {
    /// Asks a server that was silent for long whether it is reachable. Any reply will do: a user without the right to PING, or a
    /// server that is loading, is on a live connection as well.
    pub(crate) fn ping() -> Self {
        Self { command: b"*1\r\n$4\r\nPING\r\n", sent: 0 }
    }

    /// The bytes that the transport does not have yet.
    pub(crate) fn unsent(&self) -> &'static [u8] {
        &self.command[self.sent..]
    }

    /// Advances past the next `count` bytes, which the transport took.
    pub(crate) fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.command.len());
    }

    /// Whether the transport has the whole command.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.command.len()
    }
}
