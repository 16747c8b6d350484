//! Dead letters as columns: their facts about an entry, separate from the entry's own fields.

mod key;

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, MapArray, RecordBatch, StructArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema};

use crate::decimal;
use crate::error::Error;
use crate::utf8;

pub(crate) use key::{check_dead_letter_key, dead_letter_key};

/// The fields that a consumer appends to those of an entry, in this order.
const OF_CONSUMER: [&[u8]; 4] = [b"dead:stream", b"dead:id", b"dead:reason", b"dead:failures"];
/// The only fields of a dead letter whose entry had more than a script can pass on: the last value holds the entry's own.
const OF_WIDE: [&[u8]; 5] = [b"dead:stream", b"dead:id", b"dead:reason", b"dead:failures", b"dead:fields"];
/// The fields of every dead letter from the Spark writer.
const OF_SPARK: [&[u8]; 7] = [b"stream_key", b"code", b"message", b"kind", b"written", b"partition", b"ordinal"];
/// The fields with the content that the Spark writer could not write: a payload, or a row. A null payload is omitted.
const CONTENTS: [&[u8]; 2] = [b"payload", b"row"];

/// The author of an entry in a stream of dead letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A consumer gave up on the entry.
    Consumer,
    /// The Spark writer could not write the row.
    Spark,
    /// `headrace send` could not write the row.
    Send,
    /// The entry is not a dead letter.
    #[default]
    Other,
}

impl Origin {
    /// The origin as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Spark => "spark",
            Self::Send => "send",
            Self::Other => "other",
        }
    }
}

/// The content of a dead letter, as the positions of its fields.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The author.
    pub origin: Origin,
    /// The key of the stream that the entry was in, or was to be written to.
    pub stream: Option<usize>,
    /// The entry's ID there.
    pub original_id: Option<usize>,
    /// The code of the failure.
    pub code: Option<usize>,
    /// The reason of a consumer, or the message of the failure.
    pub reason: Option<usize>,
    /// How often the entry failed in its group.
    pub failures: Option<usize>,
    /// Whether the entry may be in the stream all the same.
    pub written: Option<usize>,
    /// The file of the row.
    pub source: Option<usize>,
    /// The number of the row in its file or partition.
    pub ordinal: Option<usize>,
    /// The fields of the entry itself.
    pub own: Vec<usize>,
    /// The field whose value holds the fields of the entry: see [`PackedFields`].
    pub packed: Option<usize>,
}

impl DeadLetter {
    /// Reads an entry by the names of its fields and the value of the last one. In an entry that is not a dead letter, all
    /// fields are its own.
    pub fn read(names: &[&[u8]], last_value: &[u8]) -> Self {
        if let Some((own, appended)) = names.split_last_chunk()
            && *appended == OF_CONSUMER
        {
            let [stream, original_id, reason, failures] = [0, 1, 2, 3].map(|more| Some(own.len() + more));
            let own = (0..own.len()).collect();
            return Self { origin: Origin::Consumer, stream, original_id, reason, failures, own, ..Self::default() };
        }
        if names == OF_WIDE && PackedFields(last_value).is_whole() {
            let [stream, original_id, reason, failures, packed] = [0, 1, 2, 3, 4].map(Some);
            return Self { origin: Origin::Consumer, stream, original_id, reason, failures, packed, ..Self::default() };
        }
        let find = |name: &[u8]| names.iter().rposition(|other| *other == name);
        let found = OF_SPARK.map(find);
        if found.contains(&None) {
            return Self { own: (0..names.len()).collect(), ..Self::default() };
        }
        let [stream, code, reason, _, written, _, ordinal] = found;
        let source = find(b"source");
        let origin = if source.is_some() { Origin::Send } else { Origin::Spark };
        let own = CONTENTS.into_iter().filter_map(find).collect();
        let original_id = find(b"entry_id");
        Self { origin, stream, original_id, code, reason, written, source, ordinal, own, ..Self::default() }
    }
}

/// Names and values in turn, each after its length and a colon, as `dead.lua` writes them. The iterator ends early where the
/// bytes are something else.
#[derive(Debug)]
pub struct PackedFields<'a>(pub &'a [u8]);

impl<'a> PackedFields<'a> {
    fn part(&mut self) -> Option<&'a [u8]> {
        let colon = self.0.iter().position(|byte| *byte == b':')?;
        let length = usize::try_from(decimal::parse(self.0.get(..colon)?)?).ok()?;
        let (part, rest) = self.0.get(colon + 1..)?.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }

    fn is_whole(&self) -> bool {
        let mut rest = PackedFields(self.0);
        while !rest.0.is_empty() {
            if rest.next().is_none() {
                return false;
            }
        }
        true
    }
}

impl<'a> Iterator for PackedFields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.part()?, self.part()?))
    }
}

/// Returns the dead letters in a batch that was read with three columns: the entry ID, the timestamp, and a list of all fields as
/// bytes. The columns: `entry_id`, `timestamp`, `stream`, `original_id`, `code`, `reason`, `failures` and `fields`; the last has
/// the entry's own fields. Also returns the number of entries that are no dead letters.
pub fn dead_letters(batch: &RecordBatch) -> crate::Result<(RecordBatch, u64)> {
    let wrong = || Error::Internal { message: "dead letters were read with unexpected columns".to_owned() };
    let [entry_ids, timestamps, fields] = batch.columns() else { return Err(wrong()) };
    let lists = fields.as_list_opt::<i32>().ok_or_else(wrong)?;
    let pairs = lists.values().as_struct_opt().ok_or_else(wrong)?;
    let [names, values] = pairs.columns() else { return Err(wrong()) };
    let names = names.as_binary_opt::<i32>().ok_or_else(wrong)?;
    let values = values.as_binary_opt::<i32>().ok_or_else(wrong)?;
    let mut texts = [(); 4].map(|()| StringBuilder::new());
    let (mut failures, mut others) = (UInt64Builder::new(), 0);
    let mut own = OwnFields::new(names, values).ok_or_else(wrong)?;
    let mut entry_names = Vec::new();
    for bounds in lists.value_offsets().windows(2) {
        let [start, end] = [bounds[0], bounds[1]].map(|bound| usize::try_from(bound).unwrap_or_default());
        entry_names.clear();
        entry_names.extend((start..end).map(|at| names.value(at)));
        let letter = DeadLetter::read(&entry_names, if start < end { values.value(end - 1) } else { &[] });
        others += u64::from(letter.origin == Origin::Other);
        let value = |at: usize| values.value(start + at);
        for (column, at) in texts.iter_mut().zip([letter.stream, letter.original_id, letter.code, letter.reason]) {
            column.append_option(at.map(|at| utf8::escape(value(at))));
        }
        failures.append_option(letter.failures.and_then(|at| decimal::parse(value(at))));
        own.add(&letter, start).ok_or_else(wrong)?;
    }
    let built = own.finish().and_then(|fields| {
        let [stream, original_id, code, reason] =
            texts.each_mut().map(|column| -> ArrayRef { Arc::new(column.finish()) });
        let columns = [
            ("entry_id", Arc::clone(entry_ids)),
            ("timestamp", Arc::clone(timestamps)),
            ("stream", stream),
            ("original_id", original_id),
            ("code", code),
            ("reason", reason),
            ("failures", Arc::new(failures.finish()) as ArrayRef),
            ("fields", fields),
        ];
        let schema: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(schema)), columns.into_iter().map(|(_, column)| column).collect())
    });
    built
        .map(|letters| (letters, others))
        .map_err(|error| Error::Internal { message: format!("building a record batch of dead letters: {error}") })
}

/// A map of the own fields of each row.
struct OwnFields<'a> {
    all: [&'a BinaryArray; 2],
    names: BinaryBuilder,
    values: BinaryBuilder,
    offsets: Vec<i32>,
}

impl<'a> OwnFields<'a> {
    /// `None`: the fields may be larger than an array can be.
    fn new(names: &'a BinaryArray, values: &'a BinaryArray) -> Option<Self> {
        i32::try_from(names.value_data().len() + values.value_data().len()).ok()?;
        let all = [names, values];
        Some(Self { all, names: BinaryBuilder::new(), values: BinaryBuilder::new(), offsets: vec![0] })
    }

    /// Adds a dead letter whose first field is at `start`.
    fn add(&mut self, letter: &DeadLetter, start: usize) -> Option<()> {
        let [names, values] = self.all;
        for at in &letter.own {
            self.names.append_value(names.value(start + at));
            self.values.append_value(values.value(start + at));
        }
        for (name, value) in PackedFields(letter.packed.map_or(&[], |at| values.value(start + at))) {
            self.names.append_value(name);
            self.values.append_value(value);
        }
        self.offsets.push(i32::try_from(self.names.len()).ok()?);
        Some(())
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let pairs: Vec<ArrayRef> = vec![Arc::new(self.names.finish()), Arc::new(self.values.finish())];
        let types = [Field::new("key", DataType::Binary, false), Field::new("value", DataType::Binary, true)];
        let pairs = StructArray::try_new(Fields::from_iter(types), pairs, None)?;
        let entries = Arc::new(Field::new("entries", pairs.data_type().clone(), false));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        Ok(Arc::new(MapArray::try_new(entries, offsets, pairs, None, false)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(fields: &[(&str, &str)]) -> DeadLetter {
        let names: Vec<_> = fields.iter().map(|(name, _)| name.as_bytes()).collect();
        DeadLetter::read(&names, fields.last().map_or(&[], |(_, value)| value.as_bytes()))
    }

    const TAIL: [(&str, &str); 4] =
        [("dead:stream", "s"), ("dead:id", "1-0"), ("dead:reason", "r"), ("dead:failures", "2")];

    #[test]
    fn fields_appended_by_a_consumer_are_found_at_the_end_in_order() {
        let expected = DeadLetter {
            origin: Origin::Consumer,
            stream: Some(1),
            original_id: Some(2),
            reason: Some(3),
            failures: Some(4),
            own: vec![0],
            ..DeadLetter::default()
        };
        assert_eq!(letter(&[&[("a", "1")][..], &TAIL].concat()), expected);
        // A dead letter that became a dead letter again: the inner one is its content.
        let twice = letter(&[&[("a", "1")][..], &TAIL, &TAIL].concat());
        assert_eq!((twice.stream, twice.own), (Some(5), vec![0, 1, 2, 3, 4]));
        assert_eq!(letter(&TAIL).own, Vec::<usize>::new());
    }

    #[test]
    fn the_fields_of_a_wide_entry_are_in_one_value() {
        let packed = |value| [&TAIL[..], &[("dead:fields", value)]].concat();
        let expected = DeadLetter {
            origin: Origin::Consumer,
            stream: Some(0),
            original_id: Some(1),
            reason: Some(2),
            failures: Some(3),
            packed: Some(4),
            ..DeadLetter::default()
        };
        for value in ["", "1:a2:1:0:0:"] {
            assert_eq!(letter(&packed(value)), expected);
        }
        for value in ["1:a", "1:a2:1", "1:a1:12", "a", "-1:a1:b", "99999999999999999999:a1:b", ":a"] {
            assert_eq!(
                letter(&packed(value)),
                DeadLetter { own: (0..5).collect(), ..DeadLetter::default() },
                "{value}"
            );
        }
        assert_eq!(letter(&[&[("a", "1")][..], &packed("")].concat()).own.len(), 6, "no letter has other fields too");
        let pairs: Vec<_> = PackedFields(b"1:a2:1:0:0:").collect();
        assert_eq!(pairs, [(&b"a"[..], &b"1:"[..]), (b"", b"")]);
    }

    #[test]
    fn entries_that_are_not_dead_letters_have_only_their_own_fields() {
        let mut moved = TAIL;
        moved.swap(0, 1);
        for fields in [&TAIL[1..], &moved, &[], &[("payload", "x"), ("stream_key", "s"), ("code", "OOM")]] {
            assert_eq!(letter(fields), DeadLetter { own: (0..fields.len()).collect(), ..DeadLetter::default() });
        }
    }

    #[test]
    fn dead_letters_of_the_spark_writer_are_identified_by_field_names() {
        let fields = [
            ("payload", "x"),
            ("stream_key", "s"),
            ("entry_id", "5-1"),
            ("kind", "permanent"),
            ("code", "OOM"),
            ("message", "m"),
            ("written", "no"),
            ("partition", "0"),
            ("ordinal", "7"),
        ];
        let mut expected = DeadLetter {
            origin: Origin::Spark,
            stream: Some(1),
            original_id: Some(2),
            code: Some(4),
            reason: Some(5),
            written: Some(6),
            ordinal: Some(8),
            own: vec![0],
            ..DeadLetter::default()
        };
        assert_eq!(letter(&fields), expected);
        (expected.origin, expected.source) = (Origin::Send, Some(9));
        assert_eq!(letter(&[&fields[..], &[("source", "orders.csv")]].concat()), expected);
        assert_eq!(letter(&fields[1..]).own, Vec::<usize>::new(), "its payload was null");
        assert_eq!(letter(&[&fields[..], &TAIL].concat()).own.len(), fields.len(), "the consumer had it last");
    }
}
