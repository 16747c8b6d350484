//! Waits for a retry as a caller sees them: what begins one and how it ends, and how long it has lasted.
//!
//! They come up wherever a round of retries does, also where no [`Watch`] is at hand. So they are noted here, and the next
//! call that has one tells of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Pipeline;
use crate::counters::Counters;
use crate::error::Failure;
use crate::retry::{RetryEnd, RetryWait};
use crate::transport::Watch;

/// What a watch is to be told.
#[derive(Debug)]
pub(super) enum Event {
    /// The first pause of a round: how many messages wait, since when, and why.
    Began { messages: u64, since: Instant, failure: Arc<Failure> },
    /// A round with pauses is over; with the failure that was not overcome.
    Ended { tries: u32, took: Duration, failure: Option<Arc<Failure>> },
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    events: VecDeque<Event>,
    /// Until when the wait that is under way was counted.
    counted: Option<Instant>,
}

impl Waits {
    /// Notes the beginning of a wait, or its end.
    pub(super) fn note(&mut self, event: Event, now: Instant, counters: &Counters) {
        match &event {
            Event::Began { since, .. } => {
                counters.retry_waits.add(1);
                self.counted = Some(*since);
                self.count(now, counters);
            }
            Event::Ended { .. } => {
                self.count(now, counters);
                self.counted = None;
            }
        }
        self.events.push_back(event);
    }

    /// Counts the time up to now, if a wait is under way.
    pub(super) fn count(&mut self, now: Instant, counters: &Counters) {
        if let Some(counted) = &mut self.counted {
            counters.waited(now.saturating_duration_since(*counted));
            *counted = now;
        }
    }
}

impl Pipeline {
    /// Reports to the watch which waits began or ended since the last call.
    pub(crate) fn tell_waits(&mut self, watch: &mut dyn Watch) {
        while let Some(event) = self.ledger.waits.events.pop_front() {
            match event {
                Event::Began { messages, since, failure } => watch.retry_began(&RetryWait {
                    endpoint: &self.endpoint,
                    messages,
                    left: self.deadline().saturating_sub(since.elapsed()),
                    failure: &failure,
                }),
                Event::Ended { tries, took, failure } => {
                    let (endpoint, failure) = (&self.endpoint, failure.as_deref());
                    watch.retry_ended(&RetryEnd { endpoint, tries, took, failure });
                }
            }
        }
    }

    fn deadline(&self) -> Duration {
        self.ledger.retry().map_or(Duration::ZERO, |retry| retry.deadline)
    }
}
