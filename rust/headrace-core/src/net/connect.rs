//! From an endpoint to a connection that has shaken hands: everything under one deadline.

use std::time::Instant;

use super::deadline::{ConnectError, Deadline, Watch};
use super::handshake::Greeting;
use super::master_lookup::MasterLookup;
use super::peer::Peer;
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
    connect_to_master(endpoint, settings, &mut MasterLookup::default(), watch)
}

/// The same; where sentinels name the server, `lookup` goes on to ask them.
pub(crate) fn connect_to_master(
    endpoint: &Endpoint,
    settings: &Settings,
    lookup: &mut MasterLookup,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let now = Instant::now();
    let deadline = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let mut patience = Deadline::new(deadline, watch);
    match endpoint.address(settings) {
        Some(address) => {
            let title = address.to_string();
            let greeting = Greeting::Server { endpoint, settings };
            let timeout = settings.connect_timeout;
            Peer { address: &address, title, access: endpoint.access(), greeting, timeout }.connect(&mut patience)
        }
        None => lookup.connect(endpoint, settings, &mut patience),
    }
}
