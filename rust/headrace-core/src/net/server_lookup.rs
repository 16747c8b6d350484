//! Finds out which server a connection goes to, if the endpoint names one or its sentinels do. Which node of a cluster has a
//! stream is known to a [`ClusterMap`](crate::cluster::ClusterMap).

use std::time::Instant;

use super::change::ServerChange;
use super::deadline::{ConnectError, Deadline, Watch};
use super::handshake::Greeting;
use super::master_lookup::{MasterCheck, MasterLookup};
use super::opening::Opening;
use super::peer::Peer;
use super::stream::Transport;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Fault, code};

/// What is known about the server of an endpoint.
#[derive(Debug)]
pub(crate) enum ServerLookup {
    /// The endpoint names it.
    Fixed,
    /// Sentinels name it.
    Master(Box<MasterLookup>),
}

impl ServerLookup {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        if endpoint.sentinels().is_some() { Self::Master(Box::default()) } else { Self::Fixed }
    }

    /// Sentinels named the server, and the one that was polled was lost. `took`: how long it took to connect to it.
    #[cfg(test)]
    pub(crate) fn without_sentinel(took: std::time::Duration) -> Self {
        Self::Master(Box::new(MasterLookup::without_sentinel(took)))
    }

    /// Connects, within `settings.connect_timeout`. [`take_change`](Self::take_change) says whether to another server than
    /// before.
    pub(crate) async fn connect(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        watch: &mut dyn Watch,
    ) -> Result<Transport, ConnectError> {
        let now = Instant::now();
        let patience = &mut Deadline::new(now.checked_add(settings.connect_timeout).unwrap_or(now), watch);
        match (self, endpoint.address(settings)) {
            (_, Some(address)) => {
                let title = address.to_string();
                let greeting = Greeting::Server { endpoint, settings, streams: endpoint.first_streams() };
                let timeout = settings.connect_timeout;
                let access = endpoint.access();
                Peer { address: &address, dial: None, title, access, greeting, timeout }.connect(patience).await
            }
            (Self::Master(master), None) => master.connect(endpoint, settings, patience).await,
            (Self::Fixed, None) => Err(Fault::new(code::CONFIG, "the endpoint does not name one server").into()),
        }
    }

    /// The change of servers found by the last connect. Returned only once.
    pub(crate) fn take_change(&mut self) -> Option<ServerChange> {
        match self {
            Self::Master(master) => master.take_change(),
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
            Self::Fixed => None,
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
            Self::Fixed => Ok(()),
        }
    }

    /// Begins a [`check`](Self::check) that goes on while the connection is used, if one is due.
    pub(crate) fn begin_check(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Opening<MasterCheck>> {
        let is_due = self.is_due(now);
        match self {
            Self::Master(master) if is_due => master.begin_check(endpoint, now),
            Self::Master(_) | Self::Fixed => None,
        }
    }

    /// Ends such a check.
    pub(crate) fn checked(&mut self, check: MasterCheck) -> Result<(), ConnectError> {
        match self {
            Self::Master(master) => master.checked(check),
            Self::Fixed => Ok(()),
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
            Self::Fixed => Ok(None),
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
