//! The tables of error codes and options for Python: documentation, error texts and Spark read them, and copy nothing.

use std::collections::BTreeMap;

use headrace_core::error::{Classify, code};
use pyo3::prelude::*;

/// Name, whether it is headrace's own, kind for each mode of `classify`, whether it passes by itself, whether it means that
/// the server was not reached or lost, `written`, advice, text.
type CodeRow = (
    &'static str,
    bool,
    BTreeMap<&'static str, &'static str>,
    bool,
    bool,
    Vec<&'static str>,
    Option<&'static str>,
    &'static str,
);

/// The rows of the table of error codes, headrace's own first.
#[pyfunction]
pub(crate) fn code_table() -> Vec<CodeRow> {
    let own = code::OWN.iter().map(|row| (row, true));
    let rows = own.chain(code::SERVER.iter().map(|row| (row, false)));
    rows.map(|(row, is_own)| {
        let kinds = Classify::NAMES.into_iter().zip(Classify::ALL.map(|mode| row.kind(mode).as_str())).collect();
        let written = row.written.iter().map(|written| written.as_str()).collect();
        (row.name, is_own, kinds, row.passes, row.is_of_connection(), written, row.advice, row.text.trim())
    })
    .collect()
}
