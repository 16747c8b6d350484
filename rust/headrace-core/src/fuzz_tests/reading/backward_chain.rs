//! What a reader from new entries to old ones must return and say. What was trimmed between two readers is not detected, so each
//! reader is judged by what was there when it began with a stream.

use super::super::history::{History, Time};
use super::chain::{Row, Wrong, entries_of};
use crate::resp::EntryId;

#[derive(Debug, Clone)]
pub struct BackwardPlace {
    pub key: usize,
    /// The highest ID that was asked for; `None`: nothing is left.
    top: Option<EntryId>,
    /// The last entry that was returned, by any reader.
    pub reached: Option<EntryId>,
    /// What this reader has to return: the time of the server's description, and the number of the life.
    begun: Option<(Time, Option<usize>)>,
    /// The numbers of the entries that this reader has returned, also those that do not fit.
    returned: Vec<u64>,
    told: u64,
    is_exact: bool,
    is_over: bool,
}

impl BackwardPlace {
    /// The next reader begins with the stream that is there then.
    pub fn begin_again(&mut self, top: EntryId) {
        (self.top, self.reached) = (Some(top), None);
    }

    fn high(&self) -> Option<EntryId> {
        self.reached.map_or(self.top, EntryId::previous)
    }
}

#[derive(Debug, Clone)]
pub struct BackwardChain {
    pub places: Vec<BackwardPlace>,
    /// The lowest ID.
    pub end: EntryId,
    pub top: EntryId,
}

impl BackwardChain {
    pub fn new(history: &History, top: EntryId, end: EntryId) -> Self {
        let place = |key| BackwardPlace {
            key,
            top: Some(top),
            reached: None,
            begun: None,
            returned: Vec::new(),
            told: 0,
            is_exact: true,
            is_over: false,
        };
        Self { places: (0..history.keys.len()).map(place).collect(), end, top }
    }

    /// A reader continues.
    pub fn resume(&mut self) {
        for place in &mut self.places {
            place.top = place.high();
            (place.begun, place.told, place.is_exact, place.is_over) = (None, 0, true, false);
            place.returned.clear();
        }
    }

    pub fn place(&mut self, key: usize) -> Result<&mut BackwardPlace, Wrong> {
        let place = self.places.iter_mut().find(|place| place.key == key);
        place.ok_or_else(|| format!("s{key}: a stream was read that was dropped"))
    }

    pub fn described(&mut self, history: &History, key: usize, at: Time) {
        if let Ok(place) = self.place(key)
            && place.begun.is_none()
        {
            place.begun = Some((at, history.keys[key].life(at).map(|life| life.number)));
        }
    }

    pub fn returned(
        &mut self,
        history: &History,
        key: usize,
        rows: &[Row],
        lost: Option<(u64, bool)>,
    ) -> Result<(), Wrong> {
        for (_, entry) in entries_of(history, key, 0, rows)? {
            if entry.is_bad {
                return Err(format!("s{key} {}: an entry that does not fit was returned", entry.id));
            }
            self.pass(history, key, entry.id, entry.number)?;
        }
        match lost {
            Some((lost, exact)) => self.told(history, key, lost, exact),
            None => Ok(()),
        }
    }

    pub fn bad(&mut self, history: &History, key: usize, id: EntryId) -> Result<(), Wrong> {
        let mut lives = history.keys[key].lives.iter().rev();
        let found = lives.find_map(|life| life.find(id).filter(|entry| entry.is_bad));
        let Some(entry) = found else { return Err(format!("s{key} {id}: an entry was refused that fits")) };
        self.pass(history, key, id, entry.number)
    }

    fn pass(&mut self, history: &History, key: usize, id: EntryId, number: u64) -> Result<(), Wrong> {
        let end = self.end;
        let place = self.place(key)?;
        let Some((began, life)) = place.begun else { return Err(format!("s{key} {id}: before it was begun")) };
        if place.is_over {
            return Err(format!("s{key} {id}: after its end"));
        }
        if place.high().is_none_or(|high| id > high) || id < end {
            return Err(format!("s{key} {id}: after {:?}, the end is {end}", place.high()));
        }
        let high = place.high();
        // Of a stream that was replaced since, nothing is known.
        let life = life.and_then(|life| history.keys[key].lives.get(life));
        if let Some(life) = life.filter(|life| life.over.is_none()) {
            let mut asked = life.between(Some(id), high.unwrap_or(id));
            let skipped = asked.find(|entry| entry.is_present(began) && entry.is_present(history.clock));
            if let Some(skipped) = skipped {
                return Err(format!("s{key} {id}: {} was skipped", skipped.id));
            }
            if life.find(id).is_some_and(|entry| entry.added > began) {
                return Err(format!("s{key} {id}: it was added after reading began"));
            }
        }
        place.reached = Some(id);
        place.returned.push(number);
        Ok(())
    }

    /// A loss was reported, at the end of a stream.
    pub fn told(&mut self, history: &History, key: usize, lost: u64, exact: bool) -> Result<(), Wrong> {
        let place = self.place(key)?;
        place.told += lost;
        place.is_exact &= exact;
        place.is_over = true;
        if lost == 0 {
            return Err(format!("s{key}: {lost} lost, {exact}"));
        }
        self.compare(history, key)
    }

    /// How many of the entries that were asked for were trimmed and not returned; `None`: the stream was replaced.
    pub fn lost(&mut self, history: &History, key: usize) -> Option<u64> {
        let end = self.end;
        let place = self.place(key).ok()?;
        let Some((began, life)) = place.begun else { return Some(0) };
        let Some(life) = life else { return Some(0) };
        let life = &history.keys[key].lives[life];
        if life.over.is_some() {
            return None;
        }
        let low = end.previous();
        let asked = life.between(low, place.top.filter(|_| place.top >= Some(end))?);
        let missing = asked.filter(|entry| entry.is_present(began) && !place.returned.contains(&entry.number));
        Some(missing.filter(|entry| entry.trimmed.is_some()).count() as u64)
    }

    fn compare(&mut self, history: &History, key: usize) -> Result<(), Wrong> {
        let lost = self.lost(history, key);
        let has_ghosts = history.now(key).is_some_and(|life| !life.ghosts.is_empty());
        let place = self.place(key)?;
        let (told, exact) = (place.told, place.is_exact);
        if lost.is_some_and(|lost| told < lost || (exact && told > lost && !has_ghosts)) {
            return Err(format!("s{key}: {told} of {lost:?} lost were reported, {exact}"));
        }
        Ok(())
    }

    /// A replacement was reported.
    pub fn replaced(&mut self, history: &History, key: usize) -> Result<(), Wrong> {
        let place = self.place(key)?;
        let is_replaced = place.begun.is_some_and(|(began, _)| history.keys[key].was_deleted_after(began));
        if !is_replaced {
            return Err(format!("s{key}: it was not replaced"));
        }
        place.is_over = true;
        Ok(())
    }

    /// All of a stream was returned. Returns what was lost and not reported with a batch; `None`: nothing is known.
    pub fn finished(&mut self, history: &History, key: usize) -> Result<Option<u64>, Wrong> {
        let end = self.end;
        let lost = self.lost(history, key);
        let place = self.place(key)?;
        let Some(lost) = lost else { return Ok(None) };
        if let Some((began, Some(life))) = place.begun
            && let Some(high) = place.high().filter(|high| *high >= end)
        {
            let mut asked = history.keys[key].lives[life].between(end.previous(), high);
            let skipped = asked.find(|entry| entry.is_present(began) && entry.is_present(history.clock));
            if let Some(skipped) = skipped {
                return Err(format!("s{key}: {} was skipped, the reader is finished", skipped.id));
            }
        }
        Ok(Some(lost.saturating_sub(place.told)))
    }
}
