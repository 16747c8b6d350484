//! Durability: the replicas and files that must have an entry before it counts as delivered. No I/O.
//!
//! `WAIT` (<https://redis.io/docs/latest/commands/wait/>, since 3.0) and `WAITAOF`
//! (<https://redis.io/docs/latest/commands/waitaof/>, since 7.2) count the replicas and files that have what *their own
//! connection* wrote before them. On another connection they prove nothing: they return immediately, whatever the replicas hold.

use std::time::Duration;

use crate::error::{Fault, ReplyText, code};
use crate::resp::{write_array_header, write_bulk};

/// The options `wait_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Durability {
    /// How many replicas must have an entry; `None`: all that the server has.
    pub(crate) replicas: Option<u64>,
    /// Whether an entry must be in the append-only files: the server's own, and those of the replicas.
    pub(crate) aof: bool,
    /// How long the server waits for replicas and files.
    pub(crate) timeout: Duration,
    /// How many entries one WAIT covers.
    pub(crate) every: u64,
}

impl Durability {
    /// The command that asks.
    pub(crate) fn name(&self) -> &'static str {
        if self.aof { "WAITAOF" } else { "WAIT" }
    }

    /// Appends the command, for this number of replicas.
    pub(crate) fn write(&self, replicas: u64, out: &mut Vec<u8>) {
        // 0 would mean no limit.
        let millis = self.timeout.as_nanos().div_ceil(1_000_000).max(1);
        write_array_header(out, if self.aof { 4 } else { 3 });
        write_bulk(out, self.name().as_bytes());
        if self.aof {
            write_bulk(out, b"1");
        }
        for number in [replicas, u64::try_from(millis).unwrap_or(u64::MAX)] {
            write_bulk(out, itoa::Buffer::new().format(number).as_bytes());
        }
    }

    /// A command for which a new connection does not have to wait, and which is refused if this one will be.
    pub(crate) fn probe(&self) -> redis::Cmd {
        let mut command = redis::cmd(self.name());
        if self.aof {
            command.arg(1);
        }
        command.arg(0).arg(1);
        command
    }

    /// Why entries are not durable if `local` of one (the server itself) and `replicas` of `wanted` have them; `None`: they are.
    pub(crate) fn shortfall(&self, local: u64, replicas: u64, wanted: u64) -> Option<Fault> {
        if replicas >= wanted && (local >= 1 || !self.aof) {
            return None;
        }
        let seconds = self.timeout.as_secs_f64();
        let missing = if !self.aof {
            format!("{replicas} of {wanted} replicas had the entry within {seconds} s; the server itself has it")
        } else if wanted == 0 {
            format!("the entry was not in the server's append-only file within {seconds} s, only in its memory")
        } else {
            format!(
                "the entry was in {local} of 1 append-only files of the server and in {replicas} of {wanted} of replicas \
                 within {seconds} s"
            )
        };
        Some(Fault::new(code::NOT_REPLICATED, missing))
    }

    /// Why entries are not durable if their WAIT got this error reply.
    pub(crate) fn refused(&self, line: &[u8]) -> Fault {
        Fault { code: code::NOT_REPLICATED.into(), ..Fault::from_reply(line).of_command(self.name()) }
    }

    /// Why entries are not durable if their connection ended with `fault` before the reply.
    pub(crate) fn lost(&self, fault: &Fault) -> Fault {
        let message = format!("the connection ended before the reply to {}: {}", self.name(), fault.message);
        Fault::new(code::NOT_REPLICATED, message)
    }

    /// Why no entry may be sent after this error reply to the probe. `None`: the server is a replica, whose own reply to XADD
    /// shows a failover.
    pub(crate) fn unavailable(&self, refusal: Fault) -> Option<Fault> {
        if refusal.message.starts_with(&format!("ERR {} cannot be used with replica instances", self.name())) {
            return None;
        }
        let mut fault = refusal.of_command(self.name());
        if fault.text == ReplyText::UnknownCommand && self.aof {
            fault.message.push_str("; wait_aof needs Redis 7.2 or later, or Valkey");
        }
        Some(fault)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn durability(replicas: u64, aof: bool, millis: u64) -> Durability {
        Durability { replicas: Some(replicas), aof, timeout: Duration::from_millis(millis), every: 1 }
    }

    fn command(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes);
        String::from_utf8(bytes).unwrap().replace("\r\n", " ")
    }

    #[test]
    fn the_command_timeout_is_in_milliseconds_and_never_infinite() {
        let (wait, waitaof) = (durability(2, false, 1_500), durability(1, true, 0));
        assert_eq!(command(|out| wait.write(2, out)), "*3 $4 WAIT $1 2 $4 1500 ");
        assert_eq!(command(|out| waitaof.write(1, out)), "*4 $7 WAITAOF $1 1 $1 1 $1 1 ");
        let probe = |durability: &Durability| command(|out| out.extend(durability.probe().get_packed_command()));
        assert_eq!(probe(&wait), "*3 $4 WAIT $1 0 $1 1 ");
        assert_eq!(probe(&waitaof), "*4 $7 WAITAOF $1 1 $1 0 $1 1 ");
        let micros = Durability { timeout: Duration::from_micros(1_001), ..wait };
        assert_eq!(command(|out| micros.write(2, out)), "*3 $4 WAIT $1 2 $1 2 ");
    }

    #[test]
    fn missing_replicas_and_files_are_counted() {
        let missing = |replicas, aof, local, acknowledged| {
            durability(replicas, aof, 1_500).shortfall(local, acknowledged, replicas).map(|fault| fault.message)
        };
        for (replicas, aof, local, acknowledged) in
            [(2, false, 0, 2), (1, false, 0, 9), (0, true, 1, 0), (2, true, 1, 2)]
        {
            assert_eq!(missing(replicas, aof, local, acknowledged), None);
        }
        let wait = missing(2, false, 0, 1).unwrap();
        assert_eq!(wait, "1 of 2 replicas had the entry within 1.5 s; the server itself has it");
        assert!(
            missing(0, true, 0, 3)
                .unwrap()
                .starts_with("the entry was not in the server's append-only file within 1.5")
        );
        for (local, acknowledged) in [(0, 2), (1, 1), (0, 0)] {
            let both = missing(2, true, local, acknowledged).unwrap();
            assert!(both.contains(&format!("in {local} of 1")) && both.contains(&format!("in {acknowledged} of 2")));
        }
    }

    #[test]
    fn refusals_name_the_command_unless_the_server_is_a_replica() {
        let (wait, waitaof) = (durability(1, false, 1), durability(0, true, 1));
        let refused = wait.refused(b"NOPERM no rights");
        assert_eq!((&*refused.code, &*refused.message), ("NOT_REPLICATED", "WAIT was refused: NOPERM no rights"));
        assert_eq!(wait.unavailable(Fault::from_reply(b"NOPERM no rights")).unwrap().code, "NOPERM");
        let unknown = waitaof
            .unavailable(Fault::from_reply(b"ERR unknown command 'WAITAOF', with args beginning with: '1' "))
            .unwrap();
        assert!(
            unknown.message.ends_with("'WAITAOF'; wait_aof needs Redis 7.2 or later, or Valkey"),
            "{}",
            unknown.message
        );
        let replica = b"ERR WAIT cannot be used with replica instances. Please also note";
        assert_eq!(wait.unavailable(Fault::from_reply(replica)), None);
        assert!(waitaof.unavailable(Fault::from_reply(replica)).is_some(), "of another command");
    }
}
