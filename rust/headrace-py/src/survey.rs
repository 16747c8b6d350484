//! Inspects streams for the planner of a Spark read, and for the command.

use std::sync::{Mutex, MutexGuard, TryLockError};

use headrace_core::Survey;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::endpoint::PyEndpoint;
use crate::exception::raise;
use crate::panics::contained;
use crate::signals::without_gil;
use crate::stream_facts::{Id, PyGroupInfo, PyLeaseInfo, PyStreamInfo, id, pair};

/// A lease, and the members of its group.
type Shared<'py> = (Option<PyLeaseInfo>, Vec<(Bound<'py, PyBytes>, u64)>);

/// Inspects streams over connections that it keeps open, one to each server, and reopens if they were lost.
#[pyclass(frozen, name = "Survey", module = "headrace._headrace")]
pub(crate) struct PySurvey(Mutex<Survey>);

#[pymethods]
impl PySurvey {
    #[new]
    fn new(endpoint: &Bound<'_, PyEndpoint>) -> Self {
        Self(Mutex::new(Survey::new(&endpoint.get().0)))
    }

    /// Return what the server says about each stream: XINFO STREAM.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn streams(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<PyStreamInfo>> {
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.streams(&keys, signals))
        })?;
        Ok(found.into_iter().map(PyStreamInfo).collect())
    }

    /// Return what the server says about each stream and its groups: XINFO STREAM and XINFO GROUPS.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn groups(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<(PyStreamInfo, Vec<PyGroupInfo>)>> {
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.groups(&keys, signals))
        })?;
        let rows = |(stream, groups): (_, Vec<_>)| {
            let groups = groups.iter().map(|group| PyGroupInfo::new(group, &stream)).collect();
            (PyStreamInfo(stream), groups)
        };
        Ok(found.into_iter().map(rows).collect())
    }

    /// Return the lease and the members of each group of shard consumers; None if the user may not read them.
    ///
    /// The members are those whose list is beside this stream: names, and until when they count, in milliseconds of the
    /// server's clock.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn leases<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        stream: &PyStreamInfo,
        groups: Vec<PyRef<'py, PyGroupInfo>>,
    ) -> PyResult<Vec<Option<Shared<'py>>>> {
        let names: Vec<_> = groups.iter().map(|group| group.name.as_slice()).collect();
        let found = contained(py, || {
            let mut inner = self.lock()?;
            let survey = &mut *inner;
            without_gil(py, |signals| survey.leases(key, &names, signals))
        })?;
        let pairs = found.into_iter().zip(&groups);
        let rows = pairs.map(|(found, group)| {
            let (lease, members) = found?;
            let members = members.iter().map(|member| (PyBytes::new(py, &member.name), member.until)).collect();
            Some((lease.map(|lease| PyLeaseInfo::new(lease, group, &stream.0)), members))
        });
        Ok(rows.collect())
    }

    /// Return the first entry of each range `(key, first, last)`, both ends included; None if there is none.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn first_ids(&self, py: Python<'_>, ranges: Vec<(Vec<u8>, Id, Id)>) -> PyResult<Vec<Option<Id>>> {
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
