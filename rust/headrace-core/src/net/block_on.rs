//! Runs futures to completion for calls that block: all calls except those of a dispatcher that an event loop drives.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future whose waits block, because its [`Watch`](super::Watch) defers none of them: its first poll completes it.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a wait was deferred in a call that blocks"),
    }
}
