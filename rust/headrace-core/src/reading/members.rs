//! What the passes over shared connections need from the sessions that use them.

use std::time::Instant;

use super::link::{Link, Trouble};
use crate::error::{Error, Fault};
use crate::net::Watch;

/// Whether a session sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Yes,
    No,
    /// It will at this time.
    At(Instant),
}

/// Sessions by number, each with a link. Among those that share a connection, the link of the one that asked last is open.
pub(crate) trait Members {
    fn link(&mut self, at: usize) -> &mut Link;

    /// Gives the connection of one session to another one, which has asked. No reply may be due on it.
    fn pass_on(&mut self, from: usize, to: usize);

    /// Whether the session may continue now.
    fn is_active(&self, at: usize) -> bool;

    /// Whether its reply is on its way, or has arrived and was not read to its end.
    fn is_busy(&self, at: usize) -> bool;

    /// Whether the server waits for entries before it replies.
    fn blocks(&self, at: usize) -> bool;

    /// Whether the sessions take turns in this pass. Turns are for reading: a pass that only sends the caller's decisions leaves
    /// them as they are.
    fn takes_turns(&self) -> bool;

    /// Lets the session send its next request. `is_shared`: others use the connection too, so the server must not wait for
    /// entries. `rests`: the time before which no entries are requested.
    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>) -> Asked;

    /// Lets the session request entries while the caller works. Returns whether it did.
    fn request_ahead(&mut self, at: usize, is_shared: bool) -> bool;

    /// Opens a connection for the session and the other `members`, or notes that this failed and must be repeated.
    fn connect(&mut self, at: usize, members: &[usize], watch: &mut dyn Watch) -> Result<(), Error>;

    /// Receives what has arrived, then sends what the socket accepts. Returns whether any bytes moved.
    fn step(&mut self, at: usize, watch: &mut dyn Watch) -> Result<bool, Trouble>;

    /// Sends what the socket accepts. A fault shows again in the next step.
    fn send(&mut self, at: usize);

    /// Notes that its replies were read. Returns whether they had entries, or another request may return some immediately;
    /// `None`: it did not ask for entries.
    fn answered(&mut self, at: usize) -> Option<bool>;

    /// Gives up its connection because of this fault.
    fn lose(&mut self, at: usize, fault: Fault, watch: &mut dyn Watch) -> Result<(), Error>;

    /// Ends its connection.
    fn close(&mut self, at: usize);

    /// Notes that the connection it shares was lost.
    fn disconnected(&mut self, at: usize);
}
