//! The result of a pass over a connection.

use std::time::Instant;

/// The result of a pass, which itself never waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Something moved, or may move now.
    Moved,
    /// The connection waits for its socket, or for nothing.
    Idle,
    /// The connection waits until this time.
    Paused(Instant),
}
