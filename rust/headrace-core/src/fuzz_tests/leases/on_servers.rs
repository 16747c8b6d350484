//! The model of the scripts, compared with the scripts on a real server: random commands have equal replies and leave equal hashes.

use std::collections::BTreeSet;

use redis::{Connection, Value, cmd};

use super::super::chance::Chance;
use super::super::liar::Liar;
use super::super::runner::is_larger_size;
use super::scripts::{self, Hash, Refused, Stream};
use super::server::{LEASE, MEMBERS};
use crate::reading::{Place, Position};
use crate::resp::EntryId;
use crate::server_of_tests::Server;

const TIME: &str = "redis.call('TIME')";

/// A server and its model.
struct Pair {
    client: Connection,
    /// The scripts, with the clock of the model.
    sources: [String; 2],
    stream: Stream,
    members: Hash,
    /// The entries that are pending.
    pending: BTreeSet<u64>,
    now: u64,
    /// The commands so far, for a failure.
    done: Vec<String>,
}

fn number(text: impl ToString + Copy) -> Vec<u8> {
    text.to_string().into_bytes()
}

impl Pair {
    fn new(mut client: Connection) -> Self {
        cmd("FLUSHALL").exec(&mut client).unwrap();
        let of_model = |source: &str| {
            assert!(source.contains(TIME));
            source.replace(TIME, "redis.call('HMGET', 'clock', 's', 'us')")
        };
        Self {
            client,
            sources: [LEASE, MEMBERS].map(of_model),
            stream: Stream::default(),
            members: Hash::new(),
            pending: BTreeSet::new(),
            now: 1_795_324_724_029,
            done: Vec::new(),
        }
    }

    fn runs(&mut self, words: &[&str]) -> Value {
        self.done.push(words.join(" "));
        cmd(words[0]).arg(&words[1..]).query(&mut self.client).unwrap()
    }

    fn passes(&mut self, ms: u64) {
        self.now += ms;
        let (seconds, micros) = ((self.now / 1_000).to_string(), (self.now % 1_000 * 1_000 + 7).to_string());
        self.runs(&["HSET", "clock", "s", &seconds, "us", &micros]);
    }

    /// Calls a script on both.
    fn calls(&mut self, script: usize, arguments: &[Vec<u8>]) {
        let liar = &mut Liar::new(None, Chance::new(0, 0));
        let shown: Vec<_> = arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect();
        self.done.push(format!("{script} at {}: {}", self.now, shown.join(" ")));
        let mut command = cmd("EVAL");
        command.arg(&self.sources[script]);
        let expected = if script == 0 {
            command.arg(3).arg("lease").arg("stream").arg("dead");
            scripts::lease(&mut self.stream, self.now, arguments, liar)
        } else {
            command.arg(1).arg("members");
            Ok(scripts::members(&mut self.members, self.now, arguments, liar))
        };
        let replied: redis::RedisResult<Value> = command.arg(arguments).query(&mut self.client);
        match (expected, replied) {
            (Ok(expected), Ok(replied)) if script == 1 => {
                assert_eq!(sorted(expected), sorted(replied), "{}", self.done.join("\n"));
            }
            (Ok(expected), Ok(replied)) => assert_eq!(expected, replied, "{}", self.done.join("\n")),
            (Err(Refused(expected)), Err(error)) => {
                let text = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
                assert!(text.starts_with(&expected) || expected.starts_with("ERR"), "{text}, {expected}");
            }
            (expected, replied) => panic!("{expected:?} {replied:?}\n{}", self.done.join("\n")),
        }
    }

    fn compares(&mut self) {
        let [lease, members]: [Hash; 2] =
            ["lease", "members"].map(|key| cmd("HGETALL").arg(key).query(&mut self.client).unwrap());
        assert_eq!((&lease, &members), (&self.stream.lease, &self.members), "{}", self.done.join("\n"));
        let letters = self.runs(&["XLEN", "dead"]);
        assert_eq!(letters, Value::Int(self.stream.letters.len() as i64), "{}", self.done.join("\n"));
        let groups = if self.stream.exists { self.runs(&["XINFO", "GROUPS", "stream"]) } else { Value::Array(vec![]) };
        let Value::Array(groups) = groups else { panic!("{groups:?}") };
        let of = |field| groups.first().and_then(|group| crate::resp::value::field(group, field).cloned());
        let expected = self.stream.group.as_ref();
        let last = expected.map(|group| Value::BulkString(group.last.to_string().into_bytes()));
        assert_eq!(of("last-delivered-id"), last, "{}", self.done.join("\n"));
        if let Some(read) = of("entries-read") {
            let expected = expected.unwrap().read.map_or(Value::Nil, |read| Value::Int(read as i64));
            assert_eq!(read, expected, "{}", self.done.join("\n"));
        }
    }

    fn changes(&mut self, chance: &mut Chance) {
        let last = self.stream.last.ms;
        match chance.below(12) {
            0..=3 => {
                self.stream.last = EntryId { ms: last + 1, seq: 0 };
                self.stream.exists = true;
                self.runs(&["XADD", "stream", &format!("{}-0", last + 1), "a", "b"]);
            }
            4..=6 => self.passes(*chance.pick(&[1, 400, 999, 1_000, 5_000])),
            7 => {
                let name = *chance.pick(&["a", "b"]);
                self.stream.lease.insert(b"pinned".to_vec(), name.into());
                self.runs(&["HSET", "lease", "pinned", name]);
            }
            8 if chance.one_in(2) => {
                self.stream.lease.clear();
                self.runs(&["DEL", "lease"]);
            }
            8 => {
                self.stream.lease.remove(&b"pinned"[..]);
                self.runs(&["HDEL", "lease", "pinned"]);
            }
            9 if self.stream.group.is_some() && last > 0 => {
                let id = format!("{last}-0");
                self.runs(&["XCLAIM", "stream", "group", "c", "0", &id, "FORCE", "JUSTID"]);
                self.pending.insert(last);
                self.set_pending();
            }
            10 => {
                for id in std::mem::take(&mut self.pending) {
                    self.runs(&["XACK", "stream", "group", &format!("{id}-0")]);
                }
                self.set_pending();
            }
            11 if self.stream.exists => {
                self.runs(&["XGROUP", "DESTROY", "stream", "group"]);
                self.stream.group = None;
                self.pending.clear();
            }
            _ => {
                self.runs(&["DEL", "stream"]);
                let Stream { lease, letters, .. } = std::mem::take(&mut self.stream);
                self.stream = Stream { lease, letters, ..Stream::default() };
                self.pending.clear();
            }
        }
    }

    fn set_pending(&mut self) {
        if let Some(group) = &mut self.stream.group {
            group.pending = self.pending.len() as u64;
        }
    }

    fn asks(&mut self, chance: &mut Chance) {
        let member = *chance.pick(&["a", "b", "c"]);
        if chance.one_in(4) {
            let lasts = *chance.pick(&[1_000, 1_000, 5_000, 0]);
            self.calls(1, &[member.into(), number(lasts), number(*chance.pick(&[0, 0, 1, 3]))]);
            return;
        }
        let action = *chance.pick(&["take", "keep", "keep", "release"]);
        let instance = *chance.pick(&["1", "1", "2"]);
        let mut arguments: Vec<Vec<u8>> =
            vec![action.into(), "group".into(), member.into(), instance.into(), number(1_000)];
        if action == "take" {
            let begins = *chance.pick(&["0-0", "$", "2-0", "9-7"]);
            let flags = [chance.one_in(2), chance.one_in(2)].map(|flag| number(u8::from(flag)));
            arguments.push(begins.into());
            arguments.extend(flags);
            arguments.push(number(8));
            arguments.extend(chance.one_in(4).then(|| number(1)));
        } else {
            // Mostly it is the owner who asks.
            if !chance.one_in(4) && !self.stream.owner().is_empty() {
                arguments[2] = self.stream.owner();
            }
            let epoch = self.stream.lease.get(&b"epoch"[..]).cloned().unwrap_or_else(|| number(7));
            arguments.push(if chance.one_in(5) { number(self.now - chance.below(3) as u64) } else { epoch });
            let mut changed = vec![Vec::new(); 9];
            if chance.one_in(2) {
                changed[0] = number(chance.below(4));
            }
            if !changed[0].is_empty() && chance.one_in(2) {
                let id = EntryId { ms: chance.below(9) as u64, seq: *chance.pick(&[0, 0, u64::MAX]) };
                // Redis 8.6 knows that a group has read no more entries than there are.
                let read = Some(chance.below(self.stream.last.ms as usize + 1) as u64).filter(|_| chance.one_in(2));
                let place = Place { id, is_entry: true, added: read, removed: None };
                let mut position = Position::new(false);
                position.set(b"a\"id\":\"1-1\"".to_vec().into(), Some(place));
                changed[1..4].clone_from_slice(&[
                    position.to_text().into_bytes(),
                    number(id),
                    read.map(number).unwrap_or_default(),
                ]);
            }
            if !changed[0].is_empty() && chance.one_in(2) {
                let counts = [chance.below(9), chance.below(3), chance.below(2)].map(number);
                changed[4..7].clone_from_slice(&counts);
                changed[7] = b"why".to_vec();
                changed[8] = b"4-0".to_vec();
            }
            arguments.extend(changed);
            for _ in 0..chance.below(3) {
                let id = format!("{}-0", 1 + chance.below(5));
                arguments.extend([number(1 + chance.below(3)), id.into_bytes(), b"why".to_vec(), number(2)]);
            }
        }
        self.calls(0, &arguments);
    }
}

/// A hash has no order.
fn sorted(reply: Value) -> Vec<Vec<u8>> {
    let Value::Array(parts) = reply else { panic!("{reply:?}") };
    let mut parts: Vec<_> = parts.iter().map(|part| format!("{part:?}").into_bytes()).collect();
    parts.sort();
    parts
}

#[test]
fn the_model_of_the_scripts_does_what_a_server_does() {
    let Some(server) = Server::start(&[]) else { return };
    for program in 0..if is_larger_size() { 400 } else { 60 } {
        let mut chance = Chance::new(1, program);
        let mut pair = Pair::new(server.client().unwrap());
        pair.passes(0);
        for _ in 0..40 {
            pair.changes(&mut chance);
            pair.asks(&mut chance);
            pair.compares();
        }
    }
}
