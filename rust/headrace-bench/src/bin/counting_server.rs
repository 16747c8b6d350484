//! A server that only counts: it measures the speed of a client without the limit of a real server.
//!
//! ```text
//! counting_server          prints `127.0.0.1:PORT`, serves until its standard input ends
//! ```
//!
//! It replies to each XADD with an increasing entry ID and stores nothing. XLEN of any key is the number of XADD to any key
//! since the last FLUSHALL. It replies to the commands of a handshake (HELLO, CLIENT, AUTH, SELECT, PING) as a server does;
//! any other command is unknown. Each connection has a thread.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_bench::commands::{self, Commands, Front};
use headrace_bench::entry_ids::EntryIds;

/// The size of a read, which fits into the cache of a core.
const READ_BYTES: usize = 128 * 1024;

/// The time of each connection's first entry ID: 2026-04-14T12:00:00Z.
const FIRST_MILLISECOND: u64 = 1_776_168_000_000;

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
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A disconnected client is not an error.
            std::thread::spawn(move || answer(connection).unwrap_or_default());
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
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
                    reply(&rest[..length], &mut replies);
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
fn reply(command: &[u8], replies: &mut Vec<u8>) {
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
        b"HELLO" if second == b"3" => {
            replies.extend_from_slice(b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n");
        }
        b"HELLO" => replies.extend_from_slice(b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n"),
        b"XLEN" => replies.extend_from_slice(format!(":{}\r\n", ADDED.load(Ordering::SeqCst)).as_bytes()),
        _ => replies.extend_from_slice(b"-ERR unknown command\r\n"),
    }
}
