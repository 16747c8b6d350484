//! A shard consumer that an event loop drives, with its keeper: no call blocks.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;
use super::{Polled, ShardConsumer};
use crate::error::Result;
use crate::keeper::LoopKeeper;
use crate::leases::ShardReport;
use crate::looped::{Call, Calls, LoopWait, Reply};
use crate::net::Watch;

/// A [`ShardConsumer`] for a caller with an event loop, which waits for what [`wait`](Self::wait) returns and calls
/// [`advance`](Self::advance) again, also while no call is at work: its keeper is a task of the loop.
#[derive(Debug)]
pub struct LoopShardConsumer {
    calls: Calls<ShardConsumer, Polled, ShardReport>,
    keeper: LoopKeeper,
    shared: Arc<Shared>,
}

impl LoopShardConsumer {
    /// Opens no connection. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(consumer: ShardConsumer, watch: Box<dyn Watch>) -> Self {
        // A renewal is due after a third of this time, and a lease may be lost after nine tenths.
        let keeper = LoopKeeper::new(&consumer.shared.doze, consumer.options.names.lease / 2);
        let shared = Arc::clone(&consumer.shared);
        Self { calls: Calls::new(consumer, watch), keeper, shared }
    }

    /// The consumer. `None`: a call is at work.
    pub fn consumer(&mut self) -> Option<&mut ShardConsumer> {
        self.calls.here()
    }

    /// Whether a call is at work.
    pub fn is_at_work(&self) -> bool {
        self.calls.is_at_work()
    }

    /// Begins [`ShardConsumer::open`], unless the consumer is open: the caller of that call may have given up.
    pub fn begin_open(&mut self) {
        if self.calls.is_open() {
            return;
        }
        self.calls.begin(Call::Open, |mut consumer, mut watch| async move {
            let done = consumer.opened(&mut watch).await.map(|()| Reply::Open);
            (consumer, watch, done)
        });
    }

    /// Begins [`ShardConsumer::poll`], unless the result of the last one was not [taken](Self::take_polled).
    pub fn begin_poll(&mut self, timeout: Option<Duration>) {
        let shared = &self.shared;
        // The caller may have failed an earlier entry since.
        self.calls.forget_polled(|polled| match polled {
            Polled::Batch(batch) => !shared.leases().is_in_hand(batch.ticket),
            _ => false,
        });
        if self.calls.has_polled() {
            return;
        }
        self.calls.begin(Call::Poll, move |mut consumer, mut watch| async move {
            let done = consumer.polled(timeout, &mut watch).await;
            (consumer, watch, done.map(|polled| Reply::Batch(polled.something())))
        });
    }

    /// Begins [`ShardConsumer::flush`].
    pub fn begin_flush(&mut self, timeout: Option<Duration>) {
        self.calls.begin(Call::Report, move |mut consumer, mut watch| async move {
            let done = consumer.flushed(timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Begins [`ShardConsumer::close`].
    pub fn begin_close(&mut self, timeout: Duration) {
        self.calls.begin(Call::Report, move |mut consumer, mut watch| async move {
            let done = consumer.closed(timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Does what can be done without waiting, for the call that is at work and for the keeper.
    ///
    /// # Errors
    ///
    /// The endpoint of one of the streams has become invalid.
    pub fn advance(&mut self) -> Result<()> {
        self.keeper.keep();
        self.calls.advance().map_or(Ok(()), |call| self.over(call))
    }

    /// What an open returned.
    pub fn take_opened(&mut self) -> Result<()> {
        self.calls.take_opened()
    }

    /// What a poll returned.
    pub fn take_polled(&mut self) -> Result<Polled> {
        Ok(self.calls.take_batch().transpose()?.flatten().unwrap_or(Polled::Nothing))
    }

    /// What a flush or a close returned. `None`: none is over.
    pub fn take_report(&mut self) -> Option<Result<ShardReport>> {
        self.calls.take_report()
    }

    /// By how much the keeper was late, if leases may have been lost. Returned once.
    pub fn take_late(&mut self) -> Option<Duration> {
        self.keeper.take_late()
    }

    /// The sockets to wait for, and when to call [`advance`](Self::advance) again even if none of them is ready. After
    /// a call they are those that are still open: one that follows soon waits for the same.
    pub fn wait(&mut self) -> LoopWait {
        let mut wait = self.calls.wait(|consumer| consumer.reader.open_sockets());
        self.keeper.add_to(&mut wait);
        wait
    }

    /// Whether the keeper has something to do, so that [`advance`](Self::advance) must be called soon.
    pub fn is_woken(&self) -> bool {
        self.keeper.is_woken()
    }

    /// Ends the call that is at work: the next one continues from where it was.
    pub fn interrupt(&mut self) {
        if let Some(call) = self.calls.interrupt() {
            // What cannot begin shows in the next call.
            let _: Result<()> = self.over(call);
        }
        // The keeper of a consumer that is closed ends.
        self.keeper.keep();
    }

    /// Notes that a call is over: a keeper that is new begins, one of a closed consumer ends.
    fn over(&mut self, call: Call) -> Result<()> {
        let is_open = call == Call::Open && self.calls.is_open();
        let mut begun = Ok(());
        if let Some(consumer) = self.calls.here().filter(|_| is_open) {
            let doze = Arc::clone(&consumer.shared.doze);
            begun = consumer.keeping().map(|keeping| self.keeper.begin(keeping, &doze));
        }
        self.keeper.keep();
        begun
    }
}
