//! Inspects streams for the planner of a Spark read.

use std::sync::{Mutex, MutexGuard, TryLockError};

use headrace_core::inspect::{GroupInfo, StreamInfo};
use headrace_core::{EntryId, Survey};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::endpoint::PyEndpoint;
use crate::errors::raise;
use crate::panics::contained;
use crate::signals::without_gil;

/// An entry ID: milliseconds and sequence number.
type Id = (u64, u64);

/// Length, the oldest entry, the highest ID that any entry had, the number of entries ever added, the highest deleted one.
type Extent = (i64, Option<Id>, Id, Option<i64>, Option<Id>);

/// Name, consumers, pending entries, the last entry delivered to it, and how many were ever added up to that one.
type Group<'py> = (Bound<'py, PyBytes>, i64, i64, Id, Option<i64>);

/// Inspects streams over connections that it keeps open, one to each server, and reopens if they were lost.
#[pyclass(frozen, name = "Survey", module = "headrace._headrace")]
pub(crate) struct PySurvey(Mutex<Survey>);

#[pymethods]
impl PySurvey {
    #[new]
    fn new(endpoint: &Bound<'_, PyEndpoint>) -> Self {
        Self(Mutex::new(Survey::new(&endpoint.get().0)))
    }

    /// Return XINFO STREAM of each key, None if the stream does not exist.
    ///
    /// That is its length, the oldest entry, the highest entry ID so far, how many entries were ever added (None before
    /// Redis 7.0), and the highest one that XDEL removed.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn streams(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<Option<Extent>>> {
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.streams(&keys, signals))
        })?;
        Ok(found.into_iter().map(|info| info.map(|info| extent(&info))).collect())
    }

    /// Return XINFO GROUPS of each key, None if the stream does not exist.
    ///
    /// For each group that is its name, the numbers of its consumers and pending entries, the last entry delivered to
    /// it, and how many were ever added up to that one (None before Redis 7.0, and if the server does not know it).
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn groups<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Vec<Option<Vec<Group<'py>>>>> {
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.groups(&keys, signals))
        })?;
        let groups = |groups: Vec<GroupInfo>| groups.iter().map(|info| group(py, info)).collect();
        Ok(found.into_iter().map(|found| found.map(groups)).collect())
    }

    /// Return the first entry of each range `(key, first, last)`, both ends included; None if there is none.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn first_ids(&self, py: Python<'_>, ranges: Vec<(Vec<u8>, Id, Id)>) -> PyResult<Vec<Option<Id>>> {
        let id = |(ms, seq): Id| EntryId { ms, seq };
        let ranges: Vec<_> = ranges.into_iter().map(|(key, first, last)| (key, id(first), id(last))).collect();
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.first_ids(&ranges, signals))
        })?;
        Ok(found.into_iter().map(|id| id.map(pair)).collect())
    }

    /// Close the connections. The next call opens new ones.
    fn close(&self) -> PyResult<()> {
        self.lock()?.close();
        Ok(())
    }
}

impl PySurvey {
    /// Locks the survey for this call, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, Survey>> {
        match self.0.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::WouldBlock) => Err(raise("ConcurrentUseError", "the survey is in use by another call")),
            // The core contains its own panics, so its state is consistent.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        }
    }
}

fn extent(info: &StreamInfo) -> Extent {
    (info.length, info.first.map(pair), pair(info.last_generated), info.entries_added, info.max_deleted.map(pair))
}

fn group<'py>(py: Python<'py>, info: &GroupInfo) -> Group<'py> {
    let position = &info.position;
    let (last, read) = (pair(position.last_delivered), position.entries_read);
    (PyBytes::new(py, &info.name), info.consumers, info.pending, last, read)
}

fn pair(id: EntryId) -> Id {
    (id.ms, id.seq)
}
