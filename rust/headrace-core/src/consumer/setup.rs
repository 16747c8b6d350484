//! What a new connection does before it reads: it ends the previous connection, and creates the groups.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::client_name::ClientName;
use super::work::{MAKES_GROUP, Names};
use crate::entries::escaped;
use crate::error::{Classifier, Error, Fault};
use crate::net::{ConnectError, Deadline, Transport, Watch, is_redirect};
use crate::reading::Trouble;
use crate::resp::outline::WHOLE;

/// How long a connection of the same name must stay listed to count: that of a process that has ended may stay until the server, or
/// whatever lies in between, notices.
pub(super) const LOOKS_FOR: Duration = Duration::from_millis(500);
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// How many streams the server is asked about in one go: some 50 KB.
const STREAMS_AT_ONCE: usize = 64;
/// Nothing is kept of what a reply contains: only refusals matter.
const NO_PARTS: usize = 0;

type Result<T> = std::result::Result<T, Trouble>;
/// What a server replied to a command, or its refusal.
type Reply = std::result::Result<Value, Fault>;

/// A connection as its server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// The ID of the client, and the run ID of the server's process. `None`: the user has no right to ask.
    ids: Option<(i64, String)>,
}

impl Identity {
    /// The run ID of the server's process.
    pub(super) fn run_id(&self) -> Option<&str> {
        self.ids.as_ref().map(|(_, run_id)| &**run_id)
    }

    /// Whether it is known to belong to another server than `other`.
    pub(super) fn is_of_another_server(&self, other: &Self) -> bool {
        self.run_id().zip(other.run_id()).is_some_and(|(own, other)| own != other)
    }
}

/// Where a group that does not exist yet begins.
#[derive(Debug, Clone)]
pub(super) struct Create {
    /// The ID of the last entry before the group's first one.
    pub(super) after: String,
}

/// The commands of one connection that has no session yet.
pub(super) struct Setup<'a> {
    pub(super) transport: &'a mut Transport,
    /// How long the server may take for each reply.
    pub(super) silence: Duration,
    /// How long it may take for all of them, if that is limited.
    pub(super) until: Option<Instant>,
    pub(super) watch: &'a mut dyn Watch,
}

impl Setup<'_> {
    /// The identity of this connection.
    pub(super) async fn identity(&mut self) -> Result<Identity> {
        let none = Ok(Identity { ids: None });
        let Ok(Value::Int(client_id)) = self.ask(redis::cmd("CLIENT").arg("ID")).await? else { return none };
        let Ok(Value::BulkString(info)) = self.ask(redis::cmd("INFO").arg("server")).await? else { return none };
        let info = String::from_utf8_lossy(&info);
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(Identity { ids: run_id.map(|run_id| (client_id, run_id.trim().to_owned())) })
    }

    /// Ends the connection `old` of the same server, so that commands sent over it are not executed later. Returns whether that
    /// is certain: without the right to end it, the pending entries must be looked at again.
    pub(super) async fn end(&mut self, old: &Identity, new: &Identity) -> Result<bool> {
        let (Some((old_id, old_run)), Some((new_id, new_run))) = (&old.ids, &new.ids) else { return Ok(false) };
        if old_run != new_run || old_id == new_id {
            return Ok(true);
        }
        // The reply is 0 if the connection no longer exists.
        Ok(self.ask(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(old_id)).await?.is_ok())
    }

    /// Whether another consumer has the same name during all of `time`: each sees the other's pending entries as its own. False
    /// without the right to list clients.
    pub(super) async fn finds_namesake(&mut self, name: &ClientName, time: Duration) -> Result<bool> {
        let began = Instant::now();
        loop {
            let Ok(clients) = self.ask(redis::cmd("CLIENT").arg("LIST")).await? else { return Ok(false) };
            if !name.has_namesake(&clients) {
                return Ok(false);
            }
            if began.elapsed() >= time {
                return Ok(true);
            }
            self.pause(LOOKS_EVERY).await?;
        }
    }

    /// Names the connection after its consumer.
    pub(super) async fn name(&mut self, name: &ClientName) -> Result<()> {
        // Only `CLIENT LIST` shows it, so a refusal does not matter.
        self.ask(redis::cmd("CLIENT").arg("SETNAME").arg(name.own())).await?.ok();
        Ok(())
    }

    /// Creates the group of each stream, and the stream, unless they exist.
    pub(super) async fn create(&mut self, keys: &[Arc<[u8]>], names: &Names, create: &Create) -> Result<()> {
        let command = |key: &[u8]| {
            let mut command = redis::cmd("XGROUP");
            command.arg("CREATE").arg(key).arg(&names.group).arg(&create.after).arg("MKSTREAM");
            vec![Right { name: "XGROUP CREATE", acl: "xgroup|create", command }]
        };
        self.ask_of_each(keys, command, |key, right, refusal| match &*refusal.code {
            "BUSYGROUP" => Ok(()),
            _ => Err(right.refused(key, refusal)),
        })
        .await
    }

    /// Fails if a stream does not have the group.
    pub(super) async fn expect_groups(&mut self, keys: &[Arc<[u8]>], names: &Names) -> Result<()> {
        let command = |key: &[u8]| {
            let mut command = redis::cmd("XPENDING");
            command.arg(key).arg(&names.group);
            vec![Right { name: "XPENDING", acl: "xpending", command }]
        };
        self.ask_of_each(keys, command, |key, right, refusal| match &*refusal.code {
            "NOGROUP" => Err(group_missing(key, names).into()),
            _ => Err(right.refused(key, refusal)),
        })
        .await
    }

    /// Checks the rights that reading needs, before the first entry is read. Servers check rights before arguments, and each of
    /// these commands has an argument that they refuse.
    pub(super) async fn check_rights(
        &mut self,
        keys: &[Arc<[u8]>],
        names: &Names,
        acks: bool,
        claims: bool,
    ) -> Result<()> {
        self.ask_of_each(
            keys,
            |key| rights(key, names, acks, claims),
            |key, right, refusal| match &*refusal.code {
                "NOPERM" | "WRONGTYPE" => Err(right.refused(key, refusal)),
                _ => Ok(()),
            },
        )
        .await
    }

    /// Sends the commands of each stream, those of many streams in one go, and lets `judge` look at each refusal, in order.
    async fn ask_of_each(
        &mut self,
        keys: &[Arc<[u8]>],
        commands: impl Fn(&[u8]) -> Vec<Right> + Send,
        judge: impl Fn(&[u8], &Right, &Fault) -> Result<()> + Send,
    ) -> Result<()> {
        for keys in keys.chunks(STREAMS_AT_ONCE) {
            let asked: Vec<(&[u8], Right)> =
                keys.iter().flat_map(|key| commands(key).into_iter().map(move |right| (&**key, right))).collect();
            let mut packed = Vec::new();
            for (_, right) in &asked {
                right.command.write_packed_command(&mut packed);
            }
            let mut refusals = Vec::new();
            self.send(&packed, asked.len(), NO_PARTS, |reply| refusals.push(reply.err())).await?;
            for ((key, right), refusal) in asked.iter().zip(refusals) {
                refusal.map_or(Ok(()), |refusal| judge(key, right, &refusal))?;
            }
        }
        Ok(())
    }

    async fn ask(&mut self, command: &redis::Cmd) -> Result<Reply> {
        let mut only = Ok(Value::Nil);
        self.send(&command.get_packed_command(), 1, WHOLE, |reply| only = reply).await?;
        Ok(only)
    }

    async fn pause(&mut self, pause: Duration) -> Result<()> {
        let until = Instant::now() + 2 * pause;
        Deadline::new(until, self.watch).pause(pause).await.map_err(trouble)
    }

    async fn send(
        &mut self,
        packed: &[u8],
        replies: usize,
        depth: usize,
        mut each: impl FnMut(Reply) + Send,
    ) -> Result<()> {
        let mut patience = match self.until {
            Some(until) => Deadline::new(until.min(self.watch.now() + self.silence), self.watch),
            None => Deadline::of_silence(self.silence, self.watch),
        };
        let sent = self.transport.query_all(packed, replies, depth, &mut patience, &mut each).await;
        sent.map_err(trouble)
    }
}

fn trouble(error: ConnectError) -> Trouble {
    match error {
        ConnectError::Interrupted => Error::Interrupted.into(),
        ConnectError::Fault(fault) => Trouble::Fault(fault),
    }
}

/// A command, and the right that it needs.
struct Right {
    name: &'static str,
    /// As an ACL names it.
    acl: &'static str,
    command: redis::Cmd,
}

/// The rights of a consumer that acknowledges and claims, each with a command that does nothing.
fn rights(key: &[u8], names: &Names, acks: bool, claims: bool) -> Vec<Right> {
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(&names.group).arg(&names.consumer).arg("COUNT").arg("x").arg("STREAMS").arg(key).arg(">");
    let mut rights = vec![Right { name: "XREADGROUP", acl: "xreadgroup", command: read }];
    let mut add = |name: &'static str, acl: &'static str, arguments: &[&[u8]]| {
        let mut command = redis::cmd(name);
        command.arg(key).arg(&names.group);
        for argument in arguments {
            command.arg(*argument);
        }
        rights.push(Right { name, acl, command });
    };
    if acks {
        add("XPENDING", "xpending", &[b"x", b"x", b"x"]);
        add("XACK", "xack", &[b"x"]);
        add("XCLAIM", "xclaim", &[&names.consumer, b"x", b"0-1"]);
    }
    if acks && claims {
        add("XAUTOCLAIM", "xautoclaim", &[&names.consumer, b"x", b"0-0"]);
    }
    if acks {
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(1).arg(key);
        rights.push(Right { name: "EVAL", acl: "eval", command });
        // The hash of a script that no server knows.
        let mut command = redis::cmd("EVALSHA");
        command.arg("0".repeat(40)).arg(1).arg(key);
        rights.push(Right { name: "EVALSHA", acl: "evalsha", command });
    }
    rights
}

impl Right {
    /// The error if the command was refused.
    fn refused(&self, key: &[u8], refusal: &Fault) -> Trouble {
        let Self { name, acl, .. } = self;
        if Classifier::default().may_pass(refusal) {
            return Trouble::Fault(refusal.clone());
        }
        if is_redirect(refusal) {
            // The slot has moved since the nodes were last asked for it: the next connection goes to its new node.
            return Trouble::Fault(refusal.clone().of_command(name));
        }
        let (stream, key) = (key, escaped(key));
        let said = &refusal.message;
        let message = if refusal.code == "NOPERM" {
            format!("{name} was refused: the ACL user needs +{acl} ~{key}: {said}")
        } else if refusal.code == "WRONGTYPE" {
            format!("the key '{key}' does not hold a stream: {name}: {said}")
        } else {
            format!("{name} of the key '{key}' was refused: {said}")
        };
        Error::stream_refused(stream, refusal, &message).into()
    }
}

/// The error for a missing group.
pub(super) fn group_missing(key: &[u8], names: &Names) -> Error {
    let (stream, key, group) = (key.to_vec(), escaped(key), escaped(&names.group));
    let message = format!("the consumer group '{group}' of the stream '{key}' does not exist: {MAKES_GROUP}");
    Error::GroupMissing { stream, message }
}
