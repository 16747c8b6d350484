//! What a socket needs of the session that it carries.

use std::time::Duration;

use crate::error::Fault;

/// Bytes out, bytes in: a session without I/O and clock. [`Link`](super::Link) carries it.
pub(crate) trait Exchange {
    /// The bytes to send now.
    fn unsent(&self) -> &[u8];

    /// The transport took `count` bytes.
    fn sent(&mut self, count: usize);

    /// Where the next bytes of the server go.
    fn space(&mut self) -> &mut [u8];

    /// `count` bytes arrived in [`space`](Self::space). A fault makes the connection useless.
    fn received(&mut self, count: usize) -> Result<(), Fault>;

    /// The caller waited for bytes, or was busy reading them.
    fn took(&mut self, _waited: Duration, _busy: Duration) {}

    fn awaits_reply(&self) -> bool;

    /// Whether [`received`](Self::received) is to go on with bytes that are here.
    fn is_suspended(&self) -> bool {
        false
    }

    /// How long the server waits for entries before it replies.
    fn blocks_for(&self) -> Duration {
        Duration::ZERO
    }

    /// The socket is gone.
    fn disconnected(&mut self);
}
