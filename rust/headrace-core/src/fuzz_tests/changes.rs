//! What happens to the streams of an execution, drawn by chance.

use super::chance::Chance;
use super::history::{Entry, History, Life, Time};
use crate::resp::EntryId;

/// How often each kind of change happens. After some of them little is promised, so few kinds happen in one execution.
#[derive(Debug, Clone)]
pub struct Changes {
    weights: Vec<(Change, usize)>,
    has_rows: bool,
    has_bad: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Add,
    Trim,
    Delete,
    SetId,
    Replace,
    RollBack,
    Spoil,
    Forbid,
    Heal,
    Last,
}

impl Changes {
    /// `has_rows`: entries have several rows. `has_bad`: some do not fit their columns. `may`: what may happen besides adding and
    /// trimming.
    pub fn new(has_rows: bool, has_bad: bool, may: impl Fn(Change) -> bool, chance: &mut Chance) -> Self {
        let mut weights = vec![(Change::Add, 26), (Change::Trim, 13)];
        for (change, weight) in [
            (Change::Delete, 5),
            (Change::SetId, 3),
            (Change::Replace, 3),
            (Change::RollBack, 2),
            (Change::Spoil, 2),
            (Change::Forbid, 2),
            (Change::Last, 1),
        ] {
            if chance.below(10) < 3 && may(change) {
                weights.push((change, weight));
            }
        }
        if weights.iter().any(|(change, _)| matches!(change, Change::Spoil | Change::Forbid)) {
            weights.push((Change::Heal, 5));
        }
        Self { weights, has_rows, has_bad }
    }

    /// Changes something. Returns what, and the number of its key.
    pub fn change(&self, history: &mut History, chance: &mut Chance) -> (Change, usize) {
        let mut at = chance.below(self.weights.iter().map(|(_, weight)| weight).sum());
        let drawn = self.weights.iter().find(|(_, weight)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        let key = chance.below(history.keys.len());
        let what = drawn.map_or(Change::Add, |(drawn, _)| *drawn);
        match what {
            Change::Add => {
                let count = *chance.pick(&[1, 1, 2, 3, 5, 8, 13]);
                self.add(history, key, count, None, chance);
            }
            Change::Trim => trim(history, key, chance),
            Change::Delete => delete(history, key, chance),
            Change::SetId => set_id(history, key, chance),
            Change::Replace => self.replace(history, key, chance),
            Change::RollBack => roll_back(history, key, chance),
            Change::Spoil => {
                drop_key(history, key);
                let now = history.clock;
                if !history.keys[key].is_string(now) {
                    history.keys[key].strings.push((now, None));
                }
            }
            Change::Forbid => {
                let now = history.tick();
                if !history.keys[key].is_forbidden(now) {
                    history.keys[key].forbidden.push((now, None));
                }
            }
            Change::Heal => heal(history, key),
            Change::Last => self.add(history, key, 1, Some(EntryId::MAX), chance),
        }
        (what, key)
    }

    /// Adds entries, the first one with this ID.
    pub fn add(&self, history: &mut History, key: usize, count: usize, first: Option<EntryId>, chance: &mut Chance) {
        if history.keys[key].is_string(history.clock) {
            drop_string(history, key);
        }
        for at in 0..count {
            let last = history.now(key).map(|life| life.last(history.clock));
            let id = first.filter(|_| at == 0).or_else(|| next_id(last, chance));
            let Some(id) = id.filter(|id| *id > last.unwrap_or_default()) else { return };
            let now = history.tick();
            history.added += 1;
            let rows = if self.has_rows { *chance.pick(&[1, 1, 2, 3]) } else { 1 };
            let is_bad = self.has_bad && chance.one_in(12);
            let entry = Entry { id, number: history.added, rows, is_bad, added: now, trimmed: None, deleted: None };
            create(history, key).entries.push(entry);
        }
    }

    fn replace(&self, history: &mut History, key: usize, chance: &mut Chance) {
        let before = history.now(key).map(|life| (life.entries.clone(), life.last(history.clock)));
        drop_key(history, key);
        let Some((entries, last)) = before else { return };
        if chance.one_in(5) {
            return;
        }
        let first = entries.first().map_or(last, |entry| entry.id);
        let first = *chance.pick(&[first, last, last.next().unwrap_or(last), EntryId { ms: 1, seq: 0 }]);
        if first > EntryId::default() && first.ms < u64::MAX - 100 {
            let more = *chance.pick(&[0, 1, 3, entries.len(), entries.len() + 5]);
            self.add(history, key, 1 + more, Some(first), chance);
        }
    }
}

/// What a change has made of a stream.
pub fn shown(history: &History, (change, key): (Change, usize)) -> String {
    let present = history.now(key).map(|life| (life.present(history.clock).count(), life.last(history.clock)));
    format!("{change:?} s{key}: {present:?}")
}

/// The stream of a key, which is created if there is none.
pub fn create(history: &mut History, key: usize) -> &mut Life {
    let (now, lives) = (history.clock, &mut history.keys[key].lives);
    if lives.last().is_none_or(|life| life.over.is_some()) {
        lives.push(Life { number: lives.len(), began: now, ..Life::default() });
    }
    lives.last_mut().unwrap()
}

fn next_id(last: Option<EntryId>, chance: &mut Chance) -> Option<EntryId> {
    let last = last.unwrap_or_else(|| EntryId { ms: chance.below(31) as u64, seq: 0 });
    if last.ms > u64::MAX - 100 {
        return None;
    }
    if chance.below(10) < 3 {
        return last.next();
    }
    Some(EntryId { ms: last.ms + 1 + chance.below(9) as u64, seq: *chance.pick(&[0, 0, 1, 5]) })
}

fn trim(history: &mut History, key: usize, chance: &mut Chance) {
    let now = history.tick();
    let Some(life) = history.now_mut(key) else { return };
    let length = life.present(now).count();
    let keep = *chance.pick(&[0, 1, 1, 2, length / 2, length.saturating_sub(1), length.saturating_sub(1)]);
    let most = length.saturating_sub(keep);
    for entry in life.entries.iter_mut().filter(|entry| entry.is_present(now)).take(most) {
        entry.trimmed = Some(now);
    }
}

fn delete(history: &mut History, key: usize, chance: &mut Chance) {
    let now = history.tick();
    let Some(life) = history.now_mut(key) else { return };
    let length = life.present(now).count();
    let any = chance.below(length);
    let at = *chance.pick(&[0, length.saturating_sub(1), any]);
    let count = *chance.pick(&[1, 1, 2, 4]);
    for entry in life.entries.iter_mut().filter(|entry| entry.is_present(now)).skip(at).take(count) {
        entry.deleted = Some(now);
    }
}

fn set_id(history: &mut History, key: usize, chance: &mut Chance) {
    let now = history.tick();
    let Some(life) = history.now_mut(key) else { return };
    let last = life.last(now);
    if last.ms > u64::MAX - 100 {
        return;
    }
    let later = EntryId { ms: last.ms + 1 + chance.below(20) as u64, seq: 0 };
    life.last_ids.push((now, *chance.pick(&[last, last.after(3), later])));
    if chance.one_in(4) {
        life.ghosts.push((now, *chance.pick(&[1, 5])));
    }
}

/// The server lost the latest changes of a stream in a failover.
fn roll_back(history: &mut History, key: usize, chance: &mut Chance) {
    let Some(life) = history.now(key) else { return };
    let to: Time = life.began + chance.below((history.clock - life.began) as usize + 1) as Time;
    roll_back_to(history, key, to);
}

/// The stream is as it was at this time, after it began.
pub fn roll_back_to(history: &mut History, key: usize, to: Time) {
    let Some(mut lost) = history.now(key).cloned() else { return };
    let now = history.tick();
    lost.entries.retain(|entry| entry.added <= to);
    for entry in &mut lost.entries {
        entry.trimmed = entry.trimmed.filter(|when| *when <= to);
        entry.deleted = entry.deleted.filter(|when| *when <= to);
    }
    lost.last_ids.retain(|(when, _)| *when <= to);
    lost.ghosts.retain(|(when, _)| *when <= to);
    let lives = &mut history.keys[key].lives;
    (lost.number, lost.began) = (lives.len(), now);
    let before = lives.last_mut().unwrap();
    (before.over, before.is_rolled_back) = (Some(now), true);
    lives.push(lost);
}

fn drop_string(history: &mut History, key: usize) {
    let now = history.tick();
    for (_, to) in history.keys[key].strings.iter_mut().filter(|(_, to)| to.is_none()) {
        *to = Some(now);
    }
}

/// The key was deleted, or overwritten.
fn drop_key(history: &mut History, key: usize) {
    let now = history.tick();
    if let Some(life) = history.now_mut(key) {
        life.over = Some(now);
    }
}

/// The key can be read.
pub fn heal(history: &mut History, key: usize) {
    drop_string(history, key);
    let now = history.clock;
    for (_, to) in history.keys[key].forbidden.iter_mut().filter(|(_, to)| to.is_none()) {
        *to = Some(now);
    }
}
