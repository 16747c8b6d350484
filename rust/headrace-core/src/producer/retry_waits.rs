//! Waits for a retry as the caller sees them: when each one starts, how it ends, and how long it has lasted.
//!
//! Waits can also occur where no [`Watch`](crate::net::Watch) is available, so they are recorded here, and the next call that has
//! one reports them. No I/O; the time is an argument.

use std::collections::VecDeque;
use std::time::Instant;

use crate::connection::RetryEvent;
use crate::counters::Counters;

#[derive(Debug, Default)]
pub(super) struct RetryWaits {
    events: VecDeque<RetryEvent>,
    /// The time up to which the current wait is counted.
    counted: Option<Instant>,
}

impl RetryWaits {
    /// Takes the next start or end of a wait to report.
    pub(super) fn next(&mut self) -> Option<RetryEvent> {
        self.events.pop_front()
    }

    /// Records the start or the end of a wait, and counts its time.
    pub(super) fn note(&mut self, event: RetryEvent, now: Instant, counters: &Counters) {
        match &event {
            RetryEvent::Began { since, .. } => {
                counters.retry_waits.add(1);
                self.counted = Some(*since);
                self.count(now, counters);
            }
            RetryEvent::Ended { .. } => {
                self.count(now, counters);
                self.counted = None;
            }
        }
        self.events.push_back(event);
    }

    /// Counts the time up to `now`, if a wait is in progress.
    pub(super) fn count(&mut self, now: Instant, counters: &Counters) {
        if let Some(counted) = &mut self.counted {
            counters.waited(now.saturating_duration_since(*counted));
            *counted = now;
        }
    }
}
