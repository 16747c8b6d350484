//! Counts the replicas of a new socket's server: all of them are waited for, or fewer with a warning.

use std::time::Instant;

use super::preparation::{Preparation, Replicas};
use crate::error::Fault;
use crate::net::{ConnectError, Deadline, ServerLookup, Transport, Watch, connected_replicas, replicas_of};

/// The error code of a server that has too few replicas.
const NOREPLICAS: &str = "NOREPLICAS";

impl Preparation {
    /// Counts the replicas, unless none is waited for. A number given by the caller is compared on the first socket only.
    pub(super) async fn count_replicas(
        &mut self,
        transport: &mut Transport,
        servers: Option<&mut ServerLookup>,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Replicas, ConnectError> {
        let Some(wanted) = self.durability.as_ref().map(|durability| durability.replicas) else {
            return Ok(Replicas::default());
        };
        if wanted == Some(0) || (wanted.is_some() && !self.is_first) {
            return Ok(Replicas::default());
        }
        let counted = self.ask_for_replicas(transport, servers, &mut Deadline::new(until, watch)).await?;
        match (wanted, counted) {
            (None, Ok(0)) => {
                let message = "wait_replicas 'all' needs at least one replica, and the server has none";
                Err(Fault::new(NOREPLICAS, message).into())
            }
            (None, Ok(count)) => Ok(Replicas { all: Some(count), too_few: None }),
            (None, Err(refusal)) => {
                let message = format!("wait_replicas 'all' has to count the replicas: {}", refusal.message);
                Err(Fault { message: Fault::new(NOREPLICAS, message).message, ..refusal }.into())
            }
            (Some(wanted), Ok(count)) if wanted < count => Ok(Replicas { all: None, too_few: Some((wanted, count)) }),
            // Not every user may count the replicas.
            (Some(_), Ok(_) | Err(_)) => Ok(Replicas::default()),
        }
    }

    /// The number of replicas: those that the cluster or the sentinels list, or those that are connected, whichever is more. A
    /// node does not list a replica that has no data yet, and a sentinel lists a new one late.
    async fn ask_for_replicas(
        &mut self,
        transport: &mut Transport,
        servers: Option<&mut ServerLookup>,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<u64, Fault>, ConnectError> {
        let listed = match (&self.node, servers) {
            (Some(node), _) => replicas_of(&mut self.map, transport, node, patience).await?.transpose(),
            (None, Some(servers)) => servers.replicas(&self.endpoint, patience).await?,
            (None, None) => None,
        };
        let connected = connected_replicas(transport, patience).await?;
        Ok(match (listed, connected) {
            (Some(Ok(listed)), Ok(connected)) => Ok(listed.max(connected)),
            (Some(listed), _) => listed,
            (None, connected) => connected,
        })
    }
}
