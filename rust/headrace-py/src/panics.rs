//! Turns a panic into an exception that ends one call. Its message may contain data, so it is never printed.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Once;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::prelude::*;

use crate::exception::raise;
use crate::log;

thread_local! {
    /// The source position of this thread's last panic.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a hook that keeps only the source position of a panic. Other Rust libraries in the process have hooks of their
/// own.
pub(crate) fn set_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        panic::set_hook(Box::new(|info| PLACE.set(info.location().map(place))));
    });
}

/// File, line and column. A dependency's file is shown without the folders of the build machine.
fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let file = file
        .split_once("/registry/src/")
        .and_then(|(_, of_crate)| of_crate.split_once('/'))
        .map_or(file, |(_, file)| file);
    format!("{file}:{}:{}", location.line(), location.column())
}

/// Forgets the last panic, if it is not a defect in headrace.
pub(crate) fn forget() {
    PLACE.take();
}

/// Logs the position of this thread's last panic, once.
pub(crate) fn log_place(py: Python<'_>) {
    let Some(place) = PLACE.take() else { return };
    // The call raises anyway. An exception of a log handler is shown like one of a destructor.
    if let Err(error) = log::defect(py, place) {
        error.write_unraisable(py, None);
    }
}

/// Runs the body of a call and turns a panic into an exception. The core has recorded outcomes for its messages by then.
pub(crate) fn contained<T>(py: Python<'_>, body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log_place(py);
        Err(raise("InternalError", "a defect in headrace ended this call"))
    })
}

/// A reader whose panics become errors, because no panic may unwind through its C caller.
pub(crate) struct Contained<R>(pub(crate) R);

impl<R: RecordBatchReader> Iterator for Contained<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        panic::catch_unwind(AssertUnwindSafe(|| self.0.next())).unwrap_or_else(|_| {
            Python::attach(log_place);
            Some(Err(ArrowError::ComputeError("a defect in headrace: the outcomes cannot be read".to_owned())))
        })
    }
}

impl<R: RecordBatchReader> RecordBatchReader for Contained<R> {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
}
