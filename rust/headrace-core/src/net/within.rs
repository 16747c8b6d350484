//! A time, or something else, that ends every wait of a call.

use std::fmt;
use std::time::Instant;

use super::change::ServerChange;
use super::connect_step::ConnectStep;
use super::deadline::{DeferredWait, TooFewReplicas, Watch};
use super::interest::Interest;
use crate::error::{Error, Result};
use crate::retry::{RetryEnd, RetryWait};

/// Whether the time has come, for [`Within`].
pub(crate) fn ends_at(deadline: Option<Instant>) -> impl FnMut() -> bool + Send {
    move || deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Runs `call`, whose waits all end when `ends` returns true, and which [gives way](Watch::gives_way) when `asks` does. `None`: one
/// of them ended it.
pub(crate) fn unless<T>(
    ends: &mut (dyn FnMut() -> bool + Send),
    asks: &mut (dyn FnMut() -> bool + Send),
    watch: &mut dyn Watch,
    call: impl FnOnce(&mut dyn Watch) -> Result<T>,
) -> Result<Option<T>> {
    let mut within = Within { asks: Some(asks), ..Within::new(ends, watch) };
    let done = call(&mut within);
    within.ended(done)
}

/// A watch that also ends waits when `ends` returns true.
pub(crate) struct Within<'w> {
    ends: &'w mut (dyn FnMut() -> bool + Send),
    asks: Option<&'w mut (dyn FnMut() -> bool + Send)>,
    watch: &'w mut dyn Watch,
    /// Whether a wait was ended.
    is_over: bool,
}

impl<'w> Within<'w> {
    pub(crate) fn new(ends: &'w mut (dyn FnMut() -> bool + Send), watch: &'w mut dyn Watch) -> Self {
        Self { ends, asks: None, watch, is_over: false }
    }

    /// The result of the call; `None`: the watch ended a wait.
    pub(crate) fn ended<T>(&self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(Error::Interrupted) if self.is_over => Ok(None),
            done => done.map(Some),
        }
    }
}

impl Watch for Within<'_> {
    fn interrupted(&mut self) -> bool {
        if self.watch.interrupted() {
            return true;
        }
        self.is_over |= (self.ends)();
        self.is_over
    }

    fn gives_way(&mut self) -> bool {
        if self.watch.gives_way() {
            return true;
        }
        self.is_over |= self.asks.as_mut().is_some_and(|asks| asks());
        self.is_over
    }

    fn released(&mut self) -> bool {
        self.watch.released()
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.watch.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.watch.retry_ended(end);
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.watch.too_few_replicas(few);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.watch.server_changed(endpoint, change);
    }

    fn connect_step(&mut self, step: ConnectStep<'_>) {
        self.watch.connect_step(step);
    }

    fn defers(&self) -> bool {
        self.watch.defers()
    }

    fn reads_inline(&self) -> bool {
        self.watch.reads_inline()
    }

    fn defer(&mut self, wait: DeferredWait<'_>) {
        self.watch.defer(wait);
    }

    fn defer_all(&mut self, sockets: Vec<Interest>, until: Option<Instant>) {
        self.watch.defer_all(sockets, until);
    }

    fn yields(&self) -> bool {
        self.watch.yields()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::super::deadline::NeverInterrupted;
    use super::*;

    struct Always;

    impl Watch for Always {
        fn interrupted(&mut self) -> bool {
            true
        }
    }

    fn within<T>(
        until: Option<Instant>,
        watch: &mut dyn Watch,
        call: impl FnOnce(&mut dyn Watch) -> Result<T>,
    ) -> Result<Option<T>> {
        unless(&mut ends_at(until), &mut || false, watch, call)
    }

    fn wait(watch: &mut dyn Watch) -> Result<u8> {
        if watch.interrupted() { Err(Error::Interrupted) } else { Ok(7) }
    }

    #[test]
    fn the_time_ends_a_wait_and_is_told_from_an_interrupt() {
        let now = Instant::now();
        assert_eq!(within(None, &mut NeverInterrupted, wait), Ok(Some(7)));
        assert_eq!(within(Some(now + Duration::from_secs(3600)), &mut NeverInterrupted, wait), Ok(Some(7)));
        assert_eq!(within(Some(now), &mut NeverInterrupted, wait), Ok(None));
        assert_eq!(
            within(Some(now), &mut NeverInterrupted, |_| Err::<(), _>(Error::Interrupted)),
            Err(Error::Interrupted)
        );
        assert_eq!(within(Some(now), &mut Always, wait), Err(Error::Interrupted));
    }

    #[test]
    fn a_call_gives_way_only_where_it_asks() {
        let give_way = |watch: &mut dyn Watch| if watch.gives_way() { Err(Error::Interrupted) } else { Ok(8) };
        assert_eq!(unless(&mut || false, &mut || true, &mut NeverInterrupted, wait), Ok(Some(7)));
        assert_eq!(unless(&mut || false, &mut || true, &mut NeverInterrupted, give_way), Ok(None));
        assert_eq!(unless(&mut || true, &mut || false, &mut NeverInterrupted, wait), Ok(None));
        assert_eq!(unless(&mut || false, &mut || false, &mut NeverInterrupted, give_way), Ok(Some(8)));
        assert_eq!(unless(&mut || false, &mut || true, &mut Always, wait), Err(Error::Interrupted));
    }
}
