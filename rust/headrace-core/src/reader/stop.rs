//! Ends the reading of a reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a reader, from any thread and from a signal handler.
#[derive(Debug, Clone, Default)]
pub struct ReaderStop(Arc<AtomicBool>);

impl ReaderStop {
    /// Stops reading: no further batch is returned. A call that waits returns within 0.1 s.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the reader is stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
