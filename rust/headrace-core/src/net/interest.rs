//! A socket that an event loop outside of this crate is to watch.

use std::os::fd::BorrowedFd;

/// A socket, and what to wait for: that it can be read, and also that it can be written if `writable`.
#[derive(Debug, Clone, Copy)]
pub struct Interest<'a> {
    /// The number of the connection, counted from 1 by its dispatcher. The system gives the descriptor of a closed socket to the
    /// next one that is opened, so only this number shows that a socket was replaced, and must be registered again.
    pub connection: u64,
    /// Its descriptor. It belongs to the dispatcher, whose next call may close it.
    pub fd: BorrowedFd<'a>,
    /// Whether there are bytes to send that the socket did not take.
    pub writable: bool,
}
