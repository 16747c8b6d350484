//! What the loop of a reader knows of one session.

use std::time::{Duration, Instant};

use super::sessions::Sessions;
use crate::reading::Link;

/// The server of a session, and its pause.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) link: Link,
    /// The time up to which entries that arrived wait for more, while other sessions continue.
    pub(super) lingers: Option<Instant>,
}

impl Line {
    pub(super) fn new(link: Link) -> Self {
        Self { link, lingers: None }
    }

    /// The time up to which entries that arrived wait for more, while other sessions continue. `None`: they do not wait.
    pub(super) fn lingers(&mut self, at: usize, sessions: &mut Sessions, deadline: Option<Instant>) -> Option<Instant> {
        let pause = sessions.get(at).pause();
        if !pause.is_zero() {
            let now = Instant::now();
            let until = *self.lingers.get_or_insert(now + pause.min(left(deadline)));
            if now < until {
                return Some(until);
            }
            sessions.with(at, |session| session.paused());
        }
        self.lingers = None;
        None
    }
}

/// The time until the deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
