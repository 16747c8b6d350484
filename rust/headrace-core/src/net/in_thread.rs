//! Calls to the system or to the caller that accept no deadline: each runs on a thread of its own.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use socket2::Socket;

use super::deadline::{ConnectError, Deadline};
use super::socket::reason;
use crate::error::{Fault, code};

/// Returns the result of `call`, which runs on a thread of this name. If the deadline comes first, the thread is left to end
/// by itself.
pub(super) async fn in_thread<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
    patience: &mut Deadline<'_>,
) -> Result<T, ConnectError> {
    let no_thread = |error| Fault::new(code::CONNECT, format!("cannot start a thread to connect: {}", reason(&error)));
    // `awake` is closed when the thread ends, which makes the other end readable.
    let (awake, closed) = UnixStream::pair().map_err(no_thread)?;
    let closed = Socket::from(closed);
    let (sender, answer) = mpsc::sync_channel(1);
    let run = move || {
        let _awake = awake;
        let _ = sender.send(call()); // after the deadline there is no receiver
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(no_thread)?;
    loop {
        patience.wait_for(&closed, false).await?;
        match answer.try_recv() {
            Ok(returned) => return Ok(returned),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Fault::new(code::CONNECT, format!("the thread {name} ended without an answer")).into());
            }
        }
    }
}
