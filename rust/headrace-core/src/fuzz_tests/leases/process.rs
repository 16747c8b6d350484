//! A process with one member: what it reads, as `shard_consumer.rs` does, and what its program has in hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::chance::Chance;
use super::clock::Clock;
use super::facts::{Owned, Wrong};
use super::lie::Lie;
use super::line::{Line, Weather};
use super::world::{Client, World};
use crate::keeper::sync::Mutex;
use crate::leases::{AfterFailure, Change, Failed, HandOut, LeaseNames, LeaseSession, Leases, Ticket, lock};
use crate::reading::{Place, Start};
use crate::resp::EntryId;

/// A batch that the program has in hand.
#[derive(Debug, Clone, Copy)]
pub struct Hand {
    pub ticket: Ticket,
    /// Its first and its last entry.
    pub first: u64,
    pub last: u64,
}

/// What is read of a stream.
#[derive(Debug, Clone, Copy)]
struct Reading {
    epoch: u64,
    /// The last entry that was read.
    at: u64,
}

#[derive(Debug)]
pub struct Process {
    pub client: Client,
    pub leases: Arc<Mutex<Leases>>,
    clock: Clock,
    lines: Vec<Line>,
    /// Whether another process had its name at the same time, and whether that one was the later one.
    pub had_namesake: bool,
    pub was_followed: bool,
    /// Nothing of it runs.
    pub is_stopped: bool,
    /// When it gives up to close.
    pub closes_by: Option<Duration>,
    readings: BTreeMap<usize, Reading>,
    /// A batch that was read and not returned: its stream and its last entry.
    held: Option<(usize, u64)>,
    pub hands: Vec<Hand>,
    /// The last entry of each lease that was given to the program, since one failed; a lease begins behind what was committed.
    pub handed: BTreeMap<Owned, u64>,
    /// How many entries were given to it, and how many of them come again because one failed.
    pub handed_over: u64,
    pub repeated: u64,
    /// The leases of which the program knows that they may be over: it has undone what it did with these entries.
    told: BTreeSet<(usize, u64)>,
}

fn place(number: u64, added: Option<u64>) -> Place {
    Place { id: EntryId { ms: number, seq: 0 }, is_entry: true, added, removed: None }
}

impl Process {
    pub fn new(number: usize, name: &str, begins_after: &str, world: &World, chance: &mut Chance) -> Self {
        let name = name.as_bytes().to_vec();
        let names = LeaseNames {
            group: b"g".to_vec(),
            member: name.clone(),
            instance: format!("i{number}").into_bytes(),
            lease: world.lease,
            begins_after: begins_after.to_owned(),
            creates: true,
            batch: 100,
            moves: world.moves_after.map(|after| (after, b"dead".to_vec())),
            durability: None,
        };
        let leases = Arc::new(Mutex::new(Leases::new(names, world.streams.len(), 0)));
        let client = Client { process: number, name };
        let keys: Arc<[Vec<u8>]> = world.keys.clone().into();
        let session = |streams| LeaseSession::new(Arc::clone(&leases), Arc::clone(&keys), streams);
        let line = |(node, streams)| Line::new(node, session(streams), client.clone());
        let lines = world.lines().into_iter().map(line).collect();
        Self {
            clock: Clock::new(Duration::from_secs(9 * number as u64), world.may_drift, world.now, chance),
            client,
            leases,
            lines,
            had_namesake: false,
            was_followed: false,
            is_stopped: false,
            closes_by: None,
            readings: BTreeMap::new(),
            held: None,
            hands: Vec::new(),
            handed: BTreeMap::new(),
            handed_over: 0,
            repeated: 0,
            told: BTreeSet::new(),
        }
    }

    pub fn number(&self) -> usize {
        self.client.process
    }

    fn wrong<T>(&self, text: impl AsRef<str>) -> Result<T, Wrong> {
        Err(format!("p{}: {}", self.number(), text.as_ref()))
    }

    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    pub fn now(&self, world: &World) -> Duration {
        self.clock.at(world.now)
    }

    // Its keeper.

    pub fn disconnect(&mut self, at: usize, world: &mut World) {
        self.lines[at].disconnect(world);
    }

    pub fn disconnect_all(&mut self, node: usize, world: &mut World) {
        self.lines.iter_mut().filter(|line| line.node == node).for_each(|line| line.disconnect(world));
    }

    /// Whether a connection broke while it was waiting for replies.
    pub fn has_lost_replies(&self) -> bool {
        self.lines.iter().any(|line| line.has_lost_replies)
    }

    /// The time until its keeper does something, on the clock of the world.
    pub fn left(&mut self, world: &World) -> Duration {
        let begins_at = lock(&self.leases).begins_at();
        let until_begin = begins_at.map(|at| self.clock.takes(at.saturating_sub(self.clock.at(world.now))));
        let left = self.lines.iter_mut().filter_map(|line| line.left(self.clock, world));
        left.chain(until_begin).min().unwrap_or(Duration::MAX)
    }

    /// One pass over a connection. Returns whether anything moved.
    pub fn keep(&mut self, at: usize, weather: Weather, world: &mut World, chance: &mut Chance) -> Result<bool, Wrong> {
        self.lines[at].keep(self.clock.at(world.now), weather, world, chance)
    }

    // Its program.

    /// The stream is not the one that was read before: reading it begins again.
    pub fn renounce(&mut self, world: &World, chance: &mut Chance) {
        let read: Vec<usize> = self.readings.keys().copied().collect();
        let Some(stream) = (!read.is_empty()).then(|| *chance.pick(&read)) else { return };
        world.trace(|| format!("p{} renounces s{stream}", self.number()));
        lock(&self.leases).renounce(stream, self.readings[&stream].epoch, self.clock.at(world.now));
    }

    /// Reads what it owns now, and nothing else.
    pub fn follow_changes(&mut self, world: &World) {
        let (changes, error) = {
            let mut leases = lock(&self.leases);
            (leases.take_changes(self.now(world)), leases.take_error())
        };
        if let Some(error) = error {
            world.trace(|| format!("p{} is told: {error}", self.number()));
        }
        for change in changes {
            world.trace(|| format!("p{} {change:?}", self.number()));
            match change {
                Change::Assigned { .. } => {}
                Change::Reads { stream, epoch, start } => {
                    let at = match start {
                        Start::After(place) => place.id.ms,
                        _ => 0,
                    };
                    self.readings.insert(stream, Reading { epoch, at });
                }
                Change::Failed { stream } | Change::Revoked { stream } | Change::Lost { stream } => {
                    self.readings.remove(&stream);
                    self.held.take_if(|(held, _)| *held == stream);
                }
            }
        }
    }

    /// Gets a batch, if there is one. Returns whether it did. The keeper's thread may have changed something since the changes were
    /// followed.
    pub fn poll(&mut self, world: &mut World, chance: &mut Chance) -> Result<bool, Wrong> {
        if self.held.is_none() {
            let has_more = |(stream, reading): &(&usize, &Reading)| reading.at < world.added(**stream);
            let ready: Vec<usize> = self.readings.iter().filter(has_more).map(|(stream, _)| *stream).collect();
            let Some(stream) = (!ready.is_empty()).then(|| *chance.pick(&ready)) else { return Ok(false) };
            let (at, added) = (self.readings[&stream].at, world.added(stream));
            self.held = Some((stream, added.min(at + *chance.pick(&[1, 3, 100]))));
            if chance.one_in(4) {
                return Ok(true);
            }
        }
        let Some((stream, whole)) = self.held.take() else { return Ok(false) };
        let (now, Reading { epoch, at }) = (self.now(world), self.readings[&stream]);
        let mut leases = lock(&self.leases);
        let last = whole.min(at.saturating_add(leases.limit(stream)));
        let mut handed = leases.hand_out(stream, epoch, place(last, Some(last)), last - at, now);
        drop(leases);
        if handed == HandOut::Later && world.liar.lies(Lie::HandOutLate) {
            handed = HandOut::Now(Ticket { stream, epoch, number: u64::MAX });
        }
        let rest = (last < whole).then_some((stream, whole));
        match handed {
            HandOut::Now(ticket) => {
                (self.held, self.handed_over) = (rest, self.handed_over + last - at);
                self.readings.insert(stream, Reading { epoch, at: last });
                if world.liar.lies(Lie::SkipBatch) {
                    return Ok(true);
                }
                if world.liar.lies(Lie::RepeatBatch) {
                    self.readings.insert(stream, Reading { epoch, at });
                }
                self.gets(Hand { ticket, first: at + 1, last }, world)?;
            }
            HandOut::Later => {
                self.held = Some((stream, whole));
                return Ok(false);
            }
            HandOut::Moved => {
                self.held = rest;
                self.readings.insert(stream, Reading { epoch, at: last });
                self.goes_on((stream, epoch), at + 1, last, world)?;
                world.facts.said.insert((self.number(), stream, epoch), last);
            }
            HandOut::Never => drop(self.readings.insert(stream, Reading { epoch, at: whole })),
        }
        Ok(true)
    }

    /// A batch was given to the program.
    fn gets(&mut self, hand: Hand, world: &World) -> Result<(), Wrong> {
        let Hand { ticket: Ticket { stream, epoch, .. }, first, last } = hand;
        world.trace(|| format!("p{} gets s{stream} {first}..={last} of {epoch}", self.number()));
        self.goes_on((stream, epoch), first, last, world)?;
        self.hands.push(hand);
        self.judge_owner(stream, epoch, world, "it gets a batch")
    }

    /// These entries follow those before them, under a lease that was given and that the program has not been told to be over.
    fn goes_on(&mut self, (stream, epoch): (usize, u64), first: u64, last: u64, world: &World) -> Result<(), Wrong> {
        let owned = (self.number(), stream, epoch);
        let Some((begin, _)) = world.facts.executed.get(&owned) else {
            return self.wrong(format!("it gets entries of s{stream} with {epoch}, which was never given"));
        };
        if self.told.contains(&(stream, epoch)) {
            return self.wrong(format!("it gets entries of s{stream} with {epoch}, and was told that this is over"));
        }
        let before = self.handed.insert(owned, last).unwrap_or(*begin);
        if first != before + 1 || last < first || last > world.added(stream) {
            return self.wrong(format!("it gets {first}..={last} of s{stream} after {before}"));
        }
        Ok(())
    }

    /// The program says that an entry of a batch has failed, or the batch: all from there on comes again, but what is moved.
    pub fn fail(&mut self, at: usize, world: &mut World, chance: &mut Chance) -> Result<(), Wrong> {
        let Hand { ticket, first, last } = self.hands[at];
        let Ticket { stream, epoch, .. } = ticket;
        let is_entry = first == last || chance.one_in(2);
        let entry = is_entry.then(|| first + chance.below((last + 1 - first) as usize) as u64);
        let failed = Failed {
            before: entry.filter(|entry| *entry > first).map(|entry| (place(entry - 1, None), last + 1 - entry)),
            entry: entry.map(|entry| (place(entry, None).id, place(entry, None), last - entry)),
            reason: "why".to_owned(),
            delay: chance.one_in(3).then_some(Duration::ZERO),
        };
        let after = lock(&self.leases).fail(ticket, failed, self.now(world));
        world.trace(|| {
            format!("p{} fails s{stream} {entry:?} of {first}..={last} of {epoch}: {after:?}", self.number())
        });
        let AfterFailure::Again(again) = after else { return Ok(()) };
        let owned = (self.number(), stream, epoch);
        let (had, begin) = (self.handed[&owned], world.facts.executed[&owned].0);
        let said = world.facts.said.get(&owned).copied().unwrap_or(begin);
        let mut done = said.max(entry.unwrap_or(first) - 1);
        if let Some(entry) = entry {
            *world.facts.failed.entry((stream, entry)).or_default() += 1;
            if world.moves_after.is_some() && again + entry == had {
                done = entry;
            }
        }
        if again + done != had {
            return self.wrong(format!("{again} entries of s{stream} come again, of {done} to {had}"));
        }
        world.facts.said.insert(owned, done);
        self.handed.insert(owned, done);
        self.repeated += again;
        self.hands.retain(|hand| (hand.ticket.stream, hand.ticket.epoch) != (stream, epoch));
        Ok(())
    }

    /// The program asks whether a batch is still its own, and forgets it if not. Returns whether it is.
    pub fn check(&mut self, at: usize, world: &mut World) -> Result<bool, Wrong> {
        let Ticket { stream, epoch, .. } = self.hands[at].ticket;
        let now = self.now(world);
        if lock(&self.leases).check(self.hands[at].ticket, now) || world.liar.lies(Lie::CheckYes) {
            if self.told.contains(&(stream, epoch)) {
                return self.wrong(format!("its lease of s{stream} {epoch} is valid, and was not"));
            }
            return self.judge_owner(stream, epoch, world, "its lease is valid").map(|()| true);
        }
        world.trace(|| format!("p{} is told that s{stream} {epoch} may be over", self.number()));
        self.told.insert((stream, epoch));
        self.hands.retain(|hand| (hand.ticket.stream, hand.ticket.epoch) != (stream, epoch));
        Ok(false)
    }

    /// Whoever believes that it owns a stream does.
    pub fn judge_beliefs(&self, world: &World) -> Result<(), Wrong> {
        let now = self.now(world);
        let in_hand = self.hands.iter().map(|hand| (hand.ticket.stream, hand.ticket.epoch));
        let read = self.readings.iter().map(|(stream, reading)| (*stream, reading.epoch));
        for (stream, epoch) in in_hand.chain(read) {
            if lock(&self.leases).is_valid(Ticket { stream, epoch, number: 0 }, now) {
                self.judge_owner(stream, epoch, world, "its lease is valid")?;
            }
        }
        Ok(())
    }

    fn judge_owner(&self, stream: usize, epoch: u64, world: &World, what: &str) -> Result<(), Wrong> {
        // Another process of its name takes streams from it without its knowledge.
        if world.is_unsure(stream) || self.had_namesake {
            return Ok(());
        }
        match &world.streams[stream].holder {
            Some(holder) if holder.name == self.client.name => Ok(()),
            other => self.wrong(format!("{what} of s{stream} {epoch}, and {other:?} has it")),
        }
    }

    /// The program commits a batch: all of it, or the first `count` entries.
    pub fn commit(&mut self, hand: Hand, count: u64, world: &mut World) {
        let Hand { ticket, first, last } = hand;
        let entries = last + 1 - first;
        let (to, part) = if count < entries {
            let to = first + count - 1;
            (to, Some((place(to, None), last - to)))
        } else {
            (last, None)
        };
        world.trace(|| format!("p{} commits s{} {to} of {}", self.number(), ticket.stream, ticket.epoch));
        let said = world.facts.said.entry((self.number(), ticket.stream, ticket.epoch)).or_default();
        if !world.liar.lies(Lie::CommitMore) {
            *said = to.max(*said);
        }
        lock(&self.leases).commit(ticket, part);
    }

    /// Begins to close.
    pub fn close(&mut self, by: Duration, world: &World) {
        world.trace(|| format!("p{} closes until {by:?}", self.number()));
        self.closes_by = Some(by);
        lock(&self.leases).end(self.clock.at(world.now));
    }

    /// Ends without another word to a server. The connections end first, as those of the keeper's thread do.
    pub fn abandon(&mut self, world: &mut World) {
        self.lines.iter_mut().for_each(|line| line.disconnect(world));
        lock(&self.leases).abandon();
    }

    /// It says that another process uses its name only if that is so.
    pub fn judge_namesake(&self) -> Result<(), Wrong> {
        if lock(&self.leases).has_namesake() && !self.had_namesake {
            return self.wrong("it believes that another process has its name");
        }
        Ok(())
    }

    /// Whether it takes streams.
    pub fn takes(&self) -> bool {
        !self.was_followed && !lock(&self.leases).has_namesake() && self.closes_by.is_none()
    }
}
