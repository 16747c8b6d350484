//! The code that reads replies to control commands: lines while a connection is opened, and replies of any shape.

use redis::Value;

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::scanner::spoil;
use super::slow::{self, Stop};
use crate::error::Fault;
use crate::resp::framing::{Framing, MAX_REPLY};
use crate::resp::line_reader::LineReader;
use crate::resp::outline::{Outline, WHOLE, WITHOUT_FIELDS};
use crate::resp::parts::{Part, Parts};

/// Longer than anything that may be waited for before bytes that are not a reply are refused.
static FILLER: [u8; 66 * 1024] = [b'x'; 66 * 1024];

/// The number of executions by how they ended.
#[derive(Debug, Default)]
pub struct Ends {
    whole: u64,
    wrong: u64,
    more: u64,
}

impl Ends {
    fn count<T>(&mut self, end: &Result<T, Stop>) {
        match end {
            Ok(_) => self.whole += 1,
            Err(Stop::Wrong) => self.wrong += 1,
            Err(Stop::More) => self.more += 1,
        }
    }
}

fn pieces<'a>(bytes: &'a [u8], chance: &mut Chance) -> Vec<&'a [u8]> {
    let (mut rest, mut pieces) = (bytes, Vec::new());
    let longest = 1 + bytes.len() / 50 + chance.size(bytes.len());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(1 + chance.below(longest)));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Checks lines; `awaited` is the number of lines expected.
pub fn check_lines(bytes: &[u8], awaited: usize, chance: &mut Chance) -> Result<(), Stop> {
    let expected = slow::lines(bytes, awaited);
    let mut lines = LineReader::default();
    let fed = pieces(bytes, chance).into_iter().try_for_each(|piece| lines.feed(piece, awaited));
    match &expected {
        Ok(expected) => {
            assert!(fed.is_ok(), "{fed:?}: {}", bytes.escape_ascii());
            let last = expected.last().and_then(|line| line.strip_prefix(b"-")).map(Fault::from_reply);
            assert!(lines.last_words() == last.filter(Fault::ends_connection));
            assert!(lines.count() == expected.len() && lines.into_complete() == *expected, "{}", bytes.escape_ascii());
        }
        Err(_) => assert!(fed.is_err(), "taken for lines: {}", bytes.escape_ascii()),
    }
    expected.map(|_| ())
}

/// Checks a reply of any shape.
pub fn check_extent(bytes: &[u8], chance: &mut Chance) -> Result<(), Stop> {
    let expected = slow::extent(bytes);
    let (mut extent, mut end, mut found) = (Framing::default(), 0, Ok(None));
    for piece in pieces(bytes, chance) {
        end += piece.len();
        found = extent.find(&bytes[..end]);
        if found != Ok(None) {
            break;
        }
    }
    match expected {
        Ok(length) => {
            assert_eq!(found, Ok(Some(length)), "{}", bytes.escape_ascii());
            // Interpreting its numbers and texts is up to redis-rs.
            let _ = redis::parse_redis_value(&bytes[..length]);
        }
        Err(Stop::More) => assert_eq!(found, Ok(None), "{}", bytes.escape_ascii()),
        Err(Stop::Wrong) if found == Ok(None) => {
            let filled = [bytes, &FILLER].concat();
            assert!(extent.find(&filled).is_err(), "waits for ever: {}", bytes.escape_ascii());
        }
        Err(Stop::Wrong) => assert!(found.is_err(), "taken for a reply: {}", bytes.escape_ascii()),
    }
    check_outline(bytes, &expected, chance);
    expected.map(|_| ())
}

/// Checks the same reply in full, and without the fields of entries.
fn check_outline(bytes: &[u8], expected: &Result<usize, Stop>, chance: &mut Chance) {
    for depth in [WHOLE, WITHOUT_FIELDS] {
        let (mut outline, mut unread, mut taken, mut end) = (Outline::new(depth, MAX_REPLY), Vec::new(), 0, Ok(false));
        for piece in pieces(bytes, chance) {
            unread.extend_from_slice(piece);
            end = outline.take(&unread).map(|(length, is_complete)| {
                unread.drain(..length);
                taken += length;
                is_complete
            });
            if end != Ok(false) {
                break;
            }
        }
        match expected {
            Ok(length) => {
                assert_eq!((end, taken), (Ok(true), *length), "{}", bytes.escape_ascii());
                let (kept, whole) = (outline.finish(), &bytes[..*length]);
                assert!(depth == WITHOUT_FIELDS || kept == whole, "{}", bytes.escape_ascii());
                if let Ok(value) = redis::parse_redis_value(whole) {
                    check_parts(whole, &value);
                    let found = redis::parse_redis_value(&kept);
                    assert_eq!(found.ok(), Some(cut(value, depth)), "{}", bytes.escape_ascii());
                }
            }
            Err(Stop::More) => assert_eq!(end, Ok(false), "{}", bytes.escape_ascii()),
            Err(Stop::Wrong) if depth == WHOLE && end == Ok(false) => {
                unread.extend_from_slice(&FILLER);
                assert!(outline.take(&unread).is_err(), "waits for ever: {}", bytes.escape_ascii());
            }
            // Skipped parts may be larger and more numerous.
            Err(Stop::Wrong) => assert!(depth == WITHOUT_FIELDS || end.is_err(), "{}", bytes.escape_ascii()),
        }
    }
}

/// Checks the parts of a whole reply, which redis-rs has read as `value`.
fn check_parts(whole: &[u8], value: &Value) {
    let mut expected = Vec::new();
    flatten(value, &mut expected);
    let found: Vec<_> = Parts::of(whole).collect();
    assert_eq!(found.len(), expected.len(), "{}", whole.escape_ascii());
    for (found, expected) in found.into_iter().zip(expected) {
        // redis-rs also takes a number with a sign or spaces, which no server sends.
        let is_odd = |number: u64| memchr::memmem::find(whole, format!(":{number}\r\n").as_bytes()).is_none();
        let is_other = found == Part::Other && matches!(expected, Part::Number(number) if is_odd(number));
        assert!(found == expected || is_other, "{found:?} {expected:?}: {}", whole.escape_ascii());
    }
    let mut parts = Parts::of(whole);
    assert!(parts.pass(1).is_some() && parts.rest().is_empty(), "{}", whole.escape_ascii());
}

fn flatten<'a>(value: &'a Value, parts: &mut Vec<Part<'a>>) {
    parts.push(match value {
        Value::Array(values) => Part::Array(values.len() as u64),
        Value::BulkString(bytes) => Part::Bulk(bytes),
        Value::Int(number) => u64::try_from(*number).map_or(Part::Other, Part::Number),
        _ => Part::Other,
    });
    if let Value::Array(values) = value {
        for value in values {
            flatten(value, parts);
        }
    }
}

/// Removes the content of arrays nested deeper than `depth`.
fn cut(value: Value, depth: usize) -> Value {
    match value {
        Value::Array(_) if depth == 0 => Value::Array(Vec::new()),
        Value::Array(parts) => Value::Array(parts.into_iter().map(|part| cut(part, depth - 1)).collect()),
        other => other,
    }
}

fn make_lines(awaited: usize, chance: &mut Chance) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..awaited {
        bytes.push(*chance.pick(b"+-:+-:+-:+-:+-:$"));
        let longest = if chance.one_in(2_000) { 65_540 } else { 40 };
        bytes.extend((0..chance.size(longest)).map(|_| b'x'));
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn write_part(out: &mut Vec<u8>, depth: usize, chance: &mut Chance) {
    match chance.below(8) {
        0 => out.extend_from_slice(b"+OK\r\n"),
        1 => out.extend_from_slice(b"-ERR no\r\n"),
        2 => out.extend_from_slice(format!(":{}\r\n", chance.next() >> chance.below(64)).as_bytes()),
        3 => out.extend_from_slice(chance.part(&[&b"$-1\r\n"[..], b"*-1\r\n", b"*0\r\n"])),
        4 => {
            let body = "\r\n*1$".repeat(chance.size(20));
            out.extend_from_slice(format!("${}\r\n{body}\r\n", body.len()).as_bytes());
        }
        _ if depth < 10 => {
            let parts = chance.size(5);
            out.extend_from_slice(format!("*{parts}\r\n").as_bytes());
            (0..parts).for_each(|_| write_part(out, depth + 1, chance));
        }
        _ => out.extend_from_slice(b":1\r\n"),
    }
}

pub fn check(ends: &mut Ends, chance: &mut Chance) {
    let is_lines = chance.one_in(2);
    let awaited = chance.size(4);
    let mut bytes = Vec::new();
    if is_lines {
        bytes = make_lines(awaited, chance);
    } else {
        write_part(&mut bytes, 0, chance);
    }
    if chance.one_in(2) {
        for _ in 0..1 + chance.size(3) {
            spoil(&mut bytes, chance);
        }
    }
    let end = if is_lines { check_lines(&bytes, awaited, chance) } else { check_extent(&bytes, chance) };
    ends.count(&end);
}

/// The first byte selects how many lines are awaited; 0 means a reply of any shape. The second selects how the rest is split.
#[cfg(fuzzing)]
pub fn from_bytes(bytes: &[u8]) {
    if let [kind, cuts, bytes @ ..] = bytes {
        let chance = &mut Chance::new(u64::from(*cuts), 0);
        let _ = match kind % 5 {
            0 => check_extent(bytes, chance),
            awaited => check_lines(bytes, awaited.into(), chance),
        };
    }
}

#[cfg(test)]
#[test]
fn control() {
    let summary = |ends: &Ends| format!("{} whole, {} no reply, {} not whole", ends.whole, ends.wrong, ends.more);
    Runner::new("control", 30_000).run(&mut Ends::default(), check, summary);
}
