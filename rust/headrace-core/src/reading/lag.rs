//! A server that has less of a stream than was read: a lagging replica, or another stream.

use std::time::Duration;

use crate::resp::EntryId;

/// How long to wait for a replica to receive the entries that were read before. After that, its stream counts as another one.
const PATIENCE: Duration = Duration::from_secs(60);

/// The role of such a server, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// The server lacks no entry, as far as is known.
    #[default]
    No,
    /// The server must be asked whether it is a replica.
    Suspected,
    /// The server is a replica, and the stream waits for it.
    Waits,
    /// The server is not a replica.
    Refuted,
}

/// Whether a stream waits for its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lag {
    state: State,
    /// The server has caught up once it has an entry after this ID; `None`: no entry shows that it has.
    awaited: Option<EntryId>,
    waited: Duration,
}

impl Lag {
    /// Suspects that the server is a lagging replica: it lacks entries until it has one after `awaited`. Returns false if it is
    /// no replica, or was waited for too long.
    pub(crate) fn suspect(&mut self, awaited: Option<EntryId>) -> bool {
        if self.state == State::Refuted || self.waited >= PATIENCE {
            return false;
        }
        (self.state, self.awaited) = (State::Suspected, awaited);
        true
    }

    /// Records whether the server is a replica.
    pub(crate) fn resolve(&mut self, is_replica: bool) {
        if self.state == State::Suspected {
            self.state = if is_replica { State::Waits } else { State::Refuted };
        }
    }

    /// Ends a wait for the server, which must describe the stream again.
    pub(crate) fn look_again(&mut self, waited: Duration) {
        self.state = State::No;
        self.waited += waited;
    }

    /// Starts over for a new connection, which may lead to another server.
    pub(crate) fn reconnect(&mut self) {
        self.state = State::No;
    }

    pub(crate) fn is_suspected(self) -> bool {
        self.state == State::Suspected
    }

    pub(crate) fn waits(self) -> bool {
        self.state == State::Waits
    }

    /// See [`suspect`](Self::suspect).
    pub(crate) fn awaited(self) -> Option<EntryId> {
        self.awaited
    }

    /// Whether the stream needs the server's role, or waits for the server.
    pub(crate) fn is_open(self) -> bool {
        self.is_suspected() || self.waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lagging_replica_is_awaited_for_a_limited_time() {
        let mut lag = Lag::default();
        for _ in 0..60 {
            assert!(lag.suspect(None) && lag.is_suspected() && !lag.waits());
            lag.resolve(true);
            assert!(lag.waits());
            lag.look_again(Duration::from_secs(1));
            assert!(!lag.waits() && !lag.is_suspected());
        }
        assert!(!lag.suspect(None));
    }

    #[test]
    fn a_new_connection_is_asked_again() {
        let mut lag = Lag::default();
        assert!(lag.suspect(None));
        lag.resolve(false);
        assert!(!lag.suspect(None) && !lag.waits());
        lag.reconnect();
        assert!(lag.suspect(None));
        assert!(!Lag::default().waits(), "what was not asked is not answered");
    }
}
