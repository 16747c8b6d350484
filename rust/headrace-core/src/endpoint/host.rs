//! Host names, checked as they are given.

use std::net::Ipv6Addr;

use super::option::quoted;
use crate::error::{Error, Result};

/// Checks a name, an IPv4 address, or an IPv6 address with or without brackets and zone; returns it without brackets.
pub(super) fn check_host(option: &str, host: &str) -> Result<String> {
    // A refused value may be a whole URL with a password in it, so it is not shown.
    if host.contains("://") || host.contains(['/', '@', '?', '#', '\0']) {
        let message = format!(
            "{option} must be a name or an IP address, got text with one of / @ ? # or NUL in it; URLs are for from_url"
        );
        return Err(Error::config(option, message));
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let message = format!("{option} must be a name or an IP address without white space, got {}", quoted(host));
        return Err(Error::config(option, message));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = bare.split_once('%').map_or(bare, |(address, _zone)| address);
    let is_v6 = address.parse::<Ipv6Addr>().is_ok();
    if (bare != host || bare.contains(':')) && !is_v6 {
        let message = format!(
            "{option} must be a name or an IP address without a port, got {}; give port separately",
            quoted(host)
        );
        return Err(Error::config(option, message));
    }
    Ok(bare.to_owned())
}
