//! Where the connection stands: how it is made, and what ends it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Pipeline;
use super::needs::{self, Need};
use crate::endpoint::Settings;
use crate::error::{Error, Failure, Fault, Result, code};
use crate::reply::ReplyBuffer;
use crate::transport::{self, ConnectError, Transport, Watch, connect};
use crate::window::Window;

/// A connection that was silent for longer is tried with PING before it is trusted with messages.
const IDLE: Duration = Duration::from_secs(30);

/// How much later than after a command's timeout a loss may be noticed, for names to be remembered while messages are sent
/// again: less than what they are remembered longer.
const LATE: Duration = Duration::from_secs(5);

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
    pub(super) fn ping(
        &mut self,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), ConnectError> {
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

impl Pipeline {
    /// Makes a connection. If that fails, every message that waits fails with it, and so does the rest of the batch.
    pub(super) fn open(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let opened = self.endpoint.settings().map_err(|error| Fault::new(code::CONFIG, error.to_string()));
        let opened = opened.map_err(ConnectError::Fault).and_then(|mut settings: Settings| {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                settings.connect_timeout = settings.connect_timeout.min(left);
            }
            let need = self.need(settings.command_timeout);
            let give_up = Instant::now() + settings.connect_timeout;
            let mut transport = connect(&self.endpoint, &settings, watch)?;
            let needed =
                need.map_or(Ok(()), |need| needs::check(&need, &mut transport, &self.endpoint, give_up, watch));
            let mut connection = Connection::new(transport, settings.command_timeout, self.script.is_some());
            match needed.and_then(|()| self.prepare_cover(&mut connection, give_up, watch)) {
                Ok(()) => Ok(connection),
                Err(error) => {
                    connection.transport.abort();
                    Err(self.explained(error))
                }
            }
        });
        match opened {
            Ok(connection) => {
                self.ledger.recorder.counters().connections.add(1);
                self.link = Link::Open(Box::new(connection));
                Ok(())
            }
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                let failure = Arc::new(self.ledger.failure(&fault, self.ledger.unasked));
                let tries_again = self.ledger.retries(&fault);
                // Not a byte of what waits was handed to this connection.
                self.break_link(&Break { may_be_written: false, is_final: !tries_again, ..fault.into() });
                if !tries_again {
                    self.link = Link::Down(failure);
                }
                Ok(())
            }
        }
    }

    /// The same error, with the endpoint before it if the connection was lost: a server's own words need none.
    fn explained(&self, error: ConnectError) -> ConnectError {
        match error {
            ConnectError::Fault(fault) if code::is_away(&fault.code) => {
                let message = format!("cannot connect to {}: {}", self.endpoint, fault.message);
                // Made anew only for its cut to the longest message.
                Fault { message: Fault::new(code::CONNECT, message).message, ..fault }.into()
            }
            ConnectError::Fault(_) | ConnectError::Interrupted => error,
        }
    }

    /// What a new connection's server is asked before it is trusted.
    fn need(&mut self, command_timeout: Duration) -> Option<Need> {
        if let Some(script) = &mut self.script {
            return Some(Need::Script { marker_key: script.runs.marker_key(self.endpoint.stream_key()) });
        }
        // What is sent again for the last time was first sent before its server was found silent.
        let names = self.names.as_ref()?;
        Some(Need::Idmp { duration: names.remembered.saturating_add(command_timeout) })
    }

    /// Replaces a connection that ended between messages: those that wait go out on the next one, none is in doubt.
    pub(super) fn break_or_renew(&mut self, broken: &Break, renewed: &mut bool) {
        let proven = matches!(&self.link, Link::Open(connection) if connection.proven);
        if !self.ledger.window.is_between_messages() || !proven || *renewed {
            self.break_link(broken);
            return;
        }
        *renewed = true;
        self.ledger.lose_cover(&broken.fault);
        self.drop_connection();
    }

    /// Ends the connection abnormally. What waits stays.
    pub(super) fn drop_connection(&mut self) {
        if let Some(script) = &mut self.script {
            script.is_known = false;
        }
        if let Link::Open(connection) = std::mem::replace(&mut self.link, Link::Closed) {
            connection.transport.abort();
        }
    }

    /// Whether nobody looked at the replies for so long that the server may forget the names of what it was sent: sent again,
    /// that could be written twice.
    fn is_forgotten(&self) -> bool {
        let is_late = matches!(&self.link, Link::Open(connection)
            if connection.used.elapsed() > connection.command_timeout + LATE);
        is_late && self.names.is_some() && self.ledger.window.is_owed()
    }

    /// Ends the connection for good: a broken one is never used again, and what waits on it fails.
    pub(super) fn break_link(&mut self, broken: &Break) {
        let is_final = broken.is_final || self.is_forgotten();
        self.drop_connection();
        self.ledger.give_up(&Break { fault: broken.fault.clone(), is_final, ..*broken }, &self.outbox);
        self.outbox.clear();
    }
}
