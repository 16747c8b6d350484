//! Commands on their way to the server.

/// Bytes to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Commands are appended here.
    pub(crate) bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// The bytes to send now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// Notes that the transport took `count` bytes.
    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            self.clear();
        }
    }

    /// Forgets the commands of a lost connection.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }
}
