//! Resolves the host name to addresses, under the deadline.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::deadline::{ConnectError, Deadline, Stage};
use super::in_thread::in_thread;
use super::socket::reason;
use crate::error::{Fault, code};

/// An IP address in the place of a host name, with or without the brackets of a URL.
pub(super) fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// The addresses of `host`, in the resolver's order; never empty.
///
/// The system's resolver has no deadline of its own, so a name is looked up on a helper thread. IP addresses need no lookup.
pub(super) async fn resolve(
    host: &str,
    port: u16,
    patience: &mut Deadline<'_>,
) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Some(ip) = literal(host) {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    wait_for(move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter), patience).await
}

/// The addresses that `look_up` finds within the deadline.
async fn wait_for(
    look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    patience: &mut Deadline<'_>,
) -> Result<Vec<SocketAddr>, ConnectError> {
    patience.enter(Stage::Resolve);
    match in_thread("headrace-resolve", look_up, patience).await? {
        Ok(addresses) if addresses.is_empty() => Err(dns("the host name has no address").into()),
        Ok(addresses) => Ok(addresses),
        Err(error) => Err(dns(&unresolved(&error)).into()),
    }
}

fn unresolved(error: &io::Error) -> String {
    let text = reason(error);
    let why = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    format!("the host name cannot be resolved: {why}")
}

fn dns(message: &str) -> Fault {
    Fault::new(code::DNS, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::super::block_on::block_on;
    use super::super::deadline::{NeverInterrupted, Watch};
    use super::*;

    #[test]
    fn literals_need_no_resolver() {
        for host in ["::1", "[::1]"] {
            assert_eq!(literal(host), Some("::1".parse().unwrap()));
        }
        assert_eq!(literal("127.0.0.1"), Some("127.0.0.1".parse().unwrap()));
        for host in ["localhost", "[::1", "::1]", "127.1", ""] {
            assert_eq!(literal(host), None, "{host}");
        }
        // A literal resolves even with no time left: nothing is waited for.
        let mut patience_watch = NeverInterrupted;
        let mut patience = Deadline::new(Instant::now(), &mut patience_watch);
        let addresses = block_on(resolve("[::1]", 6379, &mut patience)).unwrap();
        assert_eq!(addresses, ["[::1]:6379".parse().unwrap()]);
    }

    #[test]
    fn a_name_without_an_address_is_a_dns_fault() {
        let deadline = Instant::now() + Duration::from_secs(20);
        for host in ["no-such-host.invalid", "nul\0in.the.name"] {
            let error = block_on(resolve(host, 6379, &mut Deadline::new(deadline, &mut NeverInterrupted))).unwrap_err();
            let ConnectError::Fault(fault) = error else { panic!("interrupted") };
            assert_eq!(fault.code, code::DNS);
            assert!(fault.message.starts_with("the host name cannot be resolved: "), "{}", fault.message);
        }
    }

    /// Waits for a resolver that never answers, until the deadline or an interrupt.
    fn wait_in_vain(deadline: Duration, watch: &mut dyn Watch) -> (ConnectError, Duration) {
        let (silence, silent) = mpsc::channel::<()>();
        let started = Instant::now();
        let look_up = move || {
            let _ = silent.recv();
            Ok(Vec::new())
        };
        let error = block_on(wait_for(look_up, &mut Deadline::new(started + deadline, watch))).unwrap_err();
        let took = started.elapsed();
        drop(silence);
        (error, took)
    }

    #[test]
    fn a_resolver_that_never_answers_does_not_outlast_the_deadline() {
        let (error, took) = wait_in_vain(Duration::from_millis(120), &mut NeverInterrupted);
        let ConnectError::Fault(fault) = error else { panic!("interrupted") };
        assert_eq!((&*fault.code, &*fault.message), (code::TIMEOUT, "timed out while resolving the host name"));
        assert!(took >= Duration::from_millis(120) && took < Duration::from_secs(1), "{took:?}");
    }

    #[test]
    fn the_watch_is_polled_while_the_resolver_is_silent() {
        struct Second(bool);
        impl Watch for Second {
            fn interrupted(&mut self) -> bool {
                std::mem::replace(&mut self.0, true)
            }
        }
        let (error, took) = wait_in_vain(Duration::from_secs(60), &mut Second(false));
        assert_eq!(error, ConnectError::Interrupted);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
