//! The in-flight window: messages that were encoded and have no outcome yet, first in, first out.
//!
//! Replies come in the order of the commands, so a reply belongs to the first message that is still here. Offsets count
//! the bytes of one connection; they tell which messages the transport was given a byte of, and so, when the connection
//! breaks, whose fate is unknown. No I/O.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Failure;

/// One entry that was encoded and has no reply yet.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The offset just behind its last byte.
    end: u64,
    /// How many messages it carries.
    rows: u32,
    owner: Owner,
}

impl Slot {
    /// What nearly every slot is: a message of its own, told to the next report.
    fn is_plain(self) -> bool {
        self.rows == 1 && self.owner == Owner::Report
    }
}

/// Messages that failed before they were encoded and wait for their turn to be told.
#[derive(Debug)]
struct Settled {
    /// The number of the entry that comes after them.
    before: u64,
    count: u64,
    failure: Arc<Failure>,
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
    /// The outcomes of the messages before it: it is no entry, but what asks whether others have those.
    Cover,
}

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_entries: usize,
    /// In bytes of commands. The message that passes the limit is let through: one is always in flight.
    pub(crate) max_bytes: u64,
}

/// How much may be encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// The entry that passes it is let through.
    pub(crate) bytes: usize,
}

/// What left the window without a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// An entry of `rows` messages; whether a byte of it was handed to the transport.
    Encoded { rows: u64, owner: Owner, bytes: Range<u64>, handed: bool },
    /// Messages that had failed before.
    Settled { count: u64, failure: Arc<Failure> },
}

/// What a reply is the answer to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Where its command is, in offsets of the connection.
    pub(crate) bytes: Range<u64>,
    /// How many messages the entry carries.
    pub(crate) rows: u64,
    pub(crate) owner: Owner,
    /// Whether the transport has all bytes of it.
    pub(crate) whole: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Window {
    slots: VecDeque<Slot>,
    /// Slots that are not [plain](Slot::is_plain).
    special: usize,
    settled: VecDeque<Settled>,
    /// The number of the first slot: how many entries have [left](Self::left).
    first: u64,
    /// Offset of the first byte of the first slot.
    front: u64,
    /// Offset just behind the last byte that was encoded.
    encoded: u64,
    /// Offset just behind the last byte that the transport took.
    handed: u64,
}

impl Window {
    /// Whether no message waits for its outcome.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.settled.is_empty()
    }

    /// Offset of the first byte that is not answered.
    #[inline]
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// How many entries have left the window.
    pub(crate) fn left(&self) -> u64 {
        self.first
    }

    /// How many entries were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Whether one more entry may be encoded.
    #[inline]
    pub(crate) fn has_room(&self, limits: Limits) -> bool {
        let room = self.room(limits);
        room.entries > 0 && room.bytes > 0
    }

    /// How much may be encoded.
    #[inline]
    pub(crate) fn room(&self, limits: Limits) -> Room {
        let bytes = usize::try_from(limits.max_bytes.saturating_sub(self.encoded - self.front)).unwrap_or(usize::MAX);
        if self.slots.is_empty() {
            return Room { entries: limits.max_entries, bytes };
        }
        // Failures that wait for their turn between entries in flight are bounded as well.
        let taken = if self.settled.len() < limits.max_entries { self.slots.len() } else { limits.max_entries };
        Room { entries: limits.max_entries.saturating_sub(taken), bytes }
    }

    /// Whether a quarter of the window is free. Who waits for room waits for that much: a message for each reply would be a
    /// system call for each message.
    pub(crate) fn has_ample_room(&self, limits: Limits) -> bool {
        let settled = limits.max_entries - limits.max_entries / 4;
        self.slots.is_empty() || (self.until_ample_room(limits) == 0 && self.settled.len() <= settled)
    }

    /// How many bytes of entries the transport has not.
    pub(crate) fn unsent(&self) -> usize {
        (self.encoded - self.handed) as usize
    }

    /// How many entries wait for their replies.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many of them are to be answered before there is [ample room](Self::has_ample_room).
    pub(crate) fn until_ample_room(&self, limits: Limits) -> usize {
        let entries = self.slots.len().saturating_sub(limits.max_entries - limits.max_entries / 4);
        let bytes = limits.max_bytes - limits.max_bytes / 4;
        let too_many = |offset| self.encoded - offset > bytes;
        entries.max(if too_many(self.front) { 1 + self.slots.partition_point(|slot| too_many(slot.end)) } else { 0 })
    }

    /// Whether the transport has a byte of an entry that is not answered.
    pub(crate) fn is_owed(&self) -> bool {
        self.handed > self.front
    }

    /// Whether the transport was given whole entries only, and all of those are answered: what follows may then go out
    /// on another connection. Behind an answer that came too early the rest of an entry is left.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.handed == self.front
    }

    /// Adds an entry of `length` encoded bytes that carries `rows` messages.
    #[inline]
    pub(crate) fn push(&mut self, length: usize, rows: u32, owner: Owner) {
        self.encoded += length as u64;
        let slot = Slot { end: self.encoded, rows, owner };
        self.special += usize::from(!slot.is_plain());
        self.slots.push_back(slot);
    }

    /// Adds `count` messages that failed without being encoded. The caller tells them at once if the window is empty.
    pub(crate) fn push_settled(&mut self, count: u64, failure: &Arc<Failure>) {
        let before = self.added();
        match self.settled.back_mut() {
            Some(last) if last.before == before && last.failure == *failure => last.count += count,
            _ => self.settled.push_back(Settled { before, count, failure: Arc::clone(failure) }),
        }
    }

    /// Says that the transport took `count` more bytes.
    #[inline]
    pub(crate) fn hand_over(&mut self, count: usize) {
        self.handed += count as u64;
        debug_assert!(self.handed <= self.encoded, "handed over more than was encoded");
    }

    /// Takes out entries at the front, at most `at_most`, whose replies are here: as long as each is a message of its own,
    /// told to the next report, and the transport has all of it. Returns how many; 0 says no more than that
    /// [`answer`](Self::answer) has to look at the first one.
    #[inline]
    pub(crate) fn answer_plain(&mut self, at_most: u64) -> u64 {
        if self.special > 0 {
            return 0;
        }
        let until_settled = self.settled.front().map_or(u64::MAX, |settled| settled.before - self.first);
        let count = at_most.min(until_settled).min(self.slots.len() as u64);
        let Some(last) = (count as usize).checked_sub(1).and_then(|last| self.slots.get(last)) else { return 0 };
        if last.end > self.handed {
            return 0;
        }
        self.front = last.end;
        self.first += count;
        self.slots.drain(..count as usize);
        count
    }

    /// Takes the first entry out, because its reply is here. `None`: nothing was owed, so the reply is a surplus.
    pub(crate) fn answer(&mut self) -> Option<Answered> {
        if !self.is_owed() {
            return None;
        }
        let start = self.front;
        let Slot { end, rows, owner } = self.pop()?;
        Some(Answered { bytes: start..end, rows: rows.into(), owner, whole: self.handed >= end })
    }

    fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        self.special -= usize::from(!slot.is_plain());
        self.front = slot.end;
        self.first += 1;
        Some(slot)
    }

    /// Takes out messages at the front that had failed before they were encoded: their turn has come.
    #[inline]
    pub(crate) fn pop_settled(&mut self) -> Option<(u64, Arc<Failure>)> {
        if self.settled.front()?.before > self.first {
            return None;
        }
        self.settled.pop_front().map(|settled| (settled.count, settled.failure))
    }

    /// Takes out what comes first, because its connection is gone. Offsets start anew when all is out.
    pub(crate) fn give_up(&mut self) -> Option<Unanswered> {
        if let Some((count, failure)) = self.pop_settled() {
            return Some(Unanswered::Settled { count, failure });
        }
        let (start, handed) = (self.front, self.is_owed());
        if let Some(Slot { end, rows, owner }) = self.pop() {
            return Some(Unanswered::Encoded { rows: rows.into(), owner, bytes: start..end, handed });
        }
        (self.front, self.encoded, self.handed) = (0, 0, 0);
        None
    }

    /// The interrupted call no longer waits for its message.
    pub(crate) fn abandon_call(&mut self) {
        for slot in &mut self.slots {
            if slot.owner == Owner::Call {
                slot.owner = Owner::Nobody;
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
        window.push(1_000, 1, Owner::Report);
        assert!(!window.has_room(limits), "bytes");
        window.hand_over(1_000);
        assert!(window.answer().unwrap().whole);
        window.push(1, 1, Owner::Report);
        assert!(window.has_room(limits));
        window.push(1, 1, Owner::Report);
        assert!(!window.has_room(limits), "entries");
    }

    #[test]
    fn failures_that_wait_for_their_turn_fill_the_window_too() {
        let limits = Limits { max_entries: 10, max_bytes: 100 };
        let mut window = Window::default();
        window.push(1, 1, Owner::Report);
        for _ in 0..100 {
            window.push_settled(1, &failure("EMPTY"));
        }
        assert!(window.has_room(limits), "equal ones are one run");
        for _ in 0..5 {
            window.push_settled(1, &failure("NULL_PAYLOAD"));
            window.push_settled(1, &failure("EMPTY"));
        }
        assert!(!window.has_room(limits));
    }

    #[test]
    fn a_reply_to_what_was_not_handed_over_is_a_surplus() {
        let mut window = Window::default();
        assert_eq!(window.answer(), None);
        window.push(10, 1, Owner::Report);
        assert_eq!(window.answer(), None);
        window.hand_over(1);
        assert_eq!(window.answer_plain(1), 0, "one that is not out yet is a matter for a closer look");
        assert!(!window.answer().unwrap().whole, "an error may come before the last byte is out");
        assert!(!window.is_between_messages(), "the rest of the message is still to come");
    }

    proptest! {
        /// Against a plain model: which messages leave in which order, and whose fate is unknown.
        #[test]
        fn order_and_fate_are_those_of_a_list(steps in prop::collection::vec((0..6_u8, 1..50_usize), 1..200)) {
            let (mut window, bad) = (Window::default(), failure("EMPTY"));
            let mut model: VecDeque<Option<Model>> = VecDeque::new(); // `None`: settled
            let (mut encoded, mut handed) = (0_u64, 0_u64);
            for (step, size) in steps {
                match step {
                    0 | 1 => {
                        let rows = if size == 7 { 3 } else { 1 };
                        let owner = if size == 8 { Owner::Call } else { Owner::Report };
                        window.push(size, rows, owner);
                        model.push_back(Some(Model { start: encoded, rows: rows.into(), owner }));
                        encoded += size as u64;
                    }
                    2 => {
                        let count = size.min((encoded - handed) as usize);
                        window.hand_over(count);
                        handed += count as u64;
                    }
                    3 => {
                        window.push_settled(1, &bad);
                        model.push_back(None);
                    }
                    _ => {
                        while let Some((count, _)) = window.pop_settled() {
                            for _ in 0..count { prop_assert_eq!(model.pop_front(), Some(None)) }
                        }
                        let plain = if step == 5 { window.answer_plain(size as u64) } else { 0 };
                        prop_assert!(plain <= size as u64);
                        for _ in 0..plain {
                            let Model { rows, owner, .. } = model.pop_front().unwrap().unwrap();
                            prop_assert_eq!((rows, owner), (1, Owner::Report));
                        }
                        prop_assert!(plain == 0 || window.handed >= window.front);
                        if step == 5 { continue }
                        match model.front() {
                            Some(Some(first)) if first.start < handed => {
                                let answered = window.answer().unwrap();
                                prop_assert_eq!((answered.rows, answered.owner), (first.rows, first.owner));
                                model.pop_front();
                            }
                            _ => prop_assert_eq!(window.answer(), None),
                        }
                    }
                }
            }
            while let Some(left) = window.give_up() {
                match left {
                    Unanswered::Encoded { rows, owner, handed: was_handed, bytes } => {
                        let first = model.pop_front().unwrap().unwrap();
                        prop_assert_eq!(bytes.start, first.start);
                        prop_assert_eq!((rows, owner, was_handed), (first.rows, first.owner, first.start < handed));
                    }
                    Unanswered::Settled { count, .. } => {
                        for _ in 0..count { prop_assert_eq!(model.pop_front(), Some(None)) }
                    }
                }
            }
            prop_assert!(model.is_empty() && window.is_empty() && !window.is_owed() && window.special == 0);
        }
    }

    #[derive(Debug, PartialEq, Eq)]
    struct Model {
        start: u64,
        rows: u64,
        owner: Owner,
    }
}
