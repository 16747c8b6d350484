//! What the threads of a consumer share: the ledger, whether to stop, and the keeper's wake-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ledger::Ledger;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ledger: Arc<Mutex<Ledger>>,
    /// The caller wants no further batch.
    stops: AtomicBool,
    /// The keeper is to end.
    ends: AtomicBool,
    /// The keeper sleeps until it is woken.
    sleeps: AtomicBool,
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Shared {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            ledger: Arc::new(Mutex::new(ledger)),
            stops: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            woken: Mutex::new(false),
            wakes: Condvar::new(),
        }
    }

    /// No step leaves the ledger half changed, so a panic elsewhere does not matter to it.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
    }

    pub(super) fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// There is work. The keeper is woken if it would not look for itself soon, so that a caller who says something of every
    /// entry does not wake it each time.
    pub(super) fn added(&self, is_urgent: bool) {
        if is_urgent || self.sleeps.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// The keeper looks for work.
    pub(super) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_all();
    }

    /// The keeper found no work, with the ledger locked: who adds some has to wake it.
    pub(super) fn sleeps_from_now(&self) {
        self.sleeps.store(true, Ordering::Release);
    }

    /// Waits until somebody calls [`wake`](Self::wake), or `most` is over. `is_long`: there is nothing to do before that.
    pub(super) fn sleep(&self, most: Duration, is_long: bool) {
        self.sleeps.store(is_long, Ordering::Release);
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wakes.wait_timeout_while(woken, most, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
        self.sleeps.store(false, Ordering::Release);
    }
}
