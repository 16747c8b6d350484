//! What a consumer's new connection does first: it ends the previous one, and takes a name.

use std::time::{Duration, Instant};

use redis::Value;

use super::client_name::ClientName;
use crate::error::{Error, Fault};
use crate::net::{ConnectError, Deadline, Transport, Watch};
use crate::reading::Trouble;

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

/// The commands of one connection that has no session yet.
pub(super) struct Setup<'a> {
    pub(super) transport: &'a mut Transport,
    /// How long the server may take for each reply.
    pub(super) silence: Duration,
    /// When it must have sent all of them.
    pub(super) until: Instant,
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

    /// Names the connection after its consumer.
    pub(super) async fn name(&mut self, name: &ClientName) -> Result<()> {
        // Only `CLIENT LIST` shows it, so a refusal does not matter.
        self.ask(redis::cmd("CLIENT").arg("SETNAME").arg(name.own())).await?.ok();
        Ok(())
    }

    async fn ask(&mut self, command: &redis::Cmd) -> Result<Reply> {
        let until = self.until.min(self.watch.now() + self.silence);
        let mut patience = Deadline::new(until, self.watch);
        self.transport.query(command, &mut patience).await.map_err(trouble)
    }
}

fn trouble(error: ConnectError) -> Trouble {
    match error {
        ConnectError::Interrupted => Error::Interrupted.into(),
        ConnectError::Fault(fault) => Trouble::Fault(fault),
    }
}
