//! The registry of a sharded stream: a hash next to its shards that records their number, the hash function that selects one,
//! and their naming.
//!
//! The registry is written once, field by field, and each field only if it is missing: if two producers start at the same time
//! with different numbers, one of them is refused. Commands are sent one by one, because a node of a cluster may redirect them.

use redis::{Cmd, Value};

use crate::error::{Fault, ReplyText, code};
use crate::resp::value::{bytes, field, list};
use crate::shards::{Shards, registry_key};

/// A server's reply, or the fault for a refusal.
type Answer = Result<Value, Fault>;

/// A field of the registry, and its value.
pub(crate) type Field = (&'static str, String);

/// The registry of the shards of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardRegistry<'a> {
    /// The stream key of the endpoint.
    pub(crate) name: &'a [u8],
    pub(crate) shards: &'a Shards,
}

impl ShardRegistry<'_> {
    /// The first missing field, with its value; `None` if the registry is complete. Fails if the registry contradicts the
    /// endpoint.
    ///
    /// `answer` is the answer to [`asking`](Self::asking).
    pub(crate) fn missing(self, answer: Answer) -> Result<Option<Field>, Fault> {
        match answer {
            Ok(reply) => self.read(&reply),
            Err(refusal) => Err(self.refused(refusal, "HGETALL")),
        }
    }

    /// The command that reads the registry.
    pub(crate) fn asking(self) -> Cmd {
        let mut read = redis::cmd("HGETALL");
        read.arg(self.key());
        read
    }

    /// The key of the registry.
    pub(crate) fn key(self) -> Vec<u8> {
        registry_key(self.name)
    }

    /// Reads the reply to HGETALL; see [`missing`](Self::missing).
    pub(crate) fn read(self, reply: &Value) -> Result<Option<Field>, Fault> {
        let parts = list(reply).map(|parts| parts.iter().map(bytes).collect::<Option<Vec<_>>>());
        match parts.flatten() {
            Some(parts) => self.first_missing(&parts),
            None => Err(Fault::new(code::PROTOCOL, "the server's reply to HGETALL is not a list of fields and values")),
        }
    }

    /// The command that writes a field, unless another producer has already written it.
    pub(crate) fn setting(self, field: &Field) -> Cmd {
        let mut set = redis::cmd("HSETNX");
        set.arg(self.key()).arg(field.0).arg(&field.1);
        set
    }

    /// Fails if the server refused the command of [`setting`](Self::setting).
    pub(crate) fn set(self, answer: Answer) -> Result<(), Fault> {
        answer.map(drop).map_err(|refusal| self.refused(refusal, "HSETNX"))
    }

    /// The command that asks about a shard.
    pub(crate) fn asking_about(shard: &[u8]) -> Cmd {
        let mut info = redis::cmd("XINFO");
        info.arg("STREAM").arg(shard);
        info
    }

    /// Whether a shard has, or once had, entries; `answer` is the one to [`asking_about`](Self::asking_about). A shard that never
    /// had any was created by a consumer group that came first.
    pub(crate) fn is_used(self, answer: Answer) -> Result<bool, Fault> {
        match answer {
            Ok(reply) => Ok(field(&reply, "last-generated-id").and_then(bytes) != Some(b"0-0")),
            Err(refusal) if refusal.text == ReplyText::NoSuchKey => Ok(false),
            Err(refusal) => Err(self.refused(refusal, "XINFO STREAM")),
        }
    }

    /// The fault if streams exist but the registry does not.
    pub(crate) fn lost(self) -> Fault {
        let (key, fields) = (self.key(), self.fields());
        let fields: Vec<_> = fields.iter().map(|(field, value)| format!("{field} {value}")).collect();
        let message = format!(
            "the key '{}', which says how many shards the stream has, is gone, but shards of the stream exist; if the endpoint \
             is right, run HSET {} {}",
            key.escape_ascii(),
            key.escape_ascii(),
            fields.join(" "),
        );
        Fault::new(code::BAD_SHARDS, message)
    }

    /// The fields that the registry must have.
    fn fields(self) -> [Field; 3] {
        let Shards { hash, names, .. } = self.shards;
        [("n", self.shards.count().to_string()), ("hash", hash.name().to_owned()), ("names", names.name().to_owned())]
    }

    /// `found` holds the names and values of fields, alternating.
    fn first_missing(self, found: &[&[u8]]) -> Result<Option<Field>, Fault> {
        let fields = self.fields();
        let value = |name: &str| found.chunks_exact(2).find_map(|pair| (pair[0] == name.as_bytes()).then_some(pair[1]));
        if fields.iter().any(|(name, wanted)| value(name).is_some_and(|value| value != wanted.as_bytes())) {
            let shown = |name: &str| value(name).map_or("?".into(), |value| value.escape_ascii().to_string());
            let [n, hash, names] = fields;
            let message = format!(
                "the stream '{}' has {} shards (shard_hash '{}', shard_names '{}'), but the endpoint says {} ('{}', '{}')",
                self.name.escape_ascii(),
                shown("n"),
                shown("hash"),
                shown("names"),
                n.1,
                hash.1,
                names.1,
            );
            return Err(Fault::new(code::BAD_SHARDS, message));
        }
        Ok(fields.into_iter().find(|(name, _)| value(name).is_none()))
    }

    fn refused(self, refusal: Fault, command: &str) -> Fault {
        if refusal.code == "NOPERM" {
            let key = self.key();
            let message = format!(
                "shards need the rights +hgetall +hsetnx on the key '{}', and +xinfo|stream on the shards: {}",
                key.escape_ascii(),
                refusal.message
            );
            return Fault { message: Fault::new(code::CONFIG, message).message, ..refusal };
        }
        refusal.of_command(command)
    }
}
