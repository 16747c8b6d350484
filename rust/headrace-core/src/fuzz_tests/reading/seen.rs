//! What the executions covered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub executions: u64,
    pub changes: u64,
    pub passes: u64,
    pub readers: u64,
    pub batches: u64,
    pub entries: u64,
    pub losses: u64,
    pub replaced: u64,
    pub refused: u64,
    pub bad: u64,
    pub dropped: u64,
    pub finished: u64,
    pub positions: u64,
    /// Whether each step is printed.
    pub traces: bool,
    /// Of all positions, in their order: it is the same in each run of a seed.
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

    pub fn note(&mut self, position: &str) {
        self.positions += 1;
        let mut hasher = DefaultHasher::new();
        (self.digest, position).hash(&mut hasher);
        self.digest = hasher.finish();
    }

    #[cfg(test)]
    pub fn summary(&self) -> String {
        let Self { changes, passes, readers, batches, entries, losses, replaced, .. } = self;
        let Self { refused, bad, dropped, finished, positions, digest, .. } = self;
        format!(
            "{changes} changes, {passes} passes, {readers} readers, {finished} finished, {batches} batches, {entries} \
             entries, {losses} losses, {replaced} replacements, {refused} refusals, {bad} entries that do not fit, \
             {dropped} streams dropped, {positions} positions, digest {digest:x}"
        )
    }
}
