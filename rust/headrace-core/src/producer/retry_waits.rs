//! Waits for a retry as the caller sees them: when each one starts, how it ends, and how long it has lasted.
//!
//! They can also occur where no [`Watch`] is available, so they are noted here, and the next call that has one reports them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Producer;
use crate::connection::RetryEvent;
use crate::counters::Counters;
use crate::net::Watch;
use crate::retry::{RetryEnd, RetryWait};

#[derive(Debug, Default)]
pub(super) struct RetryWaits {
    events: VecDeque<RetryEvent>,
    /// The time up to which the current wait is counted.
    counted: Option<Instant>,
}

impl RetryWaits {
    /// Notes the start or the end of a wait.
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

impl Producer {
    /// Reports to the watch which waits began or ended since the last call.
    pub(crate) fn report_waits(&mut self, watch: &mut dyn Watch) {
        while let Some(event) = self.retry_waits.iter_mut().find_map(|waits| waits.events.pop_front()) {
            match event {
                RetryEvent::Began { messages, since, failure } => watch.retry_began(&RetryWait {
                    endpoint: &self.endpoint,
                    messages: Some(messages),
                    left: self.deadline().saturating_sub(since.elapsed()),
                    failure: &failure,
                }),
                RetryEvent::Ended { tries, took, failure } => {
                    let (endpoint, failure) = (&self.endpoint, failure.as_deref());
                    watch.retry_ended(&RetryEnd { endpoint, is_reading: false, tries, took, failure });
                }
            }
        }
    }

    fn deadline(&self) -> Duration {
        self.rules.retry.as_ref().map_or(Duration::ZERO, |retry| retry.deadline)
    }
}
