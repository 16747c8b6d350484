//! Dead letters as columns: what they say about an entry, separate from the entry's own fields.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, MapArray, RecordBatch, StructArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema};

use crate::decimal;
use crate::error::Error;
use crate::utf8;

/// The fields that a consumer appends to those of an entry, in this order.
const OF_CONSUMER: [&[u8]; 4] = [b"dead:stream", b"dead:id", b"dead:reason", b"dead:failures"];
/// The only fields of a dead letter whose entry had more than a script can pass on: the last value holds the entry's own.
const OF_WIDE: [&[u8]; 5] = [b"dead:stream", b"dead:id", b"dead:reason", b"dead:failures", b"dead:fields"];
/// The fields of every dead letter from the Spark writer.
const OF_SPARK: [&[u8]; 7] = [b"stream_key", b"code", b"message", b"kind", b"written", b"partition", b"ordinal"];
/// The content that the Spark writer could not write: a payload, or a row. A null payload is omitted.
const CONTENTS: [&[u8]; 2] = [b"payload", b"row"];

/// Names and values of the fields of all entries in a batch.
struct AllFields<'a> {
    names: &'a BinaryArray,
    values: &'a BinaryArray,
}

/// The content of a dead letter, as the positions of its fields.
#[derive(Debug, Default, PartialEq, Eq)]
struct Letter {
    stream: Option<usize>,
    original_id: Option<usize>,
    code: Option<usize>,
    reason: Option<usize>,
    failures: Option<usize>,
    /// The fields of the entry itself.
    own: Vec<usize>,
    /// A field whose value holds the fields of the entry.
    packed: Option<usize>,
}

/// Names and values in turn, each after its length and a colon, as `dead.lua` writes them. `None`: the bytes are something else.
#[derive(Clone, Copy)]
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    fn part(&mut self) -> Option<&'a [u8]> {
        let colon = self.0.iter().position(|byte| *byte == b':')?;
        let length = usize::try_from(decimal::parse(self.0.get(..colon)?)?).ok()?;
        let (part, rest) = self.0.get(colon + 1..)?.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }

    fn pair(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        Some((self.part()?, self.part()?))
    }

    fn is_whole(mut self) -> bool {
        while !self.0.is_empty() {
            if self.pair().is_none() {
                return false;
            }
        }
        true
    }
}

impl AllFields<'_> {
    /// Reads the fields at these positions. In an entry that is not a dead letter, all fields are its own.
    fn letter(&self, places: Range<usize>) -> Letter {
        let own_end = places.end.saturating_sub(OF_CONSUMER.len()).max(places.start);
        let appended = own_end..places.end;
        if appended.len() == OF_CONSUMER.len()
            && appended.clone().zip(OF_CONSUMER).all(|(at, name)| self.names.value(at) == name)
        {
            let [stream, original_id, reason, failures] = [0, 1, 2, 3].map(|more| Some(own_end + more));
            let own = (places.start..own_end).collect();
            return Letter { stream, original_id, reason, failures, own, ..Letter::default() };
        }
        if places.len() == OF_WIDE.len()
            && places.clone().zip(OF_WIDE).all(|(at, name)| self.names.value(at) == name)
            && Packed(self.values.value(places.start + 4)).is_whole()
        {
            let [stream, original_id, reason, failures, packed] = [0, 1, 2, 3, 4].map(|more| Some(places.start + more));
            return Letter { stream, original_id, reason, failures, packed, ..Letter::default() };
        }
        let find = |name: &[u8]| places.clone().rev().find(|at| self.names.value(*at) == name);
        let [stream, code, reason, others @ ..] = OF_SPARK.map(find);
        if [stream, code, reason].contains(&None) || others.contains(&None) {
            return Letter { own: places.collect(), ..Letter::default() };
        }
        let own = CONTENTS.into_iter().filter_map(find).collect();
        Letter { stream, original_id: find(b"entry_id"), code, reason, own, ..Letter::default() }
    }

    fn text(&self, at: Option<usize>) -> Option<String> {
        at.map(|at| utf8::escape(self.values.value(at)).into_owned())
    }
}

/// The dead letters in a batch that was read with three columns: the entry ID, the timestamp, and a list of all fields as
/// bytes. Returns `entry_id`, `timestamp`, `stream`, `original_id`, `code`, `reason`, `failures` and `fields`; the last has
/// the entry's own fields. Also returns the number of entries that are no dead letters.
pub fn dead_letters(batch: &RecordBatch) -> crate::Result<(RecordBatch, u64)> {
    let wrong = || Error::Internal { message: "dead letters were read with unexpected columns".to_owned() };
    let [entry_ids, timestamps, fields] = batch.columns() else { return Err(wrong()) };
    let lists = fields.as_list_opt::<i32>().ok_or_else(wrong)?;
    let pairs = lists.values().as_struct_opt().ok_or_else(wrong)?;
    let [names, values] = pairs.columns() else { return Err(wrong()) };
    let names = names.as_binary_opt::<i32>().ok_or_else(wrong)?;
    let all = AllFields { names, values: values.as_binary_opt::<i32>().ok_or_else(wrong)? };
    let mut texts = [(); 4].map(|()| StringBuilder::new());
    let (mut failures, mut others) = (UInt64Builder::new(), 0);
    let mut own = OwnFields::new(&all).ok_or_else(wrong)?;
    for bounds in lists.value_offsets().windows(2) {
        let [start, end] = [bounds[0], bounds[1]].map(|bound| usize::try_from(bound).unwrap_or_default());
        let letter = all.letter(start..end);
        others += u64::from(letter.reason.is_none());
        for (column, at) in texts.iter_mut().zip([letter.stream, letter.original_id, letter.code, letter.reason]) {
            column.append_option(all.text(at));
        }
        failures.append_option(letter.failures.and_then(|at| decimal::parse(all.values.value(at))));
        own.add(&letter).ok_or_else(wrong)?;
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
    all: &'a AllFields<'a>,
    names: BinaryBuilder,
    values: BinaryBuilder,
    offsets: Vec<i32>,
}

impl<'a> OwnFields<'a> {
    /// `None`: the fields may be larger than an array can be.
    fn new(all: &'a AllFields<'a>) -> Option<Self> {
        let bytes = all.names.value_data().len() + all.values.value_data().len();
        i32::try_from(bytes).ok()?;
        Some(Self { all, names: BinaryBuilder::new(), values: BinaryBuilder::new(), offsets: vec![0] })
    }

    fn add(&mut self, letter: &Letter) -> Option<()> {
        for at in &letter.own {
            self.names.append_value(self.all.names.value(*at));
            self.values.append_value(self.all.values.value(*at));
        }
        let mut packed = Packed(letter.packed.map_or(&[], |at| self.all.values.value(at)));
        while let Some((name, value)) = packed.pair() {
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

    fn letter(fields: &[(&str, &str)]) -> Letter {
        let names = BinaryArray::from_iter_values(fields.iter().map(|(name, _)| name));
        let values = BinaryArray::from_iter_values(fields.iter().map(|(_, value)| value));
        AllFields { names: &names, values: &values }.letter(0..fields.len())
    }

    const TAIL: [(&str, &str); 4] =
        [("dead:stream", "s"), ("dead:id", "1-0"), ("dead:reason", "r"), ("dead:failures", "2")];

    #[test]
    fn fields_appended_by_a_consumer_are_found_at_the_end_in_order() {
        let expected = Letter {
            stream: Some(1),
            original_id: Some(2),
            code: None,
            reason: Some(3),
            failures: Some(4),
            own: vec![0],
            packed: None,
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
        let expected = Letter {
            stream: Some(0),
            original_id: Some(1),
            reason: Some(2),
            failures: Some(3),
            packed: Some(4),
            ..Letter::default()
        };
        for value in ["", "1:a2:1:0:0:"] {
            assert_eq!(letter(&packed(value)), expected);
        }
        for value in ["1:a", "1:a2:1", "1:a1:12", "a", "-1:a1:b", "99999999999999999999:a1:b", ":a"] {
            assert_eq!(letter(&packed(value)), Letter { own: (0..5).collect(), ..Letter::default() }, "{value}");
        }
        assert_eq!(letter(&[&[("a", "1")][..], &packed("")].concat()).own.len(), 6, "no letter has other fields too");
        let mut packed = Packed(b"1:a2:1:0:0:");
        assert_eq!(packed.pair(), Some((&b"a"[..], &b"1:"[..])));
        assert_eq!((packed.pair(), packed.pair()), (Some((&b""[..], &b""[..])), None));
    }

    #[test]
    fn entries_that_are_not_dead_letters_have_only_their_own_fields() {
        let mut moved = TAIL;
        moved.swap(0, 1);
        for fields in [&TAIL[1..], &moved, &[], &[("payload", "x"), ("stream_key", "s"), ("code", "OOM")]] {
            assert_eq!(letter(fields), Letter { own: (0..fields.len()).collect(), ..Letter::default() });
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
        let expected = Letter {
            stream: Some(1),
            original_id: Some(2),
            code: Some(4),
            reason: Some(5),
            failures: None,
            own: vec![0],
            packed: None,
        };
        assert_eq!(letter(&fields), expected);
        assert_eq!(letter(&fields[1..]).own, Vec::<usize>::new(), "its payload was null");
        assert_eq!(letter(&[&fields[..], &TAIL].concat()).own.len(), fields.len(), "the consumer had it last");
    }
}
