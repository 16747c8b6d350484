//! The members of a group, while their servers and connections fail: they start, read, commit, are stopped and killed, close and
//! start again as chance has it, and what they get and report is judged by what was promised. Then nothing fails any more: the
//! streams are shared as they should be within the promised time, and stay so. At last one joins and one leaves.

use std::time::Duration;

use super::super::chance::Chance;
use super::facts::Wrong;
use super::judge::{judge_left, judge_report, owners};
use super::lie::Lie;
use super::line::Weather;
use super::process::Process;
use super::seen::Seen;
use super::world::{Late, World};
use crate::leases::lock;

/// The most processes at the same time.
const MOST: usize = 6;
/// The most rounds of all processes at one moment.
const MOST_ROUNDS: usize = 300;
const BEAT: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

const REFUSALS: [&str; 4] = [
    "NOPERM User x has no permissions to access one of the keys used as arguments",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
];

/// What may happen in an execution besides what always may. After some of it little is promised.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // each is a separate fact
struct Kinds {
    breaks: bool,
    kills: bool,
    stops: bool,
    shares_names: bool,
    goes_away: bool,
    fails_over: bool,
    jumps: bool,
    deletes: bool,
    refuses: bool,
    pins: bool,
    renounces: bool,
    /// Programs ask before they commit whether a batch is still theirs.
    checks: bool,
    /// They say that entries have failed.
    fails: bool,
}

pub struct Program<'a> {
    seen: &'a mut Seen,
    world: World,
    kinds: Kinds,
    begins_after: &'static str,
    processes: Vec<Process>,
    /// The number of processes so far.
    started: usize,
}

impl<'a> Program<'a> {
    pub fn new(seen: &'a mut Seen, lie: Option<Lie>, chance: &mut Chance) -> Self {
        let mut world = World::new(seen.traces, lie, chance);
        let kinds = Kinds {
            breaks: !chance.one_in(4),
            kills: chance.one_in(2),
            stops: chance.one_in(2),
            shares_names: chance.one_in(6),
            goes_away: chance.one_in(3),
            fails_over: chance.one_in(5),
            jumps: chance.one_in(8),
            deletes: chance.one_in(6),
            refuses: chance.one_in(4),
            pins: chance.one_in(20),
            renounces: chance.one_in(6),
            checks: chance.one_in(2),
            fails: chance.one_in(2),
        };
        world.may_fail_over = kinds.fails_over;
        let begins_after = *chance.pick(&["0-0", "0-0", "0-0", "$", "3-0"]);
        Self { seen, world, kinds, begins_after, processes: Vec::new(), started: 0 }
    }

    pub fn run(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let (kinds, lease) = (self.kinds, self.world.lease);
        self.world.trace(|| format!("{kinds:?} {lease:?} {} streams", self.world.streams.len()));
        for _ in 0..1 + chance.below(3) {
            self.start(chance);
        }
        if chance.one_in(2) {
            self.runs_for(self.world.lease, Weather::Calm, chance)?;
        }
        for _ in 0..20 + chance.size(400) {
            self.step(chance)?;
            self.judge()?;
        }
        self.calms_down(chance)?;
        if !self.kinds.pins {
            self.keeps_without_list(chance)?;
            self.joins_and_leaves(chance)?;
        }
        self.ends(chance)?;
        self.seen.executions += 1;
        self.seen.commands += self.world.facts.commands;
        self.seen.takes += self.world.facts.takes;
        Ok(())
    }

    fn judge(&mut self) -> Result<(), Wrong> {
        if let Some(wrong) = self.world.facts.wrong.take() {
            return Err(wrong);
        }
        for process in self.processes.iter().filter(|process| !process.is_stopped) {
            process.judge_beliefs(&self.world)?;
            process.judge_namesake()?;
        }
        Ok(())
    }

    fn step(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let (kinds, lease) = (self.kinds, self.world.lease);
        match chance.below(42) {
            0..=3 => self.adds(chance),
            4..=6 => {
                let waits = [Duration::from_millis(1), Duration::from_millis(15), lease / 10, lease / 3, lease / 2];
                self.passes(*chance.pick(&waits))?;
            }
            7 => self.passes(lease * *chance.pick(&[9, 11, 20]) / 10)?,
            8..=11 => {
                let time = *chance.pick(&[lease / 10, lease / 3, lease, BEAT]);
                let weather = if kinds.breaks && chance.one_in(2) { Weather::Rough } else { Weather::Calm };
                self.runs_for(time, weather, chance)?;
            }
            12..=13 if self.processes.len() < MOST => self.start(chance),
            14 if kinds.kills => self.kill(chance),
            15 => self.close(chance)?,
            16 if kinds.stops => self.stop(chance),
            17..=18 => self.processes.iter_mut().for_each(|process| process.is_stopped = false),
            19 if kinds.breaks => self.breaks(chance),
            20..=22 => self.executes_late(chance),
            23 | 24 => self.changes_servers(chance),
            25..=27 => self.polls(chance)?,
            28..=31 => self.commits(chance)?,
            32 => self.settles(chance)?,
            33 if kinds.renounces => {
                if let Some(at) = self.any(chance) {
                    self.processes[at].renounce(&self.world, chance);
                }
            }
            _ => self.keeps(chance)?,
        }
        Ok(())
    }

    fn any(&self, chance: &mut Chance) -> Option<usize> {
        let running: Vec<usize> = (0..self.processes.len()).filter(|at| !self.processes[*at].is_stopped).collect();
        (!running.is_empty()).then(|| *chance.pick(&running))
    }

    // The servers.

    fn adds(&mut self, chance: &mut Chance) {
        let stream = chance.below(self.world.streams.len());
        self.world.add(stream, 1 + chance.below(6) as u64);
    }

    /// Time passes, and nothing happens.
    fn passes(&mut self, time: Duration) -> Result<(), Wrong> {
        self.world.now += time;
        self.world.trace(|| "time has passed".to_owned());
        self.judge()
    }

    fn changes_servers(&mut self, chance: &mut Chance) {
        let (kinds, world) = (self.kinds, &mut self.world);
        let (node, stream) = (chance.below(world.nodes.len()), chance.below(world.streams.len()));
        match chance.below(8) {
            0 if kinds.goes_away => world.nodes[node].is_away = true,
            1 => world.nodes[node].is_away = false,
            2 if kinds.fails_over => {
                let count = chance.below(12);
                world.fail_over(node, count);
                world.trace(|| format!("n{node} fails over and lacks {count} changes"));
                self.seen.failovers += 1;
                self.processes.iter_mut().for_each(|process| process.disconnect_all(node, world));
                world.lates.retain(|late| late.node != node);
            }
            3 if kinds.jumps => {
                world.jump(node, chance);
                world.trace(|| format!("the clock of n{node} jumps"));
            }
            4 if kinds.deletes => match chance.below(4) {
                0 | 1 => world.delete_lease(stream),
                2 => world.delete_members(node),
                _ => world.destroy_group(stream),
            },
            5 if kinds.refuses => match chance.below(4) {
                0 => world.set_pending(stream, 3),
                1 => world.nodes[node].refusal = None,
                _ => world.nodes[node].refusal = Some(*chance.pick(&REFUSALS)),
            },
            6 if kinds.pins => {
                let name = *chance.pick(&["a", "b", "c"]);
                let name = Some(name.as_bytes()).filter(|_| !chance.one_in(3));
                world.pin(stream, name);
                world.trace(|| format!("s{stream} is pinned to {name:?}"));
            }
            7 => world.nodes[node].scripts.clear(),
            _ => {}
        }
    }

    fn breaks(&mut self, chance: &mut Chance) {
        let Some(at) = self.any(chance) else { return };
        let line = chance.below(self.processes[at].lines());
        self.processes[at].disconnect(line, &mut self.world);
    }

    /// A server executes a command of a connection that has ended.
    fn executes_late(&mut self, chance: &mut Chance) {
        if self.world.lates.is_empty() {
            return;
        }
        let at = chance.below(self.world.lates.len());
        let Late { node, client, words } = self.world.lates.swap_remove(at);
        if chance.one_in(2) {
            self.world.facts.late_takes.insert(client.process);
            self.seen.lates += 1;
            self.world.execute(node, &client, &words);
        }
    }

    // The processes.

    fn start(&mut self, chance: &mut Chance) {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let is_used = |name: &&str| self.processes.iter().any(|process| process.client.name == name.as_bytes());
        let from = chance.below(names.len());
        let mut from = names.iter().cycle().skip(from);
        let name = *if self.kinds.shares_names { from.next() } else { from.find(|name| !is_used(name)) }.unwrap();
        let has_namesake = is_used(&name);
        self.seen.namesakes += u64::from(has_namesake);
        let mut process = Process::new(self.started, name, self.begins_after, &self.world, chance);
        self.world.trace(|| format!("p{} starts as {name}", process.number()));
        process.had_namesake = has_namesake;
        for other in self.processes.iter_mut().filter(|other| other.client.name == name.as_bytes()) {
            (other.had_namesake, other.was_followed) = (true, true);
        }
        // What an earlier process of this name has left would look like another one to it.
        self.world.lates.retain(|late| late.client.name != name.as_bytes());
        self.started += 1;
        self.seen.processes += 1;
        self.processes.push(process);
    }

    fn kill(&mut self, chance: &mut Chance) {
        if self.processes.is_empty() {
            return;
        }
        let at = chance.below(self.processes.len());
        let mut process = self.processes.swap_remove(at);
        self.world.trace(|| format!("p{} is killed", process.number()));
        self.seen.kills += 1;
        process.abandon(&mut self.world);
    }

    fn stop(&mut self, chance: &mut Chance) {
        let Some(at) = self.any(chance) else { return };
        let process = &mut self.processes[at];
        self.world.trace(|| format!("p{} is stopped", process.number()));
        process.is_stopped = true;
        self.seen.stops += 1;
    }

    fn close(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        if self.processes[at].closes_by.is_some() {
            return Ok(());
        }
        let time = *chance.pick(&[Duration::ZERO, Duration::from_millis(20), SECOND, 10 * SECOND]);
        self.processes[at].close(self.world.now + time, &self.world);
        self.end_closed()
    }

    /// Ends the processes that have closed.
    fn end_closed(&mut self) -> Result<(), Wrong> {
        let mut at = 0;
        while at < self.processes.len() {
            let process = &mut self.processes[at];
            let has_ended = lock(&process.leases).has_ended();
            if process.is_stopped || !process.closes_by.is_some_and(|by| has_ended || by <= self.world.now) {
                at += 1;
                continue;
            }
            let mut process = self.processes.swap_remove(at);
            self.world.trace(|| format!("p{} ends, in time: {has_ended}", process.number()));
            let is_alone = self.processes.iter().all(|other| other.client.name != process.client.name);
            // Who may not take a stream that is pinned cannot give it up either.
            let is_sure = is_alone && !self.kinds.pins;
            process.abandon(&mut self.world);
            let report = judge_report(&process, (false, true), &mut self.world)?;
            if has_ended && is_sure && !self.world.facts.late_takes.contains(&process.number()) {
                judge_left(&process, &report, &self.world)?;
                self.seen.closed += 1;
            }
            self.seen.note(&report);
        }
        Ok(())
    }

    fn polls(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let process = &mut self.processes[at];
        if process.closes_by.is_some() {
            return Ok(());
        }
        if chance.one_in(3) {
            process.follow_changes(&self.world);
            return Ok(());
        }
        process.poll(&mut self.world, chance).map(drop)
    }

    /// A program commits or forgets a batch, or says that something of it has failed.
    fn commits(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let is_busy =
            |process: &&mut Process| !process.is_stopped && process.closes_by.is_none() && !process.hands.is_empty();
        let mut busy: Vec<_> = self.processes.iter_mut().filter(is_busy).collect();
        if busy.is_empty() {
            return Ok(());
        }
        let process = busy.swap_remove(chance.below(busy.len()));
        let at = if chance.one_in(3) { chance.below(process.hands.len()) } else { 0 };
        if self.kinds.checks {
            self.seen.checks += 1;
            if !process.check(at, &mut self.world)? {
                self.seen.lapsed += 1;
                return Ok(());
            }
        }
        if self.kinds.fails && chance.one_in(3) {
            return process.fail(at, &mut self.world, chance);
        }
        let hand = process.hands[at];
        let entries = hand.last + 1 - hand.first;
        let count = if chance.one_in(3) { 1 + chance.below(entries as usize) as u64 } else { entries };
        if !chance.one_in(12) {
            process.commit(hand, count, &mut self.world);
        }
        if count == entries && !chance.one_in(6) {
            process.hands.remove(at);
        }
        Ok(())
    }

    /// A program looks at its counts.
    fn settles(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let process = &self.processes[at];
        let is_settled = lock(&process.leases).is_settled() || self.world.liar.lies(Lie::SettledEarly);
        judge_report(process, (is_settled, false), &mut self.world).map(drop)
    }

    fn keeps(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let Some(at) = self.any(chance) else { return Ok(()) };
        let weather = if self.kinds.breaks { Weather::Rough } else { Weather::Calm };
        let line = chance.below(self.processes[at].lines());
        let process = &mut self.processes[at];
        process.keep(line, weather, &mut self.world, chance)?;
        self.end_closed()
    }

    // Time passes, and each process does what it has to.

    fn runs_for(&mut self, time: Duration, weather: Weather, chance: &mut Chance) -> Result<(), Wrong> {
        let until = self.world.now + time;
        loop {
            self.runs_now(weather, chance)?;
            let running = self.processes.iter_mut().filter(|process| !process.is_stopped);
            let left = running.map(|process| process.left(&self.world)).min().unwrap_or(Duration::MAX);
            let left = left.max(Duration::from_millis(1));
            if left >= until.saturating_sub(self.world.now) {
                self.world.now = until;
                return self.judge();
            }
            self.world.now += left;
        }
    }

    /// Lets everything happen that can happen at this moment.
    fn runs_now(&mut self, weather: Weather, chance: &mut Chance) -> Result<(), Wrong> {
        for _ in 0..MOST_ROUNDS {
            let mut has_moved = false;
            let first = chance.below(self.processes.len());
            for turn in 0..self.processes.len() {
                let count = self.processes.len();
                let process = &mut self.processes[(first + turn) % count];
                if process.is_stopped {
                    continue;
                }
                for line in 0..process.lines() {
                    has_moved |= process.keep(line, weather, &mut self.world, chance)?;
                }
                if process.closes_by.is_some() {
                    continue;
                }
                process.follow_changes(&self.world);
                while process.poll(&mut self.world, chance)? {
                    has_moved = true;
                }
                // In rough weather programs are slow.
                while !process.hands.is_empty() && (weather == Weather::Calm || chance.one_in(2)) {
                    if self.kinds.fails && chance.one_in(6) {
                        process.fail(0, &mut self.world, chance)?;
                    } else if !self.kinds.checks || process.check(0, &mut self.world)? {
                        let hand = process.hands.remove(0);
                        process.commit(hand, u64::MAX, &mut self.world);
                        has_moved = true;
                    }
                }
            }
            self.end_closed()?;
            self.judge()?;
            if !has_moved || weather == Weather::Rough {
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }

    // The end.

    /// How long it may take until everything is as it should be: the leases of those that are gone end, and they leave the list.
    fn most(&self) -> Duration {
        // A server's clock may be slow.
        self.world.lease * if self.world.may_drift { 11 } else { 10 } / 10 + self.follows()
    }

    /// How long it may take until all members have learned what has changed, and have done what follows.
    fn follows(&self) -> Duration {
        (BEAT.min(self.world.lease / 4) * 3 + SECOND / 10).min(BEAT + SECOND)
    }

    /// Nothing fails any more.
    fn calms_down(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        self.world.heal();
        self.world.lates.clear();
        self.kinds.fails = false;
        self.world.trace(|| "nothing fails any more".to_owned());
        self.processes.iter_mut().for_each(|process| process.is_stopped = false);
        // What programs have forgotten to commit is committed with the next entry.
        (0..self.world.streams.len()).for_each(|stream| self.world.add(stream, 1));
        if self.kinds.shares_names {
            // Those that began at the same time take streams from each other, until they know that.
            self.runs_for(self.world.lease * 5 / 2, Weather::Calm, chance)?;
        }
        let mut at = 0;
        while at < self.processes.len() {
            // One that another one has followed takes nothing any more.
            if self.processes[at].takes() || self.processes[at].closes_by.is_some() {
                at += 1;
            } else {
                self.processes.swap_remove(at).abandon(&mut self.world);
            }
        }
        self.world.lates.clear();
        self.kinds.shares_names = false;
        while !self.processes.iter().any(Process::takes) {
            self.start(chance);
        }
        // A jump of a clock may let leases last longer.
        let jumped = if self.kinds.jumps { self.world.lease * 22 / 10 } else { Duration::ZERO };
        // What was refused, or renounced, is tried again after a second.
        let refused = if self.kinds.refuses || self.kinds.renounces { SECOND } else { Duration::ZERO };
        self.settles_within(self.most() + jumped + refused, chance)
    }

    /// The streams are shared as they should be after this time, and stay so.
    fn settles_within(&mut self, most: Duration, chance: &mut Chance) -> Result<(), Wrong> {
        self.runs_for(most, Weather::Calm, chance)?;
        // The shares of members leave out what they know to be pinned, which not all of them know.
        if self.kinds.pins {
            return Ok(());
        }
        let (owners_before, takes) = (owners(&self.processes, &self.world)?, self.world.facts.takes);
        let counts = self.world.facts.counts.clone();
        let time = self.world.lease * 12 / 10;
        self.runs_for(time, Weather::Calm, chance)?;
        let after = owners(&self.processes, &self.world)?;
        if after != owners_before || self.world.facts.takes != takes {
            return Err(format!("it goes on to move: {owners_before:?}, {after:?}"));
        }
        self.judge_idle(&counts, time)
    }

    /// Nothing happens, and the members say no more than they have to.
    fn judge_idle(&self, before: &std::collections::BTreeMap<usize, [u64; 3]>, time: Duration) -> Result<(), Wrong> {
        let beat = BEAT.min(self.world.lease / 4);
        for process in &self.processes {
            let counts = self.world.facts.counts[&process.number()];
            let before = before.get(&process.number()).copied().unwrap_or_default();
            let owned = lock(&process.leases).assignment().count() as u128;
            let times = |every: Duration| (time.as_micros() * 105 / 100).div_ceil(every.as_micros()) + 1;
            let most = [times(beat), owned * times(self.world.lease / 3), 0];
            for ((count, before), most) in counts.iter().zip(before).zip(most) {
                if u128::from(count - before) > most {
                    return Err(format!("p{} sends {counts:?}, before {before:?}, at most {most}", process.number()));
                }
            }
        }
        Ok(())
    }

    /// The server that has the list of members is away: all owners keep what they own on the others.
    fn keeps_without_list(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        let (home, lease) = (self.world.places[0], self.world.lease);
        if self.world.nodes.len() == 1 || chance.one_in(2) {
            return Ok(());
        }
        let kept = |this: &Self| -> Vec<Vec<usize>> {
            let is_kept = |stream: &usize| this.world.places[*stream] != home;
            let of = |process: &Process| lock(&process.leases).assignment().filter(is_kept).collect();
            this.processes.iter().map(of).collect()
        };
        let (before, takes) = (kept(self), self.world.facts.takes);
        self.world.nodes[home].is_away = true;
        self.runs_for(lease * 3, Weather::Calm, chance)?;
        let after = kept(self);
        if after != before || self.world.facts.takes != takes {
            return Err(format!("without the list, the members that had {before:?} have {after:?}"));
        }
        self.world.nodes[home].is_away = false;
        self.settles_within(self.most(), chance)
    }

    /// One more member comes, and one leaves: only what they get or had moves, and one stream.
    fn joins_and_leaves(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        self.kinds.shares_names = false;
        let (streams, before) = (self.world.streams.len(), self.processes.len());
        self.start(chance);
        let takes = self.world.facts.takes;
        self.settles_within(self.follows(), chance)?;
        let moves = self.world.facts.takes - takes;
        let gets = lock(&self.processes[before].leases).assignment().count() as u64;
        self.seen.joins += 1;
        self.seen.moves += moves;
        if moves > gets + 1 {
            return Err(format!("{moves} of {streams} streams move, and the newcomer gets {gets}"));
        }
        if self.processes.len() > 1 {
            let at = chance.below(self.processes.len());
            let had = lock(&self.processes[at].leases).assignment().count() as u64;
            let takes = self.world.facts.takes;
            if chance.one_in(3) {
                self.processes.swap_remove(at).abandon(&mut self.world);
                self.settles_within(self.most(), chance)?;
            } else {
                self.processes[at].close(self.world.now + 10 * SECOND, &self.world);
                self.settles_within(self.follows(), chance)?;
            }
            let moves = self.world.facts.takes - takes;
            if moves > had + 1 {
                return Err(format!("{moves} of {streams} streams move, and the one that left had {had}"));
            }
        }
        Ok(())
    }

    /// All close, and have time for that.
    fn ends(&mut self, chance: &mut Chance) -> Result<(), Wrong> {
        for process in &mut self.processes {
            let is_settled = lock(&process.leases).is_settled();
            judge_report(process, (is_settled, false), &mut self.world)?;
            if process.closes_by.is_none() {
                process.close(self.world.now + 10 * SECOND, &self.world);
            }
        }
        self.runs_for(11 * SECOND, Weather::Calm, chance)?;
        if let Some(process) = self.processes.first() {
            return Err(format!("p{} does not end", process.number()));
        }
        Ok(())
    }
}
