//! Sends commands that the command `headrace` composes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use headrace_core::{Answer, Commands, Request};
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The steps of a connect, and the code and text of its failure.
type Connected<'py> = (Vec<(f64, &'static str, Bound<'py, PyBytes>)>, Option<(String, String)>);

use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::exception::raise;
use crate::panics::contained;
use crate::signals::without_gil;

/// The key of a command, and its words.
type KeyAndWords = (Option<Vec<u8>>, Vec<Vec<u8>>);

/// Sends commands over connections that it keeps open: one, or one to each node of a cluster that was asked.
///
/// Nothing is connected before the first call. Only one thread may use it at a time.
///
/// Args:
///     endpoint: The server, and the stream whose node gets the commands without a key.
///     node: Host and port of a node of the endpoint's cluster that gets all commands, whichever keys they have.
///     sentinel: The index of one of the endpoint's sentinels, which gets all commands.
#[pyclass(frozen, name = "Commands", module = "headrace._headrace")]
pub(crate) struct PyCommands(Mutex<Commands>);

#[pymethods]
#[allow(clippy::doc_markdown)] // Python's names, in Python's markup
impl PyCommands {
    #[new]
    #[pyo3(signature = (endpoint, node = None, sentinel = None))]
    fn new(endpoint: &Bound<'_, PyEndpoint>, node: Option<(String, u16)>, sentinel: Option<usize>) -> Self {
        let endpoint = &endpoint.get().0;
        Self(Mutex::new(match (node, sentinel) {
            (Some((host, port)), _) => Commands::to_node(endpoint, host, port),
            (None, Some(place)) => Commands::to_sentinel(endpoint, place),
            (None, None) => Commands::new(endpoint),
        }))
    }

    /// Connect again to the server that has the endpoint's stream.
    ///
    /// Returns the steps (seconds since the start, name, detail), and why it failed (code, text), or None.
    fn connect<'py>(&self, py: Python<'py>) -> PyResult<Connected<'py>> {
        let attempt = contained(py, || {
            let mut inner = self.lock()?;
            let commands = &mut *inner;
            without_gil(py, |signals| commands.connect(signals))
        })?;
        let steps = attempt.steps.iter();
        let steps = steps.map(|step| (step.after.as_secs_f64(), step.name, PyBytes::new(py, &step.detail))).collect();
        Ok((steps, attempt.failure))
    }

    /// Return the reply to each command: an int, bytes, None, a list, or a `CommandError` that is not raised.
    ///
    /// `commands` are pairs of a key and words; the key decides which node of a cluster gets the command, None means
    /// the endpoint's stream. With `writes` nothing is sent a second time when a connection is lost.
    ///
    /// Args:
    ///     commands: Pairs of a key and words.
    ///     writes: Whether the commands change anything.
    ///
    /// Raises:
    ///     ConnectionFailedError: The server was not reached, or the connection was lost. With `writes` it is then
    ///         unknown whether the commands took effect.
    #[pyo3(signature = (commands, writes))]
    fn call<'py>(&self, py: Python<'py>, commands: Vec<KeyAndWords>, writes: bool) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let requests: Vec<_> = commands.into_iter().map(|(key, words)| Request { words, key, writes }).collect();
        let answers = contained(py, || {
            let mut inner = self.lock()?;
            let commands = &mut *inner;
            without_gil(py, |signals| commands.call(&requests, signals))
        })?;
        answers.into_iter().map(|answer| object(py, answer)).collect()
    }

    /// Close the connections. The next call opens new ones.
    fn close(&self) -> PyResult<()> {
        self.lock()?.close();
        Ok(())
    }
}

impl PyCommands {
    /// Locks the commands for this call, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, Commands>> {
        match self.0.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::WouldBlock) => {
                Err(raise("ConcurrentUseError", "the commands are in use by another call"))
            }
            // The core contains its own panics, so its state is consistent.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        }
    }
}

/// Return the key of the marker of a batch for one stream, with `exactly_once="script"`.
#[pyfunction]
pub(crate) fn marker_key<'py>(py: Python<'py>, stream_key: &[u8], token: &str) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &headrace_core::marker_key(stream_key, token))
}

fn object(py: Python<'_>, answer: Answer) -> PyResult<Bound<'_, PyAny>> {
    match answer {
        Answer::Nil => Ok(py.None().into_bound(py)),
        Answer::Int(number) => number.into_bound_py_any(py),
        Answer::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
        Answer::List(answers) => {
            let items: Vec<_> = answers.into_iter().map(|answer| object(py, answer)).collect::<PyResult<_>>()?;
            Ok(PyList::new(py, items)?.into_any())
        }
        Answer::Refused(error) => Ok(to_py(&error).into_value(py).into_bound(py).into_any()),
    }
}
