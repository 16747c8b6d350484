//! The options of a layout: the keyword arguments of `produce_batch`, and the layout that they select.

use crate::batch::{BatchLayout, MAX_ROWS_PER_ENTRY};
use crate::endpoint::OptionDefault::{Bool, Int, Text};
use crate::endpoint::{Takes, option, option_table};
use crate::error::{Error, Result};
use crate::ipc::Codec;
use crate::rows::{Body, Layout};

/// The default `rows_per_entry` of `arrow_ipc`: the number of rows in a record batch of Spark.
const ARROW_ROWS_PER_ENTRY: usize = 10_000;

option_table! {
    /// Every option of a layout. `payload` and `fields`, or one of `fields_from`, `json` and `arrow_ipc`, say what
    /// an entry holds.
    pub LAYOUT_OPTIONS:

    /// Column with the payload, text or binary. The default if none of `fields`, `fields_from`, `json` and `arrow_ipc` is given.
    /// A null fails: `NULL_PAYLOAD`. With `fields`, it is the first field, and a null is left out.
    payload => option(Takes::Column).or_depends(Text("payload"));
    /// Columns that become one field each, under their names, with typed values as text; a null is left out. With `arrow_ipc`,
    /// the columns of the entry.
    fields => option(Takes::Columns);
    /// Column with all fields of the entry, to copy entries as they are: a map, or a list of `struct<name, value>`, with names
    /// and values that are text or binary. A null value is left out; a row without fields fails: `EMPTY`. No time is added,
    /// unless `ts_field` is given.
    fields_from => option(Takes::Column);
    /// The payload is the row as JSON, or these columns of it, as Spark's `to_json` writes it (nulls left out).
    json => option(Takes::BooleanOrColumns).or(Bool(false));
    /// Column that identifies each row in reports: integers, text of at most 16 KiB, or `arrow.uuid`. A null means the ordinal.
    message_id => option(Takes::Column);
    /// Column with the row's own stream key, text or binary; null means the endpoint's.
    stream_key => option(Takes::Column);
    /// Column with the key that determines the row's shard, if the endpoint has `shards`: text, binary, or an integer, which
    /// counts as its decimal digits. Rows with equal keys go to one shard, in their order; rows with a null are distributed over
    /// the shards in turn. By default all rows are distributed in turn. Not with `stream_key`.
    shard_key => option(Takes::Column);
    /// Column with the row's own entry ID, text: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`; null means `*`.
    entry_id => option(Takes::Column);
    /// Maximum number of rows per entry, with `payload` or `json`, or with `arrow_ipc`, where the default is 10,000. Not with
    /// `fields` (except with `arrow_ipc`), `fields_from`, `stream_key`, `shard_key` and `entry_id`.
    rows_per_entry => option(Takes::Integer { min: 1, max: MAX_ROWS_PER_ENTRY.cast_signed() as i64 }).or_depends(Int(1));
    /// The payload is an Arrow IPC stream of several rows. Not with `payload`, `fields_from`, `json`, `stream_key`, `shard_key`
    /// and `entry_id`.
    arrow_ipc => option(Takes::Boolean).or(Bool(false));
    /// With `arrow_ipc`: compression.
    codec => option(Takes::Choice(&["lz4", "zstd"]));
}

/// The value of the option `json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum JsonColumns {
    /// No JSON.
    #[default]
    None,
    /// Every column.
    All,
    /// These columns.
    Named(Vec<String>),
}

/// The options of [`LAYOUT_OPTIONS`] with their types. [`BatchLayout`] is what they select.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the table has the text of each
pub struct LayoutOptions {
    pub payload: Option<String>,
    pub fields: Option<Vec<String>>,
    pub fields_from: Option<String>,
    pub json: JsonColumns,
    pub message_id: Option<String>,
    pub stream_key: Option<String>,
    pub shard_key: Option<String>,
    pub entry_id: Option<String>,
    pub rows_per_entry: Option<usize>,
    pub arrow_ipc: bool,
    pub codec: Option<Codec>,
}

impl TryFrom<LayoutOptions> for BatchLayout {
    type Error = Error;

    /// Refuses options that are mutually exclusive.
    fn try_from(given: LayoutOptions) -> Result<Self> {
        let LayoutOptions {
            payload,
            fields,
            fields_from,
            json,
            message_id,
            stream_key,
            shard_key,
            entry_id,
            rows_per_entry,
            arrow_ipc,
            codec,
        } = given;
        let json = match json {
            JsonColumns::None => None,
            JsonColumns::All => Some(Body::Json(None)),
            JsonColumns::Named(columns) => Some(Body::Json(Some(columns))),
        };
        if arrow_ipc {
            for (name, is_given) in [
                ("payload", payload.is_some()),
                ("fields_from", fields_from.is_some()),
                ("json", json.is_some()),
                ("stream_key", stream_key.is_some()),
                ("shard_key", shard_key.is_some()),
                ("entry_id", entry_id.is_some()),
            ] {
                if is_given {
                    return Err(Error::schema(format!("arrow_ipc and {name} are mutually exclusive")));
                }
            }
            let rows_per_entry = rows_per_entry.unwrap_or(ARROW_ROWS_PER_ENTRY);
            return Ok(Self::Arrow { columns: fields, message_id, codec, rows_per_entry });
        }
        if codec.is_some() {
            return Err(Error::schema("codec needs arrow_ipc=True"));
        }
        let own = match (payload, fields) {
            (Some(payload), Some(fields)) => Some(Body::PayloadAndFields(payload, fields)),
            (payload, fields) => payload.map(Body::Payload).or(fields.map(Body::Fields)),
        };
        let bodies = [own, fields_from.map(Body::FieldsFrom), json];
        let mut bodies = bodies.into_iter().flatten();
        let body = bodies.next().unwrap_or_else(|| Body::Payload("payload".to_owned()));
        if bodies.next().is_some() {
            return Err(Error::schema("payload and fields, fields_from and json are mutually exclusive"));
        }
        let layout = Layout { body, message_id, stream_key, entry_id, shard_key };
        Ok(match rows_per_entry {
            None | Some(1) => Self::Rows(layout),
            Some(rows) => Self::Payloads(layout, rows),
        })
    }
}
