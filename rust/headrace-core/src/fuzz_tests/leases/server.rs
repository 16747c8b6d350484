//! The commands of a member as a server reads them, and the replies as it writes them.

use std::sync::LazyLock;

use redis::Value;

use super::super::reply::{number, put_bulk, put_header, put_line};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Script {
    Lease,
    Members,
}

pub const LEASE: &str = concat!(include_str!("../../dead_letters/letter.lua"), include_str!("../../leases/lease.lua"));
pub const MEMBERS: &str = include_str!("../../leases/members.lua");

static HASHES: LazyLock<[String; 2]> =
    LazyLock::new(|| [LEASE, MEMBERS].map(|source| redis::Script::new(source).get_hash().to_owned()));

/// The script that a command calls, its keys and its arguments.
pub fn read(words: &[Vec<u8>]) -> (Script, &[Vec<u8>], &[Vec<u8>]) {
    let known = match &*words[0] {
        b"EVAL" => [LEASE, MEMBERS],
        b"EVALSHA" => HASHES.each_ref().map(String::as_str),
        other => panic!("the command {}", other.escape_ascii()),
    };
    let script = known.iter().position(|known| words[1] == known.as_bytes()).expect("an unknown script");
    let (keys, arguments) = words[3..].split_at(number(&words[2]));
    ([Script::Lease, Script::Members][script], keys, arguments)
}

/// A reply in RESP2.
pub fn written(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Int(number) if *number < 0 => out.extend(format!(":{number}\r\n").into_bytes()),
        Value::Int(number) => put_line(out, b':', *number as u64),
        Value::BulkString(bytes) => put_bulk(out, bytes),
        Value::Array(parts) => {
            put_header(out, parts.len());
            for part in parts {
                write(part, out);
            }
        }
        other => panic!("the reply {other:?}"),
    }
}
