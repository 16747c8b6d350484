//! A column of a record batch with its name, and rows as dicts.

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::FieldRef;
use pyo3::exceptions::{PyArithmeticError, PyLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::column::Column;
use crate::shown;

/// A column and its name.
pub(crate) struct NamedColumn {
    pub(crate) name: Py<PyString>,
    column: Column,
    /// The number of its first row, for errors.
    first_row: usize,
}

impl NamedColumn {
    /// The columns of a record batch, whose rows are numbered from `first_row` on.
    pub(crate) fn of_batch(py: Python<'_>, batch: &RecordBatch, first_row: usize) -> Vec<Self> {
        let columns = batch.schema_ref().fields().iter().zip(batch.columns());
        let named = |(field, array): (&FieldRef, &ArrayRef)| Self {
            name: PyString::new(py, field.name()).unbind(),
            column: Column::new(py, field, array),
            first_row,
        };
        columns.map(named).collect()
    }

    /// The value in a row. An error of a value names the column and the row.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyAny>> {
        self.column.get(py, row).map_err(|error| self.place(py, row, error))
    }

    #[cold]
    fn place(&self, py: Python<'_>, row: usize, error: PyErr) -> PyErr {
        let is_of_value = error.is_instance_of::<PyValueError>(py)
            || error.is_instance_of::<PyArithmeticError>(py)
            || error.is_instance_of::<PyLookupError>(py);
        if !is_of_value {
            return error;
        }
        let (name, row) = (shown::repr(self.name.bind(py).as_any()), self.first_row + row);
        let placed = PyValueError::new_err(format!("column {name}, row {row}: {}", error.value(py)));
        placed.set_cause(py, Some(error));
        placed
    }
}

/// A dict for each of the first rows, with the values of these columns.
pub(crate) fn dicts<'py>(py: Python<'py>, columns: &[NamedColumn], rows: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let row = |row| {
        let values = PyDict::new(py);
        for column in columns {
            values.set_item(&column.name, column.get(py, row)?)?;
        }
        Ok(values)
    };
    (0..rows).map(row).collect()
}
