//! Opens sockets within a deadline.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::connect_step::ConnectStep;
use super::deadline::{ConnectError, Deadline, Stage};
use super::socket::reason;
use crate::error::{Fault, code};

/// A dead peer is noticed after 15 s of silence and three probes, as with hiredis' `redisEnableKeepAlive`.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);

/// How long to wait before trying a Unix socket with a full backlog again: poll(2) does not report when there is room.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// Tries the addresses in turn. Each gets an equal part of the time that remains when its turn comes, so that an address that
/// drops packets does not prevent the others from being tried.
pub(super) async fn dial_tcp(addresses: &[SocketAddr], patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
    patience.enter(Stage::Open);
    let mut last = ConnectError::Fault(Fault::new(code::DNS, "the host name has no address"));
    for (tried, address) in addresses.iter().enumerate() {
        match dial_one(*address, &mut patience.part(addresses.len() - tried)).await {
            Ok(socket) => {
                patience.note(ConnectStep::Reached(*address));
                return Ok(socket);
            }
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                patience.note(ConnectStep::Unreached(*address, &fault.message));
                last = fault.into();
            }
        }
    }
    Err(last)
}

async fn dial_one(address: SocketAddr, patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
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
        if patience.wait_for(&socket, true).await?.writable {
            return match socket.take_error() {
                Ok(None) => Ok(socket),
                Ok(Some(error)) | Err(error) => Err(refused(&error).into()),
            };
        }
    }
}

pub(super) async fn dial_unix(path: &Path, patience: &mut Deadline<'_>) -> Result<Socket, ConnectError> {
    patience.enter(Stage::Open);
    let address = SockAddr::unix(path).map_err(|error| refused(&error))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|error| refused(&error))?;
    loop {
        patience.check()?;
        match socket.connect(&address) {
            Ok(()) => return Ok(socket),
            // The listener's backlog is full (unix(7)): a blocking connect would wait here, without a deadline.
            Err(error) if is(&error, Errno::AGAIN) || is(&error, Errno::INTR) => {
                patience.pause(BACKLOG_PAUSE).await?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::block_on::block_on;
    use super::super::deadline::NeverInterrupted;
    use super::*;
    use std::time::Instant;

    #[test]
    fn an_unresponsive_address_leaves_time_for_the_next_one() {
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
        let connected = block_on(dial_tcp(&[full.1, live.1], &mut Deadline::new(deadline, &mut watch))).unwrap();
        assert_eq!(connected.peer_addr().unwrap().as_socket(), Some(live.1));
        assert!(connected.tcp_nodelay().unwrap() && connected.keepalive().unwrap());
        drop(waiting);
    }
}
