//! The server of a reading session: where it is, when to connect to it, and what its caller is told of an outage.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::exchange::Exchange;
use super::outage::{After, Outage};
use super::trouble::Trouble;
use crate::cluster::Node;
use crate::counters::ReadCounters;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Classifier, Error, Fault, Result, Written, code};
use crate::net::{
    ConnectError, ServerChange, ServerLookup, Transport, Watch, block_on, connect_to_node, connect_with, decide,
};
use crate::random;
use crate::retry::{RetryEnd, RetryPolicy, RetryWait};

/// How long one wait may last before the caller is asked whether to continue: Ctrl-C must be noticed within 0.1 s.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How long a new connection may take for what it asks first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    /// `command_timeout`, for each reply.
    pub(crate) silence: Duration,
    /// When the `connect_timeout` of the attempt is over.
    pub(crate) until: Instant,
}

/// The server of a session, and when to connect to it again.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    /// The connection that showed what the server is, until it is used for reading.
    first: Option<Transport>,
    servers: ServerLookup,
    /// The node to connect to, if links share their connections.
    node: Option<Node>,
    outage: Outage,
    /// How long an attempt to connect may take, if that is less than the endpoint allows.
    longest: Option<Duration>,
    /// The number of consecutive redirects from one node of a cluster to another.
    redirects: u32,
    counters: Arc<ReadCounters>,
    /// The time up to which the current wait is counted, if there is one.
    counted: Option<Instant>,
    /// When the watch was last asked.
    watched: Instant,
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, retry: Option<RetryPolicy>, counters: Arc<ReadCounters>) -> Self {
        let now = Instant::now();
        let servers = ServerLookup::new(&endpoint);
        let outage = Outage::new(retry);
        Self {
            endpoint,
            first: None,
            servers,
            node: None,
            outage,
            longest: None,
            redirects: 0,
            counters,
            counted: None,
            watched: now,
        }
    }

    /// The same, but with a limit on the time of an attempt to connect, because others wait in the meantime.
    pub(crate) fn connecting_for(self, longest: Option<Duration>) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The current settings of the endpoint for an attempt to connect.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut settings = self.endpoint.settings()?;
        settings.connect_timeout =
            self.longest.map_or(settings.connect_timeout, |most| most.min(settings.connect_timeout));
        Ok(settings)
    }

    /// Directs the next connection to this node. Reports to `watch` if that is another node than before.
    pub(crate) fn lead_to(&mut self, node: &Node, watch: &mut dyn Watch) {
        if let Some(last) = self.node.replace(node.clone()).filter(|last| last != node) {
            let change = ServerChange::StreamMoved { from: last.to_string(), to: node.to_string() };
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Asks the watch, unless it was asked recently.
    pub(crate) fn ask(&mut self, watch: &mut dyn Watch) -> Result<()> {
        let now = Instant::now();
        if now.saturating_duration_since(self.watched) >= WATCH_EVERY {
            self.watched = now;
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// If it is too early to connect, waits briefly, at most for `most`. Returns whether it is time now.
    pub(crate) fn may_connect(&mut self, most: Duration, watch: &mut dyn Watch) -> Result<bool> {
        let left = self.outage.next().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        if !left.is_zero() {
            let dozed = doze(left.min(most), watch);
            self.count_wait();
            dozed?;
        }
        Ok(left.is_zero())
    }

    /// When to connect, if connecting is put off; `None`: immediately.
    pub(crate) fn next_try(&mut self) -> Option<Instant> {
        let next = self.outage.next();
        if next.is_some() {
            self.count_wait();
        }
        next
    }

    /// The endpoint as its server describes it: part of a cluster or not. Waits for the server as the policy requires.
    pub(crate) fn decided(&mut self, watch: &mut dyn Watch) -> Result<&Endpoint> {
        while self.endpoint.is_undecided() {
            if self.may_connect(Duration::MAX, watch)? {
                let mut settings = self.endpoint.settings()?;
                if let Err(fault) = self.decide(&mut settings, watch)? {
                    self.endure(fault, watch)?;
                }
            }
        }
        Ok(&self.endpoint)
    }

    /// Asks the server what it is, if the endpoint leaves that open.
    fn decide(&mut self, settings: &mut Settings, watch: &mut dyn Watch) -> Result<std::result::Result<(), Fault>> {
        if !self.endpoint.is_undecided() {
            return Ok(Ok(()));
        }
        match block_on(decide(&mut self.endpoint, settings, watch)) {
            Ok(first) => {
                self.first = first;
                self.servers = ServerLookup::new(&self.endpoint);
                Ok(Ok(()))
            }
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => Ok(Err(fault)),
        }
    }

    /// Connects. `None`: the attempt failed and must be repeated. `prepare` has the socket to itself before a session does.
    pub(crate) fn connect(
        &mut self,
        watch: &mut dyn Watch,
        prepare: impl FnOnce(&mut Transport, Allowed, &mut dyn Watch) -> std::result::Result<(), Trouble>,
    ) -> Result<Option<Channel>> {
        let mut settings = self.settings()?;
        let began = Instant::now();
        let until = began.checked_add(settings.connect_timeout).unwrap_or(began);
        if let Err(fault) = self.decide(&mut settings, watch)? {
            return self.endure(fault, watch).map(|()| None);
        }
        let connected = match (self.first.take(), &self.node) {
            (Some(first), _) => Ok(first),
            (None, None) => block_on(connect_with(&mut self.servers, &self.endpoint, &settings, watch)),
            (None, Some(node)) => {
                block_on(connect_to_node(&self.endpoint, &settings, node, self.endpoint.first_streams(), watch))
            }
        };
        let mut transport = match connected {
            Ok(transport) => transport,
            Err(ConnectError::Interrupted) => return Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => return self.endure(fault, watch).map(|()| None),
        };
        let allowed = Allowed { silence: settings.command_timeout, until };
        if let Err(trouble) = prepare(&mut transport, allowed, watch) {
            transport.abort();
            return match self.naming(trouble) {
                Trouble::Fault(fault) => self.endure(fault, watch).map(|()| None),
                Trouble::Error(error) => Err(error),
            };
        }
        self.outage.connected();
        self.counters.connected();
        Ok(Some(Channel::new(transport, settings.command_timeout)))
    }

    /// The same trouble; a timeout names the server.
    pub(crate) fn naming(&self, mut trouble: Trouble) -> Trouble {
        if let Trouble::Fault(fault) = &mut trouble
            && fault.code == code::TIMEOUT
        {
            fault.message = format!("{}: {}", self.endpoint, fault.message);
        }
        trouble
    }

    /// Receives what has arrived, then sends what the socket accepts. Returns whether any bytes moved.
    pub(crate) fn step(
        &mut self,
        channel: &mut Channel,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Fault> {
        let now = Instant::now();
        if self.servers.is_due(now)
            && let Err(ConnectError::Fault(switched)) = block_on(self.servers.check(&self.endpoint, now, watch))
        {
            return Err(switched);
        }
        let received = self.receive(channel, session, watch)?;
        match self.send(channel) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last reply may have arrived already, and explains more than a broken pipe.
                while self.receive(channel, session, watch)? {}
                Err(fault)
            }
        }
    }

    /// Receives what has arrived. Returns whether any bytes did, or have yet to be read.
    fn receive(
        &mut self,
        channel: &mut Channel,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Fault> {
        let Some(received) = channel.receive(session)? else { return Ok(false) };
        self.counters.bytes_received.add(received.bytes as u64);
        if received.is_progress {
            self.answered(Instant::now(), watch);
        }
        Ok(true)
    }

    /// Notes that a reply arrived, or a piece of one: an outage has ended.
    fn answered(&mut self, now: Instant, watch: &mut dyn Watch) {
        self.redirects = 0;
        if let Some(ended) = self.outage.answered(now) {
            self.count_wait();
            self.counted = None;
            let (endpoint, tries, took) = (&self.endpoint, ended.tries, ended.took);
            watch.retry_ended(&RetryEnd { endpoint, is_reading: true, tries, took, failure: None });
        }
    }

    /// Sends what the socket accepts. Returns whether any bytes moved.
    pub(super) fn send(&self, channel: &mut Channel) -> std::result::Result<bool, Fault> {
        let (moved, is_request) = channel.send()?;
        if is_request {
            self.counters.requests.add(1);
        }
        Ok(moved)
    }

    /// Notes that the connection was lost. Its requests are repeated on another one.
    pub(crate) fn lose(&mut self, fault: Fault, watch: &mut dyn Watch) -> Result<()> {
        self.counters.lost_connection();
        self.endure(fault, watch)
    }

    /// Counts the current wait for the server up to this moment.
    fn count_wait(&mut self) {
        if let Some(counted) = &mut self.counted {
            let now = Instant::now();
            self.counters.waited(now.saturating_duration_since(*counted));
            *counted = now;
        }
    }

    /// Counts a redirect, if one more in a row is allowed.
    pub(crate) fn may_follow(&mut self) -> bool {
        let may = self.endpoint.cluster().is_some_and(|cluster| self.redirects < cluster.max_redirects);
        self.redirects += u32::from(may);
        may
    }

    /// Schedules another attempt, or returns the error for the caller.
    pub(crate) fn endure(&mut self, mut fault: Fault, watch: &mut dyn Watch) -> Result<()> {
        if self.endpoint.cluster().is_some() && fault.code == "ASK" {
            // The other node is still taking the stream over.
            fault.code = "TRYAGAIN".into();
        }
        self.count_wait();
        let endpoint = &self.endpoint;
        let failure = Classifier::default().failure(&fault, Written::No);
        match self.outage.faulted(&fault, Instant::now(), random::jitter()) {
            After::Again(began) => {
                if let Some(left) = began {
                    self.counted = Some(Instant::now());
                    self.counters.retry_waits.add(1);
                    watch.retry_began(&RetryWait { endpoint, messages: None, left, failure: &failure });
                }
                Ok(())
            }
            After::Failure(None) => Err(failed(&fault)),
            After::Failure(Some(ended)) => {
                self.counted = None;
                let (tries, took) = (ended.tries, ended.took);
                watch.retry_ended(&RetryEnd { endpoint, is_reading: true, tries, took, failure: Some(&failure) });
                let failure = failure.given_up(tries, took);
                Err(failed(&Fault { message: failure.message, ..fault }))
            }
        }
    }

    /// Ends the connections that no session uses; `is_parents`: they belong to the process that this one was forked from.
    pub(crate) fn close(&mut self, is_parents: bool) {
        match self.first.take() {
            Some(transport) if is_parents => transport.forget(),
            Some(transport) => transport.close(),
            None => {}
        }
        if is_parents {
            self.servers.forget();
        }
    }
}

/// Waits briefly, at most for `most`, and asks the watch.
fn doze(most: Duration, watch: &mut dyn Watch) -> Result<()> {
    thread::sleep(most.min(WATCH_EVERY));
    if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// The error of a call that failed with this fault.
fn failed(fault: &Fault) -> Error {
    if code::is_away(&fault.code) {
        return Error::lost(&fault.code, &fault.message);
    }
    Error::refusal(fault)
}
