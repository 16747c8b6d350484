//! The state that the threads of a consumer share: the ledgers, whether to stop, and the keeper's wake-up.

use std::sync::Arc;
use std::time::Duration;

use super::ledger::Ledger;
use super::report::ReadReport;
use super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError, has_passed};
use crate::error::Error;

#[derive(Debug)]
pub(super) struct Shared {
    /// The ledgers, one for each session, in the order of their numbers.
    ledgers: Vec<Arc<Mutex<Ledger>>>,
    /// The numbers of the ledgers in this process, ascending.
    numbers: Vec<u64>,
    /// Whether the caller wants no further batch.
    stops: AtomicBool,
    /// Whether the keeper must end.
    ends: AtomicBool,
    /// Whether the keeper sleeps until it is woken.
    sleeps: AtomicBool,
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Shared {
    pub(super) fn new(ledgers: Vec<Ledger>) -> Self {
        Self {
            numbers: ledgers.iter().map(|ledger| ledger.number).collect(),
            ledgers: ledgers.into_iter().map(|ledger| Arc::new(Mutex::new(ledger))).collect(),
            stops: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            woken: Mutex::new(false),
            wakes: Condvar::new(),
        }
    }

    /// The ledgers, one for each session.
    pub(super) fn shares(&self) -> &[Arc<Mutex<Ledger>>] {
        &self.ledgers
    }

    /// The ledger at `at`. No step leaves a ledger half changed, so it stays valid after a panic elsewhere.
    pub(super) fn ledger(&self, at: usize) -> MutexGuard<'_, Ledger> {
        lock(&self.ledgers[at])
    }

    /// All ledgers, one after the other.
    pub(super) fn ledgers(&self) -> impl Iterator<Item = MutexGuard<'_, Ledger>> {
        self.ledgers.iter().map(|ledger| lock(ledger))
    }

    /// The index of the ledger with this number, if it belongs to this consumer.
    pub(super) fn place(&self, number: u64) -> Option<usize> {
        self.numbers.binary_search(&number).ok()
    }

    /// The counts of the entries that were read, and of what became of them.
    pub(super) fn report(&self) -> ReadReport {
        self.ledgers().fold(ReadReport::default(), |sum, ledger| sum.with(&ledger.report()))
    }

    /// The error that the next call raises.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.ledgers().find_map(|mut ledger| ledger.take_error())
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

    /// Reports new work. The keeper is woken only if it would not look by itself soon, so that a caller who decides on every
    /// entry separately does not wake it each time.
    pub(super) fn added(&self, is_urgent: bool) {
        if is_urgent || self.sleeps.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Wakes the keeper to look for work.
    pub(super) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_all();
    }

    /// Marks the keeper as asleep before it looks for work: a caller that adds work which the keeper may have passed must wake
    /// it.
    pub(super) fn sleeps_from_now(&self) {
        self.sleeps.store(true, Ordering::Release);
    }

    /// Waits until [`wake`](Self::wake) is called, or `most` is over. `is_long`: nothing has to be done before that.
    pub(super) fn sleep(&self, most: Duration, is_long: bool) {
        self.sleeps.store(is_long, Ordering::Release);
        let is_over = has_passed(most);
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wakes.wait_timeout_while(woken, most, |woken| !*woken && !is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
        self.sleeps.store(false, Ordering::Release);
    }

    /// Notes that the keeper sleeps on an event loop, unless it was woken before. Returns whether it was. `is_long` as for
    /// [`sleep`](Self::sleep).
    pub(super) fn lies_down(&self, is_long: bool) -> bool {
        self.sleeps.store(is_long, Ordering::Release);
        let is_woken = self.gets_woken();
        if is_woken {
            self.sleeps.store(false, Ordering::Release);
        }
        is_woken
    }

    /// Notes that the keeper does not sleep now.
    pub(super) fn gets_up(&self) {
        self.gets_woken();
        self.sleeps.store(false, Ordering::Release);
    }

    /// Whether [`wake`](Self::wake) was called since the keeper last noticed.
    pub(super) fn is_woken(&self) -> bool {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gets_woken(&self) -> bool {
        std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
