//! What the servers of an execution hold: the streams, one group of each, and the stream of dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::super::changes::roll_back_to;
use super::super::history::{Entry, History, Time};
use super::facts::Facts;
use crate::resp::EntryId;

/// The states that a server may return to when it starts again.
const MOST_SAVES: usize = 30;

/// An entry that was delivered and is not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub consumer: Vec<u8>,
    /// In milliseconds of the server's clock.
    pub delivered: i64,
    pub deliveries: u64,
}

/// A group of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The number of the stream's life.
    pub life: usize,
    pub last: EntryId,
    pub pending: BTreeMap<EntryId, Pending>,
}

/// What servers of different versions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// XCLAIM and XAUTOCLAIM take entries that were deleted.
    Redis62,
    /// They remove them from the group.
    Redis70,
    /// And XACKDEL acknowledges for the last of several groups.
    Redis82,
}

/// What happens to an XADD to the stream of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Burial {
    Accepted,
    WrongType,
    NoMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Letter {
    pub number: u64,
    pub failures: u64,
}

#[derive(Debug)]
pub struct World {
    pub history: History,
    /// The moment at which `now` is zero.
    pub epoch: Instant,
    pub now: Duration,
    groups: Vec<Option<Group>>,
    pub letters: Vec<Letter>,
    saves: Vec<(Time, Vec<Option<Group>>, Vec<Letter>)>,
    pub version: Version,
    /// Whether each stream has another group.
    pub has_others: bool,
    pub burial: Burial,
    /// The hashes of the scripts that the server knows, and whether each is `dead.lua`.
    pub scripts: BTreeMap<Vec<u8>, bool>,
    pub loads: bool,
    /// Whether each command is printed.
    pub traces: bool,
    pub facts: Facts,
}

impl World {
    pub fn new(history: History, version: Version, has_others: bool) -> Self {
        Self {
            groups: vec![None; history.keys.len()],
            history,
            epoch: Instant::now(),
            now: Duration::from_secs(1_000),
            letters: Vec::new(),
            saves: Vec::new(),
            version,
            has_others,
            burial: Burial::Accepted,
            scripts: BTreeMap::new(),
            loads: false,
            traces: false,
            facts: Facts::default(),
        }
    }

    pub fn millis(&self) -> i64 {
        self.now.as_millis() as i64
    }

    /// The group of the stream that a key holds now.
    pub fn group(&self, key: usize) -> Option<&Group> {
        let life = self.history.now(key)?.number;
        self.groups[key].as_ref().filter(|group| group.life == life)
    }

    pub fn group_mut(&mut self, key: usize) -> Option<&mut Group> {
        let life = self.history.now(key)?.number;
        self.groups[key].as_mut().filter(|group| group.life == life)
    }

    /// An entry of the stream that a key holds now, also one that was removed.
    pub fn entry(&self, key: usize, id: EntryId) -> Option<&Entry> {
        self.history.now(key)?.find(id)
    }

    pub fn number(&self, key: usize, id: EntryId) -> u64 {
        self.entry(key, id).map_or(0, |entry| entry.number)
    }

    pub fn is_present(&self, key: usize, id: EntryId) -> bool {
        self.entry(key, id).is_some_and(|entry| entry.is_present(self.history.clock))
    }

    /// XGROUP CREATE … MKSTREAM. Returns whether the group exists now.
    pub fn create(&mut self, key: usize, is_latest: bool) -> bool {
        if self.history.keys[key].is_string(self.history.clock)
            || self.history.keys[key].is_forbidden(self.history.clock)
        {
            return false;
        }
        if self.group(key).is_none() {
            super::super::changes::create(&mut self.history, key);
            let (clock, Some(life)) = (self.history.clock, self.history.now(key)) else { return false };
            let last = if is_latest { life.last(clock) } else { EntryId::default() };
            let skipped: Vec<u64> =
                life.entries.iter().filter(|entry| entry.id <= last).map(|entry| entry.number).collect();
            let group = Group { life: life.number, last, pending: BTreeMap::new() };
            self.facts.excused.extend(skipped);
            self.groups[key] = Some(group);
            self.save();
        }
        true
    }

    /// XGROUP DESTROY.
    pub fn destroy(&mut self, key: usize) {
        let numbers = self.numbers(key);
        self.facts.disturbed.extend(numbers.iter().copied());
        self.groups[key] = None;
        self.save();
    }

    /// The numbers of all entries of a stream.
    pub fn numbers(&self, key: usize) -> Vec<u64> {
        self.history.now(key).into_iter().flat_map(|life| &life.entries).map(|entry| entry.number).collect()
    }

    /// Keeps the state of the groups, which may be returned to.
    pub fn save(&mut self) {
        let at = self.history.tick();
        self.saves.push((at, self.groups.clone(), self.letters.clone()));
        if self.saves.len() > MOST_SAVES {
            self.saves.remove(0);
        }
    }

    /// The server starts again, perhaps without its latest changes: `back` is how many states it forgets.
    pub fn restart(&mut self, back: usize) {
        self.scripts.clear();
        let (clock, history) = (self.history.clock, &self.history);
        let changed =
            |key: usize| history.keys[key].lives.iter().flat_map(|life| [Some(life.began), life.over]).flatten().max();
        let earliest = (0..history.keys.len()).filter_map(changed).max().unwrap_or(0);
        let Some((to, groups, letters)) = self.saves.iter().rev().nth(back).filter(|(to, ..)| *to >= earliest).cloned()
        else {
            return;
        };
        if back == 0 && to == clock {
            return;
        }
        self.facts.forgot = true;
        for (key, after) in groups.into_iter().enumerate() {
            let of_stream = self.history.now(key).map(|life| life.number);
            // A stream that was replaced has left its group here.
            let after = after.filter(|group| Some(group.life) == of_stream);
            let before = self.groups[key].clone();
            self.disturb_changed(key, before.as_ref(), after.as_ref(), to);
            roll_back_to(&mut self.history, key, to);
            let life = self.history.now(key).map(|life| life.number);
            self.groups[key] = after.and_then(|group| life.map(|life| Group { life, ..group }));
        }
        self.letters = letters;
        self.saves.clear();
        self.save();
    }

    /// Of these entries the server has forgotten something.
    fn disturb_changed(&mut self, key: usize, before: Option<&Group>, after: Option<&Group>, to: Time) {
        let Some(life) = self.history.now(key) else { return };
        let state = |group: Option<&Group>, entry: &Entry| {
            group.map(|group| (entry.id <= group.last, group.pending.get(&entry.id).cloned()))
        };
        let is_changed = |entry: &&Entry| {
            let removed = [entry.trimmed, entry.deleted].into_iter().flatten().min();
            entry.added > to || removed.is_some_and(|when| when > to) || state(before, entry) != state(after, entry)
        };
        let changed: BTreeSet<u64> = life.entries.iter().filter(is_changed).map(|entry| entry.number).collect();
        self.facts.disturbed.extend(changed);
    }

    /// What is said of an entry by its ID may be meant for one of a stream that was replaced.
    pub fn disturb_namesakes(&mut self) {
        for key in self.history.keys.iter().filter(|key| key.lives.len() > 1) {
            let mut numbers: BTreeMap<EntryId, u64> = BTreeMap::new();
            for entry in key.lives.iter().flat_map(|life| &life.entries) {
                let other = *numbers.entry(entry.id).or_insert(entry.number);
                if other != entry.number {
                    self.facts.disturbed.extend([other, entry.number]);
                }
            }
        }
    }

    /// A command of an administrator: the entry belongs to another consumer.
    pub fn rob(&mut self, key: usize, consumer: &[u8], nth: usize) {
        let now = self.millis();
        let Some(group) = self.group_mut(key) else { return };
        let Some((id, pending)) = group.pending.iter_mut().nth(nth) else { return };
        let id = *id;
        *pending = Pending { consumer: consumer.to_vec(), delivered: now, deliveries: pending.deliveries };
        let number = self.number(key, id);
        self.facts.disturbed.insert(number);
        self.save();
    }

    /// XGROUP DELCONSUMER: what is pending for it is never delivered again.
    pub fn delete_consumer(&mut self, consumer: &[u8]) {
        for key in 0..self.groups.len() {
            let Some(group) = self.group_mut(key) else { continue };
            let dropped: Vec<EntryId> =
                group.pending.iter().filter(|(_, pending)| pending.consumer == consumer).map(|(id, _)| *id).collect();
            for id in &dropped {
                group.pending.remove(id);
            }
            let numbers: Vec<u64> = dropped.iter().map(|id| self.number(key, *id)).collect();
            self.facts.disturbed.extend(numbers.iter().copied());
            self.facts.excused.extend(numbers);
        }
        self.save();
    }

    /// XGROUP SETID, to an entry that is there.
    pub fn set_position(&mut self, key: usize, nth: usize) {
        let Some(life) = self.history.now(key) else { return };
        let Some(id) = life.entries.get(nth).map(|entry| entry.id) else { return };
        let (numbers, Some(group)) = (self.numbers(key), self.group_mut(key)) else { return };
        let last = std::mem::replace(&mut group.last, id);
        let skipped: Vec<u64> = if last < id {
            let life = self.history.now(key);
            let between = life.into_iter().flat_map(|life| life.between(Some(last), id));
            between.map(|entry| entry.number).collect()
        } else {
            Vec::new()
        };
        self.facts.excused.extend(skipped);
        self.facts.disturbed.extend(numbers);
        self.save();
    }

    /// Removes an entry from the group that its stream no longer has.
    pub fn forget_absent(&mut self, key: usize, id: EntryId) {
        let number = self.number(key, id);
        self.facts.absent.insert(number);
        if let Some(group) = self.group_mut(key) {
            group.pending.remove(&id);
        }
    }

    /// XDEL.
    pub fn delete(&mut self, key: usize, id: EntryId) {
        let now = self.history.tick();
        let Some(life) = self.history.now_mut(key) else { return };
        if let Ok(at) = life.entries.binary_search_by_key(&id, |entry| entry.id)
            && life.entries[at].is_present(now)
        {
            life.entries[at].deleted = Some(now);
        }
    }
}
