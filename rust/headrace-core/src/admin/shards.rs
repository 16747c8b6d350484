//! The shards of a stream, for those who read it: which it has, and whether these are the ones of the endpoint.

use super::command::Command;
use super::kept_connections::KeptConnections;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Fault, Result, code};
use crate::net::{ShardRegistry, Watch};
use crate::resp::value::{bytes, list};
use crate::shards::{Shards, registry_key};

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
        registry.read(&reply).map(drop).map_err(error)
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

/// The same endpoint with the shards that its stream has, by what the first producer wrote beside them.
///
/// An endpoint that names shards is only checked. Needs the right HGETALL on the key `{stream_key}:shards`.
///
/// # Errors
///
/// [`Error::Command`] with `BAD_SHARDS`: nothing says that the stream has shards, or which; or it has others than the endpoint
/// names. Otherwise as for [`inspect`](crate::inspect()).
pub fn find_shards(endpoint: &Endpoint, watch: &mut dyn Watch) -> Result<Endpoint> {
    let mut connections = KeptConnections::new(endpoint);
    let found = if endpoint.shards().is_some() {
        check_shards(&mut connections, endpoint, watch).map(|()| endpoint.clone())
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
            error(Fault::new(code::PROTOCOL, "the server's reply to HGETALL is no list of fields and values"))
        })?;
        let key = registry.escape_ascii();
        if fields.is_empty() {
            let name = name.escape_ascii();
            let message = format!("the stream '{name}' has no shards: no producer has written the key '{key}'");
            return Err(error(Fault::new(code::BAD_SHARDS, message)));
        }
        Shards::from_registry(name, &fields).map_err(|why| {
            error(Fault::new(code::BAD_SHARDS, format!("the key '{key}' does not say which shards there are: {why}")))
        })
    })?;
    read.into_iter().next().ok_or_else(|| error(Fault::new(code::PROTOCOL, "the server did not reply to HGETALL")))
}

fn error(fault: Fault) -> Error {
    let kind = Classifier::default().kind(&fault);
    Error::Command { code: fault.code.into_owned(), kind, message: fault.message }
}
