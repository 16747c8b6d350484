//! Exactly once: how a server recognises a row that it was sent before. No I/O.
//!
//! A *token* names a batch, and a row's number in it names the row for ever. There are two ways:
//!
//! - `script`: rows go out in runs. The script ([`LUA`]) writes those that a marker beside the stream has not passed and moves
//!   the marker, in one step: whoever sends the same rows again, after a lost connection or a crash, writes none twice. Redis
//!   and Valkey run a script without anything in between
//!   (<https://redis.io/docs/latest/develop/programmability/eval-intro/>, since 2.6).
//! - `idmp`: the server itself remembers the names of rows for a while ([`Names`]).

mod names;
mod runs;

use std::sync::LazyLock;
use std::time::Duration;

use crate::resp::{write_array_header, write_bulk};

pub(crate) use names::{NAME_ARGUMENTS, Names, ROWS_PER_PRODUCER};
pub(crate) use runs::{OpenRun, Runs};

/// How rows that were sent before are deduplicated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExactlyOnce {
    Script {
        /// Seconds that a marker lives.
        ttl: u64,
        /// Rows of a run at most.
        run_rows: u64,
    },
    Idmp {
        /// Whether a row's message ID names it, not its number.
        by_message_id: bool,
        /// How long the server is to remember names, at least.
        duration: Duration,
    },
}

/// The script that appends a run.
pub(crate) const LUA: &str = include_str!("exactly_once/append.lua");

/// The script that says whether [`LUA`] could do its work.
const PROBE: &str = include_str!("exactly_once/probe.lua");

/// The most arguments of one row: Lua's `unpack` takes 8,000 on every server.
pub(crate) const MAX_ARGUMENTS: usize = 7_000;

/// What the script is called by.
static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(LUA).get_hash().to_owned());

/// What every command of a run begins with, behind the number of its arguments.
static EVALSHA: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::new();
    write_bulk(&mut bytes, b"EVALSHA");
    write_bulk(&mut bytes, HASH.as_bytes());
    bytes
});

/// A run of rows with one stream key.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) stream_key: &'a [u8],
    pub(crate) marker_key: &'a [u8],
    pub(crate) version: u64,
    /// Where the marker must be at least.
    pub(crate) from: u64,
    /// The number of its first row.
    pub(crate) first: u64,
    pub(crate) rows: u64,
    /// Seconds.
    pub(crate) ttl: u64,
    /// Whether it is to be a write even if all of its rows are there: WAIT covers what its own connection wrote.
    pub(crate) touches: bool,
    /// All arguments of all rows, and the number of those before each.
    pub(crate) arguments: &'a [u8],
    /// How many bulk strings `arguments` are.
    pub(crate) argument_count: usize,
}

impl Run<'_> {
    /// Appends the command.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        // The command's name, the script's hash, the number of keys, two keys, six arguments.
        write_array_header(out, 11 + self.argument_count);
        out.extend_from_slice(&EVALSHA);
        write_bulk(out, b"2");
        write_bulk(out, self.stream_key);
        write_bulk(out, self.marker_key);
        for number in [self.version, self.from, self.first, self.rows, self.ttl, u64::from(self.touches)] {
            write_bulk(out, itoa::Buffer::new().format(number).as_bytes());
        }
        out.extend_from_slice(self.arguments);
    }
}

/// Asks whether the script could append to a stream: the reply is a status, `ready`, `denies <command>` or `evicts <policy>`.
pub(crate) fn probe(stream_key: &[u8], marker_key: &[u8]) -> redis::Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(PROBE).arg(2).arg(stream_key).arg(marker_key).arg(HASH.as_str());
    command
}

/// The same command with the script itself, which the server may not know. `None`: it is no run's.
pub(crate) fn with_script(command: &[u8]) -> Option<Vec<u8>> {
    let line_end = command.iter().position(|&byte| byte == b'\n')? + 1;
    let (header, rest) = command.split_at(line_end);
    let rest = rest.strip_prefix(EVALSHA.as_slice())?;
    let mut out = Vec::with_capacity(command.len() + LUA.len());
    out.extend_from_slice(header);
    write_bulk(&mut out, b"EVAL");
    write_bulk(&mut out, LUA.as_bytes());
    out.extend_from_slice(rest);
    Some(out)
}

/// The marker of a batch for one stream: in the stream's hash slot, as a cluster needs it.
pub(crate) fn marker_key(stream_key: &[u8], token: &str) -> Vec<u8> {
    // What is between the first `{` and the next `}`, if anything is, decides the slot
    // (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>).
    let open = stream_key.iter().position(|&byte| byte == b'{').map(|at| at + 1);
    let has_tag = open.is_some_and(|open| stream_key[open..].iter().position(|&byte| byte == b'}').unwrap_or(0) > 0);
    let mut key = Vec::new();
    if has_tag {
        key.extend_from_slice(stream_key);
    } else {
        key.push(b'{');
        key.extend_from_slice(stream_key);
        key.push(b'}');
    }
    key.extend_from_slice(b":headrace:");
    key.extend_from_slice(token.as_bytes());
    key
}

/// A token of chance, for a batch that was given none: it outlives a connection, not the process.
pub(crate) fn random_token() -> String {
    let mut bytes = [0; 16];
    // Without a source of chance, the time and the process are as different as can be had.
    if getrandom::fill(&mut bytes).is_err() {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = (since.as_nanos() ^ (u128::from(std::process::id()) << 96)).to_be_bytes();
    }
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_in_the_slot_of_their_stream() {
        for (stream_key, marker) in [
            ("orders", "{orders}:headrace:t"),
            ("{eu}orders", "{eu}orders:headrace:t"),
            ("a{b}c{d}", "a{b}c{d}:headrace:t"),
            ("{}orders", "{{}orders}:headrace:t"),
            ("{orders", "{{orders}:headrace:t"),
        ] {
            assert_eq!(marker_key(stream_key.as_bytes(), "t"), marker.as_bytes());
        }
    }

    #[test]
    fn a_run_can_be_sent_with_the_script_itself() {
        let run = Run {
            stream_key: b"s",
            marker_key: b"m",
            version: 1,
            from: 2,
            first: 3,
            rows: 1,
            ttl: 9,
            touches: true,
            arguments: b"$1\r\n1\r\n$1\r\n*\r\n",
            argument_count: 2,
        };
        let mut command = Vec::new();
        run.write(&mut command);
        let with = with_script(&command).unwrap();
        assert!(with.starts_with(b"*13\r\n$4\r\nEVAL\r\n$"));
        assert!(command.starts_with(b"*13\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        let same = b"$1\r\n2\r\n$1\r\ns\r\n$1\r\nm\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n9\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n*\r\n";
        assert!(with.ends_with(same) && command.ends_with(same));
        assert_eq!(with_script(b"*3\r\n$4\r\nXADD\r\n"), None);
        assert_ne!(random_token(), random_token());
        assert_eq!(random_token().len(), 32);
    }
}
