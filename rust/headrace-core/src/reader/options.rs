//! The options of a reader: one table, and every check.

use std::time::Duration;

use arrow_schema::Schema;

use crate::endpoint::OptionDefault::{Bool, Float, Int, Text};
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, joined, option, option_table};
use crate::entries::{ColumnsPlan, Unpack};
use crate::error::{Error, Result};
use crate::reading::{
    End, MAX_BATCH_ROWS, MAX_CONNECTIONS, Position, Start, columns, first_backward, last_backward, read_body,
    read_metadata,
};
use crate::resp::EntryId;
use crate::retry::RetryPolicy;
use crate::retry_options::{RETRY_OPTIONS, read_retry};
use crate::rows::PAYLOAD_FIELD;

/// Every option of a reader.
pub const READER_OPTIONS: &[OptionSpec] =
    &joined::<{ RANGE.len() + PAGES.len() + RETRY_OPTIONS.len() }>(&[RANGE, PAGES, RETRY_OPTIONS]);

/// The options of everything that reads by position, whatever it reads: what entries become, and how they are requested.
pub(crate) const PAGE_OPTIONS: &[OptionSpec] =
    &joined::<{ PAGES.len() + RETRY_OPTIONS.len() }>(&[PAGES, RETRY_OPTIONS]);

option_table! {
    RANGE:

    /// Where to begin: `earliest`, `latest` (after the newest entry at the time when the reader is created), an entry ID
    /// (inclusive), milliseconds (from the first entry at or after that time), or the position of a reader (after it). With
    /// `reverse`: `latest` (the newest entry, the default), an entry ID, milliseconds (from the last entry at or before that
    /// time), or a position.
    start => option(Takes::Text).or_depends(Text("earliest"));
    /// Where to end: `latest` (the newest entry at the time when the reader is created), an entry ID, or milliseconds, each
    /// inclusive. By default the reader continues with new entries as they arrive. With `reverse`: `earliest` (the default), an
    /// entry ID, or milliseconds.
    end => option(Takes::Text);
    /// Whether to read from new entries to old ones, one stream after the other.
    reverse => option(Takes::Boolean).or(Bool(false));
    /// Maximum number of entries to read in total.
    limit => option(Takes::Integer { min: 1, max: i64::MAX });
}

option_table! {
    PAGES:

    /// Fields of the entries that become a column each, as text; the others are left out. `*`: the fields of the first entry, not
    /// in Spark. By default all fields are in one column, `fields`.
    fields => option(Takes::ColumnsOrAll);
    /// With `fields` or `schema`: how rows are packed into entries, named after the keyword that `produce_batch` was given for
    /// it. `payload`: a payload is a row, the value of the only column. `json`: a payload is a row, a JSON object with the
    /// columns. `arrow_ipc`: the payload is an Arrow IPC stream of rows; without `fields` and `schema`, which Spark needs, the columns
    /// are those of the first entry. By default an entry is one row, and its fields are the columns.
    unpack => option(Takes::Choice(&Unpack::NAMES));
    /// With `unpack`: the dispatcher's `payload_field`.
    payload_field => option(Takes::Text).or(Text(PAYLOAD_FIELD));
    /// With `unpack`: maximum number of bytes that the rows of an entry may take when they are unpacked. An entry with more does
    /// not fit.
    max_entry_bytes => option(Takes::Integer { min: 1, max: 1 << 30 }).or(Int(64 * 1024 * 1024));
    /// With `fields` or `schema`: what happens to an entry with a value that does not fit its column, or with a payload that
    /// cannot be read. `fail` raises `FieldError`; `null` puts a null in its place, or a row of nulls; `keep` does the same, and
    /// keeps all fields of the entry in the metadata column `raw`.
    on_bad_field => option(Takes::Choice(&["fail", "null", "keep"])).or(Text("fail"));
    /// Metadata columns, before the fields: `stream`, `entry_id` (text), `entry_ms`, `entry_seq` (unsigned 64-bit integers),
    /// `timestamp`, `row_in_entry`, and `raw` with `on_bad_field="keep"`. With `fields` or `schema` there are none by default
    /// except `raw`, which comes last unless it is named. A mapping gives them other names: `{"entry_id": "id"}`.
    metadata => option(Takes::RenamedColumns).or_depends(Text("stream,entry_id,timestamp"));
    /// What the column `fields` or `raw` is: a `map` from names to values, with the last value of a repeated name; or a `list` of
    /// all names and values in their order.
    fields_as => option(Takes::Choice(&["map", "list"])).or(Text("map"));
    /// The type of names: `text`, where a byte that is not UTF-8 is `\xNN` and a backslash is doubled; or `binary`.
    names => option(Takes::Choice(&["text", "binary"])).or(Text("text"));
    /// Number of rows at which a batch is complete.
    batch_rows => option(Takes::Integer { min: 1, max: MAX_BATCH_ROWS }).or(Int(8_192));
    /// Size in bytes at which a batch takes no further page.
    batch_bytes => option(Takes::Integer { min: 1, max: 1 << 30 }).or(Int(16 * 1024 * 1024));
    /// Number of bytes to request from the server at a time, estimated from the sizes of recent entries.
    page_bytes => option(Takes::Integer { min: 1, max: 1 << 30 }).or(Int(1024 * 1024));
    /// How long the server waits for new entries before it is asked again.
    block => option(Takes::Seconds { min: 0.001, max: 3600.0 }).or(Float(1.0));
    /// In a cluster: maximum number of connections to each node. Slots that share one are asked in turn, without waiting for
    /// entries at the server: if none of them had anything, they pause for up to `block` or 0.1 s, whichever is less. By default
    /// each slot that has streams has a connection of its own.
    connections => option(Takes::Integer { min: 1, max: MAX_CONNECTIONS });
    /// How long new entries wait for more before they are returned.
    linger => option(Takes::Seconds { min: 0.0, max: 60.0 }).or(Float(0.005));
    /// What happens if entries were trimmed before they were read: `fail` raises `DataLossError`, `report` counts them in
    /// `ReadBatch.lost` and continues.
    on_loss => option(Takes::Choice(&["fail", "report"])).or(Text("fail"));
    /// Whether to wait for a server that is unreachable, starting or busy. In Python it is a `RetryPolicy`, whose fields are the
    /// options `retry_*`. By default a lost connection is replaced immediately, once between two replies. What was not read is
    /// requested again, so nothing is lost or duplicated.
    retry => option(Takes::Boolean).or_depends(Bool(false));
}

/// The beginning of a reader.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Beginning {
    /// At the same place in each stream.
    Start(Start),
    /// At the position of another reader.
    Position(Position),
}

/// The direction of a reader, and its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Way {
    Forward(End),
    /// From the highest ID, unless there is a position, down to the lowest one.
    Backward(EntryId, EntryId),
}

/// The options of a reader, read and checked.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    pub(super) beginning: Beginning,
    pub(super) way: Way,
    pub(super) limit: u64,
    pub(super) columns: ColumnsPlan,
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) page_bytes: u64,
    pub(super) block: Duration,
    pub(super) connections: Option<usize>,
    pub(super) linger: Duration,
    pub(super) fails_on_loss: bool,
    pub(super) retry: Option<RetryPolicy>,
}

impl ReaderOptions {
    /// Checks `options`, which are those of [`READER_OPTIONS`]; null selects the default. `schema`: the columns for the entries'
    /// fields, in place of the option `fields`.
    pub fn new(
        options: impl IntoIterator<Item = (String, OptionValue)>,
        form: Form,
        schema: Option<&Schema>,
    ) -> Result<Self> {
        let mut given = Given::collect(READER_OPTIONS, options, form)?;
        if given.is_text("on_bad_field", "dead_letter") {
            let message = "on_bad_field must be one of 'fail', 'null', 'keep', got 'dead_letter': a Reader writes nothing \
                           to the server, a Consumer moves entries to its dead_letter_key";
            return Err(Error::config("on_bad_field", message));
        }
        let on_bad = given.choice_or_default("on_bad_field")?;
        let batch_rows = given.integer_or_default("batch_rows")?;
        let batch_bytes = given.integer_or_default("batch_bytes")?;
        let body = read_body(&mut given, on_bad, schema, [batch_rows, batch_bytes])?;
        let metadata = read_metadata(&mut given)?;
        let (start, end) = (given.text("start")?, given.text("end")?);
        let (beginning, way) = if given.boolean_or_default("reverse")? {
            read_backward(start.as_deref().unwrap_or("latest"), end.as_deref().unwrap_or("earliest"))?
        } else {
            let end = end.as_deref().map_or(Ok(End::Never), read_end)?;
            (read_start(start.as_deref().unwrap_or("earliest"))?, Way::Forward(end))
        };
        Ok(Self {
            beginning,
            way,
            limit: given.integer("limit")?.unwrap_or(u64::MAX),
            columns: columns(metadata, body)?,
            batch_rows,
            batch_bytes,
            page_bytes: given.integer_or_default("page_bytes")?,
            block: given.seconds_or_default("block")?,
            connections: given.integer("connections")?,
            linger: given.seconds_or_default("linger")?,
            fails_on_loss: given.choice_or_default("on_loss")? == "fail",
            retry: read_retry(&mut given, false)?,
        })
    }
}

impl ReaderOptions {
    pub(crate) fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref()
    }

    /// The most rows of a batch.
    pub(crate) fn batch_rows(&self) -> usize {
        self.batch_rows
    }
}

impl Default for ReaderOptions {
    fn default() -> Self {
        // A test also reads the table without options.
        Self::new([], Form::Typed, None).unwrap_or_else(|error| unreachable!("the defaults of the table: {error}"))
    }
}

fn read_start(text: &str) -> Result<Beginning> {
    if text.trim_start().starts_with('{') {
        return Ok(Beginning::Position(Position::parse("start", text)?));
    }
    Start::parse(text).map(Beginning::Start).ok_or_else(|| {
        let allowed =
            "'earliest', 'latest', an entry ID 'ms-seq', milliseconds since 1970, or the position of a reader";
        Error::config("start", format!("start must be {allowed}, got '{}'", text.escape_debug()))
    })
}

fn read_backward(start: &str, end: &str) -> Result<(Beginning, Way)> {
    let refused = |option: &'static str, word: &str, text: &str| {
        let allowed = format!("'{word}', an entry ID 'ms-seq', or milliseconds since 1970");
        Error::config(option, format!("{option} with reverse must be {allowed}, got '{}'", text.escape_debug()))
    };
    let last = last_backward(end).ok_or_else(|| refused("end", "earliest", end))?;
    if start.trim_start().starts_with('{') {
        let position = Position::parse("start", start)?;
        return Ok((Beginning::Position(position), Way::Backward(EntryId::MAX, last)));
    }
    let first = first_backward(start).ok_or_else(|| refused("start", "latest", start))?;
    Ok((Beginning::Start(Start::Latest), Way::Backward(first, last)))
}

fn read_end(text: &str) -> Result<End> {
    End::parse(text).ok_or_else(|| {
        let allowed = "'latest', an entry ID 'ms-seq', or milliseconds since 1970";
        Error::config("end", format!("end must be {allowed}, got '{}'", text.escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(name: &str, value: OptionValue) -> String {
        match ReaderOptions::new([(name.to_owned(), value)], Form::Typed, None).unwrap_err() {
            Error::Config { option, message } => {
                assert_eq!(option, name);
                message
            }
            error => unreachable!("{error}"),
        }
    }

    #[test]
    fn options_have_their_documented_defaults() {
        let options = ReaderOptions::default();
        assert_eq!(options.beginning, Beginning::Start(Start::Earliest));
        assert_eq!((options.way, options.limit, options.batch_rows), (Way::Forward(End::Never), u64::MAX, 8_192));
        assert!(options.fails_on_loss && options.retry.is_none());
    }

    #[test]
    fn invalid_options_are_refused_with_the_allowed_values() {
        for (name, value, part) in [
            ("start", OptionValue::text("newest"), "start must be 'earliest', 'latest'"),
            ("start", OptionValue::text("5-"), "got '5-'"),
            ("start", OptionValue::text("{}"), "start is not a position of a reader"),
            ("end", OptionValue::text("earliest"), "end must be 'latest'"),
            ("limit", OptionValue::Int(0), "at least 1"),
            ("batch_rows", OptionValue::Int(0), "from 1 to 1048576"),
            ("connections", OptionValue::Int(0), "from 1 to 16384"),
            ("block", OptionValue::Float(0.0), "seconds from 0.001"),
            ("on_loss", OptionValue::text("ignore"), "one of 'fail', 'report'"),
            ("metadata", OptionValue::Names(vec!["id".to_owned()]), "got 'id'"),
        ] {
            assert!(refused(name, value.clone()).contains(part), "{name}: {}", refused(name, value));
        }
        let twice = OptionValue::Names(vec!["stream".to_owned(), "stream".to_owned()]);
        assert!(refused("metadata", twice).contains("twice"));
    }
}
