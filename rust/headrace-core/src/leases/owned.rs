//! A lease that this member has: what it has returned, what the caller has done with it, and what the server knows of that.

use std::collections::VecDeque;
use std::time::Duration;

use super::doubt::{Doubt, pause};
use super::request::{Changed, Commit, Moved};
use crate::reading::{Place, Start};
use crate::resp::EntryId;

/// A lease that this member has.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) epoch: u64,
    /// When it was last renewed, at the latest.
    pub(super) renewed: Duration,
    /// Where to read on: after what the caller has committed.
    done: Start,
    /// When to read on from there. `None`: the stream is being read.
    begins_at: Option<Duration>,
    /// The batches that were returned and not committed, the oldest first.
    batches: VecDeque<Handed>,
    /// The number of the next batch.
    next: u64,
    /// The number of the first batch that is not committed as a whole.
    first: u64,
    /// What the caller has committed and was not sent.
    pub(super) commit: Option<Commit>,
    /// The number of changes that were sent.
    changes: u64,
    /// The number of entries that are to be moved, with those that were.
    moved: u64,
    /// What is known of the entries that are not committed.
    pub(super) doubt: Doubt,
    /// The same as the server has it; `None`: that is not known.
    told: Option<Doubt>,
    /// How many entries have to be committed before batches are as large as usual.
    suspects: u64,
    /// How often entries have failed since one was committed.
    tries: u64,
    /// Set if the lease is given up: when, even if batches are not committed by then.
    pub(super) gives_up_at: Option<Duration>,
    /// Whether the server was asked to end it: another member may have it.
    pub(super) is_released: bool,
    /// Whether the caller knows that another member may have it.
    pub(super) is_lapsed: bool,
}

/// A batch that was returned.
#[derive(Debug)]
struct Handed {
    number: u64,
    place: Place,
    /// The number of entries that are not committed.
    entries: u64,
}

/// What the caller says has failed: a batch, or an entry of one.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    /// If it does not begin the batch: the place before it, and the number of entries of the batch from there on.
    pub(crate) before: Option<(Place, u64)>,
    /// If it is one entry: its ID, the place after it, and the number of entries of the batch that follow.
    pub(crate) entry: Option<(EntryId, Place, u64)>,
    pub(crate) reason: String,
    /// When to return it again. `None`: after a pause that becomes longer with each failure.
    pub(crate) delay: Option<Duration>,
}

/// What followed from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// The stream is returned again, with as many entries that the caller had.
    Again(u64),
    /// It was before: an earlier entry of it has failed.
    Nothing,
    /// The caller has committed it.
    IsCommitted,
}

impl Owned {
    /// `begins`: where to read, from this time on. `doubt`: what the lease holds of the entries there.
    pub(super) fn new(epoch: u64, renewed: Duration, begins: Start, doubt: Doubt, now: Duration) -> Self {
        Self {
            epoch,
            renewed,
            done: begins,
            begins_at: Some(now + pause(doubt.failures)),
            batches: VecDeque::new(),
            next: 0,
            first: 0,
            commit: None,
            changes: 0,
            moved: 0,
            told: Some(doubt.clone()),
            suspects: 2 * doubt.limit + 1,
            tries: doubt.failures,
            doubt,
            gives_up_at: None,
            is_released: false,
            is_lapsed: false,
        }
    }

    /// Where to read on, once it is time. Returned once.
    pub(super) fn begin(&mut self, now: Duration) -> Option<Start> {
        self.begins_at.take_if(|at| *at <= now).map(|_| self.done)
    }

    /// Whether the stream is being read.
    pub(super) fn is_read(&self) -> bool {
        self.begins_at.is_none()
    }

    /// When to read on. `None`: the stream is being read.
    pub(super) fn begins_at(&self) -> Option<Duration> {
        self.begins_at.filter(|_| self.gives_up_at.is_none())
    }

    /// Notes a batch that is returned. Its number.
    pub(super) fn hand_out(&mut self, place: Place, entries: u64) -> u64 {
        debug_assert!(self.batches.back().is_none_or(|last| last.place.id < place.id), "in the order of the stream");
        let number = self.next;
        self.next += 1;
        self.batches.push_back(Handed { number, place, entries });
        number
    }

    /// Whether a batch may be returned, of one entry if the server has to know which one is in hand alone.
    pub(super) fn is_told(&mut self, id: EntryId, is_asked: bool) -> bool {
        if self.doubt.limit != 1 {
            return true;
        }
        let is_alone = self.batches.is_empty();
        // Until the server has the commit, another entry would be blamed.
        if is_alone && (self.commit.is_some() || is_asked) {
            return false;
        }
        if is_alone {
            self.doubt.begins_with(id);
            self.doubt.failed = Some(id);
        }
        self.doubt.is_alone = is_alone;
        self.told.as_ref() == Some(&self.doubt)
    }

    /// Commits the batch with this number and all before it; with `part`, only the first entries of the batch, up to this place.
    pub(super) fn commit(&mut self, number: u64, part: Option<(Place, u64)>) {
        let mut entries = 0;
        let mut place = None;
        while let Some(batch) = self.batches.front_mut().filter(|batch| batch.number <= number) {
            if let Some((to, left)) = part.filter(|_| batch.number == number)
                && left > 0
            {
                if left < batch.entries {
                    entries += batch.entries - left;
                    batch.entries = left;
                    place = Some(to);
                }
                break;
            }
            entries += batch.entries;
            place = Some(batch.place);
            self.first = batch.number + 1;
            self.batches.pop_front();
        }
        let Some(place) = place else { return };
        self.done = Start::After(place);
        self.tries = 0;
        self.doubt.committed();
        self.suspects = self.suspects.saturating_sub(entries);
        if self.suspects == 0 {
            self.doubt.limit = 0;
        }
        let before = self.commit.take();
        let (earlier, repeated, moved) =
            before.map_or_else(Default::default, |commit| (commit.entries, commit.repeated, commit.moved));
        self.commit = Some(Commit { place, entries: earlier + entries, repeated, moved });
    }

    /// Commits what is before a batch or an entry that failed, and returns it again after a pause; or, once it has failed `most`
    /// times, moves it.
    pub(super) fn fail(&mut self, number: u64, failed: Failed, most: Option<u64>, now: Duration) -> AfterFailure {
        if number < self.first {
            return AfterFailure::IsCommitted;
        }
        let Some(batch) = self.batches.iter().find(|batch| batch.number == number) else {
            return AfterFailure::Nothing;
        };
        let entries = batch.entries;
        if failed.entry.is_some_and(|(_, _, left)| left >= entries) {
            return AfterFailure::IsCommitted;
        }
        match (failed.before, number.checked_sub(1)) {
            (Some(_), _) => self.commit(number, failed.before),
            (None, Some(before)) => self.commit(before, None),
            (None, None) => {}
        }
        self.tries += 1;
        if let Some((id, after, left)) = failed.entry {
            self.doubt.failed(id, failed.reason);
            if most.is_some_and(|most| self.doubt.failures >= most) {
                self.bury(number, id, (after, left));
            }
        } else {
            self.suspects = entries;
            self.doubt.failed_together(entries, failed.reason);
        }
        self.begins_at = Some(now + failed.delay.filter(|_| self.tries > 0).unwrap_or_else(|| pause(self.tries)));
        let again = self.uncommitted();
        self.batches.clear();
        AfterFailure::Again(again)
    }

    /// Commits an entry that has failed too often, the first that is not committed, and lets the server move it.
    pub(super) fn bury(&mut self, number: u64, id: EntryId, after: (Place, u64)) {
        let Doubt { failures, reason, .. } = self.doubt.clone();
        self.moved += 1;
        self.commit(number, Some(after));
        if let Some(commit) = &mut self.commit {
            commit.moved.push(Moved { number: self.moved, id, reason, failures });
        }
    }

    /// Whether there is something that the server does not have.
    pub(super) fn has_changed(&self) -> bool {
        self.commit.is_some() || self.told.as_ref() != Some(&self.doubt)
    }

    /// What the server does not have, to be sent now.
    pub(super) fn take_changed(&mut self) -> Option<Changed> {
        let doubt = Some(&self.doubt).filter(|doubt| self.told.as_ref() != Some(doubt)).cloned();
        let commit = self.commit.take();
        if commit.is_none() && doubt.is_none() {
            return None;
        }
        self.changes += 1;
        self.told = Some(self.doubt.clone());
        Some(Changed { number: self.changes, commit, doubt })
    }

    /// Puts back what was not confirmed. What was committed since goes further.
    pub(super) fn put_back(&mut self, changed: Changed) {
        if changed.doubt.is_some() {
            self.told = None;
        }
        let Some(commit) = changed.commit else { return };
        let Some(later) = self.commit.take() else {
            self.commit = Some(commit);
            return;
        };
        let entries = commit.entries + later.entries;
        let moved = [commit.moved, later.moved].concat();
        self.commit = Some(Commit { place: later.place, entries, repeated: commit.repeated, moved });
    }

    /// Whether nobody else can have taken it, also if the clocks of this machine and of the server run apart.
    pub(super) fn is_valid(&self, lease: Duration, now: Duration) -> bool {
        !self.is_released && !self.is_lapsed && now < self.renewed + lease / 10 * 9
    }

    /// The number of entries that were returned and that the caller has not committed.
    pub(super) fn uncommitted(&self) -> u64 {
        self.batches.iter().map(|batch| batch.entries).sum()
    }

    /// Whether a batch is not committed.
    pub(super) fn has(&self, number: u64) -> bool {
        self.batches.iter().any(|batch| batch.number == number)
    }

    /// Whether the caller has committed everything that was returned.
    pub(super) fn is_done(&self) -> bool {
        self.batches.is_empty()
    }
}
