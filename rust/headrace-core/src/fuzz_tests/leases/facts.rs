//! What the servers have really done, for the judge.

use std::collections::{BTreeMap, BTreeSet};

/// What is wrong.
pub type Wrong = String;

/// Names a process, one of its streams, and an epoch.
pub type Owned = (usize, usize, u64);

#[derive(Debug, Default)]
pub struct Facts {
    /// Where each lease that was taken begins, and the last entry that was committed with it.
    pub executed: BTreeMap<Owned, (u64, u64)>,
    /// The last entry that the program of a process has committed.
    pub said: BTreeMap<Owned, u64>,
    /// The greatest epoch of each stream.
    pub epochs: Vec<u64>,
    pub takes: u64,
    /// How often each entry of a stream was said to have failed.
    pub failed: BTreeMap<(usize, u64), u64>,
    /// How many entries were moved for each process.
    pub dead: BTreeMap<usize, u64>,
    pub commands: u64,
    /// The commands of each process: those that it is there, renewals and commits, and what it tried to take.
    pub counts: BTreeMap<usize, [u64; 3]>,
    /// The processes of which a command has come late: they may have taken a stream unknowingly.
    pub late_takes: BTreeSet<usize>,
    /// The first thing that a server has seen to be wrong.
    pub wrong: Option<Wrong>,
}

impl Facts {
    pub fn new(streams: usize) -> Self {
        Self { epochs: vec![0; streams], ..Self::default() }
    }

    pub fn wrong(&mut self, text: Wrong) {
        self.wrong.get_or_insert(text);
    }
}
