//! Warnings about options that weaken an endpoint.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::access::Access;
use super::explicit::{Explicit, Server};
use super::password::Password;
use super::pem::Pem;

/// Permission for the group and for others to read a file.
const OTHERS_READ: u32 = 0o044;

/// One sentence for each weakness of the endpoint.
pub(super) fn warnings(explicit: &Explicit) -> Vec<String> {
    let unchecked = explicit.access.tls().filter(|tls| tls.skip_verify).and_then(|_| match &explicit.server {
        Server::Tcp { host, .. } => Some(host.clone()),
        Server::Sentinel(sentinels) => Some(format!("the master '{}'", sentinels.master)),
        Server::Cluster(_) => Some("the nodes of the cluster".to_owned()),
        Server::Unix(_) => None,
    });
    let unchecked = unchecked.map(|server| {
        format!(
            "tls_insecure_skip_verify: neither the certificate of {server} nor its name is checked; any host that answers in its \
             place reads the password and every message"
        )
    });
    let mut found: Vec<_> = unchecked.into_iter().collect();
    found.extend(open_files(&explicit.access));
    if let Server::Sentinel(sentinels) = &explicit.server {
        // If the sentinels use the server's TLS options, they name the same files.
        let more: Vec<_> = open_files(&sentinels.access).filter(|text| !found.contains(text)).collect();
        found.extend(more);
    }
    found
}

fn open_files(access: &Access) -> impl Iterator<Item = String> {
    let key = match access.tls().and_then(|tls| Some((tls, tls.client.as_ref()?))) {
        Some((tls, (_, Pem::Path(path)))) => open_to_others(tls.names.tls_key, path),
        Some((_, (_, Pem::Bytes(_)))) | None => None,
    };
    let password = match &access.password {
        Some(Password::File(path)) => open_to_others(access.names.password_file, path),
        _ => None,
    };
    key.into_iter().chain(password)
}

/// The sentence for a file that users other than its owner may read. A file that does not exist yet gives no warning, nor
/// does a pipe, which is read once.
fn open_to_others(option: &str, path: &Path) -> Option<String> {
    let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mode = metadata.permissions().mode() & 0o7777;
    let shown = path.to_string_lossy();
    (mode & OTHERS_READ != 0).then(|| {
        let shown = shown.escape_debug();
        format!(
            "{option}: '{shown}' can be read by users other than its owner (mode {mode:04o}); chmod 600 makes it private"
        )
    })
}
