//! The scanner of replies, compared with [`slow`](super::slow): the same replies and the same end, however the bytes are
//! split.

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::slow::{self, Reply, Stop};
use crate::command::{self, Expect};
use crate::connection::ReplyBuffer;

/// More bytes than the scanner may wait for before it reports that bytes are not a reply.
pub const FILLER: usize = 66 * 1024;
/// Bytes that occur in replies, and bytes that replies of other protocols start with.
pub const ALPHABET: &[u8] = b"$$**::--+_#,(!=%~>|.\r\r\n\n\r\n0123456789019 xE\0\xff";
const NUMBERS: [&[u8]; 22] = [
    b"-1",
    b"-2",
    b"-0",
    b"0",
    b"00",
    b"1",
    b"2",
    b"3",
    b"10",
    b"41",
    b"42",
    b"99",
    b"1002",
    b"1003",
    b"1024",
    b"1025",
    b"2147483648",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"00000000000000000003",
    b"000000000000000000003",
];

const RUN: Expect = Expect::ScriptRun { has_source: false };

/// What the commands in flight expect, in order; further commands expect the same as the last one.
#[derive(Debug, Clone)]
pub struct Expected(Vec<Expect>);

impl Expected {
    fn at(&self, place: usize) -> Expect {
        self.0.get(place).or(self.0.last()).copied().unwrap_or(Expect::EntryId)
    }
}

/// A buffer that is reused, and what it saw.
#[derive(Debug)]
pub struct Scanners {
    buffer: ReplyBuffer,
    pub replies: u64,
    pub wrong: u64,
    pub cut_short: u64,
}

impl Default for Scanners {
    fn default() -> Self {
        Self { buffer: ReplyBuffer::new(), replies: 0, wrong: 0, cut_short: 0 }
    }
}

impl Scanners {
    /// Checks bytes that a server sends to commands with these expectations.
    pub fn check(&mut self, expects: &Expected, bytes: &[u8], chance: &mut Chance) {
        let (expected, end) = slow::replies(bytes, |place| expects.at(place));
        self.replies += expected.len() as u64;
        match end {
            Stop::Wrong => self.wrong += 1,
            Stop::More if expected.last().map_or(0, |last| last.1) < bytes.len() => self.cut_short += 1,
            Stop::More => {}
        }
        // A partial reply is scanned from its start with each piece: long replies must not have too many pieces.
        let least = bytes.len() / 100;
        let piece = match chance.below(4) {
            0 => 1,
            1 => bytes.len().max(1),
            _ => 1 + chance.size(bytes.len()),
        };
        let fills = bytes.len() > 60_000 || chance.one_in(8);
        self.feed(expects, bytes, &expected, end, fills, || 1 + least + chance.below(piece));
        if bytes.len() < 40 && chance.one_in(16) {
            for cut in 1..bytes.len() {
                let mut sizes = [cut, bytes.len()].into_iter();
                self.feed(expects, bytes, &expected, end, false, || sizes.next().unwrap());
            }
        }
    }

    fn feed(
        &mut self,
        expects: &Expected,
        bytes: &[u8],
        expected: &[(Reply, usize)],
        end: Stop,
        fills: bool,
        mut piece: impl FnMut() -> usize,
    ) {
        let buffer = &mut self.buffer;
        buffer.reset();
        let (mut fed, mut seen) = (0, 0);
        while fed < bytes.len() {
            let until = bytes.len().min(fed + piece());
            fed += give(buffer, &bytes[fed..until]);
            while let Ok(Some(reply)) = buffer.next(expects.at(seen)) {
                if let command::Reply::Ids { count, .. } = reply
                    && let Some(other) = (0..count as usize).find(|more| expects.at(seen + more) != Expect::EntryId)
                {
                    // Consecutive IDs are returned together. If the command expects no ID, its caller must refuse it.
                    assert!(expected.len() == seen + other && end == Stop::Wrong, "{}", shown(bytes));
                    return;
                }
                seen = same(reply, &expected[seen..]).map_or_else(|| panic!("{}", shown(bytes)), |more| seen + more);
            }
            let taken = seen.checked_sub(1).map_or(0, |last| expected[last].1);
            assert_eq!(buffer.unread(), fed - taken, "taken, of {}", shown(bytes));
            if buffer.next(expects.at(seen)).is_err() {
                assert!(seen == expected.len() && end == Stop::Wrong, "refused too early: {}", shown(bytes));
                assert!(buffer.next(expects.at(seen)).is_err(), "it stays refused");
                return;
            }
        }
        assert_eq!(seen, expected.len(), "{}", shown(bytes));
        if fills {
            // The scanner may wait for the end of a line or of a bulk string that cannot be a reply, but not for long.
            let mut filled = 0;
            while matches!(buffer.next(expects.at(seen)), Ok(None)) && filled < FILLER {
                filled += give(buffer, &[b'x'; 8 * 1024]);
            }
            assert!(end == Stop::More || buffer.next(expects.at(seen)).is_err(), "waits for ever: {}", shown(bytes));
        }
    }
}

/// Adds as many bytes as there is space for.
fn give(buffer: &mut ReplyBuffer, bytes: &[u8]) -> usize {
    let space = buffer.space();
    assert!(!space.is_empty(), "no room for more");
    let count = bytes.len().min(space.len());
    space[..count].copy_from_slice(&bytes[..count]);
    buffer.filled(count);
    count
}

/// The number of expected replies that this reply represents; `None` if it is a different one.
fn same(reply: command::Reply<'_>, expected: &[(Reply, usize)]) -> Option<usize> {
    let one = match reply {
        command::Reply::Ids { first, count } => {
            let expected = expected.get(..count as usize)?;
            let is_same = |(more, (reply, _)): (u64, &(Reply, usize))| {
                first.seq.checked_add(more).is_some_and(|seq| *reply == Reply::Id(first.ms, seq))
            };
            return (count > 0 && (0..).zip(expected).all(is_same)).then_some(count as usize);
        }
        command::Reply::Nil => Reply::Nil,
        command::Reply::Error(line) => Reply::Error(line.to_vec()),
        command::Reply::Run(run) => {
            let ids = run.ids().flat_map(|(first, count)| (0..count).map(move |more| (first.ms, first.seq + more)));
            let ids: Vec<_> = ids.collect();
            assert_eq!(ids.len() as u64, run.appended);
            Reply::Run { deduplicated: run.deduplicated, refused: run.refused.to_vec(), ids }
        }
        command::Reply::Acknowledged { local, replicas } => Reply::Counts { local, replicas },
        command::Reply::Status(line) => Reply::Status(line.to_vec()),
    };
    (expected.first()?.0 == one).then_some(1)
}

fn shown(bytes: &[u8]) -> String {
    format!("{} bytes: {}", bytes.len(), bytes[..bytes.len().min(2_000)].escape_ascii())
}

/// Generates replies like those of servers to some commands, and worse.
pub fn make(chance: &mut Chance) -> (Expected, Vec<u8>) {
    let base = *chance.pick(&[Expect::EntryId, RUN]);
    let waits = chance.one_in(2);
    let mut expected = Expected(Vec::new());
    let mut bytes = Vec::new();
    if chance.one_in(16) {
        let length = chance.size(60);
        bytes.extend((0..length).map(|_| chance.pick(ALPHABET)));
        return (Expected(vec![*chance.pick(&[base, Expect::Wait, Expect::Status])]), bytes);
    }
    if chance.one_in(256) {
        return (
            Expected(vec![*chance.pick(&[base, Expect::Wait, Expect::Status])]),
            b"*1\r\n".repeat(chance.size(2_000)),
        );
    }
    if chance.one_in(2_000) {
        return (Expected(vec![base]), widest(base, chance));
    }
    let count = if chance.one_in(500) { chance.size(1_200) } else { chance.size(8) };
    let mut id = (chance.next() >> chance.below(64), chance.next() >> chance.below(64));
    for _ in 0..count {
        let others = [Expect::Wait, Expect::Status];
        let expect = if waits && chance.one_in(5) { *chance.pick(&others) } else { base };
        write_reply(&mut bytes, expect, &mut id, chance);
        expected.0.push(if chance.one_in(200) { *chance.pick(&[base, Expect::Wait, Expect::Status]) } else { expect });
    }
    expected.0.push(base);
    if chance.one_in(2) {
        for _ in 0..1 + chance.size(4) {
            spoil(&mut bytes, chance);
        }
    }
    (expected, bytes)
}

/// A reply of the maximum length, truncated at a random point.
fn widest(expect: Expect, chance: &mut Chance) -> Vec<u8> {
    if expect != RUN {
        return [b"-", "x".repeat(65_530 + chance.below(8)).as_bytes(), b"\r\n"].concat();
    }
    let mut bytes =
        format!("*{:020}\r\n:{:020}\r\n${:020}\r\n{}\r\n:{:020}\r\n", 1_003, 7, 1_024, "x".repeat(1_024), 1_000)
            .into_bytes();
    for _ in 0..980 + chance.below(21) {
        bytes.extend_from_slice(format!("${:020}\r\n{:020}-{:020}\r\n", 41, 7, 1).as_bytes());
    }
    bytes.extend_from_slice(chance.part(&[&b""[..], b"$", b"$7", b":", b"-"]));
    bytes
}

fn write_reply(out: &mut Vec<u8>, expect: Expect, id: &mut (u64, u64), chance: &mut Chance) {
    if chance.one_in(16) {
        let length = if chance.one_in(500) { 65_520 + chance.below(30) } else { chance.size(80) };
        out.push(b'-');
        out.extend((0..length).map(|_| chance.pick(b"ERR OOM command not allowed x\0\xff\n-$")));
        out.extend_from_slice(b"\r\n");
        return;
    }
    match expect {
        Expect::EntryId if chance.one_in(16) => out.extend_from_slice(b"$-1\r\n"),
        Expect::EntryId => write_id(out, id, chance),
        Expect::Status | Expect::Asking => {
            let length = if chance.one_in(500) { 65_520 + chance.below(30) } else { chance.size(20) };
            out.push(b'+');
            out.extend((0..length).map(|_| chance.pick(b"PONGOK \0\xff\n+$")));
            out.extend_from_slice(b"\r\n");
        }
        Expect::Wait => {
            if chance.one_in(2) {
                out.extend_from_slice(b"*2\r\n");
                write_line(out, b':', chance.size(3) as u64, chance);
            }
            let count = chance.next() >> chance.below(64);
            write_line(out, b':', count, chance);
        }
        Expect::ScriptRun { .. } => {
            let ids = if chance.one_in(200) { chance.size(1_004) } else { chance.size(6) };
            let is_range = ids > 2 && chance.one_in(2);
            write_line(out, b'*', if is_range { 5 } else { ids as u64 + 3 }, chance);
            let deduplicated = chance.next() >> chance.below(64);
            write_line(out, b':', deduplicated, chance);
            let longest = if chance.one_in(100) { 1_030 } else { 20 };
            let length = chance.size(longest);
            let refused = chance.bytes(length);
            write_bulk(out, &refused, chance);
            let appended = if chance.one_in(100) { chance.next() >> chance.below(64) } else { ids as u64 };
            write_line(out, b':', appended, chance);
            if is_range {
                write_id(out, id, chance);
                let more = if chance.one_in(50) { chance.size(1_004) } else { ids - 1 };
                id.1 = id.1.wrapping_add(more as u64);
                write_this_id(out, *id, chance);
            } else {
                for _ in 0..ids {
                    write_id(out, id, chance);
                }
            }
        }
    }
}

/// Usually the next ID, as from a busy server.
pub fn write_id(out: &mut Vec<u8>, id: &mut (u64, u64), chance: &mut Chance) {
    match chance.below(32) {
        0 => *id = (chance.next() >> chance.below(64), chance.next() >> chance.below(64)),
        1 => *id = (id.0.wrapping_add(1), 0),
        2 => id.1 = *chance.pick(&[8, 9, 98, 99, 999, 9_999_999_999_999_999_999, u64::MAX - 1, u64::MAX]),
        _ => id.1 = id.1.wrapping_add(1),
    }
    write_this_id(out, *id, chance);
}

fn write_this_id(out: &mut Vec<u8>, id: (u64, u64), chance: &mut Chance) {
    let text = if chance.one_in(64) {
        format!("{:0width$}-{:020}", id.0, id.1, width = chance.below(21))
    } else {
        format!("{}-{}", id.0, id.1)
    };
    write_bulk(out, text.as_bytes(), chance);
}

pub fn write_bulk(out: &mut Vec<u8>, body: &[u8], chance: &mut Chance) {
    write_line(out, b'$', body.len() as u64, chance);
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

pub fn write_line(out: &mut Vec<u8>, marker: u8, number: u64, chance: &mut Chance) {
    let width = if chance.one_in(100) { chance.below(22) } else { 0 };
    out.extend_from_slice(format!("{}{number:0width$}\r\n", marker as char).as_bytes());
}

/// Damages the bytes in one place.
pub fn spoil(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let at = chance.below(bytes.len() + 1);
    let end = bytes.len().min(at + 1 + chance.size(40));
    match chance.below(10) {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] = chance.next() as u8,
        2 if at < bytes.len() => bytes[at] = *chance.pick(ALPHABET),
        3 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
        4 => bytes.insert(at, *chance.pick(ALPHABET)),
        5 => drop(bytes.drain(at..end)),
        6 => {
            let part = bytes[at..end].to_vec();
            let place = chance.below(bytes.len() + 1);
            bytes.splice(place..place, part);
        }
        7 | 8 => {
            // Replaces a number by another one.
            let from = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |found| at + found);
            let digits = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            bytes.splice(from..from + digits, chance.pick(&NUMBERS).iter().copied());
        }
        _ => {
            let most = if chance.one_in(200) { 70_000 } else { 100 };
            drop(bytes.splice(at..at, std::iter::repeat_n(*chance.pick(b"x0\r\n9"), chance.size(most))));
        }
    }
}

/// The bits of the first byte select what four commands expect, repeated in turn; the second byte selects how the rest is
/// split.
#[cfg(fuzzing)]
pub fn from_bytes(scanners: &mut Scanners, bytes: &[u8]) {
    if let [kinds, cuts, bytes @ ..] = bytes {
        let of = |place: usize| {
            [Expect::EntryId, RUN, Expect::Wait, Expect::Status][(usize::from(*kinds) >> (2 * (place % 4))) & 3]
        };
        scanners.check(&Expected((0..400).map(of).collect()), bytes, &mut Chance::new(u64::from(*cuts), 0));
    }
}

#[cfg(test)]
#[test]
fn scanner() {
    let one = |scanners: &mut Scanners, chance: &mut Chance| {
        let (expected, bytes) = make(chance);
        scanners.check(&expected, &bytes, chance);
    };
    Runner::new("scanner", 30_000).run(&mut Scanners::default(), one, |seen| {
        format!("{} replies, {} times no reply, {} times cut short", seen.replies, seen.wrong, seen.cut_short)
    });
}
