//! The state that the threads of a consumer share: the ledgers, whether to stop, and the keeper's sleep.

use std::sync::Arc;

use super::ledger::Ledger;
use super::report::ReadReport;
use crate::error::Error;
use crate::keeper::Doze;
use crate::keeper::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

#[derive(Debug)]
pub(super) struct Shared {
    /// The ledgers, one for each session, in the order of their numbers.
    ledgers: Vec<Arc<Mutex<Ledger>>>,
    /// The numbers of the ledgers in this process, ascending.
    numbers: Vec<u64>,
    /// Whether the caller wants no further batch.
    stops: AtomicBool,
    /// The sleep of the keeper.
    pub(super) doze: Arc<Doze>,
}

impl Shared {
    pub(super) fn new(ledgers: Vec<Ledger>) -> Self {
        Self {
            numbers: ledgers.iter().map(|ledger| ledger.number).collect(),
            ledgers: ledgers.into_iter().map(|ledger| Arc::new(Mutex::new(ledger))).collect(),
            stops: AtomicBool::new(false),
            doze: Arc::new(Doze::new()),
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
}

pub(super) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
