//! Control commands whose replies have more than one line: redis-rs packs and parses them.

use std::io::{self, Read};

use redis::{Cmd, Parser, Value};

use super::patience::{ConnectError, Patience};
use super::stream::Transport;
use crate::error::{Fault, code};

/// The largest reply that is taken: XINFO STREAM shows an entry as a whole.
const MAX_REPLY: u64 = 64 * 1024 * 1024;

impl Transport {
    /// Sends a command and waits for its reply, which may be of any shape; an error reply is a fault.
    ///
    /// Nothing may be owed on the connection before. Each error but an error reply makes it useless.
    pub(crate) fn query(
        &mut self,
        command: &Cmd,
        patience: &mut Patience<'_>,
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
        let mut reply = Reply { transport: self, patience, failure: None };
        let parsed = Parser::new().parse_value((&mut reply).take(MAX_REPLY));
        match (reply.failure, parsed) {
            (Some(failure), _) => Err(failure),
            (None, Ok(Value::ServerError(error))) => {
                let line = format!("{} {}", error.code(), error.details().unwrap_or_default());
                Ok(Err(Fault::from_reply(line.as_bytes())))
            }
            (None, Ok(value)) => Ok(Ok(value)),
            (None, Err(_)) => Err(Fault::new(code::PROTOCOL, "the server's reply cannot be parsed").into()),
        }
    }
}

/// The bytes that come in, for a parser that waits for them.
struct Reply<'a, 'w> {
    transport: &'a mut Transport,
    patience: &'a mut Patience<'w>,
    /// Why there are no more; [`io::Error`] cannot carry it.
    failure: Option<ConnectError>,
}

impl Reply<'_, '_> {
    fn wait_for(&mut self, buffer: &mut [u8]) -> Result<usize, ConnectError> {
        loop {
            let received = self.transport.receive(buffer)?;
            if received > 0 {
                return Ok(received);
            }
            self.transport.push()?;
            let slice = self.patience.slice()?;
            self.transport.wait(self.transport.wants_write(), slice);
        }
    }
}

impl Read for Reply<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.wait_for(buffer).map_err(|failure| {
            self.failure = Some(failure);
            io::Error::other("the connection failed")
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::time::{Duration, Instant};

    use super::super::patience::NeverInterrupted;
    use super::*;

    fn query(reply: &[u8]) -> Result<Result<Value, Fault>, ConnectError> {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(reply).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut watch = NeverInterrupted;
        transport.query(&redis::cmd("HELLO"), &mut Patience::new(Instant::now() + Duration::from_secs(5), &mut watch))
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
    fn what_ends_too_early_or_is_no_reply_ends_the_connection() {
        for (reply, code) in [(&b"*2\r\n:7\r\n"[..], "EOF"), (b"?\r\n", "PROTOCOL"), (b":x\r\n", "PROTOCOL")] {
            let failure = query(reply).unwrap_err();
            assert!(matches!(&failure, ConnectError::Fault(fault) if fault.code == code), "{failure:?}");
        }
    }
}
