//! A connection for one call, or one that is kept between calls. All I/O of `group` and `inspect` is here.

use std::borrow::Borrow;
use std::time::Duration;

use redis::Value;

use super::command::Command;
use crate::endpoint::{Endpoint, Node};
use crate::error::{Error, Fault, Result, code};
use crate::net::{
    ConnectError, Deadline, Transport, Watch, block_on, connect, connect_to_node, connect_to_sentinel, decide,
};
use crate::resp::outline::{WHOLE, WITHOUT_FIELDS};

/// An open connection.
pub(crate) struct Session<'w> {
    endpoint: Endpoint,
    /// `None` after it was lost.
    transport: Option<Transport>,
    /// How long the server may make no progress: `command_timeout`.
    silence: Duration,
    watch: &'w mut dyn Watch,
}

/// Connects to the endpoint, without creating its consumer group, and closes the connection after `work`.
pub(crate) fn with_session<T>(
    endpoint: &Endpoint,
    watch: &mut dyn Watch,
    work: impl FnOnce(&mut Session<'_>) -> Result<T>,
) -> Result<T> {
    let mut kept = KeptConnection::new(endpoint);
    let done = kept.once(watch, work);
    kept.close();
    done
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

/// A connection that stays open between calls.
pub(crate) struct KeptConnection {
    endpoint: Endpoint,
    target: Target,
    /// The transport and its `command_timeout`.
    open: Option<(Transport, Duration)>,
}

impl KeptConnection {
    /// Creates it without opening a connection. The connection never creates the endpoint's consumer group.
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.without_consumer_group(), target: Target::Endpoint, open: None }
    }

    /// Like [`new`](Self::new), for a connection to `target`.
    pub(super) fn to(endpoint: &Endpoint, target: Target) -> Self {
        Self { target, ..Self::new(endpoint) }
    }

    /// Reconnects. The outer error is about the options.
    pub(super) fn connect(&mut self, watch: &mut dyn Watch) -> Result<std::result::Result<(), ConnectError>> {
        self.close();
        Ok(open(&self.endpoint, &self.target, watch)?.map(|opened| self.open = Some(opened)))
    }

    /// Does `work`, which must only read: it is repeated over a new connection if the server had closed the one that was
    /// kept.
    pub(crate) fn with<T>(
        &mut self,
        watch: &mut dyn Watch,
        mut work: impl FnMut(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        let was_kept = self.open.is_some();
        match self.once(watch, &mut work) {
            Err(Error::Connection { .. }) if was_kept => self.once(watch, work),
            done => done,
        }
    }

    /// Closes the connection. The next call opens a new one.
    pub(crate) fn close(&mut self) {
        if let Some((transport, _)) = self.open.take() {
            transport.close();
        }
    }

    /// The endpoint, after its server has said whether it belongs to a cluster.
    pub(crate) fn decided(&mut self, watch: &mut dyn Watch) -> Result<&Endpoint> {
        if matches!(self.target, Target::Endpoint) && self.endpoint.is_undecided() {
            let mut settings = self.endpoint.settings()?;
            let first = block_on(decide(&mut self.endpoint, &mut settings, watch)).map_err(connect_error)?;
            self.open = first.map(|transport| (transport, settings.command_timeout));
        }
        Ok(&self.endpoint)
    }

    /// Does `work`, without repeating it.
    pub(crate) fn once<T>(
        &mut self,
        watch: &mut dyn Watch,
        work: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        self.decided(watch)?;
        let (transport, silence) = match self.open.take() {
            Some(open) => open,
            None => open(&self.endpoint, &self.target, watch)?.map_err(connect_error)?,
        };
        let mut session = Session { endpoint: self.endpoint.clone(), transport: Some(transport), silence, watch };
        let done = work(&mut session);
        self.open = session.transport.map(|transport| (transport, silence));
        done
    }
}

fn open(
    endpoint: &Endpoint,
    target: &Target,
    watch: &mut dyn Watch,
) -> Result<std::result::Result<(Transport, Duration), ConnectError>> {
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
    Ok(opened.map(|transport| (transport, settings.command_timeout)))
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
    /// The reply to one command.
    pub(crate) fn ask(&mut self, command: &Command) -> Result<std::result::Result<Value, Fault>> {
        let mut only = Ok(Value::Nil);
        self.query(&[command], WHOLE, |_, reply| only = reply)?;
        Ok(only)
    }

    /// Sends commands in one round trip. `each` gets the index of each command and its reply, in order; the fields of entries
    /// are left out of the reply.
    pub(crate) fn ask_all(
        &mut self,
        commands: &[impl Borrow<Command>],
        each: impl FnMut(usize, std::result::Result<Value, Fault>),
    ) -> Result<()> {
        self.query(commands, WITHOUT_FIELDS, each)
    }

    /// Like [`ask_all`](Self::ask_all), but keeps at most `depth` levels of arrays in a reply.
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
            ConnectError::Fault(fault) => self.lost(&fault, commands.get(answered..).unwrap_or_default()),
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
