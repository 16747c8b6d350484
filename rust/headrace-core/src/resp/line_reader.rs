//! Splits a server's answers to control commands into lines. Bytes in, lines out: no I/O.
//!
//! Every reply expected here is a simple string, an error or an integer, one line each. Nothing else is accepted, so no length
//! that a peer declares is ever trusted.

use memchr::memchr;

use crate::error::{Fault, code};

/// The longest line that is accepted. Those of servers have a few hundred bytes.
const MAX_LINE: usize = 64 * 1024;

/// The first bytes of TLS records: alert, handshake (RFC 8446, 5.1).
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Complete lines, and the start of the next one.
#[derive(Debug, Default)]
pub(crate) struct LineReader {
    complete: Vec<Vec<u8>>,
    rest: Vec<u8>,
}

impl LineReader {
    /// Adds `bytes`. At most `expected` lines may arrive in all, and nothing after them.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], expected: usize) -> Result<(), Fault> {
        while !bytes.is_empty() {
            if self.complete.len() == expected {
                return Err(protocol("the server sent more than was asked for"));
            }
            let end = memchr(b'\n', bytes);
            let (part, after) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            self.rest.extend_from_slice(part);
            check_start(&self.rest, b"+-:")?;
            if self.rest.len() > MAX_LINE + b"\r\n".len() {
                return Err(protocol("the server's reply is longer than 64 KiB"));
            }
            if end.is_some() {
                let Some(line) = self.rest.strip_suffix(b"\r\n") else {
                    return Err(protocol("the server's reply does not end in CR LF"));
                };
                self.complete.push(line.to_vec());
                self.rest.clear();
            }
            bytes = after;
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.complete.len()
    }

    /// The last complete line, if it says why the connection ended after it. Another error reply is the answer to one of several
    /// commands, and is unrelated to the end.
    pub(crate) fn last_words(&self) -> Option<Fault> {
        let last = self.complete.last().and_then(|line| line.strip_prefix(b"-")).map(Fault::from_reply);
        last.filter(Fault::ends_connection)
    }

    /// The lines, each with its marker and without its end.
    pub(crate) fn into_complete(self) -> Vec<Vec<u8>> {
        self.complete
    }
}

/// Checks the first byte as soon as it has arrived: a peer that speaks something else may never end a line. Only this byte is
/// shown, since a peer that echoes would send the password back. `expected`: the bytes that replies start with.
pub(crate) fn check_start(line: &[u8], expected: &[u8]) -> Result<(), Fault> {
    match line.first() {
        None => Ok(()),
        Some(first) if expected.contains(first) => Ok(()),
        Some(first) if TLS_RECORDS.contains(first) => {
            Err(protocol("the server speaks TLS here, and the endpoint does not: set tls"))
        }
        Some(first) => {
            Err(protocol(&format!("the server's reply begins with byte 0x{first:02x}: is this a Redis server?")))
        }
    }
}

fn protocol(message: &str) -> Fault {
    Fault::new(code::PROTOCOL, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(bytes: &[u8], expected: usize) -> String {
        let fault = LineReader::default().feed(bytes, expected).unwrap_err();
        assert_eq!(fault.code, code::PROTOCOL);
        fault.message
    }

    #[test]
    fn lines_are_the_same_however_they_are_split() {
        let bytes = b"+OK\r\n-ERR a b\r\n:-12\r\n+\r\n";
        for size in 1..=bytes.len() {
            let mut lines = LineReader::default();
            for part in bytes.chunks(size) {
                lines.feed(part, 4).unwrap();
            }
            assert_eq!(lines.into_complete(), [&b"+OK"[..], b"-ERR a b", b":-12", b"+"], "cut every {size} bytes");
        }
    }

    #[test]
    fn only_the_expected_lines_are_accepted() {
        assert!(refused(b"+OK\r\n+", 1).contains("more than"));
        assert!(refused(b"+OK\r\n", 0).contains("more than"));
        assert!(refused(b"$5\r\nhello\r\n", 1).contains("0x24"));
        assert!(refused(b"*1\r\n", 1).contains("0x2a"));
        assert!(refused(b">2\r\n", 1).contains("0x3e"));
        assert!(refused(b"HTTP/1.1 400", 1).contains("0x48"));
        assert!(refused(b"\x15\x03\x01", 1).contains("set tls"));
        assert!(refused(b"\r\n", 1).contains("0x0d"));
        assert!(refused(b"+OK\n", 1).contains("CR LF"));
        LineReader::default().feed(b"", 0).unwrap();
    }

    #[test]
    fn an_echoed_command_is_not_shown() {
        assert!(!refused(b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n", 1).contains("secret"));
    }

    #[test]
    fn a_line_longer_than_64_kib_is_refused() {
        let mut line = vec![b'+'; MAX_LINE];
        line.extend_from_slice(b"\r\n");
        LineReader::default().feed(&line, 1).unwrap();
        line.insert(0, b'+');
        assert!(refused(&line, 1).contains("64 KiB"));
        assert!(refused(&vec![b'+'; MAX_LINE + 3], 1).contains("64 KiB"));
    }

    #[test]
    fn the_last_error_explains_the_end_of_the_connection() {
        let mut lines = LineReader::default();
        lines.feed(b"+OK\r\n", 3).unwrap();
        assert_eq!(lines.last_words(), None);
        lines.feed(b"-DENIED go away\r\n", 3).unwrap();
        assert_eq!(lines.last_words().unwrap().code, "DENIED");
        lines.feed(b"-ERR unknown subcommand 'SETINFO'. Try CLIENT HELP.\r\n", 3).unwrap();
        assert_eq!(lines.last_words(), None);
    }
}
