//! The tables of error codes and options for Python: documentation, error texts and Spark read them, and do not copy them.

use std::collections::BTreeMap;

use headrace_core::endpoint::{Form, OPTIONS, OptionSpec, read_values};
use headrace_core::error::{Classify, code};
use headrace_core::{
    CONSUMER_OPTIONS, DISPATCHER_OPTIONS, LAYOUT_OPTIONS, READER_OPTIONS, SHARD_CONSUMER_OPTIONS, data_source_options,
    data_source_read_options,
};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_py;
use crate::options::{option_values, to_dict, to_python};

/// Name, whether it is headrace's own, kind for each mode of `classify`, whether it passes by itself, whether it means that the
/// server was not reached or the connection was lost, whether the row is at fault, `written`, advice, text.
type CodeRow = (
    &'static str,
    bool,
    BTreeMap<&'static str, &'static str>,
    bool,
    bool,
    bool,
    Vec<&'static str>,
    Option<&'static str>,
    &'static str,
);

/// Return the rows of the table of error codes, headrace's own first; `headrace.tables` names their parts.
#[pyfunction]
pub(crate) fn code_table() -> Vec<CodeRow> {
    let own = code::OWN.iter().map(|row| (row, true));
    let rows = own.chain(code::SERVER.iter().map(|row| (row, false)));
    rows.map(|(row, is_own)| {
        let kinds = Classify::NAMES.into_iter().zip(Classify::ALL.map(|mode| row.kind(mode).as_str())).collect();
        let written = row.written.iter().map(|written| written.as_str()).collect();
        (
            row.name,
            is_own,
            kinds,
            row.passes,
            row.is_of_connection(),
            row.is_of_row(),
            written,
            row.advice,
            row.text.trim(),
        )
    })
    .collect()
}

/// Return what the caller can do about a failure with this code and message, or None.
#[pyfunction]
pub(crate) fn advice(code: &str, message: &str) -> Option<&'static str> {
    code::advice(code, message)
}

/// Return the message of a failure, what to do about it, and where the documentation explains its code.
#[pyfunction]
pub(crate) fn advised(code: &str, message: &str) -> String {
    code::advised(code, message)
}

/// Name, allowed values, default, whether the default depends on something, whether it is secret, text.
type OptionRow<'py> = (&'static str, String, Bound<'py, PyAny>, bool, bool, &'static str);

fn table_of(name: &str) -> PyResult<&'static [OptionSpec]> {
    match name {
        "endpoint" => Ok(OPTIONS),
        "dispatcher" => Ok(DISPATCHER_OPTIONS),
        "layout" => Ok(LAYOUT_OPTIONS),
        "reader" => Ok(READER_OPTIONS),
        "consumer" => Ok(CONSUMER_OPTIONS),
        "shard_consumer" => Ok(SHARD_CONSUMER_OPTIONS),
        "datasource" => Ok(data_source_options()),
        "datasource_read" => Ok(data_source_read_options()),
        _ => Err(PyKeyError::new_err(name.to_owned())),
    }
}

/// Return a table of options by its name, such as `endpoint` or `datasource_read`.
#[pyfunction]
pub(crate) fn option_table<'py>(py: Python<'py>, name: &str) -> PyResult<Vec<OptionRow<'py>>> {
    let row = |spec: &OptionSpec| {
        let default = to_python(py, &spec.default.value())?;
        Ok((spec.name, spec.allowed(), default, spec.depends, spec.secret, spec.text.trim()))
    };
    table_of(name)?.iter().map(row).collect()
}

/// Read the options of a table from text. A missing option has its default, or None if it has none.
#[pyfunction]
pub(crate) fn read_options<'py>(
    py: Python<'py>,
    name: &str,
    options: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let values = read_values(table_of(name)?, option_values(options)?, Form::Text).map_err(|error| to_py(&error))?;
    to_dict(py, values)
}
