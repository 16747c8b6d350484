//! The shards of a stream, as its readers see them: their number and naming, and whether they match those of the endpoint.

use super::command::Command;
use super::kept_connections::KeptConnections;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result, code};
use crate::net::{ShardRegistry, Watch, block_on};
use crate::resp::value::{bytes, list};
use crate::shards::{Shards, registry_key};

/// Fails if the endpoint's shards differ from those of the stream. A missing registry matches: no producer has written with
/// shards.
pub(crate) async fn check_shards(
    connections: &mut KeptConnections,
    endpoint: &Endpoint,
    watch: &mut dyn Watch,
) -> Result<()> {
    let Some(shards) = endpoint.shards() else { return Ok(()) };
    let registry = ShardRegistry { name: endpoint.stream_key(), shards };
    let command = Command::read("hgetall").key(&registry.key());
    let commands = [command];
    let read = connections.asked(&commands, watch, |command, reply| {
        let reply = reply.map_err(|refusal| command.refused(&refusal))?;
        registry.read(&reply).map(drop).map_err(|fault| Error::refusal(&fault))
    });
    read.await.map(drop)
}

/// Like [`check_shards`], over connections that are used only for this check.
pub(crate) async fn check_shards_once(endpoint: &Endpoint, watch: &mut dyn Watch) -> Result<()> {
    if endpoint.shards().is_none() {
        return Ok(());
    }
    let mut connections = KeptConnections::new(endpoint);
    let checked = check_shards(&mut connections, endpoint, watch).await;
    connections.close();
    checked
}

/// Returns the endpoint with the shards of its stream, as recorded by the first producer.
///
/// If the endpoint names shards, they are only checked. Needs permission for HGETALL on the key `{stream_key}:shards`.
///
/// # Errors
///
/// [`Error::Command`] with `BAD_SHARDS` if no record says that the stream has shards, or which ones, or if they differ from
/// those of the endpoint. Otherwise as for [`inspect`](crate::inspect()).
pub fn find_shards(endpoint: &Endpoint, watch: &mut dyn Watch) -> Result<Endpoint> {
    let mut connections = KeptConnections::new(endpoint);
    let found = if endpoint.shards().is_some() {
        block_on(check_shards(&mut connections, endpoint, watch)).map(|()| endpoint.clone())
    } else {
        read_shards(&mut connections, endpoint.stream_key(), watch).and_then(|shards| endpoint.with_shards(shards))
    };
    connections.close();
    found
}

fn read_shards(connections: &mut KeptConnections, name: &[u8], watch: &mut dyn Watch) -> Result<Shards> {
    let registry = registry_key(name);
    let command = Command::read("hgetall").key(&registry);
    let read = connections.ask_all(&[command], watch, |command, reply| {
        let reply = reply.map_err(|refusal| command.refused(&refusal))?;
        let fields = list(&reply).and_then(|parts| parts.iter().map(bytes).collect::<Option<Vec<_>>>());
        let fields = fields.ok_or_else(|| {
            Error::refusal(&Fault::new(
                code::PROTOCOL,
                "the server's reply to HGETALL is not a list of fields and values",
            ))
        })?;
        let key = registry.escape_ascii();
        if fields.is_empty() {
            let name = name.escape_ascii();
            let message = format!("the stream '{name}' has no shards: no producer has written the key '{key}'");
            return Err(Error::refusal(&Fault::new(code::BAD_SHARDS, message)));
        }
        Shards::from_registry(name, &fields).map_err(|why| {
            Error::refusal(&Fault::new(
                code::BAD_SHARDS,
                format!("the key '{key}' does not say which shards exist: {why}"),
            ))
        })
    })?;
    read.into_iter()
        .next()
        .ok_or_else(|| Error::refusal(&Fault::new(code::PROTOCOL, "the server did not reply to HGETALL")))
}
