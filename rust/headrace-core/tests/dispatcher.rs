//! The dispatcher on a real server: every message has its outcome, and the stream holds what was reported.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch, RecordBatchReader as _, StringArray};
use arrow_schema::{DataType, Field, Schema};
use common::{InterruptedFrom, Server, tcp_endpoint};
use headrace_core::endpoint::{Form, OptionValue};
use headrace_core::error::{Kind, Written};
use headrace_core::report::ReportedId;
use headrace_core::rows::{Body, Layout};
use headrace_core::{
    BatchLayout, Dispatcher, DispatcherOptions, Endpoint, Error, IdArgument, Message, NeverInterrupted,
};

fn dispatcher(endpoint: Endpoint) -> Dispatcher {
    Dispatcher::new(endpoint, DispatcherOptions::default()).unwrap()
}

fn produce(dispatcher: &mut Dispatcher, payload: &str, id: IdArgument<'_>) {
    while dispatcher.produce(payload.as_bytes(), id) == Err(Error::Full) {
        dispatcher.make_room(&mut NeverInterrupted).unwrap();
    }
}

fn payloads(server: &Server, key: &str) -> Vec<String> {
    let entries: Vec<(String, Vec<String>)> =
        redis::cmd("XRANGE").arg(key).arg("-").arg("+").query(&mut server.client().unwrap()).unwrap();
    entries.into_iter().map(|(_, fields)| fields[1].clone()).collect()
}

#[test]
fn messages_with_every_kind_of_id_are_stored_in_order_and_reported_once() {
    let Some(server) = Server::start(&[]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    produce(&mut dispatcher, "a", IdArgument::None);
    produce(&mut dispatcher, "b", IdArgument::Int(-7));
    produce(&mut dispatcher, "c", IdArgument::Text("third"));
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    assert_eq!((report.delivered(), report.failed(), dispatcher.unreported()), (3, 0, 0));
    assert_eq!(payloads(&server, "s"), ["a", "b", "c"]);
    assert_eq!(report.to_arrow(false).map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 3);
    assert_eq!(report.to_arrow(false).schema().fields().len(), 6);
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 0);
}

#[test]
fn a_message_is_refused_while_the_window_is_full() {
    let Some(server) = Server::start(&[]) else { return };
    let window = [("window_max_entries".to_owned(), OptionValue::Int(3))];
    let mut dispatcher =
        Dispatcher::new(server.endpoint(&[]), DispatcherOptions::new(window, Form::Typed).unwrap()).unwrap();
    let mut refused = 0;
    for number in 0..10 {
        let payload = number.to_string();
        while let Err(error) = dispatcher.produce(payload.as_bytes(), IdArgument::None) {
            assert_eq!((error, dispatcher.unreported()), (Error::Full, number));
            refused += 1;
            dispatcher.make_room(&mut NeverInterrupted).unwrap();
        }
    }
    assert!(refused > 0, "the window was never full");
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 10);
    assert_eq!(payloads(&server, "s").len(), 10);
}

#[test]
fn a_row_that_the_server_refuses_fails_alone_with_its_message_id() {
    let Some(server) = Server::start(&[]) else { return };
    let _: () = redis::cmd("SET").arg("no-stream").arg("1").query(&mut server.client().unwrap()).unwrap();
    let schema = Schema::new(vec![
        Field::new("payload", DataType::Utf8, true),
        Field::new("id", DataType::Int64, false),
        Field::new("key", DataType::Utf8, true),
    ]);
    let rows = 30_000_i64;
    let payload = (0..rows).map(|row| (row % 1_000 != 3).then(|| format!("row {row}"))).collect::<StringArray>();
    let key = (0..rows).map(|row| (row % 1_000 == 5).then_some("no-stream")).collect::<StringArray>();
    let ids = (1_000_000..1_000_000 + rows).collect::<Int64Array>();
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(payload), Arc::new(ids), Arc::new(key)]).unwrap();
    let layout = Layout {
        body: Body::Payload("payload".to_owned()),
        message_id: Some("id".to_owned()),
        shard_key: None,
        stream_key: Some("key".to_owned()),
        entry_id: None,
    };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    let mut plan = dispatcher.plan(&batch.schema(), &BatchLayout::Rows(layout)).unwrap();
    dispatcher.produce_batch(&batch, &mut plan, &mut NeverInterrupted).unwrap();
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();

    let failed: Vec<_> = report.failures().map(|f| (f.message_id, f.failure.code.to_string())).collect();
    let expected: Vec<_> = (0..30)
        .flat_map(|thousand| [(3, "NULL_PAYLOAD"), (5, "WRONGTYPE")].map(|(row, code)| (thousand * 1_000 + row, code)))
        .map(|(row, code)| (ReportedId::Int(1_000_000 + row), code.to_owned()))
        .collect();
    assert_eq!(failed, expected);
    assert!(report.failures().all(|f| f.failure.kind == Kind::Permanent && f.failure.written == Written::No));
    let stored: Vec<_> =
        (0..rows).filter(|row| ![3, 5].contains(&(row % 1_000))).map(|row| format!("row {row}")).collect();
    assert_eq!(payloads(&server, "s"), stored);
}

#[test]
fn a_flush_after_an_interrupt_continues_without_loss() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(400).query(&mut server.client().unwrap()).unwrap();
    produce(&mut dispatcher, "a", IdArgument::None);
    let started = Instant::now();
    let interrupted = dispatcher.flush(None, &mut InterruptedFrom(started + Duration::from_millis(100)));
    assert_eq!(interrupted.unwrap_err(), Error::Interrupted);
    assert_eq!(dispatcher.unreported(), 1);
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 1);
    assert_eq!(payloads(&server, "s"), ["a"]);
    server.kill();
}

#[test]
fn a_killed_server_leaves_the_message_unknown_and_fails_the_next_batch() {
    let Some(mut server) = Server::start(&[]) else { return };
    let options = [("command_timeout", "20")];
    let mut dispatcher = dispatcher(server.endpoint(&options));
    produce(&mut dispatcher, "a", IdArgument::None);
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 1);
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(60_000).query(&mut server.client().unwrap()).unwrap();
    produce(&mut dispatcher, "b", IdArgument::None);
    let interrupted = dispatcher.flush(None, &mut InterruptedFrom(Instant::now() + Duration::from_millis(100)));
    assert_eq!(interrupted.unwrap_err(), Error::Interrupted, "the message is with the server now");
    server.kill();
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    let failures: Vec<_> = report.failures().map(|f| (f.failure.kind, f.failure.written)).collect();
    assert_eq!(failures, [(Kind::Retryable, Written::Unknown)]);

    for n in 0..100_000 {
        produce(&mut dispatcher, "c", IdArgument::Int(n));
    }
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    assert_eq!(report.failed_by_code(), [("CONNECT".into(), 100_000)].into());
    assert!(report.failures().all(|f| f.failure.written == Written::No));
}

#[test]
fn a_message_larger_than_the_window_is_delivered() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let window = [("window_max_entries", 1), ("window_max_bytes", 64 * 1024)];
    let options = window.map(|(name, value)| (name.to_owned(), OptionValue::Int(value)));
    let options = DispatcherOptions::new(options, Form::Typed).unwrap();
    let mut dispatcher = Dispatcher::new(tcp_endpoint(server.port.unwrap(), &[]), options).unwrap();
    let large = "x".repeat(50 << 20);
    for payload in ["a", &large, "b"] {
        produce(&mut dispatcher, payload, IdArgument::None);
    }
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 3);
    assert!(payloads(&server, "s") == ["a", &large, "b"]);
}

#[test]
fn a_dispatched_message_follows_earlier_messages_and_is_not_reported() {
    let Some(server) = Server::start(&[]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    produce(&mut dispatcher, "a", IdArgument::None);
    assert!(dispatcher.dispatch(&Message::new(b"b"), &mut NeverInterrupted).unwrap().is_ok());
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 1);
    assert_eq!(payloads(&server, "s"), ["a", "b"]);
    dispatcher.close();
    assert_eq!(
        dispatcher.dispatch(&Message::new(b"c"), &mut NeverInterrupted).unwrap_err(),
        Error::Closed { what: "dispatcher" }
    );
}

#[test]
fn the_rest_of_a_message_that_is_too_large_is_not_sent_on_the_next_connection() {
    let Some(server) = Server::start(&["--proto-max-bulk-len", "1mb"]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    produce(&mut dispatcher, "first", IdArgument::None);
    produce(&mut dispatcher, &"\r\nSET pwned 1\r\n".repeat(1_000_000), IdArgument::None);
    produce(&mut dispatcher, "last", IdArgument::None);
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    // The last message waited for room, so it is sent on the next connection, unless it failed with the first one.
    let failures: Vec<_> = report.failures().map(|f| (f.failure.code.to_string(), f.failure.written)).collect();
    let expected = [("TOO_LARGE".to_owned(), Written::No), ("RESET".to_owned(), Written::No)];
    assert_eq!(failures, expected[..failures.len()]);
    assert_eq!(report.delivered() + report.failed(), 3);
    produce(&mut dispatcher, "next", IdArgument::None);
    assert_eq!(dispatcher.flush(None, &mut NeverInterrupted).unwrap().delivered(), 1);
    let pwned: Option<String> = redis::cmd("GET").arg("pwned").query(&mut server.client().unwrap()).unwrap();
    assert_eq!(pwned, None);
    let stored = if failures.len() == 1 { &["first", "last", "next"][..] } else { &["first", "next"] };
    assert_eq!(payloads(&server, "s"), stored);
}

#[test]
fn replies_that_have_arrived_count_after_the_timeout() {
    let Some(server) = Server::start(&[]) else { return };
    let mut dispatcher = dispatcher(server.endpoint(&[]));
    produce(&mut dispatcher, "a", IdArgument::None);
    dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    produce(&mut dispatcher, "b", IdArgument::None);
    // Sends without receiving: the reply is in the socket once the server shows the second entry.
    assert_eq!(dispatcher.poll(&mut NeverInterrupted).unwrap().delivered(), 0);
    let started = Instant::now();
    while payloads(&server, "s").len() < 2 {
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(dispatcher.flush(Some(Duration::ZERO), &mut NeverInterrupted).unwrap().delivered(), 1);
}
