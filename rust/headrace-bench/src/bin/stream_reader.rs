//! Reads a stream by pages of XRANGE, for comparison with headrace's reader: as bytes that are thrown away, or by redis-rs.
//!
//! ```text
//! stream_reader --server 127.0.0.1:6379 --key bench --entries 1000000 --page 1000 --by bytes|values|entries
//! ```
//!
//! It prints `ready`, reads when a line comes on its standard input, and prints the number of entries, the seconds and
//! the CPU seconds that it took.
//!
//! - `bytes`: the requests and the sizes of the replies are found beforehand; nothing is parsed.
//! - `values`: redis-rs parses each reply into its `Value`.
//! - `entries`: redis-rs converts it into a list of entry IDs, names and values.

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use redis::{Cmd, Connection, RedisError, Value};
use rustix::time::{ClockId, clock_gettime};

/// The size of a read: a larger one takes no less time.
const READ_BYTES: usize = 256 * 1024;

/// An entry as redis-rs converts it.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// The options of the command line.
struct Options {
    server: String,
    key: String,
    /// Entries to read; the stream has as many.
    entries: usize,
    /// `COUNT` of a page.
    page: usize,
    by: By,
}

#[derive(Clone, Copy)]
enum By {
    Bytes,
    Values,
    Entries,
}

/// A request, and its reply.
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
        _ => Err(format!("--by must be bytes, values or entries: {text}")),
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let pages = if matches!(options.by, By::Bytes) { find_pages(options)? } else { Vec::new() };
    say("ready")?;
    io::stdin().lock().read_line(&mut String::new()).map_err(|error| format!("cannot read stdin: {error}"))?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let entries = match options.by {
        By::Bytes => read_bytes(&options.server, &pages).map_err(|error| error.to_string())?,
        By::Values => read_pages(options, |command, connection| last_of(&command.query(connection)?))?,
        By::Entries => read_pages(options, |command, connection| {
            let entries: Vec<Entry> = command.query(connection)?;
            Ok((entries.len(), entries.last().map(|(id, _)| id.clone())))
        })?,
    };
    say(&format!("{entries} {} {}", began.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

fn say(line: &str) -> Result<(), String> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| format!("cannot print: {error}"))
}

/// CPU seconds of this process, user and system.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[allow(clippy::cast_precision_loss, reason = "a process runs for minutes")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Reads page after page. `read` sends a command and returns the number of entries and the ID of the last one.
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

/// The number of entries of a reply, and the ID of the last one.
fn last_of(reply: &Value) -> Result<(usize, Option<String>), RedisError> {
    let Value::Array(entries) = reply else { return Ok((0, None)) };
    let Some(Value::Array(last)) = entries.last() else { return Ok((0, None)) };
    let id = last.first().map(redis::from_redis_value_ref).transpose()?;
    Ok((entries.len(), id))
}

fn find_pages(options: &Options) -> Result<Vec<Page>, String> {
    let mut pages = Vec::new();
    read_pages(options, |command, connection| {
        let reply: Value = command.query(connection)?;
        let (entries, last) = last_of(&reply)?;
        if entries > 0 {
            let request = command.get_packed_command();
            pages.push(Page { request, reply_bytes: bytes_of(&reply), entries });
        }
        Ok((entries, last))
    })?;
    Ok(pages)
}

/// The bytes of a reply with entries in RESP2.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Array(values) => header(values.len()) + values.iter().map(bytes_of).sum::<usize>(),
        Value::BulkString(bytes) => header(bytes.len()) + bytes.len() + 2,
        _ => 0,
    }
}

/// The bytes of `*3\r\n` or `$3\r\n`.
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
            // More than the reply would be a mistake of `bytes_of`.
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
    fn the_size_of_a_reply_is_that_of_its_bytes() {
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
        for wrong in [&format!("{given} x"), given, "--server a:1", "--entries 0", "--pages 1"] {
            assert!(arguments(wrong).is_err(), "{wrong}");
        }
    }
}
