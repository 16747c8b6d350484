//! A program that reads streams while they change: it opens readers, takes what they return, stores positions, and starts again
//! from any of them. All of it follows from chance, and is judged by what was promised.

use std::time::Duration;

use super::super::chance::Chance;
use super::super::changes::{Change, Changes, heal, shown};
use super::super::history::{History, Time};
use super::super::liar::Liar;
use super::backward_chain::BackwardChain;
use super::chain::{Asked, Chain, Row, Wrong};
use super::lie::Lie;
use super::opened::{Opened, Options, Weather, rows_of};
use super::seen::Seen;
use super::server::{Said, Server};
use crate::error::{Error, Result as Read};
use crate::reading::{End, Place, Position, ReadBatch, Standing, Start};
use crate::resp::EntryId;

/// Passes without any result after which none will follow.
const IDLE: usize = 4;

/// What a program knows of what it reads.
#[derive(Debug, Clone)]
pub enum Knows {
    Forward(Chain),
    Backward(BackwardChain),
}

impl Knows {
    fn keys(&self) -> Vec<usize> {
        match self {
            Self::Forward(chain) => chain.places.iter().map(|place| place.key).collect(),
            Self::Backward(chain) => chain.places.iter().map(|place| place.key).collect(),
        }
    }

    fn forget(&mut self, key: usize) {
        match self {
            Self::Forward(chain) => chain.places.retain(|place| place.key != key),
            Self::Backward(chain) => chain.places.retain(|place| place.key != key),
        }
    }

    /// The last entry that was returned of a stream.
    fn reached(&mut self, key: usize) -> Option<EntryId> {
        match self {
            Self::Forward(chain) => chain.place(key).ok()?.reached,
            Self::Backward(chain) => chain.place(key).ok()?.reached,
        }
    }
}

#[allow(clippy::struct_excessive_bools)] // each is a separate fact
pub struct Program<'a> {
    seen: &'a mut Seen,
    history: History,
    changes: Changes,
    liar: Liar<Lie>,
    counts: bool,
    is_packed: bool,
    is_reverse: bool,
    has_replicas: bool,
    loads: bool,
    knows: Knows,
    opened: Option<Opened>,
    /// The positions that were stored, each with what the program knew then.
    stored: Vec<(String, Knows)>,
}

/// Some changes make a late replica look like another stream.
fn may_happen(change: Change, has_replicas: bool) -> bool {
    !has_replicas || matches!(change, Change::Forbid | Change::Last)
}

impl<'a> Program<'a> {
    pub fn new(seen: &'a mut Seen, lie: Option<Lie>, chance: &mut Chance) -> Self {
        let keys = if chance.one_in(30) { 9 + chance.below(2) } else { *chance.pick(&[1, 1, 1, 2, 2, 3, 4]) };
        let is_packed = chance.one_in(3);
        let is_reverse = chance.one_in(7);
        let has_replicas = !is_reverse && chance.one_in(8);
        let has_bad = chance.one_in(8);
        let changes = Changes::new(is_packed, has_bad, |change| may_happen(change, has_replicas), chance);
        let mut history = History::new(keys);
        for _ in 0..chance.below(2 * keys + 1) {
            changes.change(&mut history, chance);
        }
        let knows = Knows::Forward(Chain::new(&history, Asked::Earliest, true));
        let liar = Liar::new(lie, Chance::new(chance.next(), 0));
        Self {
            seen,
            history,
            changes,
            liar,
            counts: !chance.one_in(5),
            is_packed,
            is_reverse,
            has_replicas,
            loads: chance.one_in(4),
            knows,
            opened: None,
            stored: Vec::new(),
        }
    }

    pub fn run(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        self.open(None, chance)?;
        for _ in 0..4 + chance.size(60) {
            self.step(chance)?;
        }
        self.drain(chance)?;
        // What is stored is read from once more, while nothing else happens.
        for _ in 0..chance.below(3) {
            if self.stored.is_empty() {
                break;
            }
            let at = chance.below(self.stored.len());
            let from = self.stored[at].clone();
            self.open(Some(from), chance)?;
            self.drain(chance)?;
        }
        self.seen.executions += 1;
        Ok(())
    }

    fn step(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        match chance.below(32) {
            0..=6 => self.change(chance),
            7..=8 if self.opened.is_none() || chance.one_in(3) => return self.open_any(chance),
            9 if chance.one_in(3) => return self.drop_stream(chance),
            10 => {
                if let Some(opened) = &mut self.opened {
                    opened.replicate(&self.history, chance);
                }
            }
            11 => self.try_again(),
            12..=17 => {
                for _ in 0..1 + chance.below(3) {
                    self.take(chance)?;
                }
            }
            _ => {
                let Some(opened) = &self.opened else { return Ok(()) };
                let weather = if chance.one_in(4) { Weather::Calm } else { Weather::Rough };
                let at = chance.below(opened.sessions());
                self.pass(at, weather, chance)?;
            }
        }
        Ok(())
    }

    fn change(&mut self, chance: &mut Chance) {
        let what = self.changes.change(&mut self.history, chance);
        self.seen.trace(|| format!("{} {}", self.history.clock, shown(&self.history, what)));
        self.seen.changes += 1;
    }

    /// As a drive does from time to time, and if no stream is left that can be read.
    fn try_again(&mut self) {
        let Some(opened) = &mut self.opened else { return };
        if opened.sessions.is_stranded() {
            // Each is reported again.
            opened.bad.values_mut().for_each(|when| *when = 0);
        }
        opened.sessions.try_again();
    }

    // Readers.

    fn open_any(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        if let Some(opened) = &self.opened
            && opened.sessions.has_begun()
            && chance.one_in(2)
        {
            self.store(None);
        }
        let latest = self.stored.len().saturating_sub(1);
        let from = if self.stored.is_empty() || chance.one_in(4) {
            None
        } else {
            let at = if chance.one_in(2) { latest } else { chance.below(self.stored.len()) };
            Some(self.stored[at].clone())
        };
        self.open(from, chance)
    }

    fn some_id(&self, chance: &mut Chance) -> EntryId {
        let life = self.history.now(chance.below(self.history.keys.len()));
        let mut ids: Vec<_> = life.into_iter().flat_map(|life| &life.entries).map(|entry| entry.id).collect();
        ids.push(life.map_or(EntryId::default(), |life| life.last(self.history.clock)));
        ids.extend([EntryId { ms: 0, seq: 1 }, EntryId { ms: chance.below(200) as u64, seq: 0 }]);
        let id = *chance.pick(&ids);
        let far = EntryId { ms: id.ms.saturating_add(*chance.pick(&[1, 50, 1000])), seq: 0 };
        *chance.pick(&[id, id, id.next().unwrap_or(id), far])
    }

    /// Creates a reader at a stored position, or anywhere.
    fn open(&mut self, from: Option<(String, Knows)>, chance: &mut Chance) -> Result<(), Wrong> {
        self.opened = None;
        let (mut start, mut position) = (None, None);
        if let Some((text, knows)) = from {
            self.knows = knows;
            position = Some(self.parse(&text, chance)?);
        } else {
            let id = self.some_id(chance);
            let kinds = [Asked::Earliest, Asked::Earliest, Asked::Latest, Asked::At(id), Asked::At(id)];
            let asked = *chance.pick(&kinds);
            let start_of = |asked| match asked {
                Asked::Latest => Start::Latest,
                Asked::At(id) => Start::At(id),
                Asked::Earliest | Asked::Again => Start::Earliest,
            };
            start = Some(start_of(asked));
            self.knows = if self.is_reverse {
                let top = if chance.one_in(2) { EntryId::MAX } else { id };
                let end = if chance.one_in(2) { EntryId::default() } else { self.some_id(chance) };
                Knows::Backward(BackwardChain::new(&self.history, top, end))
            } else {
                Knows::Forward(Chain::new(&self.history, asked, self.counts))
            };
            self.stored.clear();
        }
        let end = match chance.below(6) {
            0..=2 => End::Never,
            3..=4 => End::Latest,
            _ => End::At(self.some_id(chance)),
        };
        let reverse = match &mut self.knows {
            Knows::Forward(_) => None,
            Knows::Backward(chain) => {
                chain.resume();
                Some((chain.top, chain.end))
            }
        };
        let options = Options {
            start,
            position,
            end,
            reverse,
            limit: if chance.one_in(8) { 1 + chance.below(12) as u64 } else { u64::MAX },
            fails: chance.one_in(2),
            batch_rows: *chance.pick(&[1, 2, 3, 5, 5, 100]),
            batch_bytes: *chance.pick(&[1 << 20, 1 << 20, 1 << 20, 1, 300]),
            page_bytes: *chance.pick(&[1 << 20, 1 << 20, 1, 300, 2000]),
            block: Duration::from_millis(*chance.pick(&[1, 10, 1000])),
            linger: Duration::from_millis(*chance.pick(&[0, 0, 5])),
            is_packed: self.is_packed,
            groups: self.groups(chance),
        };
        self.seen.readers += 1;
        self.seen.trace(|| format!("{} opens {options:?}", self.history.clock));
        self.opened = Some(Opened::new(&self.history, options, chance));
        Ok(())
    }

    fn groups(&self, chance: &mut Chance) -> Vec<Vec<usize>> {
        let keys = self.knows.keys();
        let size = if chance.one_in(2) { keys.len() } else { 1 + chance.below(keys.len()) };
        keys.chunks(size).map(<[usize]>::to_vec).collect()
    }

    /// Parses a position that was stored, perhaps as an earlier version would have stored it.
    fn parse(&mut self, text: &str, chance: &mut Chance) -> Result<Position, Wrong> {
        let position = Position::parse("start", text).map_err(|error| error.to_string())?;
        if position.to_text() != text || position.is_reverse != self.is_reverse {
            return Err(format!("{text} is read as {position:?}"));
        }
        let Knows::Forward(chain) = &mut self.knows else { return Ok(position) };
        if !chance.one_in(12) {
            return Ok(position);
        }
        let mut shortened = position.clone();
        for (at, key) in self.history.keys.iter().enumerate() {
            let Some(place) = position.get(&key.name) else { continue };
            let short = Place { added: place.added.filter(|_| chance.one_in(2)), removed: None, ..place };
            if short != place {
                shortened.set(key.name.as_slice().into(), Some(short));
                chain.forget_counts(at);
            }
        }
        Ok(shortened)
    }

    fn server(counts: bool, is_packed: bool, replica: Option<Time>, loads: bool) -> impl FnOnce(&mut Chance) -> Server {
        move |chance| Server {
            counts,
            is_packed,
            replica: replica.filter(|_| !chance.one_in(3)).map(|now| chance.below(now as usize + 1) as Time),
            loads: loads && chance.one_in(4),
        }
    }

    fn pass(&mut self, at: usize, weather: Weather, chance: &mut Chance) -> Result<bool, Wrong> {
        let is_rough = weather == Weather::Rough;
        let Some(opened) = &mut self.opened else { return Ok(false) };
        let replica = (self.has_replicas && is_rough).then_some(self.history.clock);
        let server = Self::server(self.counts, self.is_packed, replica, self.loads && is_rough);
        let (has_moved, said) = opened.pass(at, &self.history, server, weather, &mut self.liar, chance)?;
        self.seen.passes += 1;
        for (when, said) in said {
            self.hear(when, said);
        }
        Ok(has_moved)
    }

    /// A reply has arrived.
    fn hear(&mut self, when: Time, said: Said) {
        self.seen.trace(|| format!("  {when} {said:?}"));
        let Some(opened) = &mut self.opened else { return };
        match (said, &mut self.knows) {
            (Said::Described { key, last }, Knows::Forward(chain)) => {
                chain.described(&self.history, key, when, last);
                opened.described(&self.history, key, when);
            }
            (Said::Described { key, .. }, Knows::Backward(chain)) => chain.described(&self.history, key, when),
            (Said::Refused { key, is_string }, knows) => {
                opened.refused.entry(key).or_insert(when);
                if let (true, Knows::Forward(chain)) = (is_string, knows) {
                    chain.refused(key, when);
                }
            }
            (Said::Page { key }, Knows::Forward(chain)) => chain.page(key, when),
            (Said::Page { .. } | Said::Role { .. } | Said::Loading, _) => {}
        }
    }

    fn drop_stream(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let keys = self.knows.keys();
        let Some(opened) = self.opened.as_mut().filter(|_| keys.len() > 1) else { return Ok(()) };
        let bad: Vec<_> = opened.bad.keys().copied().collect();
        let key = *chance.pick(if bad.is_empty() { &keys } else { &bad });
        let name = &self.history.keys[key].name;
        if !opened.sessions.drop_stream(name) || opened.sessions.drop_stream(name) {
            return Err(format!("s{key}: it was not dropped, or twice"));
        }
        opened.has_dropped = true;
        opened.bad.remove(&key);
        self.knows.forget(key);
        self.seen.dropped += 1;
        Ok(())
    }

    /// Stores a position, with what the program knows.
    fn store(&mut self, position: Option<(String, Knows)>) {
        let Some(opened) = &self.opened else { return };
        let stored = position.unwrap_or_else(|| {
            let now = opened.sessions.position();
            let name = |key: usize| &self.history.keys[key].name;
            let knows = match &self.knows {
                Knows::Forward(chain) => Knows::Forward(chain.store(|key| now.get(name(key)).is_some())),
                Knows::Backward(chain) => Knows::Backward(chain.clone()),
            };
            (now.to_text(), knows)
        });
        self.seen.note(&stored.0);
        self.seen.trace(|| format!("  stores {}", stored.0));
        self.stored.push(stored);
    }

    // What a reader returns.

    /// Takes a result, if there is one. Returns whether there was.
    fn take(&mut self, chance: &mut Chance) -> Result<bool, Wrong> {
        let Some(opened) = &mut self.opened else { return Ok(false) };
        if !opened.sessions.has_begun() {
            return Ok(false);
        }
        if opened.sessions.take_doubt().is_some() && !self.liar.lies(Lie::HideDoubt) {
            opened.doubted = Some(self.history.clock);
        }
        if !opened.sessions.is_ready() {
            if opened.sessions.is_finished() {
                self.finish()?;
            }
            return Ok(false);
        }
        let Some((at, result)) = opened.sessions.take() else { return Err("it was ready, and has nothing".to_owned()) };
        self.seen.trace(|| match &result {
            Ok(batch) => {
                let (key, lost) = (batch.stream().escape_ascii(), batch.lost);
                format!(
                    "{} {key} {}..{} {lost:?} {}",
                    self.history.clock,
                    batch.first_id(),
                    batch.last_id(),
                    batch.position()
                )
            }
            Err(error) => format!("{} {error:?}", self.history.clock),
        });
        opened.read_ahead(at, chance)?;
        self.judge(result, chance)?;
        self.check_total()?;
        if chance.one_in(3) {
            self.store(None);
        }
        Ok(true)
    }

    fn judge(&mut self, result: Read<ReadBatch>, chance: &mut Chance) -> Result<(), Wrong> {
        match result {
            Ok(batch) => {
                if !self.liar.lies(Lie::SkipBatch) {
                    self.judge_batch(&batch)?;
                }
                if self.liar.lies(Lie::RepeatBatch) {
                    self.judge_batch(&batch)?;
                }
                if self.liar.lies(Lie::InventLoss) {
                    self.judge_loss(batch.stream(), 1, true)?;
                }
                if self.liar.lies(Lie::InventReplacement) {
                    self.judge_replaced(batch.stream(), batch.position())?;
                }
                Ok(())
            }
            Err(Error::DataLoss { stream, lost, exact, position, .. }) => {
                let fails = self.opened.as_ref().is_some_and(|opened| opened.options.fails);
                if !fails {
                    return Err("DataLoss was raised, and losses are to be reported".to_owned());
                }
                self.seen.losses += 1;
                if let Some((lost, exact)) = self.lied(Some((lost, exact))) {
                    self.judge_loss(&stream, lost, exact)?;
                }
                self.check_text(&position, |now| now.to_text() == position)?;
                self.check_position(&stream)
            }
            Err(Error::Field { stream, entry_id, lost, exact, position, .. }) => {
                let id = crate::resp::entry_id(entry_id.as_bytes()).ok_or("no ID")?;
                self.seen.bad += 1;
                let key = self.history.key(&stream);
                if let Some((lost, exact)) = self.lied((lost > 0).then_some((lost, exact))) {
                    self.seen.losses += 1;
                    if self.opened.as_ref().is_some_and(|opened| opened.options.fails) {
                        return Err(format!("s{key} {id}: it reports a loss, and losses are errors"));
                    }
                    self.judge_loss(&stream, lost, exact)?;
                }
                let opened = self.opened.as_mut().ok_or("no reader")?;
                opened.entries += 1;
                opened.bad.remove(&key);
                match &mut self.knows {
                    Knows::Forward(chain) => chain.bad(&self.history, key, id, opened.doubted)?,
                    Knows::Backward(chain) => chain.bad(&self.history, key, id)?,
                }
                self.check_limit()?;
                self.check_text(&position, |now| now.to_text() == position)?;
                self.check_position(&stream)
            }
            Err(Error::StreamReplaced { stream, position, .. }) => {
                if self.liar.lies(Lie::HideReplacement) {
                    return Ok(());
                }
                self.judge_replaced(&stream, position)
            }
            Err(Error::StreamRefused { stream, code, .. }) => {
                self.judge_refusal(&stream, &code)?;
                if self.liar.lies(Lie::RefuseAgain) {
                    self.judge_refusal(&stream, &code)?;
                }
                if chance.one_in(4) && self.opened.as_ref().is_some_and(|opened| opened.sessions.is_stranded()) {
                    self.opened = None;
                }
                Ok(())
            }
            Err(error) => Err(format!("an unexpected error: {error}")),
        }
    }

    /// What is said of a loss instead of the truth.
    fn lied(&mut self, lost: Option<(u64, bool)>) -> Option<(u64, bool)> {
        let (mut lost, mut exact) = lost?;
        let liar = &mut self.liar;
        if exact && liar.lies(Lie::LostTooFew) {
            lost -= 1;
        }
        if exact && liar.lies(Lie::LostTooMany) {
            lost += 1;
        }
        exact |= liar.lies(Lie::CallItExact);
        if exact && liar.lies(Lie::CallItBound) {
            exact = false;
        }
        if lost > 1 && liar.lies(Lie::LowBound) {
            (lost, exact) = (1, false);
        }
        (lost > 0 && !liar.lies(Lie::SwallowLoss)).then_some((lost, exact))
    }

    fn judge_batch(&mut self, batch: &ReadBatch) -> Result<(), Wrong> {
        let key = self.history.key(batch.stream());
        let mut rows = rows_of(batch, self.is_packed);
        if rows.len() > 1 && self.liar.lies(Lie::SkipRow) {
            rows.remove(0);
        }
        self.check_batch(batch, &rows)?;
        let lost = self.lied(batch.lost.map(|loss| (loss.entries, loss.exact)));
        let opened = self.opened.as_mut().ok_or("no reader")?;
        opened.bad.remove(&key);
        opened.entries += batch.entries;
        if let Some((lost, exact)) = lost {
            opened.told += lost;
            opened.is_exact &= exact;
            self.seen.losses += 1;
        }
        if lost.is_some() && opened.options.fails {
            return Err(format!("s{key}: a batch reports a loss, and losses are errors"));
        }
        let end = match opened.options.end {
            End::Never => EntryId::MAX,
            End::Latest if self.is_reverse => EntryId::MAX,
            End::Latest => opened.due.get(&key).copied().ok_or("a batch of a stream that was not described")?,
            End::At(id) => id,
        };
        match &mut self.knows {
            Knows::Forward(chain) => chain.returned(&self.history, key, &rows, lost, end, opened.doubted)?,
            Knows::Backward(chain) => chain.returned(&self.history, key, &rows, lost)?,
        }
        self.seen.batches += 1;
        self.seen.entries += batch.entries;
        if self.liar.lies(Lie::ExceedLimit) {
            self.opened.as_mut().ok_or("no reader")?.entries += 1;
        }
        self.check_limit()?;
        self.check_text(&batch.position(), |now| *now == batch.position)?;
        self.check_position(batch.stream())
    }

    /// Whether a batch is what it says.
    fn check_batch(&self, batch: &ReadBatch, rows: &[Row]) -> Result<(), Wrong> {
        let opened = self.opened.as_ref().ok_or("no reader")?;
        let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        ids.dedup();
        let says = (batch.entries, Some(batch.first_id()), Some(batch.last_id()));
        if says != (ids.len() as u64, ids.first().copied(), ids.last().copied()) {
            return Err(format!("a batch of {ids:?} says {says:?}"));
        }
        // A page has one more entry if the one that it was to begin with is gone.
        if !self.is_packed && rows.len() > opened.options.batch_rows + 1 {
            return Err(format!("a batch has {} rows of at most {}", rows.len(), opened.options.batch_rows));
        }
        Ok(())
    }

    fn check_limit(&self) -> Result<(), Wrong> {
        let opened = self.opened.as_ref().ok_or("no reader")?;
        if opened.entries > opened.options.limit {
            return Err(format!("{} entries, the limit is {}", opened.entries, opened.options.limit));
        }
        Ok(())
    }

    /// The position of a result is that of the reader now.
    fn check_text(&mut self, text: &str, is_it: impl FnOnce(&Position) -> bool) -> Result<(), Wrong> {
        self.seen.note(text);
        let now = self.opened.as_ref().ok_or("no reader")?.sessions.position();
        if is_it(now) {
            Ok(())
        } else {
            Err(format!("the position of a result is {text}, that of the reader {}", now.to_text()))
        }
    }

    /// The reader stands where the last result of a stream has led to, also in the other streams.
    fn check_position(&mut self, _stream: &[u8]) -> Result<(), Wrong> {
        let opened = self.opened.as_ref().ok_or("no reader")?;
        for key in self.knows.keys() {
            let place = opened.sessions.position().get(&self.history.keys[key].name);
            let mut at = place.map(|place| place.id);
            if self.liar.lies(Lie::PositionAhead) {
                at = at.and_then(EntryId::next);
            }
            if self.liar.lies(Lie::PositionBehind) {
                at = at.and_then(EntryId::previous);
            }
            let Some(reached) = self.knows.reached(key) else { continue };
            // After a loss at the end, nothing of a stream that is read backward is left.
            let is_end = self.is_reverse && at == Some(EntryId::default());
            if at != Some(reached) && !is_end {
                return Err(format!("s{key}: the position is {at:?}, and {reached} was returned"));
            }
        }
        Ok(())
    }

    fn check_total(&self) -> Result<(), Wrong> {
        let Some(opened) = &self.opened else { return Ok(()) };
        let (lost, exact) = opened.sessions.lost();
        if lost < opened.told || (exact && !opened.is_exact) {
            return Err(format!("{lost} are lost in all, exact {exact}; {} were reported", opened.told));
        }
        Ok(())
    }

    fn judge_loss(&mut self, stream: &[u8], lost: u64, exact: bool) -> Result<(), Wrong> {
        let key = self.history.key(stream);
        let opened = self.opened.as_mut().ok_or("no reader")?;
        opened.bad.remove(&key);
        opened.told += lost;
        opened.is_exact &= exact;
        match &mut self.knows {
            Knows::Forward(chain) => chain.told(&self.history, key, lost, exact),
            Knows::Backward(chain) => chain.told(&self.history, key, lost, exact),
        }
    }

    fn judge_replaced(&mut self, stream: &[u8], position: String) -> Result<(), Wrong> {
        let key = self.history.key(stream);
        self.seen.replaced += 1;
        let opened = self.opened.as_ref().ok_or("no reader")?;
        let now = opened.sessions.position();
        let following = match &mut self.knows {
            Knows::Forward(chain) => {
                let name = |key: usize| &self.history.keys[key].name;
                let mut following = chain.store(|key| now.get(name(key)).is_some());
                following.replaced(&self.history, key)?;
                Knows::Forward(following)
            }
            Knows::Backward(chain) => {
                chain.replaced(&self.history, key)?;
                let mut following = chain.clone();
                let top = following.top;
                following.place(key)?.begin_again(top);
                Knows::Backward(following)
            }
        };
        self.store(Some((position, following)));
        self.mark_bad(key, self.history.clock)
    }

    fn judge_refusal(&mut self, stream: &[u8], code: &str) -> Result<(), Wrong> {
        let key = self.history.key(stream);
        self.seen.refused += 1;
        let opened = self.opened.as_mut().ok_or("no reader")?;
        let since = opened.refused.remove(&key);
        let Some(since) = since.or(opened.bad.get(&key).copied()) else {
            return Err(format!("s{key}: {code}, and the server did not refuse it"));
        };
        self.mark_bad(key, since)
    }

    /// A stream was refused or replaced: that is said once while others are read, until it changes again.
    fn mark_bad(&mut self, key: usize, since: Time) -> Result<(), Wrong> {
        let keys = self.knows.keys();
        let opened = self.opened.as_mut().ok_or("no reader")?;
        let has_others = keys.iter().any(|other| *other != key && !opened.bad.contains_key(other));
        let before = opened.bad.get(&key).copied().unwrap_or(0);
        if has_others && before > 0 && before >= self.history.keys[key].changed() {
            return Err(format!("s{key}: it was reported twice"));
        }
        opened.bad.insert(key, since);
        Ok(())
    }

    // The end.

    /// A reader is finished.
    fn finish(&mut self) -> Result<(), Wrong> {
        let opened = self.opened.as_mut().ok_or("no reader")?;
        self.seen.finished += 1;
        opened.check_silence()?;
        if self.liar.lies(Lie::AskAgain) && !opened.sends(0) {
            return Err("a session that is finished asks".to_owned());
        }
        if opened.entries < opened.options.limit {
            self.judge_end()?;
        }
        self.store(None);
        self.opened = None;
        Ok(())
    }

    /// Everything was returned.
    fn judge_end(&mut self) -> Result<(), Wrong> {
        let opened = self.opened.as_mut().ok_or("no reader")?;
        let (total, is_exact) = opened.sessions.lost();
        let rest = total - opened.told;
        let good: Vec<_> = self.knows.keys().into_iter().filter(|key| !opened.bad.contains_key(key)).collect();
        let is_all = opened.bad.is_empty() && !opened.has_dropped;
        let (mut untold, mut maybe, mut is_known) = (0, 0, true);
        for key in good {
            match &mut self.knows {
                Knows::Forward(chain) => {
                    let reached = chain.place(key)?.reached.unwrap_or_default();
                    let due = opened.due.get(&key).copied().unwrap_or_default();
                    let end = match opened.options.end {
                        End::Never => EntryId::MAX,
                        End::Latest => due,
                        End::At(id) => id.min(due),
                    };
                    // A replica may have less than the one before it.
                    let end = if self.has_replicas { reached } else { end };
                    if !self.has_replicas && chain.must_be_replaced_since(&self.history, key, opened.at) {
                        return Err(format!("s{key}: it was replaced, which was not reported"));
                    }
                    match chain.finished(&self.history, key, end)? {
                        Some((lost, more, exact)) => {
                            (untold, maybe) = (untold + lost, maybe + more);
                            is_known &= exact;
                        }
                        None => is_known = false,
                    }
                }
                Knows::Backward(chain) => match chain.finished(&self.history, key)? {
                    Some(lost) => {
                        untold += lost;
                        is_known &= self.history.now(key).is_none_or(|life| life.ghosts.is_empty());
                    }
                    None => is_known = false,
                },
            }
        }
        let is_over = is_all && is_known && is_exact && rest > untold + maybe;
        if self.counts && (rest < untold || is_over) {
            return Err(format!("{rest} more are lost than was reported, and not {untold} to {}", untold + maybe));
        }
        Ok(())
    }

    /// Reads until nothing more comes, while nothing else happens.
    fn drain(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        for key in 0..self.history.keys.len() {
            heal(&mut self.history, key);
        }
        if self.opened.is_none() {
            let from = self.stored.last().cloned();
            self.open(from, chance)?;
        }
        let has_end = self.is_reverse;
        for key in (0..self.history.keys.len()).filter(|_| !has_end) {
            self.changes.add(&mut self.history, key, 1, None, chance);
        }
        let added: usize = self.history.keys.iter().flat_map(|key| &key.lives).map(|life| life.entries.len()).sum();
        let (mut idle, mut weather) = (0, Weather::Calm);
        for _ in 0..200 + 30 * added {
            let Some(opened) = &mut self.opened else { return Ok(()) };
            opened.settle(&self.history);
            let mut has_moved = false;
            for at in 0..opened.sessions() {
                has_moved |= self.pass(at, weather, chance)?;
            }
            weather = Weather::Calm;
            while self.take(chance)? {
                (idle, has_moved) = (0, true);
            }
            let bad = self.opened.as_ref().map_or(0, |opened| opened.bad.len());
            if bad > 0 && bad == self.knows.keys().len() {
                // Each call raises an error.
                return Ok(());
            }
            if !has_moved {
                idle += 1;
                weather = Weather::Silent;
                self.try_again();
            }
            if idle > IDLE {
                return self.judge_rest();
            }
        }
        Err(format!("it asks for ever: {:?}", self.opened))
    }

    /// A reader returns nothing more, and waits.
    fn judge_rest(&mut self) -> Result<(), Wrong> {
        let keys = self.knows.keys();
        let opened = self.opened.as_ref().ok_or("no reader")?;
        let good: Vec<_> = keys.into_iter().filter(|key| !opened.bad.contains_key(key)).collect();
        if good.is_empty() {
            return Ok(());
        }
        let Knows::Forward(chain) = &mut self.knows else {
            return Err(format!("a reader from new entries to old ones waits: {opened:?}"));
        };
        let (lost, _) = opened.sessions.lost();
        let (mut is_certain, mut is_behind) = (opened.bad.is_empty() && !opened.has_dropped, false);
        for key in good {
            // Nothing can follow the last ID: the stream is finished.
            let is_over = chain.place(key)?.reached == Some(EntryId::MAX);
            if chain.must_be_replaced(&self.history, key) && opened.beside(key) <= 8 && !is_over {
                return Err(format!("s{key}: it was replaced, which was not reported"));
            }
            let end = match opened.options.end {
                End::Never => EntryId::MAX,
                End::Latest => opened.due.get(&key).copied().unwrap_or_default(),
                End::At(id) => id,
            };
            let may_be_replaced = chain.may_be_replaced(&self.history, key);
            is_certain &= !may_be_replaced;
            is_behind |= !may_be_replaced && !chain.is_done(&self.history, key, end);
        }
        let is_limited = opened.entries >= opened.options.limit;
        if is_behind && !is_limited {
            return Err(format!("what is there is not returned: {opened:?}"));
        }
        if !opened.options.follows() && is_certain && opened.sessions.standing() == Standing::Read {
            return Err(format!("it is not finished, and waits: {opened:?}"));
        }
        let lasts = self.history.keys.iter().filter_map(|key| key.life(self.history.clock));
        let has_room = lasts.map(|life| life.last(self.history.clock)).all(|last| last.ms < u64::MAX - 100);
        if is_certain && has_room && !is_limited && lost != opened.told {
            return Err(format!("{lost} are lost in all, {} were reported", opened.told));
        }
        self.store(None);
        Ok(())
    }
}
