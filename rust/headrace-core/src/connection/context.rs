//! What a connection needs from its producer: the rules, the state of the batch, the time, and where outcomes go.

use std::sync::Arc;
use std::time::Instant;

use super::in_flight::Owner;
use super::outcome::Outcome;
use crate::command::EntryId;
use crate::error::{Classifier, Failure, Fault, Written};
use crate::retry::RetryPolicy;

/// Where outcomes go.
pub(crate) trait Outcomes {
    /// Resolves the messages from `number` on with this outcome.
    fn resolve(&mut self, number: u64, outcome: Outcome, owner: Owner);

    /// Whether the outcome of a message is still wanted: an interrupted call no longer waits for its own.
    fn awaits(&self, number: u64, owner: Owner) -> bool;
}

/// How replies are read and failures are treated: the same for all messages of a producer.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) classifier: Classifier,
    /// `None`: nothing is sent again.
    pub(crate) retry: Option<RetryPolicy>,
    /// Whether nil is a valid reply to XADD.
    pub(crate) nomkstream: bool,
    /// Entries with lower IDs are trimmed as they are written.
    pub(crate) min_id: Option<EntryId>,
    /// Whether messages can be sent again without being written twice.
    pub(crate) exactly_once: bool,
    /// Whether servers forget the IDs of messages after a while, so that the messages cannot be sent again then.
    pub(crate) forgets_ids: bool,
    /// How many times in a row a message may be sent to another node of a cluster; `None`: a redirect is its outcome.
    pub(crate) max_redirects: Option<u32>,
}

/// What the outcomes of earlier messages mean for those of the same batch.
#[derive(Debug)]
pub(crate) struct BatchState {
    /// Whether a row was not written: the rows after it in its stream are refused.
    pub(crate) is_blocked: bool,
    /// The `written` of a message that this try did not write: in a batch with the caller's token, an earlier try may have
    /// written it.
    pub(crate) unattempted: Written,
}

impl Default for BatchState {
    fn default() -> Self {
        Self { is_blocked: false, unattempted: Written::No }
    }
}

/// What a connection needs from its producer to resolve messages.
#[derive(Debug)]
pub(crate) struct Context<'a, O> {
    pub(crate) rules: &'a Rules,
    pub(crate) batch: &'a mut BatchState,
    pub(crate) outcomes: &'a mut O,
    pub(crate) now: Instant,
}

impl<O> Context<'_, O> {
    pub(crate) fn failure(&self, fault: &Fault, written: Written) -> Arc<Failure> {
        Arc::new(self.rules.classifier.failure(fault, written))
    }
}
