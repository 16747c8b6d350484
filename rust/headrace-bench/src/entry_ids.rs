//! A generator of replies with increasing entry IDs, like a server's.

/// The next reply to XADD, such as `$15\r
/// 1776168000123-0\r
/// `.
#[derive(Debug)]
pub struct EntryIds {
    millis: u64,
    sequence: u64,
    reply: Vec<u8>,
}

/// The number of entries per millisecond, about as many as a real server adds. The clock counts entries instead of time, so
/// that every client gets the same replies regardless of its speed.
const ENTRIES_OF_MILLISECOND: u64 = 600;

impl EntryIds {
    /// Starts with the first ID of a millisecond.
    pub fn starting(millis: u64) -> Self {
        let mut ids = Self { millis, sequence: 0, reply: Vec::new() };
        ids.write();
        ids
    }

    /// Appends the reply with the next ID.
    #[inline]
    pub fn append(&mut self, replies: &mut Vec<u8>) {
        replies.extend_from_slice(&self.reply);
        self.sequence += 1;
        if self.sequence == ENTRIES_OF_MILLISECOND {
            *self = Self::starting(self.millis + 1);
            return;
        }
        // Increments the digits in place, from the right; an additional digit makes the reply longer.
        for digit in self.reply.iter_mut().rev().skip(2) {
            match digit {
                b'0'..=b'8' => {
                    *digit += 1;
                    return;
                }
                b'9' => *digit = b'0',
                _ => break,
            }
        }
        self.write();
    }

    fn write(&mut self) {
        let id = format!("{}-{}", self.millis, self.sequence);
        self.reply = format!("${}\r\n{id}\r\n", id.len()).into_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn sequence_numbers_restart_in_each_millisecond() {
        let mut ids = EntryIds::starting(1_776_168_000_123);
        let (mut replies, mut expected) = (Vec::new(), String::new());
        for number in 0..2 * ENTRIES_OF_MILLISECOND + 7 {
            ids.append(&mut replies);
            let (millis, sequence) = (number / ENTRIES_OF_MILLISECOND, number % ENTRIES_OF_MILLISECOND);
            let id = format!("{}-{sequence}", 1_776_168_000_123 + millis);
            let _ = write!(expected, "${}\r\n{id}\r\n", id.len());
        }
        assert_eq!(String::from_utf8_lossy(&replies), expected);
    }
}
