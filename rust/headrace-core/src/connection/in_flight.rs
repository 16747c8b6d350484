//! The in-flight window of a connection: commands that were encoded and have no reply yet, first in, first out.
//!
//! Replies come in the order of the commands, so a reply belongs to the first command that is still here. Offsets count the bytes
//! of one connection. They show which commands the transport was given at least one byte of, and therefore which ones are in
//! doubt when the connection breaks. No I/O.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::numbers::{Numbers, Span};
use crate::command::Expect;

/// One command that was encoded and has no reply yet.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// The offset just after the command's last byte.
    end: u64,
    /// How many messages the command carries.
    rows: u32,
    expect: Expect,
    owner: Owner,
}

impl Awaited {
    /// Whether the command is like nearly every other: one message, whose outcome goes to the next report.
    fn is_plain(self) -> bool {
        self.rows == 1 && self.expect == Expect::EntryId && self.owner == Owner::Report
    }
}

/// A command whose messages do not follow those of the command before it, or whose route is a different one.
#[derive(Debug)]
struct Gap {
    /// Counted from the first command ever [added](InFlight::added).
    command: u64,
    /// The number of the command's first message.
    number: u64,
    /// The command's route in a cluster, and that of the commands after it: the number of the slot of its key, or that of a
    /// stream that is on another node than its slot.
    route: u16,
}

/// Who receives the outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The next report.
    Report,
    /// The call of `dispatch` that waits for it, unless it was interrupted.
    Call,
}

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_entries: usize,
    /// In bytes of commands. The message that exceeds the limit is let through: one can always be in flight.
    pub(crate) max_bytes: u64,
}

/// How much may be encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// In bytes of commands. The entry that exceeds the limit is let through.
    pub(crate) bytes: usize,
}

/// A command that leaves the window: its reply has arrived, or its connection is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The command's position, in offsets of the connection.
    pub(crate) bytes: Range<u64>,
    pub(crate) numbers: Numbers,
    /// How many messages the command carries.
    pub(crate) rows: u64,
    /// The route of the command's key in a cluster.
    pub(crate) route: u16,
    pub(crate) expect: Expect,
    pub(crate) owner: Owner,
    /// How much of the command the transport has.
    pub(crate) sent: Sent,
}

impl Command {
    /// The number of the command's first message.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.first()
    }
}

/// How much of a command was handed to the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Nothing,
    Part,
    All,
}

/// What decides when a command in the window may be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    /// The offset just after the command's last byte.
    pub(crate) end: u64,
    /// The route of the command's key; `None`: the command carries no message.
    pub(crate) route: Option<u16>,
    pub(crate) is_asking: bool,
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    commands: VecDeque<Awaited>,
    /// How many commands are not [plain](Awaited::is_plain).
    special: usize,
    /// How many messages the commands that are not plain carry.
    special_rows: u64,
    gaps: VecDeque<Gap>,
    /// The message numbers of commands whose messages do not follow each other, each with its command, as in [`Gap`].
    scattered: VecDeque<(u64, Arc<[Span]>)>,
    /// The number of the first message of the first command.
    number: u64,
    /// The number after the last message of the last command.
    next_number: u64,
    /// How many commands have [left](Self::answered).
    first: u64,
    /// Offset of the first byte of the first command.
    front: u64,
    /// Offset just after the last byte that was encoded.
    encoded: u64,
    /// Offset just after the last byte that the transport took.
    handed_over: u64,
    /// The route of the first command, and of those that are added from now on.
    front_route: u16,
    route: u16,
}

impl InFlight {
    /// Whether no command waits for its reply.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Offset of the first byte that is not answered.
    #[inline]
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// How many commands have left the window.
    pub(crate) fn answered(&self) -> u64 {
        self.first
    }

    /// How many commands were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.first + self.commands.len() as u64
    }

    /// Whether one more entry may be encoded if `others` take room in addition to the commands in flight.
    #[inline]
    pub(crate) fn has_room(&self, limits: Limits, others: usize) -> bool {
        self.commands.len() + others < limits.max_entries && self.encoded - self.front < limits.max_bytes
    }

    /// How much may be encoded.
    #[inline]
    pub(crate) fn room(&self, limits: Limits) -> Room {
        let bytes = usize::try_from(limits.max_bytes.saturating_sub(self.encoded - self.front)).unwrap_or(usize::MAX);
        Room { entries: limits.max_entries.saturating_sub(self.commands.len()), bytes }
    }

    /// Whether a quarter of the window is free. A caller that waits for room waits for that much: waking up for each reply
    /// would be a system call for each message.
    pub(crate) fn has_ample_room(&self, limits: Limits) -> bool {
        self.commands.is_empty() || self.until_ample_room(limits) == 0
    }

    /// How many bytes of commands the transport does not have.
    pub(crate) fn unsent(&self) -> usize {
        (self.encoded - self.handed_over) as usize
    }

    /// How many commands wait for their replies.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// How many messages the commands in flight carry.
    pub(crate) fn messages(&self) -> u64 {
        (self.commands.len() - self.special) as u64 + self.special_rows
    }

    /// How many commands must be answered before there is [ample room](Self::has_ample_room).
    pub(crate) fn until_ample_room(&self, limits: Limits) -> usize {
        let entries = self.commands.len().saturating_sub(limits.max_entries - limits.max_entries / 4);
        let bytes = limits.max_bytes - limits.max_bytes / 4;
        let too_many = |offset| self.encoded - offset > bytes;
        entries.max(if too_many(self.front) {
            1 + self.commands.partition_point(|command| too_many(command.end))
        } else {
            0
        })
    }

    /// Whether the transport has a byte of a command that is not answered.
    pub(crate) fn awaits_reply(&self) -> bool {
        self.handed_over > self.front
    }

    /// Whether the transport was given whole commands only, and all of those are answered: later commands may then go out on
    /// another connection. After a reply that came too early, the rest of a command is left.
    pub(crate) fn is_between_commands(&self) -> bool {
        self.handed_over == self.front
    }

    /// How many bytes are left of a command that the transport has in part.
    pub(crate) fn rest_of_command(&self) -> usize {
        let behind = self.commands.partition_point(|command| command.end <= self.handed_over);
        let starts = behind.checked_sub(1).and_then(|last| self.commands.get(last)).map_or(self.front, |last| last.end);
        match self.commands.get(behind) {
            Some(command) if starts < self.handed_over => (command.end - self.handed_over) as usize,
            Some(_) | None => 0,
        }
    }

    /// The commands from number `from` on, counted as in [`added`](Self::added).
    pub(crate) fn commands_from(&self, from: u64) -> impl Iterator<Item = Queued> {
        let from = from.max(self.first);
        let passed = self.gaps.partition_point(|gap| gap.command <= from);
        let mut route =
            passed.checked_sub(1).and_then(|last| self.gaps.get(last)).map_or(self.front_route, |gap| gap.route);
        let mut gaps = self.gaps.range(passed..).peekable();
        let skipped = ((from - self.first) as usize).min(self.commands.len());
        self.commands.range(skipped..).zip(from..).map(move |(command, number)| {
            if let Some(gap) = gaps.next_if(|gap| gap.command == number) {
                route = gap.route;
            }
            Queued {
                end: command.end,
                route: (command.rows > 0).then_some(route),
                is_asking: command.expect == Expect::Asking,
            }
        })
    }

    /// How many bytes the transport may be given if it may have those before the offset `end`.
    pub(crate) fn until(&self, end: u64) -> usize {
        end.saturating_sub(self.handed_over) as usize
    }

    /// How many bytes of commands have no reply.
    pub(crate) fn bytes(&self) -> u64 {
        self.encoded - self.front
    }

    /// Sets the route of the keys of commands that are added from now on.
    #[inline]
    pub(crate) fn set_route(&mut self, route: u16) {
        if route != self.route {
            self.route = route;
            self.push_gap(self.next_number);
        }
    }

    /// Gives all commands the same route: there is no cluster.
    pub(crate) fn forget_routes(&mut self) {
        (self.front_route, self.route) = (0, 0);
        self.gaps.iter_mut().for_each(|gap| gap.route = 0);
    }

    /// The reply that comes next. `None`: no reply can come, so any received bytes are a surplus.
    #[inline]
    pub(crate) fn expects(&self) -> Option<Expect> {
        if self.awaits_reply() { self.commands.front().map(|command| command.expect) } else { None }
    }

    /// Adds a command of `length` encoded bytes that carries `rows` messages, the first of this `number`.
    #[inline]
    pub(crate) fn push(&mut self, length: usize, number: u64, rows: u32, expect: Expect, owner: Owner) {
        if number != self.next_number {
            self.push_gap(number);
        }
        self.next_number = number + u64::from(rows);
        self.encoded += length as u64;
        let command = Awaited { end: self.encoded, rows, expect, owner };
        if !command.is_plain() {
            self.special += 1;
            self.special_rows += u64::from(rows);
        }
        self.commands.push_back(command);
    }

    /// Adds a command of `length` encoded bytes that carries `rows` messages, whose numbers may be scattered.
    pub(crate) fn push_scattered(&mut self, length: usize, numbers: &Numbers, rows: u32, expect: Expect, owner: Owner) {
        if let Numbers::Scattered(spans) = numbers {
            self.scattered.push_back((self.added(), Arc::clone(spans)));
        }
        self.push(length, numbers.first(), rows, expect, owner);
    }

    /// Sets the `number` of the message of the next command, for [`push_plain`](Self::push_plain).
    #[inline]
    pub(crate) fn align(&mut self, number: u64) {
        if number != self.next_number {
            self.push_gap(number);
            self.next_number = number;
        }
    }

    /// Adds an entry of `length` encoded bytes for one message, whose outcome goes to the next report: the message after the last
    /// one, or the [aligned](Self::align) one.
    #[inline]
    pub(crate) fn push_plain(&mut self, length: usize) {
        self.encoded += length as u64;
        self.next_number += 1;
        let (expect, owner) = (Expect::EntryId, Owner::Report);
        self.commands.push_back(Awaited { end: self.encoded, rows: 1, expect, owner });
    }

    /// Adds a command that carries no message.
    pub(crate) fn push_control(&mut self, length: usize, expect: Expect) {
        self.push(length, self.next_number, 0, expect, Owner::Report);
    }

    #[cold]
    fn push_gap(&mut self, number: u64) {
        let (command, route) = (self.added(), self.route);
        match self.gaps.back_mut() {
            _ if self.commands.is_empty() => (self.number, self.front_route) = (number, route),
            // Nothing was added since the last gap.
            Some(gap) if gap.command == command => (gap.number, gap.route) = (number, route),
            Some(_) | None => self.gaps.push_back(Gap { command, number, route }),
        }
    }

    /// Counts `count` more bytes as handed over to the transport.
    #[inline]
    pub(crate) fn hand_over(&mut self, count: usize) {
        self.handed_over += count as u64;
        debug_assert!(self.handed_over <= self.encoded, "handed over more than was encoded");
    }

    /// Takes out at most `at_most` plain commands at the front whose messages follow each other, because their replies have
    /// arrived. Returns the number of the first message, how many there are, and their route; 0 messages mean that
    /// [`answer`](Self::answer) must handle the first command.
    #[inline]
    pub(crate) fn answer_plain(&mut self, at_most: u64) -> (u64, u64, u16) {
        let nothing = (self.number, 0, 0);
        if self.special > 0 {
            return nothing;
        }
        let until_gap = self.gaps.front().map_or(u64::MAX, |gap| gap.command - self.first);
        let count = at_most.min(until_gap).min(self.commands.len() as u64);
        let Some(last) = (count as usize).checked_sub(1).and_then(|last| self.commands.get(last)) else {
            return nothing;
        };
        if last.end > self.handed_over {
            return nothing;
        }
        let (number, route) = (self.number, self.front_route);
        self.front = last.end;
        self.first += count;
        self.number += count;
        if count == 1 {
            // If commands for several connections alternate, most come alone.
            self.commands.pop_front();
        } else {
            self.commands.drain(..count as usize);
        }
        self.pass_gap();
        (number, count, route)
    }

    /// Takes the first command out, because its reply has arrived. `None`: the transport has no byte of it, so the reply is a
    /// surplus.
    pub(crate) fn answer(&mut self) -> Option<Command> {
        if self.awaits_reply() { self.pop() } else { None }
    }

    /// Takes the first command out, because its connection is gone. Offsets start at 0 again once all are out.
    pub(crate) fn abandon(&mut self) -> Option<Command> {
        let command = self.pop();
        if command.is_none() {
            (self.front, self.encoded, self.handed_over) = (0, 0, 0);
        }
        command
    }

    fn pop(&mut self) -> Option<Command> {
        let (start, number, route) = (self.front, self.number, self.front_route);
        let sent = self.handed_over;
        let command = self.commands.pop_front()?;
        if !command.is_plain() {
            self.special -= 1;
            self.special_rows -= u64::from(command.rows);
        }
        self.front = command.end;
        let is_scattered = self.scattered.front().is_some_and(|(at, _)| *at == self.first);
        let scattered = if is_scattered { self.scattered.pop_front() } else { None };
        let numbers = scattered.map_or(Numbers::From(number), |(_, spans)| Numbers::Scattered(spans));
        self.first += 1;
        self.number += u64::from(command.rows);
        self.pass_gap();
        let sent = match () {
            () if sent <= start => Sent::Nothing,
            () if sent < command.end => Sent::Part,
            () => Sent::All,
        };
        let Awaited { end, expect, owner, .. } = command;
        Some(Command { bytes: start..end, numbers, rows: command.rows.into(), route, expect, owner, sent })
    }

    #[inline]
    fn pass_gap(&mut self) {
        if let Some(gap) = self.gaps.front()
            && gap.command == self.first
        {
            (self.number, self.front_route) = (gap.number, gap.route);
            self.gaps.pop_front();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(window: &mut InFlight, length: usize, rows: u32) {
        window.push(length, window.next_number, rows, Expect::EntryId, Owner::Report);
    }

    #[test]
    fn the_messages_of_commands_are_counted() {
        let mut window = InFlight::default();
        push(&mut window, 10, 1);
        push(&mut window, 10, 5);
        window.push_control(3, Expect::Wait);
        window.push_plain(10);
        assert_eq!((window.len(), window.messages()), (4, 7));
        window.hand_over(33);
        for left in [6, 1, 1, 0] {
            assert!(window.answer().is_some());
            assert_eq!(window.messages(), left);
        }
    }

    #[test]
    fn one_message_always_fits_and_then_the_limits_apply() {
        let limits = Limits { max_entries: 2, max_bytes: 100 };
        let mut window = InFlight::default();
        assert!(window.has_room(limits, 0));
        push(&mut window, 1_000, 1);
        assert!(!window.has_room(limits, 0), "bytes");
        window.hand_over(1_000);
        assert_eq!(window.answer().unwrap().sent, Sent::All);
        push(&mut window, 1, 1);
        assert!(window.has_room(limits, 0));
        push(&mut window, 1, 1);
        assert!(!window.has_room(limits, 0), "entries");
    }

    #[test]
    fn the_rest_of_a_partly_sent_command_is_known() {
        let mut window = InFlight::default();
        assert_eq!(window.rest_of_command(), 0);
        for length in [10, 20] {
            push(&mut window, length, 1);
        }
        assert_eq!(window.rest_of_command(), 0);
        window.hand_over(9);
        assert_eq!(window.rest_of_command(), 1);
        window.hand_over(1);
        assert_eq!(window.rest_of_command(), 0);
        window.hand_over(1);
        assert_eq!(window.rest_of_command(), 19);
        assert!(window.answer().is_some());
        assert_eq!(window.rest_of_command(), 19);
    }

    #[test]
    fn commands_are_counted_from_the_first_one_ever_added() {
        let mut window = InFlight::default();
        for route in [3, 3, 5] {
            window.set_route(route);
            push(&mut window, 10, 1);
        }
        window.push_control(7, Expect::Asking);
        window.hand_over(10);
        assert!(window.answer().is_some());
        let seen: Vec<_> = window.commands_from(2).map(|queued| (queued.end, queued.route, queued.is_asking)).collect();
        assert_eq!(seen, [(30, Some(5), false), (37, None, true)]);
        assert_eq!((window.until(30), window.bytes()), (20, 27));
    }

    #[test]
    fn a_reply_to_a_command_that_was_not_sent_is_surplus() {
        let mut window = InFlight::default();
        assert_eq!((window.answer(), window.expects()), (None, None));
        push(&mut window, 10, 1);
        assert_eq!((window.answer(), window.expects()), (None, None));
        window.hand_over(1);
        assert_eq!(window.expects(), Some(Expect::EntryId));
        assert_eq!(window.answer_plain(1).1, 0, "a command that is not out yet needs a closer look");
        assert_eq!(window.answer().unwrap().sent, Sent::Part, "an error may come before the last byte is out");
        assert!(!window.is_between_commands(), "the rest of the command is still to come");
    }

    /// A command in flight, in the plain list of the test.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Model {
        start: u64,
        end: u64,
        number: u64,
        rows: u64,
        expect: Expect,
        owner: Owner,
        is_scattered: bool,
    }

    impl Model {
        fn numbers(self) -> Numbers {
            if self.is_scattered { Numbers::of(&scattered(self.number)) } else { Numbers::From(self.number) }
        }
    }

    fn scattered(number: u64) -> [Span; 2] {
        [(number, 1), (number + 5, 2)].map(|(first, count)| Span { first, count })
    }

    proptest! {
        /// Compared with a plain list: which commands leave in which order, with which messages, and how much of each was sent.
        #[test]
        fn commands_leave_the_window_as_they_leave_a_plain_queue(steps in prop::collection::vec((0..6_u8, 1..50_usize), 1..200)) {
            let mut window = InFlight::default();
            let mut model: VecDeque<Model> = VecDeque::new();
            let (mut encoded, mut handed, mut number) = (0_u64, 0_u64, 0_u64);
            for (step, size) in steps {
                match step {
                    0 if size == 10 => {
                        let (rows, expect, owner) = (3, Expect::ScriptRun { has_source: false }, Owner::Report);
                        window.push_scattered(size, &Numbers::of(&scattered(number)), rows, expect, owner);
                        let (start, rows) = (encoded, u64::from(rows));
                        encoded += size as u64;
                        model.push_back(Model { start, end: encoded, number, rows, expect, owner, is_scattered: true });
                        number += 7;
                    }
                    0 | 1 => {
                        let rows = if size == 7 { 3 } else { 1 };
                        let owner = if size == 8 { Owner::Call } else { Owner::Report };
                        let expect = if size == 9 { Expect::ScriptRun { has_source: true } } else { Expect::EntryId };
                        if (rows, owner, expect) == (1, Owner::Report, Expect::EntryId) && size % 2 == 0 {
                            window.align(number);
                            window.push_plain(size);
                        } else {
                            window.push(size, number, rows, expect, owner);
                        }
                        let (start, rows) = (encoded, u64::from(rows));
                        encoded += size as u64;
                        model.push_back(Model { start, end: encoded, number, rows, expect, owner, is_scattered: false });
                        number += rows;
                    }
                    2 => {
                        let count = size.min((encoded - handed) as usize);
                        window.hand_over(count);
                        handed += count as u64;
                    }
                    // Messages that go elsewhere, or a command without any.
                    3 if size < 15 => window.align(number),
                    3 if size < 25 => number += size as u64,
                    3 => {
                        window.push_control(size, Expect::Wait);
                        let at = window.next_number;
                        let start = encoded;
                        encoded += size as u64;
                        let (expect, owner) = (Expect::Wait, Owner::Report);
                        let is_scattered = false;
                        model.push_back(Model { start, end: encoded, number: at, rows: 0, expect, owner, is_scattered });
                    }
                    5 => {
                        let (first, count, _) = window.answer_plain(size as u64);
                        prop_assert!(count <= size as u64);
                        for nth in 0..count {
                            let one = model.pop_front().unwrap();
                            prop_assert_eq!((one.number, one.rows), (first + nth, 1));
                            prop_assert_eq!((one.expect, one.owner), (Expect::EntryId, Owner::Report));
                            prop_assert!(one.end <= handed);
                        }
                    }
                    _ => match model.front().copied() {
                        Some(first) if first.start < handed => {
                            prop_assert_eq!(window.expects(), Some(first.expect));
                            let command = window.answer().unwrap();
                            prop_assert_eq!((command.rows, command.owner), (first.rows, first.owner));
                            prop_assert!(command.rows == 0 || command.numbers == first.numbers());
                            prop_assert_eq!(command.bytes, first.start..first.end);
                            model.pop_front();
                        }
                        _ => prop_assert_eq!(window.answer(), None),
                    },
                }
            }
            while let Some(command) = window.abandon() {
                let one = model.pop_front().unwrap();
                prop_assert!(command.rows == 0 || command.numbers == one.numbers());
                let sent = if handed <= one.start {
                    Sent::Nothing
                } else if handed < one.end {
                    Sent::Part
                } else {
                    Sent::All
                };
                prop_assert_eq!((command.bytes, command.sent), (one.start..one.end, sent));
            }
            prop_assert!(model.is_empty() && window.is_empty() && window.gaps.is_empty() && window.scattered.is_empty());
        }
    }
}
