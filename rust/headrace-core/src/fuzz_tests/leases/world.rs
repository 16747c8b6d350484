//! The servers with the streams and leases, and what is true of them. Only what happens to the servers makes a position go back.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;

use super::super::chance::Chance;
use super::super::liar::Liar;
use super::super::reply::id;
use super::clock::Clock;
use super::facts::Facts;
use super::lie::Lie;
use super::scripts::{self, Hash, Refused, Stream, id_of};
use super::server::{self, Script};
use crate::leases::PINS_CHANGED;
use crate::resp::EntryId;

/// The most changes that a failover undoes.
const MOST_UNDONE: usize = 40;

#[derive(Debug)]
pub struct Node {
    pub clock: Clock,
    /// Whether it answers nothing.
    pub is_away: bool,
    /// What it says to every command.
    pub refusal: Option<&'static str>,
    pub scripts: BTreeSet<Script>,
    pub members: Hash,
    /// What its latest changes have overwritten.
    undo: Vec<Undo>,
    /// Until when owners may not know that another member has their streams: it failed over, or its clock jumped.
    pub unsure_until: Duration,
    /// Whether an epoch may come twice: its clock went back.
    went_back: bool,
}

#[derive(Debug)]
enum Undo {
    Stream(usize, Kept),
    Members(Hash),
}

/// What a server keeps of a stream, and who has really taken it last.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    pub stream: Stream,
    pub holder: Option<Holder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub process: usize,
    pub name: Vec<u8>,
    pub epoch: u64,
}

/// A process, as a server sees it.
#[derive(Debug, Clone)]
pub struct Client {
    pub process: usize,
    pub name: Vec<u8>,
}

/// A command of a connection that has ended, which the server has received and not executed.
#[derive(Debug)]
pub struct Late {
    pub node: usize,
    pub client: Client,
    pub words: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub struct World {
    pub now: Duration,
    pub nodes: Vec<Node>,
    pub streams: Vec<Kept>,
    /// The node of each stream.
    pub places: Vec<usize>,
    pub keys: Vec<Vec<u8>>,
    pub lease: Duration,
    /// How often an entry fails before it is moved, if it is.
    pub moves_after: Option<u64>,
    pub facts: Facts,
    /// What connections that have ended may still bring.
    pub lates: Vec<Late>,
    pub liar: Liar<Lie>,
    pub may_drift: bool,
    pub may_fail_over: bool,
    pub traces: bool,
}

impl World {
    pub fn new(traces: bool, lie: Option<Lie>, chance: &mut Chance) -> Self {
        let nodes = *chance.pick(&[1, 1, 1, 2, 3]);
        let streams = nodes.max(*chance.pick(&[1, 2, 3, 3, 5, 8, 12]));
        let now = Duration::from_secs(1);
        let may_drift = chance.one_in(3);
        let node = |_| Node {
            clock: Clock::new(Duration::from_secs(1_000_000 + chance.below(9) as u64), may_drift, now, chance),
            is_away: false,
            refusal: None,
            scripts: BTreeSet::new(),
            members: Hash::new(),
            undo: Vec::new(),
            unsure_until: Duration::ZERO,
            went_back: false,
        };
        let nodes: Vec<_> = (0..nodes).map(node).collect();
        let places = (0..streams).map(|stream| stream % nodes.len()).collect();
        Self {
            now,
            places,
            streams: vec![Kept::default(); streams],
            keys: (0..streams).map(|stream| format!("s{stream}").into_bytes()).collect(),
            lease: Duration::from_millis(*chance.pick(&[10_000, 10_000, 2_000, 1_000, 200])),
            moves_after: *chance.pick(&[None, Some(1), Some(2)]),
            facts: Facts::new(streams),
            lates: Vec::new(),
            liar: Liar::new(lie, Chance::new(chance.next(), 0)),
            nodes,
            may_drift,
            may_fail_over: false,
            traces,
        }
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.traces {
            eprintln!("{:>9.3} {}", self.now.as_secs_f64(), text());
        }
    }

    /// The time of a server in ms.
    pub fn millis(&self, node: usize) -> u64 {
        self.nodes[node].clock.at(self.now).as_millis() as u64
    }

    /// The streams of each node that has any: those of one session.
    pub fn lines(&self) -> Vec<(usize, Vec<usize>)> {
        let of = |node| (0..self.places.len()).filter(|stream| self.places[*stream] == node).collect();
        (0..self.nodes.len()).map(|node| (node, of(node))).collect()
    }

    /// Whether a stream may have two owners for a while.
    pub fn is_unsure(&self, stream: usize) -> bool {
        self.now < self.nodes[self.places[stream]].unsure_until
    }

    fn is_unsure_from_now(&mut self, node: usize) {
        self.nodes[node].unsure_until = self.now + self.lease * 12 / 10;
    }

    pub fn committed(&self, stream: usize) -> u64 {
        self.streams[stream].stream.committed().ms
    }

    /// How many entries a stream has.
    pub fn added(&self, stream: usize) -> u64 {
        self.streams[stream].stream.last.ms
    }

    // What happens to the servers.

    pub fn add(&mut self, stream: usize, count: u64) {
        let stream = &mut self.streams[stream].stream;
        stream.exists = true;
        stream.last = EntryId { ms: stream.last.ms + count, seq: 0 };
    }

    /// Another server takes over, which lacks the latest changes.
    pub fn fail_over(&mut self, node: usize, count: usize) {
        for _ in 0..count {
            match self.nodes[node].undo.pop() {
                None => break,
                Some(Undo::Members(members)) => self.nodes[node].members = members,
                Some(Undo::Stream(stream, before)) => {
                    // The entries are not what is looked at here.
                    let last = self.streams[stream].stream.last;
                    self.streams[stream] = before;
                    self.streams[stream].stream.last = last;
                }
            }
        }
        self.now += Duration::from_millis(50);
        self.nodes[node].scripts.clear();
        self.is_unsure_from_now(node);
    }

    pub fn jump(&mut self, node: usize, chance: &mut Chance) {
        let by = self.lease * *chance.pick(&[1, 5, 11, 20]) / 10;
        let shown = self.nodes[node].clock.at(self.now);
        let goes_back = chance.one_in(2);
        self.nodes[node].clock.jump(if goes_back { shown.saturating_sub(by) } else { shown + by }, self.now);
        self.nodes[node].went_back |= goes_back;
        self.is_unsure_from_now(node);
    }

    pub fn delete_lease(&mut self, stream: usize) {
        self.now += Duration::from_millis(20);
        let kept = &mut self.streams[stream];
        kept.stream.lease.clear();
        // What is committed is the group's position now, which a group that was created again does not have.
        kept.holder = None;
        self.is_unsure_from_now(self.places[stream]);
    }

    pub fn delete_members(&mut self, node: usize) {
        self.nodes[node].members.clear();
    }

    pub fn set_pending(&mut self, stream: usize, pending: u64) {
        if let Some(group) = &mut self.streams[stream].stream.group {
            group.pending = pending;
        }
    }

    pub fn destroy_group(&mut self, stream: usize) {
        self.streams[stream].stream.group = None;
    }

    /// What `headrace shards assign` does: the members learn by a count that pins have changed.
    pub fn pin(&mut self, stream: usize, name: Option<&[u8]>) {
        let lease = &mut self.streams[stream].stream.lease;
        match name {
            Some(name) => drop(lease.insert(b"pinned".to_vec(), name.to_vec())),
            None => drop(lease.remove(&b"pinned"[..])),
        }
        let members = &mut self.nodes[self.places[0]].members;
        let count = members.get(&b""[..]).map_or(0, |count| scripts::number(count));
        members.insert(Vec::new(), (count + PINS_CHANGED as u64).to_string().into_bytes());
    }

    /// Nothing is wrong with the servers from now on.
    pub fn heal(&mut self) {
        for node in &mut self.nodes {
            (node.is_away, node.refusal) = (false, None);
        }
        for stream in 0..self.streams.len() {
            self.set_pending(stream, 0);
        }
    }

    // What they are asked to do.

    /// Executes a command. `words` are those of the command. `None`: the server does not answer.
    pub fn execute(&mut self, node: usize, client: &Client, words: &[Vec<u8>]) -> Option<Vec<u8>> {
        if self.nodes[node].is_away {
            return None;
        }
        let reply = self.reply(node, client, words);
        self.trace(|| {
            let shown = words.iter().skip(2).map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
            format!("  p{} n{node} {} ms: {shown} -> {reply:?}", client.process, self.millis(node))
        });
        Some(match reply {
            Ok(value) => server::written(&value),
            Err(Refused(text)) => format!("-{text}\r\n").into_bytes(),
        })
    }

    fn reply(&mut self, node: usize, client: &Client, words: &[Vec<u8>]) -> Result<Value, Refused> {
        self.facts.commands += 1;
        let (script, keys, arguments) = server::read(words);
        if let Some(refusal) = self.nodes[node].refusal {
            return Err(Refused(refusal.to_owned()));
        }
        if words[0] == b"EVAL" {
            self.nodes[node].scripts.insert(script);
        } else if !self.nodes[node].scripts.contains(&script) {
            return Err(Refused("NOSCRIPT No matching script.".to_owned()));
        }
        let now = self.millis(node);
        let counts = self.facts.counts.entry(client.process).or_default();
        if script == Script::Members {
            counts[0] += 1;
            assert_eq!(arguments[0], client.name);
            self.note(node, |world| Undo::Members(world.nodes[node].members.clone()));
            return Ok(scripts::members(&mut self.nodes[node].members, now, arguments, &mut self.liar));
        }
        counts[if arguments[0] == b"take" { 2 } else { 1 }] += 1;
        let stream = self.keys.iter().position(|key| *key == keys[1]).expect("an unknown stream");
        assert_eq!(self.places[stream], node, "it is another server's stream");
        self.note(node, |world| Undo::Stream(stream, world.streams[stream].clone()));
        let (committed, holder) = (self.committed(stream), self.streams[stream].holder.clone());
        let letters = self.streams[stream].stream.letters.len();
        let reply = scripts::lease(&mut self.streams[stream].stream, now, arguments, &mut self.liar)?;
        self.check(client, stream, (committed, holder.as_ref()), arguments, &reply);
        self.check_letters(client, stream, letters, arguments.get(15..).unwrap_or_default());
        Ok(reply)
    }

    /// Keeps what a command is about to change, if it may be undone.
    fn note(&mut self, node: usize, before: impl FnOnce(&Self) -> Undo) {
        if !self.may_fail_over {
            return;
        }
        let undo = before(self);
        let all = &mut self.nodes[node].undo;
        if all.len() == MOST_UNDONE {
            all.remove(0);
        }
        all.push(undo);
    }

    /// Checks what a command about a lease has changed.
    fn check(
        &mut self,
        client: &Client,
        stream: usize,
        (from, holder): (u64, Option<&Holder>),
        arguments: &[Vec<u8>],
        reply: &Value,
    ) {
        let to = self.committed(stream);
        if to < from {
            self.facts.wrong(format!("s{stream}: its position went back from {from} to {to}"));
        }
        if arguments[0] == b"take" {
            if let Value::Array(parts) = reply
                && let [Value::Int(epoch), _, _, _, ..] = &parts[..]
            {
                self.took(client, stream, *epoch as u64, to);
            }
            return;
        }
        if !matches!(reply, Value::Int(_)) {
            if to != from {
                self.facts.wrong(format!("s{stream}: p{} is refused, and the position goes to {to}", client.process));
            }
            return;
        }
        let epoch: u64 = std::str::from_utf8(&arguments[5]).unwrap().parse().unwrap();
        let is_holder = |holder: &Holder| holder.process == client.process && holder.epoch == epoch;
        if !holder.is_some_and(is_holder) {
            self.facts.wrong(format!(
                "s{stream}: p{} with the epoch {epoch} is served, and {holder:?} has it",
                client.process
            ));
        }
        let position = &arguments[7];
        if position.is_empty() {
            return;
        }
        let (named, owned) = (id_of(position).ms, (client.process, stream, epoch));
        let said = self.facts.said.get(&owned).copied().unwrap_or(0);
        if named > said {
            self.facts.wrong(format!("s{stream}: p{} commits {named}, and its program {said}", client.process));
        }
        if let Some((_, last)) = self.facts.executed.get_mut(&owned) {
            *last = to.max(*last).min(named.max(*last));
        }
        let (kept, now) = (&self.streams[stream].stream, self.committed(stream));
        if kept.group.as_ref().is_some_and(|group| group.last.ms != now) {
            self.facts.wrong(format!("s{stream}: the group is at {:?}, and the position is {now}", kept.group));
        }
    }

    /// Checks the entries that a command has moved. `before`: how many were moved before it; `moves`: its arguments about them.
    fn check_letters(&mut self, client: &Client, stream: usize, before: usize, moves: &[Vec<u8>]) {
        let letters = &self.streams[stream].stream.letters;
        for (at, (epoch, id)) in letters.iter().enumerate().skip(before) {
            let said = self.facts.said.get(&(client.process, stream, *epoch)).copied().unwrap_or(0);
            if letters[..at].contains(&(*epoch, *id)) || id.ms > said {
                self.facts.wrong(format!("s{stream}: p{} moves {id} of {epoch}, and is at {said}", client.process));
            }
        }
        *self.facts.dead.entry(client.process).or_default() += (letters.len() - before) as u64;
        let takes = self.facts.executed.keys().filter(|(_, of, _)| *of == stream).count() as u64;
        for moved in moves.chunks(4) {
            let failures: u64 = std::str::from_utf8(&moved[3]).unwrap().parse().unwrap();
            let failed = self.facts.failed.get(&(stream, id(&moved[1]).ms)).copied().unwrap_or(0);
            // The process that had it may have ended.
            if self.moves_after.is_none_or(|least| failures < least) || failures > failed + takes {
                let id = moved[1].escape_ascii();
                self.facts.wrong(format!("s{stream}: {id} is moved after {failures} failures, {failed} were"));
            }
        }
    }

    fn took(&mut self, client: &Client, stream: usize, epoch: u64, start: u64) {
        let node = &self.nodes[self.places[stream]];
        if epoch <= self.facts.epochs[stream] && !node.went_back {
            let before = self.facts.epochs[stream];
            self.facts.wrong(format!("s{stream}: it is taken with the epoch {epoch}, and had {before}"));
        }
        let pinned = self.streams[stream].stream.lease.get(&b"pinned"[..]);
        if pinned.is_some_and(|pinned| *pinned != client.name) {
            self.facts.wrong(format!("s{stream}: p{} takes it, and it is pinned to {pinned:?}", client.process));
        }
        self.facts.epochs[stream] = epoch.max(self.facts.epochs[stream]);
        self.facts.takes += 1;
        self.facts.executed.insert((client.process, stream, epoch), (start, start));
        self.streams[stream].holder = Some(Holder { process: client.process, name: client.name.clone(), epoch });
    }
}
