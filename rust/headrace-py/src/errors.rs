//! The only place where a core error becomes a Python exception. The classes are those of `headrace.errors`.

use headrace_core::Error;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::exception::{raise, raise_with};
use crate::panics;

/// Converts a core error to its exception.
pub(crate) fn to_py(error: &Error) -> PyErr {
    let message = error.to_string();
    Python::attach(panics::log_place);
    match error {
        Error::Config { option, .. } => raise_with("ConfigError", message, |_, given| given.set_item("option", option)),
        Error::Connection { .. } => raise("ConnectionFailedError", message),
        Error::Command { code, kind, .. } => raise_with("CommandError", message, |_, given| {
            given.set_item("code", code)?;
            given.set_item("kind", kind.as_str())
        }),
        Error::StreamRefused { stream, code, kind, .. } => raise_with("CommandError", message, |py, given| {
            given.set_item("stream", PyBytes::new(py, stream))?;
            given.set_item("code", code)?;
            given.set_item("kind", kind.as_str())
        }),
        Error::GroupMissing { stream, .. } => {
            raise_with("GroupMissingError", message, |py, given| given.set_item("stream", PyBytes::new(py, stream)))
        }
        Error::DataLoss { stream, lost, exact, position, .. } => raise_with("DataLossError", message, |py, given| {
            given.set_item("stream", PyBytes::new(py, stream))?;
            given.set_item("lost", lost)?;
            given.set_item("exact", exact)?;
            given.set_item("position", position)
        }),
        Error::Field { stream, entry_id, lost, exact, position, .. } => {
            raise_with("FieldError", message, |py, given| {
                given.set_item("stream", PyBytes::new(py, stream))?;
                given.set_item("entry_id", entry_id)?;
                given.set_item("lost", lost)?;
                given.set_item("exact", exact)?;
                given.set_item("position", position)
            })
        }
        Error::StreamReplaced { stream, position, .. } => raise_with("StreamReplacedError", message, |py, given| {
            given.set_item("stream", PyBytes::new(py, stream))?;
            given.set_item("position", position)
        }),
        Error::LeaseLost { stream, entry_ids, .. } => raise_with("LeaseLostError", message, |py, given| {
            given.set_item("stream", PyBytes::new(py, stream))?;
            given.set_item("entry_ids", entry_ids)
        }),
        Error::Schema { .. } => raise("SchemaError", message),
        Error::Message { .. } => raise("MessageError", message),
        Error::State { .. } => raise("StateError", message),
        Error::Reader { message } => crate::reader::to_py(message),
        Error::Internal { .. } => raise("InternalError", message),
        Error::InUse { .. } => raise("ConcurrentUseError", message),
        Error::Closed { .. } => raise("ClosedError", message),
        // The binding raises the exception of the signal handler; this is for calls without one.
        Error::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
        // A new kind of error needs a class here; until it has one, it is still raised.
        _ => raise("HeadraceError", message),
    }
}
