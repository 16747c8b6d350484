//! Replies with entries of streams, compared with [`slow`](super::slow): the same entries as soon as they have arrived,
//! however the bytes are split, and the same columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{TimestampMillisecondType, UInt64Type};
use arrow_array::{Array as _, RecordBatch, StructArray};

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::scanner::{ALPHABET, FILLER, spoil, write_bulk, write_id, write_line};
use super::slow::{self, Pairs, Stop, StreamEnd, StreamPart};
use crate::command::EntryId;
use crate::entries::{BodyPlan, ColumnsPlan, EntryColumns, FieldsAs, MapPlan, MetadataColumn, NamesAs, unescaped};
use crate::resp::stream_reply::{EntrySink, Limits, Shape, StreamReply, Wrong};

const NAMES: [&[u8]; 12] = [
    b"id",
    b"total",
    b"a",
    b"b",
    b"",
    b"\xff",
    b"\\xff",
    b"a\\",
    "größe".as_bytes(),
    b"\xe2\x82",
    b"x\r\ny",
    b"$1\r\n",
];
const KEYS: [&[u8]; 5] = [b"orders", b"", b"re\\turns", b"\xff\xfe", b"*1\r\n$-1\r\n"];

/// The expected content of a row.
struct Row {
    stream: Vec<u8>,
    id: (u64, u64),
    fields: Option<Pairs>,
}

/// A sink that records the parts it receives, and also builds columns from them.
struct Told {
    parts: Vec<StreamPart>,
    is_open: bool,
    fields_to_come: usize,
    columns: EntryColumns,
    most_rows: usize,
}

impl EntrySink for Told {
    fn stream(&mut self, key: &[u8]) {
        assert!(!self.is_open);
        self.parts.push(StreamPart::Stream(key.to_vec()));
        self.columns.stream(key);
    }

    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        assert!(!self.is_open && !self.is_full());
        self.is_open = true;
        self.fields_to_come = fields.unwrap_or(0);
        self.parts.push(StreamPart::Entry { id: (id.ms, id.seq), fields: fields.map(|_| Vec::new()) });
        self.columns.entry(id, fields);
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.fields_to_come -= 1;
        let Some(StreamPart::Entry { fields: Some(fields), .. }) = self.parts.last_mut() else { panic!("no entry") };
        fields.push((name.to_vec(), value.to_vec()));
        self.columns.field(name, value);
    }

    fn end(&mut self) {
        assert!(self.is_open && self.fields_to_come == 0);
        self.is_open = false;
        self.columns.end();
    }

    fn is_full(&self) -> bool {
        self.columns.rows() >= self.most_rows
    }
}

/// The number of executions by how they ended, and what they read.
#[derive(Debug, Default)]
pub struct Ends {
    whole: u64,
    errors: u64,
    wrong: u64,
    more: u64,
    entries: u64,
    record_batches: u64,
}

/// The expected columns of an execution.
struct Columns {
    plan: Arc<ColumnsPlan>,
    map: MapPlan,
    /// The stream of the last row so far.
    stream: Vec<u8>,
}

impl Columns {
    fn new(chance: &mut Chance) -> Self {
        let fields_as = *chance.pick(&[FieldsAs::Map, FieldsAs::List]);
        let map = MapPlan { fields_as, names_as: *chance.pick(&[NamesAs::Utf8, NamesAs::Binary]) };
        let chosen = MetadataColumn::ALL.into_iter().filter(|_| !chance.one_in(4));
        let metadata = chosen.map(|column| (column, column.name().to_owned())).collect();
        let plan = Arc::new(ColumnsPlan::new(metadata, None, BodyPlan::Map(map)).unwrap());
        Self { plan, map, stream: Vec::new() }
    }

    /// Checks a record batch built from these parts.
    fn check(&mut self, parts: &[StreamPart], columns: &mut EntryColumns) {
        let mut rows = Vec::new();
        for part in parts {
            match part {
                StreamPart::Stream(key) => self.stream.clone_from(key),
                StreamPart::Entry { id, fields } => {
                    rows.push(Row { stream: self.stream.clone(), id: *id, fields: fields.clone() });
                }
            }
        }
        let bytes = columns.bytes();
        let batch = columns.finish().unwrap();
        assert_eq!((batch.num_rows(), batch.schema()), (rows.len(), self.plan.schema()));
        let taken: usize = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap()).sum();
        assert!(bytes + rows.len() / 8 + 64 >= taken, "{bytes} bytes, then {taken}");
        for (row, expected) in rows.iter().enumerate() {
            check_metadata(&batch, row, expected);
            let fields = self.fields(&batch, row);
            let kept = expected.fields.as_ref().map(|fields| self.kept(fields));
            assert_eq!(fields, kept, "row {row}");
        }
    }

    /// The fields that the column must have.
    fn kept(&self, fields: &Pairs) -> Pairs {
        if self.map.fields_as == FieldsAs::List {
            return fields.clone();
        }
        let last: HashMap<&[u8], usize> =
            fields.iter().enumerate().map(|(place, (name, _))| (&name[..], place)).collect();
        let is_last = |(place, (name, _)): &(usize, &(Vec<u8>, Vec<u8>))| last[&name[..]] == *place;
        fields.iter().enumerate().filter(is_last).map(|(_, pair)| pair.clone()).collect()
    }

    /// The fields that the column has.
    fn fields(&self, batch: &RecordBatch, row: usize) -> Option<Pairs> {
        let column = batch.column_by_name("fields").unwrap();
        let pairs: StructArray = match self.map.fields_as {
            FieldsAs::Map => column.as_map().value(row),
            FieldsAs::List => column.as_list::<i32>().value(row).as_struct().clone(),
        };
        let name = |at| match self.map.names_as {
            NamesAs::Utf8 => name_of(pairs.column(0).as_string::<i32>().value(at)),
            NamesAs::Binary => pairs.column(0).as_binary::<i32>().value(at).to_vec(),
        };
        let values = pairs.column(1).as_binary::<i32>();
        column.is_valid(row).then(|| (0..pairs.len()).map(|at| (name(at), values.value(at).to_vec())).collect())
    }
}

/// The bytes that this text stands for.
fn name_of(text: &str) -> Vec<u8> {
    let name = unescaped(text).unwrap();
    assert!(text.as_bytes() == name || std::str::from_utf8(&name).is_err() || name.contains(&b'\\'), "{text}");
    name
}

fn check_metadata(batch: &RecordBatch, row: usize, expected: &Row) {
    let (ms, seq) = expected.id;
    let text = |name| batch.column_by_name(name).map(|column| column.as_string::<i32>().value(row));
    let number = |name| batch.column_by_name(name).map(|column| column.as_primitive::<UInt64Type>().value(row));
    assert!(text("stream").is_none_or(|stream| name_of(stream) == expected.stream));
    assert!(text("entry_id").is_none_or(|id| id == format!("{ms}-{seq}")));
    assert!(
        number("entry_ms").is_none_or(|number| number == ms) && number("entry_seq").is_none_or(|number| number == seq)
    );
    if let Some(column) = batch.column_by_name("timestamp") {
        let time = column.is_valid(row).then(|| column.as_primitive::<TimestampMillisecondType>().value(row));
        assert_eq!(time, i64::try_from(ms).ok().filter(|ms| *ms < 253_402_300_800_000));
    }
}

/// Checks a reply that arrives in pieces against the result of the slow reader.
pub fn check(ends: &mut Ends, bytes: &[u8], shape: Shape, limits: Limits, chance: &mut Chance) {
    let (parts, end) = slow::stream_parts(bytes, shape, &limits);
    let mut columns = Columns::new(chance);
    let mut told = Told {
        parts: Vec::new(),
        is_open: false,
        fields_to_come: 0,
        columns: EntryColumns::new(&columns.plan),
        most_rows: if chance.one_in(2) { usize::MAX } else { 1 + chance.size(8) },
    };
    if shape == Shape::Entries {
        columns.stream = chance.part(&KEYS).to_vec();
        told.columns.stream(&columns.stream);
    }
    let longest = match chance.below(4) {
        0 => 1,
        1 => bytes.len().max(1),
        _ => 1 + chance.size(bytes.len()),
    };
    let mut reply = StreamReply::new(shape, limits);
    // The start of the unconsumed bytes; the number of bytes received; the number needed; the number of parts already in a
    // record batch.
    let (mut start, mut fed, mut needed, mut taken) = (0, 0, 0, 0);
    let found = loop {
        let rest = if chance.one_in(2) { reply.look_ahead(&bytes[start..fed], &mut told) } else { None };
        let scanned = match reply.scan(&bytes[start..fed], &mut told) {
            Ok(scanned) => scanned,
            Err(wrong) => break Err(wrong),
        };
        assert!(scanned.consumed == 0 || fed - start >= needed, "{} of {needed} bytes sufficed", fed - start);
        assert!(rest.is_none() || scanned.done || told.is_full(), "not all of it is here");
        start += scanned.consumed;
        needed = scanned.needed;
        let here = parts.iter().take_while(|(_, end)| *end <= fed).count();
        if scanned.done {
            assert_eq!(needed, 0);
            break Ok(());
        }
        if told.is_full() && needed == 0 {
            columns.check(&told.parts[taken..], &mut told.columns);
            (taken, ends.record_batches) = (told.parts.len(), ends.record_batches + 1);
            continue;
        }
        assert_eq!(told.parts.len(), here, "after {fed} of {}", shown(bytes));
        assert!(needed > fed - start, "needs {needed}, has {}", fed - start);
        if fed == bytes.len() {
            break Ok(());
        }
        fed = bytes.len().min(fed + 1 + bytes.len() / 100 + chance.below(longest));
    };
    assert!(told.parts.iter().eq(parts.iter().take(told.parts.len()).map(|part| &part.0)), "{}", shown(bytes));
    columns.check(&told.parts[taken..], &mut told.columns);
    ends.record_batches += 1;
    ends.entries += parts.iter().filter(|part| matches!(part.0, StreamPart::Entry { .. })).count() as u64;
    match (&end, found) {
        (StreamEnd::Whole(length), Ok(())) => {
            assert_eq!((start, needed, told.parts.len()), (*length, 0, parts.len()), "{}", shown(bytes));
            ends.whole += 1;
        }
        (StreamEnd::Error(text), Err(Wrong::Error(range))) => {
            assert_eq!(bytes[start..][range], text[..]);
            ends.errors += 1;
        }
        (StreamEnd::Not(Stop::More), Ok(())) => {
            assert!(needed > 0, "it is complete: {}", shown(bytes));
            ends.more += 1;
        }
        (StreamEnd::Not(Stop::Wrong), found) => {
            let is_refused = matches!(found, Err(Wrong::Violation(_))) || {
                // The scanner may wait for the end of an invalid line or ID, but not for long.
                let filled = [&bytes[start..], &vec![b'x'; FILLER]].concat();
                told.most_rows = usize::MAX;
                matches!(reply.scan(&filled, &mut told), Err(Wrong::Violation(_)))
            };
            assert!(is_refused, "waits for ever: {}", shown(bytes));
            ends.wrong += 1;
        }
        (end, found) => panic!("{end:?}, but {found:?}: {}", shown(bytes)),
    }
}

fn shown(bytes: &[u8]) -> String {
    format!("{} bytes: {}", bytes.len(), bytes[..bytes.len().min(2_000)].escape_ascii())
}

/// Generates a reply like those of servers, and worse.
pub fn make(shape: Shape, chance: &mut Chance) -> Vec<u8> {
    let mut bytes = Vec::new();
    match chance.below(24) {
        0 => bytes.extend_from_slice(chance.part(&[&b"*-1\r\n"[..], b"$-1\r\n", b"*0\r\n"])),
        1 => {
            let longest = if chance.one_in(200) { 65_560 } else { 60 };
            bytes.push(b'-');
            bytes.extend((0..chance.size(longest)).map(|_| chance.pick(b"NOGROUP WRONGTYPE x\0\xff\n-$")));
            bytes.extend_from_slice(b"\r\n");
        }
        2 => {
            let length = chance.size(60);
            bytes.extend((0..length).map(|_| chance.pick(ALPHABET)));
        }
        _ if shape == Shape::Entries => write_entries(&mut bytes, chance),
        _ => {
            let streams = 1 + chance.size(3);
            write_line(&mut bytes, b'*', streams as u64, chance);
            for _ in 0..streams {
                write_line(&mut bytes, b'*', 2, chance);
                write_bulk(&mut bytes, chance.part(&KEYS), chance);
                if chance.one_in(16) {
                    bytes.extend_from_slice(b"*-1\r\n");
                } else {
                    write_entries(&mut bytes, chance);
                }
            }
        }
    }
    if chance.one_in(2) {
        for _ in 0..1 + chance.size(3) {
            spoil(&mut bytes, chance);
        }
    }
    if chance.one_in(4) {
        bytes.extend_from_slice(chance.part(&[&b"*1\r\n"[..], b"-", b"$5\r\n", b"\r\n"]));
    }
    bytes
}

fn write_entries(out: &mut Vec<u8>, chance: &mut Chance) {
    let entries = if chance.one_in(100) { chance.size(300) } else { chance.below(8) };
    let mut id = (chance.next() >> chance.below(64), chance.next() >> chance.below(64));
    let mut names = names(chance);
    write_line(out, b'*', entries as u64, chance);
    for _ in 0..entries {
        write_line(out, b'*', 2, chance);
        write_id(out, &mut id, chance);
        if chance.one_in(16) {
            out.extend_from_slice(chance.part(&[&b"*-1\r\n"[..], b"$-1\r\n"]));
            continue;
        }
        if chance.one_in(4) {
            names = self::names(chance);
        }
        write_line(out, b'*', 2 * names.len() as u64, chance);
        for name in &names {
            write_bulk(out, name, chance);
            let length = if chance.one_in(2_000) { 60_000 + chance.below(8_000) } else { chance.size(40) };
            let length = if chance.one_in(50) { 90 + chance.below(1_000) } else { length };
            let value = chance.bytes(length);
            write_bulk(out, &value, chance);
        }
    }
}

fn names(chance: &mut Chance) -> Vec<&'static [u8]> {
    let longest = if chance.one_in(50) { 40 } else { 6 };
    (0..chance.size(longest)).map(|_| chance.part(&NAMES)).collect()
}

#[cfg(test)]
#[test]
fn stream_reply() {
    let one = |ends: &mut Ends, chance: &mut Chance| {
        let shape = *chance.pick(&[Shape::Entries, Shape::Streams]);
        let bytes = make(shape, chance);
        let limits = if chance.one_in(2) {
            Limits { entry_bytes: 100 + chance.size(60_000), reply_entries: 40, fields: 7, streams: 3 }
        } else {
            Limits { entry_bytes: 1 << 24, ..Limits::default() }
        };
        check(ends, &bytes, shape, limits, chance);
    };
    Runner::new("stream_reply", 10_000).run(&mut Ends::default(), one, |ends| {
        format!(
            "{} whole, {} errors, {} no reply, {} not whole, {} entries, {} record batches",
            ends.whole, ends.errors, ends.wrong, ends.more, ends.entries, ends.record_batches
        )
    });
}
