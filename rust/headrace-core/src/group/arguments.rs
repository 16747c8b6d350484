//! The arguments of a group's calls: all are checked before a command is sent.

use std::time::Duration;

use super::start::{Start, parse_id};
use crate::command::EntryId;
use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, option};
use crate::error::Result;

/// The range of a time: ten years at most.
const IDLE: Takes = Takes::Seconds { min: 0.0, max: 315_360_000.0 };
const COUNT: Takes = Takes::Integer { min: 1, max: i64::MAX };

const fn row(name: &'static str, takes: Takes) -> OptionSpec {
    OptionSpec { name, ..option(takes) }
}

static GROUP: [OptionSpec; 7] = [
    row("name", Takes::TextOrBytes),
    row("consumer", Takes::TextOrBytes),
    row("start", Takes::Start),
    row("mkstream", Takes::Boolean),
    row("entries_read", Takes::Integer { min: 0, max: i64::MAX }),
    row("min_idle", IDLE),
    row("idle", IDLE),
];
static PENDING: [OptionSpec; 4] =
    [row("min_idle", IDLE), row("consumer", Takes::TextOrBytes), row("start", Takes::EntryId), row("limit", COUNT)];
static PINS: [OptionSpec; 2] = [row("streams", Takes::TextOrBytes), row("member", Takes::TextOrBytes)];
static IDS: [OptionSpec; 1] = [row("ids", Takes::EntryId)];

/// The arguments of calls; those that were not given are `None`.
#[derive(Debug, Clone, Default)]
pub struct GroupArguments {
    /// The name of the group, or of a consumer to delete.
    pub name: Option<Vec<u8>>,
    /// The name of a consumer.
    pub consumer: Option<Vec<u8>>,
    /// The position at which the group begins.
    pub start: Option<Start>,
    /// Whether a missing stream is created.
    pub mkstream: Option<bool>,
    /// The number of entries of the stream that the group has read.
    pub entries_read: Option<u64>,
    /// The minimum time since entries were last delivered.
    pub min_idle: Option<Duration>,
    /// The minimum time for which a consumer was idle.
    pub idle: Option<Duration>,
}

impl GroupArguments {
    /// Checks the arguments of one call.
    pub fn new(arguments: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        let mut given = Given::collect(&GROUP, arguments, Form::Typed)?;
        Ok(Self {
            name: given.bytes("name")?,
            consumer: given.bytes("consumer")?,
            start: start(&mut given)?,
            mkstream: given.boolean("mkstream")?,
            entries_read: given.integer::<i64>("entries_read")?.map(i64::cast_unsigned),
            min_idle: given.seconds("min_idle")?,
            idle: given.seconds("idle")?,
        })
    }
}

/// The streams of a group of shard consumers, and which member alone may take some of them.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    /// All streams that the members share; `None`: those of the endpoint.
    pub(super) streams: Option<Vec<Vec<u8>>>,
    /// Streams, each with the member; `None`: any member may take it.
    pub(super) pins: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Pins {
    /// Checks the arguments of one call.
    pub fn new(
        pins: impl IntoIterator<Item = (OptionValue, OptionValue)>,
        streams: Option<Vec<OptionValue>>,
    ) -> Result<Self> {
        let text = |name: &'static str, value: OptionValue| {
            let mut given = Given::new(&PINS, Form::Typed);
            given.add(name, value)?;
            given.bytes(name)
        };
        let key = |value: OptionValue| {
            text("streams", value.clone())?.ok_or_else(|| Given::new(&PINS, Form::Typed).refuse("streams", &value))
        };
        let streams = streams.map(|keys| keys.into_iter().map(key).collect()).transpose()?;
        let pin = |(stream, member)| Ok((key(stream)?, text("member", member)?));
        Ok(Self { streams, pins: pins.into_iter().map(pin).collect::<Result<_>>()? })
    }
}

/// A selection of pending entries.
#[derive(Debug, Clone, Default)]
pub struct PendingQuery {
    /// The minimum time since the entries were last delivered.
    pub min_idle: Option<Duration>,
    /// The consumer that the entries are pending for; `None`: any.
    pub consumer: Option<Vec<u8>>,
    /// The position of the first entry.
    pub start: Option<Start>,
    /// The maximum number of entries; `None`: all.
    pub limit: Option<u64>,
}

impl PendingQuery {
    /// Checks the arguments of one call.
    pub fn new(arguments: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        let mut given = Given::collect(&PENDING, arguments, Form::Typed)?;
        let start = match given.value("start") {
            None => None,
            Some(value) => match Start::parse(&value) {
                Some(start @ (Start::At(_) | Start::Behind(_))) => Some(start),
                Some(Start::Earliest | Start::Latest) | None => return Err(given.refuse("start", &value)),
            },
        };
        Ok(Self {
            min_idle: given.seconds("min_idle")?,
            consumer: given.bytes("consumer")?,
            start,
            limit: given.integer::<i64>("limit")?.map(i64::cast_unsigned),
        })
    }
}

/// Checks entry IDs.
pub fn entry_ids(values: impl IntoIterator<Item = OptionValue>) -> Result<Vec<EntryId>> {
    let id = |value: OptionValue| {
        let text = match &value {
            OptionValue::Text(text) => text.as_bytes(),
            OptionValue::Bytes(bytes) => bytes.as_slice(),
            _ => b"",
        };
        parse_id(text).ok_or_else(|| Given::new(&IDS, Form::Typed).refuse("ids", &value))
    };
    values.into_iter().map(id).collect()
}

fn start(given: &mut Given) -> Result<Option<Start>> {
    let Some(value) = given.value("start") else { return Ok(None) };
    Start::parse(&value).map(Some).ok_or_else(|| given.refuse("start", &value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn one(name: &str, value: OptionValue) -> [(String, OptionValue); 1] {
        [(name.to_owned(), value)]
    }

    #[test]
    fn each_argument_has_a_type_and_a_range() {
        let text = OptionValue::text;
        let refusals = [
            (
                GroupArguments::new(one("name", text(""))).err(),
                "name must be text or bytes, of 1 byte to 512 MiB, got ''",
            ),
            (GroupArguments::new(one("start", text("$"))).err(), "start must be 'earliest', 'latest', an entry ID"),
            (
                GroupArguments::new(one("entries_read", OptionValue::Int(-1))).err(),
                "entries_read must be an integer of",
            ),
            (
                GroupArguments::new(one("min_idle", OptionValue::Float(-0.5))).err(),
                "min_idle must be a number of seconds",
            ),
            (GroupArguments::new(one("mkstream", OptionValue::Int(1))).err(), "mkstream must be a boolean"),
            (
                PendingQuery::new(one("limit", OptionValue::Int(0))).err(),
                "limit must be an integer of at least 1, got 0",
            ),
            (PendingQuery::new(one("start", text("latest"))).err(), "start must be an entry ID"),
            (entry_ids([text("1-1"), text("x")]).err(), "ids must be an entry ID"),
            (entry_ids([OptionValue::Int(7)]).err(), "ids must be an entry ID"),
        ];
        for (error, expected) in refusals {
            let message = error.unwrap().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn arguments_are_read() {
        let read = GroupArguments::new([
            ("name".to_owned(), OptionValue::bytes(b"\xff")),
            ("start".to_owned(), OptionValue::text("(5-3")),
            ("min_idle".to_owned(), OptionValue::Int(2)),
            ("consumer".to_owned(), OptionValue::Null),
        ]);
        let read = read.unwrap();
        assert_eq!((read.name.as_deref(), read.consumer), (Some(&b"\xff"[..]), None));
        assert_eq!(read.start, Some(Start::Behind(EntryId { ms: 5, seq: 3 })));
        assert_eq!(read.min_idle, Some(Duration::from_secs(2)));
        let ids = entry_ids([OptionValue::text("7"), OptionValue::bytes(b"7-1")]).unwrap();
        assert_eq!(ids, [EntryId { ms: 7, seq: 0 }, EntryId { ms: 7, seq: 1 }]);
    }
}
