//! What a connect has come to, for its watch.

use std::net::SocketAddr;

/// What a connect has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectStep<'a> {
    /// It begins: the server in messages.
    Peer(&'a str),
    /// This begins: `dns`, `tcp`, `tls`, `auth` and so on.
    Stage(&'static str),
    /// The host name has this address.
    Address(SocketAddr),
    /// This address could not be connected to.
    Unreached(SocketAddr, &'a str),
    /// This address was connected to.
    Reached(SocketAddr),
    /// The version and the cipher of the TLS session.
    Session(&'a str),
    /// The certificate that the server showed, as DER. It was verified, unless the endpoint says not to.
    Certificate(&'a [u8]),
    /// The server can be used.
    Connected,
}
