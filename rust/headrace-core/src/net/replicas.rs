//! The replicas that are connected to a server.

use redis::Value;

use super::deadline::{ConnectError, Deadline};
use super::stream::Transport;
use crate::error::{Fault, code};
use crate::resp::value;

/// The number of replicas connected to the server, from [INFO](https://redis.io/docs/latest/commands/info/), or the fault if it
/// is unknown. On a replica itself the number is 1: it refuses the command that a WAIT would confirm.
pub(crate) async fn connected_replicas(
    transport: &mut Transport,
    patience: &mut Deadline<'_>,
) -> Result<Result<u64, Fault>, ConnectError> {
    let reply = match transport.query(redis::cmd("INFO").arg("replication"), patience).await? {
        Ok(reply) => reply,
        Err(refusal) => return Ok(Err(refusal.of_command("INFO"))),
    };
    Ok(count(&reply).ok_or_else(|| Fault::new(code::PROTOCOL, "the server's reply to INFO has no connected_slaves")))
}

fn count(reply: &Value) -> Option<u64> {
    let text = std::str::from_utf8(value::bytes(reply)?).ok()?;
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let connected = field("connected_slaves")?.parse().ok()?;
    Some(if field("role")? == "slave" { 1 } else { connected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_from_the_replication_info() {
        let count = |text: &str| count(&Value::BulkString(text.as_bytes().to_vec()));
        assert_eq!(count("# Replication\r\nrole:master\r\nconnected_slaves:2\r\nslave0:ip=::1\r\n"), Some(2));
        assert_eq!(count("role:slave\r\nmaster_host:db\r\nconnected_slaves:0\r\n"), Some(1));
        assert_eq!(count("role:master\r\nconnected_slaves:0\r\n"), Some(0));
        for text in ["", "role:master\r\n", "role:master\r\nconnected_slaves:x\r\n", "connected_slaves:1\r\n"] {
            assert_eq!(count(text), None, "{text:?}");
        }
    }
}
