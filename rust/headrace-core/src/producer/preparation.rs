//! The preparation of a new socket before its first message. It owns everything that it needs, so it can continue while the
//! producer sends to other nodes.

use std::time::{Duration, Instant};

use super::preflight::{self, Requirement};
use crate::cluster::{ClusterMap, Node};
use crate::durability::Durability;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Fault, code};
use crate::net::{ConnectError, Opening, ServerLookup, Transport, Watch, connect_to_node};

/// What is known about the shard registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registry {
    Unknown,
    /// The registry existed and matched: it may not be written again.
    Seen,
}

/// Whether the consumer group was created in the shards of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    Unknown,
    Created,
}

/// The next step when there is no socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// Ask other nodes which node has the slots: this node may be gone.
    AskOthers,
    /// Ask other nodes if this node says that another one has the slot.
    AskAfterRedirect,
    /// Fail the commands that wait for the lane.
    Fail,
}

/// The result of [`Preparation::open`].
pub(super) struct Ended {
    /// Also carries what the preparation found out.
    pub(super) preparation: Preparation,
    pub(super) opened: Result<Opened, ConnectError>,
    /// Whether a connection was established.
    pub(super) is_reached: bool,
    /// When the last try for the lane must end.
    pub(super) until: Instant,
    pub(super) on_failure: OnFailure,
}

/// A socket whose server supports what the options require.
pub(super) struct Opened {
    pub(super) transport: Transport,
    pub(super) command_timeout: Duration,
    /// How many replicas to wait for, if these are all that the server has.
    pub(super) replicas: Option<u64>,
    /// How many replicas are waited for, and how many exist, if more exist.
    pub(super) too_few: Option<(u64, u64)>,
}

/// How many replicas the server of a socket has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Replicas {
    /// See [`Opened::replicas`].
    pub(super) all: Option<u64>,
    /// See [`Opened::too_few`].
    pub(super) too_few: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Preparation {
    pub(super) endpoint: Endpoint,
    pub(super) settings: Settings,
    /// What was known of the cluster when the preparation started, and was found out since.
    pub(super) map: ClusterMap,
    /// The node that the socket leads to; `None` for the only server.
    pub(super) node: Option<Node>,
    /// Whether the node has the endpoint's stream.
    pub(super) is_home: bool,
    pub(super) registry: Registry,
    pub(super) groups: Groups,
    /// The shards of the socket's node, and those of other nodes.
    pub(super) shards: (Vec<Vec<u8>>, Vec<Vec<u8>>),
    /// The key of a stream on the node.
    pub(super) key: Vec<u8>,
    /// What the server must support.
    pub(super) requirements: Vec<Requirement>,
    /// What to wait for before a message counts as delivered.
    pub(super) durability: Option<Durability>,
    /// Whether no socket was opened before.
    pub(super) is_first: bool,
}

impl Preparation {
    /// Opens a socket to a node of a cluster, while the producer sends to others. `until`: when the last try for the lane must
    /// end.
    pub(super) fn open(mut self, node: Node, until: Instant, on_failure: OnFailure) -> Opening<Ended> {
        Opening::new(self.settings.connect_timeout, |mut watch, ends| async move {
            let (opened, is_reached) = match self.connect(&node, &mut watch).await {
                Ok(transport) => (self.run(transport, None, ends, &mut watch).await, true),
                Err(error) => (Err(error), false),
            };
            Ended { preparation: self, opened, is_reached, until, on_failure }
        })
    }

    /// Connects to the node.
    async fn connect(&self, node: &Node, watch: &mut dyn Watch) -> Result<Transport, ConnectError> {
        let streams = if self.is_home { self.endpoint.first_streams() } else { &[] };
        connect_to_node(&self.endpoint, &self.settings, node, streams, watch).await
    }

    /// Checks whether the server of a new socket supports what the options require. `servers`: the lookup of the only server.
    pub(super) async fn run(
        &mut self,
        mut transport: Transport,
        servers: Option<&mut ServerLookup>,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Opened, ConnectError> {
        match self.check(&mut transport, servers, until, watch).await {
            Ok(Replicas { all, too_few }) => {
                let command_timeout = self.settings.command_timeout;
                Ok(Opened { transport, command_timeout, replicas: all, too_few })
            }
            Err(error) => {
                transport.abort();
                Err(self.explained(error))
            }
        }
    }

    async fn check(
        &mut self,
        transport: &mut Transport,
        servers: Option<&mut ServerLookup>,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Replicas, ConnectError> {
        self.check_shards(transport, until, watch).await?;
        let Self { endpoint, requirements, key, .. } = self;
        preflight::check(requirements, transport, key, endpoint.nomkstream(), until, watch).await?;
        self.count_replicas(transport, servers, until, watch).await
    }

    /// Returns the error, prefixed with the endpoint if the socket was lost. A server's own error text needs no prefix.
    fn explained(&self, error: ConnectError) -> ConnectError {
        match error {
            ConnectError::Fault(fault) if code::is_away(&fault.code) => {
                let message = format!("cannot connect to {}: {}", self.endpoint, fault.message);
                // `Fault::new` is called again only to cut the text to the longest message.
                Fault { message: Fault::new(code::CONNECT, message).message, ..fault }.into()
            }
            ConnectError::Fault(_) | ConnectError::Interrupted => error,
        }
    }
}
