//! A dispatcher that poll(2) drives: no call waits, and what `advance` returns is enough to wait for.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use common::{Server, endpoint, free_port, tcp_endpoint};
use headrace_core::endpoint::{Form, OptionValue};
use headrace_core::{
    BatchLayout, DeliveryReport, Dispatcher, DispatcherOptions, Endpoint, Error, IdArgument, LayoutOptions,
    LoopDispatcher, NeverInterrupted,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(30);
/// No call takes as long, though a server is silent.
const SHORT: Duration = Duration::from_secs(1);

fn dispatcher(endpoint: Endpoint, options: &[(&str, &str)]) -> LoopDispatcher {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), OptionValue::text(value)));
    let options = DispatcherOptions::new(options, Form::Text).unwrap();
    LoopDispatcher::new(Dispatcher::new(endpoint, options).unwrap(), Box::new(NeverInterrupted))
}

/// Whether a message is without an outcome.
fn is_waiting(dispatcher: &mut LoopDispatcher) -> bool {
    dispatcher.dispatcher().is_none_or(|dispatcher| dispatcher.unreported() > 0)
}

/// What a loop saw while it drove a dispatcher.
#[derive(Default)]
struct Seen {
    reports: Vec<DeliveryReport>,
    /// How many calls of poll(2) returned.
    turns: usize,
    /// How many of these waited for a socket to take bytes.
    writable: usize,
    connections: BTreeSet<u64>,
    /// How many of these waited while a connection was opened.
    opening: usize,
    /// The most sockets in one turn.
    most: usize,
}

impl Seen {
    fn delivered(&self) -> u64 {
        self.reports.iter().map(DeliveryReport::delivered).sum()
    }

    fn failures(&self) -> Vec<String> {
        self.reports.iter().flat_map(DeliveryReport::failures).map(|f| f.failure.code.to_string()).collect()
    }

    /// One call, and one wait of at most `longest` for what it returned.
    fn turn(&mut self, dispatcher: &mut LoopDispatcher, longest: Duration) {
        let started = Instant::now();
        let progress = dispatcher.advance().unwrap();
        assert!(started.elapsed() < SHORT, "the call took {:?}", started.elapsed());
        let opened = progress.sockets.iter().map(|socket| socket.connection).filter(|connection| *connection < 1 << 63);
        self.connections.extend(opened);
        self.opening += usize::from(progress.report.is_none());
        self.reports.extend(progress.report);
        self.writable += usize::from(progress.sockets.iter().any(|socket| socket.writable));
        self.most = self.most.max(progress.sockets.len());
        self.turns += 1;
        let longest = if is_waiting(dispatcher) { longest } else { Duration::ZERO };
        let wanted = |writable| if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        #[expect(unsafe_code, reason = "the descriptor of a loop is a number")]
        // SAFETY: it is open until the dispatcher is called again, which is borrowed by this call.
        let borrowed = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
        let sockets: Vec<_> =
            progress.sockets.iter().map(|socket| (borrowed(socket.fd), wanted(socket.writable))).collect();
        let mut fds: Vec<_> = sockets.iter().map(|(fd, wanted)| PollFd::from_borrowed_fd(*fd, *wanted)).collect();
        let left = progress.deadline.map_or(longest, |deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = Timespec::try_from(left.min(longest)).unwrap();
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
    }

    /// Goes on until every message has its outcome.
    fn drive(&mut self, dispatcher: &mut LoopDispatcher) {
        let started = Instant::now();
        while is_waiting(dispatcher) {
            assert!(started.elapsed() < LONG, "messages have no outcome");
            // Poll(2) ends by itself where the sockets and the deadline say enough.
            self.turn(dispatcher, LONG);
        }
    }

    /// Produces a message, and goes on until there is room for it.
    fn produce(&mut self, dispatcher: &mut LoopDispatcher, payload: &str) {
        let produced = |dispatcher: &mut LoopDispatcher| {
            dispatcher.dispatcher().map_or(Err(Error::Full), |it| it.produce(payload.as_bytes(), IdArgument::None))
        };
        while produced(dispatcher) == Err(Error::Full) {
            self.turn(dispatcher, LONG);
        }
    }
}

fn payloads(client: &mut redis::Connection, key: &str) -> Vec<String> {
    let entries: Vec<(String, Vec<String>)> = redis::cmd("XRANGE").arg(key).arg("-").arg("+").query(client).unwrap();
    entries.into_iter().map(|(_, fields)| fields[1].clone()).collect()
}

#[test]
fn poll_alone_delivers_everything_in_order() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let mut dispatcher = dispatcher(tcp_endpoint(server.port.unwrap(), &[]), &[("window_max_entries", "100")]);
    let mut seen = Seen::default();
    let sent: Vec<_> = (0..5_000).map(|number| number.to_string()).collect();
    for payload in &sent {
        seen.produce(&mut dispatcher, payload);
    }
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (5_000, vec![]));
    assert_eq!(payloads(&mut server.client().unwrap(), "s"), sent);
    assert_eq!(seen.connections, [1].into());
    assert!((50..5_000).contains(&seen.turns), "{} turns of 100 messages", seen.turns);
}

/// A listener that accepts connections and never says a word.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn a_silent_server_blocks_no_call_while_a_connection_is_opened() {
    for (options, stage) in [
        (&[("password", "x")][..], "while waiting for the reply to AUTH"),
        (&[("tls", "true"), ("tls_insecure_skip_verify", "true")], "in the TLS handshake"),
        (&[("db", "3")], "while waiting for the reply to SELECT"),
        (&[], "while waiting for the reply to CLIENT SETINFO"),
    ] {
        let (listener, port) = silent();
        let options = [options, &[("connect_timeout", "2")]].concat();
        let mut dispatcher = dispatcher(tcp_endpoint(port, &options), &[]);
        let mut seen = Seen::default();
        let started = Instant::now();
        seen.produce(&mut dispatcher, "a");
        seen.drive(&mut dispatcher);
        assert!((1.9..10.0).contains(&started.elapsed().as_secs_f64()), "{stage}: {:?}", started.elapsed());
        let failures: Vec<_> = seen.reports.iter().flat_map(DeliveryReport::failures).collect();
        let [failed] = &failures[..] else { panic!("{stage}: {failures:?}") };
        assert_eq!(failed.failure.code, "TIMEOUT", "{stage}");
        assert!(failed.failure.message.contains(stage), "{stage}: {}", failed.failure.message);
        assert!(seen.opening > 0 && seen.turns < 20, "{stage}: {} of {} turns", seen.opening, seen.turns);
        drop(listener);
    }
}

#[test]
fn a_message_after_a_failed_connect_connects_again() {
    let port = free_port();
    let mut dispatcher = dispatcher(tcp_endpoint(port, &[]), &[]);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "a");
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (0, vec!["CONNECT".to_owned()]));
    let Some(server) = Server::start(&["--bind", "127.0.0.1", "--port", &port.to_string()]) else { return };
    seen.produce(&mut dispatcher, "b");
    seen.drive(&mut dispatcher);
    assert_eq!(seen.delivered(), 1);
    drop(server);
}

#[test]
fn an_interrupted_connect_is_given_up_and_the_message_waits_for_the_next_one() {
    let (listener, port) = silent();
    let mut dispatcher = dispatcher(tcp_endpoint(port, &[("password", "x"), ("connect_timeout", "60")]), &[]);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "a");
    seen.turn(&mut dispatcher, Duration::ZERO);
    assert!(dispatcher.dispatcher().is_none());
    dispatcher.interrupt();
    let here = dispatcher.dispatcher().unwrap();
    assert_eq!(here.unreported(), 1);
    let report = here.flush(Some(Duration::ZERO), &mut NeverInterrupted).unwrap();
    assert_eq!(report.failures().map(|failed| failed.failure.code.to_string()).collect::<Vec<_>>(), ["TIMEOUT"]);
    drop(listener);
}

#[test]
fn files_and_host_names_are_looked_up_without_blocking() {
    let Some(server) = Server::start_tcp("--port", &["--requirepass", "secret"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    // Its reader waits until someone writes.
    let file = directory.path().join("password");
    rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let port = server.port.unwrap().to_string();
    let options = [("host", "localhost"), ("port", &port), ("password_file", file.to_str().unwrap())];
    let mut dispatcher = dispatcher(endpoint(&options), &[]);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "a");
    seen.turn(&mut dispatcher, Duration::ZERO);
    assert_eq!((seen.opening, is_waiting(&mut dispatcher)), (1, true));
    let writer = thread::spawn(move || std::fs::write(file, "secret\n").unwrap());
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (1, vec![]));
    writer.join().unwrap();
}

#[test]
fn wait_is_requested_for_the_last_entries() {
    let Some(server) = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]), &[("wait_aof", "true")]);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "a");
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (1, vec![]));
}

#[test]
fn an_earlier_flush_does_not_delay_the_wake_up() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let mut dispatcher = dispatcher(tcp_endpoint(server.port.unwrap(), &[]), &[]);
    let mut seen = Seen::default();
    for _ in 0..5_000 {
        seen.produce(&mut dispatcher, "x");
    }
    // It waits for many bytes at once.
    dispatcher.dispatcher().unwrap().flush(None, &mut NeverInterrupted).unwrap();
    let started = Instant::now();
    seen.produce(&mut dispatcher, "last");
    seen.drive(&mut dispatcher);
    assert!(started.elapsed() < SHORT, "poll(2) was not woken by the one reply: {:?}", started.elapsed());
}

#[test]
fn a_stopped_server_blocks_no_call_and_fails_at_the_deadline() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let endpoint = tcp_endpoint(server.port.unwrap(), &[("command_timeout", "2")]);
    let mut dispatcher = dispatcher(endpoint, &[]);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "a");
    seen.drive(&mut dispatcher);
    server.stop();
    let stopped = Instant::now();
    // More than its socket takes.
    let large = "x".repeat(1 << 20);
    let fill = |dispatcher: &mut LoopDispatcher| {
        let here = dispatcher.dispatcher().unwrap();
        here.unreported() < 30 && here.produce(large.as_bytes(), IdArgument::None) == Ok(())
    };
    while fill(&mut dispatcher) {
        seen.turn(&mut dispatcher, Duration::ZERO);
    }
    assert!(seen.writable > 0, "the socket took everything");
    seen.drive(&mut dispatcher);
    let took = stopped.elapsed();
    assert!((1.9..10.0).contains(&took.as_secs_f64()), "{took:?}");
    assert_eq!(seen.delivered(), 1);
    let failures = seen.failures();
    assert!(!failures.is_empty() && failures.iter().all(|code| code == "TIMEOUT"), "{failures:?}");
    assert!(seen.turns < 200, "{} turns", seen.turns);
    server.resume();
    // The next batch begins on a connection of its own.
    dispatcher.dispatcher().unwrap().flush(None, &mut NeverInterrupted).unwrap();
    seen.produce(&mut dispatcher, "b");
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), &seen.connections), (2, &[1, 2].into()));
}

#[test]
fn a_cut_connection_is_replaced_by_the_retry_policy() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    // The server got these messages and gave no reply, so only `retry_unknown` sends them again.
    let retry = [("retry_max_attempts", "5"), ("retry_initial_backoff", "0.2"), ("retry_unknown", "true")];
    let mut dispatcher = dispatcher(tcp_endpoint(server.port.unwrap(), &[]), &retry);
    let mut seen = Seen::default();
    seen.produce(&mut dispatcher, "0");
    seen.drive(&mut dispatcher);
    let mut client = server.client().unwrap();
    server.stop();
    for number in 1..100 {
        seen.produce(&mut dispatcher, &number.to_string());
    }
    seen.turn(&mut dispatcher, Duration::ZERO);
    // Read by the server before the messages are: they come from another socket, but it has the connection of these cut.
    server.resume();
    let _: usize =
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes").query(&mut client).unwrap();
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (100, vec![]));
    // And one that is cut while nothing waits.
    let _: usize =
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes").query(&mut client).unwrap();
    for _ in 0..3 {
        seen.turn(&mut dispatcher, Duration::from_millis(100));
    }
    assert!(dispatcher.advance().unwrap().sockets.is_empty(), "a closed socket is readable for ever");
    seen.produce(&mut dispatcher, "last");
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (101, vec![]));
    assert!(seen.connections.len() >= 2, "{:?}", seen.connections);
    let stored: BTreeSet<_> = payloads(&mut client, "s").into_iter().collect();
    assert_eq!(stored.len(), 101);
}

#[test]
fn a_failed_connect_is_retried_for_the_next_message() {
    let Some(server) = Server::start(&["--requirepass", "secret"]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]), &[]);
    let mut seen = Seen::default();
    for payload in ["a", "b"] {
        seen.produce(&mut dispatcher, payload);
        seen.drive(&mut dispatcher);
    }
    assert_eq!((seen.delivered(), seen.failures().len()), (0, 2));
    let mut client = server.client().unwrap();
    let _: () = redis::cmd("AUTH").arg("secret").query(&mut client).unwrap();
    let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("").query(&mut client).unwrap();
    seen.produce(&mut dispatcher, "c");
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures().len()), (1, 2), "{:?}", seen.failures());
}

#[test]
fn rows_are_accepted_while_there_is_room() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let mut dispatcher = dispatcher(tcp_endpoint(server.port.unwrap(), &[]), &[("window_max_entries", "100")]);
    let sent: Vec<_> = (0..5_000).map(|number| number.to_string()).collect();
    let (payload, ids): (ArrayRef, ArrayRef) =
        (Arc::new(StringArray::from(sent.clone())), Arc::new(Int64Array::from_iter_values(0..5_000)));
    let batch = RecordBatch::try_from_iter([("payload", payload), ("id", ids)]).unwrap();
    let options = LayoutOptions { message_id: Some("id".to_owned()), ..LayoutOptions::default() };
    let layout = BatchLayout::try_from(options).unwrap();
    let mut plan = dispatcher.dispatcher().unwrap().plan(batch.schema_ref(), &layout).unwrap();
    let (mut seen, mut row) = (Seen::default(), 0);
    while row < batch.num_rows() {
        let taken = dispatcher.dispatcher().map_or(Ok(0), |here| here.produce_rows(&batch, row, &mut plan)).unwrap();
        assert!(taken <= 100, "{taken} rows in a window of 100");
        row += taken;
        if taken == 0 {
            seen.turn(&mut dispatcher, LONG);
        }
    }
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (5_000, vec![]));
    assert_eq!(payloads(&mut server.client().unwrap(), "s"), sent);
    let ids = seen.reports.iter().flat_map(|report| report.to_arrow(false)).flat_map(|rows| {
        let rows = rows.unwrap();
        rows.column(0).as_string::<i32>().iter().map(|id| id.unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(ids.collect::<Vec<_>>(), sent);
}

#[test]
fn two_nodes_of_a_cluster_are_driven_together() {
    let Some(nodes) = cluster() else { return };
    let node = |nth: usize| format!("127.0.0.1:{}", nodes[nth].port.unwrap());
    let endpoint =
        endpoint(&[("nodes", &format!("{},{}", node(0), node(1))), ("shards", "8"), ("command_timeout", "2")]);
    let mut dispatcher = dispatcher(endpoint, &[("window_max_entries", "100")]);
    let mut seen = Seen::default();
    for number in 0..4_000 {
        seen.produce(&mut dispatcher, &number.to_string());
    }
    seen.drive(&mut dispatcher);
    assert_eq!((seen.delivered(), seen.failures()), (4_000, vec![]));
    assert_eq!(seen.most, 2);
    let mut stored = 0;
    for server in &nodes {
        let mut client = server.client().unwrap();
        let keys: Vec<String> = redis::cmd("SCAN")
            .arg(0)
            .arg("COUNT")
            .arg(1000)
            .arg("TYPE")
            .arg("stream")
            .query::<(u64, Vec<String>)>(&mut client)
            .map(|(_, keys)| keys)
            .unwrap();
        assert!(!keys.is_empty());
        for key in keys {
            let numbers: Vec<u32> =
                payloads(&mut client, &key).iter().map(|payload| payload.parse().unwrap()).collect();
            assert!(numbers.is_sorted());
            stored += numbers.len();
        }
    }
    assert_eq!(stored, 4_000);
    // The other node goes on while one is stopped.
    nodes[1].stop();
    for number in 0..80 {
        seen.produce(&mut dispatcher, &number.to_string());
    }
    let before = seen.delivered();
    seen.drive(&mut dispatcher);
    let failures = seen.failures();
    assert_eq!(seen.delivered() - before + failures.len() as u64, 80);
    assert!(seen.delivered() > before && failures.iter().all(|code| code == "TIMEOUT"), "{failures:?}");
    nodes[1].resume();
}

/// Two nodes, with half of the slots each.
fn cluster() -> Option<[Server; 2]> {
    let start = || {
        let bus = free_port().to_string();
        Server::start_tcp("--port", &["--cluster-enabled", "yes", "--cluster-port", &bus]).map(|server| (server, bus))
    };
    let (first, _) = start()?;
    let (second, bus) = start()?;
    let mut clients = [first.client().unwrap(), second.client().unwrap()];
    for (client, (from, to)) in clients.iter_mut().zip([(0, 8_191), (8_192, 16_383)]) {
        let _: () = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(from).arg(to).query(client).unwrap();
    }
    let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(second.port).arg(bus).clone();
    let _: () = meet.query(&mut clients[0]).unwrap();
    let started = Instant::now();
    for client in &mut clients {
        while !redis::cmd("CLUSTER").arg("INFO").query::<String>(client).unwrap().starts_with("cluster_state:ok") {
            assert!(started.elapsed() < LONG, "the nodes do not agree");
            thread::sleep(Duration::from_millis(20));
        }
    }
    Some([first, second])
}
