//! The value of a field that is given by itself, not in a column.

use std::borrow::Cow;

use arrow_schema::TimeUnit;

use super::column::write_bool;
use super::interval::write_day_to_second;
use super::line::Line;
use super::text::{self, Style, write_integer};
use super::time::{in_nanos, write_date, write_time};
use super::timestamps::write_local;

/// The value of a field. Its text is that of a column with its type, by the table in [`super`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// Bytes or text, which are sent unchanged.
    Bytes(Cow<'a, [u8]>),
    /// As a column of bool.
    Bool(bool),
    /// As a column of int64.
    Int(i64),
    /// As a column of float64.
    Float(f64),
    /// As a column of date32: days since 1970-01-01.
    Date(i32),
    /// As a column of time64: microseconds since midnight, within a day.
    Time(i64),
    /// As a column of timestamps.
    Timestamp {
        /// Microseconds since 1970-01-01 of the local time.
        local: i64,
        /// By how many seconds the local time is ahead of UTC; `None`: it is without a zone.
        offset: Option<i32>,
    },
    /// As a column of durations: microseconds.
    Duration(i64),
}

impl Value<'_> {
    /// Appends the value as a bulk string.
    pub(super) fn write_bulk(&self, line: &mut Line<'_>) {
        if let Value::Bytes(bytes) = self {
            return line.push_bulk(bytes);
        }
        line.make_room();
        let value = line.begin_value();
        self.write_text(line);
        line.end_field(value);
    }

    /// Appends the text of a value that is not bytes, which fits in the margin.
    fn write_text(&self, line: &mut Line<'_>) {
        match self {
            Value::Bytes(_) => {}
            Value::Bool(value) => write_bool(line, *value),
            Value::Int(value) => write_integer(line, *value),
            Value::Float(value) => text::write_f64(line, *value, Style::Field),
            Value::Date(days) => write_date(line, (*days).into()),
            Value::Time(micros) => write_time(line, *micros, TimeUnit::Microsecond),
            Value::Timestamp { local, offset } => write_local(line, *local, *offset),
            Value::Duration(micros) => write_day_to_second(line, in_nanos(*micros, TimeUnit::Microsecond)),
        }
    }
}
