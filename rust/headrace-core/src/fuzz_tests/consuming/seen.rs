//! What the executions covered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::consumer::ReadReport;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub executions: u64,
    pub changes: u64,
    pub passes: u64,
    pub processes: u64,
    pub crashes: u64,
    pub closed: u64,
    pub restarts: u64,
    pub batches: u64,
    pub entries: u64,
    pub checks: u64,
    pub lost_leases: u64,
    pub errors: u64,
    pub acked: u64,
    pub stale: u64,
    pub unknown: u64,
    pub released: u64,
    pub dead: u64,
    pub reclaimed: u64,
    pub lost: u64,
    /// Whether each step is printed.
    pub traces: bool,
    /// Of all reports, in their order: it is the same in each run of a seed.
    digest: u64,
}

impl Seen {
    #[cfg(test)]
    pub fn new(traces: bool) -> Self {
        Self { traces, ..Self::default() }
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.traces {
            eprintln!("{}", text());
        }
    }

    /// The last report of a process.
    pub fn note(&mut self, report: &ReadReport) {
        self.acked += report.acked;
        self.stale += report.stale;
        self.unknown += report.unknown;
        self.released += report.released;
        self.dead += report.dead;
        self.reclaimed += report.reclaimed;
        self.lost += report.lost;
        let mut hasher = DefaultHasher::new();
        (self.digest, format!("{report:?}")).hash(&mut hasher);
        self.digest = hasher.finish();
    }

    #[cfg(test)]
    pub fn summary(&self) -> String {
        let Self {
            changes, passes, processes, crashes, closed, restarts, batches, entries, checks, lost_leases, ..
        } = self;
        let Self { errors, acked, stale, unknown, released, dead, reclaimed, lost, digest, .. } = self;
        format!(
            "{changes} changes, {passes} passes, {processes} processes, {crashes} crashes, {closed} closed, {restarts} restarts \
             that forget, {batches} batches, {entries} entries, {checks} checks, {lost_leases} lost leases, {errors} errors, \
             {acked} acked, {stale} stale, {unknown} unknown, {released} released, {dead} dead, {reclaimed} reclaimed, {lost} \
             lost, digest {digest:x}"
        )
    }
}
