//! The options of a shard consumer: one table, and every check.

use std::time::Duration;

use arrow_schema::Schema;

use crate::durability::Durability;
use crate::endpoint::OptionDefault::{Bool, Float, Int, Text};
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, joined, option, option_table};
use crate::error::{Error, Result};
use crate::group::Start;
use crate::leases::LeaseNames;
use crate::random;
use crate::reader::{PAGE_OPTIONS, ReaderOptions};
use crate::retry::RetryPolicy;

/// Every option of a shard consumer.
pub const SHARD_CONSUMER_OPTIONS: &[OptionSpec] = &joined::<{ OWN.len() + PAGE_OPTIONS.len() }>(&[OWN, PAGE_OPTIONS]);

option_table! {
    OWN:

    /// Name of the group, whose members share the streams.
    group => option(Takes::TextOrBytes);
    /// Name of this member within the group. With a stable name per instance (a pod's index), a member that is started again gets
    /// its streams back immediately; with a new name each time, others take them when their leases end.
    member => option(Takes::TextOrBytes);
    /// Where the group begins if it does not exist yet: `earliest`, `latest`, an entry ID (inclusive), or `(` and an entry ID
    /// (exclusive).
    start => option(Takes::Text).or(Text("earliest"));
    /// Whether streams that do not exist are created with their groups.
    create => option(Takes::Boolean).or(Bool(true));
    /// How long a member owns its streams after it was last heard of: then others take them. A member that waits for a server that
    /// is away, or that is stopped, loses its streams after this time. The same for all members of a group.
    lease => option(Takes::Seconds { min: 0.2, max: 3600.0 }).or(Float(10.0));
    /// How often an entry may fail before it becomes a dead letter: `fail` named it, or it was alone in its batch and its process
    /// ended. By default its stream waits until it is committed.
    max_failures => option(Takes::Integer { min: 1, max: 1_000_000 });
    /// Key of the stream that dead letters are moved to. In it `{stream}` stands for `{`, the tag of the stream's key or the
    /// whole key, and `}`. On a cluster it must be in the same slot as the stream, which `{stream}` ensures.
    dead_letter_key => option(Takes::TextOrBytes);
    /// Number of replicas that must have a lease, its renewal or a commit before it counts, by
    /// [WAIT](https://redis.io/docs/latest/commands/wait/): a failover to one of them undoes none of it.
    wait_replicas => option(Takes::Integer { min: 0, max: 1_000 }).or(Int(0));
    /// How long the server waits for the replicas, at most a third of `lease`. By default 1 s, or that third if it is less.
    wait_timeout => option(Takes::Seconds { min: 0.001, max: 1200.0 });
}

/// The options of a shard consumer, read and checked.
#[derive(Debug, Clone)]
pub struct ShardConsumerOptions {
    pub(super) names: LeaseNames,
    pub(super) reading: ReaderOptions,
    pub(super) retry: Option<RetryPolicy>,
}

impl ShardConsumerOptions {
    /// Checks `options`, which are those of [`SHARD_CONSUMER_OPTIONS`]; null selects the default. `schema`: the columns for the
    /// entries' fields, in place of the option `fields`.
    pub fn new(
        options: impl IntoIterator<Item = (String, OptionValue)>,
        form: Form,
        schema: Option<&Schema>,
    ) -> Result<Self> {
        let is_own = |name: &str| OWN.iter().any(|spec| spec.name == name);
        let is_known = |name: &str| SHARD_CONSUMER_OPTIONS.iter().any(|spec| spec.name == name);
        let (own, others): (Vec<_>, Vec<_>) =
            options.into_iter().partition(|(name, _)| is_own(name) || !is_known(name));
        // One that is unknown is refused with the names of all.
        let mut given = Given::collect(
            if own.iter().all(|(name, _)| is_own(name)) { OWN } else { SHARD_CONSUMER_OPTIONS },
            own,
            form,
        )?;
        let start = given.text_or_default("start")?;
        let start = Start::parse(&OptionValue::text(&start)).ok_or_else(|| {
            let allowed = "'earliest', 'latest', an entry ID 'ms-seq', or '(' and an entry ID";
            Error::config("start", format!("start must be {allowed}, got '{}'", start.escape_debug()))
        })?;
        let moves = match (given.integer("max_failures")?, given.bytes("dead_letter_key")?) {
            (Some(most), Some(key)) => Some((most, key)),
            (None, None) => None,
            (Some(_), None) => {
                let message =
                    "max_failures needs dead_letter_key, the stream that entries which failed too often are moved to";
                return Err(Error::config("max_failures", message));
            }
            (None, Some(_)) => {
                let message = "dead_letter_key needs max_failures: no entry would be moved to it";
                return Err(Error::config("dead_letter_key", message));
            }
        };
        let reading = ReaderOptions::new(others, form, schema)?;
        let lease = given.seconds_or_default("lease")?;
        let names = LeaseNames {
            group: name("group", "that its members share", given.bytes("group")?)?,
            member: name("member", "that no other member has", given.bytes("member")?)?,
            instance: random::token().into_bytes(),
            lease,
            begins_after: start.last_delivered(),
            creates: given.boolean_or_default("create")?,
            batch: reading.batch_rows(),
            moves,
            durability: durability(&mut given, lease)?,
        };
        Ok(Self { names, retry: reading.retry().cloned(), reading })
    }
}

/// The replicas that must have a lease. `lease`: for how long it is taken.
fn durability(given: &mut Given, lease: Duration) -> Result<Option<Durability>> {
    let replicas: u64 = given.integer_or_default("wait_replicas")?;
    let timeout = given.seconds("wait_timeout")?;
    if replicas == 0 {
        let error = || Error::config("wait_timeout", "wait_timeout needs wait_replicas");
        return timeout.map_or(Ok(None), |_| Err(error()));
    }
    let timeout = timeout.unwrap_or_else(|| Duration::from_secs(1).min(lease / 3));
    if timeout > lease / 3 {
        let message = format!(
            "wait_timeout must be at most a third of lease, {} s, or renewals come too late, got {}",
            (lease / 3).as_secs_f64(),
            timeout.as_secs_f64()
        );
        return Err(Error::config("wait_timeout", message));
    }
    Ok(Some(Durability { replicas: Some(replicas), aof: false, timeout, every: 1 }))
}

/// Returns a name, which must be given. `who`: the error's words about whose name it is.
fn name(option: &'static str, who: &str, given: Option<Vec<u8>>) -> Result<Vec<u8>> {
    match given {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(Error::config(option, format!("{option} must be a non-empty name {who}, got none"))),
    }
}

/// How long a consumer that has no stream waits before it looks again whether it has one.
pub(super) const LOOKS_EVERY: Duration = Duration::from_millis(20);
