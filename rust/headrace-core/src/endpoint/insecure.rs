//! Warnings about options that make an endpoint weaker.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::explicit::{Explicit, Password, Server};
use super::pem::Pem;

/// Permission of the group and of others to read a file.
const OTHERS_READ: u32 = 0o044;

/// One sentence for each weakness of the endpoint.
pub(super) fn warnings(explicit: &Explicit) -> Vec<String> {
    let tls = explicit.tls.as_ref();
    let unchecked = match &explicit.server {
        Server::Tcp { host, .. } if tls.is_some_and(|tls| tls.skip_verify) => Some(format!(
            "tls_insecure_skip_verify: neither the certificate of {host} nor its name is checked; any host that answers in its \
             place reads the password and every message"
        )),
        Server::Tcp { .. } | Server::Unix(_) => None,
    };
    let key = match tls.and_then(|tls| tls.client.as_ref()) {
        Some((_, Pem::Path(path))) => open_to_others("tls_key", path),
        Some((_, Pem::Bytes(_))) | None => None,
    };
    let password = match &explicit.password {
        Some(Password::File(path)) => open_to_others("password_file", path),
        _ => None,
    };
    [unchecked, key, password].into_iter().flatten().collect()
}

/// The sentence for a file that others than its owner may read. A file that is not there yet says nothing, and neither
/// does a pipe, which is read once.
fn open_to_others(option: &str, path: &Path) -> Option<String> {
    let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mode = metadata.permissions().mode() & 0o7777;
    let shown = path.to_string_lossy();
    (mode & OTHERS_READ != 0).then(|| {
        let shown = shown.escape_debug();
        format!(
            "{option}: '{shown}' can be read by others than its owner (mode {mode:04o}); chmod 600 makes it private"
        )
    })
}
