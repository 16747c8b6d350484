//! A connection for one call, or one that is kept between calls. All I/O of `group` and `inspect` is here.

use std::time::Duration;

use redis::Value;

use super::command::Command;
use crate::cluster::Node;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result, code};
use crate::net::{ConnectError, Deadline, Transport, Watch, connect, connect_to_node, connect_to_sentinel, decide};

/// The maximum number of commands in one round trip: a planner may ask for thousands of ranges.
const PIPELINE: usize = 1_000;

/// An open connection, for one call.
struct Session<'w> {
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
    pub(super) async fn connect(&mut self, watch: &mut dyn Watch) -> Result<std::result::Result<(), ConnectError>> {
        self.close();
        Ok(open(&self.endpoint, &self.target, watch).await?.map(|opened| self.open = Some(opened)))
    }

    /// The replies to commands, in order, of which at most `depth` levels of arrays are kept. Commands that only read are sent
    /// again over a new connection if the server had closed the kept one.
    pub(super) async fn ask(
        &mut self,
        commands: &[&Command],
        depth: usize,
        watch: &mut dyn Watch,
    ) -> Result<Vec<std::result::Result<Value, Fault>>> {
        let was_kept = self.open.as_ref().is_some_and(|open| open.is_used);
        let is_repeatable = was_kept && !commands.iter().any(|command| command.writes());
        match self.ask_once(commands, depth, watch).await {
            // After a timeout, a repetition would wait for `command_timeout` again.
            Err(Error::Connection { .. }) if is_repeatable && !self.is_timed_out => {
                self.ask_once(commands, depth, watch).await
            }
            said => said,
        }
    }

    /// Connects, unless the connection is open.
    pub(super) async fn open(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.open = Some(self.take(watch).await?);
        Ok(())
    }

    /// Takes the open connection, or a new one.
    async fn take(&mut self, watch: &mut dyn Watch) -> Result<Open> {
        match self.open.take() {
            Some(open) => Ok(open),
            None => open(&self.endpoint, &self.target, watch).await?.map_err(connect_error),
        }
    }

    /// Closes the connection. The next call opens a new one.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            open.transport.close();
        }
    }

    /// The endpoint, after its server has said whether it belongs to a cluster.
    pub(super) async fn decided(&mut self, watch: &mut dyn Watch) -> Result<&Endpoint> {
        if matches!(self.target, Target::Endpoint) && self.endpoint.is_undecided() {
            let mut settings = self.endpoint.settings()?;
            let first = decide(&mut self.endpoint, &mut settings, watch).await.map_err(connect_error)?;
            let silence = settings.command_timeout;
            self.open = first.map(|transport| Open { transport, silence, is_used: false });
        }
        Ok(&self.endpoint)
    }

    /// The replies to commands, in order, which are sent once.
    async fn ask_once(
        &mut self,
        commands: &[&Command],
        depth: usize,
        watch: &mut dyn Watch,
    ) -> Result<Vec<std::result::Result<Value, Fault>>> {
        self.decided(watch).await?;
        let Open { transport, silence, .. } = self.take(watch).await?;
        let endpoint = self.endpoint.clone();
        let mut session = Session { endpoint, transport: Some(transport), silence, is_timed_out: false, watch };
        let mut said = Vec::with_capacity(commands.len());
        let mut asked = Ok(());
        for commands in commands.chunks(PIPELINE) {
            asked = session.query(commands, depth, |_, reply| said.push(reply)).await;
            if asked.is_err() {
                break;
            }
        }
        self.is_timed_out = session.is_timed_out;
        self.open = session.transport.map(|transport| Open { transport, silence, is_used: true });
        asked.map(|()| said)
    }
}

async fn open(
    endpoint: &Endpoint,
    target: &Target,
    watch: &mut dyn Watch,
) -> Result<std::result::Result<Open, ConnectError>> {
    let settings = endpoint.settings()?;
    let opened = match target {
        Target::Endpoint => connect(endpoint, &settings, watch).await,
        Target::Node(node) => connect_to_node(endpoint, &settings, node, &[], watch).await,
        Target::Sentinel(place) => {
            let sentinels = endpoint.sentinels();
            let Some((sentinels, node)) = sentinels.and_then(|known| Some((known, known.nodes.get(*place)?))) else {
                return Err(Error::config("nodes", format!("the endpoint has no sentinel {place}")));
            };
            connect_to_sentinel(node, sentinels, &settings, watch).await
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
    async fn query(
        &mut self,
        commands: &[&Command],
        depth: usize,
        mut each: impl FnMut(usize, std::result::Result<Value, Fault>) + Send,
    ) -> Result<()> {
        let Some(transport) = &mut self.transport else {
            return Err(Error::Connection { message: format!("the connection to {} was lost earlier", self.endpoint) });
        };
        let mut packed = Vec::new();
        for command in commands {
            command.pack(&mut packed);
        }
        let mut answered = 0;
        let mut count = |reply| {
            each(answered, reply);
            answered += 1;
        };
        let mut patience = Deadline::of_silence(self.silence, self.watch);
        let asked = transport.query_all(&packed, commands.len(), depth, &mut patience, &mut count).await;
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
    fn lost(&self, fault: &Fault, pending: &[&Command]) -> Error {
        let endpoint = &self.endpoint;
        let what = if fault.code == code::TIMEOUT {
            format!("no reply from {endpoint} for {} s", self.silence.as_secs_f64())
        } else {
            format!("the connection to {endpoint} was lost: {}", fault.message)
        };
        let message = match pending.iter().find(|command| command.writes()) {
            Some(write) => format!("{what}; it is unknown whether {} took effect", write.name()),
            None => what,
        };
        Error::lost(&fault.code, &message)
    }
}

fn is_of_connection(fault: &Fault) -> bool {
    code::find(&fault.code).is_some_and(code::Code::is_of_connection)
}
