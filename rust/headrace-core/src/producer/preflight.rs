//! Checks on each new socket, before the first message, whether a server supports what the options require.

use std::time::{Duration, Instant};

use redis::Value;

use crate::command::script::probe;
use crate::durability::Durability;
use crate::error::{Fault, code};
use crate::net::{ConnectError, Deadline, Transport, Watch};
use crate::resp::value::{bytes, field, integer};

/// The first server whose remembered names survive a restart: <https://redis.io/docs/latest/commands/xadd/>, 8.6.2.
const IDMP_SINCE: [u64; 3] = [8, 6, 2];
/// The longest time for which a server remembers names, in seconds (XCFGSET, 8.6).
const LONGEST: u64 = 86_400;
/// The consumer group through which a stream is created. It is deleted immediately.
const MAKER: &str = "headrace-setup";

/// How long to wait before a command whose slot is being moved is sent again.
const WHILE_MOVING: Duration = Duration::from_millis(20);

/// What a server must support.
#[derive(Debug)]
pub(super) enum Requirement {
    /// Running the script with all rights that it needs, and keeping its marker.
    Script { marker_key: Vec<u8> },
    /// Remembering the IDMP IDs of rows for this long, and of this many rows.
    Idmp { duration: Duration, rows: u64 },
    /// Running WAIT or WAITAOF.
    Wait(Durability),
}

/// Checks all requirements for the stream `key`. A fault says what is missing.
pub(super) async fn check(
    requirements: &[Requirement],
    transport: &mut Transport,
    key: &[u8],
    nomkstream: bool,
    deadline: Instant,
    watch: &mut dyn Watch,
) -> Result<(), ConnectError> {
    let patience = &mut Deadline::new(deadline, watch);
    let mut server = Server { transport, patience, key };
    for requirement in requirements {
        match requirement {
            Requirement::Script { marker_key } => server.check_script(marker_key).await?,
            Requirement::Idmp { duration, rows } => server.check_idmp(*duration, *rows, nomkstream).await?,
            Requirement::Wait(durability) => server.check_wait(durability).await?,
        }
    }
    Ok(())
}

struct Server<'a, 'w> {
    transport: &'a mut Transport,
    patience: &'a mut Deadline<'w>,
    key: &'a [u8],
}

/// How a stream remembers IDMP IDs, from XINFO STREAM.
struct Memory {
    duration: u64,
    max_size: u64,
    remembered: u64,
}

impl Server<'_, '_> {
    /// Sends a command. As long as a node still has a slot, it refuses commands for keys that it has already handed over. Such a
    /// command is sent again until the move is over and the node names the new owner, or until the time is up.
    async fn ask(&mut self, command: &redis::Cmd) -> Result<Result<Value, Fault>, ConnectError> {
        let mut moving = None;
        loop {
            let replied = match (self.transport.query(command, self.patience).await, moving) {
                // The move is why the time is up, not the server that has yet to reply.
                (Err(ConnectError::Fault(fault)), Some(moving)) if fault.code == code::TIMEOUT => {
                    return Err(ConnectError::Fault(moving));
                }
                (replied, _) => replied?,
            };
            let is_moving = replied.as_ref().is_err_and(|refusal| ["ASK", "TRYAGAIN"].contains(&&*refusal.code));
            if !is_moving || self.patience.left() <= WHILE_MOVING {
                return Ok(replied);
            }
            moving = replied.err();
            self.patience.pause(WHILE_MOVING).await?;
        }
    }

    /// Checks before the first message whether WAIT will be refused.
    async fn check_wait(&mut self, durability: &Durability) -> Result<(), ConnectError> {
        match self.ask(&durability.probe()).await? {
            Ok(Value::Int(_)) => Ok(()),
            Ok(Value::Array(counts)) if matches!(counts[..], [Value::Int(_), Value::Int(_)]) => Ok(()),
            Ok(_) => {
                let message = format!("the server sent no valid reply to {}", durability.name());
                Err(Fault::new(code::PROTOCOL, message).into())
            }
            Err(refusal) => durability.unavailable(refusal).map_or(Ok(()), |fault| Err(fault.into())),
        }
    }

    async fn check_script(&mut self, marker_key: &[u8]) -> Result<(), ConnectError> {
        let marker = String::from_utf8_lossy(marker_key);
        let said = match self.ask(&probe(self.key, marker_key)).await? {
            Ok(said) => text(&said),
            Err(refusal) => return Err(needs(refusal, "EVAL").into()),
        };
        let fault = match said.split_once(' ') {
            Some(("denies", command)) => {
                let key = if command == "XADD" { self.name() } else { format!("the marker {marker:?}") };
                Fault::new("NOPERM", format!("exactly_once 'script' needs the right to {command} on {key}"))
            }
            Some(("lacks", command)) => unsupported(format!(
                "exactly_once 'script' needs the command {command}, which the server does not have"
            )),
            Some(("evicts", policy)) => unsupported(format!(
                "exactly_once 'script' needs maxmemory-policy noeviction: the server's is {policy}, which may evict the \
                 marker"
            )),
            _ if said == "ready" => return Ok(()),
            _ => Fault::new(code::PROTOCOL, "the server's reply to EVAL is not one of the script"),
        };
        Err(fault.into())
    }

    async fn check_idmp(&mut self, duration: Duration, rows: u64, nomkstream: bool) -> Result<(), ConnectError> {
        self.check_version().await?;
        let needed = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).min(LONGEST);
        let memory = match self.memory().await? {
            Ok(memory) => memory,
            Err(refusal) if refusal.message == "ERR no such key" && nomkstream => {
                let message = format!("{} does not exist, and nomkstream is set", self.name());
                return Err(Fault::new(code::NO_STREAM, message).into());
            }
            Err(refusal) if refusal.message == "ERR no such key" => {
                self.make_stream().await?;
                self.memory().await?.map_err(|refusal| needs(refusal, "XINFO STREAM"))?
            }
            Err(refusal) => return Err(needs(refusal, "XINFO STREAM").into()),
        };
        if memory.max_size >= rows && memory.duration >= needed {
            return Ok(());
        }
        let (needed, rows) = (needed.max(memory.duration), rows.max(memory.max_size));
        if memory.remembered > 0 {
            // Changing a setting forgets every name, including those of other producers.
            let key = String::from_utf8_lossy(self.key);
            return Err(unsupported(format!(
                "{} remembers names for {} s, {} of a producer, and it must be {needed} s and {rows}. Changing it forgets \
                 names: once no other producer sends, run XCFGSET {key} IDMP-DURATION {needed} IDMP-MAXSIZE {rows}",
                self.name(),
                memory.duration,
                memory.max_size,
            ))
            .into());
        }
        let mut set = redis::cmd("XCFGSET");
        set.arg(self.key).arg("IDMP-DURATION").arg(needed).arg("IDMP-MAXSIZE").arg(rows);
        self.ask(&set).await?.map_err(|refusal| needs(refusal, "XCFGSET"))?;
        Ok(())
    }

    async fn check_version(&mut self) -> Result<(), ConnectError> {
        // Every user may run HELLO: connections start with it.
        let hello = self.ask(redis::cmd("HELLO").arg(2)).await?.map_err(|refusal| needs(refusal, "HELLO"))?;
        let text_of = |name| field(&hello, name).map(text).unwrap_or_default();
        let (server, version) = (text_of("server"), text_of("version"));
        let numbers: Vec<u64> = version.split('.').map_while(|number| number.parse().ok()).collect();
        if server == "redis" && numbers.as_slice() >= &IDMP_SINCE[..] {
            return Ok(());
        }
        let message =
            format!("exactly_once 'idmp' needs Redis 8.6.2 or later, and this is {server} {version}: take 'script'");
        Err(unsupported(message).into())
    }

    async fn memory(&mut self) -> Result<Result<Memory, Fault>, ConnectError> {
        let info = match self.ask(redis::cmd("XINFO").arg("STREAM").arg(self.key)).await? {
            Ok(info) => info,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let number = |name| {
            let missing = || Fault::new(code::PROTOCOL, format!("the server's reply to XINFO STREAM has no {name}"));
            field(&info, name).and_then(integer).and_then(|number| u64::try_from(number).ok()).ok_or_else(missing)
        };
        Ok(Ok(Memory {
            duration: number("idmp-duration")?,
            max_size: number("idmp-maxsize")?,
            remembered: number("iids-tracked")?,
        }))
    }

    /// Creates an empty stream, so that its settings are made before its first entry.
    async fn make_stream(&mut self) -> Result<(), ConnectError> {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(self.key).arg(MAKER).arg("$").arg("MKSTREAM");
        match self.ask(&create).await? {
            // Another producer is at the same step.
            Err(refusal) if refusal.code == "BUSYGROUP" => {}
            made => {
                made.map_err(|refusal| needs(refusal, "XGROUP CREATE"))?;
            }
        }
        let destroyed = self.ask(redis::cmd("XGROUP").arg("DESTROY").arg(self.key).arg(MAKER)).await?;
        destroyed.map_err(|refusal| needs(refusal, "XGROUP DESTROY"))?;
        Ok(())
    }

    fn name(&self) -> String {
        format!("the stream {:?}", String::from_utf8_lossy(self.key))
    }
}

fn needs(refusal: Fault, command: &str) -> Fault {
    if refusal.code == "NOPERM" {
        let message = format!("exactly_once needs {command}: {}", refusal.message);
        return Fault { message: Fault::new(code::CONFIG, message).message, ..refusal };
    }
    refusal.of_command(command)
}

fn unsupported(message: String) -> Fault {
    Fault::new(code::UNSUPPORTED, message)
}

/// A status or a bulk string; empty for anything else.
fn text(reply: &Value) -> String {
    match reply {
        Value::SimpleString(text) => text.clone(),
        reply => String::from_utf8_lossy(bytes(reply).unwrap_or_default()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Write;

    use super::*;
    use crate::net::{NeverInterrupted, block_on};

    #[test]
    fn a_slot_that_moves_until_the_time_is_up_is_why_a_check_fails() {
        let (mut transport, mut peer) = Transport::pair();
        peer.write_all(b"-ASK 9102 127.0.0.1:7001\r\n").unwrap();
        let script = [Requirement::Script { marker_key: b"marker".to_vec() }];
        let deadline = Instant::now() + Duration::from_secs(1);
        let checked = block_on(check(&script, &mut transport, b"key", false, deadline, &mut NeverInterrupted));
        let Err(ConnectError::Fault(fault)) = checked else { panic!("no fault") };
        assert_eq!(fault.code, "ASK", "{fault:?}");
    }
}
