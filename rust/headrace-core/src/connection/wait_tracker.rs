//! The entries of a connection that wait for replicas or files: they have their IDs, but count as delivered only once WAIT or
//! WAITAOF confirms them.
//!
//! Such a command goes out after every `wait_every` entries and after the last one. Its reply covers everything that was answered
//! before it on its connection, or shows that it is not covered. When the connection ends, nothing can confirm any more what
//! it wrote: those messages fail. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::in_flight::{InFlight, Owner};
use super::outcome::Outcome;
use super::send_buffer::SendBuffer;
use crate::command::Expect;
use crate::durability::Durability;
use crate::error::Failure;

#[derive(Debug)]
pub(crate) struct WaitTracker {
    pub(crate) durability: Durability,
    /// Outcomes of entries that are not confirmed, with the number of the first message of each.
    unconfirmed: VecDeque<(u64, Outcome, Owner)>,
    /// How many commands had been added to the window at the last WAIT, this one included.
    requested: u64,
    /// How many WAITs are in flight.
    in_flight: usize,
    proof: Proof,
}

/// Whether a reply to WAIT proves something of the entries that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Valid,
    /// The server has handed the stream over: what it says of its replicas does not hold for the node that has it now.
    Void,
    /// That node is connected to. Behind a write of its own its reply will prove that its replicas have the stream.
    Due,
}

impl WaitTracker {
    pub(crate) fn new(durability: Durability) -> Self {
        Self { durability, unconfirmed: VecDeque::new(), requested: 0, in_flight: 0, proof: Proof::Valid }
    }

    /// Whether outcomes wait for a confirmation.
    pub(crate) fn is_holding(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// Whether a WAIT is in flight.
    pub(crate) fn is_waiting(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether there are commands behind the last WAIT.
    pub(crate) fn has_unrequested(&self, window: &InFlight) -> bool {
        window.added() > self.requested
    }

    /// How many more commands may be added before the next WAIT.
    pub(crate) fn until_due(&self, window: &InFlight) -> u64 {
        self.durability.every.saturating_sub(window.added() - self.requested)
    }

    /// How long the server may be silent because it waits for others, and how many of the expected replies are short.
    pub(crate) fn patience(&self) -> (Duration, usize) {
        if self.is_waiting() { (self.durability.timeout, self.in_flight) } else { (Duration::ZERO, 0) }
    }

    /// Holds the outcome of entries that were written.
    pub(crate) fn hold(&mut self, number: u64, outcome: Outcome, owner: Owner) {
        if let Some((first, last, its_owner)) = self.unconfirmed.back_mut()
            && *first + last.count() == number
            && (owner, *its_owner) == (Owner::Report, Owner::Report)
            && last.absorb(&outcome)
        {
            return;
        }
        self.unconfirmed.push_back((number, outcome, owner));
    }

    /// Appends a WAIT for all commands before.
    pub(crate) fn request(&mut self, window: &mut InFlight, send: &mut SendBuffer) {
        let before = send.len();
        self.durability.write(send.bytes());
        window.push_control(send.len() - before, Expect::Wait);
        self.requested = window.added();
        self.in_flight += 1;
        if self.proof == Proof::Due {
            self.proof = Proof::Valid;
        }
    }

    /// A WAIT was answered. Returns whether that proves anything.
    pub(crate) fn answered(&mut self) -> bool {
        self.in_flight -= 1;
        self.proof == Proof::Valid
    }

    /// The server has handed the stream over: what it replies to WAIT proves nothing any more.
    pub(crate) fn make_void(&mut self) {
        self.proof = Proof::Void;
    }

    /// The node that has the stream now is connected to.
    pub(crate) fn move_on(&mut self) {
        if self.proof == Proof::Void {
            self.proof = Proof::Due;
        }
    }

    /// Nothing more is sent to the node that has the stream now. Returns whether that was to prove something.
    pub(crate) fn give_up_proof(&mut self) -> bool {
        std::mem::replace(&mut self.proof, Proof::Valid) != Proof::Valid
    }

    /// The connection is gone, with everything in flight.
    pub(crate) fn forget_requests(&mut self, window: &InFlight) {
        (self.requested, self.in_flight) = (window.added(), 0);
    }

    /// Takes out what a WAIT confirmed; with a `failure`, as messages that failed.
    pub(crate) fn take(&mut self, failure: Option<&Arc<Failure>>) -> Option<(u64, Outcome, Owner)> {
        let (number, outcome, owner) = self.unconfirmed.pop_front()?;
        Some((number, failure.map_or_else(|| outcome.clone(), |failure| outcome.failed_with(failure)), owner))
    }

    /// In a forked child: everything here is the parent's.
    pub(crate) fn forget(&mut self) {
        self.unconfirmed.clear();
        (self.requested, self.in_flight, self.proof) = (0, 0, Proof::Valid);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::command::EntryId;
    use crate::error::{Kind, Written};

    fn delivered(ms: u64, seq: u64, entries: u64) -> Outcome {
        Outcome::Delivered { first: EntryId { ms, seq }, entries, rows: 1 }
    }

    fn tracker(every: u64) -> WaitTracker {
        WaitTracker::new(Durability { replicas: 1, aof: false, timeout: Duration::from_secs(1), every })
    }

    #[test]
    fn unconfirmed_entries_are_kept_as_runs_in_their_order() {
        let mut tracker = tracker(10);
        let mut number = 0;
        let held = [
            delivered(7, 0, 5),
            delivered(7, 5, 1),
            delivered(7, 7, 1),
            delivered(8, 8, 1),
            Outcome::Deduplicated { count: 1 },
            Outcome::Deduplicated { count: 2 },
        ];
        for outcome in held {
            let count = outcome.count();
            tracker.hold(number, outcome, Owner::Report);
            number += count;
        }
        tracker.hold(number, delivered(8, 9, 1), Owner::Call);
        tracker.hold(number + 1, delivered(8, 10, 1), Owner::Report);
        tracker.hold(number + 5, delivered(8, 11, 1), Owner::Report);
        let expected = [
            (0, delivered(7, 0, 6), Owner::Report),
            (6, delivered(7, 7, 1), Owner::Report),
            (7, delivered(8, 8, 1), Owner::Report),
            (8, Outcome::Deduplicated { count: 3 }, Owner::Report),
            (11, delivered(8, 9, 1), Owner::Call),
            (12, delivered(8, 10, 1), Owner::Report),
            (16, delivered(8, 11, 1), Owner::Report),
        ];
        let failure = Failure { kind: Kind::Permanent, code: "X".into(), message: String::new(), written: Written::No };
        let failure = Arc::new(failure);
        let failed = Outcome::Failed { failure: Arc::clone(&failure), count: 6 };
        assert_eq!(tracker.take(Some(&failure)), Some((0, failed, Owner::Report)));
        let rest: Vec<_> = std::iter::from_fn(|| tracker.take(None)).collect();
        assert_eq!(rest, expected[1..]);
    }

    #[test]
    fn wait_is_due_after_every_so_many_entries() {
        let (mut window, mut tracker, mut send) = (InFlight::default(), tracker(3), SendBuffer::new(false));
        for left in [3, 2, 1, 0, 0] {
            assert_eq!(tracker.until_due(&window), left);
            window.push(10, window.added(), 1, Expect::EntryId, Owner::Report);
        }
        tracker.request(&mut window, &mut send);
        assert!(tracker.until_due(&window) == 3 && !tracker.has_unrequested(&window) && tracker.is_waiting());
        window.push(10, 5, 1, Expect::EntryId, Owner::Report);
        assert!(tracker.has_unrequested(&window));
        assert_eq!(tracker.until_due(&window), 2);
    }

    #[test]
    fn wait_proves_nothing_between_a_redirect_and_a_write_to_the_next_node() {
        let (mut window, mut tracker, mut send) = (InFlight::default(), tracker(3), SendBuffer::new(false));
        let mut ask = |tracker: &mut WaitTracker, is_moved| {
            if is_moved {
                tracker.move_on();
            }
            window.push(10, window.added(), 1, Expect::EntryId, Owner::Report);
            tracker.request(&mut window, &mut send);
            tracker.answered()
        };
        assert!(ask(&mut tracker, true), "no redirect was seen");
        tracker.make_void();
        assert!(!ask(&mut tracker, false) && !ask(&mut tracker, false));
        assert!(ask(&mut tracker, true) && !tracker.give_up_proof());
        tracker.make_void();
        tracker.move_on();
        assert!(tracker.give_up_proof() && !tracker.give_up_proof());
    }
}
