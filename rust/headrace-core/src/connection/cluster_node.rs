//! What a connection knows of the node of a cluster that it leads to. No I/O and no clock.

use std::time::{Duration, Instant};

use crate::cluster::Redirect;

/// For how long commands go out behind ASKING at least.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// A node that may not have the stream. Until it has taken a command, no other one goes out to it: what is in flight when it gets the
/// stream would be written before what it refused.
#[derive(Debug, Default)]
pub(super) struct ClusterNode {
    is_owner: bool,
    /// Since when each command goes out behind ASKING; `None`: it does not.
    asking: Option<Instant>,
}

impl ClusterNode {
    /// A node that takes commands only behind ASKING, from `now` on.
    pub(super) fn asked(now: Instant) -> Self {
        Self { is_owner: false, asking: Some(now) }
    }

    /// Whether it has taken a command on this socket.
    pub(super) fn is_owner(&self) -> bool {
        self.is_owner
    }

    /// Whether each command goes out behind ASKING.
    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        self.asking.is_some()
    }

    /// It has taken a command.
    #[inline]
    pub(super) fn accept(&mut self) {
        self.is_owner = true;
    }

    /// It refused a command. Slots are looked at before anything else that a command may be refused for, but for rights.
    pub(super) fn refuse(&mut self, line: &[u8], redirect: Option<&Redirect>) {
        self.is_owner |= redirect.is_none() && !line.starts_with(b"TRYAGAIN") && !line.starts_with(b"CLUSTERDOWN");
    }

    /// Ends ASKING after a while, while nothing is in flight: only the node itself knows when the stream is its own.
    pub(super) fn rest(&mut self, now: Instant) {
        self.asking = self.asking.filter(|since| now.saturating_duration_since(*since) < ASKED_FOR);
    }
}
