//! From an endpoint to a connection that has shaken hands: everything under one deadline.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::deadline::{ConnectError, Deadline, Stage, Watch};
use super::handshake;
use super::resolve::resolve;
use super::socket::{poll, reason};
use super::stream::Transport;
use super::tls::{TlsStream, server_name};
use crate::endpoint::{Address, Endpoint, Settings, client_config};
use crate::error::{Fault, code};
use crate::secret::Secret;

/// A peer that is gone is noticed within 15 s of silence and three probes, as hiredis' `redisEnableKeepAlive` does it.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);

/// How long to wait before a Unix socket whose backlog is full is tried again: there is nothing to poll for.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// Connects: name resolution, TCP or Unix socket, TLS and the server's handshake, all within
/// `settings.connect_timeout`. The transport that is returned never blocks.
///
/// `watch` is asked at least every 50 ms. Passwords and TLS files are read now, before any socket is opened; a fault in
/// reading them has the code `CONFIG`. Messages name the server's address, never a secret.
pub(crate) fn connect(
    endpoint: &Endpoint,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let now = Instant::now();
    let deadline = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let mut patience = Deadline::new(deadline, watch);
    let address = endpoint.address(settings);
    authenticated(endpoint, settings, &address, &mut patience).map_err(|error| match error {
        ConnectError::Fault(fault) => {
            let encrypted = endpoint.tls().is_some();
            ConnectError::Fault(explained(fault, &address, settings.connect_timeout, patience.stage(), encrypted))
        }
        ConnectError::Interrupted => ConnectError::Interrupted,
    })
}

/// Connects with the password of this moment. If the server refuses it and there is another one by now, which is how a
/// rotation looks that comes in between, connects once more with that.
fn authenticated(
    endpoint: &Endpoint,
    settings: &Settings,
    address: &Address,
    patience: &mut Deadline<'_>,
) -> Result<Transport, ConnectError> {
    let password = endpoint.password()?;
    check_time(endpoint, patience)?;
    match open(endpoint, settings, address, password.as_ref(), patience) {
        Err(ConnectError::Fault(refusal)) if refusal.is_of_password() => {
            match endpoint.changed_password(password.as_ref())? {
                Some(changed) => {
                    check_time(endpoint, patience)?;
                    open(endpoint, settings, address, Some(&changed), patience)
                }
                None => Err(refusal.into()),
            }
        }
        opened => opened,
    }
}

/// Fails if the password provider took all the time there was.
fn check_time(endpoint: &Endpoint, patience: &mut Deadline<'_>) -> Result<(), ConnectError> {
    if endpoint.has_provider() {
        patience.enter(Stage::Password);
        patience.slice()?;
    }
    Ok(())
}

fn open(
    endpoint: &Endpoint,
    settings: &Settings,
    address: &Address,
    password: Option<&Secret>,
    patience: &mut Deadline<'_>,
) -> Result<Transport, ConnectError> {
    let tls = match endpoint.tls() {
        Some(tls) => Some((client_config(tls)?, server_name(tls, address)?)),
        None => None,
    };
    #[cfg(any(test, fuzzing))]
    if let Some(server) = super::mock::dial() {
        return greet(Transport::mock(server?), endpoint, settings, password, patience);
    }
    let socket = match address {
        Address::Tcp { host, port } => dial_tcp(&resolve(host, *port, patience)?, patience)?,
        Address::Unix(path) => dial_unix(path, patience)?,
    };
    let transport = match (tls, address) {
        (None, Address::Tcp { .. }) => Transport::tcp(socket),
        (None, Address::Unix(_)) => Transport::unix(socket),
        (Some((config, name)), _) => {
            patience.enter(Stage::Tls);
            let mut stream = TlsStream::new(socket, config, name)?;
            stream.handshake(patience)?;
            Transport::tls(stream)
        }
    };
    greet(transport, endpoint, settings, password, patience)
}

fn greet(
    mut transport: Transport,
    endpoint: &Endpoint,
    settings: &Settings,
    password: Option<&Secret>,
    patience: &mut Deadline<'_>,
) -> Result<Transport, ConnectError> {
    match handshake::run(&mut transport, endpoint, settings, password, patience) {
        Ok(()) => Ok(transport),
        Err(error) => {
            transport.abort();
            Err(error)
        }
    }
}

/// Tries the addresses in turn. Each gets an equal part of the time that is left when its turn comes, so that one that
/// swallows packets does not keep the others from being tried.
fn dial_tcp(addresses: &[SocketAddr], patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
    patience.enter(Stage::Open);
    let mut last = ConnectError::Fault(Fault::new(code::DNS, "the host name has no address"));
    for (tried, address) in addresses.iter().enumerate() {
        let share = patience.left() / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match dial_one(*address, &mut patience.until(Instant::now() + share)) {
            Ok(socket) => return Ok(socket),
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn dial_one(address: SocketAddr, patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&KEEPALIVE)?;
            Ok(socket)
        })
        .map_err(|error| refused(&error))?;
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => return Ok(socket),
        Err(error) if is(&error, Errno::INPROGRESS) || is(&error, Errno::INTR) => {}
        Err(error) => return Err(refused(&error).into()),
    }
    loop {
        if poll(&socket, true, patience.slice()?).writable {
            return match socket.take_error() {
                Ok(None) => Ok(socket),
                Ok(Some(error)) | Err(error) => Err(refused(&error).into()),
            };
        }
    }
}

fn dial_unix(path: &Path, patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
    patience.enter(Stage::Open);
    let address = SockAddr::unix(path).map_err(|error| refused(&error))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|error| refused(&error))?;
    loop {
        let slice = patience.slice()?;
        match socket.connect(&address) {
            Ok(()) => return Ok(socket),
            // The listener's backlog is full (unix(7)): a blocking connect would wait here, without a deadline.
            Err(error) if is(&error, Errno::AGAIN) || is(&error, Errno::INTR) => {
                thread::sleep(slice.min(BACKLOG_PAUSE));
            }
            Err(error) => return Err(refused(&error).into()),
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn refused(error: &io::Error) -> Fault {
    Fault::new(code::CONNECT, reason(error))
}

/// The fault with the address before it, and after it what its reader may want to look at.
fn explained(fault: Fault, address: &Address, timeout: Duration, stage: Stage, encrypted: bool) -> Fault {
    if fault.code == code::CONFIG {
        return fault;
    }
    let server = server(address);
    let said = &fault.message;
    let ended = fault.code == code::EOF || fault.code == code::RESET;
    let message = if fault.code == code::TIMEOUT {
        let hint = if stage == Stage::Tls { "; a server that does not speak TLS here never answers" } else { "" };
        // Rounded: what is left of a flush's timeout has nanoseconds.
        let seconds = (timeout.as_secs_f64() * 1e3).round() / 1e3;
        format!("cannot connect to {server} within {seconds} s: {said}{hint}")
    } else if ended {
        let first = matches!(stage, Stage::Auth | Stage::Select | Stage::Client) && !encrypted;
        let hint = if first { "; a server that expects TLS here does so" } else { "" };
        format!("cannot connect to {server}: {said} {stage}{hint}")
    } else {
        format!("cannot connect to {server}: {said}")
    };
    // Built again only to be cut to the longest message.
    Fault { message: Fault::new(code::CONNECT, message).message, ..fault }
}

fn server(address: &Address) -> String {
    match address {
        Address::Tcp { host, port } if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        Address::Tcp { host, port } => format!("{host}:{port}"),
        Address::Unix(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::deadline::NeverInterrupted;
    use super::*;

    #[test]
    fn an_address_that_swallows_packets_leaves_time_for_the_next() {
        let listen = || {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            listener.listen(0).unwrap();
            let address = listener.local_addr().unwrap().as_socket().unwrap();
            (listener, address)
        };
        let (full, live) = (listen(), listen());
        let waiting = [(); 4].map(|()| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&full.1.into());
            socket
        });
        let deadline = Instant::now() + Duration::from_millis(400);
        let mut watch = NeverInterrupted;
        let connected = dial_tcp(&[full.1, live.1], &mut Deadline::new(deadline, &mut watch)).unwrap();
        assert_eq!(connected.peer_addr().unwrap().as_socket(), Some(live.1));
        assert!(connected.tcp_nodelay().unwrap() && connected.keepalive().unwrap());
        drop(waiting);
    }

    fn tcp(host: &str) -> Address {
        Address::Tcp { host: host.to_owned(), port: 6379 }
    }

    #[test]
    fn the_server_is_named_as_people_write_it() {
        assert_eq!(server(&tcp("db1")), "db1:6379");
        assert_eq!(server(&tcp("::1")), "[::1]:6379");
        assert_eq!(server(&tcp("[::1]")), "[::1]:6379");
        assert_eq!(server(&Address::Unix("/run/redis.sock".into())), "/run/redis.sock");
    }

    #[test]
    fn a_fault_says_where_and_hints_at_a_wrong_port() {
        let explained = |code, message: &str, stage, encrypted| {
            explained(Fault::new(code, message), &tcp("db1"), Duration::from_millis(1500), stage, encrypted).message
        };
        assert_eq!(
            explained(code::TIMEOUT, "timed out in the TLS handshake", Stage::Tls, true),
            "cannot connect to db1:6379 within 1.5 s: timed out in the TLS handshake; \
             a server that does not speak TLS here never answers"
        );
        assert_eq!(
            explained(code::EOF, "the server closed the connection", Stage::Auth, false),
            "cannot connect to db1:6379: the server closed the connection while waiting for the reply to AUTH; \
             a server that expects TLS here does so"
        );
        assert_eq!(
            explained(code::EOF, "the server closed the connection", Stage::Auth, true),
            "cannot connect to db1:6379: the server closed the connection while waiting for the reply to AUTH"
        );
        assert_eq!(
            explained(code::CONNECT, "connection refused", Stage::Open, false),
            "cannot connect to db1:6379: connection refused"
        );
        assert_eq!(explained(code::CONFIG, "cannot read f", Stage::Request, false), "cannot read f");
    }

    #[test]
    fn what_makes_a_fault_permanent_survives_the_explanation() {
        let auth = Fault::from_reply(b"ERR AUTH <password> called without any password").of_command("AUTH");
        let same = explained(auth.clone(), &tcp("db1"), Duration::from_secs(5), Stage::Auth, false);
        assert!(same.in_auth);
        assert_eq!((same.code, same.text), (auth.code, auth.text));
    }
}
