//! The locks and the thread of a consumer: those of the standard library. With the feature `shuttle` they are shuttle's, which
//! decides at each of their operations which thread continues, so that a test explores many orders and repeats any of them.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{Builder, JoinHandle},
};

#[cfg(feature = "shuttle")]
pub(crate) use self::clock::has_passed;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{Builder, JoinHandle},
};

/// Whether the time of a wait that begins now is over: the condition variable of the standard library will tell.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn has_passed(_: std::time::Duration) -> bool {
    false
}

/// The clock of shuttle's threads, whose condition variables have no timeouts.
#[cfg(feature = "shuttle")]
pub(crate) mod clock {
    use std::cell::Cell;
    use std::time::Duration;

    /// A wait of at least this length has no end, so that shuttle reports a thread that is not woken.
    const ENDLESS: Duration = Duration::from_secs(3600);

    std::thread_local! {
        /// All of shuttle's threads run in a single thread of the system.
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(crate) fn now() -> Duration {
        NOW.get()
    }

    #[cfg(test)]
    pub(crate) fn set(now: Duration) {
        NOW.set(now);
    }

    /// Lets the time of a wait pass at once, and other threads continue. No lock may be held.
    pub(crate) fn has_passed(most: Duration) -> bool {
        if most >= ENDLESS {
            return false;
        }
        NOW.set(NOW.get() + most);
        shuttle::thread::yield_now();
        true
    }
}
