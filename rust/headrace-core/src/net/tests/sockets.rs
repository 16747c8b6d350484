//! Connecting, the handshake, and bytes over sockets without TLS.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::try_connect;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Fault, Kind, code};
use crate::net::{ConnectError, Transport, block_on, connect};
use crate::server_of_tests::{InterruptedFrom, Server, endpoint, free_port, tcp_endpoint};

/// The tolerance for a connect beyond its deadline, and for the time until Ctrl-C is noticed.
const GRACE: Duration = Duration::from_millis(100);

fn refused(endpoint: &Endpoint) -> Fault {
    try_connect(endpoint).unwrap_err()
}

/// Sends an XADD directly and returns its reply.
fn xadd(transport: &mut Transport) -> String {
    let command = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n";
    assert_eq!(transport.send(command), Ok(command.len()));
    while transport.wants_write() {
        transport.wait(true, Duration::from_secs(1));
        transport.push().unwrap();
    }
    assert!(transport.wait(false, Duration::from_secs(5)).readable);
    let mut buf = [0; 256];
    let received = transport.receive(&mut buf).unwrap();
    String::from_utf8_lossy(&buf[..received]).into_owned()
}

fn info(server: &Server, section: &str) -> String {
    redis::cmd("INFO").arg(section).query(&mut server.client().unwrap()).unwrap()
}

/// Runs `peer` on the first connection to a new TCP port.
fn scripted(peer: impl FnOnce(TcpStream) + Send + 'static) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, thread::spawn(move || peer(listener.accept().unwrap().0)))
}

/// A peer that reads once, sends `reply` and closes.
fn answering(reply: &'static [u8]) -> (u16, JoinHandle<()>) {
    scripted(move |mut stream| {
        let mut buf = [0; 4096];
        assert!(stream.read(&mut buf).unwrap() > 0);
        stream.write_all(reply).unwrap();
        // The client may have reset the connection already.
        let _ = stream.shutdown(Shutdown::Write);
        while stream.read(&mut buf).is_ok_and(|read| read > 0) {}
    })
}

#[test]
fn a_handshake_names_the_client_and_does_not_select_database_0() {
    let Some(server) = Server::start(&[]) else { return };
    let mut transport = try_connect(&server.endpoint(&[])).unwrap();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.client().unwrap()).unwrap();
    assert!(list.lines().any(|line| line.contains(" name=headrace ")), "{list}");
    let statistics = info(&server, "commandstats");
    assert!(statistics.contains("cmdstat_client|setname:calls=1"), "{statistics}");
    assert!(!statistics.contains("cmdstat_select"), "{statistics}");
    assert!(!statistics.contains("cmdstat_auth"), "{statistics}");
    assert!(xadd(&mut transport).starts_with('$'));
    transport.close();
}

#[test]
fn another_database_is_selected() {
    let Some(server) = Server::start(&[]) else { return };
    assert!(xadd(&mut try_connect(&server.endpoint(&[("db", "3")])).unwrap()).starts_with('$'));
    assert!(info(&server, "keyspace").contains("db3:keys=1"));
    let fault = refused(&server.endpoint(&[("db", "99")]));
    assert_eq!(fault.code, "ERR");
    assert!(fault.message.contains("SELECT was refused: ERR DB index is out of range"), "{}", fault.message);
}

#[test]
fn auth_accepts_a_password_with_or_without_a_user() {
    let Some(server) =
        Server::start(&["--requirepass", "pa ss\u{e9}", "--user", "app", "on", ">geheim", "~*", "+@all"])
    else {
        return;
    };
    for options in [&[("password", "pa ss\u{e9}")][..], &[("username", "app"), ("password", "geheim")]] {
        assert!(xadd(&mut try_connect(&server.endpoint(options)).unwrap()).starts_with('$'), "{options:?}");
    }
    for options in [&[("password", "wr0ng")][..], &[("username", "app"), ("password", "wr0ng")]] {
        let fault = refused(&server.endpoint(options));
        assert_eq!((&*fault.code, fault.in_auth), ("WRONGPASS", true));
        assert!(fault.message.contains("AUTH was refused: WRONGPASS"), "{}", fault.message);
        assert!(fault.message.contains(server.socket().to_str().unwrap()), "{}", fault.message);
        assert!(!fault.message.contains("wr0ng"), "{}", fault.message);
        assert_eq!(Classifier::default().kind(&fault), Kind::Permanent);
    }
    // After a successful handshake, the server would reply to large messages with protocol errors.
    let fault = refused(&server.endpoint(&[]));
    assert_eq!((&*fault.code, Classifier::default().kind(&fault)), ("NOAUTH", Kind::Permanent));
}

#[test]
fn a_password_for_a_server_without_one_is_a_permanent_fault() {
    let Some(server) = Server::start(&[]) else { return };
    let fault = refused(&server.endpoint(&[("password", "x")]));
    assert_eq!((&*fault.code, fault.in_auth), ("ERR", true));
    assert_eq!(Classifier::default().kind(&fault), Kind::Permanent);
}

#[test]
fn a_user_with_only_xadd_permission_connects() {
    let Some(server) = Server::start(&["--user", "app", "on", ">pw", "~s", "+xadd"]) else { return };
    let app = [("username", "app"), ("password", "pw")];
    assert!(xadd(&mut try_connect(&server.endpoint(&app)).unwrap()).starts_with('$'));
    for (option, value, command) in [("db", "1", "SELECT"), ("consumer_group", "g", "XGROUP CREATE")] {
        let fault = refused(&server.endpoint(&[&app[..], &[(option, value)]].concat()));
        assert_eq!((&*fault.code, fault.in_auth), ("NOPERM", false));
        assert!(fault.message.contains(&format!("{command} was refused: NOPERM")), "{}", fault.message);
    }
}

#[test]
fn the_consumer_group_is_created_once_and_found_later() {
    let Some(server) = Server::start(&[]) else { return };
    let grouped = server.endpoint(&[("consumer_group", "readers"), ("stream_key", "orders")]);
    for _ in 0..2 {
        try_connect(&grouped).unwrap();
    }
    let groups: Vec<redis::Value> =
        redis::cmd("XINFO").arg("GROUPS").arg("orders").query(&mut server.client().unwrap()).unwrap();
    assert_eq!(groups.len(), 1);

    let _: () = redis::cmd("SET").arg("text").arg("x").query(&mut server.client().unwrap()).unwrap();
    let fault = refused(&server.endpoint(&[("consumer_group", "g"), ("stream_key", "text")]));
    assert_eq!(fault.code, "WRONGTYPE");
    assert!(fault.message.contains("XGROUP CREATE was refused"), "{}", fault.message);
}

#[test]
fn a_full_server_is_retryable_after_any_first_command() {
    let Some(server) = Server::start(&["--maxclients", "1"]) else { return };
    // The server may not have noticed yet that the client of the start-up check has disconnected.
    let _the_one = server.client_at_last();
    for options in [&[][..], &[("password", "x")]] {
        let fault = refused(&server.endpoint(options));
        assert_eq!((&*fault.code, fault.in_auth), ("ERR", false), "{}", fault.message);
        assert!(fault.message.contains("max number of clients"), "{}", fault.message);
        assert_eq!(Classifier::default().kind(&fault), Kind::Retryable);
    }
}

#[test]
fn a_tcp_port_is_reached_by_name_and_by_address() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let port = server.port.unwrap().to_string();
    for host in ["127.0.0.1", "localhost"] {
        let mut transport = try_connect(&endpoint(&[("host", host), ("port", &port)])).unwrap();
        assert!(xadd(&mut transport).starts_with('$'), "{host}");
    }
}

#[test]
fn a_killed_connection_is_reported_as_eof() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let mut transport = try_connect(&tcp_endpoint(server.port.unwrap(), &[])).unwrap();
    let killed: i64 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .query(&mut server.client().unwrap())
        .unwrap();
    assert!(killed >= 1);
    assert!(transport.wait(false, Duration::from_secs(5)).readable);
    assert_eq!(transport.receive(&mut [0; 16]).unwrap_err().code, code::EOF);
    transport.abort();
}

#[test]
fn a_refused_port_and_a_missing_socket_fail_at_once() {
    let started = Instant::now();
    let port = free_port();
    let fault = refused(&tcp_endpoint(port, &[]));
    assert_eq!(fault.code, code::CONNECT);
    assert_eq!(fault.message, format!("cannot connect to 127.0.0.1:{port}: connection refused"));
    let fault = refused(&endpoint(&[("unix_socket", "/no/such/socket")]));
    assert_eq!(fault.code, code::CONNECT);
    assert!(fault.message.contains("/no/such/socket"), "{}", fault.message);
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn an_unknown_host_is_a_dns_fault() {
    let fault = refused(&endpoint(&[("host", "no-such-host.invalid"), ("connect_timeout", "20")]));
    assert_eq!(fault.code, code::DNS);
    assert!(fault.message.starts_with("cannot connect to no-such-host.invalid:6379: "), "{}", fault.message);
}

/// A listener whose minimal backlog is full of connections that are never accepted.
fn full_listener(domain: Domain, address: &SockAddr) -> (Socket, Vec<Socket>) {
    let listener = Socket::new(domain, Type::STREAM, None).unwrap();
    listener.bind(address).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let waiting = (0..4).map(|_| {
        let socket = Socket::new(domain, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&address);
        socket
    });
    let waiting = waiting.collect();
    (listener, waiting)
}

fn times_out(endpoint: &Endpoint, timeout: Duration) -> String {
    let started = Instant::now();
    let fault = refused(endpoint);
    let took = started.elapsed();
    assert_eq!(fault.code, code::TIMEOUT, "{}", fault.message);
    assert!(took >= timeout && took <= timeout + GRACE, "took {took:?}");
    fault.message
}

#[test]
fn connecting_to_a_listener_that_never_accepts_times_out() {
    let (listener, _waiting) =
        full_listener(Domain::IPV4, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into());
    let port = listener.local_addr().unwrap().as_socket().unwrap().port();
    let message = times_out(&tcp_endpoint(port, &[("connect_timeout", "0.3")]), Duration::from_millis(300));
    assert!(message.ends_with("within 0.3 s: timed out while opening the connection"), "{message}");
}

#[test]
fn a_unix_socket_with_a_full_backlog_is_retried_until_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (listener, _waiting) = full_listener(Domain::UNIX, &SockAddr::unix(&path).unwrap());
    let options = [("unix_socket", path.to_str().unwrap()), ("connect_timeout", "0.3")];
    let message = times_out(&endpoint(&options), Duration::from_millis(300));
    assert!(message.contains("while opening the connection"), "{message}");

    // The connect continues once there is room; here with a silent peer.
    let accepting = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        // One connection from the backlog, and the one that now has room.
        let accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap()).collect();
        thread::sleep(Duration::from_millis(300));
        drop(accepted);
    });
    let message = times_out(&endpoint(&options), Duration::from_millis(300));
    assert!(message.contains("reply to CLIENT SETINFO"), "{message}");
    accepting.join().unwrap();
}

#[test]
fn connecting_to_a_silent_peer_times_out_in_every_stage() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (option, stage) in [(None, "CLIENT SETINFO"), (Some(("password", "x")), "AUTH"), (Some(("db", "1")), "SELECT")]
    {
        let mut options = vec![("connect_timeout", "0.2")];
        options.extend(option);
        let message = times_out(&tcp_endpoint(port, &options), Duration::from_millis(200));
        assert!(message.ends_with(&format!("timed out while waiting for the reply to {stage}")), "{message}");
    }
}

#[test]
fn an_interrupt_ends_a_connect_within_a_tenth_of_a_second() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (full, _waiting) = full_listener(Domain::IPV4, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into());
    let ports = [silent.local_addr().unwrap().port(), full.local_addr().unwrap().as_socket().unwrap().port()];
    for port in ports {
        let endpoint = tcp_endpoint(port, &[("connect_timeout", "30")]);
        let at = Instant::now() + Duration::from_millis(200);
        let outcome = block_on(connect(&endpoint, &endpoint.settings().unwrap(), &mut InterruptedFrom(at)));
        assert_eq!(outcome.unwrap_err(), ConnectError::Interrupted);
        assert!(Instant::now() >= at && at.elapsed() <= GRACE, "noticed {:?} late", at.elapsed());
    }
}

#[test]
fn a_peer_that_is_not_a_redis_server_is_a_protocol_fault() {
    for (reply, words) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "0x48"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "set tls"),
        (b"$5\r\nhello\r\n", "0x24"),
        (b"+OK\r\n+OK\r\n+OK\r\n+surplus\r\n", "more than"),
    ] {
        // HELLO, which is sent only if the endpoint has no topology, may have a reply of any shape.
        let topologies = if matches!(reply[0], b'$' | b'+') { &["single"][..] } else { &["single", "auto"] };
        for topology in topologies {
            let (port, peer) = answering(reply);
            let fault = refused(&tcp_endpoint(port, &[("topology", topology)]));
            assert_eq!(fault.code, code::PROTOCOL);
            assert!(fault.message.contains(words), "{}", fault.message);
            peer.join().unwrap();
        }
    }
}

#[test]
fn an_echo_never_shows_the_password() {
    let (port, peer) = scripted(|mut stream| {
        let mut buf = [0; 4096];
        let read = stream.read(&mut buf).unwrap();
        stream.write_all(&buf[..read]).unwrap();
    });
    let fault = refused(&tcp_endpoint(port, &[("password", "geheim")]));
    assert_eq!((&*fault.code, fault.in_auth), (code::PROTOCOL, false));
    assert!(!fault.message.contains("geheim"), "{}", fault.message);
    peer.join().unwrap();
}

#[test]
fn a_connection_that_breaks_in_auth_is_retryable() {
    let (port, peer) = answering(b"");
    let fault = refused(&tcp_endpoint(port, &[("password", "x")]));
    assert_eq!((&*fault.code, fault.in_auth), (code::EOF, false));
    assert!(fault.message.contains("the reply to AUTH; a server that expects TLS"), "{}", fault.message);
    assert_eq!(Classifier::default().kind(&fault), Kind::Retryable);
    peer.join().unwrap();

    let (port, peer) = scripted(|stream| {
        let stream = Socket::from(stream);
        stream.set_linger(Some(Duration::ZERO)).unwrap();
        thread::sleep(Duration::from_millis(50));
    });
    let fault = refused(&tcp_endpoint(port, &[("password", "x")]));
    assert_eq!((&*fault.code, fault.in_auth), (code::RESET, false));
    peer.join().unwrap();
}

#[test]
fn the_error_of_a_server_in_protected_mode_is_read_before_it_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let peer = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"-DENIED Redis is running in protected mode\r\n").unwrap();
        }
    });
    for options in [&[][..], &[("password", "x")]] {
        let fault = refused(&endpoint(&[&[("unix_socket", path.to_str().unwrap())], options].concat()));
        assert_eq!((&*fault.code, fault.in_auth), ("DENIED", false));
    }
    peer.join().unwrap();
}
