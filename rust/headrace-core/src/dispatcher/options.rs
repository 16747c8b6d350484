//! The options of a dispatcher: one table, and every check.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::command::MAX_RUN;
use crate::durability::Durability;
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes};
use crate::error::{Classify, Error, Kind, Result};
use crate::producer::ExactlyOnce;
use crate::retry::RetryPolicy;

const CLASSIFY: [(&str, Classify); 3] =
    [("default", Classify::Default), ("failover", Classify::Failover), ("strict", Classify::Strict)];
const KINDS: [Kind; 2] = [Kind::Permanent, Kind::Retryable];

const fn option(name: &'static str, takes: Takes, default: &'static str) -> OptionSpec {
    OptionSpec { name, takes, default, secret: false }
}

/// A server remembers names for a day at most: the last try must come before that.
const MAX_IDMP_DEADLINE: Duration = Duration::from_secs(80_000);
/// By what names are remembered longer than rows are sent again.
const MARGIN: Duration = Duration::from_secs(10);

const PAUSE: Takes = Takes::Seconds { min: 0.0, max: 3600.0 };

/// Every option of a dispatcher.
pub const DISPATCHER_OPTIONS: [OptionSpec; 24] = [
    option("window_max_entries", Takes::Integer { min: 1, max: i64::MAX }, "8192"),
    option("window_max_bytes", Takes::Integer { min: 64 * 1024, max: i64::MAX }, "4194304"),
    option("classify", Takes::Choice(&["default", "failover", "strict"]), "default"),
    option("error_overrides", Takes::Mapping("codes such as \"OOM\" to \"permanent\" or \"retryable\""), "none"),
    option("payload_field", Takes::Text, "payload"),
    option("ts_field", Takes::Text, "ts"),
    option("retry", Takes::Boolean, "false"),
    option("retry_max_attempts", Takes::Integer { min: 1, max: u32::MAX as i64 }, "none"),
    option("retry_initial_backoff", PAUSE, "0.05"),
    option("retry_max_backoff", PAUSE, "0.5"),
    option("retry_multiplier", Takes::Number { min: 1.0, max: 100.0 }, "2"),
    option("retry_jitter", Takes::Number { min: 0.0, max: 1.0 }, "0.5"),
    option("retry_deadline", Takes::Seconds { min: 0.0, max: 86_400.0 }, "120"),
    option("retry_unknown", Takes::Boolean, "false"),
    option("exactly_once", Takes::Choice(&["off", "auto", "idmp", "script"]), "off"),
    option("exactly_once_key", Takes::Choice(&["row", "message_id"]), "row"),
    option("idmp_duration", Takes::Seconds { min: 1.0, max: 86_400.0 }, "none"),
    option("token_ttl", Takes::Seconds { min: 1.0, max: 31_536_000.0 }, "86400"),
    option("script_run_rows", Takes::Integer { min: 1, max: MAX_RUN.cast_signed() }, "100"),
    option("ordered", Takes::Boolean, "false"),
    option("wait_replicas", Takes::Integer { min: 0, max: i64::MAX }, "0"),
    option("wait_aof", Takes::Boolean, "false"),
    option("wait_timeout", Takes::Seconds { min: 0.001, max: 3600.0 }, "1"),
    option("wait_every", Takes::Integer { min: 1, max: 1_000_000 }, "8192"),
];

/// How hard a dispatcher tries, and how entries look.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatcherOptions {
    /// Entries in flight at most.
    pub(super) window_max_entries: usize,
    /// Bytes in flight at most.
    pub(super) window_max_bytes: u64,
    /// Which failures are permanent.
    pub(super) classify: Classify,
    /// Has the last word on single codes.
    pub(super) error_overrides: BTreeMap<String, Kind>,
    /// The field that holds a message's payload.
    pub(super) payload_field: String,
    /// The field that holds the time of dispatch; `None` leaves it out.
    pub(super) ts_field: Option<String>,
    /// `None`: a message that failed is not sent again.
    pub(super) retry: Option<RetryPolicy>,
    /// How what was sent before is deduplicated; `None`: it is not.
    pub(super) exactly_once: Option<ExactlyOnce>,
    /// `None`: an entry that has its ID counts as delivered.
    pub(super) durability: Option<Durability>,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        Self {
            window_max_entries: 8_192,
            window_max_bytes: 4 * 1024 * 1024,
            classify: Classify::Default,
            error_overrides: BTreeMap::new(),
            payload_field: "payload".to_owned(),
            ts_field: Some("ts".to_owned()),
            retry: None,
            exactly_once: None,
            durability: None,
        }
    }
}

impl DispatcherOptions {
    /// Checks `options`, which are those of [`DISPATCHER_OPTIONS`]. A null `ts_field` leaves the time out; any other null
    /// is the default. `error_overrides` is a JSON object as text.
    pub fn new(options: impl IntoIterator<Item = (String, OptionValue)>, form: Form) -> Result<Self> {
        let options: Vec<_> = options.into_iter().collect();
        let without_ts = options.contains(&("ts_field".to_owned(), OptionValue::Null));
        let mut given = Given::collect(&DISPATCHER_OPTIONS, options, form)?;
        let default = Self::default();
        let asked = read_exactly_once(&mut given)?;
        let retry = read_retry(&mut given, asked.is_some())?;
        let exactly_once = asked.map(|asked| complete(asked, retry.as_ref())).transpose()?;
        let in_flight = given.integer("window_max_entries")?;
        let ordered = given.boolean("ordered")?.unwrap_or(false);
        if ordered && in_flight.is_some_and(|entries: usize| entries > 1) {
            let message = "ordered and window_max_entries exclude each other: with ordered one entry is in flight";
            return Err(Error::config("ordered", message));
        }
        let is_ordered_anyway = matches!(exactly_once, Some(ExactlyOnce::Script { .. }));
        let usual = if ordered && !is_ordered_anyway { 1 } else { default.window_max_entries };
        let read = Self {
            window_max_entries: in_flight.unwrap_or(usual),
            window_max_bytes: given.integer("window_max_bytes")?.unwrap_or(default.window_max_bytes),
            classify: read_classify(&mut given)?.unwrap_or(default.classify),
            error_overrides: read_overrides(&mut given)?.unwrap_or(default.error_overrides),
            payload_field: given.text("payload_field")?.unwrap_or(default.payload_field),
            ts_field: if without_ts { None } else { given.text("ts_field")?.or(default.ts_field) },
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

/// Options of a policy ask for one; `retry` alone asks for the default one.
fn read_retry(given: &mut Given, exactly_once: bool) -> Result<Option<RetryPolicy>> {
    let retry = given.boolean("retry")?;
    let default = RetryPolicy::default();
    let policy = RetryPolicy {
        max_attempts: given.integer("retry_max_attempts")?,
        initial_backoff: given.seconds("retry_initial_backoff")?.unwrap_or(default.initial_backoff),
        max_backoff: given.seconds("retry_max_backoff")?.unwrap_or(default.max_backoff),
        multiplier: given.number("retry_multiplier")?.unwrap_or(default.multiplier),
        jitter: given.number("retry_jitter")?.unwrap_or(default.jitter),
        deadline: given.seconds("retry_deadline")?.unwrap_or(default.deadline),
        retry_unknown: given.boolean("retry_unknown")?.unwrap_or(default.retry_unknown),
    };
    if policy.initial_backoff > policy.max_backoff {
        let (initial, max) = (policy.initial_backoff.as_secs_f64(), policy.max_backoff.as_secs_f64());
        let message = format!("retry_initial_backoff must be at most retry_max_backoff ({max}), got {initial}");
        return Err(Error::config("retry_initial_backoff", message));
    }
    let is_default = policy == RetryPolicy::default();
    match retry {
        Some(false) if !is_default => Err(Error::config("retry", "retry is false, but other options of it are given")),
        Some(false) => Ok(None),
        Some(true) => Ok(Some(policy)),
        None => Ok((exactly_once || !is_default).then_some(policy)),
    }
}

fn read_exactly_once(given: &mut Given) -> Result<Option<ExactlyOnce>> {
    let mode = given.value("exactly_once");
    let mode_name = match &mode {
        None => "off",
        Some(OptionValue::Text(name)) => {
            let known = ["off", "auto", "idmp", "script"].into_iter().find(|known| *known == name.as_str());
            known.ok_or_else(|| given.refuse("exactly_once", &OptionValue::Text(name.clone())))?
        }
        Some(other) => return Err(given.refuse("exactly_once", other)),
    };
    let ttl = given.seconds("token_ttl")?;
    let run_rows = given.integer("script_run_rows")?;
    let duration = given.seconds("idmp_duration")?;
    let key = given.value("exactly_once_key");
    let by_message_id = match &key {
        None => false,
        Some(OptionValue::Text(key)) if key.as_str() == "row" => false,
        Some(OptionValue::Text(key)) if key.as_str() == "message_id" => true,
        Some(other) => return Err(given.refuse("exactly_once_key", other)),
    };
    let (is_idmp, is_script) = (mode_name == "idmp", ["auto", "script"].contains(&mode_name));
    for (option, is_given, fits, modes) in [
        ("token_ttl", ttl.is_some(), is_script, "'auto' or 'script'"),
        ("script_run_rows", run_rows.is_some(), is_script, "'auto' or 'script'"),
        ("idmp_duration", duration.is_some(), is_idmp, "'idmp'"),
        ("exactly_once_key", by_message_id, is_idmp, "'idmp'"),
    ] {
        if is_given && !fits {
            return Err(Error::config(option, format!("{option} needs exactly_once {modes}, got '{mode_name}'")));
        }
    }
    let ttl = ttl.map_or(86_400, |ttl| ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0));
    Ok(match mode_name {
        "off" => None,
        "idmp" => Some(ExactlyOnce::Idmp { by_message_id, duration: duration.unwrap_or_default() }),
        _ => Some(ExactlyOnce::Script { ttl, run_rows: run_rows.unwrap_or(100) }),
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

/// The other two options are of no use without one of the first two, unless they are the defaults.
fn read_durability(given: &mut Given) -> Result<Option<Durability>> {
    let default = Durability { replicas: 0, aof: false, timeout: Duration::from_secs(1), every: 8_192 };
    let read = Durability {
        replicas: given.integer("wait_replicas")?.unwrap_or(default.replicas),
        aof: given.boolean("wait_aof")?.unwrap_or(default.aof),
        timeout: given.seconds("wait_timeout")?.unwrap_or(default.timeout),
        every: given.integer("wait_every")?.unwrap_or(default.every),
    };
    if read.aof || read.replicas > 0 {
        return Ok(Some(read));
    }
    if read == default {
        return Ok(None);
    }
    let option = if read.timeout == default.timeout { "wait_every" } else { "wait_timeout" };
    Err(Error::config(option, format!("{option} needs wait_replicas or wait_aof")))
}

fn read_classify(given: &mut Given) -> Result<Option<Classify>> {
    let Some(value) = given.value("classify") else { return Ok(None) };
    let found = match &value {
        OptionValue::Text(text) => CLASSIFY.iter().find(|(name, _)| *name == text.as_str()),
        _ => None,
    };
    found.map(|(_, classify)| Some(*classify)).ok_or_else(|| given.refuse("classify", &value))
}

fn read_overrides(given: &mut Given) -> Result<Option<BTreeMap<String, Kind>>> {
    let Some(value) = given.value("error_overrides") else { return Ok(None) };
    let refuse = || given.refuse("error_overrides", &value);
    let OptionValue::Text(text) = &value else { return Err(refuse()) };
    let named: BTreeMap<String, String> = serde_json::from_str(text).map_err(|_| refuse())?;
    let kinds = named.into_iter().map(|(code, kind)| {
        let kind = KINDS.into_iter().find(|known| known.as_str() == kind).filter(|_| is_code(&code));
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
    fn what_is_wrong_is_named_with_what_is_allowed() {
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
            (
                "window_max",
                OptionValue::Int(1),
                "there is no option 'window_max'; the nearest one is 'window_max_bytes'",
            ),
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
    fn nulls_are_defaults_but_for_the_time() {
        assert!(read("error_overrides", OptionValue::text(r#"{"OOM": "later"}"#)).is_err());
        assert!(read("error_overrides", OptionValue::text(r#"{"oom": "retryable"}"#)).is_err());
        assert_eq!(read("payload_field", OptionValue::Null).unwrap(), DispatcherOptions::default());
        assert_eq!(read("ts_field", OptionValue::Null).unwrap().ts_field, None);
        let overrides = read("error_overrides", OptionValue::text(r#"{"OOM": "retryable"}"#)).unwrap().error_overrides;
        assert_eq!(overrides, BTreeMap::from([("OOM".to_owned(), Kind::Retryable)]));
    }
}
