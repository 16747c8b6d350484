//! The outcome of one message that a task awaits, as a Python object.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use headrace_core::EntryId;
use headrace_core::error::Failure;
use headrace_core::report::{AwaitedOutcome, ReportedId};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::exception::raise;
use crate::report::id_to_py;

/// A message ID that outlives its report.
#[derive(Debug, Clone)]
enum OwnedId {
    Ordinal(u64),
    Int(i64),
    UInt(u64),
    Text(Box<str>),
}

impl From<ReportedId<'_>> for OwnedId {
    fn from(id: ReportedId<'_>) -> Self {
        match id {
            ReportedId::Ordinal(id) => Self::Ordinal(id),
            ReportedId::Int(id) => Self::Int(id),
            ReportedId::UInt(id) => Self::UInt(id),
            ReportedId::Text(id) => Self::Text(id.into()),
        }
    }
}

impl OwnedId {
    fn reported(&self) -> ReportedId<'_> {
        match self {
            Self::Ordinal(id) => ReportedId::Ordinal(*id),
            Self::Int(id) => ReportedId::Int(*id),
            Self::UInt(id) => ReportedId::UInt(*id),
            Self::Text(id) => ReportedId::Text(id),
        }
    }
}

/// A message that is in its stream, as `AsyncDispatcher.send` returns it.
///
/// Attributes:
///     entry_id: The ID of its entry, such as `"1713091234567-0"`. None: an earlier attempt wrote it, and the server
///         did not say under which ID (`exactly_once="script"`).
///     deduplicated: Whether an earlier attempt had written the message, so that it was not written again.
#[allow(clippy::doc_markdown)] // Python's names, in Python's markup
#[pyclass(frozen, name = "Delivered", module = "headrace._headrace")]
pub(crate) struct PyDelivered {
    message_id: OwnedId,
    entry_id: Option<EntryId>,
    deduplicated: bool,
}

#[pymethods]
impl PyDelivered {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("entry_id", "deduplicated")
    }

    #[new]
    #[pyo3(signature = (entry_id, deduplicated = false))]
    fn new(entry_id: Option<&str>, deduplicated: bool) -> PyResult<Self> {
        let entry_id = entry_id.map(|text| {
            let parts = text.split_once('-').and_then(|(ms, seq)| Some((ms.parse().ok()?, seq.parse().ok()?)));
            let wrong = || raise("MessageError", format!("an entry ID has the form ms-seq, got {text:?}"));
            parts.map(|(ms, seq)| EntryId { ms, seq }).ok_or_else(wrong)
        });
        Ok(Self { message_id: OwnedId::Ordinal(0), entry_id: entry_id.transpose()?, deduplicated })
    }

    /// The ID of its entry.
    #[getter]
    fn entry_id(&self) -> Option<String> {
        self.entry_id.map(|id| id.to_string())
    }

    /// Whether an earlier attempt had written it.
    #[getter]
    fn deduplicated(&self) -> bool {
        self.deduplicated
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let other = other.cast::<Self>().ok().map(Bound::get);
        other.is_some_and(|other| (self.entry_id, self.deduplicated) == (other.entry_id, other.deduplicated))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.entry_id, self.deduplicated).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let entry_id = self.entry_id.map_or_else(|| "None".to_owned(), |id| format!("'{id}'"));
        let deduplicated = if self.deduplicated { "True" } else { "False" };
        format!("Delivered(entry_id={entry_id}, deduplicated={deduplicated})")
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Option<String>, bool)) {
        (py.get_type::<Self>(), (self.entry_id(), self.deduplicated))
    }
}

/// A message that failed, until a task receives this as an exception.
#[pyclass(frozen, name = "Undelivered", module = "headrace._headrace")]
pub(crate) struct PyUndelivered {
    message_id: OwnedId,
    failure: Failure,
}

#[pymethods]
impl PyUndelivered {
    /// ID, kind, code, message and written, as `Report.failures` has them.
    #[getter]
    fn failure<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Failure { kind, code, message, written } = &self.failure;
        PyTuple::new(
            py,
            [
                id_to_py(py, self.message_id.reported())?,
                PyString::intern(py, kind.as_str()).into_any(),
                PyString::intern(py, code).into_any(),
                PyString::new(py, message).into_any(),
                PyString::intern(py, written.as_str()).into_any(),
            ],
        )
    }
}

/// The object for an outcome.
pub(crate) fn to_py<'py>(py: Python<'py>, awaited: AwaitedOutcome<'_>) -> PyResult<Bound<'py, PyAny>> {
    let message_id = awaited.message_id.into();
    Ok(match awaited.outcome {
        Ok(entry_id) => {
            Bound::new(py, PyDelivered { message_id, entry_id, deduplicated: entry_id.is_none() })?.into_any()
        }
        Err(failure) => Bound::new(py, PyUndelivered { message_id, failure: failure.clone() })?.into_any(),
    })
}

/// Passes the outcome of an object on; `None`: it is some other object.
pub(crate) fn with_outcome(object: &Bound<'_, PyAny>, pass: impl FnOnce(AwaitedOutcome<'_>)) -> Option<()> {
    let (message_id, outcome) = if let Ok(delivered) = object.cast::<PyDelivered>() {
        let delivered = delivered.get();
        (&delivered.message_id, Ok(delivered.entry_id))
    } else {
        let undelivered = object.cast::<PyUndelivered>().ok()?.get();
        (&undelivered.message_id, Err(&undelivered.failure))
    };
    pass(AwaitedOutcome { message_id: message_id.reported(), outcome });
    Some(())
}
