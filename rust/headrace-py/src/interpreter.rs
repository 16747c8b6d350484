//! Whether this is an interpreter that headrace is made for: the main one of its process, with a GIL.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// Raises `ImportError` in any other.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if !is_main(py) {
        return Err(PyImportError::new_err(
            "headrace works in the main interpreter only, and this is a subinterpreter: import it there, or in another process",
        ));
    }
    if !has_gil(py)? {
        return Err(PyImportError::new_err(
            "headrace was not tested on free-threaded builds of Python, and this is one: take a build with the GIL",
        ));
    }
    Ok(())
}

/// The classes of this module exist once in a process, for all interpreters, and a thread that comes back from a wait would
/// attach to the main one (`PyGILState_Ensure`). Of itself the import system refuses only from Python 3.12 on, and only where
/// the subinterpreter asks it to look.
fn is_main(_attached: Python<'_>) -> bool {
    #[expect(unsafe_code, reason = "pyo3 has no safe way to ask")]
    // SAFETY: `PyInterpreterState_Get` needs a thread that is attached to an interpreter, as the token proves, and returns
    // that interpreter, which lives at least until the thread is detached; `PyInterpreterState_GetID` only reads it.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    // The main interpreter is the first one that a process makes.
    id == 0
}

/// There are no wheels for builds without it; somebody may compile one.
fn has_gil(py: Python<'_>) -> PyResult<bool> {
    let flags = py.import(intern!(py, "sys"))?.getattr(intern!(py, "abiflags"))?;
    Ok(!flags.extract::<&str>()?.contains('t'))
}
