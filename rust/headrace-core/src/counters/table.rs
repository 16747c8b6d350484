//! The rows of the tables of counters: one row holds everything that is known about a counter.
//!
//! The attributes of Python's statistics and of a consumer's report, the exported metrics, and the tables of counters in docs/
//! are all made of these rows.

use super::cell::CounterValue;

/// The values of counters at one moment, by name.
pub type CounterValues = Vec<(&'static str, CounterValue)>;

/// One counter: a row of a table such as [`DISPATCHER_COUNTERS`](super::DISPATCHER_COUNTERS).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CounterSpec {
    /// The counter's name. The names of the exported metrics follow from it.
    pub name: &'static str,
    /// The value before anything was counted.
    pub zero: CounterValue,
    /// Whether the value may decrease. If not, it only grows.
    pub is_gauge: bool,
    /// The unit, in the notation of OpenTelemetry.
    pub unit: &'static str,
    /// The description of the exported metric. `None`: the counter is not exported.
    pub help: Option<&'static str>,
    /// For a time, the name of the seconds since then, which are exported in its place.
    pub age: Option<&'static str>,
    /// Whether statistics have the counter.
    pub in_stats: bool,
    /// Whether the report of a consumer has the counter. Other owners of counters have no such report.
    pub in_report: bool,
    /// The counter's meaning, in sentences for the documentation.
    pub text: &'static str,
}

/// A row of a counter that only grows; the table adds its name, its value and its text.
pub(crate) const fn counter(unit: &'static str, help: &'static str) -> CounterSpec {
    CounterSpec { is_gauge: false, ..gauge(unit, help) }
}

/// A row of a counter that may decrease.
pub(crate) const fn gauge(unit: &'static str, help: &'static str) -> CounterSpec {
    CounterSpec { unit, help: Some(help), ..hidden() }
}

/// A row of a time. The seconds since then are exported, under the name `age`.
pub(crate) const fn time(age: &'static str, help: &'static str) -> CounterSpec {
    CounterSpec { age: Some(age), ..gauge("s", help) }
}

/// A row of a value that may decrease and is not exported.
pub(crate) const fn hidden() -> CounterSpec {
    CounterSpec {
        name: "",
        zero: CounterValue::Count(0),
        is_gauge: true,
        unit: "",
        help: None,
        age: None,
        in_stats: true,
        in_report: true,
        text: "",
    }
}

/// A row of the report of a consumer whose statistics count the same in a row of the reader's table.
pub(crate) const fn report_only() -> CounterSpec {
    CounterSpec { in_stats: false, ..hidden() }
}

/// The same row, for a counter that the report of a consumer does not have.
pub(crate) const fn stats_only(row: CounterSpec) -> CounterSpec {
    CounterSpec { in_report: false, ..row }
}

/// Defines a struct of counters and their table. Each row has the form `name: Cell = row,`, and its doc comment is the row's
/// text. After `and` come the fields that are not in the table. Without `and` all cells are numbers, and structs can be added up.
macro_rules! counter_table {
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident in $table:ident {
            $($(#[doc = $text:literal])+ $field_vis:vis $field:ident: $cell:ty = $row:expr,)+
        }
    ) => {
        counter_table! {
            $(#[$meta])* $vis struct $name in $table {
                $($(#[doc = $text])+ $field_vis $field: $cell = $row,)+
            } and {}
        }

        impl $name {
            /// Returns the sum of both.
            pub(crate) fn with(&self, other: &Self) -> Self {
                Self { $($field: self.$field + other.$field),+ }
            }
        }
    };
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident in $table:ident {
            $($(#[doc = $text:literal])+ $field_vis:vis $field:ident: $cell:ty = $row:expr,)+
        } and {
            $($(#[$own_meta:meta])* $own_vis:vis $own:ident: $own_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $text])+ $field_vis $field: $cell,)+
            $($(#[$own_meta])* $own_vis $own: $own_type,)*
        }

        #[doc = concat!("The table of `", stringify!($name), "`.")]
        pub const $table: &[$crate::counters::CounterSpec] = &[$(
            $crate::counters::CounterSpec {
                name: stringify!($field),
                zero: <$cell as $crate::counters::Cell>::ZERO,
                text: concat!($($text),+),
                ..$row
            }
        ),+];

        impl $name {
            /// The values of the table's counters, in its order. Counters that change during the call may not be consistent
            /// with each other.
            $vis fn values(&self) -> $crate::counters::CounterValues {
                vec![$((stringify!($field), $crate::counters::Cell::value(&self.$field))),+]
            }
        }
    };
}
pub(crate) use counter_table;

#[cfg(test)]
mod tests {
    use crate::consumer::{CONSUMER_COUNTERS, ReadReport};
    use crate::counters::{Counters, DISPATCHER_COUNTERS, NODE_COUNTERS, NodeCounters, READER_COUNTERS, ReadCounters};

    #[test]
    fn a_struct_has_the_values_of_its_table_in_its_order() {
        let pairs = [
            (DISPATCHER_COUNTERS, Counters::default().values()),
            (NODE_COUNTERS, NodeCounters::default().values()),
            (READER_COUNTERS, ReadCounters::default().values()),
            (CONSUMER_COUNTERS, ReadReport::default().values()),
        ];
        for (table, values) in pairs {
            assert!(table.len() > 5);
            let rows: Vec<_> = table.iter().map(|row| (row.name, row.zero)).collect();
            assert_eq!(values, rows);
        }
    }
}
