//! The script that appends a run of rows and moves the marker of their batch, in one step. No I/O.
//!
//! Redis and Valkey run a script without any other command in between
//! (<https://redis.io/docs/latest/develop/programmability/eval-intro/>, since 2.6). [`append.lua`](SOURCE) writes the rows that a
//! marker beside the stream has not passed: rows that are sent again, after a lost connection or a crash, are not written twice.

mod packed;
mod row_form;

use std::sync::LazyLock;

use crate::resp::{write_array_header, write_bulk};

pub(crate) use row_form::{NameList, RowForm};

/// The script that appends a run.
pub(crate) const SOURCE: &str = include_str!("script/append.lua");

/// The script that checks whether [`SOURCE`] could do its work.
const PROBE: &str = include_str!("script/probe.lua");

/// The maximum number of arguments of one row: Lua's `unpack` takes 8,000 on every server.
pub(crate) const MAX_ARGUMENTS: usize = 7_000;

/// The SHA-1 of the script, by which EVALSHA calls it.
static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned());

/// The start of each run's command, after the number of its arguments.
static EVALSHA: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::new();
    write_bulk(&mut bytes, b"EVALSHA");
    write_bulk(&mut bytes, HASH.as_bytes());
    bytes
});

/// A run of rows with one stream key.
#[derive(Debug)]
pub(crate) struct ScriptRun<'a> {
    pub(crate) stream_key: &'a [u8],
    pub(crate) marker_key: &'a [u8],
    pub(crate) version: u64,
    /// The lowest position that the marker must have.
    pub(crate) from: u64,
    /// The number of the run's first row.
    pub(crate) first: u64,
    pub(crate) rows: u64,
    /// Seconds.
    pub(crate) ttl: u64,
    /// Whether the run must be a write even if all of its rows exist: WAIT covers what its own connection wrote.
    pub(crate) touches: bool,
    /// In a batch of several streams: how many rows the stream had while it was the only one.
    pub(crate) alone: Option<u64>,
    pub(crate) form: &'a RowForm,
    /// NOMKSTREAM, trimming and `ts`, if all rows share them: see [`XaddEncoder`](super::xadd::XaddEncoder::write_shared).
    pub(crate) shared: (&'a [u8], usize),
    /// The names of rows that bring their own names.
    pub(crate) gathered: &'a NameList,
    /// The sets of fields of the rows.
    pub(crate) sets: &'a [Box<[u8]>],
    /// The arguments of all rows.
    pub(crate) arguments: &'a [u8],
    /// How many bulk strings `arguments` consist of.
    pub(crate) argument_count: usize,
}

impl ScriptRun<'_> {
    /// Appends the command. `scratch`: a buffer for its arguments.
    pub(crate) fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        let packed = self.packed(scratch);
        let mut header = Vec::new();
        let header_count = self.form.write(&mut header, self.shared, self.gathered, self.sets, packed.is_some());
        let argument_count = if packed.is_some() { 1 } else { self.argument_count };
        // The command's name, the script's hash, the number of keys, two keys, seven arguments.
        write_array_header(out, 12 + header_count + argument_count);
        out.extend_from_slice(&EVALSHA);
        write_bulk(out, b"2");
        write_bulk(out, self.stream_key);
        write_bulk(out, self.marker_key);
        for number in [self.version, self.from, self.first, self.rows, self.ttl, u64::from(self.touches)] {
            write_bulk(out, itoa::Buffer::new().format(number).as_bytes());
        }
        match self.alone {
            Some(rows) => write_bulk(out, itoa::Buffer::new().format(rows).as_bytes()),
            None => write_bulk(out, b""),
        }
        out.extend_from_slice(&header);
        match packed {
            Some(values) => write_bulk(out, values),
            None => out.extend_from_slice(self.arguments),
        }
    }

    /// The arguments of all rows packed as one, if this costs the server less. A run of one row may be large, and its values
    /// together may be more than the server accepts as one argument.
    fn packed<'a>(&self, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let has_fields = matches!(self.form, RowForm::All(_) | RowForm::Sparse(_) | RowForm::Gathered);
        let is_packed = has_fields && self.rows > 1 && packed::is_worth_it(self.arguments, self.argument_count);
        is_packed.then(|| packed::pack(self.arguments, scratch))
    }
}

/// Asks whether the script could append to a stream: the reply is a status, `ready`, `denies <command>` or `evicts <policy>`.
pub(crate) fn probe(stream_key: &[u8], marker_key: &[u8]) -> redis::Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(PROBE).arg(2).arg(stream_key).arg(marker_key).arg(HASH.as_str());
    command
}

/// The `command` of a run with the script itself in place of its hash, for a server that may not know it.
pub(crate) fn with_source(command: &[u8]) -> Vec<u8> {
    let header = command.iter().position(|&byte| byte == b'\n').map_or(0, |line_end| line_end + 1);
    let rest = command.get(header + EVALSHA.len()..).unwrap_or_default();
    let mut out = Vec::with_capacity(command.len() + SOURCE.len());
    out.extend_from_slice(&command[..header]);
    write_bulk(&mut out, b"EVAL");
    write_bulk(&mut out, SOURCE.as_bytes());
    out.extend_from_slice(rest);
    out
}

/// The marker of a batch for one stream: in the stream's hash slot, as a cluster requires.
pub fn marker_key(stream_key: &[u8], token: &str) -> Vec<u8> {
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

#[cfg(test)]
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
    fn a_run_can_carry_the_script_itself() {
        let run = ScriptRun {
            stream_key: b"s",
            marker_key: b"m",
            version: 1,
            from: 2,
            first: 3,
            rows: 1,
            ttl: 9,
            touches: true,
            alone: Some(5),
            form: &RowForm::Whole,
            shared: (b"", 0),
            gathered: &NameList::default(),
            sets: &[],
            arguments: b"$1\r\n1\r\n$1\r\n*\r\n",
            argument_count: 2,
        };
        let mut command = Vec::new();
        run.write(&mut command, &mut Vec::new());
        let with = with_source(&command);
        assert!(with.starts_with(b"*15\r\n$4\r\nEVAL\r\n$"));
        assert!(command.starts_with(b"*15\r\n$7\r\nEVALSHA\r\n$40\r\n"));
        let same = b"$1\r\n2\r\n$1\r\ns\r\n$1\r\nm\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n9\r\n$1\r\n1\r\n$1\r\n5\r\n$5\r\nwhole\r\n$1\r\n1\r\n$1\r\n*\r\n";
        assert!(with.ends_with(same) && command.ends_with(same));
    }
}
