//! What really became of the entries, and what the programs have said and heard of them. Entries are named by their numbers, and
//! processes by theirs.

use std::collections::{BTreeMap, BTreeSet};

/// What is wrong.
pub type Wrong = String;

#[derive(Debug, Default)]
pub struct Facts {
    /// Entries that need not be given out: the group was moved past them, or the server has forgotten them.
    pub excused: BTreeSet<u64>,
    /// Entries of which something was changed that no consumer of the group does: nothing is promised of owners and counters.
    pub disturbed: BTreeSet<u64>,
    /// Whether a server has forgotten anything.
    pub forgot: bool,
    /// The names that two processes had at the same time.
    pub shared_names: BTreeSet<Vec<u8>>,
    /// What the program of a process has acknowledged.
    pub said: BTreeSet<(usize, u64)>,
    /// What a server has acknowledged for a process.
    pub acked: BTreeSet<(usize, u64)>,
    /// What a process knows to be acknowledged.
    pub confirmed: BTreeSet<u64>,
    /// The counter at the last delivery to a process, and whether it was the first one.
    pub delivered: BTreeMap<(usize, u64), (u64, bool)>,
    /// How often an entry was given to a program.
    pub handed: BTreeMap<u64, u64>,
    /// How often an entry may count as failed: a program has said so, or has got it alone.
    pub failures: BTreeMap<u64, u64>,
    /// The entries that were delivered alone to a process whose program has not got them yet.
    pub alone: BTreeSet<(usize, u64)>,
    /// How often an entry went from one consumer to another.
    pub moved: BTreeMap<u64, u64>,
    /// Entries that were given back, and not delivered since.
    pub given_back: BTreeSet<u64>,
    /// Those of them whose lease a request that was under way has renewed: others may claim them only once it is over.
    pub renewed_late: BTreeSet<u64>,
    /// Entries that were delivered alone after the server had forgotten the script that sets their counters.
    pub unset: BTreeSet<u64>,
    /// Entries that were pending when the server found them removed from their stream.
    pub absent: BTreeSet<u64>,
    /// The first thing that a server has seen to be wrong.
    pub wrong: Option<Wrong>,
}

impl Facts {
    pub fn wrong(&mut self, text: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(text);
    }

    pub fn count(of: &mut BTreeMap<u64, u64>, number: u64) {
        *of.entry(number).or_default() += 1;
    }

    /// Whether the owner and the counters of an entry follow from what consumers do.
    pub fn is_certain(&self, number: u64, name: &[u8]) -> bool {
        !self.disturbed.contains(&number) && !self.shared_names.contains(name)
    }

    /// An entry was delivered to a process: its counter, and whether that is its first delivery.
    pub fn deliver(&mut self, process: usize, number: u64, counter: u64, is_first: bool) {
        self.delivered.insert((process, number), (counter, is_first));
        self.given_back.remove(&number);
        self.renewed_late.remove(&number);
    }

    /// A consumer has set the lease of an entry: `gives_back`: it has ended it.
    pub fn leased(&mut self, number: u64, gives_back: bool) {
        if gives_back {
            self.given_back.insert(number);
        } else if self.given_back.contains(&number) {
            self.renewed_late.insert(number);
        }
    }

    pub fn moves(&self, number: u64) -> u64 {
        self.moved.get(&number).copied().unwrap_or(0)
    }

    /// An entry went from one consumer to another. The first one may have ended: what it has got alone counts as failed.
    pub fn left(&mut self, number: u64) {
        Self::count(&mut self.moved, number);
        if self.alone.iter().any(|(_, of)| *of == number) {
            Self::count(&mut self.failures, number);
        }
        self.alone.retain(|(_, of)| *of != number);
    }

    /// What was delivered alone to a process that has ended counts as failed.
    pub fn ended(&mut self, process: usize) {
        let alone: Vec<u64> = self.alone.iter().filter(|(of, _)| *of == process).map(|(_, number)| *number).collect();
        for number in alone {
            Self::count(&mut self.failures, number);
        }
        self.alone.retain(|(of, _)| *of != process);
    }
}
