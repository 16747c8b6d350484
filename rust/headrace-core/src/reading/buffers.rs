//! The bytes of a connection: those to send, and those that were received and have yet to be read. No I/O and no clock.
//!
//! Sessions use a connection in turn, each from its request to the end of the last reply to it. Whatever is unread is therefore a
//! reply to the session that uses the connection: `Exchange::received` refuses bytes that remain when no reply is due.

use std::time::Duration;

use super::errors::protocol;
use super::info::InfoReply;
use super::input::Input;
use crate::error::Fault;
use crate::resp::framing::{Framing, MAX_REPLY};
use crate::resp::stream_reply::{EntrySink, Rest, Scanned, StreamReply, Wrong};
use crate::stream_facts::StreamInfo;

/// How far a reply with entries was read.
#[derive(Debug)]
pub(crate) enum Read {
    /// To its end.
    Whole,
    /// As far as it has arrived.
    Part,
    /// Until the sink was full.
    Full,
    /// It is an error instead.
    Refused(Fault),
}

/// The bytes of a connection in both directions, and how far the reply in front has been read.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Commands are appended here.
    pub(crate) out: Vec<u8>,
    sent: usize,
    input: Input,
    /// The number of bytes that must be unread before reading again helps.
    needed: usize,
    /// What was read of a reply with entries, of one of any other shape, or of one to XINFO STREAM.
    reply: Option<StreamReply>,
    framing: Framing,
    info: InfoReply,
    is_suspended: bool,
    /// How long the caller waited for the replies to the latest request; `busy`: how long it took to read them.
    waited: Duration,
    busy: Duration,
}

impl Buffers {
    /// The bytes to send now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.out.get(self.sent..).unwrap_or_default()
    }

    /// Notes that the transport took `count` bytes.
    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// The space for the next bytes from the server.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    /// Notes that `count` bytes arrived in [`space`](Self::space).
    pub(super) fn filled(&mut self, count: usize) {
        self.input.filled(count);
        self.is_suspended = false;
    }

    /// Whether reading again may help.
    pub(super) fn has_enough(&self) -> bool {
        self.unread() >= self.needed.max(1)
    }

    /// The number of bytes that have yet to be read.
    pub(super) fn unread(&self) -> usize {
        self.input.unread().len()
    }

    /// Lets the session stop in the middle of the reply that is being read. It continues as soon as it may, even if nothing more
    /// has arrived.
    pub(crate) fn suspend(&mut self) {
        self.is_suspended = true;
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Begins to read a reply with entries, unless that was done before. Returns whether it was not.
    pub(crate) fn begin_reply(&mut self, reply: impl FnOnce() -> StreamReply) -> bool {
        let begins = self.reply.is_none();
        if begins {
            self.reply = Some(reply());
        }
        begins
    }

    /// What is left of the reply that was begun, if all of it has arrived: see [`StreamReply::look_ahead`].
    pub(crate) fn look_ahead(&mut self, sink: &mut impl EntrySink) -> Option<Rest> {
        self.reply.as_mut()?.look_ahead(self.input.unread(), sink)
    }

    /// Reads what has arrived of the reply that was begun.
    pub(crate) fn read(&mut self, sink: &mut impl EntrySink) -> Result<Read, Fault> {
        let Some(reply) = &mut self.reply else { return Ok(Read::Whole) };
        let unread = self.input.unread();
        let (read, consumed) = match reply.scan(unread, sink) {
            Ok(Scanned { consumed, done, needed }) => {
                self.needed = needed;
                let read = match (done, needed) {
                    (true, _) => Read::Whole,
                    (false, 0) => Read::Full,
                    (false, _) => Read::Part,
                };
                (read, consumed)
            }
            Err(Wrong::Violation(violation)) => return Err(protocol(violation.0)),
            Err(Wrong::Error(text)) => {
                self.needed = 0;
                (Read::Refused(Fault::from_reply(unread.get(text.clone()).unwrap_or_default())), text.end + 2)
            }
        };
        self.input.consume(consumed);
        if matches!(read, Read::Whole | Read::Refused(_)) {
            self.reply = None;
        }
        Ok(read)
    }

    /// Takes a reply of any shape; `None`: it has not arrived yet.
    pub(crate) fn take_reply(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(length) = self.framing.find(self.input.unread()).map_err(protocol)? else {
            if self.unread() > MAX_REPLY {
                return Err(protocol("a reply that is too large"));
            }
            self.needed = self.unread() + 1;
            return Ok(None);
        };
        (self.framing, self.needed) = (Framing::default(), 0);
        Ok(Some(self.input.take(length)))
    }

    /// Takes the reply to XINFO STREAM; `None`: it has not arrived yet. A stream that does not exist is empty. `Err`: the
    /// server's refusal, or what is wrong with the reply.
    pub(super) fn take_info(&mut self) -> Result<Option<StreamInfo>, Fault> {
        let taken = self.info.take(&mut self.input);
        self.needed = if let Ok(None) = taken { self.unread() + 1 } else { 0 };
        taken
    }

    /// Notes that the caller waited for bytes, or was busy reading them.
    pub(crate) fn took(&mut self, waited: Duration, busy: Duration) {
        self.waited += waited;
        self.busy += busy;
    }

    /// Notes that a session asked while no reply was due.
    pub(crate) fn asked(&mut self) {
        (self.waited, self.busy) = (Duration::ZERO, Duration::ZERO);
    }

    /// Whether the caller waited longer than it was busy since the request, or since the last call of this function.
    pub(crate) fn was_slow(&mut self) -> bool {
        let is_slow = self.waited > self.busy;
        self.asked();
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sent_in_pieces() {
        let mut buffers = Buffers::default();
        buffers.out.extend_from_slice(b"first");
        buffers.sent(3);
        buffers.out.extend_from_slice(b"second");
        assert_eq!(buffers.unsent(), b"stsecond");
        buffers.sent(8);
        assert_eq!((buffers.unsent(), buffers.out.len()), (&b""[..], 0));
    }
}
