//! A server in the same thread, for tests that simulate its behaviour: nothing waits for another thread, so the same seed
//! gives the same run.

use std::cell::RefCell;
use std::time::Duration;

use super::socket::Readiness;
use crate::error::Fault;

/// The server's end of a connection. Dropped when the client ends the connection.
pub(crate) trait Mock: Send + Sync {
    /// See [`Transport::receive`](super::Transport::receive).
    fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault>;
    /// See [`Transport::send`](super::Transport::send).
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault>;
    /// See [`Transport::wait`](super::Transport::wait).
    fn wait(&mut self, writable: bool, timeout: Duration) -> Readiness;
}

/// The function that makes each new connection.
pub(crate) type Dial = Box<dyn FnMut() -> Result<Box<dyn Mock>, Fault>>;

thread_local! {
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
}

/// Makes `dial` open the connections of this thread, whatever their endpoint; `None` ends that.
pub(crate) fn set_mock(dial: Option<Dial>) {
    DIAL.with(|now| *now.borrow_mut() = dial);
}

/// A new connection, if this thread has a mock.
pub(super) fn dial() -> Option<Result<Box<dyn Mock>, Fault>> {
    DIAL.with(|dial| dial.borrow_mut().as_mut().map(|dial| dial()))
}
