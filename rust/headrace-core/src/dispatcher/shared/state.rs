//! What the calls of a shared dispatcher share, under its lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::awaiting::Awaiting;
use super::caller::{Caller, Goal};
use crate::dispatcher::{Dispatcher, IdArgument, LoopDispatcher, Message, Progress, RoutedDispatcher};
use crate::error::{Error, Result};
use crate::net::{Alarm, Interest, Watch};
use crate::report::{AwaitedOutcome, DeliveryReport, OutcomeRouter};

/// How long one wait, or the encoding of rows, may last before the caller is asked whether to continue: Ctrl-C must be noticed
/// within 0.1 s.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// The dispatcher, the calls that wait, and which of them drives.
pub(super) struct State {
    pub(super) inner: RoutedDispatcher,
    /// In the order in which they began to wait.
    callers: Vec<Caller>,
    /// The number of the last of them.
    last: u64,
    /// The messages without an outcome whose calls wait for it, in produce order.
    awaiting: VecDeque<Arc<Awaiting>>,
    /// Whether a call drives, and waits for sockets now.
    is_driven: bool,
    /// Whether the alarm has rung for it.
    has_rung: bool,
    alarm: Arc<Alarm>,
    fork: forkguard::Guard,
}

/// What the call that drives waits for.
pub(super) struct Pause {
    pub(super) sockets: Vec<Interest>,
    pub(super) deadline: Option<Instant>,
}

impl State {
    pub(super) fn new(dispatcher: Dispatcher, watch: Box<dyn Watch>) -> Self {
        let inner = LoopDispatcher::new(dispatcher, watch).of_calls();
        Self {
            inner: RoutedDispatcher::new(inner, OutcomeRouter::skipping_awaited()),
            callers: Vec::new(),
            last: 0,
            awaiting: VecDeque::new(),
            is_driven: false,
            has_rung: false,
            alarm: Arc::default(),
            fork: forkguard::new(),
        }
    }

    /// Whether the window has no room for another message.
    pub(super) fn is_full(&mut self) -> bool {
        self.inner.dispatcher().is_some_and(|dispatcher| dispatcher.is_window_full())
    }

    /// Whether it is worth trying to take a message. `is_full`: the window had no room.
    pub(super) fn has_room(&mut self, is_full: bool) -> bool {
        self.inner.dispatcher().is_some_and(|dispatcher| !is_full || dispatcher.has_ample_room())
    }

    /// Takes a message for a call that waits for its outcome. `None`: there is no room now.
    pub(super) fn dispatch(&mut self, message: &Message<'_>) -> Result<Option<Arc<Awaiting>>> {
        // The message is a batch of its own, so it may connect again.
        self.lift();
        if !self.inner.produce(message, IdArgument::None, true)? {
            return Ok(None);
        }
        let awaiting = Arc::new(Awaiting::new());
        self.awaiting.push_back(Arc::clone(&awaiting));
        Ok(Some(awaiting))
    }

    /// The outcomes since the last report, with those of a report that `call` makes. `None`: a connection is being opened.
    pub(super) fn collect(
        &mut self,
        call: impl FnOnce(&mut Dispatcher) -> Result<DeliveryReport>,
    ) -> Option<Result<DeliveryReport>> {
        let Self { inner, awaiting, .. } = self;
        inner.collect(call, |outcome| pass_on(awaiting, outcome))
    }

    /// Lets the next message connect again, if connecting failed.
    pub(super) fn lift(&mut self) {
        if let Some(dispatcher) = self.inner.dispatcher() {
            dispatcher.lift();
        }
    }

    /// Gives messages without a reply the outcome `TIMEOUT`, and numbers messages from 0 again.
    pub(super) fn end_batch(&mut self, started: Instant, watch: &mut dyn Watch) -> Result<()> {
        let flush = |dispatcher: &mut Dispatcher| dispatcher.flush_from(started, Some(Duration::ZERO), watch);
        let ended = self.inner.end_batch(flush)?;
        self.settle(ended.as_ref());
        // The call that drives may wait for a socket that is closed now.
        self.ring();
        Ok(())
    }

    /// Moves the messages of all calls. Returns what to wait for, or `None` if some have an outcome now.
    pub(super) fn advance(&mut self) -> Result<Option<Pause>> {
        let Progress { report, sockets, deadline } = self.inner.advance()?;
        let settled = self.settle(report.as_ref());
        Ok((!settled).then_some(Pause { sockets, deadline }))
    }

    /// Passes outcomes to the calls that wait for them, and returns whether there are any.
    fn settle(&mut self, report: Option<&DeliveryReport>) -> bool {
        let Self { inner, awaiting, .. } = self;
        let mut has_passed = false;
        if let Some(report) = report {
            inner.settle(report, |outcome| {
                has_passed = true;
                pass_on(awaiting, outcome)
            });
        }
        if has_passed && self.unreported() == 0 {
            self.lift();
        }
        for at in 0..self.callers.len() {
            let is_reached = match self.callers[at].goal {
                Goal::Room { is_full } => self.has_room(is_full),
                Goal::Outcomes { taken } => self.inner.settled() >= taken,
            };
            if is_reached {
                self.callers[at].wake();
            }
        }
        report.is_some_and(|report| report.delivered() + report.failed() > 0)
    }

    /// How many messages have no outcome in a report, and none that a call returns.
    pub(super) fn unreported(&mut self) -> u64 {
        self.inner.unreported() - self.awaiting.len() as u64
    }

    /// The dispatcher, for a call that needs all outcomes before.
    pub(super) fn idle(&mut self, call: &str) -> Result<&mut Dispatcher> {
        let message = format!("messages wait for their outcomes: flush before {call}");
        self.inner.dispatcher().ok_or(Error::State { message })
    }

    /// Adds a call that waits, and makes the one that drives look for what is new.
    pub(super) fn enter(&mut self, goal: Goal) -> u64 {
        self.ring();
        self.last += 1;
        self.callers.push(Caller::new(self.last, goal));
        self.last
    }

    /// Whether this call waits here. After a fork, the calls are those of the parent.
    pub(super) fn has(&self, caller: u64) -> bool {
        self.callers.iter().any(|other| other.number == caller)
    }

    /// Removes a call. If it drove, another one does from now on.
    pub(super) fn leave(&mut self, caller: u64) {
        self.callers.retain(|other| other.number != caller);
        self.hand_over();
    }

    /// Makes a call drive, if none does and any waits.
    pub(super) fn hand_over(&self) {
        if self.is_driven {
            return;
        }
        match self.awaiting.iter().find(|awaiting| !awaiting.is_left()) {
            Some(awaiting) => awaiting.wake(),
            None => self.callers.iter().take(1).for_each(Caller::wake),
        }
    }

    /// Whether any call waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.callers.is_empty() || self.awaiting.iter().any(|awaiting| !awaiting.is_left())
    }

    pub(super) fn is_driven(&self) -> bool {
        self.is_driven
    }

    /// Makes the call that drives look again, if it waits for sockets.
    pub(super) fn ring(&mut self) {
        if self.is_driven && !self.has_rung {
            self.has_rung = true;
            self.alarm.ring();
        }
    }

    /// Notes that this call drives and waits for sockets, and for this alarm.
    pub(super) fn sleep(&mut self) -> Arc<Alarm> {
        (self.is_driven, self.has_rung) = (true, false);
        Arc::clone(&self.alarm)
    }

    /// Notes that no call drives.
    pub(super) fn wake_up(&mut self) {
        self.is_driven = false;
    }

    /// Forgets everything in a forked child: it belongs to the parent, which also hears the alarm.
    /// Returns whether this is one.
    pub(super) fn forget_after_fork(&mut self) -> bool {
        let is_forked = self.fork.detected_fork();
        if is_forked {
            self.inner.forget();
            self.callers.clear();
            self.awaiting.drain(..).for_each(|awaiting| awaiting.leave());
            (self.is_driven, self.alarm) = (false, Arc::default());
        }
        is_forked
    }
}

/// Passes an outcome to the call that has waited longest.
fn pass_on(awaiting: &mut VecDeque<Arc<Awaiting>>, outcome: AwaitedOutcome<'_>) -> bool {
    if let Some(awaiting) = awaiting.pop_front() {
        awaiting.settle(outcome);
    }
    // A call that was interrupted has ended without its outcome, whose message has no ordinal for a report.
    true
}
