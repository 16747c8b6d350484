//! The sleep of a keeper: who adds work wakes it.

use std::time::Duration;

use super::sync::{AtomicBool, Condvar, Mutex, Ordering, PoisonError, has_passed};

/// Whether a keeper sleeps, was woken, or must end. Its threads share this.
#[derive(Debug)]
pub(crate) struct Doze {
    /// Whether the keeper must end.
    ends: AtomicBool,
    /// Whether the keeper sleeps until it is woken.
    sleeps: AtomicBool,
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Doze {
    pub(crate) fn new() -> Self {
        Self {
            ends: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            woken: Mutex::new(false),
            wakes: Condvar::new(),
        }
    }

    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Reports new work. The keeper is woken only if it would not look by itself soon, so that a caller who decides on every
    /// entry separately does not wake it each time.
    pub(crate) fn added(&self, is_urgent: bool) {
        if is_urgent || self.sleeps.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Wakes the keeper to look for work.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_all();
    }

    /// Marks the keeper as asleep before it looks for work: a caller that adds work which the keeper may have passed must wake
    /// it.
    pub(crate) fn sleeps_from_now(&self) {
        self.sleeps.store(true, Ordering::Release);
    }

    /// Waits until [`wake`](Self::wake) is called, or `most` is over. `is_long`: nothing has to be done before that.
    pub(crate) fn sleep(&self, most: Duration, is_long: bool) {
        self.sleeps.store(is_long, Ordering::Release);
        let is_over = has_passed(most);
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wakes.wait_timeout_while(woken, most, |woken| !*woken && !is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
        self.sleeps.store(false, Ordering::Release);
    }

    /// Notes that the keeper sleeps on an event loop, unless it was woken before. Returns whether it was. `is_long` as for
    /// [`sleep`](Self::sleep).
    pub(crate) fn lies_down(&self, is_long: bool) -> bool {
        self.sleeps.store(is_long, Ordering::Release);
        let is_woken = self.gets_woken();
        if is_woken {
            self.sleeps.store(false, Ordering::Release);
        }
        is_woken
    }

    /// Notes that the keeper does not sleep now.
    pub(crate) fn gets_up(&self) {
        self.gets_woken();
        self.sleeps.store(false, Ordering::Release);
    }

    /// Whether [`wake`](Self::wake) was called since the keeper last noticed.
    pub(crate) fn is_woken(&self) -> bool {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gets_woken(&self) -> bool {
        std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
