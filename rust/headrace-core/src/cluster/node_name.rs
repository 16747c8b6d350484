//! The name of a node in a reply: its address, as far as the server states it.

/// A host, which may be missing, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeName {
    /// `None`: the host of the node that sent the reply, as with `cluster-preferred-endpoint-type unknown-endpoint`.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

impl NodeName {
    /// Returns a name, unless it names no node: `?` is a host that the server does not know, and 0 is no port.
    pub(super) fn new(host: &[u8], port: Option<u16>) -> Option<Self> {
        let port = port.filter(|port| *port > 0)?;
        let host =
            std::str::from_utf8(host).ok().filter(|host| !host.contains(|c: char| c == '\0' || c.is_whitespace()))?;
        match host {
            "?" => None,
            "" => Some(Self { host: None, port }),
            _ => Some(Self { host: Some(host.to_owned()), port }),
        }
    }
}
