//! The administration of a consumer group: create, move, inspect, clean up, destroy.
//!
//! Each call opens a connection and closes it at the end: a group costs nothing between calls. Requests are built and replies
//! read here without I/O; the module `admin` transfers them.

mod arguments;
mod pending;
mod start;

use std::time::Duration;

use redis::Value;

use crate::admin::{Command, Table, shown, with_connections};
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, ReplyText, Result};
use crate::leases::{PINS_CHANGED, lease_key, members_key};
use crate::net::{Watch, block_on};
use crate::resp::outline::WHOLE;
use crate::resp::value::{bytes, integer, list};
use crate::resp::{EntryId, entry_id};

pub use arguments::{GroupArguments, PendingQuery, Pins, entry_ids};
pub use start::Start;

use pending::{Pages, milliseconds};

/// Deletes consumers after checking in the same step that they have no pending entries: XGROUP DELCONSUMER would drop pending
/// entries.
const DELETE: &str = include_str!("group/delete_consumers.lua");
/// The number of entry IDs in one XCLAIM.
const CLAIM_IDS: usize = 1_000;

/// A consumer group of the endpoint's stream. Immutable; holds no connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    endpoint: Endpoint,
    name: Vec<u8>,
}

/// A consumer that the script checked.
struct Looked {
    name: Vec<u8>,
    pending: i64,
    deleted: bool,
}

impl Group {
    /// The group `name`, which must not be empty.
    pub fn new(endpoint: Endpoint, name: Vec<u8>) -> Self {
        Self { endpoint, name }
    }

    /// The name of the group.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Creates the group: XGROUP CREATE, with MKSTREAM if `mkstream`. Returns false if a group of that name exists, which is left
    /// unchanged.
    pub fn create(&self, start: Start, mkstream: bool, watch: &mut dyn Watch) -> Result<bool> {
        let mut command = self.write("xgroup|create").arg(start.last_delivered());
        if mkstream {
            command = command.arg("MKSTREAM");
        }
        with_connections(&self.endpoint, WHOLE, |connections| match connections.ask(&command, watch)? {
            Err(refusal) if refusal.code == "BUSYGROUP" => Ok(false),
            Err(refusal) if refusal.text == ReplyText::NoSuchKey => {
                let message =
                    format!("the stream {} does not exist: create it, or leave mkstream on", shown(self.key()));
                Err(Error::GroupMissing { stream: self.key().to_vec(), message })
            }
            Err(refusal) => Err(command.refused(&refusal)),
            Ok(_) => Ok(true),
        })
    }

    /// Moves the group: XGROUP SETID. `entries_read` needs Redis 7.0.
    pub fn set_position(&self, start: Start, entries_read: Option<u64>, watch: &mut dyn Watch) -> Result<()> {
        let mut command = self.write("xgroup|setid").arg(start.last_delivered());
        if let Some(count) = entries_read {
            command = command.arg("ENTRIESREAD").arg(count);
        }
        with_connections(&self.endpoint, WHOLE, |connections| match connections.ask(&command, watch)? {
            Err(refusal) if entries_read.is_some() && refusal.text == ReplyText::BadCommand => {
                let said = refusal.message;
                let message = format!("entries_read needs Redis 7.0 or later, or Valkey: XGROUP SETID: {said}");
                Err(Error::config("entries_read", message))
            }
            reply => self.checked(&command, reply).map(drop),
        })
    }

    /// Returns the pending entries that match `query`, in the order of their IDs: XPENDING, page by page. The columns:
    /// `entry_id`, `consumer`, `idle` (since the last delivery), `deliveries`.
    pub fn pending(&self, query: &PendingQuery, watch: &mut dyn Watch) -> Result<Table> {
        let mut pages = Pages::new(self.key(), &self.name, query);
        with_connections(&self.endpoint, WHOLE, |connections| {
            while let Some(command) = pages.next() {
                let reply = connections.ask(&command, watch)?;
                if !pages.take(&self.checked(&command, reply)?)? {
                    return Err(command.misunderstood());
                }
            }
            pages.finish()
        })
    }

    /// Makes `consumer` the owner of those of `ids` that are pending and were last delivered at least `min_idle` ago: XCLAIM with
    /// JUSTID, which keeps the number of deliveries. FORCE is never used: it would make acknowledged entries pending again.
    pub fn claim(
        &self,
        consumer: &[u8],
        ids: &[EntryId],
        min_idle: Duration,
        watch: &mut dyn Watch,
    ) -> Result<Vec<EntryId>> {
        let mut claimed = Vec::new();
        if ids.is_empty() {
            return Ok(claimed);
        }
        with_connections(&self.endpoint, WHOLE, |connections| {
            for ids in ids.chunks(CLAIM_IDS) {
                let ids: Vec<_> = ids.iter().map(EntryId::to_string).collect();
                let command = self.write("xclaim").arg(consumer).arg(milliseconds(min_idle)).arg(ids).arg("JUSTID");
                let reply = connections.ask(&command, watch)?;
                let reply = self.checked(&command, reply)?;
                let ids = list(&reply).and_then(|ids| ids.iter().map(|id| bytes(id).and_then(entry_id)).collect());
                let ids: Vec<_> = ids.ok_or_else(|| command.misunderstood())?;
                claimed.extend(ids);
            }
            Ok(claimed)
        })
    }

    /// Deletes a consumer that has no pending entries. Returns false if no consumer has that name.
    pub fn delete_consumer(&self, consumer: &[u8], watch: &mut dyn Watch) -> Result<bool> {
        let looked = self.delete(Duration::ZERO, Some(consumer), watch)?;
        match looked.first() {
            None => Ok(false),
            Some(Looked { deleted: true, .. }) => Ok(true),
            Some(Looked { pending, .. }) => Err(Error::state(format!(
                "the consumer {} of the group {} has {pending} pending entries, which would be lost with it: claim them \
                 for another consumer, or acknowledge them, before it is deleted",
                shown(consumer),
                shown(&self.name),
            ))),
        }
    }

    /// Deletes the consumers that got no entry for `idle` and have no pending entries; returns their names.
    pub fn remove_idle_consumers(&self, idle: Duration, watch: &mut dyn Watch) -> Result<Vec<Vec<u8>>> {
        let looked = self.delete(idle, None, watch)?;
        Ok(looked.into_iter().filter(|consumer| consumer.deleted).map(|consumer| consumer.name).collect())
    }

    /// Pins streams to members of a group of shard consumers: only that member takes the stream, in addition to its share, and
    /// another one that owns it gives it up. The group and the members need not exist yet.
    pub fn assign(&self, pins: &Pins, watch: &mut dyn Watch) -> Result<()> {
        with_connections(&self.endpoint, WHOLE, |connections| {
            let endpoint = block_on(connections.decided(watch))?;
            let streams = pins.streams.clone().unwrap_or_else(|| endpoint.stream_keys().to_vec());
            if let Some((stream, _)) = pins.pins.iter().find(|(stream, _)| !streams.contains(stream)) {
                let message = format!("pins must be of streams that the members share, got {}", shown(stream));
                return Err(Error::config("pins", message));
            }
            let Some(home) = streams.iter().min().filter(|_| !pins.pins.is_empty()) else { return Ok(()) };
            let pin = |(stream, member): &(Vec<u8>, Option<Vec<u8>>)| {
                let right = if member.is_some() { "hset" } else { "hdel" };
                let command = Command::write(right).key(&lease_key(stream, &self.name)).arg("pinned");
                member.iter().fold(command, |command, member| command.arg(member.as_slice()))
            };
            let commands: Vec<_> = pins.pins.iter().map(pin).collect();
            // The members look at the pins when they see this count.
            let key = members_key(home, &self.name);
            let changed = Command::write("hincrby").key(&key).arg("").arg(PINS_CHANGED);
            for commands in [&commands[..], &[changed]] {
                connections.ask_all(commands, watch, |command, reply| {
                    reply.map(drop).map_err(|refusal| command.refused(&refusal))
                })?;
            }
            Ok(())
        })
    }

    /// Destroys the group and its pending entries: XGROUP DESTROY. Returns false if the group did not exist.
    pub fn destroy(&self, watch: &mut dyn Watch) -> Result<bool> {
        let command = self.write("xgroup|destroy");
        with_connections(&self.endpoint, WHOLE, |connections| match connections.ask(&command, watch)? {
            Err(refusal) if refusal.text == ReplyText::NoSuchKey => Ok(false),
            reply => self.checked(&command, reply).map(|count| integer(&count) == Some(1)),
        })
    }

    fn key(&self) -> &[u8] {
        self.endpoint.stream_key()
    }

    /// A command that changes the group.
    fn write(&self, right: &'static str) -> Command {
        Command::write(right).key(self.key()).arg(self.name.as_slice())
    }

    fn delete(&self, idle: Duration, only: Option<&[u8]>, watch: &mut dyn Watch) -> Result<Vec<Looked>> {
        let mut command = Command::write("eval").arg(DELETE).arg(1).key(self.key());
        command = command.arg(self.name.as_slice()).arg(milliseconds(idle));
        if let Some(consumer) = only {
            command = command.arg(consumer);
        }
        let reply = with_connections(&self.endpoint, WHOLE, |connections| {
            let reply = connections.ask(&command, watch)?;
            self.checked(&command, reply)
        })?;
        let Some([right, error, looked]) = list(&reply) else { return Err(command.misunderstood()) };
        match (bytes(right), bytes(error)) {
            (Some(b""), _) => {}
            (Some(right), Some(error)) => {
                let refusal = Fault::from_reply(error);
                return Err(self.missing(&refusal).unwrap_or_else(|| {
                    command.refused_for(
                        if right == b"xinfo|consumers" { "xinfo|consumers" } else { "xgroup|delconsumer" },
                        &refusal,
                    )
                }));
            }
            _ => return Err(command.misunderstood()),
        }
        list(looked).and_then(|all| all.iter().map(Looked::read).collect()).ok_or_else(|| command.misunderstood())
    }

    /// The reply, unless it is an error.
    fn checked(&self, command: &Command, reply: std::result::Result<Value, Fault>) -> Result<Value> {
        reply.map_err(|refusal| self.missing(&refusal).unwrap_or_else(|| command.refused(&refusal)))
    }

    /// The error for a missing stream or group.
    fn missing(&self, refusal: &Fault) -> Option<Error> {
        let (key, name) = (shown(self.key()), shown(&self.name));
        let message = if refusal.text == ReplyText::NoSuchKey {
            format!("the stream {key} does not exist, nor does its consumer group {name}: create() creates both")
        } else if refusal.code == "NOGROUP" {
            format!("the consumer group {name} of the stream {key} does not exist: create() creates it")
        } else {
            return None;
        };
        Some(Error::GroupMissing { stream: self.key().to_vec(), message })
    }
}

impl Looked {
    fn read(reply: &Value) -> Option<Self> {
        let [name, pending, deleted] = list(reply)? else { return None };
        Some(Self { name: bytes(name)?.to_vec(), pending: integer(pending)?, deleted: integer(deleted)? == 1 })
    }
}
