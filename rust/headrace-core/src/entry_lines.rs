//! Entries as lines of JSON, and their columns, for the command `headrace read`, which has no Arrow library.

use std::io::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, BinaryArray, RecordBatch, StringArray};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::calendar::civil;
use crate::error::{Error, Result};

/// The last millisecond of the year 9999, where the timestamps of other columns end too.
const LAST_TIMESTAMP: u64 = 253_402_300_799_999;
const MILLISECONDS_OF_DAY: u64 = 86_400_000;

/// The columns of a batch read with the metadata `entry_id` and `entry_ms`, and a list of all fields with names as text.
pub struct EntryTable<'a> {
    /// The entry IDs.
    pub ids: &'a StringArray,
    milliseconds: &'a [u64],
    fields: &'a dyn Array,
    bounds: &'a [i32],
    /// The names of all fields of all entries.
    pub names: &'a StringArray,
    /// Their values.
    pub values: &'a BinaryArray,
}

impl<'a> EntryTable<'a> {
    /// Fails if the batch has other columns.
    pub fn new(batch: &'a RecordBatch) -> Result<Self> {
        let wrong = || Error::Internal { message: "entries were read with other columns".to_owned() };
        let [ids, milliseconds, fields] = batch.columns() else { return Err(wrong()) };
        let lists = fields.as_list_opt::<i32>().ok_or_else(wrong)?;
        let pairs = lists.values().as_struct_opt().ok_or_else(wrong)?;
        let [names, values] = pairs.columns() else { return Err(wrong()) };
        Ok(Self {
            ids: ids.as_string_opt().ok_or_else(wrong)?,
            milliseconds: milliseconds.as_primitive_opt::<UInt64Type>().ok_or_else(wrong)?.values(),
            fields: fields.as_ref(),
            bounds: lists.value_offsets(),
            names: names.as_string_opt().ok_or_else(wrong)?,
            values: values.as_binary_opt().ok_or_else(wrong)?,
        })
    }

    /// The places of a row's fields in `names` and `values`. `None`: the entry was deleted.
    #[allow(clippy::cast_sign_loss)] // offsets are not negative
    pub fn places(&self, row: usize) -> Option<std::ops::Range<usize>> {
        (!self.fields.is_null(row)).then(|| self.bounds[row] as usize..self.bounds[row + 1] as usize)
    }

    /// The milliseconds of a row's ID.
    pub fn millisecond(&self, row: usize) -> u64 {
        self.milliseconds[row]
    }
}

/// A line for each entry: an object with `id`, `timestamp` (null after the year 9999), `stream` and `fields`.
///
/// A value that is not UTF-8 is `{"base64": "…"}`; a name that occurs several times in an entry has an array of its values.
pub fn entry_lines(batch: &RecordBatch, stream: &[u8]) -> Result<Vec<u8>> {
    let table = EntryTable::new(batch)?;
    let mut key = b", \"stream\": ".to_vec();
    push_value(&mut key, stream);
    key.extend_from_slice(b", \"fields\": ");
    let mut out = Vec::with_capacity(batch.num_rows() * (80 + key.len()) + table.values.values().len() * 9 / 8);
    let mut time = (None, Vec::new());
    for row in 0..batch.num_rows() {
        out.extend_from_slice(b"{\"id\": \"");
        out.extend_from_slice(table.ids.value(row).as_bytes());
        out.extend_from_slice(b"\", \"timestamp\": ");
        let millisecond = table.millisecond(row);
        if time.0 != Some(millisecond) {
            time = (Some(millisecond), timestamp(millisecond));
        }
        out.extend_from_slice(&time.1);
        out.extend_from_slice(&key);
        match table.places(row) {
            Some(places) => push_fields(&mut out, &table, places),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b"}\n");
    }
    Ok(out)
}

fn push_fields(out: &mut Vec<u8>, table: &EntryTable<'_>, places: std::ops::Range<usize>) {
    let names: Vec<&str> = places.clone().map(|place| table.names.value(place)).collect();
    let mut sorted: Vec<(&str, usize)> = names.iter().copied().zip(places.clone()).collect();
    let mut is_repeated = false;
    if sorted.len() > 1 {
        sorted.sort_unstable();
        is_repeated = sorted.windows(2).any(|two| two[0].0 == two[1].0);
    }
    out.push(b'{');
    let start = out.len();
    for (name, place) in names.iter().zip(places) {
        let first = sorted.partition_point(|(other, _)| is_repeated && other < name);
        if is_repeated && sorted[first].1 != place {
            continue; // its first occurrence has all values
        }
        if out.len() > start {
            out.extend_from_slice(b", ");
        }
        push_string(out, name);
        out.extend_from_slice(b": ");
        let all = if is_repeated { sorted[first..].iter().take_while(|(other, _)| other == name).count() } else { 1 };
        if all == 1 {
            push_value(out, table.values.value(place));
            continue;
        }
        out.push(b'[');
        for (index, (_, place)) in sorted[first..first + all].iter().enumerate() {
            out.extend_from_slice(if index > 0 { b", " } else { b"" });
            push_value(out, table.values.value(*place));
        }
        out.push(b']');
    }
    out.push(b'}');
}

/// The time of an entry ID in ISO 8601, in UTC.
fn timestamp(millisecond: u64) -> Vec<u8> {
    if millisecond > LAST_TIMESTAMP {
        return b"null".to_vec();
    }
    let (year, month, day) = civil((millisecond / MILLISECONDS_OF_DAY).cast_signed());
    let rest = millisecond % MILLISECONDS_OF_DAY;
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z\"", rest % 1000).into_bytes()
}

fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    if let Ok(text) = simdutf8::basic::from_utf8(value) {
        return push_string(out, text);
    }
    out.extend_from_slice(b"{\"base64\": \"");
    out.extend_from_slice(STANDARD.encode(value).as_bytes());
    out.extend_from_slice(b"\"}");
}

/// Appends a string with the escapes that JSON requires, as Python's `json.dumps(…, ensure_ascii=False)` does.
fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\')) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            // Writing to a vector cannot fail.
            control => drop(write!(out, "\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> String {
        let mut out = Vec::new();
        push_value(&mut out, text.as_bytes());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn strings_are_escaped_as_json_requires() {
        assert_eq!(
            string("a\"\\\n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}ü€"),
            "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}ü€\""
        );
        for text in ["", "plain", "\u{0}", "ends with \"", "\\starts"] {
            assert_eq!(serde_json::from_str::<String>(&string(text)).ok().as_deref(), Some(text));
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_base64() {
        let mut out = Vec::new();
        push_value(&mut out, b"\xff\x00");
        assert_eq!(out, b"{\"base64\": \"/wA=\"}");
    }

    #[test]
    fn times_have_milliseconds_and_end_with_the_year_9999() {
        assert_eq!(timestamp(0), b"\"1970-01-01T00:00:00.000Z\"");
        assert_eq!(timestamp(1_795_324_724_029), b"\"2026-11-22T05:18:44.029Z\"");
        assert_eq!(timestamp(LAST_TIMESTAMP), b"\"9999-12-31T23:59:59.999Z\"");
        assert_eq!(timestamp(LAST_TIMESTAMP + 1), b"null");
        assert_eq!(timestamp(u64::MAX), b"null");
    }
}
