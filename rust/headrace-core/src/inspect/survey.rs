//! What a planner of reads asks again and again: where streams begin and end, and which entries ranges begin with.

use redis::Value;

use super::group::GroupInfo;
use super::stream::StreamInfo;
use crate::admin::{Command, KeptConnection, Session};
use crate::contain::contain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, ReplyText, Result};
use crate::net::Watch;
use crate::resp::value::{bytes, list};
use crate::resp::{EntryId, entry_id};

/// Commands of one round trip: a planner may ask for thousands of ranges.
const PIPELINE: usize = 1_000;

/// Looks at streams over a connection that it keeps. Changes nothing.
pub struct Survey {
    endpoint: Endpoint,
    connection: KeptConnection,
}

impl Survey {
    /// Opens no connection yet.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), connection: KeptConnection::new(endpoint) }
    }

    /// XINFO STREAM of each key; `None`: there is no such stream.
    pub fn streams(&mut self, keys: &[Vec<u8>], watch: &mut dyn Watch) -> Result<Vec<Option<StreamInfo>>> {
        self.look_for(keys.iter())?;
        let commands: Vec<_> = keys.iter().map(|key| Command::read("xinfo|stream").key(key)).collect();
        self.ask(&commands, watch, |command, reply| match reply {
            Err(refusal) if refusal.text == ReplyText::NoSuchKey => Ok(None),
            Err(refusal) => Err(command.refused(&refusal)),
            Ok(reply) => StreamInfo::read(&reply).map(Some).ok_or_else(|| command.misunderstood()),
        })
    }

    /// XINFO GROUPS of each key; `None`: there is no such stream.
    pub fn groups(&mut self, keys: &[Vec<u8>], watch: &mut dyn Watch) -> Result<Vec<Option<Vec<GroupInfo>>>> {
        self.look_for(keys.iter())?;
        let commands: Vec<_> = keys.iter().map(|key| Command::read("xinfo|groups").key(key)).collect();
        self.ask(&commands, watch, |command, reply| match reply {
            Err(refusal) if refusal.text == ReplyText::NoSuchKey => Ok(None),
            Err(refusal) => Err(command.refused(&refusal)),
            Ok(reply) => GroupInfo::read_all(&reply).map(Some).ok_or_else(|| command.misunderstood()),
        })
    }

    /// The ID of the first entry of each range of IDs, both ends included: XRANGE with COUNT 1.
    pub fn first_ids(
        &mut self,
        ranges: &[(Vec<u8>, EntryId, EntryId)],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Option<EntryId>>> {
        let command = |(key, first, last): &(Vec<u8>, EntryId, EntryId)| {
            Command::read("xrange").key(key).arg(first.to_string()).arg(last.to_string()).arg("COUNT").arg(1)
        };
        self.look_for(ranges.iter().map(|(key, ..)| key))?;
        let commands: Vec<_> = ranges.iter().map(command).collect();
        self.ask(&commands, watch, |command, reply| {
            let reply = reply.map_err(|refusal| command.refused(&refusal))?;
            let entries = list(&reply).ok_or_else(|| command.misunderstood())?;
            let Some(entry) = entries.first() else { return Ok(None) };
            let id = list(entry).and_then(|entry| entry.first()).and_then(bytes).and_then(entry_id);
            id.map(Some).ok_or_else(|| command.misunderstood())
        })
    }

    /// Connects to the node of a cluster that has these keys.
    fn look_for<'a>(&mut self, keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
        let endpoint = self.endpoint.for_keys("streams", keys.map(Vec::as_slice))?;
        self.connection.connect_to(&endpoint);
        Ok(())
    }

    /// Closes the connection. The next call opens another one.
    pub fn close(&mut self) {
        self.connection.close();
    }

    fn ask<T>(
        &mut self,
        commands: &[Command],
        watch: &mut dyn Watch,
        read: impl Fn(&Command, std::result::Result<Value, Fault>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let ask_all = |session: &mut Session<'_>| {
            let mut answers = Vec::with_capacity(commands.len());
            for commands in commands.chunks(PIPELINE) {
                session.ask_all(commands, |at, reply| {
                    answers.extend(commands.get(at).map(|command| read(command, reply)));
                })?;
            }
            answers.into_iter().collect()
        };
        contain(|| self.connection.with(watch, ask_all))
            .unwrap_or_else(|_| Err(Error::Internal { message: "the look at the streams ended".to_owned() }))
    }
}
