//! What takes a silence of 30 s on a real server: here the clock of the connection is set back.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;

use super::link::Connection;
use super::*;
use crate::endpoint::{Form, OptionValue};
use crate::error::code;
use crate::transport::{NeverInterrupted, Transport};

/// A pipeline on one end of a socket pair, idle for 31 s; a new connection would be refused.
fn idle_pipeline() -> (Pipeline, UnixStream) {
    let options = [("unix_socket", "/nonexistent/headrace.sock"), ("stream_key", "s"), ("command_timeout", "5")];
    let options = options.map(|(name, value)| (name.to_owned(), OptionValue::text(value)));
    let limits = Limits { max_entries: 10, max_bytes: 1 << 20 };
    let names = FieldNames { payload: "payload".to_owned(), ts: None };
    let endpoint = Endpoint::new(options, Form::Text).unwrap();
    let mut pipeline = Pipeline::new(endpoint, Classifier::default(), None, None, None, limits, &names);
    let (transport, peer) = Transport::pair();
    let mut connection = Connection::new(transport, Duration::from_secs(5), false);
    connection.used = Instant::now().checked_sub(Duration::from_secs(31)).unwrap();
    connection.proven = true;
    pipeline.link = Link::Open(Box::new(connection));
    pipeline.recorder().push_ordinals(1);
    pipeline.push_payload(b"x", None);
    (pipeline, peer)
}

fn read(peer: &mut UnixStream) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let count = peer.read(&mut bytes).unwrap();
    bytes[..count].to_vec()
}

#[test]
fn an_idle_connection_is_tried_with_ping_and_any_reply_will_do() {
    for reply in [&b"+PONG\r\n"[..], b"-NOPERM this user has no permissions to run the 'ping' command\r\n"] {
        let (mut pipeline, mut peer) = idle_pipeline();
        let server = thread::spawn(move || {
            assert_eq!(read(&mut peer), b"*1\r\n$4\r\nPING\r\n");
            peer.write_all(reply).unwrap();
            assert!(read(&mut peer).starts_with(b"*5\r\n$4\r\nXADD\r\n"));
            peer.write_all(b"$3\r\n7-1\r\n").unwrap();
            peer
        });
        pipeline.drain(None, &mut NeverInterrupted).unwrap();
        assert_eq!(pipeline.recorder().take(true).delivered(), 1);
        server.join().unwrap();
    }
}

#[test]
fn an_idle_connection_that_is_dead_leaves_no_message_in_doubt() {
    let (mut pipeline, peer) = idle_pipeline();
    drop(peer);
    pipeline.drain(None, &mut NeverInterrupted).unwrap();
    let report = pipeline.recorder().take(true);
    let failure = report.failures().next().unwrap().failure.clone();
    assert_eq!((&*failure.code, failure.written), (code::CONNECT, Written::No), "the new connection was refused");
}

#[test]
fn ping_ends_with_the_deadline_of_flush() {
    let (mut pipeline, _peer) = idle_pipeline();
    let started = Instant::now();
    pipeline.drain(Some(started + Duration::from_millis(50)), &mut NeverInterrupted).unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "command_timeout is 5 s");
    let report = pipeline.recorder().take(true);
    assert_eq!(report.failures().next().unwrap().failure.written, Written::No);
}

#[test]
fn the_reply_to_an_interrupted_ping_is_nobodys() {
    struct Now;
    impl Watch for Now {
        fn interrupted(&mut self) -> bool {
            true
        }
    }
    let (mut pipeline, mut peer) = idle_pipeline();
    assert_eq!(pipeline.drain(None, &mut Now).unwrap_err(), Error::Interrupted);
    assert!(matches!(pipeline.link, Link::Closed));
    assert!(!pipeline.is_idle(), "the message waits for another flush");
    let mut rest = Vec::new();
    let _ = peer.read_to_end(&mut rest);
    pipeline.drain(None, &mut NeverInterrupted).unwrap();
    let report = pipeline.recorder().take(true);
    assert_eq!(report.failures().next().unwrap().failure.code, code::CONNECT);
}

/// The same with another policy, on an endpoint to which nobody can connect, whatever the pause.
fn lost_pipeline(retry: Option<RetryPolicy>, once: Option<&ExactlyOnce>) -> (Pipeline, UnixStream) {
    let options = [("host", "localhost"), ("stream_key", "s"), ("password_file", "/nonexistent/password")];
    let options = options.map(|(name, value)| (name.to_owned(), OptionValue::text(value)));
    let endpoint = Endpoint::new(options, Form::Text).unwrap();
    let limits = Limits { max_entries: 10, max_bytes: 1 << 20 };
    let names = FieldNames { payload: "payload".to_owned(), ts: None };
    let mut pipeline = Pipeline::new(endpoint, Classifier::default(), retry, once, None, limits, &names);
    let (transport, peer) = Transport::pair();
    let mut connection = Connection::new(transport, Duration::from_secs(5), once.is_some());
    connection.proven = true;
    pipeline.link = Link::Open(Box::new(connection));
    (pipeline, peer)
}

fn produce(pipeline: &mut Pipeline, count: usize) {
    for _ in 0..count {
        pipeline.recorder().push_ordinals(1);
        pipeline.push_payload(b"x", None);
    }
}

fn codes(pipeline: &mut Pipeline) -> Vec<String> {
    pipeline.recorder().take(true).failures().map(|one| one.failure.code.to_string()).collect()
}

#[test]
fn what_waits_to_be_sent_again_fails_when_connecting_fails_for_good() {
    let (mut pipeline, mut peer) = lost_pipeline(Some(RetryPolicy::default()), None);
    produce(&mut pipeline, 1);
    pipeline.poll();
    produce(&mut pipeline, 2);
    peer.write_all(b"-LOADING a moment\r\n").unwrap();
    drop(peer);
    pipeline.drain(None, &mut NeverInterrupted).unwrap();
    assert!(pipeline.is_idle(), "all have their outcome");
    assert_eq!(codes(&mut pipeline), ["LOADING", "CONFIG", "CONFIG"]);
}

#[test]
fn rows_that_were_gathered_fail_with_the_link() {
    let (mut pipeline, peer) = lost_pipeline(None, Some(&ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut pipeline, 2);
    drop(peer);
    pipeline.drop_connection();
    pipeline.link = Link::Down(Arc::new(pipeline.ledger.failure(&Fault::new(code::CONFIG, "no"), Written::No)));
    pipeline.drain(None, &mut NeverInterrupted).unwrap();
    assert!(pipeline.is_idle(), "all have their outcome");
    assert_eq!(codes(&mut pipeline), ["CONFIG", "CONFIG"]);
}

#[test]
fn rows_that_were_gathered_before_others_are_sent_again_have_outcomes_of_their_own() {
    let retry = RetryPolicy { initial_backoff: Duration::ZERO, max_backoff: Duration::ZERO, ..RetryPolicy::default() };
    let (mut pipeline, mut peer) = lost_pipeline(Some(retry), Some(&ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut pipeline, 1);
    pipeline.poll();
    peer.write_all(b"-LOADING a moment\r\n").unwrap();
    while !pipeline.ledger.round.is_resending() {
        pipeline.poll();
    }
    // As when the call is interrupted that waits for room, while a row of another stream was gathered.
    produce(&mut pipeline, 1);
    pipeline.recorder().push_ordinals(1);
    pipeline.push_fault(&Fault::new(code::INTERRUPTED, "it was"), 1);
    pipeline.poll();
    let answers = thread::spawn(move || {
        // Each run when it is there: the second one comes behind the first one, which is sent a second time.
        let mut received = Vec::new();
        for runs in [2, 3] {
            while received.windows(6).filter(|bytes| bytes == b"\r\nEVAL").count() < runs {
                received.extend_from_slice(&read(&mut peer));
            }
            peer.write_all(b"*3\r\n:0\r\n$0\r\n\r\n$3\r\n7-1\r\n").unwrap();
        }
        peer
    });
    pipeline.drain(Some(Instant::now() + Duration::from_secs(10)), &mut NeverInterrupted).unwrap();
    drop(answers.join().unwrap());
    let report = pipeline.recorder().take(true);
    assert_eq!((report.delivered(), report.failed()), (2, 1));
}

/// A pipeline that waits for a replica, on one end of a socket pair, with one message and its WAIT sent.
fn waiting_pipeline() -> (Pipeline, UnixStream) {
    let (mut pipeline, mut peer) = idle_pipeline();
    let durability = Durability { replicas: 1, aof: false, timeout: Duration::from_secs(1), every: 1 };
    pipeline.ledger.cover = Some(cover::Cover::new(durability));
    pipeline.holds_back = true;
    let Link::Open(connection) = &mut pipeline.link else { panic!("closed") };
    connection.used = Instant::now();
    connection.replies.take_acknowledgements();
    // The message of the idle one was pushed before there was a cover: it is the first that is covered.
    assert!(!pipeline.has_room(), "an entry is to be covered before the next");
    pipeline.make_room(&mut NeverInterrupted).unwrap();
    assert!(pipeline.has_room());
    pipeline.poll();
    assert!(read(&mut peer).ends_with(b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"));
    (pipeline, peer)
}

#[test]
fn what_is_no_reply_to_wait_is_believed_by_nobody() {
    for (replies, codes) in [
        (&b"$3\r\n7-1\r\n$3\r\n7-2\r\n"[..], vec![code::NOT_REPLICATED]),
        (b"$3\r\n7-1\r\n*0\r\n", vec![code::NOT_REPLICATED]),
        (b"$3\r\n7-1\r\n$-1\r\n", vec![code::NOT_REPLICATED]),
        (b":1\r\n", vec![code::PROTOCOL]),
        (b"$3\r\n7-1\r\n:1\r\n:1\r\n", vec![]),
        (b"-OOM no\r\n:0\r\n", vec!["OOM"]),
        (b"$3\r\n7-1\r\n:0\r\n", vec![code::NOT_REPLICATED]),
        (b"$3\r\n7-1\r\n-ERR no\r\n", vec![code::NOT_REPLICATED]),
    ] {
        let (mut pipeline, mut peer) = waiting_pipeline();
        peer.write_all(replies).unwrap();
        pipeline.drain(None, &mut NeverInterrupted).unwrap();
        let report = pipeline.recorder().take(true);
        let told: Vec<_> = report.failures().map(|failed| failed.failure.code.to_string()).collect();
        assert_eq!(told, codes, "{}", String::from_utf8_lossy(replies));
        assert_eq!(report.delivered() as usize, 1 - codes.len());
        assert!(pipeline.is_idle());
        drop(peer);
    }
}

#[test]
fn what_failed_behind_a_reply_that_is_not_believed_is_told() {
    let failure =
        |pipeline: &Pipeline| Arc::new(pipeline.ledger.failure(&Fault::new(code::EMPTY, "of no use"), Written::No));
    let (mut pipeline, mut peer) = waiting_pipeline();
    pipeline.recorder().push_ordinals(1);
    pipeline.push_failed(&failure(&pipeline), 1);
    peer.write_all(b"$3\r\n7-1\r\n$3\r\n7-2\r\n").unwrap();
    pipeline.poll();
    assert!(pipeline.is_idle(), "nobody would answer any more");
    assert_eq!(codes(&mut pipeline), [code::NOT_REPLICATED, code::EMPTY]);

    let (mut pipeline, mut peer) = lost_pipeline(None, Some(&ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut pipeline, 1);
    pipeline.recorder().push_ordinals(1);
    pipeline.poll();
    pipeline.push_failed(&failure(&pipeline), 1);
    assert!(read(&mut peer).starts_with(b"*15\r\n$4\r\nEVAL\r\n"));
    peer.write_all(b"*2\r\n:7\r\n$0\r\n\r\n").unwrap();
    pipeline.poll();
    assert!(pipeline.is_idle(), "nobody would answer any more");
    assert_eq!(codes(&mut pipeline), [code::PROTOCOL, code::EMPTY]);
}

#[test]
fn a_reply_to_nothing_is_noticed_before_the_next_message_goes_out() {
    for surplus in ["$3\r\n7-2\r\n", "-ERR x\r\n", "-ERR x", "$3\r\n7-", "$"] {
        let (mut pipeline, mut peer) = idle_pipeline();
        let Link::Open(connection) = &mut pipeline.link else { panic!("closed") };
        connection.used = Instant::now();
        pipeline.poll();
        pipeline.recorder().push_ordinals(1);
        pipeline.push_payload(b"next", None);
        peer.write_all(format!("$3\r\n7-1\r\n{surplus}").as_bytes()).unwrap();
        pipeline.poll();
        assert!(matches!(pipeline.link, Link::Closed), "{surplus}: it is replaced");
        assert_eq!((pipeline.recorder().take(false).delivered(), pipeline.is_idle()), (1, false));
        drop(pipeline);
        assert_eq!(read(&mut peer).windows(4).filter(|bytes| *bytes == b"next").count(), 0);
    }
}

#[test]
fn an_outcome_is_told_only_when_it_is_covered() {
    let (mut pipeline, mut peer) = waiting_pipeline();
    peer.write_all(b"$3\r\n7-1\r\n:").unwrap();
    pipeline.poll();
    assert!(!pipeline.is_idle() && pipeline.recorder().take(false).delivered() == 0);
    pipeline.recorder().push_ordinals(1);
    let failure = Arc::new(pipeline.ledger.failure(&Fault::new(code::EMPTY, "of no use"), Written::No));
    pipeline.push_failed(&failure, 1);
    assert_eq!(pipeline.recorder().take(false).failed(), 0, "it waits for its turn");
    peer.write_all(b"1\r\n").unwrap();
    pipeline.poll();
    let report = pipeline.recorder().take(false);
    assert_eq!((report.delivered(), report.failed()), (1, 1));
    assert!(pipeline.is_idle());
}

#[test]
fn an_idle_connection_that_is_dead_leaves_its_last_messages_in_doubt() {
    let (mut pipeline, mut peer) = waiting_pipeline();
    peer.write_all(b"$3\r\n7-1\r\n").unwrap();
    pipeline.poll();
    drop(peer);
    pipeline.poll();
    let report = pipeline.recorder().take(true);
    let failure = report.failures().next().unwrap().failure.clone();
    assert_eq!((&*failure.code, failure.written), (code::NOT_REPLICATED, Written::Unknown));
    assert!(failure.message.starts_with("the connection ended before the reply to WAIT: "));
    assert!(pipeline.is_idle());
}

#[test]
fn names_that_may_be_forgotten_are_not_sent_again() {
    for (silence, code) in [(11, code::EOF), (1, code::CONNECT)] {
        let (mut pipeline, mut peer) = idle_pipeline();
        let policy = RetryPolicy { deadline: Duration::from_millis(50), ..RetryPolicy::default() };
        let once = ExactlyOnce::Idmp { by_message_id: false, duration: policy.deadline };
        let limits = Limits { max_entries: 10, max_bytes: 1 << 20 };
        let names = FieldNames { payload: "payload".to_owned(), ts: None };
        let endpoint = pipeline.endpoint.clone();
        let link = std::mem::replace(&mut pipeline.link, Link::Closed);
        pipeline = Pipeline::new(endpoint, Classifier::default(), Some(policy), Some(&once), None, limits, &names);
        pipeline.link = link;
        pipeline.recorder().push_ordinals(1);
        pipeline.push_payload(b"x", None);
        let Link::Open(connection) = &mut pipeline.link else { panic!("closed") };
        connection.used = Instant::now();
        pipeline.poll();
        assert!(read(&mut peer).starts_with(b"*8\r\n$4\r\nXADD\r\n$1\r\ns\r\n$4\r\nIDMP\r\n"));
        let Link::Open(connection) = &mut pipeline.link else { panic!("closed") };
        connection.used = Instant::now().checked_sub(Duration::from_secs(silence)).unwrap();
        drop(peer);
        pipeline.drain(None, &mut NeverInterrupted).unwrap();
        let report = pipeline.recorder().take(true);
        let failure = report.failures().next().unwrap().failure.clone();
        assert_eq!((&*failure.code, failure.written), (code, Written::Unknown));
    }
}
