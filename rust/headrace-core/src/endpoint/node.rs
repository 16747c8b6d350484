//! Reads the address of a node from an option: that of a sentinel, or of a server of a cluster.

use super::host::check_host;
use super::option::quoted;
use crate::cluster::Node;
use crate::error::{Error, Result};

/// Parses `host`, `host:port` or `[v6]:port`, given for `option`; `default_port` is used if there is no port.
pub(super) fn read_node(option: &str, text: &str, default_port: u16) -> Result<Node> {
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
    Ok(Node { host: check_host(option, host)?, port })
}
