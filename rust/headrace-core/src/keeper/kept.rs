//! What a keeper does over one connection.

use std::time::Duration;

use super::doze::Doze;
use crate::error::Fault;
use crate::reading::{Buffers, Exchange};

/// The session of a keeper with one server.
pub(crate) trait Kept: Exchange + Send {
    /// The time until it has something to send, and whether work is waiting already. If not, work that is added from now on must
    /// [wake](Doze::sleeps_from_now) the keeper.
    fn left(&mut self, doze: &Doze, now: Duration) -> (Duration, bool);

    /// Notes that there is no connection to the server, because of this fault.
    fn faulted(&mut self, _fault: &Fault, _now: Duration) {}

    /// Writes the next commands. No reply may be due.
    fn request(&mut self, now: Duration, buffers: &mut Buffers);
}
