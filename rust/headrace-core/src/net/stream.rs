//! One connection, over any kind of socket: bytes in and out without blocking, and the three ways to end it.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use socket2::Socket;

use super::socket::{self, Readiness, end_of_stream, moved};
use super::tls::TlsStream;
use crate::error::Fault;

/// The maximum number of bytes to wait for: they must fit into the smallest buffer that a socket has.
const MAX_LOW_WATER: u16 = 32 * 1024;

/// An established connection. Only [`Transport::wait`] blocks.
///
/// After any fault a transport is unusable: [`Transport::abort`] it. Dropping it only closes the descriptor, as
/// [`Transport::forget`] does.
pub(crate) struct Transport(Stream);

enum Stream {
    Tcp {
        socket: Socket,
        /// The value last passed to [`socket::set_low_water`].
        low_water: u16,
    },
    Unix(Socket),
    Tls(Box<TlsStream>),
    #[cfg(any(test, fuzzing))]
    Mock(Box<dyn super::mock::Mock>),
}

/// The condition that ends a wait for a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The number of bytes to receive, as in [`Transport::wait_for`].
    pub(crate) bytes: usize,
    /// Whether there are bytes to send.
    pub(crate) writable: bool,
}

impl Transport {
    pub(super) fn tcp(socket: Socket) -> Self {
        Self(Stream::Tcp { socket, low_water: 1 })
    }

    pub(super) fn unix(socket: Socket) -> Self {
        Self(Stream::Unix(socket))
    }

    pub(super) fn tls(stream: TlsStream) -> Self {
        Self(Stream::Tls(Box::new(stream)))
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn mock(server: Box<dyn super::mock::Mock>) -> Self {
        Self(Stream::Mock(server))
    }

    /// Reads the available bytes into `buf` and returns their number; 0 means that none are available now. The end of the
    /// connection is a fault: `EOF`, `RESET`, or `TLS` if the server says so in an alert.
    pub(crate) fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        if buf.is_empty() {
            return Ok(0);
        }
        match &mut self.0 {
            Stream::Tcp { socket, .. } | Stream::Unix(socket) => match socket::receive(socket, buf) {
                Ok(0) => Err(end_of_stream()),
                result => moved(result),
            },
            Stream::Tls(stream) => stream.receive(buf),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(server) => server.receive(buf),
        }
    }

    /// Hands over as much of `bytes` as is accepted now and returns the number; 0 means that the socket is full.
    ///
    /// With TLS, bytes count as handed over once rustls has them; it buffers at most 128 KiB that the socket does not accept.
    /// An error means that none of `bytes` was handed over.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        match &mut self.0 {
            Stream::Tcp { socket, .. } | Stream::Unix(socket) => moved(socket::send(socket, bytes)),
            Stream::Tls(stream) => stream.send(bytes),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(server) => server.send(bytes),
        }
    }

    /// Like [`Transport::send`], for the bytes of several slices, in order.
    pub(crate) fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Fault> {
        match &mut self.0 {
            Stream::Tcp { socket, .. } | Stream::Unix(socket) => moved(socket::send_vectored(socket, slices)),
            Stream::Tls(stream) => stream.send_vectored(slices),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(server) => {
                server.send(&slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>())
            }
        }
    }

    /// Whether bytes that were handed over are waiting for the socket: if so, [`Transport::wait`] for writing and call
    /// [`Transport::push`].
    pub(crate) fn wants_write(&self) -> bool {
        match &self.0 {
            Stream::Tcp { .. } | Stream::Unix(_) => false,
            Stream::Tls(stream) => stream.wants_write(),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(_) => false,
        }
    }

    /// Writes as many of the bytes handed over before as the socket accepts; returns how many it accepted.
    pub(crate) fn push(&mut self) -> Result<usize, Fault> {
        match &mut self.0 {
            Stream::Tcp { .. } | Stream::Unix(_) => Ok(0),
            Stream::Tls(stream) => stream.push(),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(_) => Ok(0),
        }
    }

    /// Waits for `timeout` at most until the socket is readable, or writable if `writable`.
    pub(crate) fn wait(&mut self, writable: bool, timeout: Duration) -> Readiness {
        self.wait_for(1, writable, timeout)
    }

    /// Like [`wait`](Self::wait), but over TCP without TLS the wait may continue until `at_least` bytes, or 32 KiB, have
    /// arrived. Fewer bytes can be received all the same.
    pub(crate) fn wait_for(&mut self, at_least: usize, writable: bool, timeout: Duration) -> Readiness {
        match &mut self.0 {
            Stream::Tcp { socket, low_water } => {
                set_low_water(socket, low_water, at_least);
                socket::poll(socket, writable, timeout)
            }
            Stream::Unix(socket) => socket::poll(socket, writable, timeout),
            // Only rustls knows which records hold the rest of a reply, and how much of them has arrived.
            Stream::Tls(stream) => stream.wait(writable, timeout),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(server) => server.wait(writable, timeout),
        }
    }

    /// Waits for `timeout` at most until one of several sockets meets its condition. Returns whether a signal ended the wait.
    /// Without any sockets it only waits. `others` are sockets of connections that are not yet established, each with whether
    /// there are bytes to send.
    pub(crate) fn wait_any(
        sockets: &mut [(&mut Self, Wanted)],
        others: &[(BorrowedFd<'_>, bool)],
        timeout: Duration,
    ) -> bool {
        let has_bytes = sockets.iter_mut().map(|(transport, wanted)| transport.prepare(wanted.bytes));
        let timeout = if has_bytes.fold(false, |any, one| any | one) { Duration::ZERO } else { timeout };
        let wanted = sockets.iter().map(|(transport, wanted)| (transport.socket().as_fd(), wanted.writable));
        socket::poll_any(wanted.chain(others.iter().copied()), timeout)
    }

    /// Prepares the socket for a wait for this many bytes. Returns whether bytes can be received without waiting.
    pub(crate) fn prepare(&mut self, at_least: usize) -> bool {
        match &mut self.0 {
            Stream::Tcp { socket, low_water } => {
                set_low_water(socket, low_water, at_least);
                false
            }
            Stream::Unix(_) => false,
            Stream::Tls(stream) => stream.has_bytes(),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(_) => false,
        }
    }

    /// Ends the connection after a failure, with a reset, so that the kernel delivers no more of the written bytes.
    pub(crate) fn abort(self) {
        #[cfg(any(test, fuzzing))]
        if matches!(self.0, Stream::Mock(_)) {
            return;
        }
        socket::abort(self.socket());
    }

    /// Ends the connection gracefully, with a TLS `close_notify` if the socket accepts it immediately.
    pub(crate) fn close(mut self) {
        #[cfg(any(test, fuzzing))]
        if matches!(self.0, Stream::Mock(_)) {
            return;
        }
        if let Stream::Tls(stream) = &mut self.0 {
            stream.goodbye();
        }
        socket::close(self.socket());
    }

    /// Closes only this process's copy of the descriptor: in a forked child the connection belongs to the parent, and a
    /// shutdown, a TLS `close_notify` or a linger change would affect it.
    #[allow(clippy::unused_self)] // dropped here
    pub(crate) fn forget(self) {}

    /// The descriptor of the socket, for a wait outside this crate: call [`prepare`](Self::prepare) first.
    pub(crate) fn descriptor(&self) -> RawFd {
        #[cfg(any(test, fuzzing))]
        if matches!(self.0, Stream::Mock(_)) {
            return -1;
        }
        self.socket().as_raw_fd()
    }

    /// The descriptor, borrowed while the socket is open.
    #[cfg_attr(not(any(test, fuzzing)), expect(clippy::unnecessary_wraps, reason = "a mock has none"))]
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        #[cfg(any(test, fuzzing))]
        if matches!(self.0, Stream::Mock(_)) {
            return None;
        }
        Some(self.socket().as_fd())
    }

    fn socket(&self) -> &Socket {
        match &self.0 {
            Stream::Tcp { socket, .. } | Stream::Unix(socket) => socket,
            Stream::Tls(stream) => stream.socket(),
            #[cfg(any(test, fuzzing))]
            Stream::Mock(_) => unreachable!("it has none"),
        }
    }
}

/// Sets the minimum number of bytes that end a wait, if it differs from the current one.
fn set_low_water(socket: &Socket, low_water: &mut u16, at_least: usize) {
    let wanted = at_least.clamp(1, MAX_LOW_WATER.into()) as u16;
    if wanted != *low_water {
        socket::set_low_water(socket, wanted);
        *low_water = wanted;
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Stream::Tcp { .. } => "Transport(tcp)",
            Stream::Unix(_) => "Transport(unix)",
            Stream::Tls(_) => "Transport(tls)",
            #[cfg(any(test, fuzzing))]
            Stream::Mock(_) => "Transport(mock)",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Transport {
    /// A transport, and the peer's end, which the test controls.
    pub(crate) fn pair() -> (Self, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Self::unix(Socket::from(ours)), theirs)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::error::code;

    const LONG: Duration = Duration::from_secs(5);

    fn tcp_pair() -> (Transport, TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        ours.set_nonblocking(true).unwrap();
        let copy = ours.try_clone().unwrap();
        (Transport::tcp(ours), listener.accept().unwrap().0, copy)
    }

    fn end_of(transport: &mut Transport) -> String {
        assert!(transport.wait(false, LONG).readable);
        transport.receive(&mut [0; 8]).unwrap_err().code.into_owned()
    }

    #[test]
    fn available_bytes_are_received_before_the_end() {
        let (mut transport, mut peer, _copy) = tcp_pair();
        let mut buf = [0; 8];
        assert_eq!(transport.receive(&mut buf), Ok(0));
        assert_eq!(transport.wait(false, Duration::from_millis(1)), Readiness::default());
        peer.write_all(b"abc").unwrap();
        drop(peer);
        assert!(transport.wait(false, LONG).readable);
        assert_eq!(transport.receive(&mut buf), Ok(3));
        assert_eq!(&buf[..3], b"abc");
        assert_eq!(end_of(&mut transport), code::EOF);
    }

    #[test]
    fn a_wait_for_many_bytes_is_not_ended_by_a_few() {
        let (mut transport, mut peer, _copy) = tcp_pair();
        peer.write_all(&[b'x'; 99]).unwrap();
        assert!(transport.wait(false, LONG).readable);
        assert_eq!(transport.wait_for(100, false, Duration::from_millis(20)), Readiness::default());
        peer.write_all(b"x").unwrap();
        assert!(transport.wait_for(100, false, LONG).readable);
        assert_eq!(transport.receive(&mut [0; 99]), Ok(99));
        assert!(transport.wait(false, LONG).readable, "the mark is taken back");
        peer.shutdown(Shutdown::Write).unwrap();
        assert!(transport.wait_for(usize::MAX, false, LONG).readable, "the end counts at once");
    }

    #[test]
    fn a_reset_is_distinguished_from_eof() {
        let (mut transport, peer, _copy) = tcp_pair();
        Socket::from(peer).set_linger(Some(Duration::ZERO)).unwrap();
        assert_eq!(end_of(&mut transport), code::RESET);
        // A second write gets a broken pipe: an error, not a signal.
        assert_eq!(transport.send(b"x").unwrap_err().code, code::RESET);

        let (mut transport, peer) = Transport::pair();
        assert_eq!(transport.send(b"unread"), Ok(6));
        drop(peer);
        assert_eq!(end_of(&mut transport), code::RESET);
    }

    #[test]
    fn a_full_socket_accepts_no_bytes_and_does_not_block() {
        let (mut transport, mut peer) = Transport::pair();
        let chunk = vec![b'x'; 64 * 1024];
        let mut sent = 0;
        loop {
            match transport.send(&chunk).unwrap() {
                0 => break,
                taken => sent += taken,
            }
        }
        let started = Instant::now();
        assert_eq!(transport.wait(true, Duration::from_millis(20)), Readiness::default());
        assert!(started.elapsed() >= Duration::from_millis(20));
        peer.set_read_timeout(Some(LONG)).unwrap();
        peer.read_exact(&mut vec![0; sent]).unwrap();
        assert!(transport.wait(true, LONG).writable);
        assert!(!transport.wait(false, Duration::ZERO).writable, "not asked for");
    }

    #[test]
    fn abort_resets_even_when_another_process_holds_a_copy() {
        let (transport, mut peer, copy) = tcp_pair();
        transport.abort();
        peer.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        drop(copy);
    }

    #[test]
    fn close_is_orderly_even_when_another_process_holds_a_copy() {
        let (mut transport, mut peer, copy) = tcp_pair();
        transport.send(b"last").unwrap();
        transport.close();
        peer.set_read_timeout(Some(LONG)).unwrap();
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"last");
        drop(copy);
    }

    #[test]
    fn forget_leaves_the_connection_to_the_other_holder() {
        let (transport, mut peer, copy) = tcp_pair();
        transport.forget();
        let mut parent = Transport::tcp(copy);
        parent.send(b"still here").unwrap();
        peer.set_read_timeout(Some(LONG)).unwrap();
        let mut buf = [0; 10];
        peer.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"still here");
    }
}
