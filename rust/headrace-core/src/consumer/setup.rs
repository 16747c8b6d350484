//! What a new connection does before it reads: it ends the previous connection, and creates the groups.

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;

use super::client_name::ClientName;
use super::work::Names;
use crate::entries::escaped;
use crate::error::{Classifier, Error, Fault};
use crate::net::{ConnectError, Deadline, Transport, Watch, block_on, is_redirect};
use crate::reading::Trouble;

/// How long a connection of the same name must stay listed to count: that of a process that has ended may stay until the server, or
/// whatever lies in between, notices.
pub(super) const LOOKS_FOR: Duration = Duration::from_millis(500);
const LOOKS_EVERY: Duration = Duration::from_millis(20);

type Result<T> = std::result::Result<T, Trouble>;

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
    pub(super) fn identity(&mut self) -> Result<Identity> {
        let none = Ok(Identity { ids: None });
        let Ok(Value::Int(client_id)) = self.ask(redis::cmd("CLIENT").arg("ID"))? else { return none };
        let Ok(Value::BulkString(info)) = self.ask(redis::cmd("INFO").arg("server"))? else { return none };
        let info = String::from_utf8_lossy(&info);
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(Identity { ids: run_id.map(|run_id| (client_id, run_id.trim().to_owned())) })
    }

    /// Ends the connection `old` of the same server, so that commands sent over it are not executed later. Returns whether that
    /// is certain: without the right to end it, the pending entries must be looked at again.
    pub(super) fn end(&mut self, old: &Identity, new: &Identity) -> Result<bool> {
        let (Some((old_id, old_run)), Some((new_id, new_run))) = (&old.ids, &new.ids) else { return Ok(false) };
        if old_run != new_run || old_id == new_id {
            return Ok(true);
        }
        // The reply is 0 if the connection no longer exists.
        Ok(self.ask(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(old_id))?.is_ok())
    }

    /// Whether another consumer has the same name during all of `time`: each sees the other's pending entries as its own. False
    /// without the right to list clients.
    pub(super) fn finds_namesake(&mut self, name: &ClientName, time: Duration) -> Result<bool> {
        let began = Instant::now();
        loop {
            let Ok(clients) = self.ask(redis::cmd("CLIENT").arg("LIST"))? else { return Ok(false) };
            if !name.has_namesake(&clients) {
                return Ok(false);
            }
            if began.elapsed() >= time {
                return Ok(true);
            }
            sleep(LOOKS_EVERY);
        }
    }

    /// Names the connection after its consumer.
    pub(super) fn name(&mut self, name: &ClientName) -> Result<()> {
        // Only `CLIENT LIST` shows it, so a refusal does not matter.
        self.ask(redis::cmd("CLIENT").arg("SETNAME").arg(name.own()))?.ok();
        Ok(())
    }

    /// Creates the group of a stream, and the stream, unless they exist.
    pub(super) fn create(&mut self, key: &[u8], names: &Names, create: &Create) -> Result<()> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(key).arg(&names.group).arg(&create.after).arg("MKSTREAM");
        match self.ask(&command)? {
            Err(refusal) if refusal.code == "BUSYGROUP" => Ok(()),
            Err(refusal) => Err(refused("XGROUP CREATE", "xgroup|create", key, &refusal)),
            Ok(_) => Ok(()),
        }
    }

    /// Whether the stream has the group.
    pub(super) fn exists(&mut self, key: &[u8], names: &Names) -> Result<bool> {
        match self.ask(redis::cmd("XPENDING").arg(key).arg(&names.group))? {
            Ok(_) => Ok(true),
            Err(refusal) if refusal.code == "NOGROUP" => Ok(false),
            Err(refusal) => Err(refused("XPENDING", "xpending", key, &refusal)),
        }
    }

    /// Checks the rights that reading needs, before the first entry is read. Servers check rights before arguments, and each of
    /// these commands has an argument that they refuse.
    pub(super) fn check_rights(&mut self, key: &[u8], names: &Names, acks: bool, claims: bool) -> Result<()> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&names.group).arg(&names.consumer).arg("COUNT").arg("x").arg("STREAMS").arg(key).arg(">");
        let mut checks = vec![("XREADGROUP", "xreadgroup", read)];
        let mut add = |name: &'static str, right: &'static str, arguments: &[&[u8]]| {
            let mut command = redis::cmd(name);
            command.arg(key).arg(&names.group);
            for argument in arguments {
                command.arg(*argument);
            }
            checks.push((name, right, command));
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
            let mut script = redis::cmd("EVAL");
            script.arg("return 1").arg(1).arg(key);
            checks.push(("EVAL", "eval", script));
            // The hash of a script that no server knows.
            let mut script = redis::cmd("EVALSHA");
            script.arg("0".repeat(40)).arg(1).arg(key);
            checks.push(("EVALSHA", "evalsha", script));
        }
        for (name, right, command) in checks {
            if let Err(refusal) = self.ask(&command)?
                && (refusal.code == "NOPERM" || refusal.code == "WRONGTYPE")
            {
                return Err(refused(name, right, key, &refusal));
            }
        }
        Ok(())
    }

    fn ask(&mut self, command: &redis::Cmd) -> Result<std::result::Result<Value, Fault>> {
        let mut patience = match self.until {
            Some(until) => Deadline::new(until.min(Instant::now() + self.silence), self.watch),
            None => Deadline::of_silence(self.silence, self.watch),
        };
        block_on(self.transport.query(command, &mut patience)).map_err(|error| match error {
            ConnectError::Interrupted => Error::Interrupted.into(),
            ConnectError::Fault(fault) => Trouble::Fault(fault),
        })
    }
}

fn refused(name: &str, right: &str, key: &[u8], refusal: &Fault) -> Trouble {
    if Classifier::default().may_pass(refusal) {
        return Trouble::Fault(refusal.clone());
    }
    if is_redirect(refusal) {
        // The slot has moved since the nodes were last asked for it: the next connection goes to its new node.
        return Trouble::Fault(refusal.clone().of_command(name));
    }
    let (stream, key) = (key.to_vec(), escaped(key));
    let said = &refusal.message;
    let message = if refusal.code == "NOPERM" {
        format!("{name} was refused: the ACL user needs +{right} ~{key}: {said}")
    } else if refusal.code == "WRONGTYPE" {
        format!("the key '{key}' does not hold a stream: {name}: {said}")
    } else {
        format!("{name} of the key '{key}' was refused: {said}")
    };
    let (code, kind) = (refusal.code.to_string(), Classifier::default().kind(refusal));
    Error::StreamRefused { stream, code, kind, message }.into()
}

/// The error for a missing group.
pub(super) fn group_missing(key: &[u8], names: &Names) -> Error {
    let (stream, key, group) = (key.to_vec(), escaped(key), escaped(&names.group));
    let message = format!(
        "the consumer group '{group}' of the stream '{key}' does not exist: a new consumer with create=True, or Group.create(), makes it"
    );
    Error::GroupMissing { stream, message }
}
