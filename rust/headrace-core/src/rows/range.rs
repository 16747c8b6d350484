//! Detection of values that their type does not allow, which are times outside a day. Arrow does not check them.

use std::ops::Range;

use arrow_schema::TimeUnit;

use super::column::{Column, Values};
use crate::calendar::per_day;

/// A time outside a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutsideDay {
    value: i64,
    unit: TimeUnit,
}

impl OutsideDay {
    /// The error text for a row with this time in the column.
    pub(super) fn message(self, column: &str) -> String {
        let unit = match self.unit {
            TimeUnit::Second => "s",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Microsecond => "us",
            TimeUnit::Nanosecond => "ns",
        };
        format!("column {column:?}: the time {} {unit} is outside a day", self.value)
    }
}

impl Column<'_> {
    /// Whether any of these rows may hold a time outside a day, including values of null rows and unused values of a
    /// dictionary. Called once per column, so that the rows of most columns are not checked one by one.
    pub(super) fn may_be_outside_day(&self, rows: Range<usize>) -> bool {
        match self.values() {
            Values::Time32(times, unit) => any_outside(times.get(rows), *unit),
            Values::Time64(times, unit) => any_outside(times.get(rows), *unit),
            Values::Dictionary(dictionary) => match dictionary.1.values() {
                Values::Time32(times, unit) => any_outside(Some(times), *unit),
                Values::Time64(times, unit) => any_outside(Some(times), *unit),
                _ => false,
            },
            Values::List(spans, elements) => elements.may_be_outside_day(spans.of(rows)),
            Values::Map(spans, entries) => {
                let rows = spans.of(rows);
                entries.0.may_be_outside_day(rows.clone()) || entries.1.may_be_outside_day(rows)
            }
            Values::Struct(members) => members.iter().any(|(_, member)| member.may_be_outside_day(rows.clone())),
            _ => false,
        }
    }

    /// The first time outside a day in this row.
    pub(super) fn outside_day(&self, row: usize) -> Option<OutsideDay> {
        let (values, row) = self.locate(row)?;
        match values {
            Values::Time32(times, unit) => outside(times[row].into(), *unit),
            Values::Time64(times, unit) => outside(times[row], *unit),
            Values::List(spans, elements) => spans.get(row).find_map(|row| elements.outside_day(row)),
            Values::Map(spans, entries) => {
                spans.get(row).find_map(|row| entries.0.outside_day(row).or_else(|| entries.1.outside_day(row)))
            }
            Values::Struct(members) => members.iter().find_map(|(_, member)| member.outside_day(row)),
            _ => None,
        }
    }
}

fn outside(value: i64, unit: TimeUnit) -> Option<OutsideDay> {
    let is_within = (0..per_day(unit)).contains(&value);
    (!is_within).then_some(OutsideDay { value, unit })
}

fn any_outside<T: Copy + Into<i64> + Ord>(times: Option<&[T]>, unit: TimeUnit) -> bool {
    let Some(times) = times else { return true };
    let ends = [times.iter().min(), times.iter().max()];
    ends.into_iter().flatten().any(|time| outside((*time).into(), unit).is_some())
}
