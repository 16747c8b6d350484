//! For tests of the feature `failpoints`: chooses where headrace panics.

use pyo3::prelude::*;

/// Lets this thread panic, once, when it has passed `place` `after` times; `None`: nowhere. Returns whether a place that was
/// chosen before is still to come.
#[pyfunction]
#[pyo3(signature = (place, after = 0))]
pub(crate) fn panic_at(place: Option<&str>, after: u32) -> bool {
    headrace_core::fail::arm(place, after)
}
