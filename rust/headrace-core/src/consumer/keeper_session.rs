//! What the keeper of a consumer does with one server: it renews leases, and sends the caller's decisions while a reading
//! connection waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::ledger::Ledger;
use super::shared::lock;
use super::work::{Known, Names, Work, refusal};
use crate::error::Fault;
use crate::keeper::sync::Mutex;
use crate::keeper::{Doze, Kept, LONGEST, PATIENCE};
use crate::reading::{Buffers, Exchange, protocol};

/// The most pieces of work of one round trip.
const MAX_WORK: usize = 16;

/// Pieces of work as commands, and their replies.
#[derive(Debug)]
pub(super) struct KeeperSession {
    ledger: Arc<Mutex<Ledger>>,
    keys: Vec<Arc<[u8]>>,
    names: Names,
    in_flight: VecDeque<Work>,
    known: Known,
    now: Duration,
    /// How often leases are renewed; `None`: never.
    renews: Option<Duration>,
    /// When it last renewed the leases.
    renewed: Duration,
}

impl KeeperSession {
    pub(super) fn new(ledger: Arc<Mutex<Ledger>>, names: Names, renews: Option<Duration>, now: Duration) -> Self {
        let keys = lock(&ledger).keys().to_vec();
        Self { ledger, keys, names, in_flight: VecDeque::new(), known: Known::default(), now, renews, renewed: now }
    }

    fn answered(&mut self, work: &Work, reply: &[u8], ledger: &mut Ledger) -> Result<(), Fault> {
        if let Some(line) = reply.strip_prefix(b"-") {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            let key = self.keys.get(work.stream).map(AsRef::as_ref).unwrap_or_default();
            match refusal(key, work, &fault)? {
                None => {
                    self.known.forget();
                    ledger.unsent(work.clone());
                }
                Some(error) => ledger.refused(work, error, self.now),
            }
            return Ok(());
        }
        let reply = parse_redis_value(reply).unwrap_or(Value::Nil);
        ledger.replied(work, &reply).ok_or_else(|| protocol("a reply that does not fit the command"))
    }
}

impl Exchange for KeeperSession {
    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let Some(work) = self.in_flight.front().cloned() else { return Ok(false) };
        let Some(reply) = buffers.take_reply()? else { return Ok(false) };
        let ledger = Arc::clone(&self.ledger);
        self.answered(&work, reply, &mut lock(&ledger))?;
        self.in_flight.pop_front();
        Ok(true)
    }

    fn disconnected(&mut self) {
        let mut ledger = lock(&self.ledger);
        for work in self.in_flight.drain(..).rev() {
            ledger.returned(work);
        }
        drop(ledger);
        self.known.forget();
    }
}

impl Kept for KeeperSession {
    fn left(&mut self, doze: &Doze, now: Duration) -> (Duration, bool) {
        let renews = self.renews;
        let mut ledger = lock(&self.ledger);
        let is_due = renews.is_some_and(|every| self.renewed + every <= now);
        if is_due {
            ledger.renew(now);
            self.renewed = now;
        }
        let until_renewal = renews.map_or(LONGEST, |every| (self.renewed + every).saturating_sub(now));
        match ledger.waiting(now) {
            Some(_) if ledger.reader_waits || is_due => (Duration::ZERO, true),
            Some(waited) => (PATIENCE.saturating_sub(waited).min(until_renewal), true),
            None => {
                // Work that is added from now on finds the keeper asleep, and wakes it.
                doze.sleeps_from_now();
                (until_renewal, false)
            }
        }
    }

    fn request(&mut self, now: Duration, buffers: &mut Buffers) {
        self.now = now;
        for _ in 0..MAX_WORK {
            let Some(work) = lock(&self.ledger).take() else { return };
            let key = self.keys.get(work.stream).map(AsRef::as_ref).unwrap_or_default();
            work.write(&mut buffers.out, key, &self.names, &mut self.known);
            self.in_flight.push_back(work);
        }
    }
}
