//! What the threads of a shard consumer share.

use std::sync::{Arc, OnceLock};

use crate::counters::ReadCounters;
use crate::keeper::Doze;
use crate::keeper::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use crate::leases::{Leases, lock};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) leases: Arc<Mutex<Leases>>,
    pub(super) doze: Arc<Doze>,
    /// Those of the reader, once it is known where the streams are.
    pub(super) counters: OnceLock<Arc<ReadCounters>>,
    /// Whether the caller wants no further batch.
    stops: AtomicBool,
}

impl Shared {
    pub(super) fn new(leases: Leases) -> Self {
        Self {
            leases: Arc::new(Mutex::new(leases)),
            doze: Arc::new(Doze::new()),
            counters: OnceLock::new(),
            stops: AtomicBool::new(false),
        }
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, Leases> {
        lock(&self.leases)
    }

    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
    }

    pub(super) fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }
}
