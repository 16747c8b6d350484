//! A connection to a server, which sessions use in turn: its socket, its bytes, and how long the server has been silent.

use std::time::{Duration, Instant};

use super::buffers::Buffers;
use super::exchange::Exchange;
use crate::error::Fault;
use crate::net::{Interest, Progress, Transport, Wanted};

#[derive(Debug)]
pub(crate) struct Channel {
    transport: Transport,
    /// Its number in the pool, counted from 1.
    number: u64,
    buffers: Buffers,
    /// How long the server may take for a reply: `command_timeout`.
    silence: Duration,
    progress: Progress,
}

/// What was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// Whether it is progress of the server: a reply, or a piece of a large one.
    pub(super) is_progress: bool,
}

impl Channel {
    pub(super) fn new(transport: Transport, silence: Duration) -> Self {
        let progress = Progress::new(Instant::now());
        Self { transport, number: 0, buffers: Buffers::default(), silence, progress }
    }

    /// The same one, with its number in the pool.
    pub(super) fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Where a session writes its requests.
    pub(super) fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Notes that a session asked while no reply was due: it has not waited for the server yet.
    pub(super) fn asked(&mut self) {
        debug_assert_eq!(self.buffers.unread(), 0, "bytes that no session has read");
        self.buffers.asked();
        self.progress.made(Instant::now());
    }

    /// Notes that the caller waited for the server.
    pub(super) fn waited(&mut self, time: Duration) {
        self.buffers.took(time, Duration::ZERO);
    }

    /// Whether the session that uses it has stopped in the middle of a reply.
    pub(super) fn is_suspended(&self) -> bool {
        self.buffers.is_suspended()
    }

    /// Receives what has arrived for the session that uses it. `None`: nothing, and nothing has yet to be read.
    pub(super) fn receive(&mut self, session: &mut (impl Exchange + ?Sized)) -> Result<Option<Received>, Fault> {
        let goes_on = self.is_suspended();
        let bytes = if goes_on { 0 } else { self.transport.receive(self.buffers.space())? };
        if bytes == 0 && !goes_on {
            return Ok(None);
        }
        let started = Instant::now();
        let is_answered = session.received(bytes, &mut self.buffers)?;
        let now = Instant::now();
        self.buffers.took(Duration::ZERO, now - started);
        if is_answered {
            self.progress.made(now);
        }
        Ok(Some(Received { bytes, is_progress: is_answered || self.progress.moved(bytes, now) }))
    }

    /// Sends what the socket accepts. Returns whether any bytes moved, and whether they end a request.
    pub(super) fn send(&mut self) -> Result<(bool, bool), Fault> {
        let mut moved = self.transport.push()? > 0;
        let is_request = !self.buffers.unsent().is_empty();
        let mut bytes = 0;
        while !self.buffers.unsent().is_empty() {
            let count = self.transport.send(self.buffers.unsent())?;
            if count == 0 {
                break;
            }
            self.buffers.sent(count);
            bytes += count;
            moved = true;
        }
        let is_whole = is_request && self.buffers.unsent().is_empty();
        if is_whole {
            self.progress.made(Instant::now());
        } else if bytes > 0 {
            self.progress.moved(bytes, Instant::now());
        }
        Ok((moved, is_whole))
    }

    /// How long the server may still be silent, while a reply to the session is due; `Err`: how long it has been, too long.
    pub(super) fn patience(&self, session: &dyn Exchange, now: Instant) -> Result<Duration, Duration> {
        let patience = self.silence + session.blocks_for();
        let silent = self.progress.age(now);
        if silent < patience { Ok(patience.saturating_sub(silent)) } else { Err(silent) }
    }

    /// The socket, and the events to wait for.
    pub(super) fn wanted(&mut self) -> (&mut Transport, Wanted) {
        let writable = self.wants_write();
        (&mut self.transport, Wanted { bytes: 1, writable })
    }

    /// The socket, for an event loop to wait for. `None`: bytes can be received without waiting.
    pub(super) fn interest(&mut self) -> Option<Interest> {
        if self.transport.prepare(1) { None } else { Some(self.socket()) }
    }

    /// The same, whatever can be received.
    pub(super) fn socket(&self) -> Interest {
        Interest { connection: self.number, fd: self.transport.descriptor(), writable: self.wants_write() }
    }

    fn wants_write(&self) -> bool {
        !self.buffers.unsent().is_empty() || self.transport.wants_write()
    }

    /// Ends it; `is_busy`: a reply is due, the rest of which is of no use.
    pub(super) fn close(self, is_busy: bool) {
        if is_busy { self.transport.abort() } else { self.transport.close() }
    }

    /// Drops it: it belongs to the process that this one was forked from.
    pub(super) fn forget(self) {
        self.transport.forget();
    }
}
