//! Reads a stream page by page, for comparison with headrace's reader and consumer: as bytes that are discarded, or with
//! redis-rs.
//!
//! ```text
//! stream_reader --server 127.0.0.1:6379 --key bench --entries 1000000 --page 1000 --by bytes|values|entries|script|xack
//! ```
//!
//! The program prints `ready`, starts reading when a line arrives on standard input, and prints the number of entries, the
//! seconds and the CPU seconds that this took.
//!
//! - `bytes`: XRANGE. The requests and the sizes of the replies are determined beforehand; nothing is parsed.
//! - `values`: redis-rs parses each reply into its `Value`.
//! - `entries`: redis-rs converts each reply into a list of entry IDs, names and values.
//! - `script`, `xack`: XREADGROUP, through its own group, prepared like `bytes`. Each page is acknowledged just before the
//!   request for the next one, by headrace's script or by XACK.

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::process::{self, ExitCode};
use std::str::FromStr;
use std::time::Instant;

use redis::{Cmd, Connection, RedisError, Value};
use rustix::time::{ClockId, clock_gettime};

/// The size of a read: a larger one is no faster.
const READ_BYTES: usize = 256 * 1024;

/// An entry as redis-rs converts it.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// The options of the command line.
struct Options {
    server: String,
    key: String,
    /// The number of entries to read; the stream has exactly as many.
    entries: usize,
    /// The `COUNT` for a page.
    page: usize,
    by: By,
}

#[derive(Clone, Copy)]
enum By {
    Bytes,
    Values,
    Entries,
    Group(Ack),
}

#[derive(Clone, Copy)]
enum Ack {
    Script,
    Xack,
}

/// The script with which headrace's consumer acknowledges.
const OWN: &str = include_str!("../../../headrace-core/src/consumer/own.lua");
const CONSUMER: &str = "bench";

/// A request, and the size of its reply.
struct Page {
    request: Vec<u8>,
    reply_bytes: usize,
    entries: usize,
}

fn main() -> ExitCode {
    match options(env::args().skip(1)).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "stream_reader: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let (mut server, mut key, mut entries, mut page, mut by) = (None, None, None, None, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--server" => server = Some(value),
            "--key" => key = Some(value),
            "--entries" => entries = Some(number(&name, &value)?),
            "--page" => page = Some(number(&name, &value)?),
            "--by" => by = Some(way(&value)?),
            _ => return Err(format!("unknown option: {name}")),
        }
    }
    Ok(Options {
        server: server.ok_or("--server HOST:PORT is missing")?,
        key: key.ok_or("--key is missing")?,
        entries: entries.ok_or("--entries is missing")?,
        page: page.ok_or("--page is missing")?,
        by: by.ok_or("--by is missing")?,
    })
}

fn number(name: &str, text: &str) -> Result<usize, String> {
    let number = usize::from_str(text).ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{name} must be an integer above 0: {text}"))
}

fn way(text: &str) -> Result<By, String> {
    match text {
        "bytes" => Ok(By::Bytes),
        "values" => Ok(By::Values),
        "entries" => Ok(By::Entries),
        "script" => Ok(By::Group(Ack::Script)),
        "xack" => Ok(By::Group(Ack::Xack)),
        _ => Err(format!("--by must be bytes, values, entries, script or xack: {text}")),
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let group = format!("bench-{}", process::id());
    let pages = match options.by {
        By::Bytes => find_pages(options)?.into_iter().map(|(page, _)| page).collect(),
        By::Group(ack) => group_pages(options, &group, ack)?,
        By::Values | By::Entries => Vec::new(),
    };
    say("ready")?;
    io::stdin().lock().read_line(&mut String::new()).map_err(|error| format!("cannot read stdin: {error}"))?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let entries = match options.by {
        By::Bytes | By::Group(_) => read_bytes(&options.server, &pages).map_err(|error| error.to_string())?,
        By::Values => read_pages(options, |command, connection| last_of(&command.query(connection)?))?,
        By::Entries => read_pages(options, |command, connection| {
            let entries: Vec<Entry> = command.query(connection)?;
            Ok((entries.len(), entries.last().map(|(id, _)| id.clone())))
        })?,
    };
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    if let By::Group(_) = options.by {
        end_group(options, &group)?;
    }
    say(&format!("{entries} {seconds} {cpu}"))
}

fn say(line: &str) -> Result<(), String> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| format!("cannot print: {error}"))
}

/// The CPU time of this process in seconds, user and system.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[allow(clippy::cast_precision_loss, reason = "a process runs for minutes")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Reads page after page. `read` sends a command, and returns the number of entries and the ID of the last one.
fn read_pages(
    options: &Options,
    mut read: impl FnMut(&Cmd, &mut Connection) -> Result<(usize, Option<String>), RedisError>,
) -> Result<usize, String> {
    let mut connection = connect(options)?;
    let (mut entries, mut start) = (0, "-".to_owned());
    while entries < options.entries {
        let (count, last) = read(&request(options, &start), &mut connection).map_err(|error| error.to_string())?;
        let Some(last) = last else { break };
        entries += count;
        start = format!("({last}");
    }
    Ok(entries)
}

fn connect(options: &Options) -> Result<Connection, String> {
    redis::Client::open(format!("redis://{}", options.server))
        .and_then(|client| client.get_connection())
        .map_err(|error| format!("cannot connect to {}: {error}", options.server))
}

fn request(options: &Options, start: &str) -> Cmd {
    let mut command = redis::cmd("XRANGE");
    command.arg(&options.key).arg(start).arg("+").arg("COUNT").arg(options.page);
    command
}

/// The number of entries in a reply, and the ID of the last one.
fn last_of(reply: &Value) -> Result<(usize, Option<String>), RedisError> {
    let Value::Array(entries) = reply else { return Ok((0, None)) };
    let Some(Value::Array(last)) = entries.last() else { return Ok((0, None)) };
    let id = last.first().map(redis::from_redis_value_ref).transpose()?;
    Ok((entries.len(), id))
}

/// The pages of the stream, each with its reply.
fn find_pages(options: &Options) -> Result<Vec<(Page, Value)>, String> {
    let mut pages = Vec::new();
    read_pages(options, |command, connection| {
        let reply: Value = command.query(connection)?;
        let (entries, last) = last_of(&reply)?;
        if entries > 0 {
            let page = Page { request: command.get_packed_command(), reply_bytes: bytes_of(&reply), entries };
            pages.push((page, reply));
        }
        Ok((entries, last))
    })?;
    Ok(pages)
}

/// The stream's pages through a new group: the acknowledgement of one precedes the request for the next one.
fn group_pages(options: &Options, group: &str, ack: Ack) -> Result<Vec<Page>, String> {
    let mut connection = connect(options)?;
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(&options.key).arg(group).arg(0);
    create.exec(&mut connection).map_err(|error| error.to_string())?;
    let hash: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(OWN).query(&mut connection).map_err(|error| error.to_string())?;
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(group).arg(CONSUMER).arg("COUNT").arg(options.page).arg("STREAMS").arg(&options.key).arg(">");
    let read = read.get_packed_command();
    // The reply contains one stream: its key, and the entries.
    let around = header(1) + header(2) + header(options.key.len()) + options.key.len() + 2;
    let mut pages: Vec<Page> = Vec::new();
    let mut before: Option<(Vec<u8>, usize)> = None;
    for (page, reply) in find_pages(options)? {
        let (mut request, acked) = before.take().unwrap_or_default();
        request.extend(&read);
        pages.push(Page { request, reply_bytes: acked + around + page.reply_bytes, entries: page.entries });
        before = Some(acknowledge(options, group, ack, &hash, &ids_of(&reply)?));
    }
    let last = before.map(|(request, reply_bytes)| Page { request, reply_bytes, entries: 0 });
    pages.extend(last);
    Ok(pages)
}

/// The command that acknowledges these entries, and the size of its reply in bytes.
fn acknowledge(options: &Options, group: &str, ack: Ack, hash: &str, ids: &[String]) -> (Vec<u8>, usize) {
    match ack {
        Ack::Script => {
            let mut command = redis::cmd("EVALSHA");
            command.arg(hash).arg(1).arg(&options.key).arg(group).arg(CONSUMER).arg("ack").arg("").arg("").arg(ids);
            (command.get_packed_command(), "*0\r\n".len())
        }
        Ack::Xack => {
            let mut command = redis::cmd("XACK");
            command.arg(&options.key).arg(group).arg(ids);
            (command.get_packed_command(), header(ids.len()))
        }
    }
}

fn ids_of(reply: &Value) -> Result<Vec<String>, String> {
    let Value::Array(entries) = reply else { return Ok(Vec::new()) };
    let ids = entries.iter().map(|entry| match entry {
        Value::Array(parts) => parts.first().map(redis::from_redis_value_ref).transpose(),
        _ => Ok(None),
    });
    let ids: Result<Vec<Option<String>>, _> = ids.collect();
    ids.map(|ids| ids.into_iter().flatten().collect()).map_err(|error| error.to_string())
}

/// Removes the group. Returns an error if it has entries that were not acknowledged.
fn end_group(options: &Options, group: &str) -> Result<(), String> {
    let mut connection = connect(options)?;
    let pending: (usize, Value, Value, Value) = redis::cmd("XPENDING")
        .arg(&options.key)
        .arg(group)
        .query(&mut connection)
        .map_err(|error| error.to_string())?;
    if pending.0 > 0 {
        return Err(format!("{} entries were not acknowledged", pending.0));
    }
    let mut destroy = redis::cmd("XGROUP");
    destroy.arg("DESTROY").arg(&options.key).arg(group);
    destroy.exec(&mut connection).map_err(|error| error.to_string())
}

/// The size of a RESP2 reply with entries in bytes.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Array(values) => header(values.len()) + values.iter().map(bytes_of).sum::<usize>(),
        Value::BulkString(bytes) => header(bytes.len()) + bytes.len() + 2,
        _ => 0,
    }
}

/// The size of `*3\r
/// ` or `$3\r
/// ` in bytes.
fn header(length: usize) -> usize {
    3 + length.to_string().len()
}

fn read_bytes(server: &str, pages: &[Page]) -> io::Result<usize> {
    let mut connection = TcpStream::connect(server)?;
    connection.set_nodelay(true)?;
    let mut buffer = vec![0; READ_BYTES];
    for page in pages {
        connection.write_all(&page.request)?;
        let mut missing = page.reply_bytes;
        while missing > 0 {
            let count = connection.read(&mut buffer)?;
            // More bytes than the reply should have would be an error in `bytes_of`.
            if count == 0 || count > missing {
                return Err(io::Error::other(format!("{count} bytes came where {missing} were missing")));
            }
            missing -= count;
        }
    }
    Ok(pages.iter().map(|page| page.entries).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Result<Options, String> {
        options(text.split(' ').map(str::to_owned))
    }

    #[test]
    fn the_size_of_a_reply_is_its_number_of_bytes() {
        let reply = b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$7\r\npayload\r\n$10\r\n0123456789\r\n";
        let value = redis::parse_redis_value(reply);
        assert_eq!(value.map(|value| bytes_of(&value)), Ok(reply.len()));
    }

    #[test]
    fn the_command_line_is_parsed() {
        let given = "--server a:1 --key s --entries 10 --page 5 --by";
        assert!(arguments(&format!("{given} bytes")).is_ok_and(|options| options.entries == 10 && options.page == 5));
        assert!(arguments(&format!("{given} values")).is_ok());
        assert!(arguments(&format!("{given} entries")).is_ok());
        assert!(
            arguments(&format!("{given} script")).is_ok_and(|options| matches!(options.by, By::Group(Ack::Script)))
        );
        for wrong in [&format!("{given} x"), given, "--server a:1", "--entries 0", "--pages 1"] {
            assert!(arguments(wrong).is_err(), "{wrong}");
        }
    }
}
