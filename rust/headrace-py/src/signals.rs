//! Ctrl-C while the core waits without the GIL.

use std::cell::Cell;

use headrace_core::Watch;
use pyo3::prelude::*;

/// Runs Python's signal handlers when the core asks, and keeps what they raised.
#[derive(Default)]
pub(crate) struct Signals {
    raised: Option<PyErr>,
}

impl Watch for Signals {
    fn interrupted(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals().err());
        }
        self.raised.is_some()
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
    let raised = signals.raised.or(RAISED.take());
    outcome.map_err(|error| raised.unwrap_or_else(|| crate::errors::to_py(&error)))
}
