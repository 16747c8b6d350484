//! Commands that are not the hot path: redis-rs packs and parses them, our socket carries them.

use redis::{ConnectionLike, ErrorKind, RedisError, RedisResult, Value, parse_redis_value};

use super::deadline::{ConnectError, Deadline, Stage};
use super::stream::Transport;
use crate::error::{Fault, code};
use crate::resp::line_reader::LineReader;

impl Transport {
    /// Sends `packed` and waits for `replies` lines, which are returned with their markers and without their ends.
    ///
    /// No reply may be pending on the connection before. Each error but an error reply makes it useless.
    pub(crate) fn request(
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
                    // Read on: a server that refuses says why before it closes, and the write fails all the same.
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
            self.wait(!unsent.is_empty() || self.wants_write(), patience.slice()?);
        }
    }

    /// Reads all that is there; returns what ended the connection, if it ended.
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

/// A [`Transport`] as redis-rs' commands and pipelines take it, for commands whose replies are one line each:
/// `redis::cmd("PING").query::<redis::Value>(&mut control)`.
///
/// No reply may be pending on the connection before. redis-rs' errors cannot carry ours: after one,
/// [`Control::take_failure`] tells a connection that is of no further use from an error reply.
pub(crate) struct Control<'a, 'w> {
    transport: &'a mut Transport,
    patience: &'a mut Deadline<'w>,
    failure: Option<ConnectError>,
    open: bool,
    refusals: Vec<Fault>,
}

impl<'a, 'w> Control<'a, 'w> {
    /// Commands over `transport`, each waiting as long as `patience` lasts.
    pub(crate) fn new(transport: &'a mut Transport, patience: &'a mut Deadline<'w>) -> Self {
        Self { transport, patience, failure: None, open: true, refusals: Vec::new() }
    }

    /// What made the connection useless since the last call, if anything did.
    pub(crate) fn take_failure(&mut self) -> Option<ConnectError> {
        self.failure.take()
    }

    /// The error replies to the last command or pipeline, in order.
    pub(crate) fn take_refusals(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.refusals)
    }

    pub(crate) fn enter(&mut self, stage: Stage) {
        self.patience.enter(stage);
    }

    fn exchange(&mut self, packed: &[u8], replies: usize) -> Result<Vec<Value>, ConnectError> {
        self.refusals.clear();
        if !self.open {
            return Err(Fault::new(code::RESET, "the connection failed before").into());
        }
        let lines = self.transport.request(packed, replies, self.patience)?;
        self.refusals = lines.iter().filter_map(|line| line.strip_prefix(b"-")).map(Fault::from_reply).collect();
        let values = lines.iter().map(|line| value(line)).collect::<Result<_, _>>()?;
        Ok(values)
    }

    fn answer(&mut self, packed: &[u8], replies: usize) -> RedisResult<Vec<Value>> {
        self.exchange(packed, replies).map_err(|failure| {
            self.open = false;
            self.failure = Some(failure);
            RedisError::from((ErrorKind::Io, "the connection failed; Control::take_failure says how"))
        })
    }
}

/// An error reply may echo bytes that are no text; redis-rs takes text only.
fn value(line: &[u8]) -> Result<Value, Fault> {
    let mut line = String::from_utf8_lossy(line).into_owned();
    line.push_str("\r\n");
    parse_redis_value(line.as_bytes()).map_err(|_| Fault::new(code::PROTOCOL, "the server's reply cannot be parsed"))
}

impl ConnectionLike for Control<'_, '_> {
    fn req_packed_command(&mut self, packed: &[u8]) -> RedisResult<Value> {
        Ok(self.answer(packed, 1)?.pop().unwrap_or(Value::Nil))
    }

    fn req_packed_commands(&mut self, packed: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        Ok(self.answer(packed, offset + count)?.split_off(offset))
    }

    /// Not known here: the handshake selects the database.
    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").query::<Value>(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.open
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::time::{Duration, Instant};

    use super::super::deadline::NeverInterrupted;
    use super::*;

    fn request(transport: &mut Transport, replies: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let deadline = Instant::now() + Duration::from_secs(2);
        match transport.request(b"PING\r\n", replies, &mut Deadline::new(deadline, &mut NeverInterrupted)) {
            Ok(lines) => Ok(lines),
            Err(ConnectError::Fault(fault)) => Err(fault),
            Err(ConnectError::Interrupted) => panic!("no interrupt was made"),
        }
    }

    #[test]
    fn replies_are_handed_to_redis_rs() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"+PONG\r\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut watch = NeverInterrupted;
        let mut patience = Deadline::new(deadline, &mut watch);
        let mut control = Control::new(&mut transport, &mut patience);
        assert_eq!(redis::cmd("PING").query::<String>(&mut control).unwrap(), "PONG");
        let mut sent = [0; 14];
        peer.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"*1\r\n$4\r\nPING\r\n");

        peer.write_all(b":7\r\n+OK\r\n").unwrap();
        let both = redis::pipe().cmd("INCR").arg("a").cmd("PING").query::<(i64, String)>(&mut control).unwrap();
        assert_eq!(both, (7, "OK".to_owned()));
    }

    #[test]
    fn an_error_reply_leaves_the_connection_usable_and_a_bad_reply_does_not() {
        let (mut transport, mut peer) = Transport::pair();
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut watch = NeverInterrupted;
        let mut patience = Deadline::new(deadline, &mut watch);
        let mut control = Control::new(&mut transport, &mut patience);
        peer.write_all(b"-NOPERM not \xff you\r\n").unwrap();
        let error = redis::cmd("PING").query::<Value>(&mut control).unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"));
        assert_eq!(control.take_failure(), None);
        assert_eq!(control.take_refusals().pop().unwrap().code, "NOPERM");
        assert!(control.is_open());

        peer.write_all(b":no number\r\n").unwrap();
        redis::cmd("PING").query::<Value>(&mut control).unwrap_err();
        let Some(ConnectError::Fault(fault)) = control.take_failure() else { panic!("no fault") };
        assert_eq!(fault.code, code::PROTOCOL);
        assert!(!control.is_open());
        peer.write_all(b"+PONG\r\n").unwrap();
        redis::cmd("PING").query::<Value>(&mut control).unwrap_err();
        assert!(control.take_failure().is_some(), "a connection that failed is not used again");
    }

    #[test]
    fn surplus_bytes_are_a_protocol_fault() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"+PONG\r\n+").unwrap();
        assert_eq!(request(&mut transport, 1).unwrap_err().code, code::PROTOCOL);
    }

    #[test]
    fn a_reply_counts_although_the_connection_ends_after_it() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"-WRONGPASS no\r\n").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(request(&mut transport, 1).unwrap(), [b"-WRONGPASS no"]);
    }

    #[test]
    fn the_last_words_before_the_end_are_the_reason() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"-DENIED protected mode\r\n").unwrap();
        drop(peer); // the write fails before the words are read
        assert_eq!(request(&mut transport, 3).unwrap_err().code, "DENIED");

        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"+OK\r\n").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(request(&mut transport, 3).unwrap_err().code, code::EOF);
    }
}
