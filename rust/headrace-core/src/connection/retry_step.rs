//! The next step of a connection's retries, and what a caller sees of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::detours::Detour;
use crate::error::Failure;

/// The next step, once nothing is in flight.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetryStep {
    /// Wait until then.
    Pause(Instant),
    /// Follow the redirects of this node.
    Redirect(Vec<Detour>),
    /// Send the failed commands again.
    Resend,
    /// Send the commands that were queued behind retries: no other ones wait.
    Resume,
    /// Fail the commands that need a policy: it allows no more tries, or there is none.
    GiveUp,
    /// No command is left, except for parked ones.
    Done,
}

/// A wait for retries as a caller sees it.
#[derive(Debug)]
pub(crate) enum RetryEvent {
    /// The first pause: how many messages wait, since when, and why.
    Began { messages: u64, since: Instant, failure: Arc<Failure> },
    /// The end of retries that paused, with the failure if it was not overcome.
    Ended { tries: u32, took: Duration, failure: Option<Arc<Failure>> },
}
