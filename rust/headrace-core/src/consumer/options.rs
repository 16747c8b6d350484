//! The options of a consumer: one table, and every check.

use std::time::Duration;

use arrow_schema::Schema;

use super::batch::Extra;
use super::work::Names;
use crate::endpoint::OptionDefault::{Bool, Float, Int, Text};
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, joined, option, option_table};
use crate::entries::ColumnsPlan;
use crate::error::{Error, Result};
use crate::group::Start;
use crate::reading::{MAX_BATCH_ROWS, MAX_CONNECTIONS, columns, read_body, read_metadata};
use crate::retry::RetryPolicy;
use crate::retry_options::{RETRY_OPTIONS, read_retry};

/// How often to look for idle entries of other consumers while few are pending: one look takes less than a millisecond.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
const IDLE: Takes = Takes::Seconds { min: 0.001, max: 31_536_000.0 };

/// Every option of a consumer.
pub const CONSUMER_OPTIONS: &[OptionSpec] = &joined::<{ OWN.len() + RETRY_OPTIONS.len() }>(&[OWN, RETRY_OPTIONS]);

option_table! {
    OWN:

    /// Name of the consumer group.
    group => option(Takes::TextOrBytes);
    /// Name of this consumer within the group. With a stable name per instance (a pod's index, a partition's number), a consumer
    /// finds its own pending entries immediately after a crash; with a new name each time they are taken over after `min_idle`.
    consumer => option(Takes::TextOrBytes);
    /// Where the group begins if it does not exist yet: `earliest`, `latest`, an entry ID (inclusive), or `(` and an entry ID
    /// (exclusive).
    start => option(Takes::Text).or(Text("earliest"));
    /// Whether a group that does not exist is created when the consumer is created, and the stream with it.
    create => option(Takes::Boolean).or(Bool(true));
    /// Fields of the entries that become a column each, as text; the others are left out. `*`: the fields of the first entry. By
    /// default all fields are in one column, `fields`.
    fields => option(Takes::ColumnsOrAll);
    /// With `fields` or `schema`: what happens to an entry with a value that does not fit its column. `fail` raises `FieldError`;
    /// `null` puts a null in its place; `keep` does the same, and keeps all fields of the entry in the metadata column `raw`;
    /// `dead_letter` moves the entry to `dead_letter_key`.
    on_bad_field => option(Takes::Choice(&["fail", "null", "keep", "dead_letter"])).or(Text("fail"));
    /// Metadata columns, before the fields: those of a reader, and `deliveries` and `reclaimed` after all others: the group's
    /// counter of deliveries (above 20: 20 plus how often the entry failed alone or by name), and whether the entry was taken
    /// over from another consumer. With `fields` or `schema` there are none by default.
    metadata => option(Takes::RenamedColumns).or_depends(Text("stream,entry_id,timestamp"));
    /// What the column `fields` or `raw` is: a `map` from names to values, with the last value of a repeated name; or a `list` of
    /// all names and values in their order.
    fields_as => option(Takes::Choice(&["map", "list"])).or(Text("map"));
    /// The type of names: `text`, where a byte that is not UTF-8 is `\xNN` and a backslash is doubled; or `binary`.
    names => option(Takes::Choice(&["text", "binary"])).or(Text("text"));
    /// Maximum number of rows per batch.
    batch_rows => option(Takes::Integer { min: 1, max: MAX_BATCH_ROWS }).or(Int(1_000));
    /// Size in bytes at which a batch takes no further page.
    batch_bytes => option(Takes::Integer { min: 1, max: 1 << 30 }).or(Int(16 * 1024 * 1024));
    /// Number of bytes to request from the server at a time, estimated from the sizes of recent entries.
    page_bytes => option(Takes::Integer { min: 1, max: 1 << 30 }).or(Int(1024 * 1024));
    /// How long the server waits for new entries before it is asked again.
    block => option(Takes::Seconds { min: 0.001, max: 3600.0 }).or(Float(1.0));
    /// In a cluster: maximum number of connections to each node for reading, in addition to one that renews leases. Slots that
    /// share one are asked in turn, without waiting for entries at the server: if none of them had anything, they pause for up to
    /// `block` or 0.1 s, whichever is less. By default each slot that has streams has both to itself.
    connections => option(Takes::Integer { min: 1, max: MAX_CONNECTIONS });
    /// How long new entries wait for more before they are returned.
    linger => option(Takes::Seconds { min: 0.0, max: 60.0 }).or(Float(0.005));
    /// How long an entry may stay with a consumer that does not renew it before another one takes it over. The same for all
    /// consumers of a group.
    min_idle => option(IDLE).or(Float(60.0));
    /// Whether entries are renewed while the caller works on them, so that no other consumer takes them over.
    renew => option(Takes::Boolean).or(Bool(true));
    /// Longest time for which entries are renewed.
    max_processing => option(IDLE).or(Float(1800.0));
    /// Whether entries that have been with other consumers for longer than `min_idle` are taken over.
    claim => option(Takes::Boolean).or(Bool(true));
    /// How often to look for such entries: by default every second, or every quarter of `min_idle` if that is less, or if more
    /// than a few thousand entries are pending.
    claim_interval => option(IDLE);
    /// `explicit`: entries stay pending until they are acknowledged. `none`: the server forgets an entry as it delivers it, so a
    /// crash loses what was in transit (NOACK, at most once).
    ack => option(Takes::Choice(&["explicit", "none"])).or(Text("explicit"));
    /// Whether entries are removed from the stream as they are acknowledged, and as they become dead letters. Before Redis 8.2
    /// and on Valkey the stream must have no other group; otherwise the last of the groups removes them, if all of them
    /// acknowledge this way.
    ack_delete => option(Takes::Boolean).or(Bool(false));
    /// How often an entry may fail before it becomes a dead letter: `fail` named it, or it was alone in its batch and was not
    /// acknowledged. By default it is retried indefinitely.
    max_failures => option(Takes::Integer { min: 1, max: 1_000_000 });
    /// Key of the stream that dead letters are moved to. In it `{stream}` stands for `{`, the tag of the stream's key or the
    /// whole key, and `}`. On a cluster it must be in the same slot as the stream, which `{stream}` ensures.
    dead_letter_key => option(Takes::TextOrBytes);
    /// Whether to wait for a server that is unreachable, starting or busy. In Python it is a `RetryPolicy`, whose fields are the
    /// options `retry_*`. By default a lost connection is replaced immediately, once between two replies. What was delivered to
    /// the lost one is found among the pending entries.
    retry => option(Takes::Boolean).or_depends(Bool(false));
}

/// The options of a consumer, read and checked.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is an option of the table
pub struct ConsumerOptions {
    pub(super) names: Names,
    pub(super) start: Start,
    pub(super) creates: bool,
    pub(super) columns: ColumnsPlan,
    pub(super) extra: Extra,
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) page_bytes: u64,
    pub(super) block: Duration,
    pub(super) connections: Option<usize>,
    pub(super) linger: Duration,
    pub(super) min_idle: Duration,
    pub(super) renews: bool,
    pub(super) max_processing: Duration,
    pub(super) claim_interval: Option<Duration>,
    /// How often to look for idle entries of other consumers if a look at all pending entries takes several claims.
    pub(super) long_claim_interval: Duration,
    pub(super) acks: bool,
    pub(super) deletes: bool,
    pub(super) max_failures: Option<u64>,
    pub(super) buries_bad: bool,
    pub(super) retry: Option<RetryPolicy>,
}

impl ConsumerOptions {
    /// Checks `options`, which are those of [`CONSUMER_OPTIONS`]; null selects the default. `schema`: the columns for the
    /// entries' fields, in place of the option `fields`.
    pub fn new(
        options: impl IntoIterator<Item = (String, OptionValue)>,
        form: Form,
        schema: Option<&Schema>,
    ) -> Result<Self> {
        let mut given = Given::collect(CONSUMER_OPTIONS, options, form)?;
        let on_bad = given.choice_or_default("on_bad_field")?;
        let batch_rows = given.integer_or_default("batch_rows")?;
        let batch_bytes = given.integer_or_default("batch_bytes")?;
        let body = read_body(&mut given, on_bad, schema, [batch_rows, batch_bytes])?;
        let mut metadata = read_metadata(&mut given)?;
        let extra = metadata.as_mut().map(take_extra).unwrap_or_default();
        let mut columns = columns(metadata, body)?;
        columns.note_others(extra.fields().map(|field| field.name().clone()));
        let schema = columns.schema();
        if let Some(clash) = extra.fields().find(|field| schema.field_with_name(field.name()).is_ok()) {
            let message = format!("metadata must name no field, got '{}' twice", clash.name());
            return Err(Error::config("metadata", message));
        }
        let dead_letter_key = given.bytes("dead_letter_key")?;
        let min_idle = given.seconds_or_default("min_idle")?;
        let claims = given.boolean_or_default("claim")?;
        let claim_interval = given.seconds("claim_interval")?;
        if !claims && claim_interval.is_some() {
            return Err(Error::config("claim_interval", "claim_interval needs claim=True, got claim=False"));
        }
        let start = given.text_or_default("start")?;
        let checked = Self {
            names: Names {
                group: name("group", "that its consumers share", given.bytes("group")?)?,
                consumer: name("consumer", "of its own in each process", given.bytes("consumer")?)?,
                dead_letter_key,
            },
            start: Start::parse(&OptionValue::text(&start)).ok_or_else(|| {
                let allowed = "'earliest', 'latest', an entry ID 'ms-seq', or '(' and an entry ID";
                Error::config("start", format!("start must be {allowed}, got '{}'", start.escape_debug()))
            })?,
            creates: given.boolean_or_default("create")?,
            columns,
            extra,
            batch_rows,
            batch_bytes,
            page_bytes: given.integer_or_default("page_bytes")?,
            block: given.seconds_or_default("block")?,
            connections: given.integer("connections")?,
            linger: given.seconds_or_default("linger")?,
            min_idle,
            renews: given.boolean_or_default("renew")?,
            max_processing: given.seconds_or_default("max_processing")?,
            claim_interval: claims.then(|| claim_interval.unwrap_or((min_idle / 4).min(CLAIM_INTERVAL))),
            long_claim_interval: claim_interval.unwrap_or(min_idle / 4),
            acks: given.choice_or_default("ack")? == "explicit",
            deletes: given.boolean_or_default("ack_delete")?,
            max_failures: given.integer("max_failures")?,
            buries_bad: on_bad == "dead_letter",
            retry: read_retry(&mut given, false)?,
        };
        checked.check()?;
        Ok(checked)
    }

    fn check(&self) -> Result<()> {
        let has_dead_letters = self.names.dead_letter_key.is_some();
        if self.max_failures.is_some() && !has_dead_letters {
            let message =
                "max_failures needs dead_letter_key, the stream that entries which failed too often are moved to";
            return Err(Error::config("max_failures", message));
        }
        if self.buries_bad && !has_dead_letters {
            let message = "on_bad_field 'dead_letter' needs dead_letter_key, the stream that such entries are moved to";
            return Err(Error::config("on_bad_field", message));
        }
        if has_dead_letters && self.max_failures.is_none() && !self.buries_bad {
            let message =
                "dead_letter_key needs max_failures, or on_bad_field 'dead_letter': no entry would be moved to it";
            return Err(Error::config("dead_letter_key", message));
        }
        if !self.acks {
            let needs = [
                ("ack_delete", self.deletes),
                ("max_failures", self.max_failures.is_some()),
                ("on_bad_field", self.buries_bad),
            ];
            if let Some((option, _)) = needs.iter().find(|(_, is_given)| *is_given) {
                let message = format!("{option} needs ack='explicit', got ack='none', which leaves nothing pending");
                return Err(Error::config(*option, message));
            }
        }
        Ok(())
    }
}

/// Returns a name, which must be given. `who`: the error's words about whose name it is.
fn name(option: &'static str, who: &str, given: Option<Vec<u8>>) -> Result<Vec<u8>> {
    match given {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(Error::config(option, format!("{option} must be a non-empty name {who}, got none"))),
    }
}

/// Removes from the metadata columns those that only a group can fill, and returns them with their names.
fn take_extra(columns: &mut Vec<(String, String)>) -> Extra {
    let mut take = |wanted: &str| {
        let place = columns.iter().position(|(column, _)| column == wanted);
        place.map(|place| columns.remove(place).1)
    };
    Extra { deliveries: take("deliveries"), reclaimed: take("reclaimed") }
}
