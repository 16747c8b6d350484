//! A panic ends one call, with an exception. What it says of itself may hold data, and is printed nowhere.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Once;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::log;

thread_local! {
    /// Where this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the place of a panic, and nothing else of it. The hook is that of this library; other Rust in the process has its
/// own.
pub(crate) fn set_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        panic::set_hook(Box::new(|info| PLACE.set(info.location().map(place))));
    });
}

/// File, line and column; of a dependency's file without the folders of the machine that it was built on.
fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let file = file
        .split_once("/registry/src/")
        .and_then(|(_, of_crate)| of_crate.split_once('/'))
        .map_or(file, |(_, file)| file);
    format!("{file}:{}:{}", location.line(), location.column())
}

/// Forgets the place of a panic that is no defect.
pub(crate) fn forget() {
    PLACE.take();
}

/// If this thread panicked, logs where, once.
pub(crate) fn log_place(py: Python<'_>) {
    let Some(place) = PLACE.take() else { return };
    // The call raises already; what the log's handlers raise besides is shown as what a destructor raises is.
    if let Err(error) = log::defect(py, place) {
        error.write_unraisable(py, None);
    }
}

/// Runs the body of a call. If it panics, that is an exception; the core has dealt with its own messages by then.
pub(crate) fn contained<T>(py: Python<'_>, body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log_place(py);
        Err(raise("InternalError", "a defect of headrace ended this call"))
    })
}

/// A reader whose panics are errors: it is called from C, through which no panic can go.
pub(crate) struct Contained<R>(pub(crate) R);

impl<R: RecordBatchReader> Iterator for Contained<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        panic::catch_unwind(AssertUnwindSafe(|| self.0.next())).unwrap_or_else(|_| {
            Python::attach(log_place);
            Some(Err(ArrowError::ComputeError("a defect of headrace: the outcomes cannot be read".to_owned())))
        })
    }
}

impl<R: RecordBatchReader> RecordBatchReader for Contained<R> {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
}
