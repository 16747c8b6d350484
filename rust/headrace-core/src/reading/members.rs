//! What a pool of connections needs from the sessions that use them.

use std::time::Instant;

use super::attempt::Attempted;
use super::buffers::Buffers;
use super::channel::Channel;
use super::exchange::Exchange;
use super::link::Link;
use super::trouble::Trouble;
use crate::error::{Error, Fault};
use crate::net::{Opening, Watch};

/// Whether a session sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Yes,
    No,
    /// It will at this time.
    At(Instant),
}

/// Sessions by number, each with what is known of its server. `F`: what is found out on each new connection.
pub(crate) trait Members<F>: Send {
    fn link(&mut self, at: usize) -> &mut Link;

    fn session(&self, at: usize) -> &dyn Exchange;

    /// Whether the session may continue now.
    fn is_active(&self, at: usize) -> bool;

    /// Whether it never continues, so that it needs no connection.
    fn is_over(&self, _at: usize) -> bool {
        false
    }

    /// Whether the caller waits for its reply.
    fn waits(&self, at: usize) -> bool {
        self.session(at).awaits_reply()
    }

    /// Whether the sessions take turns in this pass. Turns are for reading: a pass that only sends the caller's decisions leaves
    /// them as they are.
    fn takes_turns(&self) -> bool {
        true
    }

    /// Lets the session write its next request. `is_shared`: others use the connection too, so the server must not wait for
    /// entries. `rests`: the time before which no entries are requested.
    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>, buffers: &mut Buffers) -> Asked;

    /// Notes that the caller now wants what the session, which is alone on its connection, has requested.
    fn want(&mut self, _at: usize, _buffers: &mut Buffers) {}

    /// Lets the session request entries while the caller works. Returns whether it did.
    fn request_ahead(&mut self, _at: usize, _is_shared: bool, _buffers: &mut Buffers) -> bool {
        false
    }

    /// Begins to open a connection for the session and the other `members`.
    fn open(&mut self, at: usize, members: &[usize]) -> Opening<Attempted<F>>;

    /// The connection that the session has opened. `None`: this failed and must be repeated.
    fn opened(&mut self, at: usize, attempted: Attempted<F>, watch: &mut dyn Watch) -> Result<Option<Channel>, Error>;

    /// Notes that session `to` uses the connection that `from` used last.
    fn hand_over(&mut self, _from: usize, _to: usize) {}

    /// Receives what has arrived, then sends what the socket accepts. Returns whether any bytes moved.
    fn step(&mut self, at: usize, channel: &mut Channel, watch: &mut dyn Watch) -> Result<bool, Trouble>;

    /// Notes that its replies were read. Returns whether they had entries, or another request may return some immediately;
    /// `None`: it did not ask for entries.
    fn answered(&mut self, at: usize) -> Option<bool>;

    /// Notes that its connection is lost because of this fault. It has not [ended](Self::disconnected) yet.
    fn lose(&mut self, at: usize, fault: Fault, watch: &mut dyn Watch) -> Result<(), Error> {
        self.link(at).lose(fault, watch)
    }

    /// Notes that its connection has ended.
    fn disconnected(&mut self, at: usize);
}
