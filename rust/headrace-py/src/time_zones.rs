//! Which tables of time zones are in use, for Python.

use std::path::PathBuf;

use headrace_core::time_zones::{Release, release};
use pyo3::prelude::*;

/// Return the release of the IANA time zone database in use, and its folder, or None if it is compiled in.
#[pyfunction]
pub(crate) fn time_zones() -> (String, Option<PathBuf>) {
    let Release { version, folder } = release();
    (version, folder)
}
