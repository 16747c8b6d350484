//! The repeated queries of a read planner: the starts and ends of streams, and the first entries of ranges.

use redis::Value;

use super::group::GroupInfo;
use super::lease::{LeaseInfo, MemberInfo, is_unreadable};
use crate::admin::{Command, KeptConnections, check_shards};
use crate::contain::contain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, ReplyText, Result};
use crate::net::{Watch, block_on};
use crate::resp::value::{bytes, list};
use crate::resp::{EntryId, entry_id};
use crate::stream_facts::StreamInfo;

/// The lease that a group has of a stream, and the members whose list is beside it.
pub type LeaseAndMembers = (Option<LeaseInfo>, Vec<MemberInfo>);

/// Inspects streams over connections that stay open: a single one, or one to each node of a cluster that has some of them.
/// Changes nothing.
pub struct Survey {
    endpoint: Endpoint,
    connections: KeptConnections,
    /// Whether the shards have been checked.
    is_checked: bool,
}

impl Survey {
    /// Creates a survey without opening a connection.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), connections: KeptConnections::new(endpoint), is_checked: false }
    }

    /// Returns XINFO STREAM of each key.
    pub fn streams(&mut self, keys: &[Vec<u8>], watch: &mut dyn Watch) -> Result<Vec<StreamInfo>> {
        if !self.is_checked {
            block_on(check_shards(&mut self.connections, &self.endpoint, watch))?;
            self.is_checked = true;
        }
        let commands: Vec<_> = keys.iter().map(|key| Command::read("xinfo|stream").key(key)).collect();
        self.ask(&commands, watch, |command, reply| read_stream(command, reply_of(command, reply)?.as_ref()))
    }

    /// Returns XINFO STREAM and XINFO GROUPS of each key, in one round trip.
    pub fn groups(&mut self, keys: &[Vec<u8>], watch: &mut dyn Watch) -> Result<Vec<(StreamInfo, Vec<GroupInfo>)>> {
        let of_key = |key: &Vec<u8>| ["xinfo|stream", "xinfo|groups"].map(|right| Command::read(right).key(key));
        let commands: Vec<_> = keys.iter().flat_map(of_key).collect();
        let replies = self.ask(&commands, watch, reply_of)?;
        let pairs = commands.chunks_exact(2).zip(replies.chunks_exact(2));
        let read = |(commands, replies): (&[Command], &[Option<Value>])| {
            let ([of_stream, of_groups], [stream, groups]) = (commands, replies) else { return None };
            let groups = groups.as_ref().map_or(Some(Vec::new()), GroupInfo::read_all);
            let groups = groups.ok_or_else(|| of_groups.misunderstood());
            Some(read_stream(of_stream, stream.as_ref()).and_then(|stream| Ok((stream, groups?))))
        };
        pairs.filter_map(read).collect()
    }

    /// Returns the lease and the members of each group of shard consumers of a stream: HGETALL, in one round trip. The members are
    /// those whose list is beside this stream. `None`: the user may not read them.
    pub fn leases(
        &mut self,
        stream: &[u8],
        groups: &[&[u8]],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Option<LeaseAndMembers>>> {
        let of_group = |group: &&[u8]| [LeaseInfo::command(stream, group), MemberInfo::command(stream, group)];
        let commands: Vec<_> = groups.iter().flat_map(of_group).collect();
        let replies = self.ask(&commands, watch, |command, reply| match reply {
            Err(refusal) if is_unreadable(&refusal) => Ok(None),
            Err(refusal) => Err(command.refused(&refusal)),
            Ok(reply) => Ok(Some(reply)),
        })?;
        let read = |pair: &[Option<Value>]| match pair {
            [Some(lease), Some(members)] => Some((LeaseInfo::read(lease), MemberInfo::read_all(members))),
            _ => None,
        };
        Ok(replies.chunks_exact(2).map(read).collect())
    }

    /// Returns the ID of the first entry in each range of IDs, both ends included: XRANGE with COUNT 1.
    pub fn first_ids(
        &mut self,
        ranges: &[(Vec<u8>, EntryId, EntryId)],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Option<EntryId>>> {
        let command = |(key, first, last): &(Vec<u8>, EntryId, EntryId)| {
            Command::read("xrange").key(key).arg(first.to_string()).arg(last.to_string()).arg("COUNT").arg(1)
        };
        let commands: Vec<_> = ranges.iter().map(command).collect();
        self.ask(&commands, watch, |command, reply| {
            let reply = reply.map_err(|refusal| command.refused(&refusal))?;
            let entries = list(&reply).ok_or_else(|| command.misunderstood())?;
            let Some(entry) = entries.first() else { return Ok(None) };
            let id = list(entry).and_then(|entry| entry.first()).and_then(bytes).and_then(entry_id);
            id.map(Some).ok_or_else(|| command.misunderstood())
        })
    }

    /// Closes the connections. The next call opens new ones.
    pub fn close(&mut self) {
        self.connections.close();
    }

    fn ask<T>(
        &mut self,
        commands: &[Command],
        watch: &mut dyn Watch,
        read: impl Fn(&Command, std::result::Result<Value, Fault>) -> Result<T>,
    ) -> Result<Vec<T>> {
        contain(|| self.connections.ask_all(commands, watch, read))
            .unwrap_or_else(|_| Err(Error::Internal { message: "the look at the streams ended".to_owned() }))
    }
}

/// The reply; `None`: the stream does not exist.
fn reply_of(command: &Command, reply: std::result::Result<Value, Fault>) -> Result<Option<Value>> {
    match reply {
        Err(refusal) if refusal.text == ReplyText::NoSuchKey => Ok(None),
        Err(refusal) => Err(command.refused(&refusal)),
        Ok(reply) => Ok(Some(reply)),
    }
}

fn read_stream(command: &Command, reply: Option<&Value>) -> Result<StreamInfo> {
    let info = reply.map_or_else(|| Some(StreamInfo::missing()), StreamInfo::of_value);
    info.ok_or_else(|| command.misunderstood())
}
