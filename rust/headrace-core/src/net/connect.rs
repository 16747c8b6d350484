//! From an endpoint to a connection whose handshake is complete: all under one deadline.

use std::time::Instant;

use super::deadline::{ConnectError, Deadline, Watch};
use super::handshake::{Greeting, Mode};
use super::peer::Peer;
use super::server_lookup::ServerLookup;
use super::stream::Transport;
use crate::endpoint::{Endpoint, Settings};

/// Connects: name resolution, TCP or Unix socket, TLS and the server's handshake, all within `settings.connect_timeout`. The
/// returned transport never blocks.
///
/// `watch` is polled at least every 50 ms. Passwords and TLS files are read now, before any socket is opened; a failure to
/// read them has the code `CONFIG`. Messages name the server's address, but no secret.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    connect_with(&mut ServerLookup::new(endpoint), endpoint, settings, watch).await
}

/// Like [`connect`], but to the server that `lookup` finds. Reports to `watch` if it differs from the server of the previous
/// connect.
pub(crate) async fn connect_with(
    lookup: &mut ServerLookup,
    endpoint: &Endpoint,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let connected = lookup.connect(endpoint, settings, watch).await;
    if let Some(change) = lookup.take_change() {
        watch.server_changed(endpoint, &change);
    }
    connected
}

/// Connects to the server of an endpoint that leaves open whether it is a node of a cluster, and stores the server's answer
/// in the endpoint. Returns the connection, unless the server is a node of a cluster: then the nodes must be asked which of
/// them has a stream. The time this takes is subtracted from the connect timeout in `settings`.
///
/// The first server's answer holds for as long as that endpoint is used: a message that is waiting, or whose outcome is
/// unknown, has its place in the order of messages of one server, or of one slot.
pub(crate) async fn decide(
    endpoint: &mut Endpoint,
    settings: &mut Settings,
    watch: &mut dyn Watch,
) -> Result<Option<Transport>, ConnectError> {
    let Some(address) = endpoint.address(settings).filter(|_| endpoint.is_undecided()) else { return Ok(None) };
    let now = Instant::now();
    let deadline = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let greeting = Greeting::Server { endpoint, settings, streams: endpoint.first_streams() };
    let (title, access, timeout) = (address.to_string(), endpoint.access(), settings.connect_timeout);
    let peer = Peer { address: &address, dial: None, title, access, greeting, timeout };
    let (transport, mode) = peer.find(&mut Deadline::new(deadline, watch)).await?;
    let is_of_cluster = mode == Mode::Cluster;
    *endpoint = endpoint.decided(is_of_cluster);
    settings.connect_timeout = deadline.saturating_duration_since(Instant::now());
    if is_of_cluster {
        transport.close();
        return Ok(None);
    }
    Ok(Some(transport))
}
