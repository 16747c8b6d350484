//! What a connection needs from the session that uses it.

use std::time::Duration;

use super::buffers::Buffers;
use super::errors::protocol;
use crate::error::Fault;

/// Requests out, replies in: a session without I/O or a clock. It writes to [`Buffers::out`] when it is asked to, and while it
/// reads.
pub(crate) trait Exchange: Send {
    /// Whether a reply is due. Until none is, no other session uses the connection.
    fn awaits_reply(&self) -> bool;

    /// Reads what has arrived of the reply that is due next. Returns whether that was all of it. A fault makes the connection
    /// useless.
    fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault>;

    /// Reads what has arrived: `count` bytes more in [`Buffers::space`]. Returns whether a reply was read to its end. A fault
    /// makes the connection useless.
    fn received(&mut self, count: usize, buffers: &mut Buffers) -> Result<bool, Fault> {
        buffers.filled(count);
        let mut is_answered = false;
        while self.awaits_reply() && buffers.has_enough() && self.answer(buffers)? {
            is_answered = true;
        }
        // Nothing is left to the next session that uses the connection.
        if !self.awaits_reply() && buffers.unread() > 0 {
            return Err(protocol("a reply that no command was waiting for"));
        }
        Ok(is_answered)
    }

    /// Whether its replies show that the server serves it.
    fn ends_outage(&self) -> bool {
        true
    }

    /// How long the server waits for entries before it replies.
    fn blocks_for(&self) -> Duration {
        Duration::ZERO
    }

    /// The connection was lost, with all that was on its way.
    fn disconnected(&mut self);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::code;

    /// Replies of any shape are due to it. It stops once before it reads the one with which this number is due.
    #[derive(Default)]
    struct Session {
        due: usize,
        stops_at: Option<usize>,
        read: Vec<Vec<u8>>,
    }

    impl Exchange for Session {
        fn awaits_reply(&self) -> bool {
            self.due > 0
        }

        fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
            if self.stops_at.take_if(|due| *due == self.due).is_some() {
                buffers.suspend();
                return Ok(false);
            }
            let Some(reply) = buffers.take_reply()? else { return Ok(false) };
            self.read.push(reply.to_vec());
            self.due -= 1;
            Ok(true)
        }

        fn disconnected(&mut self) {}
    }

    fn arrive(buffers: &mut Buffers, bytes: &[u8], session: &mut Session) -> Result<bool, Fault> {
        buffers.space()[..bytes.len()].copy_from_slice(bytes);
        session.received(bytes.len(), buffers)
    }

    #[test]
    fn replies_are_read_in_order_however_they_arrive() {
        let replies = [&b"+OK\r\n"[..], b"*2\r\n:1\r\n$3\r\nabc\r\n", b"-ERR no\r\n"];
        let bytes = replies.concat();
        for piece in 1..=bytes.len() {
            let (mut buffers, mut session) = (Buffers::default(), Session { due: 3, ..Session::default() });
            for piece in bytes.chunks(piece) {
                let before = session.due;
                assert_eq!(arrive(&mut buffers, piece, &mut session).unwrap(), session.due < before);
            }
            assert_eq!((session.due, &session.read[..]), (0, &replies.map(<[u8]>::to_vec)[..]));
        }
    }

    #[test]
    fn bytes_that_no_reply_is_due_for_are_refused_and_not_left_to_the_next_session() {
        for (due, bytes) in [(0, &b"+"[..]), (0, b"+OK\r\n"), (1, b"+OK\r\n+"), (2, b"+OK\r\n+OK\r\n+OK\r\n")] {
            let (mut buffers, mut session) = (Buffers::default(), Session { due, ..Session::default() });
            assert_eq!(arrive(&mut buffers, bytes, &mut session).unwrap_err().code, code::PROTOCOL);
        }
    }

    #[test]
    fn a_session_that_stops_in_the_middle_goes_on_before_more_arrives() {
        let (mut buffers, mut session) =
            (Buffers::default(), Session { due: 2, stops_at: Some(1), ..Session::default() });
        assert!(arrive(&mut buffers, b"+1\r\n+2\r\n", &mut session).unwrap());
        assert_eq!((buffers.is_suspended(), session.due, session.read.len()), (true, 1, 1));
        assert!(session.received(0, &mut buffers).unwrap());
        assert_eq!((buffers.is_suspended(), buffers.unread(), session.read.len()), (false, 0, 2));
    }
}
