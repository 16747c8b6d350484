//! The XADD command: a template made once per dispatcher, and the bytes of each message. No I/O.
//!
//! `XADD key [NOMKSTREAM] [MAXLEN|MINID [~] threshold] *|id field value …`
//! (<https://redis.io/docs/latest/commands/xadd/>; NOMKSTREAM and MINID since 6.2). MINID takes precedence over
//! MAXLEN: a server refuses both together.

mod known_streams;
mod trim_schedule;

use chrono::DateTime;

use known_streams::KnownStreams;
use trim_schedule::TrimSchedule;

use crate::cluster::slot;
use crate::endpoint::{Endpoint, Trim};
use crate::resp::{write_array_header, write_bulk, write_bulk_length};

/// The arguments of `ts`: name and value.
const TS_ARGUMENTS: usize = 2;

/// The names of the fields that a dispatcher adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldNames {
    pub(crate) payload: String,
    /// `None`: entries carry no time.
    pub(crate) ts: Option<String>,
    /// Whether the caller asked for `ts`, so that entries that are otherwise copied as they are carry it too.
    pub(crate) is_ts_given: bool,
    /// `None`: entries do not keep the keys of their shards.
    pub(crate) key: Option<String>,
}

/// The stream of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// The endpoint's.
    Own,
    /// A [known stream](KnownStreams), by its place.
    Known(usize),
    /// Another one, by its key.
    Other(&'a [u8]),
}

impl Target<'static> {
    /// The stream of a shard.
    #[inline]
    pub(crate) fn of_shard(shard: usize) -> Self {
        Self::Known(shard)
    }
}

/// Everything in an XADD that does not change from message to message, as bytes.
#[derive(Debug)]
pub(crate) struct XaddEncoder {
    own_key: Box<[u8]>,
    /// The name of a payload's field, as a bulk string.
    payload_name: Box<[u8]>,
    /// `XADD` and nothing else: the bytes before a row's own stream key.
    name: Vec<u8>,
    /// `XADD key`, for the endpoint's stream key.
    name_and_key: Vec<u8>,
    /// The arguments between key and ID: without and with the trim options.
    options: [Vec<u8>; 2],
    /// How many arguments a command has in addition to its fields, including `ts` if messages carry it now: without and with the
    /// trim options.
    arguments: [usize; 2],
    /// The whole start of a command with one payload and the endpoint's key, up to the payload.
    payload_start: [PayloadStart; 2],
    /// The start of a command with the endpoint's key and an ID chosen by the server, up to its fields, and the number of fields.
    /// Kept from the last command: most rows have the same number.
    row_start: [(usize, Vec<u8>); 2],
    /// The last field, `ts`, and the second that it states; empty if messages carry no `ts`.
    ts: Vec<u8>,
    ts_second: Option<u64>,
    /// The bytes after a payload: its line end and `ts`.
    payload_tail: Vec<u8>,
    ts_field: Option<String>,
    trims: TrimSchedule,
    streams: KnownStreams,
}

impl XaddEncoder {
    pub(crate) fn new(endpoint: &Endpoint, names: &FieldNames) -> Self {
        let mut name = Vec::new();
        write_bulk(&mut name, b"XADD");
        let mut name_and_key = name.clone();
        write_bulk(&mut name_and_key, endpoint.stream_key());

        let mut plain = Vec::new();
        // Name, key and ID; `set_time` adds the pair of `ts`.
        let mut count = 3;
        if endpoint.nomkstream() {
            write_bulk(&mut plain, b"NOMKSTREAM");
            count += 1;
        }
        let mut trimming = plain.clone();
        let trim_arguments = endpoint.trim().map_or(0, |trim| write_trim(&mut trimming, trim));
        let (options, arguments) = ([plain, trimming], [count, count + trim_arguments]);

        let payload_start = [0, 1].map(|trim| {
            let mut head = Vec::new();
            let ts_arguments = if names.ts.is_some() { TS_ARGUMENTS } else { 0 };
            write_array_header(&mut head, arguments[trim] + ts_arguments + 2);
            head.extend_from_slice(&name_and_key);
            head.extend_from_slice(&options[trim]);
            write_bulk(&mut head, b"*");
            write_bulk(&mut head, names.payload.as_bytes());
            PayloadStart::new(head)
        });
        let mut payload_name = Vec::new();
        write_bulk(&mut payload_name, names.payload.as_bytes());
        let trims = TrimSchedule::new(if trim_arguments == 0 { 0 } else { endpoint.trim_every() });
        let mut template = Self {
            own_key: endpoint.stream_key().into(),
            payload_name: payload_name.into(),
            name,
            name_and_key,
            options,
            arguments,
            payload_start,
            row_start: Default::default(),
            ts: Vec::new(),
            ts_second: None,
            payload_tail: b"\r\n".to_vec(),
            ts_field: names.ts.clone(),
            trims,
            streams: KnownStreams::new(endpoint.shards().map_or(&[], |shards| shards.keys())),
        };
        template.set_time(0);
        template
    }

    /// Sets the time that messages carry from now on, in seconds since the epoch: `2026-04-14T12:00:00Z`.
    #[inline]
    pub(crate) fn set_time(&mut self, second: u64) {
        if self.ts_second != Some(second) {
            self.write_time(second);
        }
    }

    #[cold]
    fn write_time(&mut self, second: u64) {
        self.ts_second = Some(second);
        if self.ts_field.is_some() && self.ts.is_empty() {
            self.arguments = self.arguments.map(|count| count + TS_ARGUMENTS);
            self.row_start = Default::default();
        }
        let Some(field) = &self.ts_field else { return };
        // Past the year 262142 chrono has no name for the second; no clock is set there.
        let text = DateTime::from_timestamp(i64::try_from(second).unwrap_or_default(), 0)
            .unwrap_or_default()
            .format("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        self.ts.clear();
        write_bulk(&mut self.ts, field.as_bytes());
        write_bulk(&mut self.ts, text.as_bytes());
        self.payload_tail.truncate(2);
        self.payload_tail.extend_from_slice(&self.ts);
    }

    /// Makes messages carry no time until [`set_time`](Self::set_time) sets one: for entries of fields that must stay as they
    /// are. A message of one payload always carries it.
    pub(crate) fn drop_time(&mut self) {
        if self.has_time() {
            self.ts.clear();
            self.ts_second = None;
            self.arguments = self.arguments.map(|count| count - TS_ARGUMENTS);
            self.row_start = Default::default();
        }
    }

    /// Whether messages carry the time now.
    pub(crate) fn has_time(&self) -> bool {
        !self.ts.is_empty()
    }

    /// Appends a message of one payload for the endpoint's stream key.
    #[inline]
    pub(crate) fn write_payload(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        let trim = usize::from(self.trims.is_due(None));
        let start = self.payload_start[trim].of(payload.len());
        out.reserve(start.len() + payload.len() + self.payload_tail.len());
        out.extend_from_slice(start);
        out.extend_from_slice(payload);
        out.extend_from_slice(&self.payload_tail);
    }

    /// The stream with this key, which a row names.
    #[inline]
    pub(crate) fn target_of_key<'a>(&mut self, key: &'a [u8]) -> Target<'a> {
        self.streams.place(key, &self.own_key).map_or(Target::Other(key), Target::Known)
    }

    /// The key and the slot of a stream; `None`: it is the endpoint's.
    #[inline]
    pub(crate) fn key_and_slot<'a>(&'a self, target: Target<'a>) -> Option<(&'a [u8], u16)> {
        match target {
            Target::Own => None,
            Target::Known(place) => {
                let stream = self.streams.get(place);
                Some((&stream.key, stream.hash_slot))
            }
            Target::Other(key) => Some((key, slot(key))),
        }
    }

    /// Appends a message of one payload.
    pub(crate) fn write_payload_to(&mut self, out: &mut Vec<u8>, target: Target<'_>, payload: &[u8]) {
        self.write_start(out, 1, target, None);
        self.write_payload_field(out, payload);
        self.write_end(out);
    }

    /// Appends the bytes before a payload of `length` bytes; the payload and then [`write_payload_end`](Self::write_payload_end)
    /// follow.
    pub(crate) fn write_payload_start(&mut self, out: &mut Vec<u8>, length: usize) {
        let trim = usize::from(self.trims.is_due(None));
        out.extend_from_slice(self.payload_start[trim].of(length));
    }

    /// Appends the bytes after a payload.
    pub(crate) fn write_payload_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.payload_tail);
    }

    /// Like [`write_payload_start`](Self::write_payload_start), for a payload that this many other fields follow.
    pub(crate) fn write_payload_start_with(&mut self, out: &mut Vec<u8>, length: usize, others: usize) {
        if others == 0 {
            return self.write_payload_start(out, length);
        }
        self.write_own_start(out, 1 + others);
        out.extend_from_slice(&self.payload_name);
        write_bulk_length(out, length);
    }

    /// Appends the bytes after a payload, with the other fields as bulk strings.
    pub(crate) fn write_payload_end_with(&self, out: &mut Vec<u8>, others: &[u8]) {
        if others.is_empty() {
            return self.write_payload_end(out);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(others);
        self.write_end(out);
    }

    /// Appends the start of a message with `fields` pairs; the pairs and then [`write_end`](Self::write_end) follow.
    ///
    /// `entry_id`: that of the row, instead of `*`; checked before, since the server would read `MAXLEN` there as an option.
    #[inline]
    pub(crate) fn write_start(
        &mut self,
        out: &mut Vec<u8>,
        fields: usize,
        target: Target<'_>,
        entry_id: Option<&[u8]>,
    ) {
        let Target::Known(place) = target else { return self.write_start_of_other(out, fields, target, entry_id) };
        let stream = self.streams.get(place);
        // A row that names the endpoint's own key is counted with those that name none.
        let trim = usize::from(self.trims.is_due((!stream.is_own).then_some(&stream.key)));
        let (arguments, start) = &stream.starts[trim];
        if *arguments == self.arguments[trim] + 2 * fields && entry_id.is_none() {
            out.extend_from_slice(start);
        } else {
            self.write_start_of_known(out, trim, fields, place, entry_id);
        }
    }

    /// Appends the start of a message to a known stream, and keeps it if the server chooses the ID.
    #[inline(never)]
    fn write_start_of_known(
        &mut self,
        out: &mut Vec<u8>,
        trim: usize,
        fields: usize,
        place: usize,
        entry_id: Option<&[u8]>,
    ) {
        let before = out.len();
        self.write_any_start(out, trim, fields, Some(&self.streams.get(place).key), entry_id);
        if entry_id.is_none() {
            let (arguments, start) = &mut self.streams.get_mut(place).starts[trim];
            *arguments = self.arguments[trim] + 2 * fields;
            start.clear();
            start.extend_from_slice(&out[before..]);
        }
    }

    /// Appends the start of a message to a stream that is not known, or to the endpoint's.
    #[inline(never)]
    fn write_start_of_other(&mut self, out: &mut Vec<u8>, fields: usize, target: Target<'_>, entry_id: Option<&[u8]>) {
        let stream_key = match target {
            Target::Other(key) if *key != *self.own_key => Some(key),
            Target::Own | Target::Known(_) | Target::Other(_) => None,
        };
        let trim = usize::from(self.trims.is_due(stream_key));
        self.write_any_start(out, trim, fields, stream_key, entry_id);
    }

    /// Appends the start of a message to the endpoint's stream, with an ID chosen by the server.
    #[inline]
    pub(crate) fn write_own_start(&mut self, out: &mut Vec<u8>, fields: usize) {
        let trim = usize::from(self.trims.is_due(None));
        if self.row_start[trim].0 != fields {
            self.keep_row_start(trim, fields);
        }
        out.extend_from_slice(&self.row_start[trim].1);
    }

    /// Separate from [`write_own_start`](Self::write_own_start), so that the latter does not save registers for a rare case.
    #[inline(never)]
    fn keep_row_start(&mut self, trim: usize, fields: usize) {
        let (_, mut start) = std::mem::take(&mut self.row_start[trim]);
        start.clear();
        self.write_any_start(&mut start, trim, fields, None, None);
        self.row_start[trim] = (fields, start);
    }

    fn write_any_start(
        &self,
        out: &mut Vec<u8>,
        trim: usize,
        fields: usize,
        stream_key: Option<&[u8]>,
        entry_id: Option<&[u8]>,
    ) {
        write_array_header(out, self.arguments[trim] + 2 * fields);
        match stream_key {
            None => out.extend_from_slice(&self.name_and_key),
            Some(key) => {
                out.extend_from_slice(&self.name);
                write_bulk(out, key);
            }
        }
        out.extend_from_slice(&self.options[trim]);
        write_bulk(out, entry_id.unwrap_or(b"*"));
    }

    /// Appends the start of a message to the endpoint's stream, with `count` bulk strings after the key.
    pub(crate) fn write_start_with(&mut self, out: &mut Vec<u8>, fields: usize, arguments: &[u8], count: usize) {
        let trim = usize::from(self.trims.is_due(None));
        write_array_header(out, self.arguments[trim] + count + 2 * fields);
        out.extend_from_slice(&self.name_and_key);
        out.extend_from_slice(arguments);
        out.extend_from_slice(&self.options[trim]);
        write_bulk(out, b"*");
    }

    /// Appends the field of a message's payload.
    pub(crate) fn write_payload_field(&self, out: &mut Vec<u8>, payload: &[u8]) {
        out.extend_from_slice(&self.payload_name);
        write_bulk(out, payload);
    }

    /// Whether the next message of this stream key (`None`: the endpoint's) must trim.
    pub(crate) fn is_trim_due(&mut self, stream_key: Option<&[u8]>) -> bool {
        self.trims.is_due(stream_key.filter(|key| *key != &*self.own_key))
    }

    /// Appends what an XADD has after the key, up to the fields, as arguments of a script, with their number first. Returns how
    /// many arguments these are, including the fields and `ts`, which follow.
    pub(crate) fn write_arguments(
        &self,
        out: &mut Vec<u8>,
        trims: bool,
        fields: usize,
        entry_id: Option<&[u8]>,
    ) -> usize {
        let trim = usize::from(trims);
        // The command's name and the key are elsewhere.
        let count = self.arguments[trim] - 2 + 2 * fields;
        write_bulk(out, itoa::Buffer::new().format(count).as_bytes());
        out.extend_from_slice(&self.options[trim]);
        write_bulk(out, entry_id.unwrap_or(b"*"));
        1 + count
    }

    /// Appends the arguments that the rows of a run share besides their fields: NOMKSTREAM or nothing, the trim options if the
    /// run `trims`, and `ts`, the latter two after the number of their arguments. Returns how many arguments these are.
    pub(crate) fn write_shared(&self, out: &mut Vec<u8>, trims: bool) -> usize {
        let [plain, trimming] = &self.options;
        let trim_count = if trims { self.arguments[1] - self.arguments[0] } else { 0 };
        let ts_count = if self.has_time() { TS_ARGUMENTS } else { 0 };
        if plain.is_empty() {
            write_bulk(out, b"");
        } else {
            out.extend_from_slice(plain);
        }
        write_bulk(out, itoa::Buffer::new().format(trim_count).as_bytes());
        if trims {
            out.extend_from_slice(&trimming[plain.len()..]);
        }
        write_bulk(out, itoa::Buffer::new().format(ts_count).as_bytes());
        out.extend_from_slice(&self.ts);
        3 + trim_count + ts_count
    }

    /// The name of a payload's field, as a bulk string.
    pub(crate) fn payload_name(&self) -> Vec<u8> {
        self.payload_name.to_vec()
    }

    /// Whether messages of this second carry another time than those before.
    #[inline]
    pub(crate) fn is_new_time(&self, second: u64) -> bool {
        self.ts_second != Some(second) && self.ts_field.is_some()
    }

    /// Appends the `ts` pair, if there is one.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ts);
    }
}

/// The start of a command up to its payload. Kept with the last payload's length: many payloads have the same.
#[derive(Debug)]
struct PayloadStart {
    bytes: Vec<u8>,
    /// How many of `bytes` come before the payload's length.
    head: usize,
    length: usize,
}

impl PayloadStart {
    fn new(head: Vec<u8>) -> Self {
        let mut start = Self { head: head.len(), bytes: head, length: 0 };
        write_bulk_length(&mut start.bytes, start.length);
        start
    }

    /// The start for a payload of `length` bytes.
    #[inline]
    fn of(&mut self, length: usize) -> &[u8] {
        if self.length != length {
            self.length = length;
            self.bytes.truncate(self.head);
            write_bulk_length(&mut self.bytes, length);
        }
        &self.bytes
    }
}

/// Appends the trim options; returns how many arguments they are.
fn write_trim(out: &mut Vec<u8>, trim: &Trim) -> usize {
    write_bulk(out, trim.strategy().as_bytes());
    if trim.approximate() {
        write_bulk(out, b"~");
    }
    write_bulk(out, trim.threshold().as_bytes());
    2 + usize::from(trim.approximate())
}
