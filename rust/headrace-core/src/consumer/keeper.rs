//! The thread that renews leases, and sends what the caller said while the connection that reads is waiting. It has a
//! connection of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::clock;
use super::ledger::Ledger;
use super::shared::Shared;
use super::work::{Known, Names, Work, missed, refusal};
use crate::endpoint::Endpoint;
use crate::error::{Fault, Result, code};
use crate::net::Watch;
use crate::random;
use crate::reading::{Exchange, Input, Link, Outbox};
use crate::resp::framing::Framing;
use crate::retry::RetryPolicy;

/// How long the connection that reads has the first chance to send what the caller said.
const PATIENCE: Duration = Duration::from_millis(80);
/// How long the keeper waits at least before it connects again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// How long it waits at most, unless a renewal is due earlier: leases must not end because of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the keeper sleeps at most.
const LONGEST: Duration = Duration::from_secs(3600);
/// The most pieces of work of one round trip.
const MAX_WORK: usize = 16;

/// The keeper of a consumer.
#[derive(Debug)]
pub(super) struct Keeper {
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. `renews`: how often leases are renewed; `None`: never. `retry`: how long it pauses before it connects
    /// again, which it does for as long as the consumer lives.
    pub(super) fn start(
        endpoint: Endpoint,
        shared: Arc<Shared>,
        names: Names,
        renews: Option<Duration>,
        retry: RetryPolicy,
    ) -> std::io::Result<Self> {
        let run = move || Rounds::new(endpoint, shared, names, renews, retry).run();
        Builder::new().name("headrace-keeper".to_owned()).spawn(run).map(|thread| Self { thread: Some(thread) })
    }

    /// Waits for the end of the thread, which was asked to end.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed by its hook.
            let _ = thread.join();
        }
    }

    /// The thread is the parent's: this process has none.
    pub(super) fn forget(&mut self) {
        self.thread = None;
    }
}

/// The rounds of the thread: wait, take work, send it, read the replies.
struct Rounds {
    shared: Arc<Shared>,
    session: KeeperSession,
    link: Link,
    renews: Option<Duration>,
    renewed: Duration,
    retry: RetryPolicy,
    /// The rounds in a row that failed.
    failures: u32,
}

impl Rounds {
    fn new(
        endpoint: Endpoint,
        shared: Arc<Shared>,
        names: Names,
        renews: Option<Duration>,
        retry: RetryPolicy,
    ) -> Self {
        let session = KeeperSession::new(Arc::clone(&shared), names);
        // Those of the connection that reads are counted.
        let link = Link::new(endpoint, None, Arc::default());
        Self { shared, session, link, renews, renewed: clock::now(), retry, failures: 0 }
    }

    fn run(mut self) {
        while !self.shared.ends() {
            if !self.takes_work() {
                continue;
            }
            if self.round().is_ok() {
                self.failures = 0;
            } else {
                self.link.close(&mut self.session, false);
                self.failures = self.failures.saturating_add(1);
                self.shared.sleep(self.pause(), false);
            }
        }
        self.link.close(&mut self.session, false);
    }

    fn pause(&self) -> Duration {
        let longest = self.renews.map_or(LONGEST_PAUSE, |every| LONGEST_PAUSE.min(every / 4));
        self.retry.backoff(self.failures, random::jitter()).min(longest).max(SHORTEST_PAUSE)
    }

    /// Waits for work; returns whether there is some to do now.
    fn takes_work(&mut self) -> bool {
        let now = clock::now();
        let mut ledger = self.shared.ledger();
        let until_renewal = self.renews.map(|every| (self.renewed + every).saturating_sub(now));
        if until_renewal.is_some_and(|left| left.is_zero()) {
            ledger.renew(now);
            self.renewed = now;
            let is_due = ledger.waiting(now).is_some();
            return is_due;
        }
        let until_work = match ledger.waiting(now) {
            Some(_) if ledger.reader_waits => Some(Duration::ZERO),
            Some(waited) => Some(PATIENCE.saturating_sub(waited)),
            None => None,
        };
        // Work that is added from here on finds the keeper asleep, and wakes it.
        if until_work.is_none() {
            self.shared.sleeps_from_now();
        }
        drop(ledger);
        if until_work == Some(Duration::ZERO) {
            return true;
        }
        let most = until_renewal.unwrap_or(LONGEST).min(until_work.unwrap_or(LONGEST));
        self.shared.sleep(most, until_work.is_none());
        false
    }

    /// Sends the work that is there, and reads its replies.
    fn round(&mut self) -> Result<()> {
        let mut watch = Until(Arc::clone(&self.shared));
        if !self.link.is_open() {
            self.link.connect(&mut self.session, &mut watch, |_, _, _| Ok(()))?;
        }
        self.session.request(clock::now());
        while self.session.awaits_reply() {
            self.link.ask(&mut watch)?;
            match self.link.step(&mut self.session, &mut watch) {
                Ok(true) => {}
                Ok(false) => self.link.wait(&mut self.session, Duration::MAX, &mut watch)?,
                Err(fault) => self.link.lose(&mut self.session, fault, &mut watch)?,
            }
        }
        Ok(())
    }
}

/// Ends the keeper's waits.
struct Until(Arc<Shared>);

impl Watch for Until {
    fn interrupted(&mut self) -> bool {
        self.0.ends()
    }
}

/// Pieces of work as commands, and their replies.
struct KeeperSession {
    shared: Arc<Shared>,
    keys: Vec<Arc<[u8]>>,
    names: Names,
    in_flight: VecDeque<Work>,
    outbox: Outbox,
    input: Input,
    framing: Framing,
    known: Known,
    now: Duration,
}

impl KeeperSession {
    fn new(shared: Arc<Shared>, names: Names) -> Self {
        let keys = shared.ledger().keys().to_vec();
        Self {
            shared,
            keys,
            names,
            in_flight: VecDeque::new(),
            outbox: Outbox::default(),
            input: Input::default(),
            framing: Framing::default(),
            known: Known::default(),
            now: Duration::ZERO,
        }
    }

    fn request(&mut self, now: Duration) {
        self.now = now;
        for _ in 0..MAX_WORK {
            let Some(work) = self.shared.ledger().take() else { return };
            let key = self.keys.get(work.stream).map(AsRef::as_ref).unwrap_or_default();
            work.write(&mut self.outbox.bytes, key, &self.names, &mut self.known);
            self.in_flight.push_back(work);
        }
    }

    fn answered(&mut self, work: &Work, reply: &[u8], ledger: &mut Ledger) -> std::result::Result<(), Fault> {
        if let Some(line) = reply.strip_prefix(b"-") {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            match refusal(work, &fault)? {
                None => {
                    self.known.forget();
                    ledger.unsent(work.clone());
                }
                Some(error) => ledger.refused(work, error, self.now),
            }
            return Ok(());
        }
        let reply = parse_redis_value(reply).unwrap_or(Value::Nil);
        ledger.done(work, &missed(&reply).ok_or_else(|| protocol("a reply that is none to the command"))?);
        Ok(())
    }
}

impl Exchange for KeeperSession {
    fn unsent(&self) -> &[u8] {
        self.outbox.unsent()
    }

    fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    fn space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    fn received(&mut self, count: usize) -> std::result::Result<(), Fault> {
        self.input.filled(count);
        while let Some(work) = self.in_flight.front().cloned() {
            let Some(length) = self.framing.find(self.input.unread()).map_err(protocol)? else { return Ok(()) };
            self.framing = Framing::default();
            let reply = self.input.unread().get(..length).unwrap_or_default().to_vec();
            self.input.consume(length);
            let shared = Arc::clone(&self.shared);
            self.answered(&work, &reply, &mut shared.ledger())?;
            self.in_flight.pop_front();
        }
        if self.input.unread().is_empty() { Ok(()) } else { Err(protocol("a reply to nothing that was sent")) }
    }

    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn disconnected(&mut self) {
        let mut ledger = self.shared.ledger();
        for work in self.in_flight.drain(..).rev() {
            ledger.returned(work);
        }
        drop(ledger);
        self.outbox.clear();
        self.input.clear();
        self.framing = Framing::default();
        self.known.forget();
    }
}

fn protocol(reason: &'static str) -> Fault {
    Fault::new(code::PROTOCOL, format!("the server's reply cannot be read: it sent {reason}"))
}
