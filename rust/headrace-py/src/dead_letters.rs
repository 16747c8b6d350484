//! Dead letters for Python: those of a batch, and a single one.

use headrace_core::{DeadLetter, PackedFields, dead_letters};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods};

use crate::errors::to_py;
use crate::panics::contained;
use crate::stream_reader::PyReadBatch;
use crate::unpack::PyRows;

/// A field that a letter may lack.
type Part<'py> = Option<Bound<'py, PyBytes>>;

/// The names and values of fields.
type Pairs<'py> = Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;

/// Origin, stream, original ID, code, reason, failures, written, source, ordinal, and the fields of the entry itself.
type PyDeadLetter<'py> =
    (&'static str, Part<'py>, Part<'py>, Part<'py>, Part<'py>, Part<'py>, Part<'py>, Part<'py>, Part<'py>, Pairs<'py>);

/// Return the dead letters of a batch, and how many of its entries are others; `read_dead_letters` wraps it.
#[pyfunction]
pub(crate) fn split_dead_letters(py: Python<'_>, batch: &Bound<'_, PyReadBatch>) -> PyResult<(PyRows, u64)> {
    contained(py, || {
        let (letters, others) = dead_letters(batch.get().seen().record_batch()).map_err(|error| to_py(&error))?;
        Ok((PyRows::from(letters), others))
    })
}

/// Read one entry, given the names and values of its fields in turn; `headrace.admin.DeadLetter` names the parts.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
pub(crate) fn read_dead_letter<'py>(py: Python<'py>, fields: Vec<Bound<'py, PyBytes>>) -> PyResult<PyDeadLetter<'py>> {
    if fields.len() % 2 == 1 {
        return Err(PyValueError::new_err("fields must be names and values in turn, got a name without a value"));
    }
    contained(py, || {
        let names: Vec<_> = fields.iter().step_by(2).map(PyBytesMethods::as_bytes).collect();
        let letter = DeadLetter::read(&names, fields.last().map_or(&[], |value| value.as_bytes()));
        let name = |at: usize| fields[2 * at].clone();
        let value = |at: usize| fields[2 * at + 1].clone();
        let packed = letter.packed.map(value);
        let unpacked = PackedFields(packed.as_ref().map_or(&[], |value| value.as_bytes()));
        let unpacked = unpacked.map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value)));
        let own = letter.own.iter().map(|at| (name(*at), value(*at))).chain(unpacked).collect();
        Ok((
            letter.origin.name(),
            letter.stream.map(value),
            letter.original_id.map(value),
            letter.code.map(value),
            letter.reason.map(value),
            letter.failures.map(value),
            letter.written.map(value),
            letter.source.map(value),
            letter.ordinal.map(value),
            own,
        ))
    })
}
