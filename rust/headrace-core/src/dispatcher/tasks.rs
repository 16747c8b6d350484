//! A dispatcher for tasks on an event loop: some await the outcome of their own message, and a report has all others.

use std::time::Duration;

use super::{Dispatcher, IdArgument, LoopDispatcher, Message, Progress, RoutedDispatcher};
use crate::error::{Error, Result};
use crate::net::Watch;
use crate::producer::ExactlyOnce;
use crate::report::{AwaitedOutcome, DeliveryReport, OutcomeRouter};

/// Why a batch that tasks produce cannot be repeated under its token.
const NO_ORDER: &str = "tasks do not produce in the same order in every run";

/// A [`RoutedDispatcher`] for messages whose order is that of tasks.
///
/// With a script, a message that failed blocks those after it. Here they wait instead: once none is without an outcome, the
/// failures count as handled, as after [`Dispatcher::skip_failed`].
#[derive(Debug)]
pub struct TaskDispatcher {
    inner: RoutedDispatcher,
    is_script: bool,
    /// Whether failures must be skipped before more messages are taken: these would fail too.
    is_to_skip: bool,
}

impl TaskDispatcher {
    /// Sends nothing yet; `watch` is that of [`LoopDispatcher::new`]. Refuses messages that are
    /// identified by their number.
    pub fn new(dispatcher: Dispatcher, watch: Box<dyn Watch>) -> Result<Self> {
        if matches!(dispatcher.exactly_once, Some(ExactlyOnce::Idmp { by_message_id: false, .. })) {
            let message = format!(
                "exactly_once_key must be 'message_id' with exactly_once 'idmp' on an event loop, got 'row': {NO_ORDER}"
            );
            return Err(Error::config("exactly_once_key", message));
        }
        Ok(Self {
            is_script: matches!(dispatcher.exactly_once, Some(ExactlyOnce::Script { .. })),
            inner: RoutedDispatcher::new(LoopDispatcher::new(dispatcher, watch), OutcomeRouter::default()),
            is_to_skip: false,
        })
    }

    /// The number of messages that were taken.
    pub fn taken(&mut self) -> u64 {
        self.inner.taken()
    }

    /// The number of messages that have an outcome.
    pub fn settled(&self) -> u64 {
        self.inner.settled()
    }

    /// As [`RoutedDispatcher::produce`].
    #[inline]
    pub fn produce(&mut self, message: &Message<'_>, id: IdArgument<'_>, is_awaited: bool) -> Result<bool> {
        if self.is_to_skip {
            return Ok(false);
        }
        self.inner.produce(message, id, is_awaited)
    }

    /// Lets `take` plan or produce messages that no task awaits. `None`: there is no room for any now.
    pub fn produce_unawaited<T>(&mut self, take: impl FnOnce(&mut Dispatcher) -> T) -> Option<T> {
        if self.is_to_skip {
            return None;
        }
        self.inner.dispatcher().map(take)
    }

    /// As [`RoutedDispatcher::advance`].
    pub fn advance(&mut self) -> Result<Progress> {
        self.inner.advance()
    }

    /// Gives messages without a reply the outcome `TIMEOUT`, and numbers messages from 0 again. The report is for
    /// [`settle`](Self::settle).
    pub fn end_batch(&mut self, watch: &mut dyn Watch) -> Result<Option<DeliveryReport>> {
        self.inner.end_batch(|dispatcher| dispatcher.flush(Some(Duration::ZERO), watch))
    }

    /// As [`RoutedDispatcher::settle`].
    pub fn settle(&mut self, report: &DeliveryReport, receive: impl FnMut(AwaitedOutcome<'_>) -> bool) {
        self.is_to_skip |= self.is_script && report.failed() > 0;
        self.inner.settle(report, receive);
        if self.is_to_skip
            && self.inner.settled() == self.inner.taken()
            && let Some(dispatcher) = self.inner.dispatcher()
            // Not while a WAIT is in flight, with nothing to confirm: its reply leads here again.
            && dispatcher.skip_failed().is_ok()
        {
            self.is_to_skip = false;
        }
    }

    /// As [`OutcomeRouter::put_back`].
    pub fn put_back(&mut self, awaited: AwaitedOutcome<'_>) {
        self.inner.put_back(awaited);
    }

    /// The outcomes since the last report, except those that tasks received.
    pub fn report(&mut self) -> DeliveryReport {
        self.inner.report()
    }

    /// As [`Dispatcher::begin`], for messages that are identified by their IDs.
    pub fn begin(&mut self, token: &str, version: u64) -> Result<()> {
        if self.is_script {
            let message = format!("begin needs exactly_once 'idmp' on an event loop, got 'script': {NO_ORDER}");
            return Err(Error::config("exactly_once", message));
        }
        match self.inner.dispatcher() {
            Some(dispatcher) => dispatcher.begin(token, version),
            None => Err(Error::state("messages wait for their outcomes: flush before begin")),
        }
    }

    /// Closes the connections. Messages without an outcome are given up.
    pub fn close(&mut self) {
        self.inner.close();
    }
}
