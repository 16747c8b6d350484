//! What a pass over a connection came to.

use std::time::Instant;

/// The end of a pass, which waits for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Something moved, or may move now.
    Moved,
    /// It waits for its socket, or for nothing.
    Idle,
    /// It waits for this time.
    Paused(Instant),
}
