//! Refuses interpreters that headrace does not support: subinterpreters and builds without the GIL.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// Raises `ImportError` unless this is the main interpreter of a build with the GIL.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if !is_main(py) {
        return Err(PyImportError::new_err(
            "headrace works only in the main interpreter, not in a subinterpreter: import it there, or in another process",
        ));
    }
    if !has_gil(py)? {
        return Err(PyImportError::new_err(
            "headrace is not tested on free-threaded builds of Python: use a build with the GIL",
        ));
    }
    Ok(())
}

/// Whether this is the main interpreter. The classes of this module exist once per process, and a thread would attach to the
/// main interpreter after a wait (`PyGILState_Ensure`). The import system itself refuses a subinterpreter only since Python
/// 3.12, and only if the subinterpreter was configured to check.
fn is_main(_attached: Python<'_>) -> bool {
    #[expect(unsafe_code, reason = "pyo3 has no safe way to ask")]
    // SAFETY: `PyInterpreterState_Get` needs a thread that is attached to an interpreter, as the token proves, and returns
    // that interpreter, which lives at least until the thread is detached; `PyInterpreterState_GetID` only reads it.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    // The main interpreter is the first one of a process.
    id == 0
}

/// Whether this build has the GIL. There are no wheels for builds without it, but one can be compiled.
fn has_gil(py: Python<'_>) -> PyResult<bool> {
    let flags = py.import(intern!(py, "sys"))?.getattr(intern!(py, "abiflags"))?;
    Ok(!flags.extract::<&str>()?.contains('t'))
}
