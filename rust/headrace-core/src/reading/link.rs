//! The server of a reading session: where it is, when to connect to it, and what its caller is told of an outage.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attempt::{Attempt, Attempted, Prepare};
use super::channel::Channel;
use super::exchange::Exchange;
use super::outage::{After, Outage};
use super::trouble::Trouble;
use crate::cluster::Node;
use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Fault, Result, Written, code};
use crate::net::{ConnectError, MasterCheck, Opening, ServerChange, ServerLookup, Watch};
use crate::random;
use crate::retry::{RetryEnd, RetryWait};

/// How long one wait may last before the caller is asked whether to continue: Ctrl-C must be noticed within 0.1 s.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// The server of a session, and when to connect to it again.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    /// `None`: an attempt to connect has them.
    servers: Option<ServerLookup>,
    /// The node to connect to, if links share their connections.
    node: Option<Node>,
    outage: Outage,
    /// The number of consecutive redirects from one node of a cluster to another.
    redirects: u32,
    counters: Arc<ReadCounters>,
    /// The time up to which the current wait is counted, if there is one.
    counted: Option<Instant>,
    /// When the watch was last asked.
    watched: Instant,
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, outage: Outage, counters: Arc<ReadCounters>) -> Self {
        let now = Instant::now();
        Self { endpoint, servers: None, node: None, outage, redirects: 0, counters, counted: None, watched: now }
    }

    /// The endpoint as its server describes it, once there has been a connection: part of a cluster or not.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The node to connect to, in a cluster.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Directs the next connection to this node. Reports to `watch` if that is another node than before.
    pub(crate) fn set_node(&mut self, node: &Node, watch: &mut dyn Watch) {
        if let Some(last) = self.node.replace(node.clone()).filter(|last| last != node) {
            let change = ServerChange::StreamMoved { from: last.to_string(), to: node.to_string() };
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Asks the watch whether the call must end, unless it was asked recently.
    pub(crate) fn check_interrupt(&mut self, watch: &mut dyn Watch) -> Result<()> {
        let now = Instant::now();
        if now.saturating_duration_since(self.watched) >= WATCH_EVERY {
            self.watched = now;
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// When to connect, if connecting is put off; `None`: immediately.
    pub(crate) fn next_try(&mut self) -> Option<Instant> {
        let next = self.outage.next();
        if next.is_some() {
            self.count_wait();
        }
        next
    }

    /// Begins to connect. `prepare` has the connection to itself before a session does.
    pub(crate) fn open<P: Prepare>(&mut self, prepare: P) -> Opening<Attempted<P::Found>> {
        let attempt = Attempt {
            endpoint: self.endpoint.clone(),
            servers: self.servers.take().unwrap_or_else(|| ServerLookup::new(&self.endpoint)),
            node: self.node.clone(),
        };
        attempt.start(prepare)
    }

    /// The new connection, and what was found out on it. `None`: the attempt failed and must be repeated; or its endpoint is
    /// part of a cluster now, so that another session must be made for each slot.
    pub(crate) fn opened<F>(&mut self, attempted: Attempted<F>, watch: &mut dyn Watch) -> Result<Option<(Channel, F)>> {
        let Attempted { connected, endpoint, mut servers } = attempted;
        if let Some(change) = servers.take_change() {
            watch.server_changed(&self.endpoint, &change);
        }
        (self.endpoint, self.servers) = (endpoint, Some(servers));
        match connected {
            Ok(None) => Ok(None),
            Ok(opened) => {
                self.outage.connected();
                self.counters.connected();
                Ok(opened)
            }
            Err(Trouble::Fault(fault)) => self.schedule_retry(fault, watch).map(|()| None),
            Err(Trouble::Error(error)) => Err(error),
        }
    }

    /// Begins to ask the sentinels, if there are any and it is time, whether the server is still the right one.
    pub(super) fn begin_check(&mut self) -> Option<Opening<MasterCheck>> {
        self.servers.as_mut()?.begin_check(&self.endpoint, Instant::now())
    }

    /// Notes what they replied. Fails if another server is the right one.
    pub(super) fn checked(&mut self, check: MasterCheck) -> std::result::Result<(), Fault> {
        match self.servers.as_mut().map(|servers| servers.checked(check)) {
            Some(Err(ConnectError::Fault(switched))) => Err(switched),
            Some(Ok(()) | Err(ConnectError::Interrupted)) | None => Ok(()),
        }
    }

    /// When to ask them next.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.servers.as_ref()?.due()
    }

    /// Receives what has arrived, then sends what the socket accepts. Returns whether any bytes moved.
    pub(crate) fn step(
        &mut self,
        channel: &mut Channel,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Fault> {
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
        if received.is_progress && session.ends_outage() {
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
        self.schedule_retry(fault, watch)
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
    pub(crate) fn schedule_retry(&mut self, mut fault: Fault, watch: &mut dyn Watch) -> Result<()> {
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

    /// Drops the connection to a sentinel: it belongs to the process that this one was forked from.
    pub(super) fn forget(&mut self) {
        if let Some(servers) = &mut self.servers {
            servers.forget();
        }
    }
}

/// The error of a call that failed with this fault.
pub(crate) fn failed(fault: &Fault) -> Error {
    if code::is_away(&fault.code) {
        return Error::lost(&fault.code, &fault.message);
    }
    Error::refusal(fault)
}
