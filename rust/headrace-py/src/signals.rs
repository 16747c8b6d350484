//! Python's signal handlers and log records of retries while the core waits without the GIL.

use std::cell::Cell;
use std::fmt;

use headrace_core::{Error, RetryEnd, RetryWait, ServerChange, TooFewReplicas, Watch};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::errors::to_py;
use crate::log;

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
        self.keep(log::retry_began(wait));
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.keep(log::retry_ended(end));
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.keep(log::too_few_replicas(few));
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.keep(log::server_changed(endpoint, change));
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
        Self::keep(log::retry_began(wait));
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        Self::keep(log::retry_ended(end));
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        Self::keep(log::too_few_replicas(few));
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        Self::keep(log::server_changed(endpoint, change));
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
    let later = RAISED.take();
    match (outcome, signals.raised) {
        (Ok(outcome), None) => Ok(outcome),
        // A log record at the very end of the call was interrupted.
        (Ok(_) | Err(_), Some(raised)) => Err(raised),
        (Err(error), None) => Err(later.unwrap_or_else(|| to_py(&error))),
    }
}
