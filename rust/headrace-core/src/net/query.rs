//! Control commands whose replies have more than one line: redis-rs packs them, and parses the replies when they are whole.

use redis::{Cmd, Value, parse_redis_value};

use super::deadline::{ConnectError, Deadline};
use super::stream::Transport;
use crate::error::{Fault, code};
use crate::resp::framing::{Framing, MAX_REPLY};

/// How much is read at a time.
const CHUNK: usize = 16 * 1024;

impl Transport {
    /// Sends a command and waits for its reply, which may be of any shape; an error reply is a fault.
    ///
    /// No reply may be pending on the connection before. Each error but an error reply makes it useless.
    pub(crate) fn query(
        &mut self,
        command: &Cmd,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<Value, Fault>, ConnectError> {
        let packed = command.get_packed_command();
        let mut unsent = packed.as_slice();
        while !unsent.is_empty() {
            let sent = self.send(unsent)?;
            unsent = unsent.get(sent..).unwrap_or_default();
            if sent == 0 {
                self.wait(true, patience.slice()?);
            }
        }
        // redis-rs would believe what a header declares: how deep, how many.
        match parse_redis_value(&self.whole_reply(patience)?) {
            Ok(Value::ServerError(error)) => {
                let line = format!("{} {}", error.code(), error.details().unwrap_or_default());
                Ok(Err(Fault::from_reply(line.as_bytes())))
            }
            Ok(value) => Ok(Ok(value)),
            Err(_) => Err(no_reply("something that is no reply").into()),
        }
    }

    /// The bytes of one reply.
    fn whole_reply(&mut self, patience: &mut Deadline<'_>) -> Result<Vec<u8>, ConnectError> {
        let (mut reply, mut extent) = (Vec::new(), Framing::default());
        let mut chunk = [0; CHUNK];
        loop {
            let received = self.receive(&mut chunk)?;
            if received == 0 {
                self.push()?;
                let slice = patience.slice()?;
                self.wait(self.wants_write(), slice);
                continue;
            }
            reply.extend_from_slice(chunk.get(..received).unwrap_or_default());
            match extent.find(&reply).map_err(no_reply)? {
                Some(length) if length == reply.len() => return Ok(reply),
                Some(_) => return Err(no_reply("more than was asked for").into()),
                None if reply.len() > MAX_REPLY => return Err(no_reply("a reply that is too large").into()),
                None => {}
            }
        }
    }
}

fn no_reply(what: &str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server's reply cannot be parsed: it sent {what}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::deadline::NeverInterrupted;
    use super::*;
    use crate::fuzz_tests::{is_alone, memory};

    fn query(reply: &[u8]) -> Result<Result<Value, Fault>, ConnectError> {
        let (mut transport, mut peer) = Transport::pair();
        let reply = reply.to_vec();
        // It hangs up on who sends too much. The peer lives on until this is over.
        let _peer = thread::spawn(move || {
            let _ = peer.write_all(&reply).and_then(|()| peer.shutdown(Shutdown::Write));
            peer
        });
        let mut watch = NeverInterrupted;
        transport.query(&redis::cmd("HELLO"), &mut Deadline::new(Instant::now() + Duration::from_secs(5), &mut watch))
    }

    #[test]
    fn replies_of_any_shape_are_taken_and_error_replies_are_faults() {
        let both = vec![Value::Int(7), Value::Array(vec![Value::BulkString(b"a".to_vec())])];
        assert_eq!(query(b"*2\r\n:7\r\n*1\r\n$1\r\na\r\n").unwrap(), Ok(Value::Array(both)));
        for line in ["NOPERM no", "ERR no such key"] {
            let fault = query(format!("-{line}\r\n").as_bytes()).unwrap().unwrap_err();
            assert_eq!(fault, Fault::from_reply(line.as_bytes()));
        }
    }

    #[test]
    fn nothing_is_believed_that_is_only_declared() {
        if !is_alone("net::query::tests::nothing_is_believed_that_is_only_declared") {
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
        // The copies of what the peer sends are most of it.
        let grown = memory("VmHWM") - before;
        assert!(grown < 20.0, "{grown} MiB");
        let large = [&b"*2\r\n$30000000\r\n"[..], &vec![b'x'; 30_000_000], b"\r\n:7\r\n"].concat();
        assert!(matches!(query(&large), Ok(Ok(Value::Array(parts))) if parts.len() == 2), "an entry may be large");
    }

    #[test]
    fn what_ends_too_early_or_is_no_reply_ends_the_connection() {
        for (reply, code) in [(&b"*2\r\n:7\r\n"[..], "EOF"), (b"?\r\n", "PROTOCOL"), (b":x\r\n", "PROTOCOL")] {
            let failure = query(reply).unwrap_err();
            assert!(matches!(&failure, ConnectError::Fault(fault) if fault.code == code), "{failure:?}");
        }
    }
}
