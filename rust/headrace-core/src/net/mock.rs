//! A server in the same thread, for tests that make up what it does: nothing waits for another thread, so the same seed
//! gives the same run.

use std::cell::RefCell;
use std::time::Duration;

use super::socket::Readiness;
use crate::error::Fault;

/// The server's end of one connection. Dropped when the client ends it.
pub(crate) trait Mock: Send + Sync {
    /// As [`Transport::receive`](super::Transport::receive).
    fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault>;
    /// As [`Transport::send`](super::Transport::send).
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault>;
    /// As [`Transport::wait`](super::Transport::wait).
    fn wait(&mut self, writable: bool, timeout: Duration) -> Readiness;
}

/// What each new connection is made by.
pub(crate) type Dial = Box<dyn FnMut() -> Result<Box<dyn Mock>, Fault>>;

thread_local! {
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
}

/// From now on connections of this thread are made by `dial`, whatever their endpoint.
pub(crate) fn set_mock(dial: Option<Dial>) {
    DIAL.with(|now| *now.borrow_mut() = dial);
}

/// A new connection, if they are made here.
pub(super) fn dial() -> Option<Result<Box<dyn Mock>, Fault>> {
    DIAL.with(|dial| dial.borrow_mut().as_mut().map(|dial| dial()))
}
