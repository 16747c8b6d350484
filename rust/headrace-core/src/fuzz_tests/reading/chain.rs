//! What a program knows that reads by stored positions, and what it must be told. Each result of a reader is handed to a chain,
//! and each position that is stored comes with a copy: the program that starts from the position continues with it. What is
//! promised is in docs/reading.md; `tests/positions/chain.py` judges readers of real servers by the same rules.

use std::fmt;

use super::super::history::{Entry, History, Life, Time};
use crate::resp::EntryId;

/// What is wrong.
pub type Wrong = String;

/// When a program begins that has only stored its position yet.
const LATER: Time = Time::MAX;

/// Where reading is to begin, until the server has described the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Earliest,
    Latest,
    At(EntryId),
    /// Where an earlier reader stood, or what replaced the stream.
    Again,
}

/// Where a program stands in a stream: all that it was returned and told of it.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is a separate fact
pub struct Place {
    pub key: usize,
    /// Until the first description.
    asked: Option<Asked>,
    /// The number of the life that it reads; `None`: there was no stream yet.
    life: Option<usize>,
    /// The first ID that was asked for; `None`: there is none, the newest entry has the last ID.
    first: Option<EntryId>,
    /// Entries that were trimmed after `began` are lost; those before `perhaps` are not; between the two both is right.
    perhaps: Time,
    began: Time,
    /// Whether the number of what is lost is exact, as long as entries are only trimmed.
    is_counted: bool,
    /// Whether the stream was empty when reading began: on a server that does not count, nothing shows what is lost at first.
    was_empty: bool,
    /// The last entry that was returned: its ID.
    pub reached: Option<EntryId>,
    /// The number of entries that were passed over and are lost; of those where both is right; that was reported.
    lost: u64,
    maybe: u64,
    told: u64,
    is_exact: bool,
    /// The latest time of which the program knows, and whether a server showed an earlier one after it.
    latest: Time,
    went_back: bool,
    /// Whether the stream was replaced, and it was not reported: nothing is known about what was removed.
    pub is_dubious: bool,
}

impl Place {
    /// The last ID that is not asked for any more; `None`: all are.
    fn low(&self) -> Option<EntryId> {
        match (self.reached, self.first) {
            (Some(reached), _) => Some(reached),
            (None, None) => Some(EntryId::MAX),
            (None, Some(first)) => first.previous(),
        }
    }

    /// How many entries that were asked for were trimmed, between the place and this ID: lost, and maybe lost.
    fn missing(&self, life: &Life, end: EntryId) -> (u64, u64) {
        let removed: Vec<_> = life.between(self.low(), end).filter_map(|entry| entry.trimmed).collect();
        let lost = removed.iter().filter(|when| **when > self.began).count() as u64;
        let both = removed.iter().filter(|when| **when > self.perhaps && **when <= self.began).count() as u64;
        (lost, both)
    }

    /// How errors name it, without a text unless there is one.
    fn shown(&self) -> Shown {
        let Self { key, reached, first, .. } = *self;
        Shown { key, reached, first }
    }

    fn ghosts(&self, life: &Life, history: &History) -> u64 {
        life.ghosts_since(self.perhaps, history.clock)
    }

    fn is_replaced(&self, history: &History) -> bool {
        let key = &history.keys[self.key];
        match self.life {
            // The stream may have come and gone since.
            None => key.was_deleted_after(self.perhaps),
            Some(life) => key.lives[life].over.is_some(),
        }
    }

    /// The life that is read. After a replacement that is not reported nothing is known of what was removed.
    fn follow<'a>(&mut self, history: &'a History) -> Option<&'a Life> {
        let now = history.now(self.key);
        if self.is_replaced(history) {
            self.is_dubious = true;
        } else if self.life.is_none() {
            self.life = now.map(|life| life.number);
        }
        now
    }
}

/// Where a program stands in a stream, as errors name it.
#[derive(Debug, Clone, Copy)]
struct Shown {
    key: usize,
    reached: Option<EntryId>,
    first: Option<EntryId>,
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, reached, first } = self;
        match reached {
            Some(reached) => write!(formatter, "s{key} {reached}"),
            None => write!(formatter, "s{key} (start {first:?})"),
        }
    }
}

/// The places of a program in all its streams.
#[derive(Debug, Clone)]
pub struct Chain {
    pub places: Vec<Place>,
    /// Whether the server counts entries.
    counts: bool,
}

impl Chain {
    /// A reader was created that begins here.
    pub fn new(history: &History, asked: Asked, counts: bool) -> Self {
        let now = history.clock;
        let place = |key| Place {
            key,
            asked: Some(asked),
            life: history.now(key).map(|life| life.number),
            first: if let Asked::At(id) = asked { Some(id) } else { None },
            perhaps: now,
            began: LATER,
            is_counted: false,
            was_empty: false,
            reached: None,
            lost: 0,
            maybe: 0,
            told: 0,
            is_exact: true,
            latest: 0,
            went_back: false,
            is_dubious: false,
        };
        Self { places: (0..history.keys.len()).map(place).collect(), counts }
    }

    pub fn place(&mut self, key: usize) -> Result<&mut Place, Wrong> {
        let place = self.places.iter_mut().find(|place| place.key == key);
        place.ok_or_else(|| format!("s{key}: a stream was read that was dropped"))
    }

    /// A copy, which belongs to a position that is stored now. `has_place`: whether the position says where a stream begins.
    pub fn store(&self, has_place: impl Fn(usize) -> bool) -> Self {
        let mut copy = self.clone();
        for place in copy.places.iter_mut().filter(|place| place.asked.is_some()) {
            // A stream that a position does not name is read from its oldest entry.
            place.asked = Some(if has_place(place.key) { Asked::Again } else { Asked::Earliest });
        }
        // A position before all entries does not say whether there were any.
        copy.places.iter_mut().for_each(|place| place.was_empty |= place.reached.is_none());
        copy
    }

    /// A position was shortened as those of earlier versions are: what it counts of a stream is no longer known.
    pub fn forget_counts(&mut self, key: usize) {
        for place in self.places.iter_mut().filter(|place| place.key == key) {
            (place.is_counted, place.lost, place.maybe, place.told) = (false, 0, 0, 0);
        }
    }

    /// The server refused to describe the stream at this time because the key is none: all entries of a stream are new.
    pub fn refused(&mut self, key: usize, at: Time) {
        let Ok(place) = self.place(key) else { return };
        let Some(asked) = place.asked.filter(|asked| *asked != Asked::Again) else { return };
        place.first = match asked {
            Asked::At(id) => Some(id),
            Asked::Earliest | Asked::Latest | Asked::Again => Some(EntryId::default()),
        };
        place.is_counted = !matches!(asked, Asked::At(_));
        (place.perhaps, place.began, place.life) = (at, at, None);
        (place.was_empty, place.asked) = (true, Some(Asked::Again));
    }

    /// Entries arrived from a server that has the stream as it was at this time.
    pub fn page(&mut self, key: usize, at: Time) {
        if let Ok(place) = self.place(key) {
            // A replica may be behind the server before it.
            place.went_back |= at < place.latest;
        }
    }

    /// The server described the stream as it was at this time, with this last ID.
    pub fn described(&mut self, history: &History, key: usize, at: Time, last: Option<EntryId>) {
        let Ok(place) = self.place(key) else { return };
        let life = history.keys[key].life(at);
        if place.began == LATER {
            place.began = at;
        }
        place.went_back |= at < place.latest;
        place.latest = place.latest.max(at);
        let Some(asked) = place.asked.take() else { return };
        place.was_empty = life.is_none_or(|life| life.present(at).next().is_none());
        place.first = match asked {
            Asked::Again => return,
            Asked::Earliest => Some(EntryId::default()),
            Asked::Latest => last.unwrap_or_default().next(),
            Asked::At(id) => Some(id),
        };
        place.is_counted = !matches!(asked, Asked::At(_));
        (place.perhaps, place.life) = (at, life.map(|life| life.number));
    }

    /// A batch was returned, with the loss that it reports. `doubted`: when the reader last said that something may be lost.
    pub fn returned(
        &mut self,
        history: &History,
        key: usize,
        rows: &[Row],
        lost: Option<(u64, bool)>,
        end: EntryId,
        doubted: Option<Time>,
    ) -> Result<(), Wrong> {
        if let Some((lost, exact)) = lost {
            self.told(history, key, lost, exact)?;
        }
        let first = self.place(key)?.life.unwrap_or(0);
        for (life, entry) in entries_of(history, key, first, rows)? {
            if entry.id > end {
                return Err(format!("s{key} {}: an entry beyond the end {end} was returned", entry.id));
            }
            if entry.is_bad {
                return Err(format!("s{key} {}: an entry that does not fit was returned", entry.id));
            }
            self.pass(history, key, life, entry, doubted)?;
        }
        self.compare(history, key)
    }

    /// An entry was reported that does not fit its columns, after the loss that its error reports.
    pub fn bad(&mut self, history: &History, key: usize, id: EntryId, doubted: Option<Time>) -> Result<(), Wrong> {
        let first = self.place(key)?.life.unwrap_or(0);
        // Nothing but its ID says which entry it is: that of any life will do.
        let mut wrong = format!("s{key} {id}: an entry was refused that fits");
        for life in lives_from(history, key, first) {
            let Some(entry) = life.find(id).filter(|entry| entry.is_bad) else { continue };
            let mut chain = self.clone();
            match chain.pass(history, key, life, entry, doubted).and_then(|()| chain.compare(history, key)) {
                Ok(()) => {
                    *self = chain;
                    return Ok(());
                }
                Err(other) => wrong = other,
            }
        }
        Err(wrong)
    }

    /// A loss was reported, before what is returned next.
    pub fn told(&mut self, history: &History, key: usize, lost: u64, exact: bool) -> Result<(), Wrong> {
        let counts = self.counts;
        let place = self.place(key)?;
        let life = place.follow(history);
        place.told += lost;
        place.is_exact &= exact;
        let shown = place.shown();
        let at = || format!("{shown}: {lost} lost{}", if exact { "" } else { " at most" });
        if lost == 0 {
            return Err(format!("{}: a loss of nothing", at()));
        }
        if !counts {
            return Err(format!("{}, from a server that does not count", at()));
        }
        if place.is_dubious {
            return Ok(());
        }
        let Some(life) = life else { return Err(format!("{}, and there was no stream", at())) };
        let head = life.present(history.clock).next().map(|entry| entry.id);
        let next = place.low().map_or(EntryId::default(), |low| low.next().unwrap_or(EntryId::MAX));
        if head.is_some_and(|head| head <= next) {
            return Err(format!("{}: nothing can be missing, the oldest entry is {head:?}", at()));
        }
        let (missing, maybe) = place.missing(life, EntryId::MAX);
        let most = place.lost + place.maybe + missing + maybe + place.ghosts(life, history);
        if place.is_exact && place.told > most {
            return Err(format!("{}: {} in all, and at most {most} are", at(), place.told));
        }
        let now = history.clock;
        let removed = life.entries.iter().filter(|entry| !entry.is_present(now)).count() as u64;
        // What a bound counts once more that was removed since then is not known.
        let is_sure = place.is_exact || !place.went_back;
        if is_sure && place.told > removed + life.ghosts_since(0, now) {
            return Err(format!("{}: {} in all, and {removed} were removed", at(), place.told));
        }
        if !exact && place.is_counted && life.is_counted() {
            return Err(format!("{}: the number is known", at()));
        }
        Ok(())
    }

    /// A replacement was reported: a program that starts at the position of the error continues with the oldest entry of what is
    /// there now.
    pub fn replaced(&mut self, history: &History, key: usize) -> Result<(), Wrong> {
        let place = self.place(key)?;
        if !place.is_replaced(history) && !place.is_dubious {
            return Err(format!("{}: it was not replaced", place.shown()));
        }
        let key_of = &history.keys[key];
        // What of it was trimmed before the program could know of it may count.
        let deleted = key_of.lives.iter().filter_map(|life| life.over).max().unwrap_or(0);
        // A server that lost its latest changes counts what was trimmed before them.
        let deleted = if key_of.lives.iter().any(|life| life.is_rolled_back) { 0 } else { deleted };
        *place = Place {
            asked: Some(Asked::Again),
            life: history.now(key).map(|life| life.number),
            first: Some(EntryId::default()),
            perhaps: deleted,
            began: LATER,
            is_counted: false,
            reached: None,
            lost: 0,
            maybe: 0,
            told: 0,
            is_exact: true,
            latest: 0,
            went_back: false,
            is_dubious: false,
            was_empty: true,
            key,
        };
        Ok(())
    }

    /// Whether the key was deleted since.
    pub fn may_be_replaced(&mut self, history: &History, key: usize) -> bool {
        self.place(key).is_ok_and(|place| place.is_replaced(history) || place.is_dubious)
    }

    /// Whether the stream was replaced, and its last entry is older than the one that was read.
    pub fn must_be_replaced(&mut self, history: &History, key: usize) -> bool {
        let Ok(place) = self.place(key) else { return false };
        let is_older = history.now(key).zip(place.reached).is_some_and(|(life, at)| life.last(history.clock) < at);
        place.is_replaced(history) && is_older
    }

    /// Whether that was so before this time, and of all streams that the server may have shown since.
    pub fn must_be_replaced_since(&mut self, history: &History, key: usize, when: Time) -> bool {
        let Ok(place) = self.place(key) else { return false };
        let lives = &history.keys[key].lives[place.life.unwrap_or(0)..];
        let since = lives.iter().filter_map(|life| life.over).min();
        let mut shown = lives.iter().filter(|life| life.over.is_none_or(|over| over > when));
        let is_older = shown.all(|life| Some(life.last(life.over.unwrap_or(history.clock))) < place.reached);
        is_older && since.is_some_and(|since| since < when) && self.must_be_replaced(history, key)
    }

    /// Whether all that is present and was asked for was returned.
    pub fn is_done(&mut self, history: &History, key: usize, end: EntryId) -> bool {
        let Ok(place) = self.place(key) else { return true };
        let Some(life) = history.now(key) else { return true };
        !life.between(place.low(), end).any(|entry| entry.is_present(history.clock))
    }

    /// All of a stream up to this end was returned. Returns the entries that were lost and not reported with a batch, and how
    /// many more may count; `None`: nothing is known.
    pub fn finished(&mut self, history: &History, key: usize, end: EntryId) -> Result<Option<(u64, u64, bool)>, Wrong> {
        let place = self.place(key)?;
        let life = place.follow(history);
        let (Some(life), false) = (life, place.is_dubious) else { return Ok(None) };
        if let Some(entry) = life.between(place.low(), end).find(|entry| entry.is_present(history.clock)) {
            return Err(format!("{}: {} was skipped, the reader is finished", place.shown(), entry.id));
        }
        let (missing, _) = place.missing(life, end);
        let lost = place.lost + missing;
        let untold = lost.saturating_sub(place.told);
        // What lies beyond the end is gone as well.
        let (all, maybe) = place.missing(life, EntryId::MAX);
        let more = place.lost + all - lost + place.maybe + maybe + place.ghosts(life, history);
        Ok(Some((untold, more, place.is_exact)))
    }

    fn pass(
        &mut self,
        history: &History,
        key: usize,
        life: &Life,
        entry: &Entry,
        doubted: Option<Time>,
    ) -> Result<(), Wrong> {
        let counts = self.counts;
        let place = self.place(key)?;
        let (shown, id) = (place.shown(), entry.id);
        let at = || format!("{shown}, then {id}");
        if place.first.is_none_or(|first| entry.id < first) {
            return Err(format!("{}: before the start {:?}", at(), place.first));
        }
        let mut is_first_of_life = false;
        place.is_dubious |= place.is_replaced(history);
        if place.life.is_none() {
            place.life = Some(life.number);
            is_first_of_life = true;
        }
        if Some(life.number) < place.life {
            return Err(format!("{}, of a stream that was deleted before", at()));
        }
        if place.reached.is_some_and(|reached| entry.id <= reached) {
            return Err(format!("{}: an entry was returned twice, or out of order", at()));
        }
        if Some(life.number) > place.life {
            (place.life, place.is_dubious) = (Some(life.number), true);
        }
        let mut between = life.between(place.low(), entry.id).filter(|other| other.id < entry.id);
        // An entry that is in two lives may have been read from the later one, which lacks others.
        if let Some(skipped) = between.find(|other| other.is_present(history.clock) && !life.is_rolled_back) {
            return Err(format!("{}: {} was skipped", at(), skipped.id));
        }
        let end = entry.id.previous().unwrap_or_default();
        let (lost, maybe) = place.missing(life, end);
        let is_unknown = place.was_empty || (place.reached.is_none() && is_first_of_life);
        if !counts && !place.is_dubious && !is_unknown {
            let trimmed = life.between(place.low(), end).filter_map(|entry| entry.trimmed);
            let latest = trimmed.filter(|when| *when > place.began).max();
            if latest.is_some() && latest > doubted {
                return Err(format!("{}: {lost} are lost, and nothing was said; last doubt {doubted:?}", at()));
            }
        }
        place.lost += lost;
        place.maybe += maybe;
        // A replica still had what counts as lost since a server without it was asked.
        place.maybe += u64::from(place.went_back && entry.trimmed.is_some_and(|when| when <= place.latest));
        place.reached = Some(entry.id);
        Ok(())
    }

    /// What was reported must be what was passed over.
    fn compare(&mut self, history: &History, key: usize) -> Result<(), Wrong> {
        let counts = self.counts;
        let place = self.place(key)?;
        // What was read of a stream that is gone is judged by what replaced it.
        place.follow(history);
        let (Some(life), false, true) = (place.life, place.is_dubious, counts) else { return Ok(()) };
        let bound = if place.is_exact { "" } else { ", as a bound" };
        let at = || format!("{}: {} of {} lost were reported{bound}", place.shown(), place.told, place.lost);
        if place.told < place.lost {
            return Err(at());
        }
        let life = &history.keys[key].lives[life];
        // What was trimmed after a page was read counts with it already; if it is returned all the same, a later batch has too
        // many.
        let (missing, maybe) = place.missing(life, EntryId::MAX);
        let most = place.lost + place.maybe + missing + maybe + place.ghosts(life, history);
        if place.is_exact && place.told > most {
            return Err(format!("{}, at most {most} are", at()));
        }
        Ok(())
    }
}

/// A row that a reader returned. Without unpacking `part` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub id: EntryId,
    pub number: u64,
    pub part: usize,
}

/// The lives of a key, those from this one first.
fn lives_from(history: &History, key: usize, first: usize) -> impl Iterator<Item = &Life> {
    let (before, lives) = history.keys[key].lives.split_at(first);
    lives.iter().chain(before)
}

/// The entries of the rows of a batch, which must be whole, each with its stream. `first`: the life that is read.
pub fn entries_of<'a>(
    history: &'a History,
    key: usize,
    first: usize,
    rows: &[Row],
) -> Result<Vec<(&'a Life, &'a Entry)>, Wrong> {
    let mut found: Vec<(&Life, &Entry)> = Vec::new();
    let mut left = 0;
    for row in rows {
        if left == 0 {
            let mut lives = lives_from(history, key, first);
            let is_it = |entry: &&Entry| entry.number == row.number;
            let entry = lives.find_map(|life| life.find(row.id).filter(is_it).map(|entry| (life, entry)));
            let Some(entry) = entry else { return Err(format!("s{key} {row:?}: something that was never added")) };
            left = entry.1.rows;
            found.push(entry);
        }
        let Some((_, entry)) = found.last() else { break };
        if (row.id, row.number, row.part) != (entry.id, entry.number, entry.rows - left) {
            return Err(format!("s{key} {row:?}: an entry is not whole"));
        }
        left -= 1;
    }
    if left > 0 { Err(format!("s{key}: {left} rows are missing")) } else { Ok(found) }
}
