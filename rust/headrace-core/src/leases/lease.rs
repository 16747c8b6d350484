//! What a member knows of the lease of one stream.
//!
//! ```text
//!           taken                       more than its share, or it closes
//! free ──────────────▶ owned ─────────────────────────────────────────────▶ giving up
//!  ▲ ▲                  │ nobody renewed it in time                            │
//!  │ └──────────────────┘ and another one took it                             │
//!  └──────────────────────────────────────────────────────────────────────────┘
//!        everything that was returned is committed, or the time for that is over
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use super::owned::Owned;
use super::request::Commit;
use crate::error::{Error, Fault};
use crate::reading::Place;

/// The most ended leases of a stream whose late commits are counted.
const MOST_ENDED: usize = 8;

/// Which member alone may take a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pin {
    /// Any may.
    Free,
    /// This one. It has it in addition to its share.
    Own,
    /// Another one.
    Other,
}

/// The lease of one stream.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owned: Option<Owned>,
    /// Those that this member had before, the oldest first, of which the caller has not committed everything: what it commits too
    /// late counts once.
    ended: VecDeque<Owned>,
    /// Whether this member may have it at the server: the reply was lost, or the lease has lapsed.
    pub(super) may_be_taken: bool,
    /// Whether a command about it is in flight.
    pub(super) is_asked: bool,
    /// The number of entries that it commits.
    pub(super) under_way: u64,
    /// When to try to take it.
    pub(super) try_at: Duration,
    /// Which member alone may take it, as far as this one knows.
    pub(super) pin: Pin,
    /// Since when to ask the server for that: pins have changed.
    pub(super) asks_pin: Option<Duration>,
    /// Why the server refuses commands about it.
    pub(super) refusal: Option<Error>,
    /// Since when its server could not be reached, and why; `None`: the last attempt succeeded.
    outage: Option<(Duration, Fault)>,
}

impl Lease {
    pub(super) fn new() -> Self {
        Self {
            owned: None,
            ended: VecDeque::new(),
            may_be_taken: false,
            is_asked: false,
            under_way: 0,
            try_at: Duration::ZERO,
            pin: Pin::Free,
            asks_pin: None,
            refusal: None,
            outage: None,
        }
    }

    /// Notes that its server could not be reached.
    pub(super) fn faulted(&mut self, fault: &Fault, now: Duration) {
        let since = self.outage.as_ref().map_or(now, |(since, _)| *since);
        self.outage = Some((since, fault.clone()));
    }

    /// Notes that it was.
    pub(super) fn reached(&mut self) {
        self.outage = None;
    }

    /// Why its server cannot be reached, if that has been so for this time.
    pub(super) fn outage(&self, most: Duration, now: Duration) -> Option<&Fault> {
        self.outage.as_ref().filter(|(since, _)| now.saturating_sub(*since) >= most).map(|(_, fault)| fault)
    }

    /// The number of entries whose commit the server has not confirmed.
    pub(super) fn unconfirmed(&self) -> u64 {
        let waiting = self.owned.as_ref().and_then(|owned| owned.commit.as_ref()).map_or(0, |commit| commit.entries);
        waiting + self.under_way
    }

    /// Whether the server has every commit and failure.
    pub(super) fn is_settled(&self) -> bool {
        // That of a lease that has ended since may be under way.
        self.under_way == 0 && self.owned.as_ref().is_none_or(|owned| !owned.has_changed() && !self.is_asked)
    }

    /// Whether this member neither has it nor may have it.
    pub(super) fn is_ended(&self) -> bool {
        self.owned.is_none() && !self.is_asked && !self.may_be_taken
    }

    /// The lease as this member has it, if it has this epoch.
    pub(super) fn of(&mut self, epoch: u64) -> Option<&mut Owned> {
        self.owned.as_mut().filter(|owned| owned.epoch == epoch)
    }

    /// Ends it, if it has this epoch. Returns what the caller has committed and was not sent.
    pub(super) fn end(&mut self, epoch: u64) -> Option<Commit> {
        let mut owned = self.owned.take_if(|owned| owned.epoch == epoch)?;
        let commit = owned.commit.take();
        if !owned.is_done() {
            self.ended.push_back(owned);
            self.ended.drain(..self.ended.len().saturating_sub(MOST_ENDED));
        }
        commit
    }

    /// The number of entries that are committed too late: those of this batch, and of batches before it, that were not committed.
    pub(super) fn commit_late(&mut self, epoch: u64, number: u64, part: Option<(Place, u64)>) -> u64 {
        let Some(ended) = self.ended.iter_mut().find(|ended| ended.epoch == epoch) else { return 0 };
        ended.commit(number, part);
        ended.commit.take().map_or(0, |commit| commit.entries)
    }
}
