//! What a dispatcher did without waiting, and what its caller waits for.

use std::time::Instant;

use crate::net::Interest;
use crate::report::DeliveryReport;

/// What [`Dispatcher::advance`](crate::Dispatcher::advance) did, and when it is to be called again: as soon as one of the sockets is
/// ready, or at the deadline.
#[derive(Debug, Clone)]
pub struct Progress<'a> {
    /// The outcomes since the last report, in produce order.
    pub report: DeliveryReport,
    /// The sockets to wait for: all that are open.
    pub sockets: Vec<Interest<'a>>,
    /// When to call again though no socket is ready: a server was silent for too long, a retry is due, the sentinels are to be asked,
    /// or (at an instant that is over) bytes wait that were received already. `None`: never.
    pub deadline: Option<Instant>,
}
