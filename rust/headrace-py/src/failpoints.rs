//! Chooses where headrace panics, for tests with the feature `failpoints`.

use pyo3::prelude::*;

/// Make this thread panic once, after it has passed `place` `after` times; None: never. Only in builds for tests.
///
/// Return whether an earlier choice is still pending.
#[pyfunction]
#[pyo3(name = "_panic_at", signature = (place, after = 0))]
pub(crate) fn panic_at(place: Option<&str>, after: u32) -> bool {
    headrace_core::fail::arm(place, after)
}
