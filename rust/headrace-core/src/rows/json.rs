//! A row as JSON, byte for byte like Spark's `to_json`: <https://spark.apache.org/docs/latest/api/sql/#to_json>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::column::{Column, Values};
use super::line::{Line, Piece};
use super::string::{write_string, write_unchecked};
use super::text::{Style, write_integer};
use super::time;

/// Appends an object without its null members.
pub(super) fn write_object(members: &[(Piece<'_>, Column<'_>)], row: usize, out: &mut Line<'_>) {
    let mut is_empty = true;
    for (key, column) in members {
        let Some((values, place)) = column.locate(row) else { continue };
        out.make_room();
        if is_empty {
            // The bracket replaces the key's comma.
            out.push_piece_with(b'{', key);
            is_empty = false;
        } else {
            out.push_piece(key);
        }
        write_value(values, place, out);
    }
    if is_empty {
        out.push(b"{");
    }
    out.push(b"}");
}

#[inline(always)]
fn write_value(values: &Values<'_>, row: usize, out: &mut Line<'_>) {
    match values {
        Values::Text(text) => write_string(out, text.get(row)),
        Values::Binary(_) | Values::Unchecked(_) | Values::Struct(_) | Values::List(..) | Values::Map(..) => {
            write_large(values, row, out);
        }
        Values::Date32(_) | Values::Date64(_) | Values::Time32(..) | Values::Time64(..) | Values::Timestamp(_) => {
            out.push(b"\"");
            values.write_time(row, out, Style::Json);
            out.push(b"\"");
        }
        Values::Uuid(_) | Values::Interval(_) => {
            out.push(b"\"");
            values.write_text(row, out, Style::Json);
            out.push(b"\"");
        }
        values => values.write_text(row, out, Style::Json),
    }
}

/// Appends a value of unbounded size: the recursive part of [`write_value`].
fn write_large(values: &Values<'_>, row: usize, out: &mut Line<'_>) {
    match values {
        Values::Binary(bytes) => write_base64(out, bytes.get(row)),
        Values::Unchecked(bytes) => write_unchecked(out, bytes.get(row)),
        Values::Struct(members) => write_object(members, row, out),
        Values::List(spans, elements) => {
            out.push(b"[");
            for (index, place) in spans.get(row).enumerate() {
                out.push_start(b",", usize::from(index > 0));
                write_or_null(elements, place, out);
            }
            out.push(b"]");
        }
        Values::Map(spans, entries) => {
            out.push(b"{");
            for (index, place) in spans.get(row).enumerate() {
                out.push_start(b",", usize::from(index > 0));
                write_map_key(&entries.0, place, out);
                out.push(b":");
                write_or_null(&entries.1, place, out);
            }
            out.push(b"}");
        }
        _ => {}
    }
    // Many nested values may end here.
    out.make_room();
}

fn write_or_null(column: &Column<'_>, row: usize, out: &mut Line<'_>) {
    out.make_room();
    match column.locate(row) {
        Some((values, place)) => write_value(values, place, out),
        None => out.push(b"null"),
    }
}

/// Appends a map key as Spark does, which prints its internal value: a date as days since 1970, a timestamp as
/// microseconds, a time of day as nanoseconds, an interval as microseconds or months.
///
/// Arrow forbids null keys; one that a producer sends anyway is written as "null".
fn write_map_key(keys: &Column<'_>, row: usize, out: &mut Line<'_>) {
    out.make_room();
    let Some((values, place)) = keys.locate(row) else { return out.push(b"\"null\"") };
    match values {
        Values::Text(text) => return write_string(out, text.get(place)),
        Values::Unchecked(bytes) => return write_unchecked(out, bytes.get(place)),
        _ => {}
    }
    out.push(b"\"");
    match values {
        Values::Date32(days) => write_integer(out, days[place]),
        Values::Date64(millis) => write_integer(out, time::day_of_millis(millis[place])),
        Values::Timestamp(times) => write_integer(out, times.micros(place)),
        Values::Time32(times, unit) => write_integer(out, time::in_nanos(times[place].into(), *unit)),
        Values::Time64(times, unit) => write_integer(out, time::in_nanos(times[place], *unit)),
        Values::Interval(intervals) => intervals.write_map_key(place, out),
        // `Style::Field`, because `Style::Json` would put NaN in quotes.
        Values::F16(_) | Values::F32(_) | Values::F64(_) => values.write_text(place, out, Style::Field),
        values => values.write_text(place, out, Style::Json),
    }
    out.push(b"\"");
}

fn write_base64(out: &mut Line<'_>, bytes: &[u8]) {
    // Three bytes become four letters, so the parts can be encoded one after the other.
    const PART: usize = 3 * 64;
    let mut letters = [0; PART / 3 * 4];
    out.push(b"\"");
    for part in bytes.chunks(PART) {
        // The buffer has exactly the right size: this cannot fail.
        let length = STANDARD.encode_slice(part, &mut letters).unwrap_or_default();
        out.push_bytes(&letters[..length]);
    }
    out.push(b"\"");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_is_padded_base64() {
        for (bytes, text) in
            [(&b""[..], "\"\""), (b"\x00", "\"AA==\""), (b"\x00\xff", "\"AP8=\""), (b"\xff\xfe\xfd", "\"//79\"")]
        {
            assert_eq!(Line::written(|out| write_base64(out, bytes)), text.as_bytes());
        }
    }
}
