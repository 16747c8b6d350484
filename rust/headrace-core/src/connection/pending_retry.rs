//! A command that must be sent again, and why it waits. No I/O and no clock.

use std::sync::Arc;

use super::in_flight::{Command, Owner};
use super::numbers::Numbers;
use super::outcome::Outcome;
use crate::command::{Expect, stream_key};
use crate::error::{Failure, Written, code};

/// Why a command waits to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The command failed: a policy says whether and when it is sent again.
    Failed,
    /// The server only lacked the script, or another node has the slot: no policy is needed.
    Free,
    /// Queued behind a retry; never sent.
    New,
}

impl Cause {
    pub(super) fn of(is_free: bool) -> Self {
        if is_free { Self::Free } else { Self::Failed }
    }
}

/// A command that must be sent again, or was.
#[derive(Debug)]
pub(crate) struct PendingRetry {
    pub(crate) bytes: Box<[u8]>,
    /// The numbers of the command's messages, and how many it carries.
    pub(crate) numbers: Numbers,
    pub(crate) rows: u64,
    /// The route of the command's key in a cluster.
    pub(crate) route: u16,
    pub(crate) expect: Expect,
    pub(crate) owner: Owner,
    /// How many of the command's last messages have no outcome.
    pub(crate) open: u64,
    /// The last failure of the first message without an outcome.
    pub(crate) failure: Arc<Failure>,
    /// The failure of the other messages, if they failed for another reason.
    pub(crate) behind: Option<Arc<Failure>>,
    /// Whether any try may have written the command's messages.
    pub(crate) may_be_written: bool,
    pub(super) cause: Cause,
    /// How many nodes in a row redirected the command.
    pub(super) redirects: u32,
    pub(super) is_in_flight: bool,
}

impl PendingRetry {
    /// Creates one for a `command` that failed with `failure`.
    pub(crate) fn new(command: &Command, bytes: Box<[u8]>, failure: Arc<Failure>) -> Self {
        let may_be_written = failure.written == Written::Unknown;
        let Command { rows, route, expect, owner, .. } = *command;
        let numbers = command.numbers.clone();
        Self {
            bytes,
            numbers,
            rows,
            route,
            expect,
            owner,
            open: rows,
            failure,
            behind: None,
            may_be_written,
            cause: Cause::Failed,
            redirects: 0,
            is_in_flight: false,
        }
    }

    /// Returns the command with its last `open` messages left, which fail with `behind` from the second one on.
    #[must_use]
    pub(crate) fn with_open(self, open: u64, behind: Option<Arc<Failure>>) -> Self {
        Self { open, behind, ..self }
    }

    /// Returns the command, which needs no policy to be sent again if `is_free`.
    #[must_use]
    pub(crate) fn free_if(self, is_free: bool) -> Self {
        Self { cause: Cause::of(is_free), ..self }
    }

    /// Returns the command after its first redirect.
    #[must_use]
    pub(crate) fn after_redirect(self) -> Self {
        Self { redirects: 1, ..self }
    }

    /// The key of the command's stream.
    pub(crate) fn stream_key(&self) -> &[u8] {
        stream_key(&self.bytes)
    }

    /// Whether the command failed, other than by a redirect or a missing script.
    pub(crate) fn was_tried(&self) -> bool {
        self.cause == Cause::Failed
    }

    pub(super) fn is_free(&self) -> bool {
        self.cause != Cause::Failed
    }

    /// How many of the command's first messages have their outcome.
    pub(crate) fn known(&self) -> u64 {
        self.rows - self.open
    }

    /// Whether the command waits for a policy only because of the state of its slot on its node: other slots of the node do not.
    pub(super) fn waits_for_route(&self) -> bool {
        self.cause == Cause::Failed && matches!(self.failure.code.as_ref(), "TRYAGAIN" | "MOVED" | "ASK")
    }

    /// Whether the command was refused because of a row before it.
    pub(super) fn is_blocked(&self) -> bool {
        self.failure.code == code::BLOCKED
    }

    /// The command's outcomes if it is not sent again.
    pub(crate) fn outcomes(self) -> impl Iterator<Item = Outcome> {
        let first = if self.behind.is_some() { self.open.min(1) } else { self.open };
        let rest = self.behind.filter(|_| self.open > first);
        let outcomes = [
            Some(Outcome::Failed { failure: self.failure, count: first }),
            rest.map(|failure| Outcome::Failed { failure, count: self.open - first }),
        ];
        let may_be_written = self.may_be_written;
        outcomes.into_iter().flatten().map(move |one| if may_be_written { one.after_doubt() } else { one })
    }
}
