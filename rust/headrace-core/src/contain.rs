//! Containment of panics: a panic ends one step, not the process or the caller's dispatcher.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Indicates that a step panicked. Only the panic hook knows where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs a step and catches a panic in it. The caller restores or drops whatever the step was changing.
#[inline]
pub(crate) fn contain<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| Panicked)
}

/// Runs a future and catches a panic in it, as [`contain`] does.
pub(crate) async fn contained<T>(future: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut future = pin!(future);
    poll_fn(|context| match contain(|| future.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}
