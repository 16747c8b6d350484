//! A server that only counts: it shows how fast a client is when no server holds it back.
//!
//! ```text
//! counting_server          prints `127.0.0.1:PORT`, serves until its standard input ends
//! ```
//!
//! It answers each XADD with a rising entry ID and stores nothing. XLEN of any key is the number of XADD since the last
//! FLUSHALL, whatever their keys. Clients that introduce themselves (HELLO, CLIENT, AUTH, SELECT, PING) are answered as a
//! server would; any other command is unknown. A thread for each connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_bench::commands::{self, Commands, Front};
use headrace_bench::entry_ids::EntryIds;

/// What is read at once; it fits into a core's own cache.
const READ_BYTES: usize = 128 * 1024;

/// When each connection's entry IDs begin: 2026-04-14T12:00:00Z.
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
            // A client that is gone is no news.
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
            buffer.resize(2 * buffer.len(), 0); // one command that is longer than all of it
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

/// Answers what is not an XADD.
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
