//! How many replicas the server of a new socket has: all of them are waited for, or fewer with a warning.

use std::time::Instant;

use super::Producer;
use crate::error::Fault;
use crate::net::{ConnectError, Deadline, TooFewReplicas, Transport, Watch, connected_replicas};

/// The code of a server that has too few replicas.
const NOREPLICAS: &str = "NOREPLICAS";

impl Producer {
    /// Counts the replicas, unless none is waited for. `None`: the number that is waited for is given.
    pub(super) async fn count_replicas(
        &mut self,
        at: usize,
        transport: &mut Transport,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Option<u64>, ConnectError> {
        let Some(wanted) = self.lanes.get(at).wait.as_ref().map(|wait| wait.durability.replicas) else {
            return Ok(None);
        };
        let is_first = self.recorder().counters().connections.get() == 0;
        if wanted == Some(0) || (wanted.is_some() && !is_first) {
            return Ok(None);
        }
        let counted = self.ask_for_replicas(at, transport, &mut Deadline::new(until, watch)).await?;
        match (wanted, counted) {
            (None, Ok(0)) => {
                let message = "wait_replicas 'all' needs at least one replica, and the server has none";
                Err(Fault::new(NOREPLICAS, message).into())
            }
            (None, Ok(count)) => Ok(Some(count)),
            (None, Err(refusal)) => {
                let message = format!("wait_replicas 'all' has to count the replicas: {}", refusal.message);
                Err(Fault { message: Fault::new(NOREPLICAS, message).message, ..refusal }.into())
            }
            (Some(wanted), Ok(count)) if wanted < count => {
                watch.too_few_replicas(&TooFewReplicas { endpoint: &self.endpoint, wanted, count });
                Ok(None)
            }
            // Not every user may count.
            (Some(_), Ok(_) | Err(_)) => Ok(None),
        }
    }

    /// The number of replicas: those that the cluster or the sentinels list, or those that are connected, whichever is more. A
    /// node lists none that has no data yet, and a sentinel lists a new one late.
    async fn ask_for_replicas(
        &mut self,
        at: usize,
        transport: &mut Transport,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<u64, Fault>, ConnectError> {
        let listed = match self.lanes.node(at) {
            Some(node) => self.nodes.replicas_of(transport, node, patience).await?.transpose(),
            None => self.servers.replicas(&self.endpoint, patience).await?,
        };
        let connected = connected_replicas(transport, patience).await?;
        Ok(match (listed, connected) {
            (Some(Ok(listed)), Ok(connected)) => Ok(listed.max(connected)),
            (Some(listed), _) => listed,
            (None, connected) => connected,
        })
    }
}
