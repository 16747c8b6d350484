//! The options of a write, in addition to those of the endpoint and the dispatcher.

use std::sync::LazyLock;

use crate::dispatcher::LAYOUT_OPTIONS;
use crate::endpoint::OptionDefault::Text;
use crate::endpoint::{OptionSpec, Takes, option, option_table};

option_table! {
    /// Options that no other table has.
    OWN_OPTIONS:

    /// Columns to leave out; `*` means all columns that have no role.
    ignore_columns => option(Takes::Columns);
    /// What happens to rows that cannot be written: `fail` ends the task, `report` counts and logs them, `dead_letter` writes
    /// them to the stream `dead_letter_key`.
    on_failure => option(Takes::Choice(&["fail", "report", "dead_letter"])).or(Text("fail"));
    /// With `dead_letter`: key of the stream for these rows; required.
    dead_letter_key => option(Takes::Text);
    /// With `report` or `dead_letter`: the write fails if more than this number of rows fail.
    max_failed_rows => option(COUNT);
    /// With `report` or `dead_letter`: the write fails if more than this share of its rows fail.
    max_failed_ratio => option(Takes::Number { min: 0.0, max: 1.0 });
    /// Name of the job, for exactly-once batch writes; needs `txn_version`.
    txn_app_id => option(Takes::Text);
    /// Number of the write, increasing from one write to the next; needs `txn_app_id`.
    txn_version => option(COUNT);
}

const COUNT: Takes = Takes::Integer { min: 0, max: i64::MAX };

/// Every option that is the data source's own: those of a layout, and `OWN_OPTIONS`. In the data source `stream_key` is the
/// endpoint's option, so the option of the column has another name.
pub fn data_source_options() -> &'static [OptionSpec] {
    static OPTIONS: LazyLock<Vec<OptionSpec>> = LazyLock::new(|| {
        let layout = LAYOUT_OPTIONS.iter().map(|spec| match spec.name {
            "stream_key" => OptionSpec { name: "stream_key_column", ..*spec },
            _ => *spec,
        });
        layout.chain(OWN_OPTIONS.iter().copied()).collect()
    });
    &OPTIONS
}
