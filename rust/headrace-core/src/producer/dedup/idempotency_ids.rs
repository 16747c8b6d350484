//! Exactly once by IDMP: the IDs under which a server remembers rows, as arguments of XADD: `IDMP <producer> <id>`
//! (<https://redis.io/docs/latest/commands/xadd/>, since 8.6).

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::{Fault, code};
use crate::resp::write_bulk;

/// How many rows share a producer ID: as many IDs as a server remembers per producer by default, so that none is forgotten for
/// another. It is part of every row's ID, so it must never change.
pub(crate) const ROWS_PER_PRODUCER: u64 = 100;

/// How many arguments of XADD an ID takes.
pub(crate) const IDMP_ARGUMENTS: usize = 3;

/// The maximum number of message IDs in one batch: they are kept to find one that comes twice.
const MAX_MESSAGES: usize = 1 << 20;

/// The IDs of the rows of a batch, from their numbers or from their message IDs.
#[derive(Debug)]
pub(crate) struct IdempotencyIds {
    token: String,
    version: u64,
    /// How long the server must remember IDs, at least.
    pub(crate) remembered: Duration,
    /// The number of the next row.
    next: u64,
    /// `IDMP` and the producer ID of the last row.
    producer: Vec<u8>,
    /// The group of a hundred rows that `producer` belongs to.
    hundred: Option<u64>,
    /// The last ID.
    id: Vec<u8>,
    /// The message IDs of the batch, as two hashes each, if rows are named by message ID.
    seen: Option<HashSet<u128>>,
    hashes: [RandomState; 2],
}

impl IdempotencyIds {
    pub(crate) fn new(by_message_id: bool, remembered: Duration) -> Self {
        Self {
            token: String::new(),
            version: 0,
            remembered,
            next: 0,
            producer: Vec::new(),
            hundred: None,
            id: Vec::new(),
            seen: by_message_id.then(HashSet::new),
            hashes: [RandomState::new(), RandomState::new()],
        }
    }

    /// Starts another batch.
    pub(crate) fn begin(&mut self, token: String, version: u64) {
        (self.token, self.version, self.next, self.hundred) = (token, version, 0, None);
        if let Some(seen) = &mut self.seen {
            *seen = HashSet::new();
        }
    }

    pub(crate) fn is_by_message_id(&self) -> bool {
        self.seen.is_some()
    }

    /// Skips `rows` rows that are not sent.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.next += rows;
    }

    /// Continues with the row of this number.
    pub(crate) fn rewind(&mut self, row: u64) {
        self.next = row;
    }

    /// The ID of the next row, as arguments of XADD.
    pub(crate) fn of_row(&mut self) -> &[u8] {
        let (hundred, place) = (self.next / ROWS_PER_PRODUCER, self.next % ROWS_PER_PRODUCER);
        self.next += 1;
        if self.hundred != Some(hundred) {
            self.hundred = Some(hundred);
            let producer = format!("{}:{}:{hundred}", self.token, self.version);
            self.producer.clear();
            write_bulk(&mut self.producer, b"IDMP");
            write_bulk(&mut self.producer, producer.as_bytes());
        }
        self.id.clear();
        self.id.extend_from_slice(&self.producer);
        write_bulk(&mut self.id, itoa::Buffer::new().format(place).as_bytes());
        &self.id
    }

    /// The ID of the message with this message ID, as arguments of XADD; a fault if another message of the batch has the same
    /// one.
    pub(crate) fn of_message(&mut self, id: &[u8]) -> Result<&[u8], Fault> {
        let hash = self.hashes.each_ref().map(|hash| u128::from(hash.hash_one(id)));
        if let Some(seen) = &mut self.seen {
            if seen.len() >= MAX_MESSAGES && !seen.contains(&(hash[0] << 64 | hash[1])) {
                let message = format!("exactly_once_key 'message_id' takes batches of at most {MAX_MESSAGES} messages");
                return Err(Fault::new(code::TOO_MANY, message));
            }
            if !seen.insert(hash[0] << 64 | hash[1]) {
                let message = "another message of the same batch has this message ID";
                return Err(Fault::new(code::DUPLICATE_ID, message));
            }
        }
        let token = &self.token;
        let mut producer = format!("{token}:{}:", self.version).into_bytes();
        producer.extend_from_slice(id);
        self.id.clear();
        write_bulk(&mut self.id, b"IDMP");
        write_bulk(&mut self.id, &producer);
        // Because of the token's length, no two batches have the same ID for different messages, whatever these contain. The
        // letter keeps it apart from the IDs of rows.
        write_bulk(&mut self.id, format!("m{}", token.len()).as_bytes());
        Ok(&self.id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(name: &[u8]) -> String {
        String::from_utf8_lossy(name).replace("\r\n", " ")
    }

    #[test]
    fn row_ids_are_numbered_in_groups_of_a_hundred() {
        let mut names = IdempotencyIds::new(false, Duration::ZERO);
        names.begin("t".to_owned(), 7);
        assert_eq!(text(names.of_row()), "$4 IDMP $5 t:7:0 $1 0 ");
        names.pass(98);
        assert_eq!(text(names.of_row()), "$4 IDMP $5 t:7:0 $2 99 ");
        assert_eq!(text(names.of_row()), "$4 IDMP $5 t:7:1 $1 0 ");
        names.begin("t".to_owned(), 8);
        assert_eq!(text(names.of_row()), "$4 IDMP $5 t:8:0 $1 0 ");
    }

    #[test]
    fn a_message_id_is_unique_within_a_batch() {
        let mut names = IdempotencyIds::new(true, Duration::ZERO);
        names.begin("t".to_owned(), 0);
        assert_eq!(text(names.of_message(b"a").unwrap()), "$4 IDMP $5 t:0:a $2 m1 ");
        assert_eq!(names.of_message(b"a").unwrap_err().code, code::DUPLICATE_ID);
        assert!(names.of_message(b"b").is_ok());
        names.begin("t".to_owned(), 0);
        assert!(names.of_message(b"a").is_ok());
    }

    #[test]
    fn ids_of_different_batches_differ_whatever_they_contain() {
        let name = |token: &str, version, id: &str| {
            let mut names = IdempotencyIds::new(true, Duration::ZERO);
            names.begin(token.to_owned(), version);
            text(names.of_message(id.as_bytes()).unwrap())
        };
        assert_ne!(name("a", 1, "2:x"), name("a:1", 2, "x"));
        assert_ne!(name("a", 0, "0"), { text(IdempotencyIds::new(false, Duration::ZERO).of_row()) });
    }

    #[test]
    fn the_number_of_message_ids_in_a_batch_is_bounded() {
        let mut names = IdempotencyIds::new(true, Duration::ZERO);
        for n in 0..MAX_MESSAGES {
            assert!(names.of_message(&n.to_le_bytes()).is_ok());
        }
        assert_eq!(names.of_message(b"one more").unwrap_err().code, code::TOO_MANY);
        assert_eq!(names.of_message(&5_usize.to_le_bytes()).unwrap_err().code, code::DUPLICATE_ID);
    }
}
