//! A dispatcher that threads share, on a real server: each call gets the outcome of its own message, and reports have all others.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::thread;

use common::Server;
use headrace_core::endpoint::{Form, OptionValue};
use headrace_core::{Dispatcher, DispatcherOptions, IdArgument, Message, NeverInterrupted, SharedDispatcher};

const THREADS: i64 = 8;
const MESSAGES: i64 = 300;

/// The IDs and payloads of the stream, in order.
fn entries(server: &Server) -> Vec<(String, String)> {
    let entries: Vec<(String, Vec<String>)> =
        redis::cmd("XRANGE").arg("s").arg("-").arg("+").query(&mut server.client().unwrap()).unwrap();
    entries.into_iter().map(|(id, fields)| (id, fields[1].clone())).collect()
}

#[test]
fn each_message_has_one_outcome_and_those_of_a_thread_stay_in_order() {
    let Some(server) = Server::start(&[]) else { return };
    let window = [("window_max_entries".to_owned(), OptionValue::Int(4))];
    let options = DispatcherOptions::new(window, Form::Typed).unwrap();
    let dispatcher = Dispatcher::new(server.endpoint(&[]), options).unwrap();
    let shared = SharedDispatcher::new(dispatcher, Box::new(NeverInterrupted), Arc::default());
    let work = |number: i64| {
        let (mut delivered, mut awaited) = (0, vec![]);
        for message in 0..MESSAGES {
            let payload = format!("{number} {message}");
            let taken = Message::new(payload.as_bytes());
            match message % 3 {
                0 => {
                    let id = shared.dispatch(&taken, &mut NeverInterrupted).unwrap().unwrap();
                    awaited.push((id.to_string(), payload));
                }
                _ => shared.produce(&taken, IdArgument::None, &mut NeverInterrupted).unwrap(),
            }
            if message % 20 == 0 {
                delivered += shared.flush(None, &mut NeverInterrupted).unwrap().delivered();
            } else if message % 20 == 10 {
                delivered += shared.poll(&mut NeverInterrupted).unwrap().delivered();
            }
        }
        (delivered, awaited)
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let last = shared.flush(None, &mut NeverInterrupted).unwrap();
    let reported: u64 = ended.iter().map(|(delivered, _)| delivered).sum();
    assert_eq!(reported + last.delivered(), (THREADS * MESSAGES * 2 / 3) as u64);
    assert_eq!((last.failed(), shared.unreported().unwrap()), (0, 0));
    let entries = entries(&server);
    for (number, (_, awaited)) in ended.iter().enumerate() {
        assert!(awaited.iter().all(|entry| entries.contains(entry)));
        let mine = entries.iter().filter_map(|(_, payload)| payload.strip_prefix(&format!("{number} ")));
        assert!(mine.eq((0..MESSAGES).map(|message| message.to_string())), "a thread's messages stay in order");
    }
    shared.close().unwrap();
}
