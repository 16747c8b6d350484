//! The entries of a connection that wait for replicas or files: they have their IDs, but count as delivered only once WAIT or
//! WAITAOF confirms them.
//!
//! Such a command goes out after every `wait_every` entries and after the last one. Its reply covers everything that was answered
//! before it on its connection, or shows that it is not covered. Once the connection has ended, nothing can confirm what was
//! written on it: those messages fail. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::in_flight::{InFlight, Owner};
use super::outcome::Outcome;
use super::send_buffer::SendBuffer;
use crate::command::Expect;
use crate::durability::Durability;
use crate::error::Fault;

#[derive(Debug)]
pub(crate) struct WaitTracker {
    pub(crate) durability: Durability,
    /// How many replicas must have an entry; `None`: they are counted when the connection is opened.
    wanted: Option<u64>,
    unconfirmed: VecDeque<Unconfirmed>,
    /// The routes whose slot the server has handed over, or has taken over without writing to it yet: what it says about its
    /// replicas does not hold for the node that has the slot now.
    moved: BTreeSet<u16>,
    /// The single streams that the server has handed over, while their slot moves.
    moved_streams: BTreeSet<Option<Arc<[u8]>>>,
    /// Whether held entries name their streams.
    names_streams: bool,
    /// How many commands had been added to the window at the last WAIT, including the WAIT.
    requested: u64,
    /// How many WAITs are in flight.
    in_flight: usize,
}

/// The outcome of entries that are not confirmed yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    /// The number of the entries' first message.
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
    pub(crate) owner: Owner,
    /// The route of the entries' key in a cluster.
    pub(crate) route: u16,
    /// The entries' stream, if the connection has several.
    pub(crate) stream: Option<Arc<[u8]>>,
}

impl WaitTracker {
    pub(crate) fn new(durability: Durability) -> Self {
        let wanted = durability.replicas;
        Self {
            durability,
            wanted,
            unconfirmed: VecDeque::new(),
            moved: BTreeSet::new(),
            moved_streams: BTreeSet::new(),
            names_streams: false,
            requested: 0,
            in_flight: 0,
        }
    }

    /// Sets how many replicas the server of the connection has: all of them are wanted. A WAIT that was requested for a smaller
    /// number fails.
    pub(crate) fn count(&mut self, replicas: u64) {
        self.wanted = Some(replicas);
    }

    /// Why the reply to a WAIT does not confirm the entries; `None`: it does.
    pub(crate) fn shortfall(&self, local: u64, replicas: u64) -> Option<Fault> {
        self.durability.shortfall(local, replicas, self.wanted.unwrap_or(u64::MAX))
    }

    /// Whether outcomes wait for a confirmation.
    pub(crate) fn is_holding(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// Whether outcomes of this route wait for a confirmation.
    pub(crate) fn holds(&self, route: u16) -> bool {
        self.unconfirmed.iter().any(|held| held.route == route)
    }

    /// The routes of the held outcomes. Some occur several times.
    pub(crate) fn routes(&self) -> impl Iterator<Item = u16> {
        self.unconfirmed.iter().map(|held| held.route)
    }

    /// Whether a WAIT is in flight.
    pub(crate) fn is_waiting(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether there are commands after the last WAIT, and another one can be written.
    pub(crate) fn has_unrequested(&self, window: &InFlight) -> bool {
        self.wanted.is_some() && window.added() > self.requested
    }

    /// How many more commands may be added before the next WAIT.
    pub(crate) fn until_due(&self, window: &InFlight) -> u64 {
        if self.wanted.is_none() {
            return u64::MAX;
        }
        self.durability.every.saturating_sub(window.added() - self.requested)
    }

    /// How long the server may be silent because it waits for others, and how many of the expected replies are short ones.
    pub(crate) fn patience(&self) -> (Duration, usize) {
        if self.is_waiting() { (self.durability.timeout, self.in_flight) } else { (Duration::ZERO, 0) }
    }

    /// Holds the outcome of entries that were written.
    pub(crate) fn hold(&mut self, number: u64, outcome: Outcome, owner: Owner, route: u16, stream: Option<&Arc<[u8]>>) {
        if let Some(last) = self.unconfirmed.back_mut()
            && last.number + last.outcome.count() == number
            && (owner, last.owner) == (Owner::Report, Owner::Report)
            && (route, stream) == (last.route, last.stream.as_ref())
            && last.outcome.absorb(&outcome)
        {
            return;
        }
        let stream = stream.cloned();
        self.unconfirmed.push_back(Unconfirmed { number, outcome, owner, route, stream });
    }

    /// Appends a WAIT for all commands before it.
    pub(crate) fn request(&mut self, window: &mut InFlight, send: &mut SendBuffer) {
        let Some(wanted) = self.wanted else { return };
        let before = send.len();
        self.durability.write(wanted, send.bytes());
        window.push_control(send.len() - before, Expect::Wait);
        self.requested = window.added();
        self.in_flight += 1;
    }

    /// Counts a WAIT as answered. Returns the entries that it decides.
    pub(crate) fn answered(&mut self) -> VecDeque<Unconfirmed> {
        self.in_flight -= 1;
        if self.moved.is_empty() && self.moved_streams.is_empty() {
            return std::mem::take(&mut self.unconfirmed);
        }
        let (moved, streams) = (std::mem::take(&mut self.moved), std::mem::take(&mut self.moved_streams));
        let decided = self.take_out(|held| !moved.contains(&held.route) && !streams.contains(&held.stream));
        (self.moved, self.moved_streams) = (moved, streams);
        decided
    }

    /// Takes out some entries, in order.
    fn take_out(&mut self, is_taken: impl Fn(&Unconfirmed) -> bool) -> VecDeque<Unconfirmed> {
        let (taken, kept): (Vec<_>, Vec<_>) = self.unconfirmed.drain(..).partition(is_taken);
        self.unconfirmed = kept.into();
        taken.into()
    }

    /// Marks a route as moved: the server has handed its slot over, or takes it over.
    pub(crate) fn hand_over(&mut self, route: u16) {
        self.moved.insert(route);
    }

    /// Marks one stream of a slot as moved: the server has handed it over.
    pub(crate) fn hand_over_stream(&mut self, stream: Option<Arc<[u8]>>) {
        self.moved_streams.insert(stream);
    }

    /// Marks a route and a stream as not moved: the server has accepted a command of them.
    #[inline]
    pub(crate) fn keep(&mut self, route: u16, stream: Option<&Arc<[u8]>>) {
        if !self.moved.is_empty() {
            self.moved.remove(&route);
        }
        if !self.moved_streams.is_empty() {
            self.moved_streams.remove(&stream.cloned());
        }
    }

    /// Whether held entries name their streams.
    pub(crate) fn names_streams(&self) -> bool {
        self.names_streams
    }

    /// Names the stream of each held entry from now on; those held before are of `stream`.
    pub(crate) fn name_streams(&mut self, stream: &Arc<[u8]>) {
        if std::mem::replace(&mut self.names_streams, true) {
            return;
        }
        for held in self.unconfirmed.iter_mut().filter(|held| held.stream.is_none()) {
            held.stream = Some(Arc::clone(stream));
        }
        if self.moved_streams.remove(&None) {
            self.moved_streams.insert(Some(Arc::clone(stream)));
        }
    }

    /// Gives streams of a route, which the server has handed over, their own routes.
    pub(crate) fn reroute(&mut self, route: u16, streams: &BTreeMap<&[u8], u16>) {
        for held in self.unconfirmed.iter_mut().filter(|held| held.route == route) {
            // Without names, all entries are of one stream.
            let own = held.stream.as_deref().map_or_else(|| streams.values().next(), |stream| streams.get(stream));
            if let Some(own) = own {
                held.route = *own;
                self.moved.insert(*own);
            }
        }
        self.moved_streams.retain(|stream| stream.as_deref().is_some_and(|stream| !streams.contains_key(stream)));
    }

    /// Takes out the entries of some routes, which another node has now.
    pub(crate) fn extract(&mut self, is_taken: impl Fn(u16) -> bool) -> VecDeque<Unconfirmed> {
        self.moved.retain(|route| !is_taken(*route));
        let taken = self.take_out(|held| is_taken(held.route));
        if self.unconfirmed.is_empty() {
            self.moved_streams.clear();
        }
        taken
    }

    /// Adds entries that another node wrote. After a write to their slot, a WAIT will prove that the replicas of this node have
    /// them.
    pub(crate) fn arrive(&mut self, entries: VecDeque<Unconfirmed>) {
        for entry in entries {
            self.hand_over(entry.route);
            self.unconfirmed.push_back(entry);
        }
    }

    /// Takes out the entries that no WAIT will confirm: nothing more is sent for these streams, given by route and key, to the
    /// node that has them now.
    pub(crate) fn give_up(&mut self, is_of: impl Fn(u16, Option<&[u8]>) -> bool) -> VecDeque<Unconfirmed> {
        let (moved, streams) = (std::mem::take(&mut self.moved), std::mem::take(&mut self.moved_streams));
        let lost = self.take_out(|held| {
            (moved.contains(&held.route) || streams.contains(&held.stream)) && is_of(held.route, held.stream.as_deref())
        });
        if !self.unconfirmed.is_empty() {
            (self.moved, self.moved_streams) = (moved, streams);
        }
        lost
    }

    /// Takes out all entries.
    pub(crate) fn lose(&mut self) -> VecDeque<Unconfirmed> {
        self.moved.clear();
        self.moved_streams.clear();
        std::mem::take(&mut self.unconfirmed)
    }

    /// Forgets the WAITs: nothing is in flight any more. Entries that no WAIT has decided are left for another one.
    pub(crate) fn forget_requests(&mut self, window: &InFlight) {
        let left = u64::from(!self.unconfirmed.is_empty());
        (self.requested, self.in_flight) = (window.added().saturating_sub(left), 0);
    }

    /// Forgets everything in a forked child: it belongs to the parent.
    pub(crate) fn forget(&mut self) {
        drop(self.lose());
        (self.requested, self.in_flight) = (0, 0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::command::EntryId;

    fn delivered(ms: u64, seq: u64, entries: u64) -> Outcome {
        Outcome::Delivered { first: EntryId { ms, seq }, entries, rows: 1 }
    }

    fn tracker(every: u64) -> WaitTracker {
        WaitTracker::new(Durability { replicas: Some(1), aof: false, timeout: Duration::from_secs(1), every })
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
            tracker.hold(number, outcome, Owner::Report, 0, None);
            number += count;
        }
        tracker.hold(number, delivered(8, 9, 1), Owner::Call, 0, None);
        tracker.hold(number + 1, delivered(8, 10, 1), Owner::Report, 0, None);
        tracker.hold(number + 5, delivered(8, 11, 1), Owner::Report, 0, None);
        tracker.hold(number + 6, delivered(8, 12, 1), Owner::Report, 1, None);
        let expected = [
            (0, delivered(7, 0, 6), Owner::Report),
            (6, delivered(7, 7, 1), Owner::Report),
            (7, delivered(8, 8, 1), Owner::Report),
            (8, Outcome::Deduplicated { count: 3 }, Owner::Report),
            (11, delivered(8, 9, 1), Owner::Call),
            (12, delivered(8, 10, 1), Owner::Report),
            (16, delivered(8, 11, 1), Owner::Report),
            (17, delivered(8, 12, 1), Owner::Report),
        ];
        let held: Vec<_> = tracker.lose().into_iter().map(|held| (held.number, held.outcome, held.owner)).collect();
        assert_eq!(held, expected);
    }

    #[test]
    fn wait_is_due_after_the_configured_number_of_entries() {
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
    fn wait_does_not_confirm_entries_of_slots_that_were_handed_over() {
        let (mut window, mut tracker, mut send) = (InFlight::default(), tracker(3), SendBuffer::new(false));
        let mut decided = |tracker: &mut WaitTracker| {
            window.push(10, window.added(), 1, Expect::EntryId, Owner::Report);
            tracker.request(&mut window, &mut send);
            tracker.answered().into_iter().map(|held| held.number).collect::<Vec<_>>()
        };
        for number in 0..4 {
            tracker.hold(number, delivered(7, number, 1), Owner::Report, number as u16 % 2, None);
        }
        tracker.hand_over(1);
        assert_eq!(decided(&mut tracker), [0, 2]);
        assert!(tracker.holds(1) && !tracker.holds(0));
        tracker.hold(4, delivered(8, 0, 1), Owner::Report, 0, None);
        let moved = tracker.extract(|route| route == 1);
        assert_eq!(moved.iter().map(|held| held.number).collect::<Vec<_>>(), [1, 3]);
        tracker.arrive(moved);
        assert_eq!(decided(&mut tracker), [4], "no write came behind those that arrived");
        tracker.keep(1, None);
        assert_eq!(decided(&mut tracker), [1, 3]);
        tracker.hold(5, delivered(9, 0, 1), Owner::Report, 1, None);
        tracker.hand_over(1);
        assert_eq!(decided(&mut tracker), [0; 0]);
        tracker.keep(1, None);
        assert_eq!(decided(&mut tracker), [5]);
    }

    #[test]
    fn wait_does_not_confirm_entries_of_streams_that_were_handed_over() {
        let mut tracker = tracker(3);
        let [first, second] = [b"a", b"b"].map(|key| Arc::<[u8]>::from(&key[..]));
        let decided = |tracker: &mut WaitTracker| {
            tracker.in_flight += 1;
            tracker.answered().into_iter().map(|held| held.number).collect::<Vec<_>>()
        };
        tracker.hold(0, delivered(7, 0, 1), Owner::Report, 1, None);
        tracker.hand_over_stream(None);
        tracker.name_streams(&first);
        for (number, stream) in [(1, &second), (2, &first)] {
            tracker.hold(number, delivered(7, number, 1), Owner::Report, 1, Some(stream));
        }
        assert_eq!(decided(&mut tracker), [1], "the other stream of the slot");
        tracker.reroute(1, &BTreeMap::from([(&first[..], 20_000)]));
        assert!(tracker.holds(20_000) && !tracker.holds(1));
        assert_eq!(decided(&mut tracker), [0; 0]);
        let moved = tracker.extract(|route| route == 20_000);
        tracker.arrive(moved);
        tracker.keep(1, Some(&second));
        assert_eq!(decided(&mut tracker), [0; 0], "no write came behind those that arrived");
        tracker.keep(20_000, Some(&first));
        assert_eq!(decided(&mut tracker), [0, 2]);
        tracker.hold(3, delivered(8, 0, 1), Owner::Report, 1, Some(&second));
        tracker.hand_over_stream(Some(Arc::clone(&second)));
        tracker.keep(1, Some(&second));
        assert_eq!(decided(&mut tracker), [3], "the server has it again");
    }

    #[test]
    fn entries_that_no_wait_can_confirm_are_given_up() {
        let mut tracker = tracker(3);
        for number in 0..3 {
            tracker.hold(number, delivered(7, number, 1), Owner::Report, number as u16, None);
        }
        let arrived = tracker.extract(|route| route == 2);
        tracker.arrive(arrived);
        tracker.hand_over(1);
        let lost = tracker.give_up(|route, _| route != 0);
        assert_eq!(lost.iter().map(|held| held.number).collect::<Vec<_>>(), [1, 2]);
        assert!(tracker.holds(0) && tracker.give_up(|_, _| true).is_empty());
    }
}
