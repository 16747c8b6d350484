//! What the passes over shared connections need of the sessions that use them.

use std::time::Instant;

use super::link::{Link, Trouble};
use crate::error::{Error, Fault};
use crate::net::Watch;

/// Whether a session asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Yes,
    No,
    /// It asks at this time.
    At(Instant),
}

/// Sessions by number, each with a link. Of those that share a connection, the link of the one that asked last is open.
pub(crate) trait Members {
    fn link(&mut self, at: usize) -> &mut Link;

    /// Gives the connection of one to another one, which has asked. No reply is to come on it.
    fn pass_on(&mut self, from: usize, to: usize);

    /// Whether it is to go on now.
    fn is_active(&self, at: usize) -> bool;

    /// Whether the reply to it is on its way, or here and not read to its end.
    fn is_busy(&self, at: usize) -> bool;

    /// Whether the server waits for entries before it replies.
    fn blocks(&self, at: usize) -> bool;

    /// Lets it ask for what comes next. `is_shared`: others use the connection too, so the server must not wait for entries. `rests`:
    /// until when no entries are asked for.
    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>) -> Asked;

    /// Lets it ask for entries while the caller works. Returns whether it did.
    fn request_ahead(&mut self, at: usize, is_shared: bool) -> bool;

    /// Opens a connection for it and the other `members`, or notes that this failed and is to be tried again.
    fn connect(&mut self, at: usize, members: &[usize], watch: &mut dyn Watch) -> Result<(), Error>;

    /// Receives what is there, then sends what the socket takes. Returns whether anything moved.
    fn step(&mut self, at: usize, watch: &mut dyn Watch) -> Result<bool, Trouble>;

    /// Sends what the socket takes. A fault shows again in the next step.
    fn send(&mut self, at: usize);

    /// The replies to it are read. Returns whether it got something, or may get more at once; `None`: it did not ask for entries.
    fn answered(&mut self, at: usize) -> Option<bool>;

    /// Its connection is of no further use because of this fault.
    fn lose(&mut self, at: usize, fault: Fault, watch: &mut dyn Watch) -> Result<(), Error>;

    /// Ends its connection.
    fn close(&mut self, at: usize);

    /// The connection that it shares is gone.
    fn disconnected(&mut self, at: usize);
}
