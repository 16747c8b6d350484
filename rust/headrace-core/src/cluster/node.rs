//! The address of a node: a server of a cluster, or a sentinel.

use std::fmt;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    /// A name or an IP address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Formats the node as `host:port`, with brackets around an IPv6 address.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}
