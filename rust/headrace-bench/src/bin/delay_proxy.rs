//! A proxy that adds a round-trip time: it forwards TCP connections and delays each direction by half of that time.
//!
//! `delay_proxy --target 127.0.0.1:6379 --round-trip-ms 1.0` prints the port on 127.0.0.1 that it listens on, and exits when
//! its stdin is closed. `--megabits 1000` limits the bandwidth of each direction, in 10⁶ bits per second.
//!
//! Like a long fat network, it does not limit the bytes in flight. Each direction of a connection has two threads: one reads
//! chunks and stamps them with the time when they are due, the other writes them at that time.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The size of a read. A larger one would add copying without passing bytes on sooner.
const READ_BYTES: usize = 256 * 1024;

/// How long before a chunk is due the writer stops sleeping: a sleeping thread wakes up 10 to 60 µs late.
const WAKE_UP: Duration = Duration::from_micros(60);

/// Chunks that are due within this time of each other are sent together. A separate wait for each would keep a core busy.
const TOGETHER: Duration = Duration::from_micros(10);

/// The size of a read if the bandwidth is limited: a chunk is due when its last byte has passed.
const LIMITED_READ_BYTES: usize = 16 * 1024;

/// The bytes of one read, and the time when they are due. An empty chunk marks the end of the stream.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// The options of the command line.
#[derive(Debug, PartialEq)]
struct Options {
    target: String,
    /// The delay of one direction.
    delay: Duration,
    /// The time that one byte takes; zero if the bandwidth is not limited.
    nanoseconds_per_byte: f64,
}

fn main() -> ExitCode {
    let result = options(env::args().skip(1)).and_then(|options| {
        precise_sleep();
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| format!("cannot listen: {error}"))?;
        let port = listener.local_addr().map_err(|error| format!("cannot listen: {error}"))?.port();
        thread::spawn(move || serve(&listener, &options));
        let mut stdout = io::stdout();
        writeln!(stdout, "{port}").and_then(|()| stdout.flush()).map_err(|error| format!("cannot print: {error}"))?;
        io::copy(&mut io::stdin(), &mut io::sink()).map_err(|error| format!("cannot read stdin: {error}"))
    });
    match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "delay_proxy: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let (mut target, mut round_trip, mut nanoseconds_per_byte) = (None, None, 0.0);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--target" => target = Some(value),
            "--round-trip-ms" => round_trip = Some(milliseconds(&value)?),
            "--megabits" => nanoseconds_per_byte = 8e3 / megabits(&value)?,
            _ => return Err(format!("unknown option (there are --target, --round-trip-ms and --megabits): {name}")),
        }
    }
    let target = target.ok_or("--target HOST:PORT is missing")?;
    let round_trip = round_trip.ok_or("--round-trip-ms is missing")?;
    Ok(Options { target, delay: round_trip / 2, nanoseconds_per_byte })
}

fn megabits(text: &str) -> Result<f64, String> {
    let number = f64::from_str(text).ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("--megabits must be a number above 0: {text}"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    f64::from_str(text)
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number / 1e3).ok())
        .ok_or_else(|| format!("--round-trip-ms must be a number of at least 0: {text}"))
}

/// Asks Linux to wake this process's threads on time: by default it may take up to 50 µs longer, to save wake-ups. Threads
/// inherit the setting from the thread that starts them. Other systems do not have it; there the writer spins for longer.
fn precise_sleep() {
    let _ = fs::write("/proc/self/timerslack_ns", "1");
}

fn serve(listener: &TcpListener, options: &Options) {
    for client in listener.incoming().flatten() {
        // The client sees an unreachable target as a connection that ends immediately.
        if let Err(error) = forward(client, options) {
            let _ = writeln!(io::stderr(), "delay_proxy: cannot connect to {}: {error}", options.target);
        }
    }
}

/// Starts the four threads of a connection, which end when both sides have closed it.
fn forward(client: TcpStream, options: &Options) -> io::Result<()> {
    let server = TcpStream::connect(&options.target)?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        to.set_nodelay(true)?;
        let line =
            Line { delay: options.delay, nanoseconds_per_byte: options.nanoseconds_per_byte, free: Instant::now() };
        let (sender, receiver) = channel();
        thread::spawn(move || read(from, line, &sender));
        thread::spawn(move || write(to, &receiver));
    }
    Ok(())
}

/// One direction of a connection.
struct Line {
    delay: Duration,
    nanoseconds_per_byte: f64,
    /// The time when all bytes read so far will have passed.
    free: Instant,
}

impl Line {
    fn read_bytes(&self) -> usize {
        if self.nanoseconds_per_byte > 0.0 { LIMITED_READ_BYTES } else { READ_BYTES }
    }

    /// The time when the last of `count` bytes that arrive now is due at the other end.
    fn due(&mut self, count: usize) -> Instant {
        #[allow(clippy::cast_precision_loss, reason = "a read has few bytes")]
        let passing = Duration::from_secs_f64(self.nanoseconds_per_byte * count as f64 / 1e9);
        self.free = self.free.max(Instant::now()) + passing;
        self.free + self.delay
    }
}

/// Reads without a limit on buffered chunks, so that the proxy never blocks the sender.
fn read(mut from: TcpStream, mut line: Line, chunks: &Sender<Chunk>) {
    let mut buffer = vec![0; line.read_bytes()];
    loop {
        // A broken connection is passed on to the other side as its end.
        let count = from.read(&mut buffer).unwrap_or(0);
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        if chunks.send(Chunk { due: line.due(count), bytes }).is_err() || count == 0 {
            return;
        }
    }
}

fn write(mut to: TcpStream, chunks: &Receiver<Chunk>) {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut next = chunks.recv().ok();
    while let Some(first) = next.take() {
        wait_until(first.due);
        let mut ended = first.bytes.is_empty();
        buffer.clear();
        buffer.extend_from_slice(&first.bytes);
        while !ended && buffer.len() < READ_BYTES {
            match chunks.try_recv() {
                Ok(chunk) if chunk.due <= Instant::now() + TOGETHER => {
                    ended = chunk.bytes.is_empty();
                    buffer.extend_from_slice(&chunk.bytes);
                }
                Ok(chunk) => {
                    next = Some(chunk);
                    break;
                }
                Err(_) => break,
            }
        }
        if to.write_all(&buffer).is_err() {
            // The receiver is gone: the reading thread of this direction notices when it sends its next chunk.
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        if ended {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        next = next.or_else(|| chunks.recv().ok());
    }
}

/// Sleeps for most of the time, then spins for the rest, yielding to other threads.
fn wait_until(due: Instant) {
    if let Some(time) = due.saturating_duration_since(Instant::now()).checked_sub(WAKE_UP) {
        thread::sleep(time);
    }
    while Instant::now() < due {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The port of a proxy to an echo server.
    fn proxy_to_echo(delay: Duration, nanoseconds_per_byte: f64) -> u16 {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = echo.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for peer in echo.incoming().flatten() {
                peer.set_nodelay(true).unwrap();
                let mut back = peer.try_clone().unwrap();
                thread::spawn(move || {
                    io::copy(&mut &peer, &mut back).unwrap();
                    back.shutdown(Shutdown::Write).unwrap();
                });
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || serve(&listener, &Options { target, delay, nanoseconds_per_byte }));
        port
    }

    fn arguments(text: &str) -> Result<Options, String> {
        options(text.split(' ').map(str::to_owned))
    }

    /// The shortest of several times: on a busy machine the others include waits for a core.
    fn shortest(mut run: impl FnMut()) -> Duration {
        let times = (0..5).map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        });
        times.min().unwrap()
    }

    #[test]
    fn each_direction_is_delayed_once() {
        precise_sleep();
        let mut peer = TcpStream::connect(("127.0.0.1", proxy_to_echo(Duration::from_millis(50), 0.0))).unwrap();
        peer.set_nodelay(true).unwrap();
        let trip = shortest(|| {
            peer.write_all(b"ping").unwrap();
            peer.read_exact(&mut [0; 4]).unwrap();
        });
        assert!(trip >= Duration::from_millis(100), "{trip:?}");
        assert!(trip < Duration::from_millis(150), "as if a direction were delayed twice: {trip:?}");
    }

    #[test]
    fn bytes_in_flight_are_not_bounded() {
        let sent: Vec<u8> = (0..64 << 20).map(|n: u32| (n % 251) as u8).collect();
        let mut never = TcpStream::connect(("127.0.0.1", proxy_to_echo(Duration::from_hours(1), 0.0))).unwrap();
        never.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        // The proxy reads the bytes although it has not forwarded any of them.
        never.write_all(&sent).unwrap();

        let mut peer = TcpStream::connect(("127.0.0.1", proxy_to_echo(Duration::from_millis(1), 0.0))).unwrap();
        peer.write_all(&sent).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert!(received == sent, "{} bytes came back", received.len());
    }

    #[test]
    fn bytes_are_forwarded_at_the_configured_bandwidth() {
        // 20 megabits a second: half a megabyte takes 0.2 s.
        let mut peer = TcpStream::connect(("127.0.0.1", proxy_to_echo(Duration::ZERO, 400.0))).unwrap();
        let took = shortest(|| {
            peer.write_all(&vec![7; 500_000]).unwrap();
            peer.read_exact(&mut vec![0; 500_000]).unwrap();
        });
        assert!(took >= Duration::from_millis(200), "{took:?}");
        assert!(took < Duration::from_millis(800), "as if bits were bytes: {took:?}");
    }

    #[test]
    fn the_command_line_is_parsed() {
        let target = "127.0.0.1:6379".to_owned();
        let options = Options { target, delay: Duration::from_micros(125), nanoseconds_per_byte: 0.0 };
        assert_eq!(arguments("--target 127.0.0.1:6379 --round-trip-ms 0.25"), Ok(options));
        let limited = arguments("--target a:1 --round-trip-ms 0 --megabits 1000").unwrap();
        assert!((limited.nanoseconds_per_byte - 8.0).abs() < 1e-9, "{limited:?}");
        assert!(arguments("--target a:1 --round-trip-ms 0 --megabits 0").is_err());
        for wrong in ["--target a:1", "--round-trip-ms 1", "--target a:1 --round-trip-ms -1", "--delay 1", "--target"] {
            assert!(arguments(wrong).is_err(), "{wrong}");
        }
    }
}
