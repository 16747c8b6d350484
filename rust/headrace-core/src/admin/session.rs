//! A connection for one call, or one that is kept between calls. All I/O of `group` and `inspect` is here.

use std::borrow::Borrow;
use std::time::Duration;

use redis::Value;

use super::command::Command;
use crate::cluster::Node;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result, code};
use crate::net::{
    ConnectError, Deadline, Transport, Watch, block_on, connect, connect_to_node, connect_to_sentinel, decide,
};

/// An open connection.
pub(super) struct Session<'w> {
    endpoint: Endpoint,
    /// `None` after the connection was lost.
    transport: Option<Transport>,
    /// How long the server may make no progress: `command_timeout`.
    silence: Duration,
    /// Whether the connection was lost because the server made no progress.
    is_timed_out: bool,
    watch: &'w mut dyn Watch,
}

/// The peer of a connection.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// The server that the endpoint names.
    Endpoint,
    /// A node of a cluster.
    Node(Node),
    /// A sentinel, by its index in the list of the endpoint.
    Sentinel(usize),
}

/// A connection between calls.
struct Open {
    transport: Transport,
    /// `command_timeout`.
    silence: Duration,
    /// Whether a call has used it: the server may have closed it since.
    is_used: bool,
}

/// A connection that stays open between calls.
pub(super) struct KeptConnection {
    endpoint: Endpoint,
    target: Target,
    open: Option<Open>,
    /// Whether the last call lost its connection because the server made no progress.
    is_timed_out: bool,
}

impl KeptConnection {
    /// Creates a kept connection without opening it. It never creates the endpoint's consumer group.
    pub(super) fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.without_consumer_group(), target: Target::Endpoint, open: None, is_timed_out: false }
    }

    /// Like [`new`](Self::new), for a connection to `target`.
    pub(super) fn to(endpoint: &Endpoint, target: Target) -> Self {
        Self { target, ..Self::new(endpoint) }
    }

    /// Replaces the connection by a new one. The outer error is about the options.
    pub(super) fn connect(&mut self, watch: &mut dyn Watch) -> Result<std::result::Result<(), ConnectError>> {
        self.close();
        Ok(open(&self.endpoint, &self.target, watch)?.map(|opened| self.open = Some(opened)))
    }

    /// Does `work`, which must only read: it is repeated over a new connection if the server had closed the kept one.
    pub(super) fn with<T>(
        &mut self,
        watch: &mut dyn Watch,
        mut work: impl FnMut(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        let was_kept = self.open.as_ref().is_some_and(|open| open.is_used);
        match self.once(watch, &mut work) {
            // After a timeout, a repetition would wait for `command_timeout` again.
            Err(Error::Connection { .. }) if was_kept && !self.is_timed_out => self.once(watch, work),
            done => done,
        }
    }

    /// Connects, unless the connection is open.
    pub(super) fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.open = Some(self.take(watch)?);
        Ok(())
    }

    /// Takes the open connection, or a new one.
    fn take(&mut self, watch: &mut dyn Watch) -> Result<Open> {
        match self.open.take() {
            Some(open) => Ok(open),
            None => open(&self.endpoint, &self.target, watch)?.map_err(connect_error),
        }
    }

    /// Closes the connection. The next call opens a new one.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            open.transport.close();
        }
    }

    /// The endpoint, after its server has said whether it belongs to a cluster.
    pub(super) fn decided(&mut self, watch: &mut dyn Watch) -> Result<&Endpoint> {
        if matches!(self.target, Target::Endpoint) && self.endpoint.is_undecided() {
            let mut settings = self.endpoint.settings()?;
            let first = block_on(decide(&mut self.endpoint, &mut settings, watch)).map_err(connect_error)?;
            let silence = settings.command_timeout;
            self.open = first.map(|transport| Open { transport, silence, is_used: false });
        }
        Ok(&self.endpoint)
    }

    /// Does `work`, without repeating it.
    pub(super) fn once<T>(
        &mut self,
        watch: &mut dyn Watch,
        work: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        self.decided(watch)?;
        let Open { transport, silence, .. } = self.take(watch)?;
        let endpoint = self.endpoint.clone();
        let mut session = Session { endpoint, transport: Some(transport), silence, is_timed_out: false, watch };
        let done = work(&mut session);
        self.is_timed_out = session.is_timed_out;
        self.open = session.transport.map(|transport| Open { transport, silence, is_used: true });
        done
    }
}

fn open(
    endpoint: &Endpoint,
    target: &Target,
    watch: &mut dyn Watch,
) -> Result<std::result::Result<Open, ConnectError>> {
    let settings = endpoint.settings()?;
    let opened = match target {
        Target::Endpoint => block_on(connect(endpoint, &settings, watch)),
        Target::Node(node) => block_on(connect_to_node(endpoint, &settings, node, &[], watch)),
        Target::Sentinel(place) => {
            let sentinels = endpoint.sentinels();
            let Some((sentinels, node)) = sentinels.and_then(|known| Some((known, known.nodes.get(*place)?))) else {
                return Err(Error::config("nodes", format!("the endpoint has no sentinel {place}")));
            };
            block_on(connect_to_sentinel(node, sentinels, &settings, watch))
        }
    };
    Ok(opened.map(|transport| Open { transport, silence: settings.command_timeout, is_used: false }))
}

/// The error if the server was not reached, or refused the connection.
pub(super) fn connect_error(error: ConnectError) -> Error {
    match error {
        ConnectError::Interrupted => Error::Interrupted,
        ConnectError::Fault(fault) if is_of_connection(&fault) => Error::lost(&fault.code, &fault.message),
        ConnectError::Fault(fault) => Error::refusal(&fault),
    }
}

impl Session<'_> {
    /// Sends commands in one round trip. `each` gets the index of each command and its reply, in order, of which at most `depth`
    /// levels of arrays are kept.
    pub(super) fn query(
        &mut self,
        commands: &[impl Borrow<Command>],
        depth: usize,
        mut each: impl FnMut(usize, std::result::Result<Value, Fault>),
    ) -> Result<()> {
        let Some(transport) = &mut self.transport else {
            return Err(Error::Connection { message: format!("the connection to {} was lost earlier", self.endpoint) });
        };
        let mut packed = Vec::new();
        for command in commands {
            command.borrow().pack(&mut packed);
        }
        let mut answered = 0;
        let mut count = |reply| {
            each(answered, reply);
            answered += 1;
        };
        let mut patience = Deadline::of_silence(self.silence, self.watch);
        let asked = block_on(transport.query_all(&packed, commands.len(), depth, &mut patience, &mut count));
        let Err(error) = asked else { return Ok(()) };
        if let Some(transport) = self.transport.take() {
            transport.abort();
        }
        Err(match error {
            ConnectError::Interrupted => Error::Interrupted,
            ConnectError::Fault(fault) => {
                self.is_timed_out = fault.code == code::TIMEOUT;
                self.lost(&fault, commands.get(answered..).unwrap_or_default())
            }
        })
    }

    /// The error for a connection that was lost while commands were pending.
    fn lost(&self, fault: &Fault, pending: &[impl Borrow<Command>]) -> Error {
        let endpoint = &self.endpoint;
        let what = if fault.code == code::TIMEOUT {
            format!("no reply from {endpoint} for {} s", self.silence.as_secs_f64())
        } else {
            format!("the connection to {endpoint} was lost: {}", fault.message)
        };
        let message = match pending.iter().map(Borrow::borrow).find(|command: &&Command| command.writes()) {
            Some(write) => format!("{what}; it is unknown whether {} took effect", write.name()),
            None => what,
        };
        Error::lost(&fault.code, &message)
    }
}

fn is_of_connection(fault: &Fault) -> bool {
    code::find(&fault.code).is_some_and(code::Code::is_of_connection)
}
