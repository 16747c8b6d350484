//! A dispatcher of which several callers await outcomes: each of those its own, and a report has all others.

use super::{Dispatcher, IdArgument, LoopDispatcher, Message, Progress};
use crate::error::Result;
use crate::report::{AwaitedOutcome, DeliveryReport, OutcomeRouter};

/// A [`LoopDispatcher`] that knows which of its messages are awaited.
#[derive(Debug)]
pub struct RoutedDispatcher {
    inner: LoopDispatcher,
    router: OutcomeRouter,
    /// Messages that were taken and counted, and those of them that have an outcome.
    taken: u64,
    settled: u64,
}

impl RoutedDispatcher {
    /// Sends nothing yet. `router`: says whether awaited messages take ordinals.
    pub fn new(inner: LoopDispatcher, router: OutcomeRouter) -> Self {
        Self { inner, router, taken: 0, settled: 0 }
    }

    /// The dispatcher, to produce messages that no caller awaits. `None`: see [`LoopDispatcher::dispatcher`].
    #[inline]
    pub fn dispatcher(&mut self) -> Option<&mut Dispatcher> {
        self.inner.dispatcher()
    }

    /// The dispatcher, for which a connection that is being opened is given up.
    pub(super) fn recall(&mut self) -> Option<&mut Dispatcher> {
        self.inner.interrupt();
        self.inner.dispatcher()
    }

    /// The number of messages that were taken.
    pub fn taken(&mut self) -> u64 {
        self.count_unawaited();
        self.taken
    }

    /// The number of messages that have an outcome.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// The number of messages that have no outcome in a report, and no caller that received it.
    pub fn unreported(&mut self) -> u64 {
        self.taken() - self.settled + self.router.unclaimed()
    }

    /// Takes one message if there is room for it now, and returns whether it was taken. `is_awaited`: a caller awaits its outcome.
    #[inline]
    pub fn produce(&mut self, message: &Message<'_>, id: IdArgument<'_>, is_awaited: bool) -> Result<bool> {
        self.count_unawaited();
        let Some(dispatcher) = self.inner.dispatcher() else { return Ok(false) };
        let taken = dispatcher.take(message, id)?;
        if taken {
            self.router.expect(is_awaited, 1);
            self.taken += 1;
        }
        Ok(taken)
    }

    /// As [`LoopDispatcher::advance`]. The report is for [`settle`](Self::settle).
    pub fn advance(&mut self) -> Result<Progress> {
        self.count_unawaited();
        self.inner.advance()
    }

    /// Lets `flush` give messages without a reply the outcome `TIMEOUT`, and number messages from 0 again. The report is for
    /// [`settle`](Self::settle).
    pub fn end_batch(
        &mut self,
        flush: impl FnOnce(&mut Dispatcher) -> Result<DeliveryReport>,
    ) -> Result<Option<DeliveryReport>> {
        self.recall();
        self.count_unawaited();
        self.inner.dispatcher().map(flush).transpose()
    }

    /// Passes the outcomes of a report on: those that are awaited to `receive`, which returns whether they still are, and all
    /// others to [`report`](Self::report).
    pub fn settle(&mut self, report: &DeliveryReport, receive: impl FnMut(AwaitedOutcome<'_>) -> bool) {
        self.settled += report.delivered() + report.failed();
        // Even without outcomes: it counts retries.
        self.router.route(report, receive);
    }

    /// The outcomes since the last report, with those of a report that `call` makes: those that are awaited go to `receive`.
    /// `None`: see [`dispatcher`](Self::dispatcher).
    pub fn collect(
        &mut self,
        call: impl FnOnce(&mut Dispatcher) -> Result<DeliveryReport>,
        receive: impl FnMut(AwaitedOutcome<'_>) -> bool,
    ) -> Option<Result<DeliveryReport>> {
        // As long as nothing was awaited, no message was counted, and the report is complete.
        let is_direct = self.router.is_idle() && self.taken == self.settled;
        if !is_direct {
            self.count_unawaited();
        }
        let report = call(self.inner.dispatcher()?);
        Some(report.map(|report| {
            if is_direct {
                return report;
            }
            self.settle(&report, receive);
            self.report()
        }))
    }

    /// As [`OutcomeRouter::put_back`].
    pub fn put_back(&mut self, awaited: AwaitedOutcome<'_>) {
        self.router.put_back(awaited);
    }

    /// As [`OutcomeRouter::put_back_report`].
    pub(super) fn put_back_report(&mut self, report: &DeliveryReport) {
        self.router.put_back_report(report);
    }

    /// The outcomes since the last report, except those that callers received.
    pub fn report(&mut self) -> DeliveryReport {
        self.router.take()
    }

    /// Closes the connections. Messages without an outcome are given up.
    pub fn close(&mut self) {
        if let Some(dispatcher) = self.recall() {
            dispatcher.close();
        }
    }

    /// Forgets everything in a forked child: it belongs to the parent.
    pub(super) fn forget(&mut self) {
        self.recall();
        self.router.forget();
        (self.taken, self.settled) = (0, 0);
    }

    /// Counts the messages that the [dispatcher](Self::dispatcher) took, and that no caller awaits.
    fn count_unawaited(&mut self) {
        let Some(dispatcher) = self.inner.dispatcher() else { return };
        let more = dispatcher.unreported() - (self.taken - self.settled);
        if more > 0 {
            self.router.expect(false, more);
            self.taken += more;
        }
    }
}
