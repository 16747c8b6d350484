//! The address of a node: a sentinel, or a server of a cluster.

use std::fmt;

use super::host::check_host;
use super::option::quoted;
use crate::error::{Error, Result};

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    /// A name or an IP address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Node {
    /// Parses `host`, `host:port` or `[v6]:port`, given for `option`; `default_port` is used if there is no port.
    pub(super) fn read(option: &str, text: &str, default_port: u16) -> Result<Self> {
        let refuse = || {
            let message =
                format!("{option} must be hosts with or without a port ('host:{default_port}'), got {}", quoted(text));
            Error::config(option, message)
        };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0 && !text.ends_with(char::is_whitespace));
                (host, port.ok_or_else(refuse)?)
            }
            _ => (text, default_port),
        };
        if host.is_empty() {
            return Err(refuse());
        }
        Ok(Self { host: check_host(option, host)?, port })
    }
}

/// Formats the node as `host:port`, with brackets around an IPv6 address.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}
