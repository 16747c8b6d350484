//! The dispatcher for Python: one caller at a time, the GIL held only to read what the caller gave.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use headrace_core::endpoint::Form;
use headrace_core::error::Failure;
use headrace_core::{Counters, Dispatcher, DispatcherOptions, EntryId, Error, IdArgument};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyMemoryView, PyString, PyTuple};

use crate::batch_name::{self, Given};
use crate::capsules::read;
use crate::counters::PyCounters;
use crate::endpoint::{PyEndpoint, option_values};
use crate::errors::{raise, to_py};
use crate::layout::{LayoutArguments, layout, type_name};
use crate::panics::contained;
use crate::report::PyReport;
use crate::signals::without_gil;

/// What `headrace.Dispatcher` is made of.
#[pyclass(frozen, subclass, name = "Dispatcher", module = "headrace._headrace")]
pub(crate) struct PyDispatcher {
    inner: Mutex<Dispatcher>,
    /// The process that made it: a fork may copy the lock while another thread holds it.
    process: u32,
    counters: Arc<Counters>,
}

impl PyDispatcher {
    /// The dispatcher, for this call alone: also against a signal handler that comes back in the middle of one.
    fn lock(&self) -> PyResult<MutexGuard<'_, Dispatcher>> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::WouldBlock) if self.is_stuck() => Err(raise(
                "ConcurrentUseError",
                "the process was forked while a thread used the dispatcher: make a new one in the child",
            )),
            Err(TryLockError::WouldBlock) => Err(raise(
                "ConcurrentUseError",
                "the dispatcher is in use by another call: it takes one caller at a time; make one per thread",
            )),
            // A panic of the binding: the core leaves no call in the middle of a change.
            Err(TryLockError::Poisoned(poisoned)) => {
                self.inner.clear_poison();
                Ok(poisoned.into_inner())
            }
        }
    }

    /// Whether the lock is a copy that nobody will ever open: a fork made it while another thread was in a call.
    fn is_stuck(&self) -> bool {
        self.process != std::process::id() && self.inner.try_lock().is_err()
    }
}

#[pymethods]
impl PyDispatcher {
    /// `text`: all values are text, as Spark hands them over.
    #[new]
    #[pyo3(signature = (endpoint, options, text = false))]
    fn new(endpoint: &Bound<'_, PyEndpoint>, options: &Bound<'_, PyDict>, text: bool) -> PyResult<Self> {
        let form = if text { Form::Text } else { Form::Typed };
        let options = DispatcherOptions::new(option_values(options)?, form).map_err(|e| to_py(&e))?;
        let mut inner = Dispatcher::new(endpoint.get().0.clone(), options);
        let counters = inner.counters();
        Ok(Self { inner: Mutex::new(inner), process: std::process::id(), counters })
    }

    #[pyo3(signature = (payload, message_id = None))]
    fn produce(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        message_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        contained(py, || {
            let mut inner = self.lock()?;
            let id = given_id(message_id)?;
            with_bytes(payload, |payload| {
                if !inner.has_room().map_err(|e| to_py(&e))? {
                    let dispatcher = &mut *inner;
                    without_gil(py, |signals| dispatcher.make_room(signals))?;
                }
                inner.produce(payload, id).map_err(|e| to_py(&e))
            })
        })
    }

    #[pyo3(signature = (data, *, payload = None, fields = None, json = None, message_id = None, stream_key = None, entry_id = None, rows_per_entry = None, arrow_ipc = false, codec = None))]
    #[allow(clippy::too_many_arguments)] // the keyword arguments of the Python method
    fn produce_batch(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        payload: Option<String>,
        fields: Option<&Bound<'_, PyAny>>,
        json: Option<&Bound<'_, PyAny>>,
        message_id: Option<String>,
        stream_key: Option<String>,
        entry_id: Option<String>,
        rows_per_entry: Option<&Bound<'_, PyAny>>,
        arrow_ipc: bool,
        codec: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        contained(py, || {
            let mut inner = self.lock()?;
            let layout = layout(LayoutArguments {
                payload,
                fields,
                json,
                message_id,
                stream_key,
                entry_id,
                rows_per_entry,
                arrow_ipc,
                codec,
            })?;
            let mut reader = read(data)?;
            let mut plan = inner.plan(reader.schema(), &layout).map_err(|e| to_py(&e))?;
            reader.read_only(&plan.columns());
            let dispatcher = &mut *inner;
            without_gil(py, |signals| {
                for batch in reader {
                    dispatcher.produce_batch(&batch?, &mut plan, signals)?;
                }
                Ok(())
            })
        })
    }

    #[pyo3(signature = (token, version = Given(None)), text_signature = "($self, token, version=0)")]
    fn begin(&self, py: Python<'_>, token: &Bound<'_, PyAny>, version: Given<'_, '_>) -> PyResult<()> {
        contained(py, || {
            let (token, version) = (batch_name::token(token)?, batch_name::version(version)?);
            self.lock()?.begin(token, version).map_err(|e| to_py(&e))
        })
    }

    fn skip_failed(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || self.lock()?.skip_failed().map_err(|e| to_py(&e)))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<PyReport> {
        contained(py, || {
            let mut inner = self.lock()?;
            let dispatcher = &mut *inner;
            without_gil(py, |signals| dispatcher.poll(signals)).map(PyReport)
        })
    }

    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyReport> {
        contained(py, || {
            let mut inner = self.lock()?;
            if let Some(seconds) = timeout.filter(|seconds| seconds.is_nan() || *seconds < 0.0) {
                let message = format!("timeout must be a number of seconds of at least 0, got {seconds}");
                return Err(to_py(&Error::config("timeout", message)));
            }
            // What is too long for a duration is for ever.
            let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let dispatcher = &mut *inner;
            without_gil(py, |signals| dispatcher.flush(timeout, signals)).map(PyReport)
        })
    }

    /// The entry ID as text, or the failure as a tuple: kind, code, message, written.
    fn dispatch<'py>(&self, py: Python<'py>, payload: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        contained(py, || {
            let mut inner = self.lock()?;
            let outcome = with_bytes(payload, |payload| {
                let dispatcher = &mut *inner;
                without_gil(py, |signals| dispatcher.dispatch(payload, signals))
            })?;
            outcome_to_py(py, outcome)
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || {
            let mut inner = self.lock()?;
            let dispatcher = &mut *inner;
            py.detach(|| dispatcher.close());
            Ok(())
        })
    }

    /// What was done so far; no lock is needed to read it.
    #[getter]
    fn counters(&self) -> PyCounters {
        PyCounters(Arc::clone(&self.counters))
    }

    /// What a debugger or a panic would show: for the test that looks for secrets.
    fn _debug(&self) -> PyResult<String> {
        Ok(format!("{:#?}", *self.lock()?))
    }

    /// Messages whose outcome no report has told yet.
    #[getter]
    fn unreported(&self) -> PyResult<u64> {
        if self.is_stuck() { Ok(0) } else { Ok(self.lock()?.unreported()) }
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        if self.is_stuck() { Ok(true) } else { Ok(self.lock()?.is_closed()) }
    }
}

fn outcome_to_py(py: Python<'_>, outcome: Result<EntryId, Failure>) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        Ok(id) => Ok(PyString::new(py, &id.to_string()).into_any()),
        Err(failure) => {
            let Failure { kind, code, message, written } = &failure;
            Ok(PyTuple::new(py, [kind.as_str(), code, message, written.as_str()])?.into_any())
        }
    }
}

/// Reads a message ID: an int of 64 bits, a str, or nothing.
fn given_id<'a>(id: Option<&'a Bound<'_, PyAny>>) -> PyResult<IdArgument<'a>> {
    let Some(id) = id else { return Ok(IdArgument::None) };
    if let Ok(text) = id.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => Ok(IdArgument::Text(text)),
            Err(_) => Err(raise("MessageError", "a message ID must be valid Unicode: it has lone surrogates")),
        };
    }
    if id.is_instance_of::<PyInt>() && !id.is_instance_of::<PyBool>() {
        return id.extract().map(IdArgument::Int).map_err(|_| {
            // Python refuses to print ints of thousands of digits.
            let value = id.str().map_or_else(|_| "a larger one".to_owned(), |text| text.to_string());
            raise("MessageError", format!("an int message ID must fit 64 bits (-2**63 to 2**63-1): {value}"))
        });
    }
    Err(raise("MessageError", format!("a message ID must be a str or an int: got {}", type_name(id))))
}

/// Gives `read` the bytes of a payload; those of `bytes` and `str` where they are.
fn with_bytes<T>(payload: &Bound<'_, PyAny>, read: impl FnOnce(&[u8]) -> PyResult<T>) -> PyResult<T> {
    if let Ok(bytes) = payload.cast::<PyBytes>() {
        return read(bytes.as_bytes());
    }
    if let Ok(text) = payload.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => read(text.as_bytes()),
            Err(_) => Err(raise("MessageError", "a str payload must be valid Unicode: it has lone surrogates")),
        };
    }
    // What can be changed is copied first: it may change while this call waits for room.
    if let Ok(bytes) = payload.cast::<PyByteArray>() {
        return read(&bytes.to_vec());
    }
    let Ok(view) = PyMemoryView::from(payload) else {
        return Err(raise(
            "MessageError",
            format!("a payload must be bytes-like or a str: got {}", type_name(payload)),
        ));
    };
    read(view.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes())
}
