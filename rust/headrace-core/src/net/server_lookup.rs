//! Finds out which server a connection goes to, if the endpoint alone does not say.

use std::time::Instant;

use super::change::ServerChange;
use super::deadline::{ConnectError, Deadline, Watch};
use super::handshake::Greeting;
use super::master_lookup::MasterLookup;
use super::owner_lookup::OwnerLookup;
use super::peer::Peer;
use super::stream::Transport;
use crate::endpoint::{Endpoint, Settings};
use crate::error::Fault;

/// What is known about the server of an endpoint.
#[derive(Debug)]
pub(crate) enum ServerLookup {
    /// The endpoint names it.
    Fixed,
    /// Sentinels name it.
    Master(MasterLookup),
    /// It is the node of a cluster that has the stream.
    Owner(OwnerLookup),
}

impl ServerLookup {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        match () {
            () if endpoint.sentinels().is_some() => Self::Master(MasterLookup::default()),
            () if endpoint.cluster().is_some() => {
                Self::Owner(OwnerLookup::new(endpoint.stream_key(), endpoint.node_map()))
            }
            () => Self::Fixed,
        }
    }

    pub(super) async fn connect(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        match (self, endpoint.address(settings), endpoint.cluster()) {
            (Self::Owner(owner), _, Some(cluster)) => owner.connect(endpoint, settings, cluster, patience).await,
            (_, Some(address), _) => {
                let title = address.to_string();
                let greeting = Greeting::Server { endpoint, settings, streams: endpoint.first_streams() };
                let timeout = settings.connect_timeout;
                let access = endpoint.access();
                Peer { address: &address, dial: None, title, access, greeting, timeout }.connect(patience).await
            }
            (Self::Master(master), None, _) => master.connect(endpoint, settings, patience).await,
            // The lookup was made for another endpoint.
            (lookup, None, _) => {
                *lookup = Self::new(endpoint);
                Box::pin(lookup.connect(endpoint, settings, patience)).await
            }
        }
    }

    /// The change of servers found by the last connect. Returned only once.
    pub(super) fn take_change(&mut self) -> Option<ServerChange> {
        match self {
            Self::Master(master) => master.take_change(),
            Self::Owner(owner) => owner.take_change(),
            Self::Fixed => None,
        }
    }

    /// Whether it is time for [`check`](Self::check).
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// The time of the next [`check`](Self::check). `None` if it never needs one.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self {
            Self::Master(master) => master.due(),
            Self::Fixed | Self::Owner(_) => None,
        }
    }

    /// Asks whether the server is still the right one to be connected to; see [`MasterLookup::check`].
    pub(crate) async fn check(
        &mut self,
        endpoint: &Endpoint,
        now: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        match self {
            Self::Master(master) => master.check(endpoint, now, watch).await,
            Self::Fixed | Self::Owner(_) => Ok(()),
        }
    }

    /// The number of replicas that the server should have, or why that is not known. `None` if only the server itself knows.
    pub(crate) async fn replicas(
        &mut self,
        endpoint: &Endpoint,
        patience: &mut Deadline<'_>,
    ) -> Result<Option<Result<u64, Fault>>, ConnectError> {
        match self {
            Self::Master(master) => master.replicas(endpoint, patience).await,
            Self::Fixed | Self::Owner(_) => Ok(None),
        }
    }

    /// Ends the connections that are used only for asking.
    pub(crate) fn close(&mut self) {
        if let Self::Master(master) = self {
            master.close();
        }
    }

    /// Drops connections that belong to the parent process of a fork.
    pub(crate) fn forget(&mut self) {
        if let Self::Master(master) = self {
            master.forget();
        }
    }
}
