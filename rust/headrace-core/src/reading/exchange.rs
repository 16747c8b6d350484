//! What a socket needs from the session that uses it.

use std::time::Duration;

use crate::error::Fault;

/// Bytes out, bytes in: a session without I/O or a clock. [`Link`](super::Link) transfers its bytes.
pub(crate) trait Exchange {
    /// The bytes to send now.
    fn unsent(&self) -> &[u8];

    /// The transport took `count` bytes.
    fn sent(&mut self, count: usize);

    /// The space for the next bytes from the server.
    fn space(&mut self) -> &mut [u8];

    /// `count` bytes arrived in [`space`](Self::space). A fault makes the connection useless.
    fn received(&mut self, count: usize) -> Result<(), Fault>;

    /// The caller waited for bytes, or was busy reading them.
    fn took(&mut self, _waited: Duration, _busy: Duration) {}

    /// The number of replies that are due.
    fn due(&self) -> usize;

    fn awaits_reply(&self) -> bool {
        self.due() > 0
    }

    /// Whether [`received`](Self::received) must continue with bytes that have already arrived.
    fn is_suspended(&self) -> bool {
        false
    }

    /// How long the server waits for entries before it replies.
    fn blocks_for(&self) -> Duration {
        Duration::ZERO
    }

    /// The socket was lost.
    fn disconnected(&mut self);
}
