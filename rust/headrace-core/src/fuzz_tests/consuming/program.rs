//! The processes of a group, while its streams change: they start, read, decide, crash and close as chance has it, and what they
//! get and report is judged by what was promised.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::chance::Chance;
use super::super::changes::{Change, Changes, heal, shown};
use super::super::history::History;
use super::super::liar::Liar;
use super::facts::{Facts, Wrong};
use super::judge::{judge_batch, judge_end, judge_entry, judge_lease, judge_report, report};
use super::lie::Lie;
use super::options::Options;
use super::process::{Closing, Late, Process, Single, Weather};
use super::seen::Seen;
use super::server::answer;
use super::world::{Burial, Version, World};
use crate::error::Error;
use crate::resp::entry_id;

/// The most rounds until everything was processed, once nothing happens any more.
const MOST_ROUNDS: usize = 400;
/// The most processes at the same time.
const MOST: usize = 3;

/// What may happen in an execution besides what always may. After some of it little is promised.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // each is a separate fact
struct Kinds {
    forgets: bool,
    shares_names: bool,
    robs: bool,
    destroys: bool,
    loads: bool,
    refuses_letters: bool,
    may_kill: bool,
    fails: bool,
    crashes: bool,
}

pub struct Program<'a> {
    seen: &'a mut Seen,
    world: World,
    changes: Changes,
    liar: Liar<Lie>,
    kinds: Kinds,
    options: Options,
    processes: Vec<Process>,
    lates: Vec<Late>,
    /// The number of processes so far.
    started: usize,
}

impl<'a> Program<'a> {
    pub fn new(seen: &'a mut Seen, lie: Option<Lie>, chance: &mut Chance) -> Self {
        let keys = *chance.pick(&[1, 1, 1, 2, 2, 3]);
        let options = Options::new(chance);
        let has_bad = chance.one_in(4);
        let may = |change| !matches!(change, Change::RollBack);
        let changes = Changes::new(false, has_bad, may, chance);
        let mut history = History::new(keys);
        for _ in 0..chance.below(2 * keys + 1) {
            changes.change(&mut history, chance);
        }
        let version = *chance.pick(&[Version::Redis62, Version::Redis70, Version::Redis82]);
        let kinds = Kinds {
            forgets: chance.one_in(6),
            shares_names: chance.one_in(8),
            robs: chance.one_in(8),
            destroys: chance.one_in(8),
            loads: chance.one_in(5),
            refuses_letters: chance.one_in(4),
            may_kill: !chance.one_in(5),
            fails: chance.one_in(2),
            crashes: chance.one_in(2),
        };
        let mut world = World::new(history, version, chance.one_in(6));
        world.traces = seen.traces;
        Self {
            seen,
            world,
            changes,
            liar: Liar::new(lie, Chance::new(chance.next(), 0)),
            kinds,
            options,
            processes: Vec::new(),
            lates: Vec::new(),
            started: 0,
        }
    }

    pub fn run(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        self.seen.trace(|| format!("{:?} {:?} {:?}", self.kinds, self.options, self.world.version));
        for _ in 0..1 + chance.below(MOST) {
            self.start(chance);
        }
        for _ in 0..20 + chance.size(400) {
            self.step(chance)?;
            self.check_world()?;
            self.check_leases()?;
        }
        self.drain(chance)?;
        self.seen.executions += 1;
        Ok(())
    }

    fn check_world(&mut self) -> Result<(), Wrong> {
        self.world.facts.wrong.take().map_or(Ok(()), Err)
    }

    fn step(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        match chance.below(48) {
            0..=5 => self.change(chance),
            6..=9 => self.wait(chance),
            10..=13 => self.decide(chance),
            14..=16 if self.processes.len() < MOST => self.start(chance),
            17 if self.kinds.crashes && chance.one_in(3) => self.crash(chance)?,
            18 if chance.one_in(2) => self.close(chance),
            19 => self.administer(chance),
            20 => self.execute_late(chance),
            21 if chance.one_in(6) => self.drop_stream(chance)?,
            22 => self.processes.iter_mut().for_each(|process| process.bare.try_again()),
            23..=30 => return self.poll(chance),
            31..=36 => return self.keep(chance),
            _ => return self.pass(chance),
        }
        Ok(())
    }

    fn any(&self, chance: &mut Chance) -> Option<usize> {
        (!self.processes.is_empty()).then(|| chance.below(self.processes.len()))
    }

    // The streams and the servers.

    fn change(&mut self, chance: &mut Chance) {
        let what = self.changes.change(&mut self.world.history, chance);
        self.world.disturb_namesakes();
        self.seen.trace(|| format!("{} {}", self.world.history.clock, shown(&self.world.history, what)));
        self.seen.changes += 1;
    }

    fn wait(&mut self, chance: &mut Chance) {
        let idle = self.options.min_idle;
        let waits = [Duration::from_millis(1), Duration::from_millis(6), idle / 10, idle / 4, idle / 3, idle / 2, idle];
        self.world.now += *chance.pick(&waits);
        let now = self.world.now;
        self.seen.trace(|| format!("it is {now:?}"));
        self.lates.retain(|late| late.until >= now);
    }

    fn administer(&mut self, chance: &mut Chance) {
        let key = chance.below(self.world.history.keys.len());
        match chance.below(6) {
            0 if self.kinds.forgets => {
                let forgot = self.world.facts.forgot;
                self.world.restart(chance.below(8));
                self.seen.restarts += u64::from(self.world.facts.forgot && !forgot);
                self.cut_all();
                self.lates.clear();
            }
            1 if self.kinds.robs => match chance.below(3) {
                0 => self.world.rob(key, b"robber", chance.below(4)),
                1 => self.world.set_position(key, chance.below(12)),
                _ => self.world.delete_consumer(format!("c{}", chance.below(MOST)).as_bytes()),
            },
            2 if self.kinds.destroys => {
                self.world.destroy(key);
                if chance.one_in(2) {
                    self.world.create(key, chance.one_in(4));
                }
            }
            3 if self.kinds.loads => {
                self.world.loads = !self.world.loads;
            }
            4 if self.kinds.refuses_letters => {
                self.world.burial = *chance.pick(&[Burial::Accepted, Burial::WrongType, Burial::NoMemory]);
            }
            5 if chance.one_in(4) => {
                self.world.scripts.clear();
            }
            _ => {}
        }
        self.seen.trace(|| format!("the server: {:?} loads: {}", self.world.burial, self.world.loads));
    }

    fn cut_all(&mut self) {
        for process in &mut self.processes {
            for line in 0..process.lines.len() {
                process.disconnect(line, false, &self.world, &mut self.lates);
                process.disconnect(line, true, &self.world, &mut self.lates);
            }
        }
    }

    /// A server executes a command of a connection that has ended.
    fn execute_late(&mut self, chance: &mut Chance) {
        if self.lates.is_empty() || self.world.loads {
            return;
        }
        let at = chance.below(self.lates.len());
        let late = &mut self.lates[at];
        if let Some(words) = late.commands.pop_front() {
            self.seen.trace(|| format!("late: {}", words[0].escape_ascii()));
            answer(&mut self.world, &mut late.client, &words, true, &mut self.liar);
            self.world.facts.ended(late.client.process);
        }
        if late.commands.is_empty() {
            self.lates.remove(at);
        }
    }

    // Processes.

    fn start(&mut self, chance: &mut Chance) {
        let names: Vec<String> = (0..MOST).map(|name| format!("c{name}")).collect();
        let is_free = |name: &&String| self.processes.iter().all(|process| process.name != name.as_bytes());
        let free: Vec<&String> = names.iter().filter(is_free).collect();
        let name = if self.kinds.shares_names || free.is_empty() { chance.pick(&names) } else { *chance.pick(&free) };
        let options = self.options.another(chance);
        let keys = self.world.history.keys.len();
        let size = if chance.one_in(3) { 1 } else { keys };
        self.begin(name, options, size, chance);
    }

    fn begin(&mut self, name: &str, options: Options, size: usize, chance: &mut Chance) {
        let keys: Vec<usize> = (0..self.world.history.keys.len()).collect();
        let is_latest = chance.one_in(5);
        // The constructor fails if a stream is refused.
        if !keys.iter().all(|key| self.world.create(*key, is_latest)) {
            return;
        }
        if self.processes.iter().any(|process| process.name == name.as_bytes()) {
            self.world.facts.shared_names.insert(name.as_bytes().to_vec());
        }
        let lines = keys.chunks(size).map(<[usize]>::to_vec).collect();
        self.seen.trace(|| format!("process {} begins as {name}: {options:?} {lines:?}", self.started));
        self.processes.push(Process::new(self.started, name, lines, options, &self.world));
        self.started += 1;
        self.seen.processes += 1;
    }

    fn crash(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let process = self.processes.remove(at);
        self.seen.trace(|| format!("process {} crashes", process.number));
        self.seen.crashes += 1;
        self.judge(&process, false)?;
        process.end(&mut self.world, &mut self.lates);
        Ok(())
    }

    fn judge(&mut self, process: &Process, is_last: bool) -> Result<(), Wrong> {
        // One that is closed keeps what it has read until it gives that back.
        let is_open = !is_last && process.closing.is_none();
        let is_settled =
            is_open && process.bare.is_settled() && process.bare.unconfirmed() == 0 && !process.bare.is_ready();
        let report = report(process, &mut self.liar);
        judge_report(process, &report, is_settled, &self.world)?;
        self.seen.note(&report);
        Ok(())
    }

    fn drop_stream(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let process = &mut self.processes[at];
        let key = chance.below(self.world.history.keys.len());
        let Some((line, stream)) = process.line_of(key).filter(|_| process.closing.is_none()) else { return Ok(()) };
        process.bare.set_now(self.world.now);
        if process.bare.drop_stream(line, stream) != process.dropped.insert(key) {
            return Err(format!("process {}, s{key}: it was not dropped, or twice", process.number));
        }
        Ok(())
    }

    // Passes.

    fn pass(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let weather = if chance.one_in(4) { Weather::Calm } else { Weather::Rough };
        let line = chance.below(self.processes[at].lines.len());
        self.pass_of(at, line, weather, chance)?;
        Ok(())
    }

    fn pass_of(&mut self, at: usize, line: usize, weather: Weather, chance: &mut Chance) -> Result<bool, Wrong> {
        self.seen.passes += 1;
        let Self { processes, world, lates, liar, kinds, .. } = self;
        let process = &mut processes[at];
        let asks = process.closing.is_none();
        let has_moved = process.pass(line, (asks, kinds.may_kill, weather), world, (&mut *lates, liar), chance)?;
        self.check_world()?;
        self.go_on_closing(at, weather == Weather::Rough && chance.one_in(12))?;
        Ok(has_moved)
    }

    fn keep(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let line = chance.below(self.processes[at].lines.len());
        let weather = if chance.one_in(4) { Weather::Calm } else { Weather::Rough };
        self.keep_of(at, line, weather, chance)?;
        Ok(())
    }

    fn keep_of(&mut self, at: usize, line: usize, weather: Weather, chance: &mut Chance) -> Result<bool, Wrong> {
        let Self { processes, world, lates, liar, .. } = self;
        processes[at].keep(line, weather, world, (&mut *lates, liar), chance)
    }

    // Closing.

    fn close(&mut self, chance: &mut Chance) {
        let Some(at) = self.any(chance) else { return };
        let process = &mut self.processes[at];
        if process.closing.is_none() {
            self.seen.trace(|| format!("process {} closes", process.number));
            process.bare.closes();
            process.closing = Some(Closing::Drains);
        }
    }

    /// The next steps of a consumer that is closed, as `Consumer::settle` does them. `gives_up`: its time is over.
    fn go_on_closing(&mut self, at: usize, gives_up: bool) -> Result<(), Wrong> {
        let process = &mut self.processes[at];
        let lines = process.lines.len();
        match process.closing {
            None => return Ok(()),
            Some(Closing::Drains) => {
                let awaits = (0..lines).any(|line| process.awaits_reply(line));
                if awaits && !gives_up {
                    return Ok(());
                }
                for line in 0..lines {
                    if process.bare.blocks(line) {
                        process.disconnect(line, false, &self.world, &mut self.lates);
                    }
                }
                process.closing = Some(Closing::Settles);
            }
            Some(Closing::Settles) => {
                let is_busy = !process.bare.is_settled() || (0..lines).any(|line| process.awaits_reply(line));
                if is_busy && !gives_up {
                    return Ok(());
                }
                let has_namesake = self.world.facts.shared_names.contains(&process.name);
                let process = &mut self.processes[at];
                if gives_up || has_namesake {
                    process.closing = Some(Closing::Over);
                } else {
                    let undecided = process.undecided();
                    process.bare.set_now(self.world.now);
                    (0..lines).for_each(|line| process.bare.give_back(line, process.may_come_late));
                    process.decided += undecided;
                    process.hands.clear();
                    process.singles.clear();
                    process.closing = Some(Closing::GivesBack);
                }
            }
            Some(Closing::GivesBack) => {
                if process.bare.is_settled() || gives_up {
                    let is_given = process.bare.is_settled();
                    process.closing = Some(Closing::Over);
                    if is_given {
                        self.check_given_back(at)?;
                    }
                }
            }
            Some(Closing::Over) => {}
        }
        if self.processes[at].closing == Some(Closing::Over) {
            let process = self.processes.remove(at);
            process.bare.give_up();
            self.seen.trace(|| format!("process {} is closed: {:?}", process.number, process.bare.report()));
            self.seen.closed += 1;
            self.judge(&process, true)?;
            process.end(&mut self.world, &mut self.lates);
        }
        Ok(())
    }

    /// What a consumer has given back can be claimed at once.
    fn check_given_back(&self, at: usize) -> Result<(), Wrong> {
        let process = &self.processes[at];
        let idle = process.options.min_idle.as_millis() as i64;
        for key in process.lines.iter().flatten().filter(|key| !process.dropped.contains(key)) {
            let is_accepted = self.world.history.keys[*key].forbidden.is_empty();
            let Some(group) = self.world.group(*key).filter(|_| is_accepted && process.lost == 0) else { continue };
            for (id, pending) in group.pending.iter().filter(|(_, pending)| pending.consumer == process.name) {
                let number = self.world.number(*key, *id);
                // Those with a delay, by the program's own decision.
                let is_due = self.world.millis() - pending.delivered >= idle / 2 || pending.deliveries > 20;
                let is_own = self.world.facts.delivered.contains_key(&(process.number, number))
                    && !self.world.facts.renewed_late.contains(&number);
                if !is_due && is_own && self.world.facts.is_certain(number, &process.name) {
                    return Err(format!("process {} is closed, and s{key} {id} is {pending:?}", process.number));
                }
            }
        }
        Ok(())
    }

    // What a program does.

    fn poll(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        self.poll_of(at, chance).map(|_| ())
    }

    /// Takes a batch. Returns whether there was any result.
    fn poll_of(&mut self, at: usize, chance: &mut Chance) -> Result<bool, Wrong> {
        let Self { processes, world, liar, seen, .. } = self;
        let process = &mut processes[at];
        if process.closing.is_some() {
            return Ok(false);
        }
        process.bare.set_now(world.now);
        process.bare.call_begins();
        if let Some(error) = process.bare.take_error() {
            seen.errors += 1;
            process.errors += 1;
            seen.trace(|| format!("process {}: {error}", process.number));
            return Ok(true);
        }
        let Some((line, reads_ahead, batch)) = process.bare.take() else { return Ok(false) };
        if reads_ahead {
            process.read_ahead(line, chance);
        }
        match batch {
            Ok(batch) => {
                seen.batches += 1;
                seen.entries += batch.ids().len() as u64;
                seen.trace(|| {
                    let (number, key) = (process.number, batch.stream().escape_ascii());
                    format!("process {number} gets {key} {:?}", batch.ids())
                });
                if liar.lies(Lie::SkipBatch) {
                    return Ok(true);
                }
                let again = liar.lies(Lie::RepeatBatch).then(|| batch.clone());
                judge_batch(process, batch, world, liar)?;
                again.map_or(Ok(()), |batch| judge_batch(process, batch, world, liar))?;
            }
            Err(Error::Field { stream, entry_id: id, .. }) => {
                let (key, id) = (world.history.key(&stream), entry_id(id.as_bytes()).ok_or("no ID")?);
                seen.trace(|| format!("process {} gets s{key} {id}, which does not fit", process.number));
                let lives = world.history.keys[key].lives.iter().rev();
                let Some(number) =
                    lives.filter_map(|life| life.find(id)).find(|entry| entry.is_bad).map(|entry| entry.number)
                else {
                    return Err(format!("process {}, s{key} {id}: an entry was refused that fits", process.number));
                };
                judge_entry(process, key, (id, number), world)?;
                if liar.lies(Lie::SwallowError) {
                    return Ok(true);
                }
                if let Some((line, stream)) = process.line_of(key) {
                    process.singles.push(Single { line, stream, id, number });
                }
            }
            Err(Error::GroupMissing { .. } | Error::StreamRefused { .. }) => seen.errors += 1,
            Err(error) => return Err(format!("process {}: {error}", process.number)),
        }
        Ok(true)
    }

    fn decide(&mut self, chance: &mut Chance) {
        let Some(at) = self.any(chance) else { return };
        let process = &self.processes[at];
        if process.closing.is_some() {
            return;
        }
        if !process.singles.is_empty() && chance.one_in(2) {
            let nth = chance.below(process.singles.len());
            let how = if self.kinds.fails { chance.below(4) } else { 0 };
            return self.decide_single(at, nth, how);
        }
        if process.hands.is_empty() {
            return;
        }
        let nth = chance.below(process.hands.len());
        let how = if self.kinds.fails { chance.below(8) } else { 0 };
        let every = if chance.one_in(3) { 2 } else { 1 };
        self.decide_batch(at, nth, how, every, chance);
    }

    /// Decides on every so-manieth row that the program has not decided on.
    fn decide_batch(&mut self, at: usize, nth: usize, how: usize, every: usize, chance: &mut Chance) {
        let Self { processes, world, .. } = self;
        let process = &mut processes[at];
        process.bare.set_now(world.now);
        let hand = &mut process.hands[nth];
        let mask: Vec<bool> = (0..hand.batch.ids().len())
            .map(|row| hand.undecided.get(row).copied().unwrap_or(false) && (every == 1 || chance.one_in(every)))
            .collect();
        let rows: Vec<(usize, u64)> = hand
            .rows
            .iter()
            .enumerate()
            .filter(|(row, _)| mask[*row])
            .map(|(row, (_, number))| (row, *number))
            .collect();
        process.decided += rows.len() as u64;
        for (row, _) in &rows {
            hand.undecided[*row] = false;
        }
        match how {
            6 => {
                for (_, number) in &rows {
                    Facts::count(&mut world.facts.failures, *number);
                }
                let delay = *chance.pick(&[None, Some(Duration::ZERO), Some(process.options.min_idle)]);
                process.bare.fail(&hand.batch, Some(&mask), delay);
            }
            7 => {
                let delay = *chance.pick(&[Duration::ZERO, process.options.min_idle / 2]);
                process.bare.release(&hand.batch, Some(&mask), delay);
            }
            _ => {
                for (row, number) in &rows {
                    process.settled.insert(*number, hand.moves[*row]);
                    Facts::count(&mut process.said, *number);
                    world.facts.said.insert((process.number, *number));
                }
                process.bare.ack(&hand.batch, Some(&mask));
            }
        }
        self.seen.trace(|| format!("process {} decides {how} on {mask:?} of {:?}", process.number, hand.batch.ids()));
        if !hand.undecided.contains(&true) {
            let hand = process.hands.remove(nth);
            process.past.0.push(hand);
        }
    }

    fn decide_single(&mut self, at: usize, nth: usize, how: usize) {
        let Self { processes, world, .. } = self;
        let process = &mut processes[at];
        process.bare.set_now(world.now);
        let single = process.singles.remove(nth);
        process.past.1.push(single);
        let Single { line, stream, id, number } = single;
        let has_it = match how {
            2 => {
                Facts::count(&mut world.facts.failures, number);
                process.bare.fail_id(line, stream, id)
            }
            3 => process.bare.release_id(line, stream, id),
            _ => {
                Facts::count(&mut process.said, number);
                world.facts.said.insert((process.number, number));
                process.bare.ack_id(line, stream, id);
                true
            }
        };
        process.decided += u64::from(has_it);
        self.seen.trace(|| format!("process {} decides {how} on {id}: {has_it}", process.number));
    }

    fn check_leases(&mut self) -> Result<(), Wrong> {
        let Self { processes, world, liar, seen, .. } = self;
        for process in processes {
            process.bare.set_now(world.now);
            for hand in &process.hands {
                seen.checks += 1;
                if process.bare.check(&hand.batch).is_ok() || liar.lies(Lie::CheckYes) {
                    judge_lease(process, hand, world)?;
                } else {
                    seen.lost_leases += 1;
                }
            }
        }
        Ok(())
    }

    // The end.

    /// Nothing happens any more: everything is processed.
    fn drain(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        self.seen.trace(|| "nothing happens any more".to_owned());
        self.world.loads = false;
        (self.world.burial, self.world.has_others) = (Burial::Accepted, false);
        for key in 0..self.world.history.keys.len() {
            heal(&mut self.world.history, key);
        }
        while !self.lates.is_empty() {
            self.execute_late(chance);
        }
        self.check_world()?;
        // A consumer creates a group only when it first connects, and one that claims nothing leaves what others had.
        let keys = self.world.history.keys.len();
        let is_whole = (0..keys).all(|key| self.world.group(key).is_some());
        let is_able = |process: &&Process| {
            process.options.claims && process.options.acks && process.closing.is_none() && process.dropped.is_empty()
        };
        if !is_whole || chance.one_in(2) || self.processes.iter().find(is_able).is_none() {
            let options = Options { claims: true, renews: true, ..self.options.another(chance) };
            self.begin("last", options, keys, chance);
        }
        let mut idle = 0;
        for _ in 0..MOST_ROUNDS {
            self.world.now += self.options.min_idle / 5;
            let mut has_moved = false;
            let numbers: BTreeSet<usize> = self.processes.iter().map(|process| process.number).collect();
            for number in numbers {
                has_moved |= self.drain_process(number, chance)?;
            }
            self.check_world()?;
            idle = if has_moved || !self.is_done() { 0 } else { idle + 1 };
            if idle > 1 {
                break;
            }
        }
        if !self.is_done() {
            self.processes.iter().for_each(|process| self.seen.trace(|| format!("{:?}", process.bare)));
            let left: Vec<_> = (0..keys)
                .map(|key| {
                    (self.world.group(key), self.world.history.now(key).map(|life| life.last(self.world.history.clock)))
                })
                .collect();
            return Err(format!("entries wait for ever: {left:?}"));
        }
        while let Some(process) = self.processes.pop() {
            if !process.bare.is_settled() || process.bare.unconfirmed() > 0 {
                return Err(format!("process {} has decisions that it does not send", process.number));
            }
            self.judge(&process, false)?;
        }
        judge_end(&self.world)
    }

    fn drain_process(&mut self, number: usize, chance: &mut Chance) -> Result<bool, Wrong> {
        let mut has_moved = false;
        for _ in 0..30 {
            let mut moves = false;
            let at = |program: &Self| program.processes.iter().position(|process| process.number == number);
            let Some(here) = at(self) else { return Ok(true) };
            self.processes[here].bare.try_again();
            for line in 0..self.processes[here].lines.len() {
                moves |= self.keep_of(here, line, Weather::Calm, chance)?;
                moves |= self.pass_of(here, line, Weather::Calm, chance)?;
                if at(self) != Some(here) {
                    return Ok(true);
                }
            }
            while self.poll_of(here, chance)? {
                moves = true;
                has_moved = true;
            }
            self.check_leases()?;
            while !self.processes[here].hands.is_empty() {
                self.decide_batch(here, 0, 0, 1, chance);
            }
            while !self.processes[here].singles.is_empty() {
                self.decide_single(here, 0, 0);
            }
            self.decide_again(here);
            if !moves {
                break;
            }
        }
        Ok(has_moved)
    }

    /// A server may have refused some of the decisions.
    fn decide_again(&mut self, at: usize) {
        let Self { processes, world, .. } = self;
        let process = &mut processes[at];
        if process.errors == process.redone || process.closing.is_some() || !process.bare.is_settled() {
            return;
        }
        process.redone = process.errors;
        let (hands, singles) = &process.past;
        let rows = hands.iter().flat_map(|hand| &hand.rows).map(|(_, number)| *number);
        for number in rows.chain(singles.iter().map(|single| single.number)) {
            Facts::count(&mut process.said, number);
            world.facts.said.insert((process.number, number));
        }
        for hand in hands {
            process.bare.ack(&hand.batch, None);
        }
        for single in singles {
            process.bare.ack_id(single.line, single.stream, single.id);
        }
    }

    /// Whether nothing is pending, and nothing is left to deliver.
    fn is_done(&self) -> bool {
        let is_quiet = |process: &Process| process.closing.is_none() && process.bare.is_settled();
        let is_empty = |key: usize| {
            let (Some(group), Some(life)) = (self.world.group(key), self.world.history.now(key)) else { return true };
            group.pending.is_empty() && life.present(self.world.history.clock).all(|entry| entry.id <= group.last)
        };
        self.processes.iter().all(is_quiet) && (0..self.world.history.keys.len()).all(is_empty)
    }
}
