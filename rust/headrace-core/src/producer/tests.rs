//! Producers on one end of a socket pair. The tests set the times of the connection where a real server would have to be silent
//! for 30 s.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;

use super::lane::Link;
use super::*;
use crate::cluster::{Node, Redirect, SLOTS};
use crate::connection::Detour;
use crate::endpoint::{Form, OptionValue};
use crate::error::code;
use crate::net::{NeverInterrupted, Transport};

/// An endpoint that refuses every connection.
const NOWHERE: [(&str, &str); 3] =
    [("unix_socket", "/nonexistent/headrace.sock"), ("stream_key", "s"), ("command_timeout", "5")];
/// An endpoint to which no connection is attempted, whatever the policy, because its password cannot be read.
const NO_PASSWORD: [(&str, &str); 3] =
    [("host", "localhost"), ("stream_key", "s"), ("password_file", "/nonexistent/password")];

fn ago(seconds: u64) -> Instant {
    Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
}

/// A producer on one end of a socket pair, whose server has answered before and has been silent since `used`.
fn connected(
    options: [(&str, &str); 3],
    retry: Option<RetryPolicy>,
    exactly_once: Option<ExactlyOnce>,
    durability: Option<Durability>,
    used: Instant,
) -> (Producer, UnixStream) {
    let options = options.map(|(name, value)| (name.to_owned(), OptionValue::text(value)));
    let endpoint = Endpoint::new(options, Form::Text).unwrap();
    let limits = Limits { max_entries: 10, max_bytes: 1 << 20 };
    let names = FieldNames { payload: "payload".to_owned(), ts: None, is_ts_given: false, key: None };
    let classifier = Classifier::default();
    let options = ProducerOptions { classifier, retry, exactly_once, durability, limits, names };
    let mut producer = Producer::new(endpoint, options);
    let (transport, peer) = Transport::pair();
    producer.sender.lanes.at_home().opened(Duration::from_secs(5), None, used);
    producer.sender.lanes.at_home().prove();
    producer.sender.lanes.get_mut(0).link = Link::Open(Box::new(transport));
    (producer, peer)
}

/// A producer with one message, idle for 31 s.
fn idle_producer() -> (Producer, UnixStream) {
    let (mut producer, peer) = connected(NOWHERE, None, None, None, ago(31));
    produce(&mut producer, 1);
    (producer, peer)
}

fn lost_producer(retry: Option<RetryPolicy>, exactly_once: Option<ExactlyOnce>) -> (Producer, UnixStream) {
    connected(NO_PASSWORD, retry, exactly_once, None, Instant::now())
}

fn read(peer: &mut UnixStream) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let count = peer.read(&mut bytes).unwrap();
    bytes[..count].to_vec()
}

#[test]
fn an_idle_connection_is_checked_with_ping_and_any_reply_is_accepted() {
    for reply in [&b"+PONG\r\n"[..], b"-NOPERM this user has no permissions to run the 'ping' command\r\n"] {
        let (mut producer, mut peer) = idle_producer();
        let server = thread::spawn(move || {
            assert_eq!(read(&mut peer), b"*1\r\n$4\r\nPING\r\n");
            peer.write_all(reply).unwrap();
            assert!(read(&mut peer).starts_with(b"*5\r\n$4\r\nXADD\r\n"));
            peer.write_all(b"$3\r\n7-1\r\n").unwrap();
            peer
        });
        producer.drain(None, &mut NeverInterrupted).unwrap();
        assert_eq!(producer.recorder().take(true).delivered(), 1);
        server.join().unwrap();
    }
}

#[test]
fn a_dead_idle_connection_leaves_no_message_in_doubt() {
    let (mut producer, peer) = idle_producer();
    drop(peer);
    producer.drain(None, &mut NeverInterrupted).unwrap();
    let report = producer.recorder().take(true);
    let failure = report.failures().next().unwrap().failure.clone();
    assert_eq!((&*failure.code, failure.written), (code::CONNECT, Written::No), "the new connection was refused");
}

#[test]
fn ping_ends_at_the_deadline_of_flush() {
    let (mut producer, _peer) = idle_producer();
    let started = Instant::now();
    producer.drain(Some(started + Duration::from_millis(50)), &mut NeverInterrupted).unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "command_timeout is 5 s");
    let report = producer.recorder().take(true);
    assert_eq!(report.failures().next().unwrap().failure.written, Written::No);
}

#[test]
fn an_interrupted_ping_closes_the_connection() {
    struct Now;
    impl Watch for Now {
        fn interrupted(&mut self) -> bool {
            true
        }
    }
    let (mut producer, mut peer) = idle_producer();
    assert_eq!(producer.drain(None, &mut Now).unwrap_err(), Error::Interrupted);
    assert!(matches!(producer.sender.lanes.get(0).link, Link::Closed));
    assert!(!producer.is_idle(), "the message waits for another flush");
    let mut rest = Vec::new();
    let _ = peer.read_to_end(&mut rest);
    producer.drain(None, &mut NeverInterrupted).unwrap();
    let report = producer.recorder().take(true);
    assert_eq!(report.failures().next().unwrap().failure.code, code::CONNECT);
}

fn produce(producer: &mut Producer, count: usize) {
    for _ in 0..count {
        producer.recorder().push_ordinals(1);
        producer.push_payload(b"x", None);
    }
}

fn codes(producer: &mut Producer) -> Vec<String> {
    producer.recorder().take(true).failures().map(|one| one.failure.code.to_string()).collect()
}

#[test]
fn commands_that_wait_for_a_retry_fail_when_connecting_fails_permanently() {
    let (mut producer, mut peer) = lost_producer(Some(RetryPolicy::default()), None);
    produce(&mut producer, 1);
    producer.poll();
    produce(&mut producer, 2);
    peer.write_all(b"-LOADING a moment\r\n").unwrap();
    drop(peer);
    producer.drain(None, &mut NeverInterrupted).unwrap();
    assert!(producer.is_idle(), "all have their outcome");
    assert_eq!(codes(&mut producer), ["LOADING", "CONFIG", "CONFIG"]);
}

#[test]
fn gathered_rows_fail_with_the_connection() {
    let (mut producer, peer) = lost_producer(None, Some(ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut producer, 2);
    drop(peer);
    producer.sender.lanes.get_mut(0).drop_socket();
    producer.sender.lanes.get_mut(0).link =
        Link::Down(producer.sender.failure(&Fault::new(code::CONFIG, "no"), Written::No));
    producer.drain(None, &mut NeverInterrupted).unwrap();
    assert!(producer.is_idle(), "all have their outcome");
    assert_eq!(codes(&mut producer), ["CONFIG", "CONFIG"]);
}

#[test]
fn rows_gathered_before_a_retry_have_their_own_outcomes() {
    let retry = RetryPolicy { initial_backoff: Duration::ZERO, max_backoff: Duration::ZERO, ..RetryPolicy::default() };
    let (mut producer, mut peer) = lost_producer(Some(retry), Some(ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut producer, 1);
    producer.poll();
    peer.write_all(b"-LOADING a moment\r\n").unwrap();
    while !producer.sender.lanes.at_home().retry.is_resending() {
        producer.poll();
    }
    // As when a call that waits for room is interrupted while a row of another stream is gathered.
    produce(&mut producer, 1);
    producer.recorder().push_ordinals(1);
    let failure = producer.unsent(&Fault::new(code::INTERRUPTED, "it was"));
    producer.push_failed(&failure, 1, None);
    producer.poll();
    let answers = thread::spawn(move || {
        // Answers each run when it arrives: the second one comes after the first one, which is sent a second time.
        let mut received = Vec::new();
        for runs in [2, 3] {
            while received.windows(6).filter(|bytes| bytes == b"\r\nEVAL").count() < runs {
                received.extend_from_slice(&read(&mut peer));
            }
            peer.write_all(b"*4\r\n:0\r\n$0\r\n\r\n:1\r\n$3\r\n7-1\r\n").unwrap();
        }
        peer
    });
    producer.drain(Some(Instant::now() + Duration::from_secs(10)), &mut NeverInterrupted).unwrap();
    drop(answers.join().unwrap());
    let report = producer.recorder().take(true);
    assert_eq!((report.delivered(), report.failed()), (2, 1));
}

/// A producer that waits for a replica, with one message and its WAIT sent.
fn waiting_producer() -> (Producer, UnixStream) {
    let durability = Durability { replicas: Some(1), aof: false, timeout: Duration::from_secs(1), every: 1 };
    let (mut producer, mut peer) = connected(NOWHERE, None, None, Some(durability), Instant::now());
    produce(&mut producer, 1);
    assert!(!producer.has_room(), "a WAIT has to come before the next message");
    producer.make_room(&mut NeverInterrupted).unwrap();
    assert!(producer.has_room());
    producer.poll();
    assert!(read(&mut peer).ends_with(b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"));
    (producer, peer)
}

#[test]
fn wrong_replies_to_wait_confirm_no_message() {
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
        let (mut producer, mut peer) = waiting_producer();
        peer.write_all(replies).unwrap();
        producer.drain(None, &mut NeverInterrupted).unwrap();
        let report = producer.recorder().take(true);
        let seen: Vec<_> = report.failures().map(|failed| failed.failure.code.to_string()).collect();
        assert_eq!(seen, codes, "{}", String::from_utf8_lossy(replies));
        assert_eq!(report.delivered() as usize, 1 - codes.len());
        assert!(producer.is_idle());
        drop(peer);
    }
}

#[test]
fn failures_after_a_wrong_reply_are_reported() {
    let failure = |producer: &Producer| producer.sender.failure(&Fault::new(code::EMPTY, "of no use"), Written::No);
    let (mut producer, mut peer) = waiting_producer();
    producer.recorder().push_ordinals(1);
    producer.push_failed(&failure(&producer), 1, None);
    peer.write_all(b"$3\r\n7-1\r\n$3\r\n7-2\r\n").unwrap();
    producer.poll();
    assert!(producer.is_idle(), "no reply could come any more");
    assert_eq!(codes(&mut producer), [code::NOT_REPLICATED, code::EMPTY]);

    let (mut producer, mut peer) = lost_producer(None, Some(ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    produce(&mut producer, 1);
    producer.recorder().push_ordinals(1);
    producer.poll();
    producer.push_failed(&failure(&producer), 1, None);
    assert!(read(&mut peer).starts_with(b"*18\r\n$4\r\nEVAL\r\n"));
    peer.write_all(b"*3\r\n:7\r\n$0\r\n\r\n:0\r\n").unwrap();
    producer.poll();
    assert!(producer.is_idle(), "no reply could come any more");
    assert_eq!(codes(&mut producer), [code::PROTOCOL, code::EMPTY]);
}

#[test]
fn a_surplus_reply_is_noticed_before_the_next_message_is_sent() {
    for surplus in ["$3\r\n7-2\r\n", "-ERR x\r\n", "-ERR x", "$3\r\n7-", "$"] {
        let (mut producer, mut peer) = connected(NOWHERE, None, None, None, Instant::now());
        produce(&mut producer, 1);
        producer.poll();
        producer.recorder().push_ordinals(1);
        producer.push_payload(b"next", None);
        peer.write_all(format!("$3\r\n7-1\r\n{surplus}").as_bytes()).unwrap();
        producer.poll();
        assert!(matches!(producer.sender.lanes.get(0).link, Link::Closed), "{surplus}: it is replaced");
        assert_eq!((producer.recorder().take(false).delivered(), producer.is_idle()), (1, false));
        drop(producer);
        assert_eq!(read(&mut peer).windows(4).filter(|bytes| *bytes == b"next").count(), 0);
    }
}

#[test]
fn an_outcome_is_reported_once_wait_confirms_it() {
    let (mut producer, mut peer) = waiting_producer();
    peer.write_all(b"$3\r\n7-1\r\n:").unwrap();
    producer.poll();
    assert!(!producer.is_idle() && producer.recorder().take(false).delivered() == 0);
    producer.recorder().push_ordinals(1);
    let failure = producer.sender.failure(&Fault::new(code::EMPTY, "of no use"), Written::No);
    producer.push_failed(&failure, 1, None);
    assert_eq!(producer.recorder().take(false).failed(), 0, "it waits for its turn");
    peer.write_all(b"1\r\n").unwrap();
    producer.poll();
    let report = producer.recorder().take(false);
    assert_eq!((report.delivered(), report.failed()), (1, 1));
    assert!(producer.is_idle());
}

#[test]
fn a_dead_connection_leaves_unconfirmed_messages_in_doubt() {
    let (mut producer, mut peer) = waiting_producer();
    peer.write_all(b"$3\r\n7-1\r\n").unwrap();
    producer.poll();
    drop(peer);
    producer.poll();
    let report = producer.recorder().take(true);
    let failure = report.failures().next().unwrap().failure.clone();
    assert_eq!((&*failure.code, failure.written), (code::NOT_REPLICATED, Written::Unknown));
    assert!(failure.message.starts_with("the connection ended before the reply to WAIT: "));
    assert!(producer.is_idle());
}

#[test]
fn idmp_ids_that_the_server_may_have_forgotten_are_not_sent_again() {
    for (silence, code) in [(11, code::EOF), (1, code::CONNECT)] {
        let policy = RetryPolicy { deadline: Duration::from_millis(50), ..RetryPolicy::default() };
        let once = ExactlyOnce::Idmp { by_message_id: false, duration: policy.deadline };
        let (mut producer, mut peer) = connected(NOWHERE, Some(policy), Some(once), None, Instant::now());
        produce(&mut producer, 1);
        producer.poll();
        assert!(read(&mut peer).starts_with(b"*8\r\n$4\r\nXADD\r\n$1\r\ns\r\n$4\r\nIDMP\r\n"));
        producer.sender.lanes.at_home().set_used(ago(silence));
        drop(peer);
        producer.drain(None, &mut NeverInterrupted).unwrap();
        let report = producer.recorder().take(true);
        let failure = report.failures().next().unwrap().failure.clone();
        assert_eq!((&*failure.code, failure.written), (code, Written::Unknown));
    }
}

#[test]
fn a_batch_that_lost_rows_of_unknown_streams_starts_again() {
    let (mut producer, _peer) = lost_producer(None, Some(ExactlyOnce::Script { ttl: 1, run_rows: 10 }));
    let is_lost = |producer: &Producer| matches!(&producer.dedup, Dedup::Script(script) if script.batch.is_lost());
    for encoded in [0, 1, 2] {
        for token in [None, Some("t")] {
            producer.begin(token.map(str::to_owned), 0);
            produce(&mut producer, encoded);
            let fault = Fault::new(code::INTERNAL, "a panic");
            producer.abandon(&fault, 2, 2);
            let is_certain = encoded == 2;
            assert_eq!((is_lost(&producer), producer.sender.batch.is_blocked), (!is_certain, true));
            assert_eq!(producer.skip_failed(), !is_certain && token.is_none(), "another batch starts");
            let stays = !is_certain && token.is_some();
            assert_eq!((is_lost(&producer), producer.sender.batch.is_blocked), (stays, stays));
        }
    }
}

#[test]
fn a_stream_that_moved_before_its_slot_has_its_own_route() {
    let cluster = [("host", "localhost"), ("stream_key", "{s}own"), ("topology", "cluster")];
    let (mut producer, _peer) = connected(cluster, None, None, None, Instant::now());
    let slot = producer.sender.lanes.home_slot();
    let long = [&b"{s}"[..], &[b'x'; 1_000]].concat();
    let known = producer.encoder.xadd.target_of_key(b"{s}1");
    assert!(
        matches!(known, Target::Known(_)) && matches!(producer.encoder.xadd.target_of_key(&long), Target::Other(_))
    );
    let lane = |producer: &mut Producer, key: &[u8]| {
        let target = producer.encoder.xadd.target_of_key(key);
        producer.encoder.lane_of(target, &producer.sender.lanes)
    };
    let (own, first, other) = (&b"{s}own"[..], &b"{s}1"[..], &b"{s}2"[..]);
    for key in [own, first, other, &long] {
        assert_eq!(lane(&mut producer, key), (slot, 0));
    }
    let redirect = Redirect::read(format!("ASK {slot} h:2").as_bytes()).unwrap();
    let ask = |key: &[u8]| Detour { route: slot, asked: Some(key.into()), redirect: redirect.clone() };
    let node = Node { host: "h".to_owned(), port: 2 };
    producer.sender.lanes.redirect(0, &[(&ask(first), node.clone()), (&ask(&long), node.clone())], Instant::now());
    assert_eq!([lane(&mut producer, first), lane(&mut producer, &long)], [(SLOTS, 1), (SLOTS + 1, 1)]);
    assert_eq!(
        [
            lane(&mut producer, other),
            lane(&mut producer, own),
            producer.encoder.lane_of(Target::Own, &producer.sender.lanes)
        ],
        [(slot, 0); 3]
    );
    producer.sender.lanes.redirect(0, &[(&ask(own), node)], Instant::now());
    assert_eq!(
        [lane(&mut producer, own), producer.encoder.lane_of(Target::Own, &producer.sender.lanes)],
        [(SLOTS + 2, 1); 2]
    );
    assert_eq!(lane(&mut producer, other), (slot, 0));
}
