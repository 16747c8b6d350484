//! Python's signal handlers and log records of retries while the core waits without the GIL.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::{Error, RetryEnd, RetryWait, ServerChange, TooFewReplicas, Watch};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::errors::to_py;
use crate::log::{self, Record};

/// Runs Python's signal handlers at the core's request, and keeps the exception that they raise.
#[derive(Default)]
pub(crate) struct Signals {
    raised: Option<PyErr>,
}

impl Signals {
    /// Fails if the call ends with an exception anyway, so that it takes nothing that the caller would not get.
    pub(crate) fn check(&self) -> headrace_core::Result<()> {
        if self.raised.is_some() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Handles an exception from logging. One from the application's log filter goes to `sys.unraisablehook`, so that no message
    /// loses its outcome. Ctrl-C ends the call as always.
    fn keep(&mut self, logged: PyResult<()>) {
        let Err(error) = logged else { return };
        Python::attach(|py| {
            if error.is_instance_of::<PyException>(py) {
                error.write_unraisable(py, None);
            } else {
                self.raised.get_or_insert(error);
            }
        });
    }
}

impl Watch for Signals {
    fn interrupted(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals().err());
        }
        self.raised.is_some()
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.keep(log::retry_began(wait).write());
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.keep(log::retry_ended(end).write());
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.keep(log::too_few_replicas(few).write());
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.keep(log::server_changed(endpoint, change).write());
    }
}

/// Writes the log records of calls that do not wait. An exception from logging goes to `sys.unraisablehook`.
pub(crate) struct Logged;

impl Logged {
    fn keep(logged: PyResult<()>) {
        if let Err(error) = logged {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }
}

impl Watch for Logged {
    fn interrupted(&mut self) -> bool {
        false
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        Self::keep(log::retry_began(wait).write());
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        Self::keep(log::retry_ended(end).write());
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        Self::keep(log::too_few_replicas(few).write());
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        Self::keep(log::server_changed(endpoint, change).write());
    }
}

/// The log records of calls that share a lock, until one without it writes them: a handler of the application may wait for another
/// call.
#[derive(Clone, Default)]
pub(crate) struct Records {
    waiting: Arc<Mutex<Vec<Record>>>,
    /// Whether there are any.
    any: Arc<AtomicBool>,
    /// Whether one of them says that a call begins to wait, so that it must not wait for the end of the call.
    is_urgent: Arc<AtomicBool>,
}

impl Records {
    /// Is true while a record must be written before the end of a call.
    pub(crate) fn is_urgent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_urgent)
    }

    fn push(&self, record: Record) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<Record> {
        if !self.any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        self.is_urgent.store(false, Ordering::Release);
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watch for Records {
    fn interrupted(&mut self) -> bool {
        false
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.push(log::retry_began(wait));
        self.is_urgent.store(true, Ordering::Release);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.push(log::retry_ended(end));
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.push(log::too_few_replicas(few));
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.push(log::server_changed(endpoint, change));
    }
}

/// [`Signals`] of a call that shares a lock with others: its log records wait until it has released the lock.
pub(crate) struct SharedSignals<'a> {
    signals: Signals,
    records: &'a mut Records,
}

impl Watch for SharedSignals<'_> {
    fn interrupted(&mut self) -> bool {
        self.signals.interrupted()
    }

    fn released(&mut self) -> bool {
        let records = self.records.take();
        let any = !records.is_empty();
        for record in records {
            self.signals.keep(record.write());
        }
        any
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.records.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.records.retry_ended(end);
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.records.too_few_replicas(few);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.records.server_changed(endpoint, change);
    }
}

thread_local! {
    /// The exception of a callable that the core called during a call.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Keeps an exception for the current call of this thread, which the core then interrupts.
pub(crate) fn raise_later(error: PyErr) {
    RAISED.set(Some(error));
}

/// Runs `wait` without the GIL. The exception of a signal handler or a callable replaces the core's error.
pub(crate) fn without_gil<T, F>(py: Python<'_>, wait: F) -> PyResult<T>
where
    T: Send,
    F: Send + FnOnce(&mut Signals) -> headrace_core::Result<T>,
{
    let (outcome, signals) = py.detach(|| {
        let mut signals = Signals::default();
        (wait(&mut signals), signals)
    });
    ended(outcome, signals)
}

/// Like [`without_gil`], for a call that shares a lock with others.
pub(crate) fn sharing_lock<T, F>(py: Python<'_>, records: &Records, wait: F) -> PyResult<T>
where
    T: Send,
    F: Send + FnOnce(&mut SharedSignals<'_>) -> headrace_core::Result<T>,
{
    let (outcome, signals) = py.detach(|| {
        let mut records = records.clone();
        let mut shared = SharedSignals { signals: Signals::default(), records: &mut records };
        let outcome = wait(&mut shared);
        (outcome, shared.signals)
    });
    ended(outcome, signals)
}

fn ended<T>(outcome: headrace_core::Result<T>, signals: Signals) -> PyResult<T> {
    let later = RAISED.take();
    match (outcome, signals.raised) {
        (Ok(outcome), None) => Ok(outcome),
        // A log record at the very end of the call was interrupted.
        (Ok(_) | Err(_), Some(raised)) => Err(raised),
        (Err(error), None) => Err(later.unwrap_or_else(|| to_py(&error))),
    }
}
