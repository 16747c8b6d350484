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
    let mut written = Vec::new();
    put_header(&mut written, count);
    written
}

pub fn integer(number: u64) -> Vec<u8> {
    let mut written = Vec::new();
    put_line(&mut written, b':', number);
    written
}

pub fn bulk(text: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(text.len() + 8);
    put_bulk(&mut written, text);
    written
}

// The same, appended to a reply of many parts.

pub fn put_header(to: &mut Vec<u8>, count: usize) {
    put_line(to, b'*', count as u64);
}

pub fn put_bulk(to: &mut Vec<u8>, text: &[u8]) {
    put_line(to, b'$', text.len() as u64);
    to.extend_from_slice(text);
    to.extend_from_slice(b"\r\n");
}

pub fn put_id(to: &mut Vec<u8>, id: EntryId) {
    let [mut ms, mut seq] = [(); 2].map(|()| itoa::Buffer::new());
    let (ms, seq) = (ms.format(id.ms), seq.format(id.seq));
    put_line(to, b'$', (ms.len() + 1 + seq.len()) as u64);
    for part in [ms, "-", seq, "\r\n"] {
        to.extend_from_slice(part.as_bytes());
    }
}

pub fn put_line(to: &mut Vec<u8>, kind: u8, number: u64) {
    to.push(kind);
    to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    to.extend_from_slice(b"\r\n");
}
