//! Values and their types in messages; and the parts of reprs: a repr says in one line what its object holds, however much that
//! is, and only that of an entry shows values, shortened.

use headrace_core::{quoted, shown_names};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;

/// The name of a value's type, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().qualname().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// A value as Python shows it, for messages.
pub(crate) fn repr(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| type_name(value), |repr| repr.to_string())
}

/// A number, such as `20,000`.
pub(crate) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A number with its noun, whose plural has an `s`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(count), if count == 1 { "" } else { "s" })
}

/// A batch of `stream`, whose rows are of the entries from `first` to `last`.
pub(crate) fn batch(class: &str, rows: usize, stream: &[u8], [first, last]: [String; 2]) -> String {
    let ids = if first == last { first } else { format!("{first} to {last}") };
    format!("<{class}: {} of {}, {ids}>", counted(rows as u64, "row"), quoted(stream))
}

/// What to do to get the rows of a batch, as the end of a sentence.
const ROWS: &str = "batch.to_pylist() returns its rows";

/// The error for an attribute that a batch does not have.
pub(crate) fn no_attribute(batch: &Bound<'_, PyAny>, name: &str) -> PyErr {
    PyAttributeError::new_err(format!("a {} has no attribute '{name}'; {ROWS}", type_name(batch)))
}

/// The table that a notebook shows of a batch.
pub(crate) fn html<'py>(batch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    batch.py().import("headrace.notebook")?.call_method1("batch", (batch,))
}

/// Return names for a repr, such as those of streams: the first three, shortened, and how many more there are.
#[pyfunction(name = "shown_names")]
#[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
pub(crate) fn shown_names_of(names: Vec<Vec<u8>>) -> String {
    shown_names(&names)
}
