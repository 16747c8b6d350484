//! A session of a keeper, and its server.

use std::time::{Duration, Instant};

use crate::reading::Link;

/// A session and its server.
pub(super) struct Line<K> {
    pub(super) session: K,
    pub(super) link: Link,
}

impl<K> Line<K> {
    /// The time left of the pause after a failed attempt.
    pub(super) fn pause(&mut self) -> Duration {
        self.link.next_try().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }
}
