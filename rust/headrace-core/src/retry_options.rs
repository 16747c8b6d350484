//! The options of a retry policy: those of a dispatcher, a reader and a consumer are the same.

use crate::endpoint::OptionDefault::{Bool, Float};
use crate::endpoint::given::Given;
use crate::endpoint::{Takes, option, option_table};
use crate::error::{Error, Result};
use crate::retry::RetryPolicy;

const PAUSE: Takes = Takes::Seconds { min: 0.0, max: 3600.0 };

option_table! {
    /// The options of a policy, beside the option `retry`, which each table has.
    pub(crate) RETRY_OPTIONS:

    /// Maximum number of attempts per message, or per outage when reading, including the first. By default as many as the
    /// deadline allows.
    retry_max_attempts => option(Takes::Integer { min: 1, max: u32::MAX as i64 });
    /// Pause before the second attempt.
    retry_initial_backoff => option(PAUSE).or(Float(RetryPolicy::DEFAULT.initial_backoff.as_secs_f64()));
    /// Longest pause between two attempts.
    retry_max_backoff => option(PAUSE).or(Float(RetryPolicy::DEFAULT.max_backoff.as_secs_f64()));
    /// Factor from one pause to the next.
    retry_multiplier => option(Takes::Number { min: 1.0, max: 100.0 }).or(Float(RetryPolicy::DEFAULT.multiplier));
    /// Fraction of a pause that is random.
    retry_jitter => option(Takes::Number { min: 0.0, max: 1.0 }).or(Float(RetryPolicy::DEFAULT.jitter));
    /// How long retries continue after the first failure: of a message, or of the server when reading.
    retry_deadline => option(Takes::Seconds { min: 0.0, max: 86_400.0 })
        .or(Float(RetryPolicy::DEFAULT.deadline.as_secs_f64()));
    /// Whether messages that may already be written are also sent again, and may then be in the stream twice;
    /// `DeliveryReport.possible_duplicates` counts those. With the data source it is on by default, unless `exactly_once` is on.
    /// When reading it has no effect.
    retry_unknown => option(Takes::Boolean).or(Bool(RetryPolicy::DEFAULT.retry_unknown));
}

/// Reads `retry` and the options of its policy. Options that differ from their defaults also ask for a policy; `retry` alone asks
/// for the default one. `is_default`: whether the default policy applies if nothing asks for one.
pub(crate) fn read_retry(given: &mut Given, is_default: bool) -> Result<Option<RetryPolicy>> {
    let retry = given.boolean("retry")?;
    let policy = RetryPolicy {
        max_attempts: given.integer("retry_max_attempts")?,
        initial_backoff: given.seconds_or_default("retry_initial_backoff")?,
        max_backoff: given.seconds_or_default("retry_max_backoff")?,
        multiplier: given.number_or_default("retry_multiplier")?,
        jitter: given.number_or_default("retry_jitter")?,
        deadline: given.seconds_or_default("retry_deadline")?,
        retry_unknown: given.boolean_or_default("retry_unknown")?,
    };
    if policy.initial_backoff > policy.max_backoff {
        let (initial, max) = (policy.initial_backoff.as_secs_f64(), policy.max_backoff.as_secs_f64());
        let message = format!("retry_initial_backoff must be at most retry_max_backoff ({max}), got {initial}");
        return Err(Error::config("retry_initial_backoff", message));
    }
    let is_changed = policy != RetryPolicy::DEFAULT;
    match retry {
        Some(false) if is_changed => Err(Error::config("retry", "retry is false, but other options of it are given")),
        Some(false) => Ok(None),
        Some(true) => Ok(Some(policy)),
        None => Ok((is_default || is_changed).then_some(policy)),
    }
}
