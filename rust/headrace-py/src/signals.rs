//! Ctrl-C, and waits for a retry, while the core waits without the GIL.

use std::cell::Cell;

use headrace_core::{RetryEnd, RetryWait, Watch};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::log;

/// Runs Python's signal handlers when the core asks, and keeps what they raised.
#[derive(Default)]
pub(crate) struct Signals {
    raised: Option<PyErr>,
}

impl Signals {
    /// Takes what logging a wait raised. What a filter of the application raises costs no message its outcome: it goes to
    /// `sys.unraisablehook`, but for Ctrl-C, which ends the call as always.
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
}

thread_local! {
    /// What a callable raised that the core asked in the midst of a call.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Keeps what is to be raised by the call of this thread that the core is now to interrupt.
pub(crate) fn raise_later(error: PyErr) {
    RAISED.set(Some(error));
}

/// Runs `wait` without the GIL. What a signal handler or a callable raised comes before the core's own word for it.
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
        // The last thing that the core did was to log, and that was interrupted.
        (Ok(_) | Err(_), Some(raised)) => Err(raised),
        (Err(error), None) => Err(later.unwrap_or_else(|| crate::errors::to_py(&error))),
    }
}
