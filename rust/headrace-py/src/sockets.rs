//! What an event loop of Python has to wait for.

use std::os::fd::RawFd;
use std::time::Instant;

use headrace_core::{Interest, LoopWait};

/// A socket to watch: the number of its connection, its descriptor, and whether to wait until it is writable too.
pub(crate) type Socket = (u64, RawFd, bool);

pub(crate) fn sockets(interests: &[Interest]) -> Vec<Socket> {
    interests.iter().map(|socket| (socket.connection, socket.fd, socket.writable)).collect()
}

/// In how many seconds.
pub(crate) fn seconds_until(deadline: Option<Instant>) -> Option<f64> {
    deadline.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64())
}

/// The sockets, and in how many seconds to continue at the latest.
pub(crate) fn waited(wait: &LoopWait) -> (Vec<Socket>, Option<f64>) {
    (sockets(&wait.sockets), seconds_until(wait.deadline))
}
