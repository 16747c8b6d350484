//! A consumer that an event loop drives, with its keeper: no call blocks.

use std::sync::Arc;
use std::time::Duration;

use super::batch::ConsumerBatch;
use super::report::ReadReport;
use super::{Consumer, ConsumerHandle};
use crate::error::Result;
use crate::keeper::LoopKeeper;
use crate::looped::{Call, Calls, LoopWait, Reply};
use crate::net::Watch;

/// A [`Consumer`] for a caller with an event loop, which waits for what [`wait`](Self::wait) returns and calls
/// [`advance`](Self::advance) again, also while no call is at work: its keeper is a task of the loop.
#[derive(Debug)]
pub struct LoopConsumer {
    calls: Calls<Consumer, ConsumerBatch, ReadReport>,
    keeper: LoopKeeper,
}

impl LoopConsumer {
    /// Opens no connection. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(consumer: Consumer, watch: Box<dyn Watch>) -> Self {
        // A renewal is due after a third of this time, and a lease may be lost after nine tenths.
        let keeper = LoopKeeper::new(&consumer.shared.doze, consumer.options.min_idle / 2);
        Self { calls: Calls::new(consumer, watch), keeper }
    }

    /// The consumer. `None`: a call is at work.
    pub fn consumer(&mut self) -> Option<&mut Consumer> {
        self.calls.here()
    }

    /// The handle through which any thread settles entries. `None`: a call is at work, or the consumer is not open.
    pub fn handle(&mut self) -> Option<ConsumerHandle> {
        let is_open = self.calls.is_open();
        self.calls.here().filter(|_| is_open).map(|consumer| consumer.handle())
    }

    /// Whether a call is at work.
    pub fn is_at_work(&self) -> bool {
        self.calls.is_at_work()
    }

    /// Begins [`Consumer::open`], unless the consumer is open: the caller of that call may have given up.
    pub fn begin_open(&mut self) {
        if self.calls.is_open() {
            return;
        }
        self.calls.begin(Call::Open, |mut consumer, mut watch| async move {
            let done = consumer.opened(&mut watch).await.map(|()| Reply::Open);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::next_batch`], unless the result of the last one was not [taken](Self::take_batch).
    pub fn begin_poll(&mut self, timeout: Option<Duration>) {
        if self.calls.has_polled() {
            return;
        }
        self.calls.begin(Call::Poll, move |mut consumer, mut watch| async move {
            let done = consumer.polled(timeout, &mut watch).await.map(Reply::Batch);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::flush`].
    pub fn begin_flush(&mut self, timeout: Option<Duration>) {
        self.calls.begin(Call::Report, move |mut consumer, mut watch| async move {
            let done = consumer.flushed(timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::close`].
    pub fn begin_close(&mut self, releases: bool, timeout: Duration) {
        self.calls.begin(Call::Report, move |mut consumer, mut watch| async move {
            let done = consumer.closed(releases, timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Does what can be done without waiting, for the call that is at work and for the keeper.
    pub fn advance(&mut self) {
        self.keeper.keep();
        if let Some(call) = self.calls.advance() {
            self.over(call);
        }
    }

    /// What an open returned.
    pub fn take_opened(&mut self) -> Result<()> {
        self.calls.take_opened()
    }

    /// What a poll returned. `None`: none is over.
    pub fn take_batch(&mut self) -> Option<Result<Option<ConsumerBatch>>> {
        self.calls.take_batch()
    }

    /// What a flush or a close returned. `None`: none is over.
    pub fn take_report(&mut self) -> Option<Result<ReadReport>> {
        self.calls.take_report()
    }

    /// By how much the keeper was late, if leases may have been lost. Returned once.
    pub fn take_late(&mut self) -> Option<Duration> {
        self.keeper.take_late()
    }

    /// The sockets to wait for, and when to call [`advance`](Self::advance) again even if none of them is ready. After
    /// a call they are those that are still open: one that follows soon waits for the same.
    pub fn wait(&mut self) -> LoopWait {
        let mut wait = self.calls.wait(|consumer| consumer.drive.open_sockets());
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
            self.over(call);
        }
        // The keeper of a consumer that is closed ends.
        self.keeper.keep();
    }

    /// Notes that a call is over: a keeper that is new begins, one of a closed consumer ends.
    fn over(&mut self, call: Call) {
        let is_open = call == Call::Open && self.calls.is_open();
        if let Some(consumer) = self.calls.here().filter(|_| is_open)
            && let Some(keeping) = consumer.keeping()
        {
            // It may have become one of a cluster.
            let doze = Arc::clone(&consumer.shared.doze);
            self.keeper.begin(keeping, &doze);
        }
        self.keeper.keep();
    }
}
