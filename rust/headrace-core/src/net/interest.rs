//! A socket for an event loop outside this crate to watch.

use std::os::fd::RawFd;

/// A socket to wait for: until it is readable or, if `writable`, writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// The number of the connection, counted from 1 by its dispatcher. Numbers from 2^63 on are for a connection that is
    /// being opened, a new one for each of its waits. The system reuses the descriptor of a closed socket for the next one
    /// that is opened, so only this number shows that a socket was replaced and must be registered again.
    pub connection: u64,
    /// The descriptor of the socket. The dispatcher owns it, and its next call may close it.
    pub fd: RawFd,
    /// Whether bytes remain to be sent that the socket did not accept.
    pub writable: bool,
}
