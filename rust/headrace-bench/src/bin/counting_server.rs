//! A server that only counts: it measures a client's speed without the limits of a real server.
//!
//! ```text
//! counting_server          prints `127.0.0.1:PORT`, serves until its standard input ends
//! counting_server 8        the same as a cluster of 8 nodes: prints as many lines
//! ```
//!
//! The server replies to each XADD with an increasing entry ID and stores nothing. XLEN of any key returns the number of XADD
//! commands for any key since the last FLUSHALL. The commands of a handshake (HELLO, CLIENT, AUTH, SELECT, PING) get the replies
//! of a real server; HGETALL returns the registry of a stream with 64 shards; any other command is unknown. Each connection has
//! its own thread.
//!
//! The nodes of a cluster divide the slots evenly, and say so in HELLO and CLUSTER SLOTS. Each node accepts every key, so it
//! is not detected if a client sends one to the wrong node.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_bench::commands::{self, Commands, Front};
use headrace_bench::entry_ids::EntryIds;

/// The size of a read; it fits into the cache of a core.
const READ_BYTES: usize = 128 * 1024;

/// The time in each connection's first entry ID: 2026-04-14T12:00:00Z.
const FIRST_MILLISECOND: u64 = 1_776_168_000_000;

/// The number of slots in a cluster.
const SLOTS: usize = 16_384;

static ADDED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "counting_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let nodes = match env::args().nth(1) {
        None => 0,
        Some(text) => text.parse().map_err(|_| io::Error::other(format!("not a number of nodes: {text}")))?,
    };
    let listeners: Vec<_> = (0..nodes.max(1)).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<Result<_, _>>()?;
    let addresses: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let cluster: Arc<[u8]> = if nodes == 0 { Arc::default() } else { slots(&addresses).into() };
    for (listener, address) in listeners.into_iter().zip(addresses) {
        writeln!(io::stdout(), "{address}")?;
        let cluster = Arc::clone(&cluster);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let cluster = Arc::clone(&cluster);
                // A disconnected client is not an error.
                std::thread::spawn(move || answer(connection, &cluster).unwrap_or_default());
            }
        });
    }
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

/// The reply to CLUSTER SLOTS: each node has one range.
fn slots(nodes: &[SocketAddr]) -> Vec<u8> {
    let mut reply = format!("*{}\r\n", nodes.len()).into_bytes();
    for (number, node) in nodes.iter().enumerate() {
        let (first, end) = (number * SLOTS / nodes.len(), (number + 1) * SLOTS / nodes.len());
        let (host, port) = (node.ip().to_string(), node.port());
        let range = format!("*3\r\n:{first}\r\n:{}\r\n", end - 1);
        let address = format!("*3\r\n${}\r\n{host}\r\n:{port}\r\n$40\r\n{number:040x}\r\n", host.len());
        reply.extend_from_slice(range.as_bytes());
        reply.extend_from_slice(address.as_bytes());
    }
    reply
}

/// Replies to the commands on a connection. `cluster` is the reply to CLUSTER SLOTS, empty without a cluster.
fn answer(mut connection: TcpStream, cluster: &[u8]) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut commands, mut ids) = (Commands::default(), EntryIds::starting(FIRST_MILLISECOND));
    let (mut buffer, mut replies) = (vec![0; READ_BYTES], Vec::with_capacity(READ_BYTES));
    let mut filled = 0;
    loop {
        let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
            buffer.resize(2 * buffer.len(), 0); // for a command that is longer than the buffer
            continue;
        };
        match connection.read(free)? {
            0 => return Ok(()),
            read => filled += read,
        }
        let (mut at, mut added) = (0, 0);
        let alive = loop {
            let rest = &buffer[at..filled];
            match commands.front(rest) {
                Front::Xadd(length) => {
                    ids.append(&mut replies);
                    (at, added) = (at + length, added + 1);
                }
                Front::Other(length) => {
                    ADDED.fetch_add(std::mem::take(&mut added), Ordering::SeqCst);
                    reply(&rest[..length], cluster, &mut replies);
                    at += length;
                }
                Front::Part(_) => break true,
                Front::Invalid => {
                    replies.extend_from_slice(b"-ERR Protocol error\r\n");
                    break false;
                }
            }
        };
        ADDED.fetch_add(added, Ordering::SeqCst);
        connection.write_all(&replies)?;
        if !alive {
            return Ok(());
        }
        replies.clear();
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
}

/// Replies to a command that is not an XADD.
fn reply(command: &[u8], cluster: &[u8], replies: &mut Vec<u8>) {
    let (arguments, _) = commands::arguments(command).unwrap_or_default();
    let mut words = arguments.iter().map(|argument| command[argument.clone()].to_ascii_uppercase());
    let (name, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match name.as_slice() {
        b"PING" => replies.extend_from_slice(b"+PONG\r\n"),
        b"AUTH" | b"CLIENT" | b"SELECT" => replies.extend_from_slice(b"+OK\r\n"),
        b"FLUSHALL" => {
            ADDED.store(0, Ordering::SeqCst);
            replies.extend_from_slice(b"+OK\r\n");
        }
        b"CLUSTER" if second == b"SLOTS" && !cluster.is_empty() => replies.extend_from_slice(cluster),
        b"HELLO" if !cluster.is_empty() => replies.extend_from_slice(
            b"*8\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n",
        ),
        b"HELLO" if second == b"3" => {
            replies.extend_from_slice(b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n");
        }
        b"HELLO" => replies.extend_from_slice(b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n"),
        b"HGETALL" => replies.extend_from_slice(
            b"*6\r\n$1\r\nn\r\n$2\r\n64\r\n$4\r\nhash\r\n$7\r\nmurmur2\r\n$5\r\nnames\r\n$5\r\nplain\r\n",
        ),
        b"XLEN" => replies.extend_from_slice(format!(":{}\r\n", ADDED.load(Ordering::SeqCst)).as_bytes()),
        _ => replies.extend_from_slice(b"-ERR unknown command\r\n"),
    }
}
