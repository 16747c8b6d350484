//! A message whose call waits for its outcome.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use crate::command::EntryId;
use crate::error::Failure;
use crate::report::AwaitedOutcome;

/// Passes an outcome from the thread that drives to the one that waits.
#[derive(Debug)]
pub(super) struct Awaiting {
    outcome: OnceLock<Result<EntryId, Failure>>,
    /// Whether the call ended without the outcome.
    is_left: AtomicBool,
    thread: Thread,
}

impl Awaiting {
    pub(super) fn new() -> Self {
        Self { outcome: OnceLock::new(), is_left: AtomicBool::new(false), thread: thread::current() }
    }

    /// The outcome, once it is there.
    pub(super) fn outcome(&self) -> Option<Result<EntryId, Failure>> {
        self.outcome.get().cloned()
    }

    /// Makes the call look again whether its outcome is there, or whether to drive.
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }

    /// Passes the outcome on to the call.
    pub(super) fn settle(&self, awaited: AwaitedOutcome<'_>) {
        let outcome = match awaited.outcome {
            // Without exactly once, every message that is delivered has an ID.
            Ok(id) => Ok(id.unwrap_or_default()),
            Err(failure) => Err(failure.clone()),
        };
        let _ = self.outcome.set(outcome); // the only one
        self.wake();
    }

    /// Notes that the call ends without the outcome.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }
}
