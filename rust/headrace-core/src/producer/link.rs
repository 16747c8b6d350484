//! The socket of a connection: how it is opened, and how it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Producer;
use super::dedup::Dedup;
use super::preflight::{self, Requirement};
use crate::cluster::Redirect;
use crate::connection::Disconnect;
use crate::endpoint::Settings;
use crate::error::{Error, Failure, Fault, Result, code};
use crate::net::{ConnectError, Transport, Watch, connect_with, is_redirect};

/// The socket.
#[derive(Debug)]
pub(super) enum Link {
    /// There is none; the first need opens one.
    Closed,
    Open(Box<Transport>),
    /// Connecting failed: the rest of the batch fails with it, without another try.
    Down(Arc<Failure>),
}

impl Producer {
    /// Opens the socket. If that fails, every message that waits fails with it, and so does the rest of the batch.
    pub(super) fn open(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        match self.open_socket(deadline, watch) {
            Ok((transport, command_timeout)) => {
                self.recorder().counters().connections.add(1);
                self.connection.opened(command_timeout, Instant::now());
                self.link = Link::Open(Box::new(transport));
                Ok(())
            }
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                let failure = self.failure(&fault, self.batch.unattempted);
                let retries = self.rules.retry.is_some() && self.rules.classifier.may_pass(&fault);
                // Not a byte of what waits was handed to this socket.
                self.disconnect(&Disconnect { may_be_written: false, is_final: !retries, ..fault.into() });
                if !retries {
                    self.link = Link::Down(failure);
                }
                Ok(())
            }
        }
    }

    /// A socket whose server can do what the options ask for, and its command timeout.
    fn open_socket(
        &mut self,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(Transport, Duration), ConnectError> {
        let settings = self.endpoint.settings().map_err(|error| Fault::new(code::CONFIG, error.to_string()));
        let mut settings: Settings = settings?;
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            settings.connect_timeout = settings.connect_timeout.min(left);
        }
        let requirements = self.requirements(settings.command_timeout);
        let until = Instant::now() + settings.connect_timeout;
        let mut redirects = 0;
        loop {
            let mut transport = connect_with(&mut self.servers, &self.endpoint, &settings, watch)?;
            if self.connection.is_asking() {
                // The node that hands its stream over was checked. Without ASKING this one would answer nothing.
                return Ok((transport, settings.command_timeout));
            }
            match preflight::check(&requirements, &mut transport, &self.endpoint, until, watch) {
                Ok(()) => return Ok((transport, settings.command_timeout)),
                Err(ConnectError::Fault(fault))
                    if is_redirect(&fault) && redirects < self.rules.max_redirects.unwrap_or_default() =>
                {
                    transport.abort();
                    self.servers.refresh();
                    redirects += 1;
                    settings.connect_timeout = until.saturating_duration_since(Instant::now());
                }
                Err(error) => {
                    transport.abort();
                    return Err(self.explained(error));
                }
            }
        }
    }

    /// Goes on with the node that the server named, for what it refused.
    pub(super) fn follow(&mut self, redirect: &Redirect, now: Instant) {
        self.recorder().counters().redirects.add(1);
        if let Link::Open(transport) = std::mem::replace(&mut self.link, Link::Closed) {
            transport.close();
        }
        let is_there = self.servers.redirect(redirect);
        self.connection.redirected(redirect.is_ask && is_there, now);
    }

    /// Asks the sentinels. If they name another master, the socket is of no further use: what it was sent may be lost.
    pub(super) fn check_master(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<()> {
        match self.servers.check(&self.endpoint, now, watch) {
            Ok(()) => Ok(()),
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                self.disconnect(&fault.into());
                Ok(())
            }
        }
    }

    /// The same error, with the endpoint before it if the socket was lost: a server's own words need none.
    fn explained(&self, error: ConnectError) -> ConnectError {
        match error {
            ConnectError::Fault(fault) if code::is_away(&fault.code) => {
                let message = format!("cannot connect to {}: {}", self.endpoint, fault.message);
                // Built again only to be cut to the longest message.
                Fault { message: Fault::new(code::CONNECT, message).message, ..fault }.into()
            }
            ConnectError::Fault(_) | ConnectError::Interrupted => error,
        }
    }

    /// What a server must be able to do before it gets messages.
    fn requirements(&self, command_timeout: Duration) -> Vec<Requirement> {
        let dedup = match &self.dedup {
            Dedup::Off => None,
            Dedup::Script(script) => {
                Some(Requirement::Script { marker_key: script.batch.marker_key(self.endpoint.stream_key()) })
            }
            // What is sent again for the last time was first sent before its server was found silent.
            Dedup::Idmp(ids) => Some(Requirement::Idmp { duration: ids.remembered.saturating_add(command_timeout) }),
        };
        let wait = self.connection.wait.as_ref().map(|wait| Requirement::Wait(wait.durability.clone()));
        dedup.into_iter().chain(wait).collect()
    }

    /// Replaces a socket that ended between commands: those that wait go out on the next one, and none is in doubt.
    pub(super) fn disconnect_or_renew(&mut self, broken: &Disconnect, renewed: &mut bool) {
        if !self.connection.is_renewable() || *renewed {
            self.disconnect(broken);
            return;
        }
        *renewed = true;
        self.renew(&broken.fault);
    }

    /// Ends the socket between commands, so that the next need opens another one.
    pub(super) fn renew(&mut self, fault: &Fault) {
        let (connection, mut cx) = self.connection(Instant::now());
        connection.lose_unconfirmed(fault, &mut cx);
        self.drop_socket();
    }

    /// Ends the socket abnormally. What waits stays.
    pub(super) fn drop_socket(&mut self) {
        self.connection.closed();
        if let Link::Open(transport) = std::mem::replace(&mut self.link, Link::Closed) {
            transport.abort();
        }
    }

    /// Ends the socket for good: a broken one is never used again, and what waits on it fails or is sent again.
    pub(super) fn disconnect(&mut self, broken: &Disconnect) {
        let now = Instant::now();
        let is_forgotten = matches!(self.dedup, Dedup::Idmp(_)) && self.connection.is_late(now);
        let broken = Disconnect { is_final: broken.is_final || is_forgotten, ..broken.clone() };
        self.drop_socket();
        let (connection, mut cx) = self.connection(now);
        connection.disconnected(&broken, &mut cx);
        if broken.is_final {
            self.end_retries(now);
        }
    }

    /// Ends the retries, if there were any: nothing is left to be sent again. Returns the failure that messages which come now
    /// would meet as well.
    pub(super) fn end_retries(&mut self, now: Instant) -> Option<Arc<Failure>> {
        let (ended, exhausted) = self.connection.retry.end(now);
        if let Some(ended) = ended {
            self.retry_waits.note(ended, now, self.outcomes.recorder.counters());
        }
        let written = self.batch.unattempted;
        exhausted.map(|failure| Arc::new(Failure { written, ..(*failure).clone() }))
    }
}
