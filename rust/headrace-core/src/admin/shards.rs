//! Whether those who read a stream take it for as many shards as it has.

use super::command::Command;
use super::kept_connections::KeptConnections;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Result};
use crate::net::{ShardRegistry, Watch};

/// Refuses shards that are others than those of the stream. While there is no registry, nothing was written by way of it.
pub(crate) fn check_shards(
    connections: &mut KeptConnections,
    endpoint: &Endpoint,
    watch: &mut dyn Watch,
) -> Result<()> {
    let Some(shards) = endpoint.shards() else { return Ok(()) };
    let registry = ShardRegistry { name: endpoint.stream_key(), shards };
    let command = Command::read("hgetall").key(&registry.key());
    let read = connections.ask_all(&[command], watch, |command, reply| {
        let reply = reply.map_err(|refusal| command.refused(&refusal))?;
        registry.read(&reply).map(drop).map_err(|fault| {
            let kind = Classifier::default().kind(&fault);
            Error::Command { code: fault.code.into_owned(), kind, message: fault.message }
        })
    });
    read.map(drop)
}

/// The same over connections for this check alone.
pub(crate) fn check_shards_once(endpoint: &Endpoint, watch: &mut dyn Watch) -> Result<()> {
    if endpoint.shards().is_none() {
        return Ok(());
    }
    let mut connections = KeptConnections::new(endpoint);
    let checked = check_shards(&mut connections, endpoint, watch);
    connections.close();
    checked
}
