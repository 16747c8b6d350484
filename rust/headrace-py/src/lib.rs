//! The Python binding of headrace: conversions, the GIL, and one map of errors. No policy: what to do about a failure is
//! decided in the core, or by the Python package around this module.

mod arrow;
mod counters;
mod dispatcher;
mod endpoint;
mod errors;
mod password;
mod report;
mod signals;
mod unpack;

/// The native half of the `headrace` package. Not for direct use.
#[pyo3::pymodule(gil_used = false)]
mod _headrace {
    #[pymodule_export]
    use crate::counters::PyCounters;
    #[pymodule_export]
    use crate::dispatcher::PyDispatcher;
    #[pymodule_export]
    use crate::endpoint::PyEndpoint;
    #[pymodule_export]
    use crate::report::{PyOutcomes, PyReport};
    #[pymodule_export]
    use crate::unpack::{PyRows, decode_rows};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("debug_build", cfg!(debug_assertions))?;
        module.add("OWN_CODES", headrace_core::error::code::ALL)
    }
}
