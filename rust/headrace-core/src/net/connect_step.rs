//! The steps of a connect, as its watch sees them.

use std::net::SocketAddr;

/// A step that a connect has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectStep<'a> {
    /// The connect starts; this is the server's name in messages.
    Peer(&'a str),
    /// This stage starts: `dns`, `tcp`, `tls`, `auth` and so on.
    Stage(&'static str),
    /// The host name resolves to this address.
    Address(SocketAddr),
    /// Connecting to this address failed.
    Unreached(SocketAddr, &'a str),
    /// Connecting to this address succeeded.
    Reached(SocketAddr),
    /// The version and the cipher of the TLS session.
    Session(&'a str),
    /// The certificate that the server showed, as DER. It was verified, unless the endpoint disables verification.
    Certificate(&'a [u8]),
    /// The server is ready for use.
    Connected,
}
