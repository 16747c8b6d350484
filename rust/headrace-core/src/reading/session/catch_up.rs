//! Waits for a replica that has not received yet what was read before, from another server or up to a stored position.

use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::super::errors::protocol;
use super::super::request;
use super::super::stream::Stream;
use super::{Ask, Session};
use crate::error::Fault;
use crate::resp::EntryId;
use crate::resp::framing::Framing;
use crate::resp::stream_reply::Shape;
use crate::resp::value::{bytes, field};

/// How long the other streams of a reader wait for this before they are checked again.
const TURN: Duration = Duration::from_millis(100);

impl Session {
    /// Asks whether the server is a replica, if a stream needs to know; returns whether it did.
    pub(super) fn ask_role(&mut self) -> bool {
        let is_wanted = self.streams.iter().any(|stream| stream.lag.is_suspected());
        if is_wanted {
            request::hello(&mut self.outbox.bytes);
            self.in_flight.push_back(Ask::Role);
        }
        is_wanted
    }

    /// Reads the server's role; returns whether the reply was complete. A server that refuses to state it does not count as a
    /// replica.
    pub(super) fn read_role(&mut self) -> Result<bool, Fault> {
        let unread = self.input.unread();
        let Some(length) = Framing::default().find(unread).map_err(protocol)? else {
            self.needed = unread.len() + 1;
            return Ok(false);
        };
        let reply = parse_redis_value(&unread[..length]).unwrap_or(Value::Nil);
        let is_replica = matches!(field(&reply, "role").and_then(bytes), Some(b"replica" | b"slave"));
        self.input.consume(length);
        for stream in &mut self.streams {
            stream.is_doubtful |= stream.lag.is_suspected() && !is_replica;
            stream.lag.resolve(is_replica);
        }
        Ok(true)
    }

    /// Waits until the replica has the last entry that was read from a stream, if a stream requires it; returns whether one does.
    pub(super) fn ask_to_catch_up(&mut self, waits: Option<Duration>) -> bool {
        let lagging = self.which(|stream| stream.lag.waits());
        if lagging.is_empty() {
            return false;
        }
        let Some(waits) = waits else { return true };
        let most = if lagging.len() < self.streams.len() { TURN } else { self.options.block.max(TURN) };
        let block = waits.min(most).max(Duration::from_millis(1));
        let places: Vec<_> =
            lagging.into_iter().map(|at| &self.streams[at]).map(|stream| (&*stream.key, stream.awaited())).collect();
        request::follow(&mut self.outbox.bytes, places.into_iter(), 1, Some(block));
        self.in_flight.push_back(Ask::CatchUp { block });
        true
    }

    /// Skips the reply for the streams that are waited for; returns whether it was complete.
    pub(super) fn read_caught_up(&mut self, block: Duration) -> Result<bool, Fault> {
        if !self.pass_reply(Shape::Streams, 1)? {
            return Ok(false);
        }
        for stream in &mut self.streams {
            stream.is_behind = true;
            if stream.lag.waits() {
                stream.lag.look_again(block);
                stream.is_doubtful = stream.asked.is_none();
            }
        }
        Ok(true)
    }
}

impl Stream {
    /// The place directly before the last entry that was read.
    fn awaited(&self) -> EntryId {
        self.read_up_to().previous().unwrap_or_default()
    }
}
