//! Reports as Python objects, built only on request.

use headrace_core::DeliveryReport;
use headrace_core::report::{FailedMessage, ReportedId, outcome_schema};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString, PyTuple};

use crate::capsules;
use crate::panics::contained;
use crate::shown::number;

/// The outcomes of a run of messages; `headrace.DeliveryReport` wraps it.
#[pyclass(frozen, name = "Report", module = "headrace._headrace")]
pub(crate) struct PyReport(pub(crate) DeliveryReport);

#[pymethods]
impl PyReport {
    /// The number of messages that are in their stream.
    #[getter]
    fn delivered(&self) -> u64 {
        self.0.delivered()
    }

    /// The number of messages that failed.
    #[getter]
    fn failed(&self) -> u64 {
        self.0.failed()
    }

    /// The number of delivered messages that an earlier attempt had written.
    #[getter]
    fn deduplicated(&self) -> u64 {
        self.0.deduplicated()
    }

    /// How many times messages were sent again.
    #[getter]
    fn retries(&self) -> u64 {
        self.0.retries()
    }

    /// The number of retries that may have written a message a second time.
    #[getter]
    fn possible_duplicates(&self) -> u64 {
        self.0.possible_duplicates()
    }

    /// Return one tuple per failed message: ID, kind, code, message and written; the first `limit`, or all.
    #[pyo3(signature = (limit = None))]
    fn failures<'py>(&self, py: Python<'py>, limit: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        contained(py, || {
            let list = PyList::empty(py);
            for FailedMessage { message_id, failure } in self.0.failures().take(limit.unwrap_or(usize::MAX)) {
                list.append(PyTuple::new(
                    py,
                    [
                        id_to_py(py, message_id)?,
                        PyString::intern(py, failure.kind.as_str()).into_any(),
                        PyString::intern(py, &failure.code).into_any(),
                        PyString::new(py, &failure.message).into_any(),
                        PyString::intern(py, failure.written.as_str()).into_any(),
                    ],
                )?)?;
            }
            Ok(list)
        })
    }

    /// Return the IDs of the failed messages, in order.
    fn failed_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        contained(py, || {
            let list = PyList::empty(py);
            for failed in self.0.failures() {
                list.append(id_to_py(py, failed.message_id)?)?;
            }
            Ok(list)
        })
    }

    /// Return the number of failed messages by code.
    fn failed_by_code<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        contained(py, || {
            let counts = PyDict::new(py);
            for (code, count) in self.0.failed_by_code() {
                counts.set_item(&*code, count)?;
            }
            Ok(counts)
        })
    }

    /// Return the outcomes for any Arrow library; `headrace.DeliveryReport.to_arrow` wraps it.
    #[pyo3(signature = (only_failed = false))]
    fn to_arrow(&self, only_failed: bool) -> PyOutcomes {
        PyOutcomes { report: self.0.clone(), only_failed }
    }
}

pub(crate) fn id_to_py<'py>(py: Python<'py>, id: ReportedId<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match id {
        ReportedId::Ordinal(id) | ReportedId::UInt(id) => id.into_pyobject(py)?.into_any(),
        ReportedId::Int(id) => id.into_pyobject(py)?.into_any(),
        ReportedId::Text(id) => PyString::new(py, id).into_any(),
    })
}

/// The outcomes of a report, for any Arrow library: `pyarrow.table(outcomes)`, `polars.DataFrame(outcomes)`.
///
/// `headrace.DeliveryReport.to_arrow` describes the columns.
#[pyclass(frozen, name = "Outcomes", module = "headrace._headrace")]
pub(crate) struct PyOutcomes {
    report: DeliveryReport,
    only_failed: bool,
}

#[pymethods]
impl PyOutcomes {
    /// Return the outcomes as a `PyCapsule` of the Arrow C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_stream(py, self.report.to_arrow(self.only_failed), requested_schema)
    }

    /// Return the schema of the outcomes as a `PyCapsule`.
    #[allow(clippy::unused_self)] // the protocol requires a method
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_schema(py, &outcome_schema())
    }

    fn __len__(&self) -> usize {
        let delivered = if self.only_failed { 0 } else { self.report.delivered() };
        usize::try_from(delivered + self.report.failed()).unwrap_or(usize::MAX)
    }

    fn __repr__(&self) -> String {
        let failed = number(self.report.failed());
        if self.only_failed {
            return format!("<Outcomes: {failed} failed>");
        }
        format!("<Outcomes: {} delivered, {failed} failed>", number(self.report.delivered()))
    }
}
