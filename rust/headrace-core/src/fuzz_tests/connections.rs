//! Two connections with one outcome queue, without sockets. Their servers reply in any order, refuse commands, drop
//! connections and reply late to WAIT. Each message has one true outcome, in the order of the messages; while one connection
//! retries, waits or is down, the messages of the other are sent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::slow::{Reader, Stop};
use crate::connection::{BatchState, Connection, Context, Disconnect, Outcomes as _, Owner, RetryStep, Rules};
use crate::durability::Durability;
use crate::error::{Classifier, Fault, Written, code};
use crate::producer::OutcomeQueue;
use crate::resp::{write_array_header, write_bulk};
use crate::retry::RetryPolicy;

const TIMEOUT: Duration = Duration::from_secs(5);

/// What all sessions saw.
#[derive(Debug, Default)]
pub struct Seen {
    delivered: u64,
    failed_no: u64,
    failed_unknown: u64,
    breaks: u64,
    resent: u64,
    /// Commands that were sent while the other connection was retrying, waiting for the reply to WAIT or PING, or down.
    meanwhile: u64,
    /// The number of replies to PING.
    pings: u64,
}

impl Seen {
    #[cfg(test)]
    fn summary(&self) -> String {
        let Self { delivered, failed_no, failed_unknown, breaks, resent, meanwhile, pings } = self;
        format!(
            "{delivered} delivered, {failed_no} failed with written no, {failed_unknown} with written unknown, {breaks} \
             breaks, {resent} sent again, {meanwhile} sent while the other connection was held up, {pings} replies to PING"
        )
    }
}

/// What the servers did with a message.
#[derive(Debug, Clone, Default)]
struct Fate {
    written: u64,
    /// The IDs under which it was written, and confirmed if its connection waits.
    ids: Vec<String>,
}

/// A connection and its server.
struct Node {
    connection: Connection,
    is_open: bool,
    /// Bytes that the server has received, and bytes that the client has not yet received.
    input: Vec<u8>,
    output: VecDeque<u8>,
    waits: bool,
    next_id: u64,
}

struct World<'a> {
    nodes: [Node; 2],
    rules: Rules,
    batch: BatchState,
    queue: OutcomeQueue,
    now: Instant,
    fates: Vec<Fate>,
    /// The number of messages that have an outcome in a report.
    reported: usize,
    retries_unknown: bool,
    seen: &'a mut Seen,
}

impl<'a> World<'a> {
    fn new(seen: &'a mut Seen, chance: &mut Chance) -> Self {
        let now = Instant::now();
        let retries = chance.one_in(2);
        let retry = RetryPolicy {
            max_attempts: Some(1 + chance.size(5) as u32),
            retry_unknown: chance.one_in(2),
            ..RetryPolicy::default()
        };
        let retries_unknown = retries && retry.retry_unknown;
        let nodes = [0, 1].map(|_| {
            let waits = chance.one_in(3);
            let every = 1 + chance.size(10) as u64;
            let durability =
                waits.then_some(Durability { replicas: Some(1), aof: false, timeout: Duration::from_secs(1), every });
            let mut connection = Connection::new(retries, false, durability);
            connection.opened(TIMEOUT, Some(1), now);
            Node { connection, is_open: true, input: Vec::new(), output: VecDeque::new(), waits, next_id: 0 }
        });
        let rules = Rules {
            classifier: Classifier::default(),
            retry: retries.then_some(retry),
            nomkstream: false,
            min_id: None,
            exactly_once: false,
            forgets_ids: false,
            max_redirects: None,
        };
        let (batch, queue) = (BatchState::default(), OutcomeQueue::default());
        Self { nodes, rules, batch, queue, now, fates: Vec::new(), reported: 0, retries_unknown, seen }
    }

    fn context<T>(&mut self, at: usize, run: impl FnOnce(&mut Connection, &mut Context<'_, OutcomeQueue>) -> T) -> T {
        let Self { nodes, rules, batch, queue, now, .. } = self;
        run(&mut nodes[at].connection, &mut Context { rules, batch, outcomes: queue, now: *now })
    }

    /// Whether the connection accepts no new message, or gets no reply.
    fn is_held_up(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let connection = &node.connection;
        !node.is_open || connection.retry.is_active() || connection.is_unconfirmed() || connection.awaits_control()
    }

    fn produce(&mut self, at: usize, chance: &mut Chance) {
        if self.nodes[at].connection.retry.is_active() {
            return;
        }
        let number = self.queue.number(1);
        self.queue.recorder().push_ordinals(1);
        self.fates.push(Fate::default());
        if chance.one_in(20) {
            let fault = Fault::new(code::EMPTY, "every field of the row is null");
            let failure = self.rules.classifier.failure(&fault, Written::No).into();
            let outcome = crate::connection::Outcome::Failed { failure, count: 1 };
            return self.queue.resolve(number, outcome, Owner::Report);
        }
        let connection = &mut self.nodes[at].connection;
        connection.begin_command(0);
        let before = connection.send.len();
        let out = connection.send.bytes();
        write_array_header(out, 2);
        write_bulk(out, b"XADD");
        write_bulk(out, number.to_string().as_bytes());
        let length = connection.send.len() - before;
        connection.push(length, number, 1, Owner::Report);
        if connection.until_wait() == 0 {
            connection.request_wait();
        }
    }

    /// The socket accepts some bytes.
    fn transmit(&mut self, at: usize, most: usize) {
        let is_other_held_up = self.is_held_up(1 - at);
        let now = self.now;
        let node = &mut self.nodes[at];
        if !node.is_open {
            return;
        }
        if node.connection.needs_ping(now) {
            assert!(node.input.is_empty() && node.output.is_empty(), "PING while something is under way");
            node.connection.ping();
        }
        if node.connection.has_unsent() {
            let bytes = node.connection.contiguous().unwrap();
            let count = bytes.len().min(most);
            node.input.extend_from_slice(&bytes[..count]);
            node.connection.sent(count, now);
            self.seen.meanwhile += u64::from(is_other_held_up && !node.connection.awaits_control() && count > 0);
        }
    }

    /// The server takes a step.
    fn serve(&mut self, at: usize, is_fair: bool, chance: &mut Chance) {
        let node = &mut self.nodes[at];
        let mut reader = Reader::new(&node.input);
        let command = match reader.command() {
            Ok(command) => command,
            Err(Stop::More) => return,
            Err(Stop::Wrong) => panic!("no command: {}", node.input.escape_ascii()),
        };
        let length = reader.at;
        node.input.drain(..length);
        let reply = if command[0] == b"WAIT" {
            format!(":{}\r\n", u64::from(is_fair || !chance.one_in(4)))
        } else if command[0] == b"PING" {
            assert!(node.input.is_empty() && node.connection.awaits_control(), "sent before the reply to PING");
            self.seen.pings += 1;
            (*chance.pick(&["+PONG\r\n", "-NOPERM no permissions to run 'ping'\r\n"])).to_owned()
        } else if is_fair || !chance.one_in(6) {
            let number: usize = String::from_utf8_lossy(&command[1]).parse().unwrap();
            node.next_id += 1;
            let id = format!("{}-{}", at + 1, node.next_id);
            self.fates[number].written += 1;
            self.fates[number].ids.push(id.clone());
            format!("${}\r\n{id}\r\n", id.len())
        } else {
            (*chance.pick(&["-LOADING a moment\r\n", "-WRONGTYPE no stream\r\n", "-OOM no memory\r\n"])).to_owned()
        };
        node.output.extend(reply.bytes());
    }

    /// The client receives some bytes.
    fn receive(&mut self, at: usize, most: usize) {
        let node = &mut self.nodes[at];
        let space = node.connection.space();
        let count = space.len().min(most).min(node.output.len());
        if !node.is_open || count == 0 {
            return;
        }
        for (place, byte) in space.iter_mut().zip(node.output.drain(..count)) {
            *place = byte;
        }
        if let Err(broken) = self.context(at, |connection, cx| connection.received(count, cx)) {
            panic!("a connection broke over true replies: {:?}", broken.fault);
        }
    }

    fn break_off(&mut self, at: usize) {
        if !self.nodes[at].is_open {
            return;
        }
        self.seen.breaks += 1;
        let broken = Disconnect::from(Fault::new(code::EOF, "the server closed the connection"));
        self.context(at, |connection, cx| connection.disconnected(&broken, cx));
        let node = &mut self.nodes[at];
        node.is_open = false;
        node.input.clear();
        node.output.clear();
    }

    fn open(&mut self, at: usize) {
        if !self.nodes[at].is_open {
            self.nodes[at].is_open = true;
            self.nodes[at].connection.opened(TIMEOUT, Some(1), self.now);
        }
    }

    fn retry(&mut self, at: usize, chance: &mut Chance) {
        let jitter = chance.below(1_000) as f64 / 1_000.0;
        if self.nodes[at].connection.retry.is_active() {
            // Messages are sent again only after WAIT has confirmed those that were answered.
            self.nodes[at].connection.request_wait();
        }
        match self.nodes[at].connection.retry_step(&self.rules, self.now, jitter) {
            None => {}
            Some(RetryStep::Pause(until)) => self.now = until,
            Some(RetryStep::Resend) => {
                let resent = &mut self.seen.resent;
                self.nodes[at].connection.resend(|messages, _| *resent += messages);
            }
            Some(RetryStep::GiveUp) => {
                self.context(at, Connection::give_up_retries);
                self.nodes[at].connection.retry.end(self.now);
            }
            Some(RetryStep::Redirect(_) | RetryStep::Resume) => panic!("there is one server"),
            Some(RetryStep::Done) => drop(self.nodes[at].connection.retry.end(self.now)),
        }
    }

    fn step(&mut self, chance: &mut Chance) {
        let at = chance.below(2);
        match chance.below(20) {
            0..=6 => self.produce(at, chance),
            7..=9 => self.transmit(at, 1 + chance.size(300)),
            10..=12 => self.serve(at, false, chance),
            13..=15 => self.receive(at, 1 + chance.size(300)),
            16 => self.nodes[at].connection.request_wait(),
            17 => self.retry(at, chance),
            18 if chance.one_in(6) => self.break_off(at),
            18 => self.open(at),
            19 if chance.one_in(3) => self.now += Duration::from_secs(chance.below(60) as u64),
            _ => self.report(),
        }
    }

    /// Checks each outcome since the last report.
    fn report(&mut self) {
        let report = self.queue.recorder().take(false);
        for batch in report.to_arrow(false) {
            let batch = batch.unwrap();
            let column = |at: usize| batch.column(at).as_string::<i32>();
            let (ids, entries, written) = (column(0), column(1), column(5));
            for row in 0..batch.num_rows() {
                assert_eq!(ids.value(row), self.reported.to_string(), "the outcomes are out of order");
                let fate = &self.fates[self.reported];
                self.reported += 1;
                if !entries.is_null(row) {
                    assert!(fate.ids.iter().any(|id| id == entries.value(row)), "{fate:?} {}", entries.value(row));
                    assert!(fate.written == 1 || self.retries_unknown, "{fate:?} was written twice");
                    self.seen.delivered += 1;
                } else if written.value(row) == "no" {
                    assert_eq!(fate.written, 0, "{fate:?}");
                    self.seen.failed_no += 1;
                } else {
                    self.seen.failed_unknown += 1;
                }
            }
        }
    }

    /// Runs both servers until every message has an outcome.
    fn finish(mut self, chance: &mut Chance) {
        for _ in 0..10_000 {
            for at in [0, 1] {
                self.open(at);
                self.retry(at, chance);
                if self.nodes[at].waits {
                    self.nodes[at].connection.request_wait();
                }
                self.transmit(at, usize::MAX);
                self.serve(at, true, chance);
                self.receive(at, usize::MAX);
            }
            if self.queue.is_settled() && self.nodes.iter().all(|node| node.connection.is_idle()) {
                break;
            }
        }
        assert!(self.queue.is_settled(), "a message has no outcome");
        self.report();
        assert_eq!((self.reported, self.queue.early()), (self.fates.len(), 0));
    }
}

/// Runs one session.
pub fn check(seen: &mut Seen, chance: &mut Chance) {
    let mut world = World::new(seen, chance);
    for _ in 0..20 + chance.size(400) {
        world.step(chance);
    }
    world.finish(chance);
}

#[cfg(test)]
#[test]
fn connections() {
    let mut seen = Seen::default();
    Runner::new("connections", 3_000).run(&mut seen, check, Seen::summary);
    assert!(seen.meanwhile > 0 && seen.resent > 0 && seen.breaks > 0 && seen.pings > 0, "{seen:?}");
}
