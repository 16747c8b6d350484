//! Calls that block until they are done: everything but a dispatcher that an event loop drives.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a future comes to whose waits block, because its [`Watch`](super::Watch) defers none of them: it is ready at once.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a wait was deferred in a call that blocks"),
    }
}
