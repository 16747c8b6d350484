//! From an endpoint to a connection that has shaken hands: everything under one deadline.

use std::time::Instant;

use super::deadline::{ConnectError, Deadline, Watch};
use super::server_lookup::ServerLookup;
use super::stream::Transport;
use crate::endpoint::{Endpoint, Settings};

/// Connects: name resolution, TCP or Unix socket, TLS and the server's handshake, all within
/// `settings.connect_timeout`. The transport that is returned never blocks.
///
/// `watch` is asked at least every 50 ms. Passwords and TLS files are read now, before any socket is opened; a fault in
/// reading them has the code `CONFIG`. Messages name the server's address, never a secret.
pub(crate) fn connect(
    endpoint: &Endpoint,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    connect_with(&mut ServerLookup::new(endpoint), endpoint, settings, watch)
}

/// The same, to the server that `lookup` finds. Reports to `watch` if that is another one than at the connect before.
pub(crate) fn connect_with(
    lookup: &mut ServerLookup,
    endpoint: &Endpoint,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let now = Instant::now();
    let deadline = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let connected = lookup.connect(endpoint, settings, &mut Deadline::new(deadline, watch));
    if let Some(change) = lookup.take_change() {
        watch.server_changed(endpoint, &change);
    }
    connected
}
