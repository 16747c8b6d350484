//! Wakes a thread that waits for sockets.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use super::interest::Interest;
use super::socket;

/// How long a wait lasts at most if the process has no descriptors left for an alarm.
const WITHOUT_ALARM: Duration = Duration::from_millis(1);

/// A pair of sockets, opened when it is needed: a byte in one of them ends a wait for the other.
#[derive(Debug, Default)]
pub(crate) struct Alarm(OnceLock<Option<(UnixStream, UnixStream)>>);

impl Alarm {
    /// Ends the wait, or the next one if there is none now.
    pub(crate) fn ring(&self) {
        if let Some((bell, _)) = self.pair() {
            let mut bell = bell;
            // A bell that takes no more bytes has rung.
            let _ = bell.write(&[0]);
        }
    }

    /// Waits for `timeout` at most until a socket is ready, or the alarm rings. Returns whether a signal ended the wait.
    pub(crate) fn wait(&self, sockets: &[Interest], timeout: Duration) -> bool {
        let sockets = sockets.iter().map(|socket| (socket.fd, socket.writable));
        let Some((_, ear)) = self.pair() else {
            return socket::poll_raw(sockets, timeout.min(WITHOUT_ALARM)).1;
        };
        let (rang, interrupted) = socket::poll_raw(std::iter::once((ear.as_raw_fd(), false)).chain(sockets), timeout);
        if rang {
            let (mut ear, mut bytes) = (ear, [0; 64]);
            while matches!(ear.read(&mut bytes), Ok(read) if read == bytes.len()) {}
        }
        interrupted
    }

    fn pair(&self) -> Option<&(UnixStream, UnixStream)> {
        self.0.get_or_init(|| open().ok()).as_ref()
    }
}

fn open() -> io::Result<(UnixStream, UnixStream)> {
    let (bell, ear) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    ear.set_nonblocking(true)?;
    Ok((bell, ear))
}
