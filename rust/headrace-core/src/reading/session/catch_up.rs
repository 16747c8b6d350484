//! Waits for a replica that has not got yet what was read before, on another server or from a stored position.

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

/// How long the other streams of a reader wait meanwhile before they are looked at again.
const TURN: Duration = Duration::from_millis(100);

impl Session {
    /// Asks whether the server is a replica, if a stream has to know; returns whether it did.
    pub(super) fn ask_role(&mut self) -> bool {
        let is_wanted = self.streams.iter().any(|stream| stream.lag.is_suspected());
        if is_wanted {
            request::hello(&mut self.outbox.bytes);
            self.in_flight.push_back(Ask::Role);
        }
        is_wanted
    }

    /// Reads what the server says of itself; returns whether it was there. A server that refuses to say it is no replica.
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

    /// Waits until the replica has the entry that was read last of a stream, if there is one that has to; returns whether it
    /// does.
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

    /// Reads over what came of the streams that are waited for; returns whether that was all.
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
    /// The place right before the entry that was read last.
    fn awaited(&self) -> EntryId {
        self.read_up_to().previous().unwrap_or_default()
    }
}
