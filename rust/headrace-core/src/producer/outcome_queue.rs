//! The outcomes of all messages, in the order in which they were produced.
//!
//! Messages are numbered as they are produced. Connections resolve them in any order. An outcome is recorded for the next report
//! once all messages before it have theirs. With one connection and nothing held back, an outcome goes straight to the recorder.
//! Only outcomes that come early are kept here: as runs, or by message number for entries of several connections, which form no
//! runs.

mod early_ids;

use std::collections::{BTreeMap, VecDeque};

use early_ids::EarlyIds;

use crate::command::EntryId;
use crate::connection::{Outcome, Outcomes, Owner};
use crate::error::Failure;
use crate::report::Recorder;

#[derive(Debug, Default)]
pub(crate) struct OutcomeQueue {
    pub(super) recorder: Recorder,
    /// The number of the first message without a recorded outcome.
    front: u64,
    /// The number of the next message.
    next: u64,
    /// The entry IDs of messages not far after the front.
    ids: EarlyIds,
    /// Other outcomes of messages after the front, in queues with ascending numbers: those of one connection mostly ascend.
    early: Vec<VecDeque<Early>>,
    /// The queue that took the last outcome.
    last: usize,
    /// Outcomes that fit into no queue, by the number of their first message.
    strays: BTreeMap<u64, (Outcome, Owner)>,
    /// How many early outcomes there are in total.
    count: usize,
    call: Option<Call>,
}

/// An outcome that came early, with the number of its first message.
#[derive(Debug)]
struct Early {
    number: u64,
    outcome: Outcome,
    owner: Owner,
}

impl Early {
    /// Absorbs the outcome of the messages that follow, if both can be one. Returns whether it did.
    fn absorb(&mut self, number: u64, outcome: &Outcome, owner: Owner) -> bool {
        (self.owner, owner) == (Owner::Report, Owner::Report)
            && self.number + self.outcome.count() == number
            && self.outcome.absorb(outcome)
    }
}

/// The maximum number of queues.
const QUEUES: usize = 16;

/// A call of `dispatch` that waits for the outcome of its message.
#[derive(Debug)]
struct Call {
    number: u64,
    outcome: Option<Result<EntryId, Failure>>,
}

impl OutcomeQueue {
    /// The recorded outcomes, and the message IDs.
    #[inline]
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// Counts the next `count` messages, which are produced now, and returns the number of the first one.
    #[inline]
    pub(crate) fn number(&mut self, count: u64) -> u64 {
        let number = self.next;
        self.next += count;
        number
    }

    /// The number of the next message.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Counts one message, which is produced now.
    #[inline]
    pub(crate) fn count_one(&mut self) {
        self.next += 1;
    }

    /// Whether every message has its outcome.
    pub(crate) fn is_settled(&self) -> bool {
        self.front == self.next
    }

    /// How many runs of outcomes came early.
    #[inline]
    pub(crate) fn early(&self) -> usize {
        self.count
    }

    /// Begins a call of `dispatch`, which carries the next message.
    pub(crate) fn begin_call(&mut self) {
        self.call = Some(Call { number: self.next, outcome: None });
    }

    /// Whether the message of `dispatch` has its outcome.
    pub(crate) fn is_call_settled(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.outcome.is_some())
    }

    /// Ends the call of `dispatch` and returns the outcome of its message. If there is none yet, the call no longer waits for it,
    /// and the outcome will be dropped.
    pub(crate) fn end_call(&mut self) -> Option<Result<EntryId, Failure>> {
        self.call.take().and_then(|call| call.outcome)
    }

    /// Forgets all messages. Those without an outcome get none here.
    pub(crate) fn clear(&mut self) {
        self.front = self.next;
        self.ids.clear();
        self.early.clear();
        self.strays.clear();
        (self.last, self.count) = (0, 0);
        self.call = None;
    }

    #[inline]
    fn record(&mut self, number: u64, outcome: &Outcome, owner: Owner) {
        self.front += outcome.count();
        match (owner, outcome) {
            (Owner::Report, Outcome::Delivered { first, entries, rows }) => {
                self.recorder.delivered(*first, *entries, *rows);
            }
            (Owner::Report, Outcome::Deduplicated { count }) => self.recorder.deduplicated(*count),
            (Owner::Report, Outcome::Failed { failure, count }) => self.recorder.failed(failure, *count),
            (Owner::Call, outcome) => self.record_call(number, outcome),
        }
    }

    fn record_call(&mut self, number: u64, outcome: &Outcome) {
        let Some(call) = self.call.as_mut().filter(|call| call.number == number) else { return };
        let counters = self.recorder.counters();
        call.outcome = match outcome {
            Outcome::Delivered { first, .. } => {
                counters.delivered.add(1);
                Some(Ok(*first))
            }
            Outcome::Failed { failure, .. } => {
                counters.failed(&failure.code, 1);
                Some(Err((**failure).clone()))
            }
            // `dispatch` is not available in the modes that deduplicate.
            Outcome::Deduplicated { .. } => None,
        };
    }

    /// Keeps an outcome until those before it are known.
    #[inline]
    fn keep(&mut self, number: u64, outcome: Outcome, owner: Owner) {
        if let Outcome::Delivered { first, entries: 1, rows: 1 } = outcome
            && owner == Owner::Report
            && self.ids.insert(number, self.front, first)
        {
            self.count += 1;
            return;
        }
        self.keep_run(number, outcome, owner);
    }

    #[cold]
    fn keep_run(&mut self, number: u64, outcome: Outcome, owner: Owner) {
        debug_assert!(number > self.front && number + outcome.count() <= self.next, "{number} of {self:?}");
        let takes = |queue: &VecDeque<Early>| queue.back().is_none_or(|last| last.number < number);
        if !self.early.get(self.last).is_some_and(takes) {
            match self.early.iter().position(takes) {
                Some(queue) => self.last = queue,
                None if self.early.len() < QUEUES => {
                    self.last = self.early.len();
                    self.early.push(VecDeque::new());
                }
                None => return self.stray(number, outcome, owner),
            }
        }
        let Some(queue) = self.early.get_mut(self.last) else { return };
        if !queue.back_mut().is_some_and(|last| last.absorb(number, &outcome, owner)) {
            queue.push_back(Early { number, outcome, owner });
            self.count += 1;
        }
    }

    fn stray(&mut self, number: u64, outcome: Outcome, owner: Owner) {
        if owner == Owner::Report
            && let Some((first, (last, Owner::Report))) = self.strays.range_mut(..number).next_back()
            && *first + last.count() == number
            && last.absorb(&outcome)
        {
            return;
        }
        self.count += 1;
        self.strays.insert(number, (outcome, owner));
    }

    fn release(&mut self) {
        loop {
            while let Some(id) = self.ids.take(self.front) {
                self.front += 1;
                self.count -= 1;
                self.recorder.delivered(id, 1, 1);
            }
            if self.count == self.ids.len() {
                return;
            }
            let Some((number, outcome, owner)) = self.take_first() else { return };
            self.count -= 1;
            self.record(number, &outcome, owner);
        }
    }

    /// Removes and returns the outcome of the first message without a recorded one, if it is known.
    fn take_first(&mut self) -> Option<(u64, Outcome, Owner)> {
        let front = self.front;
        for queue in &mut self.early {
            if queue.front().is_some_and(|first| first.number == front)
                && let Some(first) = queue.pop_front()
            {
                return Some((first.number, first.outcome, first.owner));
            }
        }
        let first = self.strays.first_entry().filter(|first| *first.key() == front)?;
        let (number, (outcome, owner)) = first.remove_entry();
        Some((number, outcome, owner))
    }
}

impl Outcomes for OutcomeQueue {
    #[inline]
    fn resolve(&mut self, number: u64, outcome: Outcome, owner: Owner) {
        debug_assert!(outcome.count() > 0, "an outcome of no message");
        if number == self.front {
            self.record(number, &outcome, owner);
            if self.count > 0 {
                self.release();
            }
        } else {
            self.keep(number, outcome, owner);
        }
    }

    fn awaits(&self, number: u64, owner: Owner) -> bool {
        owner == Owner::Report || self.call.as_ref().is_some_and(|call| call.number == number)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::error::{Kind, Written};

    fn failed(code: String) -> Outcome {
        let failure =
            Failure { kind: Kind::Permanent, code: code.into(), message: String::new(), written: Written::No };
        Outcome::Failed { failure: Arc::new(failure), count: 1 }
    }

    fn codes(queue: &mut OutcomeQueue) -> Vec<String> {
        let report = queue.recorder.take(false);
        report.failures().map(|failure| failure.failure.code.to_string()).collect()
    }

    /// The entry ID of each message; `None` for those that failed.
    fn ids(queue: &mut OutcomeQueue) -> Vec<Option<EntryId>> {
        queue.recorder.take(false).entry_ids()
    }

    proptest! {
        /// Whatever the order in which the outcomes become known.
        #[test]
        fn outcomes_are_recorded_in_the_order_of_their_messages(
            order in Just((0..60_u64).collect::<Vec<_>>()).prop_shuffle(), taken in 1..20_usize
        ) {
            let mut queue = OutcomeQueue::default();
            queue.recorder.push_ordinals(60);
            prop_assert_eq!(queue.number(60), 0);
            let mut seen = Vec::new();
            for (done, number) in order.iter().enumerate() {
                queue.resolve(*number, failed(format!("C{}", number / 3)), Owner::Report);
                if done % taken == 0 { seen.extend(codes(&mut queue)) }
                prop_assert_eq!(queue.is_settled(), done == 59);
            }
            seen.extend(codes(&mut queue));
            let expected: Vec<_> = (0..60).map(|number| format!("C{}", number / 3)).collect();
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(queue.early(), 0);
        }
    }

    #[derive(Debug, Clone)]
    enum Given {
        Entries(u64),
        Failed(u64),
    }

    proptest! {
        /// Entries of several connections, one by one and as runs, and failures between them, in any order.
        #[test]
        fn entry_ids_match_their_messages(
            given in prop::collection::vec(prop_oneof![
                5 => Just(Given::Entries(1)), 2 => (1..30_u64).prop_map(Given::Entries), 1 => (1..9_u64).prop_map(Given::Failed),
            ], 1..60).prop_flat_map(|given| {
                let order = Just((0..given.len()).collect::<Vec<_>>()).prop_shuffle();
                (Just(given), order)
            })
        ) {
            let (given, order) = given;
            let mut queue = OutcomeQueue::default();
            let (mut numbers, mut expected) = (Vec::new(), Vec::new());
            for one in &given {
                let (count, is_failed) = match one { Given::Entries(count) => (*count, false), Given::Failed(count) => (*count, true) };
                let first = queue.number(count);
                numbers.push(first);
                // No two IDs follow each other, except within one run.
                expected.extend((0..count).map(|nth| (!is_failed).then_some(EntryId { ms: 7 + 2 * first, seq: nth })));
            }
            queue.recorder.push_ordinals(queue.next());
            for at in order {
                let outcome = match &given[at] {
                    Given::Entries(entries) => {
                        Outcome::Delivered { first: EntryId { ms: 7 + 2 * numbers[at], seq: 0 }, entries: *entries, rows: 1 }
                    }
                    Given::Failed(count) => {
                        let Outcome::Failed { failure, .. } = failed("X".to_owned()) else { return Ok(()) };
                        Outcome::Failed { failure, count: *count }
                    }
                };
                queue.resolve(numbers[at], outcome, Owner::Report);
            }
            prop_assert!(queue.is_settled());
            prop_assert_eq!(queue.early(), 0);
            prop_assert_eq!(ids(&mut queue), expected);
        }
    }

    #[test]
    fn an_entry_far_after_the_first_message_is_kept() {
        let mut queue = OutcomeQueue::default();
        let count = 3 * early_ids::PLACES as u64;
        queue.recorder.push_ordinals(count);
        queue.number(count);
        let delivered = |number| Outcome::Delivered { first: EntryId { ms: 1 + number, seq: 0 }, entries: 1, rows: 1 };
        for number in (0..count).rev() {
            queue.resolve(number, delivered(number), Owner::Report);
        }
        assert!(queue.is_settled() && queue.early() == 0);
        assert_eq!(
            ids(&mut queue),
            (0..count).map(|number| Some(EntryId { ms: 1 + number, seq: 0 })).collect::<Vec<_>>()
        );
    }

    #[test]
    fn equal_early_outcomes_are_kept_as_one_run() {
        let mut queue = OutcomeQueue::default();
        queue.recorder.push_ordinals(100);
        queue.number(100);
        for number in 1..100 {
            queue.resolve(number, failed("X".to_owned()), Owner::Report);
        }
        assert_eq!(queue.early(), 1);
        queue.resolve(0, failed("Y".to_owned()), Owner::Report);
        assert!(queue.is_settled());
        assert_eq!(codes(&mut queue)[..2], ["Y", "X"]);
    }

    #[test]
    fn the_outcome_of_a_call_is_not_in_a_report() {
        let mut queue = OutcomeQueue::default();
        queue.recorder.push_ordinals(2);
        queue.number(1);
        queue.begin_call();
        let call = queue.number(1);
        queue.number(1);
        queue.resolve(2, failed("C".to_owned()), Owner::Report);
        queue.resolve(call, failed("B".to_owned()), Owner::Call);
        assert!(!queue.is_call_settled(), "the message before it has no outcome");
        queue.resolve(0, failed("A".to_owned()), Owner::Report);
        assert_eq!(queue.end_call().unwrap().unwrap_err().code, "B");
        assert_eq!(codes(&mut queue), ["A", "C"]);
    }

    #[test]
    fn the_outcome_of_an_interrupted_call_is_dropped() {
        let mut queue = OutcomeQueue::default();
        queue.begin_call();
        let call = queue.number(1);
        assert!(queue.awaits(call, Owner::Call) && queue.end_call().is_none());
        assert!(!queue.awaits(call, Owner::Call));
        queue.resolve(call, failed("B".to_owned()), Owner::Call);
        assert!(queue.is_settled() && codes(&mut queue).is_empty());
    }
}
