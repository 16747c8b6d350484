//! The encoder of XADD in all its forms: what it wrote, read one byte at a time, is exactly the arguments that went in.

use std::collections::HashMap;

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::slow::Reader;
use crate::command::script::{SOURCE, with_source};
use crate::command::xadd::{FieldNames, XaddEncoder};
use crate::endpoint::{Endpoint, Form, OptionValue};
use crate::producer::{IDMP_ARGUMENTS, IdempotencyIds, PendingRun, ScriptBatch};
use crate::resp::write_bulk;

/// Bytes that could be read as something else, if they were not counted.
const PARTS: [&[u8]; 14] = [
    b"\r\n",
    b"*1\r\n$8\r\nFLUSHALL\r\n",
    b"$-1\r\n",
    b"*",
    b"MAXLEN",
    b"~",
    b"NOMKSTREAM",
    b"IDMP",
    b"{",
    b"}",
    b"\0",
    b"\xff\xfe",
    b"0-0",
    b"payload",
];

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What is asked of an encoder, beside what it is expected to write.
struct Model {
    template: XaddEncoder,
    key: Vec<u8>,
    options: Vec<Vec<u8>>,
    trim: Vec<Vec<u8>>,
    every: u64,
    /// How many messages there were of each key.
    messages: HashMap<Vec<u8>, u64>,
    names: FieldNames,
    time: u64,
}

fn bytes(chance: &mut Chance, least: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < least || chance.one_in(2) {
        match chance.below(4) {
            0 => bytes.extend_from_slice(chance.part(&PARTS)),
            1 if chance.one_in(50) => bytes.resize(bytes.len() + chance.size(70_000), b'x'),
            _ => {
                let length = chance.size(24);
                bytes.extend(chance.bytes(length));
            }
        }
    }
    bytes
}

fn text(chance: &mut Chance) -> String {
    String::from_utf8_lossy(&bytes(chance, 1)).into_owned()
}

impl Model {
    fn new(chance: &mut Chance) -> Self {
        let key = bytes(chance, 1);
        let mut given = vec![("host", OptionValue::text("h")), ("stream_key", OptionValue::bytes(&key))];
        let (mut options, mut trim, mut every) = (Vec::new(), Vec::new(), 1);
        if chance.one_in(4) {
            given.push(("nomkstream", OptionValue::Bool(true)));
            options.push(b"NOMKSTREAM".to_vec());
        }
        let approximate = chance.one_in(2);
        let threshold = 1 + chance.size(1 << 60) as i128;
        match chance.below(3) {
            0 => {}
            kind => {
                let (name, word) = if kind == 1 { ("maxlen", "MAXLEN") } else { ("minid", "MINID") };
                given.push((name, OptionValue::Int(threshold)));
                given.push(("maxlen_approximate", OptionValue::Bool(approximate)));
                every = 1 + chance.below(if kind == 1 { threshold.min(4) as usize } else { 4 }) as u64;
                given.push(("trim_every", OptionValue::Int(every.into())));
                trim.push(word.into());
                trim.extend(approximate.then(|| b"~".to_vec()));
                trim.push(threshold.to_string().into());
            }
        }
        let given = given.into_iter().map(|(name, value)| (name.to_owned(), value));
        let endpoint = Endpoint::new(given, Form::Typed).unwrap();
        let names = FieldNames { payload: text(chance), ts: chance.one_in(2).then(|| text(chance)) };
        let template = XaddEncoder::new(&endpoint, &names);
        Self { template, key, options, trim, every, messages: HashMap::new(), names, time: 0 }
    }

    /// What stands between the key and the ID.
    fn options(&mut self, key: &[u8]) -> Vec<Vec<u8>> {
        let messages = self.messages.entry(key.to_vec()).or_default();
        let trims = messages.is_multiple_of(self.every);
        *messages += 1;
        let mut options = self.options.clone();
        if trims {
            options.extend(self.trim.clone());
        }
        options
    }

    fn ts(&self) -> Pairs {
        let time = timestamp(self.time).into_bytes();
        self.names.ts.iter().map(|name| (name.clone().into_bytes(), time.clone())).collect()
    }

    fn payload(&self, payload: Vec<u8>) -> Pairs {
        vec![(self.names.payload.clone().into_bytes(), payload)]
    }

    fn command(&mut self, key: &[u8], name: Vec<Vec<u8>>, id: &[u8], pairs: Pairs) -> Vec<Vec<u8>> {
        let mut command = vec![b"XADD".to_vec(), key.to_vec()];
        command.extend(name);
        command.extend(self.options(key));
        command.push(id.to_vec());
        command.extend(pairs.into_iter().chain(self.ts()).flat_map(|(field, value)| [field, value]));
        command
    }

    /// Writes one message in one of the ways; returns what the command must be.
    fn message(
        &mut self,
        out: &mut Vec<u8>,
        names: &mut IdempotencyIds,
        row: &mut u64,
        chance: &mut Chance,
    ) -> Vec<Vec<u8>> {
        if chance.one_in(4) {
            self.time = chance.below(1 << 36) as u64;
        }
        self.template.set_time(self.time);
        let own = self.key.clone();
        let payload = bytes(chance, 0);
        match chance.below(5) {
            0 => {
                self.template.write_payload(out, &payload);
                self.command(&own, vec![], b"*", self.payload(payload))
            }
            1 => {
                self.template.write_payload_start(out, payload.len());
                out.extend_from_slice(&payload);
                self.template.write_payload_end(out);
                self.command(&own, vec![], b"*", self.payload(payload))
            }
            2 => {
                let pairs = pairs(chance);
                self.template.write_own_start(out, pairs.len());
                self.write(out, &pairs);
                self.command(&own, vec![], b"*", pairs)
            }
            3 => {
                let (key, id, pairs) = route(&own, chance);
                self.template.write_start(out, pairs.len(), key.as_deref(), id.as_deref());
                self.write(out, &pairs);
                self.command(&key.unwrap_or(own), vec![], &id.unwrap_or(b"*".to_vec()), pairs)
            }
            _ => {
                let pairs = pairs(chance);
                let name = names.of_row();
                self.template.write_start_with(out, pairs.len(), name, IDMP_ARGUMENTS);
                self.write(out, &pairs);
                let producer = format!("t:7:{}", *row / 100).into_bytes();
                let name = vec![b"IDMP".to_vec(), producer, (*row % 100).to_string().into()];
                *row += 1;
                self.command(&own, name, b"*", pairs)
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>, pairs: &Pairs) {
        for (field, value) in pairs {
            write_bulk(out, field);
            write_bulk(out, value);
        }
        self.template.write_end(out);
    }

    /// Writes a run of rows; returns what the command must be behind its first two arguments.
    fn run(
        &mut self,
        out: &mut Vec<u8>,
        runs: &mut ScriptBatch,
        passed: &mut HashMap<Vec<u8>, u64>,
        next: &mut u64,
        chance: &mut Chance,
    ) -> Vec<Vec<u8>> {
        let own = self.key.clone();
        let (key, id, _) = route(&own, chance);
        let stream_key = key.clone().unwrap_or(own);
        let mut open = PendingRun { stream_key: stream_key.clone(), ..PendingRun::default() };
        let rows = 1 + chance.size(4) as u64;
        let from = passed.insert(stream_key.clone(), *next + rows).unwrap_or(0);
        let numbers = [7, from, *next, rows, 60, 1].map(|number| number.to_string().into_bytes());
        *next += rows;
        let mut command = vec![b"2".to_vec(), stream_key.clone(), marker(&stream_key)];
        command.extend(numbers);
        for _ in 0..rows {
            let (pairs, id) = if key.is_none() && chance.one_in(2) {
                let payload = bytes(chance, 0);
                open.argument_count += self.template.write_payload_arguments(&mut open.arguments, &payload);
                (self.payload(payload), None)
            } else {
                let pairs = pairs(chance);
                let arguments = &mut open.arguments;
                open.argument_count +=
                    self.template.write_arguments(arguments, pairs.len(), key.as_deref(), id.as_deref());
                self.write(arguments, &pairs);
                (pairs, id.clone())
            };
            let row = self.command(&stream_key, vec![], &id.unwrap_or(b"*".to_vec()), pairs);
            command.push((row.len() - 2).to_string().into());
            command.extend(row.into_iter().skip(2));
        }
        open.rows = rows;
        runs.write(&open, out);
        command
    }
}

fn pairs(chance: &mut Chance) -> Pairs {
    (0..1 + chance.size(6)).map(|_| (bytes(chance, 0), bytes(chance, 0))).collect()
}

/// A row's own key and ID, and its fields.
#[allow(clippy::type_complexity)]
fn route(own: &[u8], chance: &mut Chance) -> (Option<Vec<u8>>, Option<Vec<u8>>, Pairs) {
    let key = match chance.below(3) {
        0 => None,
        1 => Some(own.to_vec()),
        _ => Some(bytes(chance, 1)),
    };
    let id = chance.one_in(2).then(|| format!("{}-*", chance.size(1 << 62)).into_bytes());
    (key, id, pairs(chance))
}

/// The key of a marker: with what stands in the first braces of the stream key, or with all of it.
fn marker(stream_key: &[u8]) -> Vec<u8> {
    let inside = stream_key.splitn(2, |byte| *byte == b'{').nth(1);
    let tagged = inside.is_some_and(|inside| inside.contains(&b'}') && inside[0] != b'}');
    let key = if tagged { stream_key.to_vec() } else { [b"{", stream_key, b"}"].concat() };
    [&key, &b":headrace:t"[..]].concat()
}

/// Days counted one year and one month at a time.
fn timestamp(second: u64) -> String {
    let (mut days, mut year, time) = (second / 86_400, 1970, second % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

/// Some messages through one encoder.
pub fn check(commands: &mut u64, chance: &mut Chance) {
    let mut model = Model::new(chance);
    let mut names = IdempotencyIds::new(false, std::time::Duration::ZERO);
    names.begin("t".to_owned(), 7);
    let mut runs = ScriptBatch::new(60, 100, true);
    runs.begin("t".to_owned(), 7);
    // Near the end of a hundred.
    let (mut row, mut next, mut passed) = ((100 * chance.size(20) + 98 + chance.below(4)) as u64, 0, HashMap::new());
    names.pass(row);
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..1 + chance.size(12) {
        if chance.one_in(4) {
            let before = out.len();
            let mut run = model.run(&mut out, &mut runs, &mut passed, &mut next, chance);
            if chance.one_in(2) {
                let command = with_source(&out[before..]);
                out.truncate(before);
                out.extend_from_slice(&command);
                run.splice(0..0, [b"EVAL".to_vec(), SOURCE.into()]);
            } else {
                let hash = redis::Script::new(SOURCE).get_hash().to_owned();
                run.splice(0..0, [b"EVALSHA".to_vec(), hash.into()]);
            }
            expected.push(run);
        } else {
            expected.push(model.message(&mut out, &mut names, &mut row, chance));
        }
    }
    let mut reader = Reader::new(&out);
    for expected in &expected {
        let written = reader.command().unwrap_or_else(|stop| panic!("no command: {stop:?}"));
        assert!(written == *expected, "wrote {}\nexpected {}", shown(&written), shown(expected));
    }
    assert_eq!(reader.at, out.len(), "and nothing else");
    *commands += expected.len() as u64;
}

fn shown(command: &[Vec<u8>]) -> String {
    let parts: Vec<_> = command.iter().map(|part| part[..part.len().min(60)].escape_ascii().to_string()).collect();
    parts.join(" ")
}

#[cfg(test)]
#[test]
fn encoder() {
    let summary = |commands: &u64| format!("{commands} commands");
    Runner::new("encoder", 2_000).run(&mut 0, check, summary);
}
