//! Whole dispatchers on a [`server`](super::server) with arbitrary behaviour, and callers with arbitrary behaviour: each
//! message has one outcome, and the server knows whether it is true.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::chance::Chance;
use super::connection::Connection;
use super::field_columns::{self, Item};
#[cfg(test)]
use super::runner::Runner;
use super::server::{KINDS, Said, Server, Try};
use crate::endpoint::{Form, OptionValue};
use crate::fail;
use crate::net::{NeverInterrupted, Watch, set_mock};
use crate::rows::{Body, Layout, Message, Value};
use crate::shards::{ShardHash, ShardNames, Shards};
use crate::{BatchLayout, DeliveryReport, Dispatcher, DispatcherOptions, Endpoint, Error, IdArgument};

/// What all sessions saw.
#[derive(Debug, Default)]
pub struct Seen {
    sessions: u64,
    steps: u64,
    calls: u64,
    messages: u64,
    connections: u64,
    kinds: [u64; KINDS.len()],
    delivered: u64,
    deduplicated: u64,
    failed_no: u64,
    failed_unknown: u64,
    retries: u64,
    panics: u64,
    sharded: u64,
}

impl Seen {
    #[cfg(test)]
    fn summary(&self) -> String {
        let kinds: Vec<_> = KINDS.iter().zip(self.kinds).map(|(kind, times)| format!("{kind} {times}")).collect();
        format!(
            "{} sessions, {} steps of servers ({}) on {} connections, {} calls, {} messages: {} delivered, {} deduplicated, \
             {} failed with written no, {} with written unknown, {} sent again, {} panics, {} in their shards",
            self.sessions,
            self.steps,
            kinds.join(", "),
            self.connections,
            self.calls,
            self.messages,
            self.delivered,
            self.deduplicated,
            self.failed_no,
            self.failed_unknown,
            self.retries,
            self.panics,
            self.sharded,
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Script,
    Idmp,
}

/// What was produced at one position.
#[derive(Debug, Clone)]
struct Place {
    /// `None` for a null payload.
    message: Option<usize>,
    id: String,
    /// How often its message had arrived before.
    tries: usize,
    /// Whether it may belong to a stream other than the endpoint's.
    is_routed: bool,
}

#[allow(clippy::struct_excessive_bools)] // of its options
struct Session<'a> {
    dispatcher: Dispatcher,
    server: Arc<Mutex<Server>>,
    mode: Mode,
    retries: bool,
    retries_unknown: bool,
    by_message_id: bool,
    /// Whether delivered messages must be on replicas.
    waits: bool,
    /// Whether calls panic at random points.
    panics: bool,
    /// The streams that messages are spread over.
    shards: Option<Shards>,
    /// The key that selects the shard of each message; `None` means the shards take turns.
    keys: HashMap<usize, Option<String>>,
    /// The shard that each message must go to.
    expected: HashMap<usize, usize>,
    /// The number of messages in the batch begun last.
    passed: u64,
    /// The maximum number of messages in one command.
    per_command: u64,
    places: Vec<Place>,
    /// The number of places that have an outcome.
    reported: usize,
    /// The place at which ordinals start.
    base: usize,
    /// For the batch begun last: where it started, its token, its version.
    batch: Option<(usize, String, u64)>,
    replayed: bool,
    tokens: u64,
    possible_duplicates: u64,
    /// Uncertain outcomes although each complete command was answered: they are caused by partial commands.
    of_parts: u64,
    seen: &'a mut Seen,
}

/// What to produce.
#[derive(Clone, Copy)]
enum What {
    New,
    Again(usize),
    Null,
}

/// A watch that interrupts at random.
struct Impatient(Chance);

impl Watch for Impatient {
    fn interrupted(&mut self) -> bool {
        self.0.one_in(3)
    }
}

fn options(list: &[(&str, OptionValue)]) -> Vec<(String, OptionValue)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

impl<'a> Session<'a> {
    fn new(seen: &'a mut Seen, chance: &mut Chance) -> Self {
        let mut server = Server::new(Chance::new(chance.next(), 0));
        server.faults = *chance.pick(&[0, 3, 10, 40, 200]);
        server.stalls = chance.one_in(20);
        server.interrupts = chance.one_in(4);
        server.has_no_stream = chance.one_in(20);
        let mode = *chance.pick(&[Mode::Off, Mode::Script, Mode::Idmp]);
        let (retries, retries_unknown) = (chance.one_in(2), chance.one_in(4));
        let by_message_id = mode == Mode::Idmp && chance.one_in(2);
        let timeout = if server.stalls { 0.001 } else { 30.0 };
        let shards = (mode != Mode::Idmp && chance.one_in(3)).then(|| 1 + chance.below(5));
        let mut endpoint = options(&[
            ("host", OptionValue::text("h")),
            ("stream_key", OptionValue::text("s")),
            ("connect_timeout", OptionValue::Float(if server.stalls { 0.02 } else { 30.0 })),
            ("command_timeout", OptionValue::Float(timeout)),
            ("nomkstream", OptionValue::Bool(server.has_no_stream)),
        ]);
        let shards = shards.map(|count| {
            endpoint.extend(options(&[("shards", OptionValue::Int(count as i128))]));
            server.registry = Some(Vec::new());
            Shards::new(b"s", count, ShardHash::Murmur2, ShardNames::Plain)
        });
        let rows = 1 + chance.size(8);
        let mut given = options(&[("retry", OptionValue::Bool(retries))]);
        if chance.one_in(2) {
            given.extend(options(&[("window_max_entries", OptionValue::Int(1 + chance.size(40) as i128))]));
        }
        if retries {
            given.extend(options(&[
                ("retry_initial_backoff", OptionValue::Float(0.0)),
                ("retry_max_backoff", OptionValue::Float(0.0)),
                ("retry_max_attempts", OptionValue::Int(1 + chance.size(4) as i128)),
                ("retry_unknown", OptionValue::Bool(retries_unknown)),
            ]));
        }
        let waits = chance.one_in(4);
        if waits {
            given.extend(options(&[
                ("wait_replicas", if chance.one_in(2) { OptionValue::Int(1) } else { OptionValue::text("all") }),
                ("wait_timeout", OptionValue::Float(0.001)),
                ("wait_every", OptionValue::Int(1 + chance.size(40) as i128)),
            ]));
        }
        match mode {
            Mode::Off => {}
            Mode::Script => given.extend(options(&[
                ("exactly_once", OptionValue::text("script")),
                ("script_run_rows", OptionValue::Int(rows as i128)),
            ])),
            Mode::Idmp => given.extend(options(&[
                ("exactly_once", OptionValue::text("idmp")),
                ("exactly_once_key", OptionValue::text(if by_message_id { "message_id" } else { "row" })),
            ])),
        }
        let server = Arc::new(Mutex::new(server));
        let dialled = Arc::clone(&server);
        set_mock(Some(Box::new(move || Connection::dial(&dialled))));
        let dispatcher = Dispatcher::new(
            Endpoint::new(endpoint, Form::Typed).unwrap(),
            DispatcherOptions::new(given, Form::Typed).unwrap(),
        )
        .unwrap();
        Self {
            dispatcher,
            server,
            mode,
            retries,
            retries_unknown,
            by_message_id,
            waits,
            panics: chance.one_in(3),
            shards,
            keys: HashMap::new(),
            expected: HashMap::new(),
            passed: 0,
            per_command: rows as u64,
            places: Vec::new(),
            reported: 0,
            base: 0,
            batch: None,
            replayed: false,
            tokens: 0,
            possible_duplicates: 0,
            of_parts: 0,
            seen,
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&mut self, what: What, id: impl FnOnce(usize) -> String) -> Place {
        let server = &mut *self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let message = match what {
            What::Null => None,
            What::Again(message) => Some(message),
            What::New => {
                server.tries.push(Vec::new());
                Some(server.tries.len() - 1)
            }
        };
        let tries = message.map_or(0, |message| server.tries[message].len());
        let id = id(message.unwrap_or(0));
        Place { message, id, tries, is_routed: false }
    }

    /// The key that selects the shard of a message: the same as before if the message is produced again.
    fn choose_key(&mut self, message: usize, chance: &mut Chance) -> Option<String> {
        let shards = self.shards.as_ref()?;
        let key = self.keys.entry(message).or_insert_with(|| chance.one_in(2).then(|| chance.below(9).to_string()));
        let shard = match key {
            Some(key) => shards.of_key(key.as_bytes()),
            None => shards.of_ordinal(self.passed),
        };
        self.expected.insert(message, shard);
        key.clone()
    }

    fn payload(message: usize, chance: &mut Chance) -> String {
        let filler = if chance.one_in(100) { chance.size(100_000) } else { chance.size(300) };
        format!("{message}:{}", "\r\n*1\r\n$8\r\nFLUSHALL\r\n".repeat(1 + filler / 20))
    }

    fn produce(&mut self, what: What, watch: &mut dyn Watch, chance: &mut Chance) {
        let asks = !chance.one_in(8);
        if asks && !self.dispatcher.has_room().unwrap() && self.dispatcher.make_room(watch).is_err() {
            return;
        }
        if asks && !self.dispatcher.has_room().unwrap() && chance.one_in(2) {
            return; // the link is down: produced messages fail
        }
        let kind = if self.by_message_id { 1 } else { chance.below(3) };
        let ordinal = self.places.len() - self.base;
        let place = self.place(what, |message| if kind == 0 { ordinal.to_string() } else { message.to_string() });
        let message = place.message.unwrap();
        let payload = Self::payload(message, chance);
        let given = match kind {
            0 => IdArgument::None,
            1 => IdArgument::Int(message as i64),
            _ => IdArgument::Text(&place.id),
        };
        let key = self.choose_key(message, chance);
        let mut is_routed = false;
        let is_own = key.is_some() || chance.one_in(3);
        let taken = if is_own {
            let own = Self::message(payload.as_bytes(), key.as_deref(), self.may_route(what), chance);
            is_routed = own.stream_key.is_some();
            self.dispatcher.produce_message(&own, given)
        } else {
            self.dispatcher.produce(payload.as_bytes(), given)
        };
        if taken == Err(Error::Full) {
            // Its form may have closed the run of the messages before it, whose bytes count from then on.
            assert!(!asks || (is_own && self.mode == Mode::Script), "there was room");
            assert!(is_routed || !self.dispatcher.has_room().unwrap(), "it has room");
            return;
        }
        self.places.push(Place { is_routed, ..place });
        self.passed += 1;
        if let Err(error) = taken {
            self.expect_panic(&error);
        }
    }

    /// A message with or without other fields, and with or without a stream key and an entry ID of its own.
    fn message<'m>(payload: &'m [u8], key: Option<&'m str>, may_route: bool, chance: &mut Chance) -> Message<'m> {
        const NOTES: &[(&[u8], Value<'_>)] =
            &[(b"note", Value::Int(-7)), (b"", Value::Bytes(Cow::Borrowed(b""))), (b"note", Value::Float(0.5))];
        Message {
            payload: Some(payload),
            fields: &NOTES[..chance.below(NOTES.len() + 1)],
            stream_key: if may_route {
                chance.pick(&[None, Some("s"), Some("t"), Some("u")]).map(str::as_bytes)
            } else {
                None
            },
            entry_id: (may_route && chance.one_in(4)).then_some(b"*"),
            key: key.map(str::as_bytes),
        }
    }

    /// Whether a message may name its stream. One that is repeated goes to the stream that it went to.
    fn may_route(&self, what: What) -> bool {
        self.mode != Mode::Idmp && self.shards.is_none() && matches!(what, What::New)
    }

    /// Sets the next call to panic at some point, or not at all.
    fn choose_panic(&mut self, chance: &mut Chance) {
        if self.panics {
            let place = chance.one_in(3).then(|| *chance.pick(&["bind", "encode", "scan", "settle"]));
            fail::arm(place, chance.size(20) as u32);
        }
    }

    fn expect_panic(&mut self, error: &Error) {
        assert!(self.panics && matches!(error, Error::Internal { .. }), "{error:?}");
        assert!(!fail::arm(None, 0), "a panic that was not armed: {error:?}");
        self.seen.panics += 1;
    }

    fn expect_end(&mut self, error: &Error) {
        if *error != Error::Interrupted {
            self.expect_panic(error);
        }
    }

    /// The fields of a row: often with the same names as before, often with others.
    fn map(payload: Option<&str>, note: Option<&str>, chance: &mut Chance) -> Option<Vec<Item>> {
        let Some(payload) = payload else { return chance.one_in(2).then(Vec::new) };
        let mut items = vec![
            (b"note".to_vec(), note.map(|note| note.as_bytes().to_vec())),
            (b"payload".to_vec(), Some(payload.as_bytes().to_vec())),
        ];
        if chance.one_in(2) {
            items.insert(chance.below(3), (format!("other {}", chance.size(1_000)).into_bytes(), Some(Vec::new())));
        }
        Some(items)
    }

    fn produce_batch(&mut self, watch: &mut dyn Watch, chance: &mut Chance) {
        let rows = chance.size(30);
        let has_ids = self.by_message_id || chance.one_in(2);
        let is_routed = self.mode != Mode::Idmp && self.shards.is_none() && chance.one_in(3);
        let (mut ids, mut payloads, mut keys, mut notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rows {
            let has_bad_key = is_routed && chance.one_in(25);
            let is_null = has_bad_key || (!self.by_message_id && chance.one_in(20));
            let ordinal = self.places.len() - self.base;
            // The same ID as when it is produced again on its own.
            let place = self.place(if is_null { What::Null } else { What::New }, |message| {
                if has_ids { message } else { ordinal }.to_string()
            });
            ids.push(place.message.unwrap_or(0) as i64);
            payloads.push(place.message.map(|message| Self::payload(message, chance)));
            keys.push(match place.message {
                _ if has_bad_key => Some(String::new()),
                Some(message) if self.shards.is_some() => self.choose_key(message, chance),
                Some(_) | None => chance.pick(&[None, Some("s"), Some("t"), Some("u")]).map(str::to_owned),
            });
            // A row whose fields have no value is not sent either.
            notes.push((!is_null && chance.one_in(2)).then_some("a note"));
            self.places.push(Place { is_routed, ..place });
            self.passed += 1;
        }
        let maps: Vec<_> =
            payloads.iter().zip(&notes).map(|(payload, note)| Self::map(payload.as_deref(), *note, chance)).collect();
        let maps = field_columns::batch(&maps, chance);
        let fields = vec![
            Field::new("payload", DataType::Utf8, true),
            Field::new("id", DataType::Int64, false),
            Field::new("key", DataType::Utf8, true),
            Field::new("note", DataType::Utf8, true),
            Field::new("entry", DataType::Utf8, true),
            maps.schema().field(0).clone(),
        ];
        let columns: Vec<Arc<dyn arrow_array::Array>> = vec![
            Arc::new(StringArray::from(payloads)),
            Arc::new(Int64Array::from(ids)),
            Arc::new(StringArray::from(keys)),
            Arc::new(StringArray::from(notes)),
            Arc::new(StringArray::from(vec![None::<&str>; rows])),
            Arc::clone(maps.column(0)),
        ];
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        let layout = Layout {
            body: match chance.below(5) {
                0 => Body::Payload("payload".to_owned()),
                1 => Body::Fields(vec!["payload".to_owned(), "note".to_owned()]),
                2 => Body::Fields(vec!["note".to_owned(), "payload".to_owned()]),
                3 => Body::PayloadAndFields("payload".to_owned(), vec!["note".to_owned()]),
                _ => Body::FieldsFrom("fields".to_owned()),
            },
            message_id: has_ids.then(|| "id".to_owned()),
            stream_key: is_routed.then(|| "key".to_owned()),
            shard_key: self.shards.is_some().then(|| "key".to_owned()),
            // The column is all null, so the server still chooses the IDs.
            entry_id: (self.mode != Mode::Idmp && chance.one_in(4)).then(|| "entry".to_owned()),
        };
        let is_payload = matches!(layout.body, Body::Payload(_)) && layout.entry_id.is_none();
        let is_one_stream = !is_routed && self.shards.is_none();
        let layout = if self.mode == Mode::Off && is_one_stream && is_payload && chance.one_in(3) {
            BatchLayout::Payloads(layout, self.per_command as usize)
        } else {
            BatchLayout::Rows(layout)
        };
        let mut plan = self.dispatcher.plan(&batch.schema(), &layout).unwrap();
        // Messages left over after an interrupt or a panic fail.
        if let Err(error) = self.dispatcher.produce_batch(&batch, &mut plan, watch) {
            self.expect_end(&error);
        }
    }

    fn dispatch(&mut self, watch: &mut dyn Watch, chance: &mut Chance) {
        let place = self.place(What::New, |_| String::new());
        let message = place.message.unwrap();
        let key = self.choose_key(message, chance);
        self.passed += 1;
        let payload = Self::payload(message, chance);
        let own = Self::message(payload.as_bytes(), key.as_deref(), self.shards.is_none(), chance);
        let outcome = self.dispatcher.dispatch(&own, watch);
        match outcome {
            Ok(Ok(id)) => self.check_delivered(&place, (id.ms, id.seq)),
            Ok(Err(failure)) => self.check_failed(&place, failure.written.as_str(), &failure.code),
            Err(error) => self.expect_end(&error),
        }
    }

    fn flush(&mut self, timeout: Option<Duration>, watch: &mut dyn Watch) {
        match self.dispatcher.flush(timeout, watch) {
            Ok(report) => {
                self.take(&report);
                assert_eq!(
                    self.reported,
                    self.places.len(),
                    "a message has no outcome: {:?} waits {}",
                    self.mode,
                    self.waits
                );
                assert_eq!(self.dispatcher.unreported(), 0);
                self.base = self.reported;
            }
            Err(error) => self.expect_end(&error),
        }
    }

    /// Flushes until each message has an outcome.
    fn flush_all(&mut self) {
        fail::arm(None, 0);
        self.flush(None, &mut NeverInterrupted);
    }

    /// Checks each outcome of a report.
    fn take(&mut self, report: &DeliveryReport) {
        self.possible_duplicates += report.possible_duplicates();
        self.seen.retries += report.retries();
        let before = self.reported;
        for batch in report.to_arrow(false) {
            let batch = batch.unwrap();
            let column = |at: usize| batch.column(at).as_string::<i32>();
            let (ids, entries, codes, written) = (column(0), column(1), column(3), column(5));
            for row in 0..batch.num_rows() {
                assert!(self.reported < self.places.len(), "an outcome of no message");
                let place = self.places[self.reported].clone();
                self.reported += 1;
                assert_eq!(ids.value(row), place.id, "another message's outcome");
                if !codes.is_null(row) {
                    self.check_failed(&place, written.value(row), codes.value(row));
                } else if entries.is_null(row) {
                    self.check_deduplicated(&place);
                } else {
                    let (ms, seq) = entries.value(row).split_once('-').unwrap();
                    self.check_delivered(&place, (ms.parse().unwrap(), seq.parse().unwrap()));
                }
            }
        }
        assert_eq!((self.reported - before) as u64, report.delivered() + report.failed());
    }

    fn tries(&self, place: &Place) -> Vec<Try> {
        place.message.map_or(Vec::new(), |message| self.server().tries[message][place.tries..].to_vec())
    }

    /// Whether any attempt wrote it. Earlier attempts of the same batch count too, unless the server denied knowing of the
    /// marker.
    fn is_written(&self, place: &Place) -> bool {
        let server = self.server();
        let first = if server.denied_marker { place.tries } else { 0 };
        place.message.is_some_and(|message| server.tries[message][first..].iter().any(|one| one.written))
    }

    fn check_delivered(&mut self, place: &Place, id: (u64, u64)) {
        let message = place.message.expect("a null was delivered");
        let tries = self.tries(place);
        let is_reported = |one: &Try| one.said == Some(Said::Id(id)) && (one.covered || !self.waits);
        assert!(tries.iter().any(is_reported), "{place:?} under {id:?}, of {tries:?}");
        assert!(self.server().stream.contains(&(id, message)), "{place:?} is not under {id:?}");
        self.seen.delivered += 1;
    }

    fn check_deduplicated(&mut self, place: &Place) {
        let tries = self.tries(place);
        let is_reported = |one: &Try| one.said == Some(Said::Deduplicated) && (one.covered || !self.waits);
        assert!(self.mode == Mode::Script && tries.iter().any(is_reported), "{place:?} {tries:?}");
        assert!(self.server().stream.iter().any(|(_, message)| Some(*message) == place.message), "{place:?}");
        self.seen.deduplicated += 1;
    }

    fn check_failed(&mut self, place: &Place, written: &str, code: &str) {
        let tries = self.tries(place);
        let in_doubt = tries.iter().any(|one| one.said.is_none() && !one.passed_over);
        if code == "NOT_REPLICATED" {
            // The call may have panicked when the reply to WAIT arrived.
            let is_covered = !self.panics && tries.iter().any(|one| one.covered);
            assert!(self.waits && written == "unknown" && !is_covered, "{place:?} {tries:?}");
            self.seen.failed_unknown += 1;
            return;
        }
        let answered = tries.iter().any(|one| matches!(one.said, Some(Said::Id(_) | Said::Deduplicated)));
        assert!(!answered || code == "INTERNAL", "{place:?} failed with {code} and was delivered: {tries:?}");
        if code == "INTERNAL" && written == "unknown" {
            self.seen.failed_unknown += 1;
        } else if written == "no" {
            assert!(!in_doubt && !self.is_written(place), "{place:?} failed with {code}, written no: {tries:?}");
            self.seen.failed_no += 1;
        } else {
            assert!(place.message.is_some() || self.tokens > 0);
            // An earlier attempt of a named batch may have written it, without any server being asked about it.
            self.of_parts += u64::from(!in_doubt && self.tokens == 0);
            self.seen.failed_unknown += 1;
        }
    }

    /// Exactly once: begins another batch, or repeats the last one.
    fn begin(&mut self, chance: &mut Chance) {
        self.flush_all();
        if chance.one_in(3) {
            self.dispatcher.skip_failed().unwrap();
            self.batch = None;
            return;
        }
        if let Some((first, token, version)) = self.batch.clone()
            && self.places[first..].iter().all(|place| place.message.is_some() && !place.is_routed)
            && chance.one_in(2)
        {
            self.replayed = true;
            self.dispatcher.begin(&token, version).unwrap();
            self.passed = 0;
            let again: Vec<_> = self.places[first..].iter().filter_map(|place| place.message).collect();
            self.batch = Some((self.places.len(), token, version));
            for message in again {
                let before = self.places.len();
                while self.places.len() == before {
                    self.produce(What::Again(message), &mut NeverInterrupted, chance);
                }
            }
            return;
        }
        self.tokens += u64::from(self.tokens == 0 || chance.one_in(2));
        let (token, version) = (format!("t{}", self.tokens), self.places.len() as u64);
        self.dispatcher.begin(&token, version).unwrap();
        self.passed = 0;
        self.batch = Some((self.places.len(), token, version));
    }

    fn step(&mut self, chance: &mut Chance) {
        self.seen.calls += 1;
        self.choose_panic(chance);
        let mut impatient = Impatient(Chance::new(chance.next(), 0));
        let interrupts = self.server().interrupts;
        let watch: &mut dyn Watch = if interrupts { &mut impatient } else { &mut NeverInterrupted };
        match chance.below(16) {
            0..=6 => (0..1 + chance.size(12)).for_each(|_| self.produce(What::New, watch, chance)),
            7 => self.produce_batch(watch, chance),
            8 | 9 => match self.dispatcher.poll(watch) {
                Ok(report) => self.take(&report),
                Err(error) => self.expect_end(&error),
            },
            10 | 11 => self.flush(None, watch),
            12 => self.flush(Some(Duration::from_micros(chance.size(300) as u64)), watch),
            13 if self.mode == Mode::Off => self.dispatch(watch, chance),
            14 if self.server().faults > 0 => self.server().epoch += 1,
            _ if self.mode == Mode::Off => {}
            _ => self.begin(chance),
        }
    }

    /// Checks what must hold for the whole session.
    fn finish(mut self, chance: &mut Chance) {
        let closes = chance.one_in(4);
        if closes {
            self.dispatcher.close();
        } else {
            self.flush_all();
        }
        fail::arm(None, 0);
        let has_order = !self.retries && !self.replayed && !self.places.iter().any(|place| place.is_routed);
        let Self { dispatcher, server, seen, shards, expected, panics, .. } = self;
        drop(dispatcher);
        let server = &*server.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<_> = server.stream.iter().map(|(_, message)| *message).collect();
        if has_order {
            // Messages of different streams have no order.
            let streams: HashSet<_> = server.streams.values().collect();
            for stream in streams {
                let of_stream: Vec<_> = entries.iter().filter(|message| server.streams[*message] == *stream).collect();
                assert!(of_stream.is_sorted(), "the order: {of_stream:?}");
            }
        }
        // It is unknown whether a message counts if a call panicked over it.
        if let (Some(shards), false) = (&shards, panics) {
            for (message, stream) in &server.streams {
                assert_eq!(stream, shards.key(expected[message]), "the shard of message {message}");
            }
            seen.sharded += server.streams.len() as u64;
        }
        entries.sort_unstable();
        entries.dedup();
        let duplicates = (server.stream.len() - entries.len()) as u64;
        let allowed = match (self.mode, self.retries && self.retries_unknown) {
            // The last report was never requested.
            (Mode::Off, true) if closes => u64::MAX,
            (Mode::Off, true) => self.possible_duplicates,
            (Mode::Off, false) | (Mode::Script | Mode::Idmp, _) => 0,
        };
        assert!(duplicates <= allowed, "{duplicates} duplicates, {:?}: {:?}", self.mode, server.stream);
        assert!(self.of_parts <= server.cut_commands * self.per_command, "in doubt although they were answered");
        seen.sessions += 1;
        seen.steps += server.steps;
        seen.messages += server.tries.len() as u64;
        seen.connections += server.connections;
        for (all, of_this) in seen.kinds.iter_mut().zip(server.kinds) {
            *all += of_this;
        }
    }
}

/// Runs one session.
pub fn check(seen: &mut Seen, chance: &mut Chance) {
    let mut session = Session::new(seen, chance);
    for _ in 0..1 + chance.size(40) {
        session.step(chance);
    }
    session.finish(chance);
    set_mock(None);
}

#[cfg(test)]
#[test]
fn session() {
    Runner::new("session", 1_500).run(&mut Seen::default(), check, Seen::summary);
}
