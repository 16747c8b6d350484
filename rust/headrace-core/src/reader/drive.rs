//! The loop of a reader: sends, receives and waits, until a batch is ready.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::Line;
use super::members::ReaderMembers;
use super::sessions::Sessions;
use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::net::{Interest, Watch, breathe};
use crate::reading::{Advance, Link, Outage, Pool, ReadBatch, Standing, TRIES_EVERY};
use crate::retry::RetryPolicy;

/// The sessions of a reader, with the pool of their connections.
#[derive(Debug)]
pub(super) struct Drive {
    lines: Vec<Line>,
    pool: Pool<()>,
    /// Errors that the caller gets after the batches that were read. At most one for each session.
    failed: VecDeque<Error>,
    /// When the server was last asked again about streams that it refused.
    tried_at: Instant,
}

impl Drive {
    /// Each endpoint has a session. Opens no connection.
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        pool: Pool<()>,
        retry: Option<&RetryPolicy>,
        counters: &Arc<ReadCounters>,
    ) -> Self {
        let line = |endpoint| Line::new(Link::new(endpoint, Outage::new(retry.cloned()), Arc::clone(counters)));
        Self {
            lines: endpoints.into_iter().map(line).collect(),
            pool,
            failed: VecDeque::new(),
            tried_at: Instant::now(),
        }
    }

    /// The endpoint as its server describes it.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        self.lines.first().map(|line| line.link.endpoint())
    }

    /// Runs until each stream has begun. If `is_undecided`, also ends when the server says that it is a node of a cluster.
    pub(super) async fn until_begun(
        &mut self,
        sessions: &mut Sessions,
        is_undecided: bool,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let is_of_cluster = |drive: &Self| drive.endpoint().is_some_and(|endpoint| endpoint.cluster().is_some());
        while !(sessions.has_begun() || is_undecided && is_of_cluster(self)) {
            self.run(sessions, None, watch).await?;
            if let Some(error) = self.failed.pop_front() {
                return Err(error);
            }
        }
        // Without a stream that can be read there is no reader.
        match (sessions.standing() == Standing::Refused).then(|| sessions.take()).flatten() {
            Some((_, Err(error))) => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs until [`take`](Self::take) has a batch or an error, everything was read, or `timeout` is over.
    pub(super) async fn until_ready(
        &mut self,
        sessions: &mut Sessions,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = false;
        while !is_over && !sessions.is_ready() && self.failed.is_empty() && !sessions.is_finished() {
            if sessions.is_stranded() || self.tried_at.elapsed() >= TRIES_EVERY {
                self.tried_at = Instant::now();
                sessions.try_again();
            }
            self.run(sessions, deadline, watch).await?;
            is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        }
        Ok(())
    }

    /// The next batch that is ready.
    pub(super) fn take(&mut self, sessions: &mut Sessions) -> Result<Option<ReadBatch>> {
        if let Some((at, batch)) = sessions.take() {
            // The server prepares the next page while the caller works. A fault shows again in the next call.
            self.pool.read_ahead(at, &mut ReaderMembers::new(&mut self.lines, sessions, None));
            return batch.map(Some);
        }
        self.failed.pop_front().map_or(Ok(None), Err)
    }

    /// One pass over all connections, with a wait if nothing moved.
    async fn run(&mut self, sessions: &mut Sessions, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let mut members = ReaderMembers::new(&mut self.lines, sessions, deadline);
        let Advance { has_moved, until, failed } = self.pool.advance(&mut members, watch)?;
        if !has_moved && failed.is_empty() {
            self.pool.wait(&mut members, deadline.into_iter().chain(until).min(), watch).await?;
        }
        self.failed.extend(failed.into_iter().map(|(_, error)| error));
        breathe(watch).await
    }

    /// The sockets of all connections that are open.
    pub(super) fn open_sockets(&mut self) -> Vec<Interest> {
        self.pool.open_sockets()
    }

    /// Ends the connections; `is_parents`: they belong to the process that this one was forked from.
    pub(super) fn close(&mut self, sessions: &mut Sessions, is_parents: bool) {
        self.pool.close(&mut ReaderMembers::new(&mut self.lines, sessions, None), is_parents);
    }
}
