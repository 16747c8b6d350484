//! A socket that an event loop outside of this crate is to watch.

use std::os::fd::RawFd;

/// A socket, and what to wait for: that it can be read, and also that it can be written if `writable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// The number of the connection, counted from 1 by its dispatcher; one from 2^63 on is that of a connection that is being opened,
    /// another one for each of its waits. The system gives the descriptor of a closed socket to the next one that is opened, so only this
    /// number shows that a socket was replaced, and must be registered again.
    pub connection: u64,
    /// Its descriptor. It belongs to the dispatcher, whose next call may close it.
    pub fd: RawFd,
    /// Whether there are bytes to send that the socket did not take.
    pub writable: bool,
}
