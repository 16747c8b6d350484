//! The loop of a reader: sends, receives and waits, until there is a batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::net::Watch;
use crate::reading::{Link, Pages, ReadBatch, wait_for_more};
use crate::retry::RetryPolicy;

/// The socket of a session.
#[derive(Debug)]
pub(super) struct Drive {
    link: Link,
}

impl Drive {
    pub(super) fn new(endpoint: Endpoint, retry: Option<RetryPolicy>, counters: Arc<ReadCounters>) -> Self {
        Self { link: Link::new(endpoint, retry, counters) }
    }

    /// Runs until each stream has begun.
    pub(super) fn until_begun(&mut self, session: &mut dyn Pages, watch: &mut dyn Watch) -> Result<()> {
        while !session.has_begun() {
            self.run(session, None, watch)?;
        }
        Ok(())
    }

    /// Runs until there is a batch, everything was read, or `timeout` is over.
    pub(super) fn until_batch(
        &mut self,
        session: &mut dyn Pages,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<Option<ReadBatch>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(batch) = session.take() {
                // The server gets the next page ready while the caller works. A fault shows again in the next call.
                session.request(None);
                let _ = self.link.send(session);
                return batch.map(Some);
            }
            if session.is_finished() {
                return Ok(None);
            }
            self.run(session, deadline, watch)?;
            // Also without time to wait, what has come is taken.
            if !session.is_ready() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// One pass: connects, asks, sends, receives or waits.
    fn run(&mut self, session: &mut dyn Pages, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        self.link.ask(watch)?;
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if !self.link.is_open() {
            if self.link.may_connect(left(), watch)? {
                self.link.connect(session, watch, |_, _, _| Ok(()))?;
            }
            return Ok(());
        }
        let pause = session.pause();
        if !pause.is_zero() {
            wait_for_more(pause.min(left()), watch)?;
            session.paused();
        }
        session.request(Some(left()));
        match self.link.step(session, watch) {
            Ok(true) => Ok(()),
            Ok(false) => self.link.wait(session, left(), watch),
            Err(fault) => self.link.lose(session, fault, watch),
        }
    }

    /// Ends the connection; `is_parents`: it belongs to the process that this one was forked from.
    pub(super) fn close(&mut self, session: &mut dyn Pages, is_parents: bool) {
        self.link.close(session, is_parents);
    }
}
