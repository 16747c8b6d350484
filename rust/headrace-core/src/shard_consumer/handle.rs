//! What any thread may do with a shard consumer.

use std::sync::Arc;
use std::time::Duration;

use super::CLOSED;
use super::batch::ShardBatch;
use super::shared::Shared;
use crate::counters::{CounterValues, ReadCounters};
use crate::entries::escaped;
use crate::error::{Error, Result};
use crate::keeper::clock;
use crate::leases::{AfterFailure, ShardReport};

/// Commits the entries of a shard consumer, from any thread and at any time: no method waits for a server.
#[derive(Debug, Clone)]
pub struct ShardHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: u64,
    pub(super) keys: Arc<[Vec<u8>]>,
    pub(super) fork: forkguard::Guard,
}

impl ShardHandle {
    /// Commits the batch, and all batches before it of its stream: the next owner begins after them. `row`: the last row of the
    /// batch to commit; `None`: all of them.
    pub fn commit(&self, batch: &ShardBatch, row: Option<usize>) -> Result<()> {
        self.enter()?;
        self.check_owner(batch)?;
        let part = row.and_then(|row| batch.after(row)).filter(|(_, left)| *left > 0);
        self.shared.leases().commit(batch.ticket, part);
        self.shared.doze.added(false);
        Ok(())
    }

    /// Marks the batch as failed, or the entry of its `row`: what is before it in its stream is committed, and it is returned again
    /// after `delay`, with what follows it. Once it has failed too often it becomes a dead letter, if the options say so. `delay`:
    /// `None` for 0.1 s, doubled after each further failure up to 30 s.
    pub fn fail(&self, batch: &ShardBatch, row: Option<usize>, reason: &str, delay: Option<Duration>) -> Result<()> {
        self.enter()?;
        self.check_owner(batch)?;
        let failed = batch.failed(row, reason, delay).ok_or_else(|| Error::config("batch", "batch has no such row"))?;
        let after = self.shared.leases().fail(batch.ticket, failed, clock::now());
        self.shared.doze.added(false);
        if after == AfterFailure::IsCommitted {
            let message = format!("stream {}: what was committed cannot fail", escaped(batch.batch.stream()));
            return Err(Error::state(message));
        }
        Ok(())
    }

    fn check_owner(&self, batch: &ShardBatch) -> Result<()> {
        if batch.owner == self.owner {
            return Ok(());
        }
        Err(Error::config("batch", "batch must belong to this consumer, got one of another consumer"))
    }

    /// Fails with [`Error::LeaseLost`] if the stream of the batch may belong to another member by now.
    pub fn check(&self, batch: &ShardBatch) -> Result<()> {
        self.enter()?;
        if self.shared.leases().check(batch.ticket, clock::now()) {
            return Ok(());
        }
        let entries = &batch.batch;
        let rows = entries.record_batch().num_rows();
        let mut ids: Vec<_> = (0..rows).filter_map(|row| entries.id(row)).map(|id| id.to_string()).collect();
        ids.dedup();
        let message = format!(
            "stream {}: another member may own it by now, as its lease was not renewed in time: roll the rows of this batch back",
            escaped(entries.stream())
        );
        Err(Error::LeaseLost { stream: entries.stream().to_vec(), entry_ids: ids, message })
    }

    /// The streams that this member owns.
    pub fn assignment(&self) -> Vec<Vec<u8>> {
        self.enter().map_or_else(
            |_| Vec::new(),
            |()| self.shared.leases().assignment().map(|stream| self.keys[stream].clone()).collect(),
        )
    }

    /// Stops reading: no further batch is returned.
    pub fn stop(&self) {
        self.shared.stop();
        self.shared.doze.wake();
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stops()
    }

    /// The counts so far.
    pub fn report(&self) -> Result<ShardReport> {
        match self.enter() {
            Ok(()) | Err(Error::Closed { .. }) => {
                let lost = self.shared.counters.get().map_or(0, |counters| counters.lost.get());
                Ok(ShardReport { lost, ..self.shared.leases().report() })
            }
            Err(error) => Err(error),
        }
    }

    /// The values of [`READER_COUNTERS`](crate::READER_COUNTERS), and those of
    /// [`SHARD_CONSUMER_COUNTERS`](crate::SHARD_CONSUMER_COUNTERS) that statistics have, also of a closed consumer. In a forked
    /// process they are all zero.
    pub fn stats(&self) -> CounterValues {
        // The parent may have held the lock when it forked.
        if self.fork.clone().detected_fork() {
            return [ReadCounters::default().values(), ShardReport::default().stats()].concat();
        }
        let read =
            self.shared.counters.get().map_or_else(|| ReadCounters::default().values(), |counters| counters.values());
        [read, self.shared.leases().report().stats()].concat()
    }

    /// The number of entries that were committed, and whose commit would be lost if the consumer ended now. Zero for a closed
    /// consumer, and in a forked process.
    pub fn unconfirmed(&self) -> u64 {
        self.enter().map_or(0, |()| self.shared.leases().unconfirmed())
    }

    /// Fails once the consumer has ended, and in a forked process, whose parent may have held the lock when it forked.
    fn enter(&self) -> Result<()> {
        if self.fork.clone().detected_fork() {
            return Err(Error::state("the consumer belongs to the process that made it: make one in each process"));
        }
        if self.shared.doze.ends() { Err(CLOSED) } else { Ok(()) }
    }
}
