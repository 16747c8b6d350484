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
    /// Send what this node refused to others.
    Redirect(Vec<Detour>),
    /// Send again what failed.
    Resend,
    /// Send what came meanwhile: nothing else waits.
    Resume,
    /// Fail what waits for a policy that allows no more tries, or for none.
    GiveUp,
    /// Nothing: no command is left.
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
