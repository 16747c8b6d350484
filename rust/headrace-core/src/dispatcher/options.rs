//! The options of a dispatcher: one table, and every check.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::command::MAX_RUN;
use crate::durability::Durability;
use crate::endpoint::OptionDefault::{Bool, Float, Int, Text};
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, joined, option, option_table};
use crate::error::{Classify, Error, Kind, Result};
use crate::producer::ExactlyOnce;
use crate::retry::RetryPolicy;
use crate::retry_options::{RETRY_OPTIONS, read_retry};
use crate::rows::PAYLOAD_FIELD;

/// A server remembers names for a day at most: the last try must come before that.
const MAX_IDMP_DEADLINE: Duration = Duration::from_secs(80_000);
/// How much longer names are remembered than rows are sent again.
const MARGIN: Duration = Duration::from_secs(10);

/// Every option of a dispatcher.
pub const DISPATCHER_OPTIONS: &[OptionSpec] = &joined::<{ OWN.len() + RETRY_OPTIONS.len() }>(&[OWN, RETRY_OPTIONS]);

option_table! {
    OWN:

    /// Maximum number of entries in flight; 1 with `ordered`.
    window_max_entries => option(Takes::Integer { min: 1, max: i64::MAX }).or_depends(Int(8_192));
    /// Maximum number of bytes in flight. The message that exceeds it is still sent, so one is always in flight.
    window_max_bytes => option(Takes::Integer { min: 64 * 1024, max: i64::MAX }).or(Int(4 * 1024 * 1024));
    /// Which error replies are permanent: docs/outcomes.md has the codes. `failover` waits for OOM and READONLY to end; `strict`
    /// also makes DENIED, NOPROTO and argument errors permanent.
    classify => option(Takes::Choice(&Classify::NAMES)).or(Text(Classify::NAMES[0]));
    /// Overrides `classify` for single codes: `{"OOM": "retryable"}`.
    error_overrides => option(Takes::Mapping("codes such as \"OOM\" to \"permanent\" or \"retryable\""));
    /// Name of the field with the payload.
    payload_field => option(Takes::Text).or(Text(PAYLOAD_FIELD));
    /// Name of the field with the time of dispatch (`2026-04-14T12:00:00Z`, UTC); None omits it. Entries of `fields_from` have it
    /// only if this option is given, after their own fields.
    ts_field => option(Takes::Text).or(Text("ts"));
    /// Whether messages that failed are sent again. In Python it is a `RetryPolicy`, whose fields are the options `retry_*`. With
    /// `exactly_once`, and with the data source, it is on by default.
    retry => option(Takes::Boolean).or_depends(Bool(false));
    /// How a batch that is sent again is still written only once. `script`: a script appends messages and records how far it got,
    /// on every server from Redis 6.2 and Valkey 7.2 on. `idmp`: the server remembers a name for each message (Redis 8.6.2 and
    /// later). `auto` is `script`. Not with `rows_per_entry`, `arrow_ipc` and `dispatch`; docs/exactly-once.md has the details.
    exactly_once => option(Takes::Choice(&["off", "auto", "idmp", "script"])).or(Text("off"));
    /// What identifies a message within its batch: its number, or with `idmp` its message ID.
    exactly_once_key => option(Takes::Choice(&["row", "message_id"])).or(Text("row"));
    /// With `idmp`: the minimum time for which the server must remember names. By default as long as `retry` can send messages
    /// again, and no less than the stream is set to.
    idmp_duration => option(Takes::Seconds { min: 1.0, max: 86_400.0 });
    /// With `script`: how long after its last message a batch can be started again.
    token_ttl => option(Takes::Seconds { min: 1.0, max: 31_536_000.0 }).or_depends(Float(86_400.0));
    /// With `script`: maximum number of messages per script call.
    script_run_rows => option(Takes::Integer { min: 1, max: MAX_RUN.cast_signed() }).or_depends(Int(400));
    /// Whether only one entry is in flight at a time, so that none overtakes one that is sent again. Slow, and not needed with
    /// `script`, which keeps the order in any case.
    ordered => option(Takes::Boolean).or(Bool(false));
    /// Number of replicas that must have a message before it counts as delivered, by
    /// [WAIT](https://redis.io/docs/latest/commands/wait/). A message that too few had in time fails as `NOT_REPLICATED`: it is
    /// in the stream of this server. `all`: as many as the server has, according to `CLUSTER SLOTS`, `SENTINEL REPLICAS` or
    /// `INFO replication` when a connection is opened; without a replica messages fail as `NOREPLICAS`.
    wait_replicas => option(Takes::CountOrAll).or(Int(0));
    /// Whether a message must also be in the append-only file of the server, and in those of `wait_replicas` replicas, by
    /// [WAITAOF](https://redis.io/docs/latest/commands/waitaof/) (Redis 7.2 and later, Valkey).
    wait_aof => option(Takes::Boolean).or(Bool(false));
    /// How long the server waits for the replicas and the append-only files.
    wait_timeout => option(Takes::Seconds { min: 0.001, max: 3600.0 }).or(Float(1.0));
    /// Maximum number of entries per WAIT. `flush`, `dispatch` and `poll` send it too; entries after it wait for its reply.
    wait_every => option(Takes::Integer { min: 1, max: 1_000_000 }).or(Int(8_192));
}

/// The options of a dispatcher, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatcherOptions {
    /// The maximum number of entries in flight.
    pub(super) window_max_entries: usize,
    /// The maximum number of bytes in flight.
    pub(super) window_max_bytes: u64,
    /// Which failures are permanent.
    pub(super) classify: Classify,
    /// Overrides `classify` for single codes.
    pub(super) error_overrides: BTreeMap<String, Kind>,
    /// The field that holds a message's payload.
    pub(super) payload_field: String,
    /// The field that holds the time of dispatch; `None` leaves it out.
    pub(super) ts_field: Option<String>,
    /// Whether `ts_field` was given, and is not the default.
    pub(super) is_ts_given: bool,
    /// `None`: a message that failed is not sent again.
    pub(super) retry: Option<RetryPolicy>,
    /// How messages that were sent before are deduplicated; `None`: they are not.
    pub(super) exactly_once: Option<ExactlyOnce>,
    /// `None`: an entry that has its ID counts as delivered.
    pub(super) durability: Option<Durability>,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        // A test reads the table without options too.
        Self::new([], Form::Typed).unwrap_or_else(|error| unreachable!("the defaults of the table: {error}"))
    }
}

impl DispatcherOptions {
    /// Checks `options`, which are those of [`DISPATCHER_OPTIONS`]. A null `ts_field` leaves the time out; any other null means
    /// the default. `error_overrides` is a JSON object as text.
    pub fn new(options: impl IntoIterator<Item = (String, OptionValue)>, form: Form) -> Result<Self> {
        let options: Vec<_> = options.into_iter().collect();
        let without_ts = options.contains(&("ts_field".to_owned(), OptionValue::Null));
        let mut given = Given::collect(DISPATCHER_OPTIONS, options, form)?;
        let asked = read_exactly_once(&mut given)?;
        let retry = read_retry(&mut given, asked.is_some())?;
        let exactly_once = asked.map(|asked| complete(asked, retry.as_ref())).transpose()?;
        let is_ts_given = given.has("ts_field");
        let is_bounded = given.has("window_max_entries");
        let window_max_entries: usize = given.integer_or_default("window_max_entries")?;
        let ordered = given.boolean_or_default("ordered")?;
        if ordered && is_bounded && window_max_entries > 1 {
            let message = "ordered and window_max_entries are mutually exclusive: with ordered one entry is in flight";
            return Err(Error::config("ordered", message));
        }
        let is_ordered_anyway = matches!(exactly_once, Some(ExactlyOnce::Script { .. }));
        let one_by_one = ordered && !is_bounded && !is_ordered_anyway;
        let read = Self {
            window_max_entries: if one_by_one { 1 } else { window_max_entries },
            window_max_bytes: given.integer_or_default("window_max_bytes")?,
            classify: read_classify(&mut given)?,
            error_overrides: read_overrides(&mut given)?.unwrap_or_default(),
            payload_field: given.text_or_default("payload_field")?,
            ts_field: if without_ts { None } else { Some(given.text_or_default("ts_field")?) },
            is_ts_given,
            retry,
            exactly_once,
            durability: read_durability(&mut given)?,
        };
        if read.ts_field.as_ref() == Some(&read.payload_field) {
            let message =
                format!("ts_field must be another name than payload_field, got '{}' for both", read.payload_field);
            return Err(Error::config("ts_field", message));
        }
        Ok(read)
    }
}

fn read_exactly_once(given: &mut Given) -> Result<Option<ExactlyOnce>> {
    let mode = given.choice_or_default("exactly_once")?;
    let by_message_id = given.choice_or_default("exactly_once_key")? == "message_id";
    let (is_idmp, is_script) = (mode == "idmp", ["auto", "script"].contains(&mode));
    for (option, is_given, fits, modes) in [
        ("token_ttl", given.has("token_ttl"), is_script, "'auto' or 'script'"),
        ("script_run_rows", given.has("script_run_rows"), is_script, "'auto' or 'script'"),
        ("idmp_duration", given.has("idmp_duration"), is_idmp, "'idmp'"),
        ("exactly_once_key", by_message_id, is_idmp, "'idmp'"),
    ] {
        if is_given && !fits {
            return Err(Error::config(option, format!("{option} needs exactly_once {modes}, got '{mode}'")));
        }
    }
    let ttl = given.seconds_or_default("token_ttl")?;
    let run_rows = given.integer_or_default("script_run_rows")?;
    let duration = given.seconds("idmp_duration")?.unwrap_or_default();
    Ok(match mode {
        "off" => None,
        "idmp" => Some(ExactlyOnce::Idmp { by_message_id, duration }),
        _ => Some(ExactlyOnce::Script { ttl: ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0), run_rows }),
    })
}

/// IDMP IDs must be remembered for as long as rows are sent again, and a little longer.
fn complete(asked: ExactlyOnce, retry: Option<&RetryPolicy>) -> Result<ExactlyOnce> {
    let ExactlyOnce::Idmp { by_message_id, duration } = asked else { return Ok(asked) };
    let Some(retry) = retry else { return Ok(asked) };
    if retry.deadline > MAX_IDMP_DEADLINE {
        let (most, got) = (MAX_IDMP_DEADLINE.as_secs(), retry.deadline.as_secs_f64());
        let message = format!("retry_deadline must be at most {most} with exactly_once 'idmp', got {got}");
        return Err(Error::config("retry_deadline", message));
    }
    Ok(ExactlyOnce::Idmp { by_message_id, duration: duration.max(retry.deadline + MARGIN) })
}

/// If nothing is waited for, `wait_timeout` and `wait_every` have no effect, so they must be at their defaults.
fn read_durability(given: &mut Given) -> Result<Option<Durability>> {
    let read = durability(given)?;
    if read.aof || read.replicas != Some(0) {
        return Ok(Some(read));
    }
    let default = durability(&mut Given::new(DISPATCHER_OPTIONS, Form::Typed))?;
    if read == default {
        return Ok(None);
    }
    let option = if read.timeout == default.timeout { "wait_every" } else { "wait_timeout" };
    Err(Error::config(option, format!("{option} needs wait_replicas or wait_aof")))
}

fn durability(given: &mut Given) -> Result<Durability> {
    Ok(Durability {
        replicas: given.count_or_all_or_default("wait_replicas")?,
        aof: given.boolean_or_default("wait_aof")?,
        timeout: given.seconds_or_default("wait_timeout")?,
        every: given.integer_or_default("wait_every")?,
    })
}

fn read_classify(given: &mut Given) -> Result<Classify> {
    let name = given.choice_or_default("classify")?;
    let found = Classify::ALL.into_iter().zip(Classify::NAMES).find(|(_, known)| *known == name);
    Ok(found.map(|(mode, _)| mode).unwrap_or_default())
}

fn read_overrides(given: &mut Given) -> Result<Option<BTreeMap<String, Kind>>> {
    let Some(value) = given.value("error_overrides") else { return Ok(None) };
    let refuse = || given.refuse("error_overrides", &value);
    let OptionValue::Text(text) = &value else { return Err(refuse()) };
    let named: BTreeMap<String, String> = serde_json::from_str(text).map_err(|_| refuse())?;
    let kinds = named.into_iter().map(|(code, kind)| {
        let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind).filter(|_| is_code(&code));
        kind.map(|kind| (code, kind)).ok_or_else(refuse)
    });
    kinds.collect::<Result<_>>().map(Some)
}

/// Error codes are the first word of a reply: `OOM`.
fn is_code(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(name: &str, value: OptionValue) -> Result<DispatcherOptions> {
        DispatcherOptions::new([(name.to_owned(), value)], Form::Typed)
    }

    #[test]
    fn invalid_options_are_refused_with_the_allowed_values() {
        for (name, value, message) in [
            ("window_max_entries", OptionValue::Int(0), "window_max_entries must be an integer of at least 1, got 0"),
            (
                "window_max_bytes",
                OptionValue::Int(65_535),
                "window_max_bytes must be an integer of at least 65536, got 65535",
            ),
            (
                "classify",
                OptionValue::text("lax"),
                "classify must be one of 'default', 'failover', 'strict', got 'lax'",
            ),
            ("window_max", OptionValue::Int(1), "unknown option 'window_max'; did you mean 'window_max_bytes'?"),
            (
                "error_overrides",
                OptionValue::text("{}x"),
                "error_overrides must be a mapping from codes such as \"OOM\" to \"permanent\" or \"retryable\", got '{}x'",
            ),
            (
                "ts_field",
                OptionValue::text("payload"),
                "ts_field must be another name than payload_field, got 'payload' for both",
            ),
        ] {
            assert_eq!(read(name, value).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn null_is_the_default_except_for_ts_field() {
        assert!(read("error_overrides", OptionValue::text(r#"{"OOM": "later"}"#)).is_err());
        assert!(read("error_overrides", OptionValue::text(r#"{"oom": "retryable"}"#)).is_err());
        assert_eq!(read("payload_field", OptionValue::Null).unwrap(), DispatcherOptions::default());
        assert_eq!(read("ts_field", OptionValue::Null).unwrap().ts_field, None);
        let overrides = read("error_overrides", OptionValue::text(r#"{"OOM": "retryable"}"#)).unwrap().error_overrides;
        assert_eq!(overrides, BTreeMap::from([("OOM".to_owned(), Kind::Retryable)]));
    }
}
