//! The encoder of XADD in all its forms: its output, read one byte at a time, has exactly the arguments that were passed in.

use std::collections::HashMap;
use std::sync::Arc;

use super::chance::Chance;
use super::field_columns;
use super::run::{self, Run};
#[cfg(test)]
use super::runner::Runner;
use super::slow::Reader;
use crate::command::script::{NameList, RowForm, SOURCE, with_source};
use crate::command::xadd::{FieldNames, Target, XaddEncoder};
use crate::endpoint::{Endpoint, Form, OptionValue};
use crate::error::code;
use crate::producer::{IDMP_ARGUMENTS, IdempotencyIds, OpenRun, ScriptBatch};
use crate::resp::write_bulk;
use crate::rows::{Body, Layout, RowPlan, Rows};

/// Bytes that could be mistaken for something else if lengths were ignored.
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

/// An encoder, and the state that predicts what it must write.
struct Model {
    template: XaddEncoder,
    key: Vec<u8>,
    options: Vec<Vec<u8>>,
    trim: Vec<Vec<u8>>,
    every: u64,
    /// The number of messages written so far for each key.
    messages: HashMap<Vec<u8>, u64>,
    names: FieldNames,
    time: u64,
    has_time: bool,
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
        let names = FieldNames {
            payload: text(chance),
            ts: chance.one_in(2).then(|| text(chance)),
            is_ts_given: false,
            key: None,
        };
        let template = XaddEncoder::new(&endpoint, &names);
        Self { template, key, options, trim, every, messages: HashMap::new(), names, time: 0, has_time: true }
    }

    /// The arguments between the key and the ID.
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
        self.names.ts.iter().filter(|_| self.has_time).map(|name| (name.clone().into_bytes(), time.clone())).collect()
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

    /// Writes one message in one of several ways; returns the expected command.
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
        let kind = chance.below(6);
        self.has_time = kind < 2 || !chance.one_in(4);
        if !self.has_time {
            self.template.drop_time();
        }
        match kind {
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
                let target = key.as_deref().map_or(Target::Own, |key| self.template.target_of_key(key));
                self.template.write_start(out, pairs.len(), target, id.as_deref());
                self.write(out, &pairs);
                self.command(&key.unwrap_or(own), vec![], &id.unwrap_or(b"*".to_vec()), pairs)
            }
            4 => with_items(chance, |rows, expected, chance| {
                let (row, pairs) = chance.pick(expected);
                self.template.write_own_start(out, pairs.len());
                rows.write_fields(*row, out, &mut Vec::new());
                self.template.write_end(out);
                self.command(&own, vec![], b"*", pairs.clone())
            }),
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

    /// Writes a run of rows; returns what the script must read.
    fn run(&mut self, out: &mut Vec<u8>, runs: &mut ScriptBatch, streams: &mut Streams, chance: &mut Chance) -> Run {
        let own = self.key.clone();
        let (key, id, _) = route(&own, chance);
        let stream_key = key.clone().unwrap_or(own);
        let rows = 1 + chance.size(4) as u64;
        let (first, alone) = streams.add(&stream_key, rows);
        let numbers = [7, first, first, rows, 60, 1];
        runs.stream(&stream_key).unwrap();
        let names: Vec<_> = (0..1 + chance.size(6)).map(|_| bytes(chance, 0)).collect();
        let bulks = || names.iter().flat_map(|name| bulk(name)).collect();
        let list = || NameList { bulks: bulks(), count: names.len() };
        let (form, word) = match chance.below(5) {
            0 => (RowForm::Whole, "whole"),
            1 => (RowForm::One(bulk(&names[0]).into()), "one"),
            2 => (RowForm::All(list()), "all"),
            3 => (RowForm::Sparse(list()), "sparse"),
            _ => (RowForm::Gathered, "sparse"),
        };
        let mut open = OpenRun::default();
        open.begin(&stream_key, first, form.into());
        let mut calls = Vec::new();
        for _ in 0..rows {
            let trims = self.template.is_trim_due(key.as_deref());
            let form = Arc::clone(&open.form);
            let (pairs, id) = match &*form {
                RowForm::Whole => {
                    let pairs = pairs(chance);
                    let out = &mut open.arguments;
                    open.argument_count += self.template.write_arguments(out, trims, pairs.len(), id.as_deref());
                    self.write(out, &pairs);
                    (pairs, id.clone())
                }
                RowForm::Gathered => with_items(chance, |rows, expected, chance| {
                    // Each run has its own column, and rows of it in common.
                    let (row, pairs) = chance.pick(expected);
                    let number = open.number_of_names(pairs.len(), |out| rows.write_names(*row, out));
                    write_bulk(&mut open.arguments, number.to_string().as_bytes());
                    rows.write_values(*row, &mut open.arguments);
                    open.argument_count += 1 + pairs.len();
                    (pairs.clone(), None)
                }),
                form => {
                    let names = if word == "one" { &names[..1] } else { &names };
                    let least = 1 + chance.below(names.len());
                    let has = |at: usize, chance: &mut Chance| word != "sparse" || at + 1 == least || chance.one_in(2);
                    let there: Vec<_> = (0..names.len()).map(|at| has(at, chance)).collect();
                    if matches!(form, RowForm::Sparse(_)) {
                        let mark = there.iter().rev().fold(0_u64, |mark, is_there| mark << 1 | u64::from(*is_there));
                        let set = open.number_of_set(there.len(), mark, |set| {
                            set.clear();
                            set.extend(there.iter().map(|is_there| if *is_there { b'1' } else { b'0' }));
                        });
                        write_bulk(&mut open.arguments, set.to_string().as_bytes());
                        open.argument_count += 1;
                    }
                    let names = names.iter().zip(&there).filter(|(_, is_there)| **is_there);
                    let pairs: Pairs = names.map(|(name, _)| (name.clone(), bytes(chance, 0))).collect();
                    for (_, value) in &pairs {
                        write_bulk(&mut open.arguments, value);
                    }
                    open.argument_count += pairs.len();
                    (pairs, None)
                }
            };
            open.trims |= trims;
            calls.push(self.command(&stream_key, vec![], &id.unwrap_or(b"*".to_vec()), pairs).split_off(2));
        }
        if word != "whole" {
            // Only the first row may have to create the stream, and the last row trims for all.
            let options = self.options.len();
            let with_trim = |call: &Vec<Vec<u8>>| !self.trim.is_empty() && call[options..].starts_with(&self.trim);
            let trims = calls.iter().any(with_trim);
            for (at, call) in calls.iter_mut().enumerate() {
                let fields = call.iter().position(|argument| argument == b"*").unwrap();
                let mut before = if at == 0 { self.options.clone() } else { Vec::new() };
                if at + 1 == rows as usize && trims {
                    before.extend(self.trim.clone());
                }
                call.splice(..fields, before);
            }
        }
        open.rows = rows;
        runs.write(&open, &self.template, out);
        let marker_key = marker(&stream_key);
        Run { stream_key, marker_key, numbers, alone, form: word.into(), rows: calls }
    }
}

/// The streams of a batch in order, each with its number of rows and the number it had before a second stream was added.
#[derive(Default)]
struct Streams(Vec<(Vec<u8>, u64, u64)>);

impl Streams {
    /// Adds rows. Returns the number of the first one, and what the run says about the stream.
    fn add(&mut self, key: &[u8], rows: u64) -> (u64, Option<u64>) {
        let place = self.0.iter().position(|(known, ..)| known == key).unwrap_or_else(|| {
            if let [(_, rows, alone)] = &mut self.0[..] {
                *alone = *rows;
            }
            self.0.push((key.to_vec(), 0, 0));
            self.0.len() - 1
        });
        let has_others = self.0.len() > 1;
        let (_, its_rows, alone) = &mut self.0[place];
        let first = *its_rows;
        *its_rows += rows;
        (first, has_others.then_some(*alone))
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_bulk(&mut out, bytes);
    out
}

fn pairs(chance: &mut Chance) -> Pairs {
    (0..1 + chance.size(6)).map(|_| (bytes(chance, 0), bytes(chance, 0))).collect()
}

/// Calls `run` with the rows of a column of fields, and with the rows that have fields: their index and their fields.
fn with_items<T>(chance: &mut Chance, run: impl FnOnce(&Rows<'_>, &[(usize, Pairs)], &mut Chance) -> T) -> T {
    let few: Vec<_> = (0..2).map(|_| bytes(chance, 0)).collect();
    let item = |chance: &mut Chance| {
        let name = if chance.one_in(2) { chance.pick(&few).clone() } else { bytes(chance, 0) };
        (name, (!chance.one_in(5)).then(|| bytes(chance, 0)))
    };
    let mut drawn: Vec<_> = (0..chance.size(4))
        .map(|_| (!chance.one_in(6)).then(|| (0..chance.size(6)).map(|_| item(chance)).collect()))
        .collect();
    drawn.push(Some(vec![(bytes(chance, 0), Some(bytes(chance, 0)))]));
    let batch = field_columns::batch(&drawn, chance);
    let layout = Layout {
        body: Body::FieldsFrom("fields".into()),
        message_id: None,
        stream_key: None,
        entry_id: None,
        shard_key: None,
    };
    let plan = RowPlan::new(&batch.schema(), &layout, "payload", None).unwrap();
    let rows = plan.bind(&batch).unwrap();
    let fields = |row: &Option<Vec<_>>| -> Pairs {
        let items = row.iter().flatten();
        items.filter_map(|(name, value): &field_columns::Item| Some((name.clone(), value.clone()?))).collect()
    };
    let mut expected: Vec<_> = drawn.iter().map(fields).enumerate().collect();
    for (row, pairs) in &expected {
        match rows.field_count(*row) {
            Ok(count) => assert_eq!(count, pairs.len()),
            Err(fault) => assert!(pairs.is_empty() && fault.code == code::EMPTY, "{fault:?}"),
        }
    }
    expected.retain(|(_, pairs)| !pairs.is_empty());
    run(&rows, &expected, chance)
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

/// The key of a marker: its hash tag is that of the stream key, or the whole stream key if that has none.
fn marker(stream_key: &[u8]) -> Vec<u8> {
    let inside = stream_key.splitn(2, |byte| *byte == b'{').nth(1);
    let tagged = inside.is_some_and(|inside| inside.contains(&b'}') && inside[0] != b'}');
    let key = if tagged { stream_key.to_vec() } else { [b"{", stream_key, b"}"].concat() };
    [&key, &b":headrace:t"[..]].concat()
}

/// Formats a time, counting the days one year and one month at a time.
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

/// Sends some messages through one encoder.
pub fn check(commands: &mut u64, chance: &mut Chance) {
    let mut model = Model::new(chance);
    let mut names = IdempotencyIds::new(false, std::time::Duration::ZERO);
    names.begin("t".to_owned(), 7);
    let mut runs = ScriptBatch::new(60, 100, true);
    runs.begin("t".to_owned(), 7);
    // Close to a multiple of one hundred.
    let (mut row, mut streams) = ((100 * chance.size(20) + 98 + chance.below(4)) as u64, Streams::default());
    names.pass(row);
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..1 + chance.size(12) {
        if chance.one_in(4) {
            let before = out.len();
            let run = model.run(&mut out, &mut runs, &mut streams, chance);
            let has_source = chance.one_in(2);
            if has_source {
                let command = with_source(&out[before..]);
                out.truncate(before);
                out.extend_from_slice(&command);
            }
            expected.push(Expected::Run(run, has_source));
        } else {
            expected.push(Expected::Message(model.message(&mut out, &mut names, &mut row, chance)));
        }
    }
    let mut reader = Reader::new(&out);
    for expected in &expected {
        let written = reader.command().unwrap_or_else(|stop| panic!("no command: {stop:?}"));
        match expected {
            Expected::Message(message) => {
                assert!(written == *message, "wrote {}\nexpected {}", shown(&written), shown(message));
            }
            Expected::Run(run, has_source) => {
                let hash = redis::Script::new(SOURCE).get_hash().to_owned();
                let name = if *has_source { ["EVAL", SOURCE] } else { ["EVALSHA", &hash] };
                assert!(written[..2] == name.map(|part| part.as_bytes().to_vec()), "{}", shown(&written));
                let read = run::read(&written);
                assert!(read == *run, "wrote {}\nread {read:?}\nexpected {run:?}", shown(&written));
            }
        }
    }
    assert_eq!(reader.at, out.len(), "and nothing else");
    *commands += expected.len() as u64;
}

enum Expected {
    Message(Vec<Vec<u8>>),
    /// The run, and whether the command contains the script itself.
    Run(Run, bool),
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
