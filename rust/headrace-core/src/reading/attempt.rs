//! An attempt to connect to the server of a link, which goes on while other connections are used. It owns everything that it
//! needs.

use std::time::{Duration, Instant};

use super::channel::Channel;
use super::trouble::Trouble;
use crate::cluster::Node;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Error, Fault};
use crate::net::{ConnectError, Opening, ServerLookup, Transport, Watch, connect_to_node, decide};

/// What a new connection does before a session uses it.
pub(crate) trait Prepare: Send + 'static {
    /// What that found out.
    type Found: Send + 'static;

    /// `silence`: how long the server may take for each reply. `until`: when the attempt must end.
    fn run(
        self,
        transport: &mut Transport,
        silence: Duration,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> impl Future<Output = Result<Self::Found, Trouble>> + Send;
}

/// Nothing has to be done.
impl Prepare for () {
    type Found = ();

    async fn run(self, _: &mut Transport, _: Duration, _: Instant, _: &mut dyn Watch) -> Result<(), Trouble> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) endpoint: Endpoint,
    pub(super) servers: ServerLookup,
    /// `None`: the only server.
    pub(super) node: Option<Node>,
}

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct Attempted<F> {
    /// The connection, and what was found out on it. `None`: the server is a node of a cluster, which the endpoint left open.
    pub(super) connected: Result<Option<(Channel, F)>, Trouble>,
    /// The endpoint as its server describes it.
    pub(super) endpoint: Endpoint,
    pub(super) servers: ServerLookup,
}

impl<F> Attempted<F> {
    /// Why there is no connection.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.connected {
            Err(Trouble::Fault(fault)) => Some(fault),
            Ok(_) | Err(Trouble::Error(_)) => None,
        }
    }

    /// Whether there was a fault.
    pub(super) fn has_failed(&self) -> bool {
        self.fault().is_some()
    }
}

impl Attempt {
    /// Starts with the first poll of what is returned.
    pub(super) fn start<P: Prepare>(mut self, prepare: P) -> Opening<Attempted<P::Found>> {
        let settings = self.endpoint.settings();
        let longest = settings.as_ref().map_or(Duration::ZERO, |settings| settings.connect_timeout);
        Opening::new(longest, |mut watch, until| async move {
            let connected = match settings {
                Ok(settings) => self.connect(settings, prepare, until, &mut watch).await,
                Err(error) => Err(error.into()),
            };
            Attempted { connected, endpoint: self.endpoint, servers: self.servers }
        })
    }

    async fn connect<P: Prepare>(
        &mut self,
        mut settings: Settings,
        prepare: P,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Option<(Channel, P::Found)>, Trouble> {
        let Self { endpoint, servers, node } = self;
        let connected = match (decide(endpoint, &mut settings, watch).await, node) {
            (Ok(None), Some(node)) => connect_to_node(endpoint, &settings, node, endpoint.first_streams(), watch).await,
            (Ok(None), None) if endpoint.cluster().is_some() => return Ok(None),
            (Ok(None), None) => servers.connect(endpoint, &settings, watch).await,
            (Ok(Some(transport)), _) => Ok(transport),
            (Err(error), _) => Err(error),
        };
        let mut transport = connected.map_err(|error| match error {
            ConnectError::Fault(fault) => Trouble::Fault(fault),
            ConnectError::Interrupted => Error::Interrupted.into(),
        })?;
        let silence = settings.command_timeout;
        match prepare.run(&mut transport, silence, until, watch).await {
            Ok(found) => Ok(Some((Channel::new(transport, silence), found))),
            Err(trouble) => {
                transport.abort();
                Err(trouble.naming(endpoint))
            }
        }
    }
}
