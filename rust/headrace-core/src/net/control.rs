//! Commands outside the hot path whose replies are one line each: redis-rs packs and parses them, our socket carries them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::parse_redis_value;

use super::deadline::{ConnectError, Deadline, Waited};
use super::socket::Readiness;
use super::stream::Transport;
use crate::error::{Fault, code};
use crate::resp::line_reader::LineReader;

/// A connection to wait for: until bytes can be received or, if `writable`, sent.
struct OfTransport<'a> {
    transport: &'a mut Transport,
    writable: bool,
}

impl Waited for OfTransport<'_> {
    fn wait(&mut self, timeout: Duration) -> Readiness {
        self.transport.wait(self.writable, timeout)
    }

    fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.transport.as_fd().map(|fd| (fd, self.writable))
    }
}

impl Transport {
    /// Waits until bytes can be received or, if `writable`, sent. The wait may end early; the caller then waits again.
    pub(super) async fn wait_with(
        &mut self,
        patience: &mut Deadline<'_>,
        writable: bool,
    ) -> Result<Readiness, ConnectError> {
        patience.wait_while(&mut OfTransport { transport: self, writable }, None).await
    }

    /// Sends `packed` and waits for `replies` lines, which are returned with their type markers and without line ends.
    ///
    /// No earlier reply may be pending on the connection. After any error except an error reply the connection is unusable.
    pub(crate) async fn request(
        &mut self,
        packed: &[u8],
        replies: usize,
        patience: &mut Deadline<'_>,
    ) -> Result<Vec<Vec<u8>>, ConnectError> {
        let mut unsent = packed;
        let mut lines = LineReader::default();
        let mut broken = None;
        loop {
            if broken.is_none() {
                let sent = if unsent.is_empty() { self.push().map(|_| 0) } else { self.send(unsent) };
                match sent {
                    Ok(sent) => unsent = unsent.get(sent..).unwrap_or_default(),
                    // Continue reading: a server that refuses says why before it closes, but the write still fails.
                    Err(fault) => broken = Some(fault),
                }
            }
            let ended = self.receive_lines(&mut lines, replies)?;
            if lines.count() == replies && unsent.is_empty() {
                return Ok(lines.into_complete());
            }
            if let Some(fault) = ended.or_else(|| broken.take()) {
                return Err(lines.last_words().unwrap_or(fault).into());
            }
            let writable = !unsent.is_empty() || self.wants_write();
            self.wait_with(patience, writable).await?;
        }
    }

    /// Like [`request`](Self::request), for commands of which only refusals matter: returns the error replies, in order.
    pub(crate) async fn refusals(
        &mut self,
        packed: &[u8],
        replies: usize,
        patience: &mut Deadline<'_>,
    ) -> Result<Vec<Fault>, ConnectError> {
        let lines = self.request(packed, replies, patience).await?;
        lines.iter().try_for_each(|line| check(line))?;
        Ok(lines.iter().filter_map(|line| line.strip_prefix(b"-")).map(Fault::from_reply).collect())
    }

    /// Reads all available bytes; returns the fault that ended the connection, if it ended.
    fn receive_lines(&mut self, lines: &mut LineReader, expected: usize) -> Result<Option<Fault>, Fault> {
        let mut chunk = [0; 4096];
        loop {
            match self.receive(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(received) => lines.feed(chunk.get(..received).unwrap_or_default(), expected)?,
                Err(fault) => return Ok(Some(fault)),
            }
        }
    }
}

/// Fails if a line is not a reply. An error reply may repeat bytes that are not text, but redis-rs accepts only text.
fn check(line: &[u8]) -> Result<(), Fault> {
    let mut line = String::from_utf8_lossy(line).into_owned();
    line.push_str("\r\n");
    let parsed = parse_redis_value(line.as_bytes());
    parsed.map(drop).map_err(|_| Fault::new(code::PROTOCOL, "the server's reply cannot be parsed"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::time::Instant;

    use super::super::block_on::block_on;
    use super::super::deadline::NeverInterrupted;
    use super::*;

    fn request(transport: &mut Transport, replies: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let deadline = Instant::now() + Duration::from_secs(2);
        match block_on(transport.request(b"PING\r\n", replies, &mut Deadline::new(deadline, &mut NeverInterrupted))) {
            Ok(lines) => Ok(lines),
            Err(ConnectError::Fault(fault)) => Err(fault),
            Err(ConnectError::Interrupted) => panic!("no interrupt was made"),
        }
    }

    fn refusals(transport: &mut Transport, replies: usize) -> Result<Vec<Fault>, ConnectError> {
        let deadline = Instant::now() + Duration::from_secs(2);
        block_on(transport.refusals(b"PING\r\n", replies, &mut Deadline::new(deadline, &mut NeverInterrupted)))
    }

    #[test]
    fn error_replies_are_returned_and_a_malformed_reply_is_a_protocol_fault() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b":7\r\n-NOPERM not \xff you\r\n+OK\r\n").unwrap();
        let refused = refusals(&mut transport, 3).unwrap();
        assert_eq!(refused.iter().map(|fault| &*fault.code).collect::<Vec<_>>(), ["NOPERM"]);
        let mut sent = [0; 6];
        peer.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"PING\r\n");

        peer.write_all(b":no number\r\n").unwrap();
        let Err(ConnectError::Fault(fault)) = refusals(&mut transport, 1) else { panic!("no fault") };
        assert_eq!(fault.code, code::PROTOCOL);
    }

    #[test]
    fn surplus_bytes_are_a_protocol_fault() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"+PONG\r\n+").unwrap();
        assert_eq!(request(&mut transport, 1).unwrap_err().code, code::PROTOCOL);
    }

    #[test]
    fn a_reply_counts_even_if_the_connection_ends_after_it() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"-WRONGPASS no\r\n").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(request(&mut transport, 1).unwrap(), [b"-WRONGPASS no"]);
    }

    #[test]
    fn the_last_error_explains_the_end_of_the_connection() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"-DENIED protected mode\r\n").unwrap();
        drop(peer); // the write fails before the error reply is read
        assert_eq!(request(&mut transport, 3).unwrap_err().code, "DENIED");

        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"+OK\r\n").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(request(&mut transport, 3).unwrap_err().code, code::EOF);
    }
}
