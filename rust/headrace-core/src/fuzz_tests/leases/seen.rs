//! What the executions covered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::leases::ShardReport;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub executions: u64,
    pub processes: u64,
    pub kills: u64,
    pub stops: u64,
    pub closed: u64,
    pub namesakes: u64,
    pub failovers: u64,
    pub lates: u64,
    pub commands: u64,
    pub takes: u64,
    pub checks: u64,
    pub lapsed: u64,
    pub joins: u64,
    pub moves: u64,
    pub handed_over: u64,
    pub committed: u64,
    pub fenced: u64,
    pub unknown: u64,
    pub failed: u64,
    pub dead: u64,
    pub given_up: u64,
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

    /// The last report of a process.
    pub fn note(&mut self, report: &ShardReport) {
        self.handed_over += report.handed_over;
        self.committed += report.committed;
        self.fenced += report.fenced;
        self.unknown += report.unknown;
        self.failed += report.failed;
        self.dead += report.dead;
        self.given_up += report.streams_given_up;
        self.lost += report.streams_lost;
        let mut hasher = DefaultHasher::new();
        (self.digest, format!("{report:?}")).hash(&mut hasher);
        self.digest = hasher.finish();
    }

    #[cfg(test)]
    pub fn summary(&self) -> String {
        let Self { processes, kills, stops, closed, namesakes, failovers, lates, commands, takes, checks, .. } = self;
        let Self {
            lapsed,
            joins,
            moves,
            handed_over,
            committed,
            fenced,
            unknown,
            failed,
            dead,
            given_up,
            lost,
            digest,
            ..
        } = self;
        format!(
            "{processes} processes, {kills} killed, {stops} stopped, {closed} closed in time, {namesakes} namesakes, {failovers} \
             failovers, {lates} late commands, {commands} commands, {takes} takes, {checks} checks, {lapsed} lapsed, {joins} \
             joins of {moves} moves, {handed_over} handed over, {committed} committed, {fenced} fenced, {unknown} unknown, \
             {failed} failed, {dead} dead, {given_up} given up, {lost} lost, digest {digest:x}"
        )
    }
}
