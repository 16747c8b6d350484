//! Commands as the models of servers read them, and the parts of their replies.

use crate::resp::{EntryId, entry_id};

/// The next command in these bytes, and its length; `None`: it has not arrived completely.
pub fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |at: usize, kind: u8| {
        let end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        assert_eq!(bytes[at], kind);
        Some((number(&bytes[at + 1..end]), end + 2))
    };
    let (count, mut at) = line(0, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at, b'$')?;
        words.push(bytes.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

pub fn number(text: &[u8]) -> usize {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

pub fn id(text: &[u8]) -> EntryId {
    entry_id(text).expect("an ID in full")
}

pub fn header(count: usize) -> Vec<u8> {
    format!("*{count}\r\n").into_bytes()
}

pub fn integer(number: u64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub fn bulk(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}
