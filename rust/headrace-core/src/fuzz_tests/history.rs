//! The streams of an execution as they are and were: every entry ever added, and what became of it and when. What a server shows
//! follows from it, also a replica that is late, which shows an earlier time.

use crate::resp::EntryId;

/// On the clock of a [`History`], which counts what happens.
pub type Time = u64;

/// An entry that was added. Its `number` is in each of its rows, and no other entry has it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: EntryId,
    pub number: u64,
    pub rows: usize,
    /// Whether its value does not fit its column.
    pub is_bad: bool,
    pub added: Time,
    pub trimmed: Option<Time>,
    /// When XDEL deleted it.
    pub deleted: Option<Time>,
}

impl Entry {
    pub fn is_present(&self, at: Time) -> bool {
        self.added <= at && self.trimmed.is_none_or(|when| when > at) && self.deleted.is_none_or(|when| when > at)
    }
}

/// A stream from its creation until its key is deleted.
#[derive(Debug, Clone, Default)]
pub struct Life {
    pub number: usize,
    pub entries: Vec<Entry>,
    /// The last IDs that XSETID set.
    pub last_ids: Vec<(Time, EntryId)>,
    /// What XSETID added to the count of entries, that never were.
    pub ghosts: Vec<(Time, u64)>,
    pub began: Time,
    /// When the key was deleted.
    pub over: Option<Time>,
    /// Whether the next life begins with entries of this one: the server lost its latest changes in a failover.
    pub is_rolled_back: bool,
}

impl Life {
    pub fn present(&self, at: Time) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.is_present(at))
    }

    /// The last ID that was given, or set by XSETID.
    pub fn last(&self, at: Time) -> EntryId {
        let given = self.entries.iter().filter(|entry| entry.added <= at).map(|entry| entry.id);
        let set = self.last_ids.iter().filter(|(when, _)| *when <= at).map(|(_, id)| *id);
        given.chain(set).max().unwrap_or_default()
    }

    /// The number of entries ever added, as the server counts them.
    pub fn added(&self, at: Time) -> u64 {
        self.entries.iter().filter(|entry| entry.added <= at).count() as u64 + self.ghosts_since(0, at)
    }

    pub fn ghosts_since(&self, after: Time, at: Time) -> u64 {
        self.ghosts.iter().filter(|(when, _)| *when > after && *when <= at).map(|(_, count)| count).sum()
    }

    /// The highest ID that XDEL deleted.
    pub fn max_deleted(&self, at: Time) -> EntryId {
        let deleted = self.entries.iter().filter(|entry| entry.deleted.is_some_and(|when| when <= at));
        deleted.map(|entry| entry.id).max().unwrap_or_default()
    }

    /// Whether all that the server counts was an entry, and was removed by trimming only.
    pub fn is_counted(&self) -> bool {
        self.ghosts.is_empty() && self.entries.iter().all(|entry| entry.deleted.is_none())
    }

    pub fn find(&self, id: EntryId) -> Option<&Entry> {
        self.entries.binary_search_by_key(&id, |entry| entry.id).ok().map(|at| &self.entries[at])
    }

    /// The entries after `low`, up to `high`.
    pub fn between(&self, low: Option<EntryId>, high: EntryId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| low.is_none_or(|low| entry.id > low) && entry.id <= high)
    }
}

/// A key, and what it held.
#[derive(Debug, Clone, Default)]
pub struct Key {
    pub name: Vec<u8>,
    pub lives: Vec<Life>,
    /// From when to when it held a string.
    pub strings: Vec<(Time, Option<Time>)>,
    /// From when to when the reader's user could not read it.
    pub forbidden: Vec<(Time, Option<Time>)>,
}

fn holds(periods: &[(Time, Option<Time>)], at: Time) -> bool {
    periods.iter().any(|(from, to)| *from <= at && to.is_none_or(|to| to > at))
}

impl Key {
    /// The stream; `None`: there is none.
    pub fn life(&self, at: Time) -> Option<&Life> {
        self.lives.iter().rev().find(|life| life.began <= at && life.over.is_none_or(|over| over > at))
    }

    pub fn is_string(&self, at: Time) -> bool {
        holds(&self.strings, at)
    }

    pub fn is_forbidden(&self, at: Time) -> bool {
        holds(&self.forbidden, at)
    }

    /// When it last began or ceased to be a stream that can be read.
    pub fn changed(&self) -> Time {
        let periods = self.strings.iter().chain(&self.forbidden).flat_map(|(from, to)| [Some(*from), *to]);
        periods.chain(self.lives.iter().map(|life| life.over)).flatten().max().unwrap_or(0)
    }

    /// Whether a stream was deleted after this time.
    pub fn was_deleted_after(&self, when: Time) -> bool {
        self.lives.iter().any(|life| life.over.is_some_and(|over| over > when))
    }
}

/// All keys, and a clock that counts what happens to them.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub clock: Time,
    pub keys: Vec<Key>,
    /// The number of entries of all streams.
    pub added: u64,
}

impl History {
    pub fn new(keys: usize) -> Self {
        let key = |number| Key { name: format!("s{number}").into_bytes(), ..Key::default() };
        Self { keys: (0..keys).map(key).collect(), ..Self::default() }
    }

    pub fn key(&self, name: &[u8]) -> usize {
        self.keys.iter().position(|key| key.name == name).expect("an unknown key")
    }

    /// The stream of a key now.
    pub fn now(&self, key: usize) -> Option<&Life> {
        self.keys[key].life(self.clock)
    }

    pub fn now_mut(&mut self, key: usize) -> Option<&mut Life> {
        self.keys[key].lives.last_mut().filter(|life| life.over.is_none())
    }

    pub fn tick(&mut self) -> Time {
        self.clock += 1;
        self.clock
    }
}
