//! Finds the ends of commands: from the lengths in a RESP array, or from the shape of the previous command.

use std::ops::Range;

/// The maximum length of an argument that is part of a shape: the command's name, options, the names of fields. Longer
/// arguments, such as payloads and times, are skipped by their length.
const SHAPE_BYTES: usize = 8;

/// A parser that finds the end of each command and distinguishes XADD from other commands.
#[derive(Debug, Default)]
pub struct Commands {
    shape: Shape,
}

/// The content at the start of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// A complete XADD, with its size in bytes.
    Xadd(usize),
    /// Another complete command, with its size in bytes.
    Other(usize),
    /// A part of a command, with the minimum size of a buffer that can hold more of it.
    Part(usize),
    /// Not a command.
    Invalid,
}

/// The shape of the last parsed XADD: the bytes that any XADD of the same shape has at the same positions.
#[derive(Debug, Default)]
struct Shape {
    length: usize,
    parts: Vec<(Range<usize>, Vec<u8>)>,
}

impl Shape {
    /// Whether a buffer starts with a complete command of this shape.
    #[inline]
    fn fits(&self, buffer: &[u8]) -> bool {
        let Some(command) = buffer.get(..self.length) else { return false };
        !self.parts.is_empty() && self.parts.iter().all(|(range, bytes)| command.get(range.clone()) == Some(bytes))
    }

    fn learn(&mut self, command: &[u8], arguments: &[Range<usize>]) {
        self.length = command.len();
        self.parts.clear();
        let mut from = 0;
        for skipped in arguments.iter().filter(|argument| argument.len() > SHAPE_BYTES) {
            self.parts.push((from..skipped.start, command[from..skipped.start].to_vec()));
            from = skipped.end;
        }
        self.parts.push((from..command.len(), command[from..].to_vec()));
    }
}

impl Commands {
    /// The content at the start of the buffer.
    #[inline]
    pub fn front(&mut self, buffer: &[u8]) -> Front {
        if self.shape.fits(buffer) { Front::Xadd(self.shape.length) } else { self.walk(buffer) }
    }

    fn walk(&mut self, buffer: &[u8]) -> Front {
        match arguments(buffer) {
            Ok((arguments, length)) => {
                let command = &buffer[..length];
                let is_xadd = arguments.first().is_some_and(|name| command[name.clone()].eq_ignore_ascii_case(b"XADD"));
                if is_xadd {
                    self.shape.learn(command, &arguments);
                    Front::Xadd(length)
                } else {
                    Front::Other(length)
                }
            }
            Err(front) => front,
        }
    }
}

/// The ranges of a command's arguments, and its length.
///
/// # Errors
/// `Front::Part` or `Front::Invalid`.
pub fn arguments(buffer: &[u8]) -> Result<(Vec<Range<usize>>, usize), Front> {
    let (count, mut at) = number(buffer, 0, b'*')?;
    let mut arguments = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let (length, start) = number(buffer, at, b'$')?;
        let end = start.checked_add(length).ok_or(Front::Invalid)?;
        at = end.checked_add(2).ok_or(Front::Invalid)?;
        match buffer.get(end..at) {
            Some(b"\r\n") => arguments.push(start..end),
            Some(_) => return Err(Front::Invalid),
            None => return Err(Front::Part(at)),
        }
    }
    Ok((arguments, at))
}

/// The number in a line such as `$120\r\n` at `at`, and the position after the line.
fn number(buffer: &[u8], at: usize, mark: u8) -> Result<(usize, usize), Front> {
    let line = buffer.get(at..).unwrap_or_default();
    match line.first() {
        None => return Err(Front::Part(at + 1)),
        Some(&first) if first != mark => return Err(Front::Invalid),
        Some(_) => {}
    }
    let mut value: usize = 0;
    for (offset, &byte) in line.iter().enumerate().skip(1) {
        match byte {
            b'0'..=b'9' => {
                let digit = usize::from(byte - b'0');
                value = value.checked_mul(10).and_then(|value| value.checked_add(digit)).ok_or(Front::Invalid)?;
            }
            b'\r' if offset > 1 => {
                return match line.get(offset + 1) {
                    Some(b'\n') => Ok((value, at + offset + 2)),
                    Some(_) => Err(Front::Invalid),
                    None => Err(Front::Part(at + offset + 2)),
                };
            }
            _ => return Err(Front::Invalid),
        }
    }
    Err(Front::Part(at + line.len() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(arguments: &[&[u8]]) -> Vec<u8> {
        let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            command.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            command.extend_from_slice(argument);
            command.extend_from_slice(b"\r\n");
        }
        command
    }

    #[test]
    fn commands_are_delimited_by_their_lengths_in_known_and_unknown_shapes() {
        let stream: Vec<Vec<u8>> = vec![
            packed(&[b"XADD", b"key", b"*", b"payload", b"a payload, 1 ", b"ts", b"2026-04-14T12:00:00Z"]),
            packed(&[b"XADD", b"key", b"*", b"payload", b"\r\n$7\r\npayl.", b"ts", b"2026-04-14T12:00:01Z"]),
            packed(&[b"XADD", b"yek", b"*", b"payload", b"a payload, 2 ", b"ts", b"2026-04-14T12:00:00Z"]),
            packed(&[b"XADD", b"key", b"*", b"payload", b"a payload, 33 ", b"ts", b"2026-04-14T12:00:00Z"]),
            packed(&[b"PING"]),
            packed(&[b"xadd", b"key", b"MAXLEN", b"~", b"100000", b"*", b"payload", b"", b"ts", b"now"]),
        ];
        let buffer = stream.concat();
        let mut commands = Commands::default();
        let mut at = 0;
        for command in &stream {
            let expected =
                if command.ends_with(b"PING\r\n") { Front::Other(command.len()) } else { Front::Xadd(command.len()) };
            assert_eq!(commands.front(&buffer[at..]), expected);
            at += command.len();
        }
        assert_eq!(at, buffer.len());
    }

    #[test]
    fn a_truncated_command_is_partial_and_asks_for_at_most_its_missing_bytes() {
        let command = packed(&[b"XADD", b"key", b"*", b"payload", b"12345678901", b"ts", b"now"]);
        let mut commands = Commands::default();
        for known in [false, true] {
            for cut in 0..command.len() {
                let front = commands.front(&command[..cut]);
                assert!(
                    matches!(front, Front::Part(need) if cut < need && need <= command.len()),
                    "{known} {cut}: {front:?}"
                );
            }
            assert_eq!(commands.front(&command), Front::Xadd(command.len()));
        }
    }

    #[test]
    fn bytes_that_are_not_a_command_are_invalid() {
        for bytes in
            ["PING\r\n", "*1\r\n+PING\r\n", "*x", "*1\r\n$4\r\nPINGxx", "*1\rx", "*\r\n", "*99999999999999999999"]
        {
            assert_eq!(Commands::default().front(bytes.as_bytes()), Front::Invalid, "{bytes}");
        }
    }
}
