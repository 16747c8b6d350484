//! Control commands whose replies span several lines: redis-rs packs the commands, and parses complete replies.

use redis::{Cmd, Value, parse_redis_value};

use super::deadline::{ConnectError, Deadline};
use super::stream::Transport;
use crate::error::{Fault, code};
use crate::resp::framing::MAX_REPLY;
use crate::resp::line_reader::check_start;
use crate::resp::outline::{Outline, WHOLE};

/// The number of bytes to read at a time.
const CHUNK: usize = 16 * 1024;

impl Transport {
    /// Sends a command and waits for its reply, which may have any shape; an error reply is a fault.
    ///
    /// No earlier reply may be pending on the connection. After any error except an error reply the connection is unusable.
    pub(crate) async fn query(
        &mut self,
        command: &Cmd,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<Value, Fault>, ConnectError> {
        let mut only = Ok(Value::Nil);
        self.query_all(&command.get_packed_command(), 1, WHOLE, patience, &mut |reply| only = reply).await?;
        Ok(only)
    }

    /// Sends commands in one go and passes on their replies in order, each as soon as it is complete: at most one is kept.
    /// Parts of a reply nested deeper than `depth` arrays are skipped ([`Outline`]).
    ///
    /// Replies are read during the send, so that the two sides cannot block each other with full buffers, and after a failed
    /// send: a server that refuses states the reason before it closes. As with [`query`](Self::query), nothing else may be in
    /// flight on the connection.
    pub(crate) async fn query_all(
        &mut self,
        packed: &[u8],
        mut replies: usize,
        depth: usize,
        patience: &mut Deadline<'_>,
        each: &mut impl FnMut(Result<Value, Fault>),
    ) -> Result<(), ConnectError> {
        let mut unsent = packed;
        let (mut bytes, mut outline) = (Vec::new(), Outline::new(depth, MAX_REPLY));
        let mut chunk = vec![0; CHUNK];
        let mut broken = None;
        let mut is_new = true;
        while replies > 0 {
            let sent = match (&broken, unsent) {
                (Some(_), _) => Ok(0),
                (None, []) => self.push().map(|_| 0),
                (None, unsent) => self.send(unsent),
            };
            let sent = sent.unwrap_or_else(|fault| {
                broken = Some(fault);
                0
            });
            unsent = unsent.get(sent..).unwrap_or_default();
            let received = match (self.receive(&mut chunk), &mut broken) {
                (Ok(0) | Err(_), Some(fault)) => return Err(fault.clone().into()),
                (received, _) => received?,
            };
            if received == 0 {
                patience.check()?;
                if sent == 0 || unsent.is_empty() {
                    let writable = !unsent.is_empty() || self.wants_write();
                    self.wait_with(patience, writable).await?;
                }
                continue;
            }
            patience.heard(received);
            bytes.extend_from_slice(chunk.get(..received).unwrap_or_default());
            let mut start = 0;
            while replies > 0 {
                let next = bytes.get(start..).unwrap_or_default();
                if is_new {
                    check_start(next, b"+-:$*")?;
                }
                let (length, is_complete) = outline.take(next).map_err(no_reply)?;
                start += length;
                is_new = is_complete || (is_new && length == 0);
                if !is_complete {
                    break;
                }
                each(parsed(&outline.finish())?);
                replies -= 1;
                patience.answered();
            }
            bytes.drain(..start);
            if replies == 0 && !bytes.is_empty() {
                return Err(no_reply("more than was requested").into());
            }
            if replies > 0 {
                // A peer that never pauses must not prevent Ctrl-C from being noticed.
                patience.check()?;
            }
        }
        Ok(())
    }
}

/// Parses a complete reply. redis-rs accepts error replies only as text, but an error reply may repeat a key that is not
/// text.
fn parsed(reply: &[u8]) -> Result<Result<Value, Fault>, ConnectError> {
    if let Some(line) = reply.strip_prefix(b"-") {
        return Ok(Err(Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line))));
    }
    // redis-rs would trust the depth and the lengths that a header declares: `Outline` has checked them.
    parse_redis_value(reply).map(Ok).map_err(|_| no_reply("something that is not a reply").into())
}

fn no_reply(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server's reply cannot be parsed: it sent {what}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::block_on::block_on;
    use super::super::deadline::NeverInterrupted;
    use super::*;
    use crate::fuzz_tests::{is_alone, memory};

    fn query(reply: &[u8]) -> Result<Result<Value, Fault>, ConnectError> {
        let (mut transport, mut peer) = Transport::pair();
        let reply = reply.to_vec();
        // It hangs up on a client that sends too much. The peer is kept alive until the end of the test.
        let _peer = thread::spawn(move || {
            let _ = peer.write_all(&reply).and_then(|()| peer.shutdown(Shutdown::Write));
            peer
        });
        let mut watch = NeverInterrupted;
        let deadline = Instant::now() + Duration::from_secs(5);
        block_on(transport.query(&redis::cmd("HELLO"), &mut Deadline::new(deadline, &mut watch)))
    }

    #[test]
    fn replies_of_any_shape_are_accepted_and_error_replies_are_faults() {
        let both = vec![Value::Int(7), Value::Array(vec![Value::BulkString(b"a".to_vec())])];
        assert_eq!(query(b"*2\r\n:7\r\n*1\r\n$1\r\na\r\n").unwrap(), Ok(Value::Array(both)));
        for line in [&b"NOPERM no"[..], b"ERR no such key", b"NOGROUP No such key '\xff'"] {
            let fault = query(&[b"-", line, b"\r\n"].concat()).unwrap().unwrap_err();
            assert_eq!(fault, Fault::from_reply(line));
        }
    }

    #[test]
    fn replies_to_several_commands_are_returned_one_by_one_however_they_are_split() {
        let replies = b":1\r\n-ERR no\r\n*2\r\n$1\r\na\r\n:2\r\n$-1\r\n";
        let expected = [
            Ok(Value::Int(1)),
            Err(Fault::from_reply(b"ERR no")),
            Ok(Value::Array(vec![Value::BulkString(b"a".to_vec()), Value::Int(2)])),
            Ok(Value::Nil),
        ];
        for size in 1..=replies.len() {
            let (mut transport, mut peer) = Transport::pair();
            let writer = thread::spawn(move || {
                for piece in replies.chunks(size) {
                    peer.write_all(piece).unwrap();
                }
                peer
            });
            let (mut seen, mut watch) = (Vec::new(), NeverInterrupted);
            let mut patience = Deadline::of_silence(Duration::from_secs(5), &mut watch);
            block_on(transport.query_all(b"PING\r\n", 4, WHOLE, &mut patience, &mut |reply| seen.push(reply))).unwrap();
            assert_eq!(seen, expected, "cut every {size} bytes");
            drop(writer.join().unwrap());
        }
    }

    #[test]
    fn commands_and_replies_that_fill_every_buffer_do_not_deadlock() {
        let (mut transport, mut peer) = Transport::pair();
        let (count, command) = (2_000, b"x".repeat(4_096));
        let length = command.len();
        let server = thread::spawn(move || {
            let reply = [&b"$4096\r\n"[..], &b"y".repeat(4_096), b"\r\n"].concat();
            for _ in 0..count {
                peer.read_exact(&mut vec![0; length]).unwrap();
                peer.write_all(&reply).unwrap();
            }
            peer
        });
        let (mut seen, mut watch) = (0, NeverInterrupted);
        let mut patience = Deadline::of_silence(Duration::from_secs(20), &mut watch);
        let mut each = |reply: Result<Value, Fault>| seen += usize::from(reply.is_ok());
        block_on(transport.query_all(&command.repeat(count), count, WHOLE, &mut patience, &mut each)).unwrap();
        assert_eq!(seen, count);
        drop(server.join().unwrap());
    }

    #[test]
    fn declared_lengths_are_not_trusted() {
        if !is_alone("net::query::tests::declared_lengths_are_not_trusted") {
            return;
        }
        let deep = |depth| [b"*1\r\n".repeat(depth), b":1\r\n".to_vec()].concat();
        assert!(query(&deep(8)).is_ok());
        let before = memory("VmHWM");
        for reply in [
            &b"*2147483647\r\n:1\r\n"[..],
            b"*9223372036854775807\r\n:1\r\n",
            b"*2\r\n*1048575\r\n:1\r\n",
            b"$67108865\r\n",
            b"$9223372036854775808\r\n",
            b"+OK\r\n+",
            b">1\r\n+push\r\n",
            &deep(9),
            &deep(1_000_000),
            &b":1\r\n".repeat(1_000_000),
            &b"+".repeat(1 << 20),
        ] {
            let failure = query(reply).unwrap_err();
            assert!(matches!(&failure, ConnectError::Fault(fault) if fault.code == code::PROTOCOL), "{failure:?}");
        }
        // Most of the growth is copies of what the peer sends.
        let grown = memory("VmHWM") - before;
        assert!(grown < 20.0, "{grown} MiB");
        let large = [&b"*2\r\n$30000000\r\n"[..], &vec![b'x'; 30_000_000], b"\r\n:7\r\n"].concat();
        assert!(matches!(query(&large), Ok(Ok(Value::Array(parts))) if parts.len() == 2), "an entry may be large");
    }

    #[test]
    fn a_truncated_or_malformed_reply_is_a_fault() {
        for (reply, code) in [(&b"*2\r\n:7\r\n"[..], "EOF"), (b"?\r\n", "PROTOCOL"), (b":x\r\n", "PROTOCOL")] {
            let failure = query(reply).unwrap_err();
            assert!(matches!(&failure, ConnectError::Fault(fault) if fault.code == code), "{failure:?}");
        }
    }
}
