//! A process with one consumer: its sessions as `consumer/drive.rs`, `consumer/line.rs` and the keeper's thread move them, with
//! connections to the model of a server in place of sockets; and what its program has in hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::super::chance::Chance;
use super::super::liar::Liar;
use super::super::wire::Wire;
use super::facts::Wrong;
use super::lie::Lie;
use super::options::Options;
use super::server::{Client, Said, answer};
use super::world::World;
use crate::consumer::{Bare, ConsumerBatch};
use crate::resp::EntryId;

/// A batch, of which the program has yet to decide on some rows.
#[derive(Debug)]
pub struct Hand {
    pub batch: ConsumerBatch,
    pub key: usize,
    pub rows: Vec<(EntryId, u64)>,
    pub undecided: Vec<bool>,
    /// How often each entry had gone from one consumer to another.
    pub moves: Vec<u64>,
}

/// An entry that did not fit its columns.
#[derive(Debug, Clone, Copy)]
pub struct Single {
    pub line: usize,
    pub stream: usize,
    pub id: EntryId,
    pub number: u64,
}

/// Commands of a connection that has ended, which the server may execute all the same.
#[derive(Debug)]
pub struct Late {
    pub client: Client,
    pub line: usize,
    pub commands: VecDeque<Vec<Vec<u8>>>,
    pub until: Duration,
}

/// How far a consumer is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It receives what is on its way.
    Drains,
    /// It sends the decisions.
    Settles,
    /// It gives everything else back.
    GivesBack,
    Over,
}

/// What happens to a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Bytes arrive as they like, and connections break.
    Rough,
    /// Everything arrives; nothing is waited for in vain.
    Calm,
}

#[derive(Debug)]
pub struct Process {
    pub number: usize,
    pub name: Vec<u8>,
    pub options: Options,
    pub bare: Bare,
    /// The streams of each line.
    pub lines: Vec<Vec<usize>>,
    /// Of each line: the connection that reads, and the keeper's.
    wires: Vec<[Wire<Client, Said>; 2]>,
    pub hands: Vec<Hand>,
    pub singles: Vec<Single>,
    /// What the program has decided on: again, once a server has refused something.
    pub past: (Vec<Hand>, Vec<Single>),
    /// The refusals that the program has got, and those after which it has decided again.
    pub errors: u64,
    pub redone: u64,
    /// The refusals that have arrived.
    pub refusals: u64,
    pub closing: Option<Closing>,
    /// Entries of batches that were taken.
    pub handed: u64,
    /// Rows and single entries that the program has decided on.
    pub decided: u64,
    /// Of those acknowledged, each with its number: how often.
    pub said: BTreeMap<u64, u64>,
    /// The acknowledgements whose reply has arrived.
    pub heard: BTreeSet<u64>,
    /// The deleted entries that a reply has named as no longer pending.
    pub told: BTreeSet<u64>,
    /// The dead letters whose reply has arrived.
    pub buried: u64,
    /// The entries that the program has acknowledged in batches: how often each had gone to another consumer when it was given
    /// out.
    pub settled: BTreeMap<u64, u64>,
    /// The connections that it has lost.
    pub lost: u64,
    pub may_come_late: bool,
    /// The last new entry of each stream, in the life of the stream with this number.
    pub newest: BTreeMap<(usize, usize), EntryId>,
    pub dropped: BTreeSet<usize>,
}

impl Process {
    pub fn new(number: usize, name: &str, lines: Vec<Vec<usize>>, options: Options, world: &World) -> Self {
        let keys = |line: &Vec<usize>| line.iter().map(|key| &*world.history.keys[*key].name).collect::<Vec<_>>();
        let groups: Vec<Vec<&[u8]>> = lines.iter().map(keys).collect();
        let bare = Bare::new(&groups, &options.consumer(name), world.epoch, world.now);
        let client = |keeps| Client {
            process: number,
            name: name.as_bytes().to_vec(),
            keeps,
            rules: options.rules(),
            looked: BTreeSet::new(),
        };
        Self {
            number,
            name: name.as_bytes().to_vec(),
            bare,
            wires: lines.iter().map(|_| [false, true].map(|keeps| Wire::new(false, client(keeps)))).collect(),
            lines,
            options,
            hands: Vec::new(),
            singles: Vec::new(),
            past: (Vec::new(), Vec::new()),
            errors: 0,
            redone: 0,
            refusals: 0,
            closing: None,
            handed: 0,
            decided: 0,
            said: BTreeMap::new(),
            heard: BTreeSet::new(),
            told: BTreeSet::new(),
            buried: 0,
            settled: BTreeMap::new(),
            lost: 0,
            may_come_late: false,
            newest: BTreeMap::new(),
            dropped: BTreeSet::new(),
        }
    }

    fn wire(&mut self, line: usize, keeps: bool) -> &mut Wire<Client, Said> {
        &mut self.wires[line][usize::from(keeps)]
    }

    /// Connects. The connection before it was ended, if the server lets clients be ended: its late commands are lost.
    fn connect(&mut self, line: usize, keeps: bool, world: &World, lates: &mut Vec<Late>, may_kill: bool) {
        let number = self.number;
        let is_of_line = |late: &Late| late.client.process == number && late.line == line && !late.client.keeps;
        if !keeps && may_kill {
            lates.retain(|late| !is_of_line(late));
        }
        self.may_come_late |= !keeps && lates.iter().any(is_of_line);
        self.bare.set_now(world.now);
        self.bare.disconnected(line, keeps);
        let wire = self.wire(line, keeps);
        wire.is_open = true;
        wire.server.looked.clear();
    }

    pub fn disconnect(&mut self, line: usize, keeps: bool, world: &World, lates: &mut Vec<Late>) {
        if !self.wire(line, keeps).is_open {
            return;
        }
        self.lost += 1;
        self.bare.set_now(world.now);
        self.bare.disconnected(line, keeps);
        let until = world.now + self.options.min_idle * 4 / 5;
        let wire = self.wire(line, keeps);
        let client = wire.server.clone();
        let ended = std::mem::replace(wire, Wire::new(false, client.clone()));
        let commands = ended.into_commands();
        if !commands.is_empty() {
            lates.push(Late { client, line, commands, until });
        }
    }

    /// The process ends.
    pub fn end(mut self, world: &mut World, lates: &mut Vec<Late>) {
        world.facts.ended(self.number);
        for line in 0..self.lines.len() {
            for keeps in [false, true] {
                self.disconnect(line, keeps, world, lates);
            }
        }
    }

    fn send(&mut self, line: usize, keeps: bool, weather: Weather, chance: &mut Chance) -> bool {
        let (_, buffers) = self.bare.connection(line, keeps);
        let unsent = buffers.unsent().to_vec();
        let is_cut = weather == Weather::Rough && chance.one_in(3);
        let count = if is_cut { chance.below(unsent.len() + 1) } else { unsent.len() };
        buffers.sent(count);
        self.wire(line, keeps).send(&unsent[..count]);
        count > 0
    }

    /// Returns whether anything arrived or was read.
    fn receive(
        &mut self,
        (line, keeps): (usize, bool),
        weather: Weather,
        world: &mut World,
        lates: &mut Vec<Late>,
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        let (session, buffers) = self.bare.connection(line, keeps);
        let goes_on = buffers.is_suspended();
        let wire = &mut self.wires[line][usize::from(keeps)];
        if !wire.is_open || (!goes_on && !wire.has_replies()) {
            return Ok(false);
        }
        let piece = if weather == Weather::Rough { wire.piece(chance) } else { usize::MAX };
        let (count, arrived) = if goes_on { (0, Vec::new()) } else { wire.deliver(buffers.space(), piece) };
        let received = session.received(count, buffers);
        let times = [chance.below(2), chance.below(2)].map(|ms| Duration::from_millis(ms as u64));
        buffers.took(times[0], times[1]);
        let mut refused = Vec::new();
        for said in arrived {
            match said {
                Said::Acked(numbers) => {
                    world.facts.confirmed.extend(&numbers);
                    self.heard.extend(numbers);
                }
                Said::Buried => self.buried += 1,
                Said::Removed(numbers) => self.told.extend(numbers),
                Said::Refused(code) => refused.push(code),
                Said::Loading => refused.push("LOADING"),
                Said::Other => {}
            }
        }
        self.refusals += refused.len() as u64;
        if let Err(fault) = received {
            if !refused.contains(&&*fault.code) {
                return Err(format!("process {}: {}: {}", self.number, fault.code, fault.message));
            }
            self.disconnect(line, keeps, world, lates);
        }
        Ok(true)
    }

    /// Lets the server answer, and reads the replies. Returns whether any bytes moved.
    fn exchange_bytes(
        &mut self,
        (line, keeps): (usize, bool),
        weather: Weather,
        world: &mut World,
        (lates, liar): (&mut Vec<Late>, &mut Liar<Lie>),
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        let is_rough = weather == Weather::Rough;
        let mut has_moved = self.send(line, keeps, weather, chance);
        while !is_rough || chance.below(4) > 0 {
            let is_over = !is_rough || chance.one_in(3);
            let wire = &mut self.wires[line][usize::from(keeps)];
            if !wire.is_open || !wire.answer(|client, words| answer(world, client, words, is_over, liar)) {
                break;
            }
            has_moved = true;
        }
        while (!is_rough || chance.below(4) > 0) && self.receive((line, keeps), weather, world, lates, chance)? {
            has_moved = true;
            self.send(line, keeps, weather, chance);
        }
        Ok(has_moved)
    }

    /// One pass of the reading connection. `asks`: for entries; otherwise it sends only decisions.
    pub fn pass(
        &mut self,
        line: usize,
        (asks, may_kill, weather): (bool, bool, Weather),
        world: &mut World,
        (lates, liar): (&mut Vec<Late>, &mut Liar<Lie>),
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        let is_rough = weather == Weather::Rough;
        // A drive stops as soon as something is ready.
        if asks && self.bare.is_ready() && !(is_rough && chance.one_in(8)) {
            return Ok(false);
        }
        if !self.wire(line, false).is_open {
            self.connect(line, false, world, lates, may_kill);
            return Ok(true);
        }
        self.bare.set_now(world.now);
        if asks {
            if !self.bare.pause(line).is_zero() && is_rough && chance.one_in(3) {
                return Ok(false);
            }
            let second = Duration::from_secs(1);
            let left = if is_rough { *chance.pick(&[Duration::ZERO, second, Duration::MAX]) } else { Duration::MAX };
            self.bare.request(line, left);
            self.check_wait(line, left, liar)?;
        } else if self.closing != Some(Closing::Drains) {
            self.bare.request_work(line);
        }
        let has_moved = self.exchange_bytes((line, false), weather, world, (&mut *lates, liar), chance)?;
        self.bare.answered(line);
        if is_rough && chance.one_in(25) {
            self.disconnect(line, false, world, lates);
        }
        Ok(has_moved)
    }

    /// Whether a session states that the server may wait for longer than it may.
    fn check_wait(&mut self, line: usize, left: Duration, liar: &mut Liar<Lie>) -> Result<(), Wrong> {
        let mut waits = self.bare.connection(line, false).0.blocks_for();
        if liar.lies(Lie::WaitLonger) {
            waits += Duration::from_secs(1);
        }
        let most = self.options.block.max(Duration::from_millis(1));
        if waits > most {
            return Err(format!("process {} waits for {waits:?}, block is {most:?}, {left:?} are left", self.number));
        }
        Ok(())
    }

    /// Lets the server prepare the next page.
    pub fn read_ahead(&mut self, line: usize, chance: &mut Chance) {
        if self.wire(line, false).is_open {
            self.bare.read_ahead(line);
            self.send(line, false, Weather::Rough, chance);
        }
    }

    /// One pass of the keeper.
    pub fn keep(
        &mut self,
        line: usize,
        weather: Weather,
        world: &mut World,
        (lates, liar): (&mut Vec<Late>, &mut Liar<Lie>),
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        if !self.options.acks {
            return Ok(false);
        }
        self.bare.set_now(world.now);
        if !self.bare.connection(line, true).0.awaits_reply() {
            let left = self.bare.keeper_left(line);
            if !left.is_zero() {
                return Ok(false);
            }
            if !self.wire(line, true).is_open {
                self.connect(line, true, world, lates, false);
                return Ok(true);
            }
            self.bare.keeper_request(line);
        }
        let has_moved = self.exchange_bytes((line, true), weather, world, (&mut *lates, liar), chance)?;
        if weather == Weather::Rough && chance.one_in(25) {
            self.disconnect(line, true, world, lates);
        }
        Ok(has_moved)
    }

    pub fn awaits_reply(&mut self, line: usize) -> bool {
        self.wire(line, false).is_open && self.bare.connection(line, false).0.awaits_reply()
    }

    pub fn line_of(&self, key: usize) -> Option<(usize, usize)> {
        self.lines.iter().enumerate().find_map(|(line, keys)| Some((line, keys.iter().position(|of| *of == key)?)))
    }

    /// Whether the program has an entry in hand that it has not decided on, and that no other consumer has had since.
    pub fn holds(&self, number: u64, world: &World) -> bool {
        let is_it = |hand: &Hand| {
            let mut rows = hand.rows.iter().zip(&hand.undecided).zip(&hand.moves);
            rows.any(|(((_, of), undecided), moves)| *undecided && *of == number && *moves == world.facts.moves(number))
        };
        self.hands.iter().any(is_it)
    }

    /// How many of these there are.
    pub fn undecided(&self) -> u64 {
        let rows = self.hands.iter().flat_map(|hand| &hand.undecided).filter(|undecided| **undecided);
        rows.count() as u64 + if self.options.acks { self.singles.len() as u64 } else { 0 }
    }
}
