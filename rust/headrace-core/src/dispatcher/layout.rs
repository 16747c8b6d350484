//! The options of a layout: the keyword arguments of `produce_batch`.

use crate::batch::MAX_ROWS_PER_ENTRY;
use crate::endpoint::OptionDefault::{Bool, Int, Text};
use crate::endpoint::{Takes, option, option_table};

option_table! {
    /// Every option of a layout. One of `payload`, `fields`, `json` and `arrow_ipc` says what an entry holds.
    pub LAYOUT_OPTIONS:

    /// Column with the payload, text or binary. It is the default where `fields`, `json` and `arrow_ipc` are not given. A null
    /// fails: `NULL_PAYLOAD`.
    payload => option(Takes::Column).or_depends(Text("payload"));
    /// Columns that become one field each, under their names, typed values as text; a null is left out. With `arrow_ipc` the
    /// columns of the entry.
    fields => option(Takes::Columns);
    /// The payload is the row as JSON, or these columns of it, as Spark's `to_json` writes it (nulls left out).
    json => option(Takes::BooleanOrColumns).or(Bool(false));
    /// Column that identifies each row in reports: integers, text of at most 16 KiB, or `arrow.uuid`. A null means the ordinal.
    message_id => option(Takes::Column);
    /// Column with the row's own stream key, text or binary; null means the endpoint's.
    stream_key => option(Takes::Column);
    /// Column with the row's own entry ID, text: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`; null means `*`.
    entry_id => option(Takes::Column);
    /// Most rows per entry, with `payload` or `json`, or with `arrow_ipc`, where the default is 10,000. Not with `fields` (but
    /// for `arrow_ipc`), `stream_key` and `entry_id`.
    rows_per_entry => option(Takes::Integer { min: 1, max: MAX_ROWS_PER_ENTRY.cast_signed() as i64 }).or_depends(Int(1));
    /// The payload is an Arrow IPC stream of several rows. Not with `payload`, `json`, `stream_key` and `entry_id`.
    arrow_ipc => option(Takes::Boolean).or(Bool(false));
    /// With `arrow_ipc`: compression.
    codec => option(Takes::Choice(&["lz4", "zstd"]));
}
