//! Where the connection stands, and what ended it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Failure, Fault};
use crate::reply::ReplyBuffer;
use crate::transport::{self, ConnectError, Transport, Watch};
use crate::window::Window;

/// A connection that was silent for longer is tried with PING before it is trusted with messages.
const IDLE: Duration = Duration::from_secs(30);

/// Where the connection stands.
#[derive(Debug)]
pub(super) enum Link {
    /// There is none; the first need makes one.
    Closed,
    Open(Box<Connection>),
    /// Connecting failed: the rest of the batch fails with it, without another try.
    Down(Arc<Failure>),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) replies: ReplyBuffer,
    pub(super) command_timeout: Duration,
    /// When bytes last moved.
    pub(super) used: Instant,
    /// Whether it has answered a message: a server that accepts and hangs up is not tried again and again.
    pub(super) proven: bool,
}

impl Connection {
    pub(super) fn new(transport: Transport, command_timeout: Duration, of_runs: bool) -> Self {
        Self { transport, replies: ReplyBuffer::new(of_runs), command_timeout, used: Instant::now(), proven: false }
    }

    /// Whether it was silent for so long that it must prove itself before it gets the next message.
    pub(super) fn needs_ping(&self, window: &Window) -> bool {
        !window.is_owed() && self.used.elapsed() >= IDLE
    }

    /// Any reply will do: a user without the right to PING is on a live connection as well.
    pub(super) fn ping(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<(), ConnectError> {
        let silent_until = Instant::now() + self.command_timeout;
        transport::ping(&mut self.transport, deadline.map_or(silent_until, |end| end.min(silent_until)), watch)?;
        self.used = Instant::now();
        Ok(())
    }
}

/// What ended a connection, and whether messages that were handed over may have been executed.
pub(super) struct Break {
    pub(super) fault: Fault,
    pub(super) may_be_written: bool,
    /// Whether nothing is sent again: the caller waits no longer.
    pub(super) is_final: bool,
}

impl From<Fault> for Break {
    fn from(fault: Fault) -> Self {
        Self { fault, may_be_written: true, is_final: false }
    }
}
