//! What servers say about streams and groups, and what follows from it.

use headrace_core::inspect::{GroupInfo, LeaseInfo};
use headrace_core::{EntryId, GroupPosition, StreamInfo};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// An entry ID: milliseconds and sequence number.
pub(crate) type Id = (u64, u64);

pub(crate) const fn id((ms, seq): Id) -> EntryId {
    EntryId { ms, seq }
}

pub(crate) const fn pair(id: EntryId) -> Id {
    (id.ms, id.seq)
}

/// What a server says about a stream: XINFO STREAM. The default is a stream that does not exist.
#[pyclass(frozen, eq, name = "StreamInfo", module = "headrace._headrace")]
#[derive(PartialEq, Eq)]
pub(crate) struct PyStreamInfo(pub(crate) StreamInfo);

#[pymethods]
impl PyStreamInfo {
    #[new]
    #[pyo3(
        signature = (length=0, first=None, last=(0, 0), added=Some(0), max_deleted=None),
        text_signature = "(length=0, first=None, last=(0, 0), added=0, max_deleted=None)"
    )]
    fn new(length: u64, first: Option<Id>, last: Id, added: Option<u64>, max_deleted: Option<Id>) -> Self {
        let last_id = id(last);
        Self(StreamInfo {
            length,
            first_id: first.map(id),
            newest_id: first.map(|_| last_id),
            last_id,
            added,
            max_deleted_id: max_deleted.map(id).unwrap_or_default(),
            is_missing: added == Some(0),
            ..StreamInfo::default()
        })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }

    /// How many entries it has.
    #[getter]
    fn length(&self) -> u64 {
        self.0.length
    }

    /// The oldest entry.
    #[getter]
    fn first(&self) -> Option<Id> {
        self.0.first_id.map(pair)
    }

    /// The newest entry.
    #[getter]
    fn newest(&self) -> Option<Id> {
        self.0.newest_id.map(pair)
    }

    /// The highest ID that any of its entries had.
    #[getter]
    fn last(&self) -> Id {
        pair(self.0.last_id)
    }

    /// How many entries were ever added; None before Redis 7.0.
    #[getter]
    fn added(&self) -> Option<u64> {
        self.0.added
    }

    /// How many entries were removed, by trimming or XDEL; None before Redis 7.0.
    #[getter]
    fn removed(&self) -> Option<u64> {
        self.0.removed()
    }

    /// The highest ID that XDEL removed, if any; None before Redis 7.0.
    #[getter]
    fn max_deleted(&self) -> Option<Id> {
        Some(self.0.max_deleted_id).filter(|id| *id > EntryId::default()).map(pair)
    }

    /// Whether it does not exist.
    #[getter]
    fn is_missing(&self) -> bool {
        self.0.is_missing
    }

    /// Return how many entries there are after an ID, at most; `added` were ever added up to it, None if unknown.
    fn entries_after(&self, after: Id, added: Option<u64>) -> u64 {
        let counted = self.0.added.zip(added).map(|(all, added)| all.saturating_sub(added));
        self.0.entries_after(id(after), counted).unwrap_or(self.0.length)
    }

    /// Return how many entries after a position were removed, and whether that is exact or an upper bound.
    ///
    /// `added` were ever added up to its ID, and `removed` had been removed when it was taken; None if unknown. The
    /// result is None if the server cannot tell.
    fn loss_after(&self, after: Id, added: Option<u64>, removed: Option<u64>) -> Option<(u64, bool)> {
        self.0.loss_after(id(after), added, removed).map(|loss| (loss.entries, loss.exact))
    }
}

/// What a server says about a group: XINFO GROUPS, and what follows from it and the stream.
#[pyclass(frozen, name = "GroupInfo", module = "headrace._headrace")]
pub(crate) struct PyGroupInfo {
    pub(crate) name: Vec<u8>,
    pub(crate) position: GroupPosition,
    /// How many consumers it has.
    #[pyo3(get)]
    consumers: i64,
    /// Entries that were delivered to them and not acknowledged.
    #[pyo3(get)]
    pending: i64,
    /// The last entry that was delivered to it or that it skipped.
    #[pyo3(get)]
    last_delivered: Id,
    /// How many entries were ever added up to `last_delivered`; None if the server does not know it.
    #[pyo3(get)]
    entries_read: Option<u64>,
    /// Entries not yet delivered to it; None if that is not known.
    #[pyo3(get)]
    lag: Option<u64>,
    /// Why the lag is not known.
    #[pyo3(get)]
    lag_unknown_reason: Option<&'static str>,
    /// Entries that were removed before it read them; None if that is not known.
    #[pyo3(get)]
    trimmed_unread: Option<u64>,
}

impl PyGroupInfo {
    pub(crate) fn new(group: &GroupInfo, stream: &StreamInfo) -> Self {
        let lag = group.position.lag(stream);
        Self {
            name: group.name.clone(),
            position: group.position,
            consumers: group.consumers,
            pending: group.pending,
            last_delivered: pair(group.position.last_delivered),
            entries_read: group.position.entries_read,
            lag: lag.ok(),
            lag_unknown_reason: lag.err(),
            trimmed_unread: group.position.trimmed_unread(stream),
        }
    }
}

#[pymethods]
impl PyGroupInfo {
    /// Its name.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.name)
    }
}

/// The lease that a group of shard consumers has of a stream, and what follows from it and the stream.
///
/// Times are in milliseconds of the server's clock.
#[pyclass(frozen, name = "LeaseInfo", module = "headrace._headrace")]
pub(crate) struct PyLeaseInfo {
    lease: LeaseInfo,
    /// Entries that were not committed; None if that is not known.
    #[pyo3(get)]
    lag: Option<u64>,
    /// Why the lag is not known.
    #[pyo3(get)]
    lag_unknown_reason: Option<&'static str>,
}

impl PyLeaseInfo {
    pub(crate) fn new(lease: LeaseInfo, group: &PyGroupInfo, stream: &StreamInfo) -> Self {
        let lag = lease.lag(&group.position, stream);
        Self { lease, lag: lag.ok(), lag_unknown_reason: lag.err() }
    }
}

#[pymethods]
impl PyLeaseInfo {
    /// The member that owns the stream, also if the lease has ended; None if it was given up, or never taken.
    #[getter]
    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.lease.owner.as_ref().map(|name| PyBytes::new(py, name))
    }

    /// The number of the lease, which is at least the time when it was taken; 0 if it never was.
    #[getter]
    fn epoch(&self) -> u64 {
        self.lease.epoch
    }

    /// When it ends unless it is renewed; None if it was given up, or never taken.
    #[getter]
    fn until(&self) -> Option<u64> {
        self.lease.until
    }

    /// The last entry that was committed, or where the group began; None if nothing was committed.
    #[getter]
    fn position(&self) -> Option<Id> {
        self.lease.position().map(pair)
    }

    /// When that was committed.
    #[getter]
    fn committed_at(&self) -> Option<u64> {
        self.lease.committed_at
    }

    /// The member that alone may take it.
    #[getter]
    fn pinned<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.lease.pinned.as_ref().map(|name| PyBytes::new(py, name))
    }

    /// How often the first entry after the position has failed; None if it has not.
    #[getter]
    fn failures(&self) -> Option<u64> {
        self.lease.failures
    }

    /// Why it, or one of those that follow, failed the last time.
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.lease.reason.as_ref().map(|reason| PyBytes::new(py, reason))
    }
}
