//! The dispatcher for Python's event loops: nothing here waits. `python/headrace/async_dispatcher.py` waits for what it returns.

use std::sync::{Arc, Mutex, MutexGuard};

use arrow_array::RecordBatch;
use headrace_core::endpoint::Form;
use headrace_core::import::Reader;
use headrace_core::report::AwaitedOutcome;
use headrace_core::{BatchPlan, Counters, DeliveryReport, Dispatcher, DispatcherOptions, TaskDispatcher};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch_name::{self, Given};
use crate::capsules::read;
use crate::counters::PyCounters;
use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::exception::raise;
use crate::layout::{Layout, layout};
use crate::message::{Parts, given_id, with_message};
use crate::one_caller;
use crate::options::option_values;
use crate::outcome;
use crate::panics::contained;
use crate::report::PyReport;
use crate::signals::{Logged, without_gil};
use crate::sockets::{Socket, seconds_until, sockets};

/// The native half of `headrace.AsyncDispatcher`, which documents it. No call waits.
#[pyclass(frozen, name = "LoopDispatcher", module = "headrace._headrace")]
pub(crate) struct PyLoopDispatcher {
    inner: Mutex<Driven>,
    counters: Arc<Counters>,
}

/// A dispatcher, and the sockets that the caller knows of; None: some may be closed now.
struct Driven {
    dispatcher: TaskDispatcher,
    sockets: Option<Vec<Socket>>,
}

impl Driven {
    /// Passes the outcomes of a report to the futures that await them: `futures` has one for each message, in order.
    fn settle(&mut self, report: Option<&DeliveryReport>, futures: &Bound<'_, PyAny>) -> u64 {
        if let Some(report) = report {
            self.dispatcher.settle(report, |awaited| receive(futures, awaited).is_ok());
        }
        self.dispatcher.settled()
    }
}

/// Sets the next future. One that was cancelled refuses its outcome.
fn receive(futures: &Bound<'_, PyAny>, awaited: AwaitedOutcome<'_>) -> PyResult<()> {
    let py = futures.py();
    let future = futures.call_method0(intern!(py, "popleft"))?;
    future.call_method1(intern!(py, "set_result"), (outcome::to_py(py, awaited)?,)).map(drop)
}

impl PyLoopDispatcher {
    /// Locks the dispatcher for this call, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, Driven>> {
        one_caller::lock(&self.inner, || "the dispatcher is in use by another call".to_owned())
    }
}

#[pymethods]
impl PyLoopDispatcher {
    #[new]
    fn new(endpoint: &Bound<'_, PyEndpoint>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = DispatcherOptions::new(option_values(options)?, Form::Typed).map_err(|e| to_py(&e))?;
        let mut dispatcher = Dispatcher::new(endpoint.get().0.clone(), options).map_err(|e| to_py(&e))?;
        let counters = dispatcher.counters();
        let dispatcher = TaskDispatcher::new(dispatcher, Box::new(Logged)).map_err(|e| to_py(&e))?;
        Ok(Self { inner: Mutex::new(Driven { dispatcher, sockets: Some(Vec::new()) }), counters })
    }

    /// Take one message if there is room for it now, and return whether it was taken.
    ///
    /// With `is_awaited` a future gets its outcome.
    #[pyo3(signature = (payload = None, message_id = None, key = None, is_awaited = false, *, fields = None, stream_key = None, entry_id = None))]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn produce(
        &self,
        py: Python<'_>,
        payload: Option<&Bound<'_, PyAny>>,
        message_id: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
        is_awaited: bool,
        fields: Option<&Bound<'_, PyAny>>,
        stream_key: Option<&Bound<'_, PyAny>>,
        entry_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        contained(py, || {
            let mut driven = self.lock()?;
            let id = given_id(message_id)?;
            with_message(Parts { payload, key, fields, stream_key, entry_id }, |message| {
                driven.dispatcher.produce(message, id, is_awaited).map_err(|error| to_py(&error))
            })
        })
    }

    /// Open Arrow data for `produce_rows`. The arguments are those of `Dispatcher.produce_batch`.
    #[pyo3(signature = (data, **keywords))]
    fn open_batch(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyLoopBatch> {
        contained(py, || {
            let layout = layout(keywords)?;
            let mut batch = OpenBatch { reader: read(data)?, layout, plan: None, current: None };
            let planned = self.lock()?.dispatcher.produce_unawaited(|dispatcher| batch.plan(dispatcher));
            planned.transpose().map_err(|error| to_py(&error))?;
            Ok(PyLoopBatch(Mutex::new(batch)))
        })
    }

    /// Take the next rows, at most about 1,024, if there is room now. Return how many, or None if all were taken.
    fn produce_rows(&self, py: Python<'_>, batch: &Bound<'_, PyLoopBatch>) -> PyResult<Option<usize>> {
        contained(py, || {
            let mut driven = self.lock()?;
            let Ok(mut batch) = batch.get().0.try_lock() else {
                return Err(raise("InternalError", "a batch is in use, or a defect in headrace ended an earlier call"));
            };
            let (dispatcher, batch) = (&mut driven.dispatcher, &mut *batch);
            let taken =
                without_gil(py, |_| dispatcher.produce_unawaited(|dispatcher| batch.produce(dispatcher)).transpose());
            taken.map(|taken| taken.unwrap_or(Some(0)))
        })
    }

    /// Do what can be done without waiting, and pass outcomes to the futures.
    ///
    /// Returns the sockets to watch, as (connection, descriptor, whether to wait until it is writable too), or None if
    /// they are unchanged; in how many seconds to call again at the latest, or None; and how many messages have an
    /// outcome.
    fn advance(&self, py: Python<'_>, futures: &Bound<'_, PyAny>) -> PyResult<(Option<Vec<Socket>>, Option<f64>, u64)> {
        contained(py, || {
            let mut driven = self.lock()?;
            let dispatcher = &mut driven.dispatcher;
            let progress = py.detach(|| dispatcher.advance()).map_err(|error| to_py(&error))?;
            let settled = driven.settle(progress.report.as_ref(), futures);
            let (sockets, seconds) = (sockets(&progress.sockets), seconds_until(progress.deadline));
            let changed = (driven.sockets.as_ref() != Some(&sockets)).then(|| sockets.clone());
            driven.sockets = Some(sockets);
            Ok((changed, seconds, settled))
        })
    }

    /// Give messages without a reply the outcome `TIMEOUT`, and number messages from 0 again.
    fn end_batch(&self, py: Python<'_>, futures: &Bound<'_, PyAny>) -> PyResult<u64> {
        contained(py, || {
            let mut driven = self.lock()?;
            let dispatcher = &mut driven.dispatcher;
            let report = without_gil(py, |signals| dispatcher.end_batch(signals))?;
            driven.sockets = None;
            Ok(driven.settle(report.as_ref(), futures))
        })
    }

    /// Put an outcome that a future had, but no task received, into the next report.
    fn put_back(&self, outcome: &Bound<'_, PyAny>) -> PyResult<()> {
        let dispatcher = &mut self.lock()?.dispatcher;
        outcome::with_outcome(outcome, |awaited| dispatcher.put_back(awaited));
        Ok(())
    }

    /// Return the outcomes since the last report, except those that futures had.
    fn report(&self) -> PyResult<PyReport> {
        Ok(PyReport(self.lock()?.dispatcher.report()))
    }

    /// Begin a batch under a token; `headrace.AsyncDispatcher.begin` wraps it.
    #[pyo3(signature = (token, version = Given(None)), text_signature = "($self, token, version=0)")]
    fn begin(&self, py: Python<'_>, token: &Bound<'_, PyAny>, version: Given<'_, '_>) -> PyResult<()> {
        contained(py, || {
            let (token, version) = (batch_name::token(token)?, batch_name::version(version)?);
            self.lock()?.dispatcher.begin(token, version).map_err(|e| to_py(&e))
        })
    }

    /// Close the connection. Messages without an outcome are given up.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || {
            let dispatcher = &mut self.lock()?.dispatcher;
            py.detach(|| dispatcher.close());
            Ok(())
        })
    }

    /// The counters so far; `headrace.AsyncDispatcher.stats` reads them.
    #[getter]
    fn counters(&self) -> PyCounters {
        PyCounters(Arc::clone(&self.counters))
    }

    /// The Rust debug output, for the test that looks for secrets in it.
    fn _debug(&self) -> PyResult<String> {
        Ok(format!("{:#?}", self.lock()?.dispatcher))
    }

    /// The number of messages that were taken.
    #[getter]
    fn taken(&self) -> PyResult<u64> {
        Ok(self.lock()?.dispatcher.taken())
    }

    /// The number of messages that have no outcome yet.
    #[getter]
    fn unsettled(&self) -> PyResult<u64> {
        let dispatcher = &mut self.lock()?.dispatcher;
        Ok(dispatcher.taken() - dispatcher.settled())
    }
}

/// Arrow data whose rows `LoopDispatcher.produce_rows` takes.
#[pyclass(frozen, name = "LoopBatch", module = "headrace._headrace")]
pub(crate) struct PyLoopBatch(Mutex<OpenBatch>);

struct OpenBatch {
    reader: Reader,
    layout: Layout,
    /// None: the batch was opened while a connection was being opened.
    plan: Option<BatchPlan>,
    /// A record batch, and the first of its remaining rows.
    current: Option<(RecordBatch, usize)>,
}

impl OpenBatch {
    fn plan(&mut self, dispatcher: &mut Dispatcher) -> headrace_core::Result<()> {
        let plan = self.layout.plan(|layout| dispatcher.plan(self.reader.schema(), layout))?;
        self.reader.read_only(&plan.columns());
        self.plan = Some(plan);
        Ok(())
    }

    fn produce(&mut self, dispatcher: &mut Dispatcher) -> headrace_core::Result<Option<usize>> {
        loop {
            let Some(plan) = &mut self.plan else {
                self.plan(dispatcher)?;
                continue;
            };
            if let Some((batch, row)) = &mut self.current
                && *row < batch.num_rows()
            {
                let taken = dispatcher.produce_rows(batch, *row, plan)?;
                *row += taken;
                return Ok(Some(taken));
            }
            match self.reader.next() {
                None => return Ok(None),
                Some(batch) => self.current = Some((batch?, 0)),
            }
        }
    }
}
