//! What the keeper of leases does with one server.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::request::{Action, Known, Request};
use super::table::{Leases, is_granted, unreadable};
use crate::entries::escaped;
use crate::error::{Classifier, Error, Fault, Kind, code};
use crate::keeper::sync::{Mutex, MutexGuard, PoisonError};
use crate::keeper::{Doze, Kept, LONGEST};
use crate::reading::{Buffers, Exchange, protocol};
use crate::resp::value::integer;

/// The most commands of one round trip.
const MAX_REQUESTS: usize = 64;

/// The commands about the streams of one session, and their replies.
#[derive(Debug)]
pub(crate) struct LeaseSession {
    leases: Arc<Mutex<Leases>>,
    keys: Arc<[Vec<u8>]>,
    /// The numbers of its streams.
    line: Vec<usize>,
    in_flight: VecDeque<Request>,
    /// Whether a WAIT follows them.
    is_waited: bool,
    /// The replies that the server's replicas have yet to prove.
    unproven: Vec<(Request, Value)>,
    known: Known,
    now: Duration,
}

impl LeaseSession {
    /// `keys`: those of all streams; `line`: the numbers of this session's.
    pub(crate) fn new(leases: Arc<Mutex<Leases>>, keys: Arc<[Vec<u8>]>, line: Vec<usize>) -> Self {
        Self {
            leases,
            keys,
            line,
            in_flight: VecDeque::new(),
            is_waited: false,
            unproven: Vec::new(),
            known: Known::default(),
            now: Duration::ZERO,
        }
    }

    fn answered(&mut self, request: &Request, reply: &[u8], leases: &mut Leases) -> Result<(), Fault> {
        if let Some(line) = reply.strip_prefix(b"-") {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            match refusal(&self.keys[request.stream], &leases.names().group, request, &fault)? {
                None => {
                    self.known.forget();
                    leases.unsent(request);
                }
                Some(error) => leases.refused(request, error, self.now),
            }
            return Ok(());
        }
        let reply = parse_redis_value(reply).unwrap_or(Value::Nil);
        if let Some(error) = unreadable(request, &reply) {
            let key = &self.keys[request.stream];
            let lease = request.key(key, &leases.names().group);
            let message = format!(
                "stream {}: the lease {} cannot be read: {error}; delete its field position, and the group begins where its own \
                 position is",
                escaped(key),
                escaped(&lease)
            );
            let fault = Fault::new(code::PROTOCOL, message.clone());
            leases.refused(request, Error::stream_refused(key, &fault, &message), self.now);
            return Ok(());
        }
        if self.is_waited && is_granted(request, &reply) {
            self.unproven.push((request.clone(), reply));
            return Ok(());
        }
        self.replied(request, &reply, leases)
    }

    /// Asks for the replicas, if they have to have what was sent.
    fn wait(&mut self, buffers: &mut Buffers) {
        let is_of_lease = |request: &Request| !matches!(request.action, Action::Beat { .. });
        if let Some(durability) = &lock(&self.leases).names().durability
            && self.in_flight.iter().any(is_of_lease)
        {
            durability.write(durability.replicas.unwrap_or_default(), &mut buffers.out);
            self.is_waited = true;
        }
    }

    fn replied(&self, request: &Request, reply: &Value, leases: &mut Leases) -> Result<(), Fault> {
        leases.replied(request, reply, self.now).ok_or_else(|| protocol("a reply that does not fit the command"))
    }

    /// Reads the reply to WAIT. What too few replicas have, the server has all the same: it is asked for again.
    fn proved(&mut self, reply: &[u8], leases: &mut Leases) -> Result<(), Fault> {
        let line = reply.strip_suffix(b"\r\n").unwrap_or(reply);
        let Some(durability) = leases.names().durability.clone() else { return Ok(()) };
        let wanted = durability.replicas.unwrap_or_default();
        let shortfall = if let Some(line) = line.strip_prefix(b"-") {
            Some(durability.refused(line))
        } else {
            let count = parse_redis_value(reply).ok().as_ref().and_then(integer);
            let count = count.and_then(|count| u64::try_from(count).ok());
            let count = count.ok_or_else(|| protocol("a reply that does not fit WAIT"))?;
            let seconds = durability.timeout.as_secs_f64();
            let message =
                || format!("{count} of {wanted} replicas had it within {seconds} s; the server itself has it");
            (count < wanted).then(|| Fault::new(code::NOT_REPLICATED, message()))
        };
        for (request, reply) in take(&mut self.unproven) {
            let Some(fault) = shortfall.as_ref().filter(|_| leases.needs_proof(&request)) else {
                self.replied(&request, &reply, leases)?;
                continue;
            };
            let key = &self.keys[request.stream];
            let message = format!("stream {}: {}: {}", escaped(key), request.what(), fault.message);
            leases.unproven(&request, Error::stream_refused(key, fault, &message), self.now);
        }
        Ok(())
    }
}

impl Kept for LeaseSession {
    fn left(&mut self, doze: &Doze, now: Duration) -> (Duration, bool) {
        self.now = now;
        doze.sleeps_from_now();
        let left = lock(&self.leases).left(&self.line, now);
        (left.min(LONGEST), left.is_zero())
    }

    fn faulted(&mut self, fault: &Fault, now: Duration) {
        lock(&self.leases).faulted(&self.line, fault, now);
    }

    fn request(&mut self, now: Duration, buffers: &mut Buffers) {
        self.now = now;
        for _ in 0..MAX_REQUESTS {
            let leases = Arc::clone(&self.leases);
            let mut leases = lock(&leases);
            let Some(request) = leases.take(&self.line, now) else { break };
            request.write(&mut buffers.out, &self.keys[request.stream], leases.names(), &mut self.known);
            self.in_flight.push_back(request);
        }
        self.wait(buffers);
    }
}

impl Exchange for LeaseSession {
    fn awaits_reply(&self) -> bool {
        !self.in_flight.is_empty() || self.is_waited
    }

    fn blocks_for(&self) -> Duration {
        let leases = lock(&self.leases);
        leases.names().durability.as_ref().filter(|_| self.is_waited).map_or(Duration::ZERO, |wait| wait.timeout)
    }

    fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let request = self.in_flight.front().cloned();
        if request.is_none() && !self.is_waited {
            return Ok(false);
        }
        let Some(reply) = buffers.take_reply()? else { return Ok(false) };
        let leases = Arc::clone(&self.leases);
        let mut leases = lock(&leases);
        if let Some(request) = request {
            self.answered(&request, reply, &mut leases)?;
            self.in_flight.pop_front();
        } else {
            self.proved(reply, &mut leases)?;
            self.is_waited = false;
        }
        leases.reached(&self.line);
        Ok(true)
    }

    fn disconnected(&mut self) {
        let mut leases = lock(&self.leases);
        self.in_flight.drain(..).rev().for_each(|request| leases.returned(&request));
        self.unproven.drain(..).rev().for_each(|(request, _)| leases.returned(&request));
        drop(leases);
        self.is_waited = false;
        self.known.forget();
    }
}

/// No step leaves the leases half changed, so they stay valid after a panic elsewhere.
pub(crate) fn lock(leases: &Mutex<Leases>) -> MutexGuard<'_, Leases> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Classifies the refusal of a command: a fault of the connection, or an error for the caller. `None`: it must be sent again.
fn refusal(key: &[u8], group: &[u8], request: &Request, fault: &Fault) -> Result<Option<Error>, Fault> {
    if fault.code == "NOSCRIPT" {
        return Ok(None);
    }
    let fault = &fault.of_script();
    if let ("PENDING", Some((_, count))) = (fault.code.as_ref(), fault.message.split_once("PENDING ")) {
        let message = format!(
            "stream {}: the group has {count} pending entries of a Consumer, so its position is not that of a ShardConsumer: use \
             another group, or settle them first",
            escaped(key)
        );
        return Ok(Some(Error::stream_refused(key, fault, &message)));
    }
    if fault.message.contains("requires the key to exist") {
        let message = format!("stream {}: it does not exist, and create is false", escaped(key));
        return Ok(Some(Error::GroupMissing { stream: key.to_vec(), message }));
    }
    let kind = Classifier::default().kind(fault);
    // An error of a script without a code does not pass by itself.
    if (kind == Kind::Retryable && !matches!(&*fault.code, "OOM" | "ERR" | "CROSSSLOT")) || fault.ends_connection() {
        return Err(fault.clone());
    }
    let message = format!(
        "stream {}: {} was refused: {}; its keys are {} and the stream",
        escaped(key),
        request.name(),
        fault.message,
        escaped(&request.key(key, group)),
    );
    Ok(Some(Error::stream_refused(key, fault, &message)))
}
