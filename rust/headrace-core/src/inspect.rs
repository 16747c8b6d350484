//! Streams and their groups, consumers and pending entries, leases and members, as tables.
//!
//! ```text
//!  SCAN … ─▶ keys ─▶ TIME, XINFO STREAM, XINFO GROUPS, MEMORY USAGE ─▶ XINFO CONSUMERS, XPENDING, HGETALL ─▶ tables
//!  for a pattern     one round trip for all streams                    one for all groups
//! ```
//!
//! The commands of a round trip do not form a transaction: a change between two of them shows in one reply and not in the
//! other.

mod group;
mod lease;
mod options;
mod stream;
mod survey;

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::admin::{Column, Command, KeptConnections, Kind, Pending, Table, TableBuilder, with_connections};
use crate::decimal;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, ReplyText, Result};
use crate::net::{Watch, block_on};
use crate::resp::outline::WITHOUT_FIELDS;
use crate::resp::value::{bytes, integer, list};
use crate::stream_facts::StreamInfo;
use crate::utf8;

pub use group::GroupInfo;
pub use lease::{LeaseInfo, MemberInfo};
pub use options::{InspectOptions, Streams};
pub use survey::{LeaseAndMembers, Survey};

use group::{CONSUMER_COLUMNS, GROUP_COLUMNS, push_consumers};
use lease::{LEASE_COLUMNS, MEMBER_COLUMNS, is_unreadable};

/// The maximum number of streams that a pattern finds.
const MAX_FOUND: usize = 10_000;
/// The number of keys that one SCAN call examines.
const SCAN_COUNT: u32 = 1_000;
/// The number of nodes of a stream that MEMORY USAGE samples for its estimate.
const SAMPLES: u32 = 5;

const PENDING_COLUMNS: [Column; 6] = [
    ("stream", Kind::Text, false),
    ("group", Kind::Text, false),
    ("entry_id", Kind::Text, false),
    ("consumer", Kind::Text, false),
    ("idle", Kind::Duration, false),
    ("deliveries", Kind::Number, false),
];

/// The result of an inspection.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The server's time, in microseconds since 1970; `None` if the user may not ask.
    pub now: Option<i64>,
    /// Whether a pattern found more than 10,000 streams: then only 10,000 of them are included.
    pub truncated: bool,
    /// One row per stream.
    pub streams: Table,
    /// One row per group.
    pub groups: Table,
    /// One row per consumer.
    pub consumers: Table,
    /// The oldest pending entries of each group.
    pub pending: Table,
    /// One row per stream and group of shard consumers.
    pub leases: Table,
    /// One row per member of a group of shard consumers.
    pub members: Table,
}

/// The streams to inspect.
struct Wanted {
    keys: Vec<Vec<u8>>,
    /// Whether a search found the streams: a stream that no longer exists is then omitted.
    searched: bool,
    truncated: bool,
}

impl Wanted {
    fn named(keys: Vec<Vec<u8>>) -> Self {
        Self { keys, searched: false, truncated: false }
    }
}

/// The replies of the first round trip about a stream.
struct Found {
    key: Vec<u8>,
    info: Option<StreamInfo>,
    memory: Option<i64>,
    groups: Vec<GroupInfo>,
    /// The lease of each group that has one, by its name.
    leases: BTreeMap<Vec<u8>, LeaseInfo>,
    /// The same for its members, where they are beside this stream.
    members: BTreeMap<Vec<u8>, Vec<MemberInfo>>,
}

/// The subject of a command of the first round trip; the number is the index of the stream.
#[derive(Clone, Copy)]
enum First {
    Time,
    Stream(usize),
    Groups(usize),
    Memory(usize),
}

/// The subject of a command of the second round trip; the numbers are the indexes of the stream and of its group.
#[derive(Clone, Copy)]
enum Second {
    Consumers(usize, usize),
    Pending(usize, usize),
    Lease(usize, usize),
    Members(usize, usize),
}

/// Inspects the streams that `options` names.
pub fn inspect(endpoint: &Endpoint, options: &InspectOptions, watch: &mut dyn Watch) -> Result<Inspection> {
    let mut found = Findings {
        now: None,
        truncated: false,
        streams: TableBuilder::new(&stream::COLUMNS),
        groups: TableBuilder::new(&GROUP_COLUMNS),
        consumers: TableBuilder::new(&CONSUMER_COLUMNS),
        pending: TableBuilder::new(&PENDING_COLUMNS),
        leases: TableBuilder::new(&LEASE_COLUMNS),
        members: TableBuilder::new(&MEMBER_COLUMNS),
    };
    with_connections(endpoint, WITHOUT_FIELDS, |connections| found.look_at_all(connections, options, watch))?;
    Ok(Inspection {
        now: found.now,
        truncated: found.truncated,
        streams: found.streams.finish()?,
        groups: found.groups.finish()?,
        consumers: found.consumers.finish()?,
        pending: found.pending.finish()?,
        leases: found.leases.finish()?,
        members: found.members.finish()?,
    })
}

/// The findings of an inspection.
struct Findings {
    now: Option<i64>,
    truncated: bool,
    streams: TableBuilder,
    groups: TableBuilder,
    consumers: TableBuilder,
    pending: TableBuilder,
    leases: TableBuilder,
    members: TableBuilder,
}

impl Findings {
    /// Adds the rows of the streams that `options` names.
    fn look_at_all(
        &mut self,
        connections: &mut KeptConnections,
        options: &InspectOptions,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let endpoint = block_on(connections.decided(watch))?;
        let wanted = match &options.streams {
            None => Wanted::named(endpoint.stream_keys().to_vec()),
            Some(Streams::Keys(keys)) => Wanted::named(keys.clone()),
            Some(Streams::Pattern(_)) if endpoint.cluster().is_some() => {
                let message = "a pattern cannot be used with a cluster, where a search sees only the keys of one node: name the \
                               streams";
                return Err(Error::config("streams", message));
            }
            Some(Streams::Pattern(pattern)) => scan(connections, pattern, watch)?,
        };
        self.truncated = wanted.truncated;
        let (now, mut found) = look_at_streams(connections, wanted, options.groups, watch)?;
        self.now = now;
        self.look_at_groups(connections, &mut found, options.pending_limit, watch)?;
        let owned = |group: &[u8], member: &MemberInfo| {
            let leases = found.iter().filter_map(|stream| stream.leases.get(group));
            leases.filter(|lease| lease.owner.as_ref() == Some(&member.name) && !lease.has_ended(now)).count()
        };
        for Found { key, info, memory, groups, leases, members } in &found {
            stream::push(&mut self.streams, key, info.as_ref(), *memory)?;
            let Some(info) = info else { continue };
            for group in groups {
                group.push(&mut self.groups, key, info)?;
                if let Some(lease) = leases.get(&group.name) {
                    lease.push(&mut self.leases, key, &group.name, lease.lag(&group.position, info))?;
                }
                for member in members.get(&group.name).into_iter().flatten() {
                    member.push(&mut self.members, key, &group.name, owned(&group.name, member))?;
                }
            }
        }
        Ok(())
    }

    /// Makes the second round trip: the consumers and the oldest pending entries of each group, its lease and its members.
    fn look_at_groups(
        &mut self,
        connections: &mut KeptConnections,
        found: &mut [Found],
        pending_limit: usize,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        for (number, stream) in found.iter().enumerate() {
            for (place, group) in stream.groups.iter().enumerate() {
                let read = |right| Command::read(right).key(&stream.key).arg(group.name.as_slice());
                if group.consumers > 0 {
                    commands.push(read("xinfo|consumers"));
                    asked.push(Second::Consumers(number, place));
                }
                if group.pending > 0 {
                    // At least one entry, because the table of groups shows the oldest one.
                    commands.push(read("xpending").arg("-").arg("+").arg(pending_limit.max(1)));
                    asked.push(Second::Pending(number, place));
                }
                commands.push(LeaseInfo::command(&stream.key, &group.name));
                commands.push(MemberInfo::command(&stream.key, &group.name));
                asked.extend([Second::Lease(number, place), Second::Members(number, place)]);
            }
        }
        let mut wrong = None;
        let replies = connections.ask_all(&commands, watch, |_, reply| Ok(reply))?;
        for ((command, asked), reply) in commands.iter().zip(asked).zip(replies) {
            let (Second::Consumers(number, place)
            | Second::Pending(number, place)
            | Second::Lease(number, place)
            | Second::Members(number, place)) = asked;
            let Some(Found { key, groups, leases, members, .. }) = found.get_mut(number) else { continue };
            let Some(group) = groups.get_mut(place) else { continue };
            let taken = match (asked, reply) {
                (Second::Lease(..) | Second::Members(..), Err(refusal)) if is_unreadable(&refusal) => Ok(true),
                (_, Err(refusal)) if has_gone(&refusal) => Ok(true),
                (_, Err(refusal)) => Err(command.refused(&refusal)),
                (Second::Consumers(..), Ok(reply)) => push_consumers(&mut self.consumers, key, &group.name, &reply),
                (Second::Pending(..), Ok(reply)) => push_pending(&mut self.pending, key, group, &reply, pending_limit),
                (Second::Lease(..), Ok(reply)) => {
                    leases.extend(LeaseInfo::read(&reply).map(|lease| (group.name.clone(), lease)));
                    Ok(true)
                }
                (Second::Members(..), Ok(reply)) => {
                    members.insert(group.name.clone(), MemberInfo::read_all(&reply));
                    Ok(true)
                }
            };
            let taken = taken.and_then(|is_read| if is_read { Ok(()) } else { Err(command.misunderstood()) });
            wrong = wrong.take().or(taken.err());
        }
        wrong.map_or(Ok(()), Err)
    }
}

/// Returns the streams whose keys match, sorted. SCAN may return a key twice.
fn scan(connections: &mut KeptConnections, pattern: &[u8], watch: &mut dyn Watch) -> Result<Wanted> {
    let mut keys = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let command = Command::read("scan").arg(cursor.as_slice()).arg("MATCH").arg(pattern);
        let command = command.arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg("stream");
        let reply = connections.ask(&command, watch)?.map_err(|refusal| command.refused(&refusal))?;
        let Some([next, found]) = list(&reply) else { return Err(command.misunderstood()) };
        let found = list(found).ok_or_else(|| command.misunderstood())?;
        keys.extend(found.iter().filter_map(bytes).map(<[u8]>::to_vec));
        cursor = bytes(next).ok_or_else(|| command.misunderstood())?.to_vec();
        let is_over = cursor == b"0";
        if is_over || keys.len() > MAX_FOUND {
            let truncated = keys.len() > MAX_FOUND;
            return Ok(Wanted { keys: keys.into_iter().take(MAX_FOUND).collect(), searched: true, truncated });
        }
    }
}

/// Makes the first round trip: the server's time, and the information on each stream.
fn look_at_streams(
    connections: &mut KeptConnections,
    wanted: Wanted,
    with_groups: bool,
    watch: &mut dyn Watch,
) -> Result<(Option<i64>, Vec<Found>)> {
    let Wanted { keys, searched, .. } = wanted;
    let time = Command::read("time");
    let mut commands = vec![match keys.first() {
        Some(key) => time.beside(key),
        None => time,
    }];
    let mut asked = vec![First::Time];
    for (number, key) in keys.iter().enumerate() {
        commands.push(Command::read("xinfo|stream").key(key));
        asked.push(First::Stream(number));
        if with_groups {
            commands.push(Command::read("xinfo|groups").key(key));
            asked.push(First::Groups(number));
        }
        commands.push(Command::read("memory|usage").key(key).arg("SAMPLES").arg(SAMPLES));
        asked.push(First::Memory(number));
    }
    let mut found: Vec<_> = keys
        .into_iter()
        .map(|key| Found {
            key,
            info: None,
            memory: None,
            groups: Vec::new(),
            leases: BTreeMap::new(),
            members: BTreeMap::new(),
        })
        .collect();
    let (mut now, mut wrong) = (None, None);
    let replies = connections.ask_all(&commands, watch, |_, reply| Ok(reply))?;
    for ((command, asked), reply) in commands.iter().zip(&asked).zip(replies) {
        let taken = match (asked, reply) {
            (First::Time, reply) => {
                now = reply.ok().as_ref().and_then(microseconds);
                Ok(())
            }
            (First::Memory(number), reply) => {
                if let Some(stream) = found.get_mut(*number) {
                    // Users may lack permission to ask, and some services do not have the command.
                    stream.memory = reply.ok().as_ref().and_then(integer);
                }
                Ok(())
            }
            (First::Stream(_) | First::Groups(_), Err(refusal)) if refusal.text == ReplyText::NoSuchKey => Ok(()),
            (First::Stream(_) | First::Groups(_), Err(refusal)) if searched && refusal.code == "WRONGTYPE" => Ok(()),
            (First::Stream(_) | First::Groups(_), Err(refusal)) => Err(command.refused(&refusal)),
            (First::Stream(number), Ok(reply)) => match (StreamInfo::of_value(&reply), found.get_mut(*number)) {
                (Some(info), Some(stream)) => {
                    stream.info = Some(info);
                    Ok(())
                }
                _ => Err(command.misunderstood()),
            },
            (First::Groups(number), Ok(reply)) => match (GroupInfo::read_all(&reply), found.get_mut(*number)) {
                (Some(groups), Some(stream)) => {
                    stream.groups = groups;
                    Ok(())
                }
                _ => Err(command.misunderstood()),
            },
        };
        wrong = wrong.take().or(taken.err());
    }
    found.retain(|stream| !searched || stream.info.is_some());
    wrong.map_or(Ok((now, found)), Err)
}

/// Whether the stream or group existed in the first round trip but does not any more.
fn has_gone(refusal: &Fault) -> bool {
    refusal.code == "NOGROUP" || refusal.code == "WRONGTYPE" || refusal.text == ReplyText::NoSuchKey
}

/// Appends pending entries of a group. Returns false if the reply cannot be read.
fn push_pending(
    table: &mut TableBuilder,
    key: &[u8],
    group: &mut GroupInfo,
    reply: &Value,
    limit: usize,
) -> Result<bool> {
    let Some(entries) = list(reply) else { return Ok(false) };
    for entry in entries {
        let Some(entry) = Pending::read(entry) else { return Ok(false) };
        group.oldest_pending.get_or_insert(entry.id);
        if limit > 0 {
            table.push([
                utf8::escape(key).into(),
                utf8::escape(&group.name).into(),
                Some(entry.id.to_string()).into(),
                utf8::escape(entry.consumer).into(),
                entry.idle.into(),
                entry.deliveries.into(),
            ])?;
        }
    }
    Ok(true)
}

/// Parses the reply to TIME: seconds, and microseconds within the second.
fn microseconds(reply: &Value) -> Option<i64> {
    let [seconds, micros] = list(reply)? else { return None };
    let number = |part| bytes(part).and_then(decimal::parse).and_then(|number| i64::try_from(number).ok());
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}
