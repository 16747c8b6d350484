//! What the threads of a consumer share, under shuttle: the keeper, a caller that polls, and callers that acknowledge, fail and
//! release entries, in random orders. The server is a function. Each entry has one outcome, the counts add up at any time, no
//! thread waits for another one in vain, and the keeper ends.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::Schema;
use redis::{Value, parse_redis_value};
use shuttle::rand::{RngCore as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, Runner, thread};

use super::batch::{ConsumerBatch, Extra};
use super::ledger::{Ledger, LedgerOptions};
use super::shared::Shared;
use super::work::Names;
use super::{CLOSED, ConsumerHandle};
use crate::counters::ReadCounters;
use crate::endpoint::{Endpoint, Form, OptionValue};
use crate::error::Fault;
use crate::fuzz_tests::Chance;
use crate::keeper::{Keeper, clock};
use crate::net::{Mock, Readiness, set_mock};
use crate::resp::framing::Framing;
use crate::resp::value::bytes;
use crate::resp::{EntryId, entry_id, write_array_header, write_bulk};
use crate::retry::RetryPolicy;

const MINUTE: Duration = Duration::from_secs(60);
/// Turns of the other threads after which the keeper must have sent what it was given.
const PATIENCE: usize = 2_000;

/// The pending entries of the consumer, and what it did with those that are not pending any more.
#[derive(Debug, Default)]
struct Server {
    pending: BTreeSet<(Vec<u8>, EntryId)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Server {
    fn execute(&mut self, command: &[&[u8]]) -> Vec<u8> {
        if !matches!(command[0], b"EVAL" | b"EVALSHA") {
            return b"+OK\r\n".to_vec();
        }
        let (what, ids) = match command[2..] {
            [b"1", _, _, _, b"ack", _, _, ref ids @ ..] => ("acked", ids),
            [b"1", _, _, _, b"claim", _, b"", ref ids @ ..] => ("renewed", ids),
            [b"1", _, _, _, b"claim", _, _, ref ids @ ..] => ("released", ids),
            [b"2", _, _, _, _, ref ids @ .., _, _, b"ack"] => ("dead", ids),
            _ => unreachable!("{command:?}"),
        };
        let mut missed: Vec<&[u8]> = Vec::new();
        for id in ids {
            let entry = (command[3].to_vec(), entry_id(id).unwrap());
            let is_pending =
                if what == "renewed" { self.pending.contains(&entry) } else { self.pending.remove(&entry) };
            if is_pending {
                *self.counts.entry(what).or_default() += 1;
            } else {
                missed.extend([id, &b"gone"[..]]);
            }
        }
        let mut reply = Vec::new();
        write_array_header(&mut reply, missed.len());
        missed.into_iter().for_each(|part| write_bulk(&mut reply, part));
        reply
    }

    fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Executes the commands of which all bytes have arrived.
    fn receive(&mut self, input: &mut Vec<u8>) -> Vec<u8> {
        let mut replies = Vec::new();
        while let Some(length) = Framing::default().find(input).unwrap().filter(|_| !input.is_empty()) {
            let Value::Array(command) = parse_redis_value(&input[..length]).unwrap() else { unreachable!() };
            let command: Vec<&[u8]> = command.iter().map(|part| bytes(part).unwrap()).collect();
            replies.extend(self.execute(&command));
            input.drain(..length);
        }
        replies
    }
}

/// The keeper's connection.
struct Wire {
    server: Arc<Mutex<Server>>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Mock for Wire {
    fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        let count = self.output.len().min(buf.len());
        buf[..count].copy_from_slice(&self.output[..count]);
        self.output.drain(..count);
        Ok(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.input.extend_from_slice(bytes);
        self.output.extend(self.server.lock().unwrap().receive(&mut self.input));
        Ok(bytes.len())
    }

    fn wait(&mut self, writable: bool, _: Duration) -> Readiness {
        Readiness { readable: !self.output.is_empty(), writable, interrupted: false }
    }
}

/// A consumer without a connection that reads.
#[derive(Clone)]
struct Consumer {
    server: Arc<Mutex<Server>>,
    shared: Arc<Shared>,
    handle: ConsumerHandle,
    /// The batches that were returned.
    batches: Arc<Mutex<Vec<Arc<ConsumerBatch>>>>,
    /// The entries about to be delivered, and those that were.
    entries: [Arc<AtomicU64>; 2],
}

const NAMES: [&[u8]; 2] = [b"s", b"t"];

fn chance() -> Chance {
    Chance::new(thread_rng().next_u64(), 0)
}

impl Consumer {
    fn new(ledgers: usize, max_failures: Option<u64>) -> Self {
        let options = LedgerOptions {
            min_idle: MINUTE,
            max_processing: 30 * MINUTE,
            max_failures,
            deletes: false,
            max_released: 100,
        };
        let ledger = |at: usize| Ledger::new(vec![Arc::from(NAMES[at])], options.clone());
        let shared = Arc::new(Shared::new((0..ledgers).map(ledger).collect()));
        let places = (0..ledgers).map(|at| (Box::from(NAMES[at]), (at, 0))).collect();
        let handle = ConsumerHandle {
            shared: Arc::clone(&shared),
            counters: Arc::new(ReadCounters::default()),
            places: Arc::new(places),
            fork: forkguard::new(),
        };
        let (server, batches, entries) = Default::default();
        Self { server, shared, handle, batches, entries }
    }

    fn keeper(&self, renews: Option<Duration>) -> Keeper {
        let options = [("host", "h"), ("stream_key", "s")];
        let options = options.map(|(name, value)| (name.to_owned(), OptionValue::text(value)));
        let endpoint = Endpoint::new(options, Form::Text).unwrap();
        let endpoints = vec![endpoint; self.shared.shares().len()];
        let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: Some(b"dead".to_vec()) };
        let retry = RetryPolicy::default();
        Keeper::start(super::keeping(endpoints, &self.shared, &names, renews, &retry)).unwrap()
    }

    /// What a connection that reads does with a ledger for each batch: it sends the caller's decisions, receives entries, and
    /// waits for more.
    fn poll(&self, at: usize, chance: &mut Chance) {
        self.send_work(at, chance);
        let count = 1 + chance.below(4) as u64;
        let first = self.entries[0].fetch_add(count, Ordering::SeqCst) + 1;
        let ids: Vec<_> = (first..first + count).map(|ms| EntryId { ms, seq: 0 }).collect();
        self.server.lock().unwrap().pending.extend(ids.iter().map(|id| (NAMES[at].to_vec(), *id)));
        let (number, owner) = {
            let mut ledger = self.shared.ledger(at);
            let number = ledger.hold(0, ids.clone(), vec![1], clock::now());
            ledger.counts().handed_over += ids.len() as u64;
            (number, ledger.number)
        };
        self.entries[1].fetch_add(count, Ordering::SeqCst);
        let rows = RecordBatchOptions::new().with_row_count(Some(ids.len()));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &rows).unwrap();
        let extra = Extra { deliveries: None, reclaimed: None };
        let batch = ConsumerBatch::new(rows, (owner, number), Arc::from(NAMES[at]), ids, &[], false, &extra);
        self.batches.lock().unwrap().push(Arc::new(batch.unwrap()));
        self.shared.ledger(at).reader_waits = true;
        thread::yield_now();
        self.shared.ledger(at).reader_waits = false;
    }

    /// Sends the work of a ledger over a connection that may break, before or after the server has done it.
    fn send_work(&self, at: usize, chance: &mut Chance) {
        for _ in 0..16 {
            let Some(work) = self.shared.ledger(at).take() else { return };
            if chance.one_in(8) {
                self.shared.ledger(at).returned(work);
                continue;
            }
            let mut input = Vec::new();
            let names = Names { group: Vec::new(), consumer: Vec::new(), dead_letter_key: Some(b"dead".to_vec()) };
            work.write(&mut input, NAMES[at], &names, &mut super::work::Known::default());
            let reply = self.server.lock().unwrap().receive(&mut input);
            if chance.one_in(8) {
                self.shared.ledger(at).returned(work);
                continue;
            }
            self.shared.ledger(at).replied(&work, &parse_redis_value(&reply).unwrap()).unwrap();
        }
    }

    /// What a caller does in a thread of its own.
    fn call(&self, chance: &mut Chance) {
        let batches = self.batches.lock().unwrap().clone();
        let Some(batch) = batches.get(chance.below(batches.len())) else { return thread::yield_now() };
        let mask: Vec<bool> = batch.ids().iter().map(|_| chance.one_in(2)).collect();
        let rows = chance.one_in(2).then_some(&mask[..]).into();
        match chance.below(8) {
            0..=1 => self.handle.ack(batch, rows).unwrap(),
            2 => self.handle.fail(batch, rows, "bad", None).unwrap(),
            3 => self.handle.release(batch, rows, Duration::ZERO).unwrap(),
            4 => assert!(self.handle.unconfirmed() <= self.entries[0].load(Ordering::SeqCst)),
            5 => drop(self.handle.check(batch)),
            _ => self.count(),
        }
    }

    /// Checks the counts while others change them.
    fn count(&self) {
        let least = self.entries[1].load(Ordering::SeqCst);
        let report = self.handle.report().unwrap();
        let sum = report.acked + report.released + report.dead + report.unknown + report.pending;
        let most = self.entries[0].load(Ordering::SeqCst);
        assert!((least..=most).contains(&sum), "{sum} entries, and not {least} to {most}: {report:?}");
    }

    /// Waits until the server has all decisions: those that the keeper is not to send are sent over the other connection.
    fn flush(&self, keeper_alone: bool, chance: &mut Chance) {
        for _ in 0..PATIENCE {
            let all = self.shared.shares().len();
            if (0..all).all(|at| self.shared.ledger(at).is_settled()) {
                return;
            }
            for at in (0..all).filter(|_| !keeper_alone) {
                self.send_work(at, chance);
            }
            thread::yield_now();
        }
        panic!("the keeper sleeps, and decisions wait: {:?}", self.shared);
    }
}

/// One consumer, from its first thread to the last.
fn one() {
    let mut chance = chance();
    clock::set(Duration::from_secs(1));
    let consumer = Consumer::new(1 + chance.below(2), chance.one_in(2).then_some(1));
    let server = Arc::clone(&consumer.server);
    let dial = move || -> Result<Box<dyn Mock>, Fault> {
        Ok(Box::new(Wire { server: Arc::clone(&server), input: Vec::new(), output: Vec::new() }))
    };
    set_mock(Some(Box::new(dial)));
    let mut keeper = consumer.keeper(chance.one_in(2).then_some(MINUTE / 3));
    let callers: Vec<_> = (0..1 + chance.below(2))
        .map(|_| {
            let (consumer, calls, stops) = (consumer.clone(), 1 + chance.below(6), chance.one_in(4));
            thread::spawn(move || {
                let mut chance = self::chance();
                (0..calls).for_each(|_| consumer.call(&mut chance));
                if stops {
                    consumer.handle.stop();
                }
            })
        })
        .collect();
    for _ in 0..1 + chance.below(4) {
        if consumer.shared.stops() {
            break;
        }
        consumer.poll(chance.below(consumer.shared.shares().len()), &mut chance);
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    for batch in consumer.batches.lock().unwrap().drain(..) {
        consumer.handle.ack(&batch, None).unwrap();
    }
    consumer.flush(chance.one_in(2), &mut chance);

    let Consumer { server, shared, handle, entries, .. } = consumer;
    shared.doze.end();
    keeper.join();
    assert!(handle.report().is_ok() && handle.ack_ids(NAMES[0], &[]) == Err(CLOSED));
    let (server, report, total) = (server.lock().unwrap(), shared.report(), entries[0].load(Ordering::SeqCst));
    assert!(server.pending.is_empty(), "{server:?}");
    assert_eq!(report.acked, server.count("acked"), "{report:?}");
    let others = report.released + report.dead + report.unknown;
    assert_eq!(others, server.count("released") + server.count("dead"), "{report:?}, {server:?}");
    assert!(report.released <= server.count("released") && report.dead <= server.count("dead"), "{report:?}");
    assert!(report.renewals <= server.count("renewed"), "{report:?}, {server:?}");
    assert_eq!((report.acked + others, report.handed_over), (total, total));
    assert_eq!((report.pending, report.stale, report.lost, handle.unconfirmed()), (0, 0, 0, 0));
    set_mock(None);
}

/// Explores as many orders as the laboratory says, or repeats one.
#[test]
fn threads() {
    let number =
        |name: &str, usual: u64| env::var(format!("HEADRACE_FUZZ_{name}")).map_or(usual, |text| text.parse().unwrap());
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    if let Some(schedule) = env::var("HEADRACE_FUZZ_DECISIONS").ok().filter(|schedule| !schedule.is_empty()) {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(one);
        return;
    }
    let (seed, executions) = (number("SEED", 1), number("EXECUTIONS", 1_000) as usize);
    // Half of them with a few changes between threads at chosen operations: Burckhardt, Kothari, Musuvathi, Nagarakatte: A
    // randomized scheduler with probabilistic guarantees of finding bugs, 2010.
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(RandomScheduler::new_from_seed(seed, executions.div_ceil(2))),
        Box::new(PctScheduler::new_from_seed(seed, 3, executions / 2)),
    ];
    let explored: usize = schedulers.into_iter().map(|scheduler| Runner::new(scheduler, config.clone()).run(one)).sum();
    eprintln!("threads: {explored} orders");
}
