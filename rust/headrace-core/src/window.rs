//! The in-flight window: messages that were encoded and have no outcome yet, first in, first out.
//!
//! Replies come in the order of the commands, so a reply belongs to the first message that is still here. Offsets count
//! the bytes of one connection; they tell which messages the transport was given a byte of, and so, when the connection
//! breaks, whose fate is unknown. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Failure;

/// One message, or a run of messages that failed before they were encoded and wait for their turn to be told.
#[derive(Debug)]
enum Slot {
    /// Encoded; `end` is the offset just behind its last byte.
    Encoded { end: u64, owner: Owner },
    /// `count` messages that never went out.
    Settled { count: u64, failure: Arc<Failure> },
}

/// Whom an outcome is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The next report.
    Report,
    /// The call of `dispatch` that is waiting for it.
    Call,
    /// Nobody: that call was interrupted.
    Nobody,
}

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_entries: usize,
    /// In bytes of commands. The message that passes the limit is let through: one is always in flight.
    pub(crate) max_bytes: u64,
}

/// A message that left the window without a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Encoded; whether a byte of it was handed to the transport.
    Encoded { owner: Owner, handed: bool },
    /// Messages that had failed before.
    Settled { count: u64, failure: Arc<Failure> },
}

#[derive(Debug, Default)]
pub(crate) struct Window {
    slots: VecDeque<Slot>,
    encoded_slots: usize,
    /// Offset of the first byte of the first encoded message.
    front: u64,
    /// Offset just behind the last byte that was encoded.
    encoded: u64,
    /// Offset just behind the last byte that the transport took.
    handed: u64,
}

impl Window {
    /// Whether no message waits for its outcome.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether one more message may be encoded.
    #[inline]
    pub(crate) fn has_room(&self, limits: Limits) -> bool {
        self.encoded_slots == 0
            || (self.encoded_slots < limits.max_entries
                && self.encoded - self.front < limits.max_bytes
                // Failures that wait for their turn between messages in flight are bounded as well.
                && self.slots.len() < limits.max_entries.saturating_mul(2))
    }

    /// Whether a quarter of the window is free. Who waits for room waits for that much: a message for each reply would be a
    /// system call for each message.
    pub(crate) fn has_ample_room(&self, limits: Limits) -> bool {
        let (max_entries, max_bytes) = (limits.max_entries, limits.max_bytes);
        self.encoded_slots == 0
            || (self.slots.len() <= max_entries - max_entries / 4
                && self.encoded - self.front <= max_bytes - max_bytes / 4)
    }

    /// Whether the transport has a byte of a message that is not answered.
    pub(crate) fn is_owed(&self) -> bool {
        self.handed > self.front
    }

    /// Whether the transport was given whole messages only, and all of those are answered: what follows may then go out
    /// on another connection. Behind an answer that came too early the rest of a message is left.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.handed == self.front
    }

    /// Adds a message of `length` encoded bytes.
    #[inline]
    pub(crate) fn push(&mut self, length: usize, owner: Owner) {
        self.encoded += length as u64;
        self.encoded_slots += 1;
        self.slots.push_back(Slot::Encoded { end: self.encoded, owner });
    }

    /// Adds `count` messages that failed without being encoded. The caller tells them at once if the window is empty.
    pub(crate) fn push_settled(&mut self, count: u64, failure: &Arc<Failure>) {
        if let Some(Slot::Settled { count: before, failure: last }) = self.slots.back_mut()
            && last == failure
        {
            *before += count;
            return;
        }
        self.slots.push_back(Slot::Settled { count, failure: Arc::clone(failure) });
    }

    /// Says that the transport took `count` more bytes.
    #[inline]
    pub(crate) fn hand_over(&mut self, count: usize) {
        self.handed += count as u64;
        debug_assert!(self.handed <= self.encoded, "handed over more than was encoded");
    }

    /// Takes the first message out, because its reply is here; says whether the transport has all bytes of it.
    /// `None`: nothing was owed, so the reply is a surplus.
    #[inline]
    pub(crate) fn answer(&mut self) -> Option<(Owner, bool)> {
        if !self.is_owed() {
            return None;
        }
        // While something is owed, its message is in front: failures there were told before.
        let (end, owner) = match self.slots.front()? {
            Slot::Encoded { end, owner } => (*end, *owner),
            Slot::Settled { .. } => return None,
        };
        self.slots.pop_front();
        self.front = end;
        self.encoded_slots -= 1;
        Some((owner, self.handed >= end))
    }

    /// Takes out messages at the front that had failed before they were encoded: their turn has come.
    #[inline]
    pub(crate) fn pop_settled(&mut self) -> Option<(u64, Arc<Failure>)> {
        match self.slots.front()? {
            Slot::Encoded { .. } => None,
            Slot::Settled { .. } => match self.slots.pop_front()? {
                Slot::Settled { count, failure } => Some((count, failure)),
                Slot::Encoded { .. } => None,
            },
        }
    }

    /// Takes the first message out, because its connection is gone. Offsets start anew when all are out.
    pub(crate) fn give_up(&mut self) -> Option<Unanswered> {
        match self.slots.pop_front() {
            Some(Slot::Encoded { end, owner }) => {
                let handed = self.handed > self.front;
                self.front = end;
                self.encoded_slots -= 1;
                Some(Unanswered::Encoded { owner, handed })
            }
            Some(Slot::Settled { count, failure }) => Some(Unanswered::Settled { count, failure }),
            None => {
                (self.front, self.encoded, self.handed) = (0, 0, 0);
                None
            }
        }
    }

    /// The interrupted call no longer waits for its message.
    pub(crate) fn abandon_call(&mut self) {
        for slot in &mut self.slots {
            if let Slot::Encoded { owner, .. } = slot
                && *owner == Owner::Call
            {
                *owner = Owner::Nobody;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::{Kind, Written};
    use proptest::prelude::*;

    fn failure(code: &'static str) -> Arc<Failure> {
        Arc::new(Failure { kind: Kind::Permanent, code: code.into(), message: String::new(), written: Written::No })
    }

    #[test]
    fn one_message_always_fits_and_then_the_limits_hold() {
        let limits = Limits { max_entries: 2, max_bytes: 100 };
        let mut window = Window::default();
        assert!(window.has_room(limits));
        window.push(1_000, Owner::Report);
        assert!(!window.has_room(limits), "bytes");
        window.hand_over(1_000);
        assert_eq!(window.answer(), Some((Owner::Report, true)));
        window.push(1, Owner::Report);
        assert!(window.has_room(limits));
        window.push(1, Owner::Report);
        assert!(!window.has_room(limits), "entries");
    }

    #[test]
    fn failures_that_wait_for_their_turn_fill_the_window_too() {
        let limits = Limits { max_entries: 10, max_bytes: 100 };
        let mut window = Window::default();
        window.push(1, Owner::Report);
        for _ in 0..100 {
            window.push_settled(1, &failure("EMPTY"));
        }
        assert!(window.has_room(limits), "equal ones are one run");
        for _ in 0..10 {
            window.push_settled(1, &failure("EMPTY"));
            window.push_settled(1, &failure("NULL_PAYLOAD"));
        }
        assert!(!window.has_room(limits));
    }

    #[test]
    fn a_reply_to_what_was_not_handed_over_is_a_surplus() {
        let mut window = Window::default();
        assert_eq!(window.answer(), None);
        window.push(10, Owner::Report);
        assert_eq!(window.answer(), None);
        window.hand_over(1);
        assert_eq!(window.answer(), Some((Owner::Report, false)), "an error may come before the last byte is out");
        assert!(!window.is_between_messages(), "the rest of the message is still to come");
    }

    proptest! {
        /// Against a plain model: which messages leave in which order, and whose fate is unknown.
        #[test]
        fn order_and_fate_are_those_of_a_list(steps in prop::collection::vec((0..4_u8, 1..50_usize), 1..200)) {
            let (mut window, bad) = (Window::default(), failure("EMPTY"));
            let mut model: VecDeque<Option<(u64, u64)>> = VecDeque::new(); // start and end, or settled
            let (mut encoded, mut handed) = (0_u64, 0_u64);
            for (step, size) in steps {
                match step {
                    0 => {
                        window.push(size, Owner::Report);
                        model.push_back(Some((encoded, encoded + size as u64)));
                        encoded += size as u64;
                    }
                    1 => {
                        let count = size.min((encoded - handed) as usize);
                        window.hand_over(count);
                        handed += count as u64;
                    }
                    2 => {
                        window.push_settled(1, &bad);
                        model.push_back(None);
                    }
                    _ => {
                        while let Some((count, _)) = window.pop_settled() {
                            for _ in 0..count { prop_assert_eq!(model.pop_front(), Some(None)) }
                        }
                        let expected = matches!(model.front(), Some(Some((start, _))) if *start < handed);
                        prop_assert_eq!(window.answer().is_some(), expected);
                        if expected { model.pop_front(); }
                    }
                }
            }
            while let Some(left) = window.give_up() {
                match left {
                    Unanswered::Encoded { handed: was_handed, .. } => {
                        let (start, _) = model.pop_front().unwrap().unwrap();
                        prop_assert_eq!(was_handed, start < handed);
                    }
                    Unanswered::Settled { count, .. } => {
                        for _ in 0..count { prop_assert_eq!(model.pop_front(), Some(None)) }
                    }
                }
            }
            prop_assert!(model.is_empty() && window.is_empty() && !window.is_owed());
        }
    }
}
