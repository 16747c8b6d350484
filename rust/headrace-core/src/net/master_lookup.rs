//! The lookup of the master: sentinels are asked at each connect, and while messages are in flight.
//!
//! After a failover on command (`SENTINEL FAILOVER`) the old master stays up for about ten seconds, and acknowledges messages
//! in that time that are lost. Its own connection does not show this; only the sentinels know.

use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::change::ServerChange;
use super::deadline::{ConnectError, Deadline, Stage, Watch};
use super::handshake::Greeting;
use super::opening::Opening;
use super::peer::Peer;
use super::stream::Transport;
use crate::cluster::Node;
use crate::endpoint::{Address, Endpoint, Sentinels, Settings};
use crate::error::{Fault, code};
use crate::resp::framing::Framing;
use crate::resp::value;

/// The interval at which the connection is checked for a reply.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The lower bound of the time limit for connecting to another sentinel, while messages wait. The limit is twice the time of
/// the last connect if that is longer.
const SHORTEST_CONNECT: Duration = Duration::from_millis(100);

/// The longest pause before another sentinel is tried in place of one that was lost.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a sentinel may take to reply, unless it is polled less often than that.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);

/// Larger than the reply for any address.
const MAX_REPLY: usize = 4 * 1024;

/// The master as the sentinels name it, and the connection to the sentinel that is polled.
#[derive(Debug, Default)]
pub(crate) struct MasterLookup {
    /// The sentinel to ask first, as an index into the list.
    first: usize,
    /// The answer at the last connect.
    named: Option<Named>,
    /// The master of the last connection.
    last: Option<Address>,
    /// The switch to another master, until it is [taken](Self::take_change).
    change: Option<ServerChange>,
}

/// What a [check](MasterLookup::begin_check) returns.
#[derive(Debug)]
pub(crate) struct MasterCheck {
    named: Named,
    result: Result<(), ConnectError>,
}

/// A master, and the sentinel that is polled about it.
#[derive(Debug)]
struct Named {
    master: Address,
    sentinel: Option<Transport>,
    /// When the pending request was sent.
    asked: Option<Instant>,
    /// The received part of the reply.
    reply: Vec<u8>,
    /// The time of the next action.
    next: Instant,
    /// How long it took to connect to a sentinel.
    took: Duration,
    /// The number of failed connects since a sentinel last answered.
    failures: u32,
}

impl MasterLookup {
    /// A lookup whose sentinel was lost. `took`: how long it took to connect to that one.
    #[cfg(test)]
    pub(super) fn without_sentinel(took: Duration) -> Self {
        let master = Address::Tcp { host: "127.0.0.1".to_owned(), port: 1 };
        let (reply, next) = (Vec::new(), Instant::now());
        let named = Named { master, sentinel: None, asked: None, reply, next, took, failures: 0 };
        Self { named: Some(named), ..Self::default() }
    }

    /// Connects to the master that a sentinel names, if HELLO on that server confirms the role. The sentinels share the remaining
    /// time.
    pub(super) async fn connect(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        self.close();
        let Some(sentinels) = endpoint.sentinels() else {
            return Err(Fault::new(code::CONFIG, "the endpoint has no sentinels").into());
        };
        let count = sentinels.nodes.len();
        let mut refusals = Vec::new();
        let mut unusable: Vec<(Address, Fault)> = Vec::new();
        for tried in 0..count {
            let place = (self.first + tried) % count;
            let Some(node) = sentinels.nodes.get(place) else { continue };
            let mut part = patience.part(count - tried);
            let time = part.left();
            let (sentinel, master) = match ask_new(node, sentinels, settings.connect_timeout, &mut part).await {
                Ok(answer) => answer,
                Err(ConnectError::Fault(refusal)) => {
                    refusals.push(refusal);
                    continue;
                }
                Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            };
            let took = time.saturating_sub(part.left());
            if unusable.iter().any(|(address, _)| *address == master) {
                continue;
            }
            match open_master(endpoint, settings, sentinels, &master, &mut part).await {
                Ok(transport) => {
                    self.first = place;
                    self.note(&master);
                    let next = Instant::now() + sentinels.poll;
                    let sentinel = Some(sentinel);
                    self.named =
                        Some(Named { master, sentinel, asked: None, reply: Vec::new(), next, took, failures: 0 });
                    return Ok(transport);
                }
                Err(ConnectError::Fault(fault)) => unusable.push((master, fault)),
                Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            }
        }
        Err(match unusable.pop() {
            Some((_, fault)) => fault,
            None => no_master(sentinels, refusals),
        }
        .into())
    }

    /// Records that a connection goes to this master.
    fn note(&mut self, master: &Address) {
        let last = self.last.replace(master.clone()).filter(|last| last != master);
        let switched = last.map(|last| ServerChange::MasterSwitched { from: last.to_string(), to: master.to_string() });
        self.change = switched.or_else(|| self.change.take());
    }

    /// The switch of masters found by the last connect. Returned only once.
    pub(super) fn take_change(&mut self) -> Option<ServerChange> {
        self.change.take()
    }

    /// The number of replicas known to the sentinel that named the master, including those that are down, or the fault if it does
    /// not tell. `None` if no sentinel is connected. Must be called right after [`connect`](Self::connect).
    pub(super) async fn replicas(
        &mut self,
        endpoint: &Endpoint,
        patience: &mut Deadline<'_>,
    ) -> Result<Option<Result<u64, Fault>>, ConnectError> {
        let (Some(sentinels), Some(named)) = (endpoint.sentinels(), &mut self.named) else { return Ok(None) };
        let Some(sentinel) = named.sentinel.as_mut().filter(|_| named.asked.is_none()) else { return Ok(None) };
        let replied = sentinel.query(redis::cmd("SENTINEL").arg("REPLICAS").arg(&sentinels.master), patience).await;
        Ok(Some(match replied {
            Ok(Ok(reply)) => match value::list(&reply) {
                Some(replicas) => Ok(replicas.len() as u64),
                None => Err(Fault::new(code::PROTOCOL, "the reply of a sentinel to SENTINEL REPLICAS is not a list")),
            },
            Ok(Err(refusal)) => Err(refusal.of_command("SENTINEL REPLICAS")),
            Err(error) => {
                named.lose(Instant::now());
                match error {
                    ConnectError::Fault(fault) => Err(fault),
                    ConnectError::Interrupted => return Err(ConnectError::Interrupted),
                }
            }
        }))
    }

    /// The time of the next [`check`](Self::check). `None` if no sentinel has named a master yet.
    pub(super) fn due(&self) -> Option<Instant> {
        self.named.as_ref().map(|named| named.next)
    }

    /// Asks a sentinel, or reads its answer. Fails if it names another master, and that server confirms the role. Waits briefly,
    /// only for this confirmation, and for a connect to another sentinel in place of one that was lost.
    pub(super) async fn check(
        &mut self,
        endpoint: &Endpoint,
        now: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let next = self.next_sentinel(endpoint);
        match (&mut self.named, next) {
            (Some(named), Some(next)) => named.check(endpoint, &next, now, watch).await,
            _ => Ok(()),
        }
    }

    /// Begins a check that goes on while the connection is used. Until [`checked`](Self::checked) none is due.
    pub(super) fn begin_check(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Opening<MasterCheck>> {
        let next = self.next_sentinel(endpoint)?;
        let (mut named, endpoint) = (self.named.take()?, endpoint.clone());
        // For a connect to the sentinel, and one to the master.
        let longest = 2 * SHORTEST_CONNECT.max(named.took * 4);
        Some(Opening::new(longest, |mut watch, _| async move {
            let result = named.check(&endpoint, &next, now, &mut watch).await;
            MasterCheck { named, result }
        }))
    }

    /// Ends such a check.
    pub(super) fn checked(&mut self, MasterCheck { named, result }: MasterCheck) -> Result<(), ConnectError> {
        self.named = Some(named);
        result
    }

    /// The sentinel to connect to, if none is polled: another one than the last.
    fn next_sentinel(&mut self, endpoint: &Endpoint) -> Option<Node> {
        let (sentinels, named) = (endpoint.sentinels()?, self.named.as_ref()?);
        if named.sentinel.is_none() {
            self.first = (self.first + 1) % sentinels.nodes.len();
        }
        sentinels.nodes.get(self.first).cloned()
    }

    /// Ends the connection to the sentinel.
    pub(super) fn close(&mut self) {
        if let Some(sentinel) = self.named.take().and_then(|named| named.sentinel) {
            sentinel.close();
        }
    }

    /// Drops connections that belong to the parent process of a fork.
    pub(super) fn forget(&mut self) {
        if let Some(sentinel) = self.named.take().and_then(|named| named.sentinel) {
            sentinel.forget();
        }
    }
}

impl Named {
    /// See [`MasterLookup::check`]. `next`: the sentinel to connect to, if none is polled.
    async fn check(
        &mut self,
        endpoint: &Endpoint,
        next: &Node,
        now: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let Some(sentinels) = endpoint.sentinels() else { return Ok(()) };
        let found = match (&mut self.sentinel, self.asked) {
            (None, _) => self.reconnect(next, sentinels, now, watch).await?,
            (Some(sentinel), None) => {
                let request = request(sentinels).get_packed_command();
                if sentinel.send(&request).is_ok_and(|sent| sent == request.len()) {
                    (self.asked, self.next) = (Some(now), now + LOOK_EVERY);
                } else {
                    self.lose(now);
                }
                None
            }
            (Some(_), Some(asked)) => self.look(asked, sentinels, now),
        };
        match found.filter(|found| *found != self.master) {
            Some(found) => confirm(endpoint, sentinels, &found, self, watch).await,
            None => Ok(()),
        }
    }

    async fn reconnect(
        &mut self,
        node: &Node,
        sentinels: &Sentinels,
        now: Instant,
        watch: &mut dyn Watch,
    ) -> Result<Option<Address>, ConnectError> {
        let time = SHORTEST_CONNECT.max(self.took * 2);
        match ask_new(node, sentinels, time, &mut Deadline::new(now + time, watch)).await {
            Ok((sentinel, master)) => {
                self.took = watch.now().saturating_duration_since(now);
                (self.sentinel, self.failures, self.next) = (Some(sentinel), 0, now + sentinels.poll);
                Ok(Some(master))
            }
            Err(ConnectError::Interrupted) => Err(ConnectError::Interrupted),
            Err(ConnectError::Fault(_)) => {
                let pause = sentinels.poll.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
                (self.failures, self.next) = (self.failures + 1, Instant::now() + pause.max(sentinels.poll));
                Ok(None)
            }
        }
    }

    /// Reads the bytes of the reply that have arrived.
    fn look(&mut self, asked: Instant, sentinels: &Sentinels, now: Instant) -> Option<Address> {
        let sentinel = self.sentinel.as_mut()?;
        let mut chunk = [0; 512];
        loop {
            match sentinel.receive(&mut chunk) {
                Ok(0) => break,
                Ok(count) if self.reply.len() < MAX_REPLY => {
                    self.reply.extend_from_slice(chunk.get(..count).unwrap_or_default());
                }
                Ok(_) | Err(_) => {
                    self.lose(now);
                    return None;
                }
            }
        }
        match Framing::default().find(&self.reply) {
            Ok(Some(length)) if length == self.reply.len() => {
                let found = redis::parse_redis_value(&self.reply).ok().and_then(|reply| address(&reply));
                self.reply.clear();
                (self.asked, self.next) =
                    (None, asked.max(now.checked_sub(sentinels.poll).unwrap_or(asked)) + sentinels.poll);
                found
            }
            Ok(None) if now.saturating_duration_since(asked) < sentinels.poll.max(LONGEST_SILENCE) => {
                self.next = now + LOOK_EVERY;
                None
            }
            _ => {
                self.lose(now);
                None
            }
        }
    }

    /// Drops the sentinel as unusable; another one is asked immediately.
    fn lose(&mut self, now: Instant) {
        if let Some(sentinel) = self.sentinel.take() {
            sentinel.abort();
        }
        self.reply.clear();
        (self.asked, self.next) = (None, now);
    }
}

/// Fails with `SWITCHED` if the server at `found` confirms that it is a master. The sentinels' knowledge may be out of date.
async fn confirm(
    endpoint: &Endpoint,
    sentinels: &Sentinels,
    found: &Address,
    named: &Named,
    watch: &mut dyn Watch,
) -> Result<(), ConnectError> {
    let Ok(mut settings) = endpoint.settings() else { return Ok(()) };
    settings.connect_timeout = settings.connect_timeout.min(SHORTEST_CONNECT.max(named.took * 4));
    let deadline = Instant::now() + settings.connect_timeout;
    match open_master(endpoint, &settings, sentinels, found, &mut Deadline::new(deadline, watch)).await {
        Ok(transport) => {
            transport.close();
            let (master, was) = (&sentinels.master, &named.master);
            let message = format!("the sentinels name {found} as the master '{master}' instead of {was}");
            Err(Fault::new(code::SWITCHED, message).into())
        }
        Err(ConnectError::Interrupted) => Err(ConnectError::Interrupted),
        Err(ConnectError::Fault(_)) => Ok(()),
    }
}

fn peer<'a>(node: &Node, address: &'a Address, sentinels: &'a Sentinels, timeout: Duration) -> Peer<'a> {
    let title = format!("the sentinel {node}");
    Peer { address, dial: None, title, access: &sentinels.access, greeting: Greeting::Lookup, timeout }
}

/// Connects to a sentinel only, not to the master.
pub(crate) async fn connect_to_sentinel(
    node: &Node,
    sentinels: &Sentinels,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let deadline = Instant::now() + settings.connect_timeout;
    peer(node, &address, sentinels, settings.connect_timeout).connect(&mut Deadline::new(deadline, watch)).await
}

/// Opens a connection to a sentinel, and returns it with the master that the sentinel names.
async fn ask_new(
    node: &Node,
    sentinels: &Sentinels,
    timeout: Duration,
    patience: &mut Deadline<'_>,
) -> Result<(Transport, Address), ConnectError> {
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let peer = peer(node, &address, sentinels, timeout);
    let mut sentinel = peer.connect(patience).await?;
    patience.enter(Stage::Request);
    let replied = sentinel.query(&request(sentinels), patience).await;
    let refused = match replied {
        Ok(Ok(reply)) => match self::address(&reply) {
            Some(master) => return Ok((sentinel, master)),
            None => Fault::new(code::NO_MASTER, format!("{} knows no master '{}'", peer.title, sentinels.master)),
        },
        Ok(Err(refusal)) => {
            let said = format!("{} refused SENTINEL GET-MASTER-ADDR-BY-NAME: {}", peer.title, refusal.message);
            Fault { message: Fault::new(code::NO_MASTER, said).message, ..refusal }
        }
        Err(ConnectError::Fault(fault)) => peer.explained(fault, patience.stage()),
        Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
    };
    sentinel.abort();
    Err(refused.into())
}

/// Opens a connection to a server, which must confirm that it is a master.
async fn open_master(
    endpoint: &Endpoint,
    settings: &Settings,
    sentinels: &Sentinels,
    address: &Address,
    patience: &mut Deadline<'_>,
) -> Result<Transport, ConnectError> {
    let title = format!("the master '{}' at {address}", sentinels.master);
    let greeting = Greeting::Server { endpoint, settings, streams: endpoint.first_streams() };
    let (access, timeout) = (endpoint.access(), settings.connect_timeout);
    let peer = Peer { address, dial: None, title, access, greeting, timeout };
    let mut transport = peer.connect(patience).await?;
    patience.enter(Stage::Request);
    let refused = match transport.query(&redis::cmd("HELLO"), patience).await {
        Ok(Ok(hello)) => match value::field(&hello, "role").and_then(value::bytes) {
            Some(b"master") => return Ok(transport),
            role => {
                let role = role.map_or("something else".into(), String::from_utf8_lossy);
                let message =
                    format!("{address}, which the sentinels name as the master '{}', is a {role}", sentinels.master);
                Fault::new(code::NO_MASTER, message)
            }
        },
        Ok(Err(refusal)) => refusal.of_command("HELLO"),
        Err(ConnectError::Fault(fault)) => peer.explained(fault, patience.stage()),
        Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
    };
    transport.abort();
    Err(refused.into())
}

fn request(sentinels: &Sentinels) -> Cmd {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(&sentinels.master);
    command
}

/// The address in the reply to SENTINEL GET-MASTER-ADDR-BY-NAME.
fn address(reply: &Value) -> Option<Address> {
    let [host, port] = value::list(reply)? else { return None };
    let host = String::from_utf8(value::bytes(host)?.to_vec()).ok()?;
    let port = std::str::from_utf8(value::bytes(port)?).ok()?.parse().ok()?;
    Some(Address::Tcp { host, port })
}

/// The fault if no sentinel named a master. If no refusal is temporary, the last one is reported for all sentinels.
fn no_master(sentinels: &Sentinels, mut refusals: Vec<Fault>) -> Fault {
    let passes = refusals.iter().any(|refusal| code::is_away(&refusal.code));
    if let Some(refusal) = refusals.pop_if(|_| !passes) {
        return refusal;
    }
    let said: Vec<_> = refusals.into_iter().map(|refusal| refusal.message).collect();
    Fault::new(code::NO_MASTER, format!("no sentinel names the master '{}': {}", sentinels.master, said.join("; ")))
}
