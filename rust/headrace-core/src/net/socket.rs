//! The four system calls on a non-blocking socket, and the codes for their errors.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::Socket;

use crate::error::{Fault, code};

/// A write to a connection that the server closed must be an error, not a signal: a program that embeds the interpreter may
/// have restored the default of SIGPIPE, which ends the process. (On Apple systems `socket2` sets this option on the socket.)
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::empty();

/// The readiness of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Readiness {
    /// Something can be read: bytes, the end, or an error.
    pub(crate) readable: bool,
    /// Bytes can be written, or a write would fail immediately. Set only if the wait is also for writing.
    pub(crate) writable: bool,
    /// A signal ended the wait.
    pub(crate) interrupted: bool,
}

pub(super) fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SEND_FLAGS)?)
}

pub(super) fn send_vectored(socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SEND_FLAGS)?)
}

pub(super) fn receive(socket: &Socket, buf: &mut [u8]) -> io::Result<usize> {
    let (received, _) = rustix::net::recv(socket, buf, RecvFlags::empty())?;
    Ok(received)
}

/// Waits for `timeout` at most until one of several sockets is readable, or writable if its flag is set. Returns whether a signal
/// ended the wait.
pub(super) fn poll_any<'a>(sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>, timeout: Duration) -> bool {
    let wanted = |writable| if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<_> =
        sockets.map(|(socket, writable)| PollFd::from_borrowed_fd(socket, wanted(writable))).collect();
    let timeout = Timespec::try_from(timeout).ok();
    rustix::event::poll(&mut fds, timeout.as_ref()) == Err(rustix::io::Errno::INTR)
}

/// Waits for `timeout` at most until one of several descriptors is readable, or writable if its flag is set. Returns whether the
/// first one is ready, and whether a signal ended the wait. Others may close the descriptors meanwhile.
#[expect(unsafe_code, reason = "rustix takes only descriptors that stay open")]
pub(super) fn poll_raw(sockets: impl Iterator<Item = (RawFd, bool)>, timeout: Duration) -> (bool, bool) {
    let wanted = |writable| if writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut fds: Vec<_> =
        sockets.map(|(fd, writable)| libc::pollfd { fd, events: wanted(writable), revents: 0 }).collect();
    // Rounded up: a wait that ends early would be repeated without a pause.
    let millis = libc::c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(libc::c_int::MAX);
    // SAFETY: poll(2) reads and writes the entries of the vector, which outlives the call. A descriptor that is closed, or is
    // another file by now, ends the wait early or not at all.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
    let interrupted = ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
    (fds.first().is_some_and(|fd| fd.revents != 0), interrupted)
}

/// Waits for `timeout` at most. A hang-up or an error counts as readable: the read that follows reports it.
pub(super) fn poll(socket: &Socket, writable: bool, timeout: Duration) -> Readiness {
    let wanted = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    let timeout = Timespec::try_from(timeout).ok();
    let mut fds = [PollFd::new(socket, wanted)];
    let outcome = rustix::event::poll(&mut fds, timeout.as_ref());
    let [fd] = fds;
    match outcome {
        Ok(0) => Readiness::default(),
        Ok(_) => Readiness {
            readable: fd.revents().intersects(PollFlags::IN | ended),
            writable: writable && fd.revents().intersects(PollFlags::OUT | ended),
            interrupted: false,
        },
        Err(rustix::io::Errno::INTR) => Readiness { interrupted: true, ..Readiness::default() },
        Err(_) => Readiness { readable: true, writable, interrupted: false },
    }
}

/// Makes [`poll`] wait for this many bytes (`SO_RCVLOWAT`), or for the end of the connection. A caller that waits for thousands
/// of replies is then not woken for every few of them, and the server is spared the wake-ups. A refusal by the system does no
/// harm.
#[expect(unsafe_code, reason = "no crate in use has this option")]
pub(super) fn set_low_water(socket: &Socket, bytes: u16) {
    let bytes = libc::c_int::from(bytes);
    // SAFETY: setsockopt(2) reads `optlen` bytes from `optval`: those of one `c_int`, which outlives the call. The descriptor
    // is open while `socket` is borrowed.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Ends a connection so that the kernel delivers no more of the written bytes: after a plain close the kernel continues to send,
/// and the server to execute.
///
/// `SO_LINGER` 0 makes the *last* close a reset. A forked child that holds a copy of the descriptor would delay that, so the
/// connection itself is dissolved too, which resets it on Linux whichever processes hold copies. Bytes written to a Unix
/// socket are already with the server.
pub(super) fn abort(socket: &Socket) {
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = rustix::net::connect_unspec(socket);
    let _ = socket.shutdown(Shutdown::Both);
}

/// Ends a connection gracefully. Without the shutdown, a copy of the descriptor in a forked child would keep it open.
pub(super) fn close(socket: &Socket) {
    let _ = socket.shutdown(Shutdown::Both);
}

/// Whether the call must be repeated once the socket is ready.
pub(super) fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The number of bytes transferred; 0 if the socket is not ready.
pub(super) fn moved(result: io::Result<usize>) -> Result<usize, Fault> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if is_not_ready(&error) => Ok(0),
        Err(error) => Err(io_fault(&error)),
    }
}

pub(super) fn end_of_stream() -> Fault {
    Fault::new(code::EOF, "the server closed the connection")
}

/// The fault for a read or write that fails on an established connection.
pub(super) fn io_fault(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => end_of_stream(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            Fault::new(code::RESET, "the connection was reset by the server")
        }
        _ => Fault::new(code::RESET, format!("the connection broke: {}", reason(error))),
    }
}

/// The system's error text as part of a sentence: without the error number, and starting in lower case.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// A socket in the form that rustls uses.
pub(super) struct Wire<'a>(pub(super) &'a Socket);

impl io::Read for Wire<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        receive(self.0, buf)
    }
}

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0, bytes)
    }

    /// Sends all ready TLS records in one call: a record holds 16 KiB, one of our chunks several records.
    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        send_vectored(self.0, records)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_are_mapped_to_fault_codes() {
        let fault = |kind| io_fault(&io::Error::from(kind)).code;
        assert_eq!(fault(io::ErrorKind::ConnectionReset), code::RESET);
        assert_eq!(fault(io::ErrorKind::BrokenPipe), code::RESET);
        assert_eq!(fault(io::ErrorKind::UnexpectedEof), code::EOF);
        let timed_out = io_fault(&io::Error::from_raw_os_error(rustix::io::Errno::TIMEDOUT.raw_os_error()));
        assert_eq!(timed_out.code, code::RESET);
        assert_eq!(timed_out.message, "the connection broke: connection timed out");
    }
}
