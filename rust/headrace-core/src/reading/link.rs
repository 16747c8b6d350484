//! The socket of a session that reads: opens it, moves its bytes, waits for it, and replaces it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::exchange::Exchange;
use super::outage::{After, Outage};
use crate::cluster::Redirect;
use crate::counters::ReadCounters;
use crate::endpoint::{Endpoint, Node, Settings};
use crate::error::{Classifier, Error, Fault, Result, Written, code};
use crate::net::{
    ConnectError, ServerChange, ServerLookup, Transport, Wanted, Watch, block_on, connect_to_node, connect_with, decide,
};
use crate::random;
use crate::retry::{RetryEnd, RetryPolicy, RetryWait};

/// How long one wait may last before the caller is asked whether to go on: Ctrl-C must be noticed within 0.1 s.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// What kept a connection from being of use: a fault, which may pass, or an error for the caller.
pub(crate) enum Trouble {
    Fault(Fault),
    Error(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The socket, and when another one may take its place.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    /// The connection that showed what the server is, until it is used.
    first: Option<Transport>,
    open: Option<(Transport, Duration)>,
    servers: ServerLookup,
    /// The node to connect to, where links share their connections.
    node: Option<Node>,
    outage: Outage,
    /// How long a try to connect may take, if that is less than the endpoint allows.
    longest: Option<Duration>,
    /// How often in a row a node of a cluster named another one.
    redirects: u32,
    counters: Arc<ReadCounters>,
    /// Until when the wait for the server was counted, if there is one now.
    counted: Option<Instant>,
    /// When bytes last moved.
    used: Instant,
    /// When the watch was asked last.
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
            open: None,
            servers,
            node: None,
            outage,
            longest: None,
            redirects: 0,
            counters,
            counted: None,
            used: now,
            watched: now,
        }
    }

    /// The same, but that a try to connect takes no longer, for others wait meanwhile.
    pub(crate) fn connecting_for(self, longest: Option<Duration>) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What a try to connect needs of the endpoint, as it is now.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut settings = self.endpoint.settings()?;
        settings.connect_timeout =
            self.longest.map_or(settings.connect_timeout, |most| most.min(settings.connect_timeout));
        Ok(settings)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The next connection goes to this node. Reports to `watch` if that is another one than before.
    pub(crate) fn lead_to(&mut self, node: &Node, watch: &mut dyn Watch) {
        if let Some(last) = self.node.replace(node.clone()).filter(|last| last != node) {
            let change = ServerChange::StreamMoved { from: last.to_string(), to: node.to_string() };
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Gives the connection to `other`, whose session asks next. No reply is to come on it.
    pub(crate) fn pass_on(&mut self, other: &mut Self) {
        other.open = self.open.take();
        other.used = Instant::now();
    }

    /// Asks the watch, if it was not asked for a while.
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

    /// Waits for a moment, at most for `most`, if it is too early to connect; returns whether it is time.
    pub(crate) fn may_connect(&mut self, most: Duration, watch: &mut dyn Watch) -> Result<bool> {
        let left = self.outage.next().map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        if !left.is_zero() {
            let dozed = doze(left.min(most), watch);
            self.count_wait();
            dozed?;
        }
        Ok(left.is_zero())
    }

    /// When to connect, while that is put off; `None`: at once.
    pub(crate) fn next_try(&mut self) -> Option<Instant> {
        let next = self.outage.next();
        if next.is_some() {
            self.count_wait();
        }
        next
    }

    /// The endpoint as its server says that it is: of a cluster or not. Waits for the server as the policy says.
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

    /// Connects, or notes that it failed and is to be tried again. `prepare` has the socket to itself before the session does.
    pub(crate) fn connect(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
        prepare: impl FnOnce(&mut Transport, Duration, &mut dyn Watch) -> std::result::Result<(), Trouble>,
    ) -> Result<()> {
        let mut settings = self.settings()?;
        if let Err(fault) = self.decide(&mut settings, watch)? {
            return self.endure(fault, watch);
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
            Err(ConnectError::Fault(fault)) => return self.endure(fault, watch),
        };
        if let Err(trouble) = prepare(&mut transport, settings.command_timeout, watch) {
            transport.abort();
            return match trouble {
                Trouble::Fault(fault) => self.endure(fault, watch),
                Trouble::Error(error) => Err(error),
            };
        }
        self.open = Some((transport, settings.command_timeout));
        self.outage.connected();
        self.counters.connected();
        self.used = Instant::now();
        session.disconnected();
        Ok(())
    }

    /// `ask` has the socket to itself, while no reply to the session is to come. `None`: there is no connection. A fault is to be
    /// passed to [`lose`](Self::lose).
    pub(crate) fn consult<T>(
        &mut self,
        watch: &mut dyn Watch,
        ask: impl FnOnce(&mut Transport, Duration, &mut dyn Watch) -> std::result::Result<T, Trouble>,
    ) -> Option<std::result::Result<T, Trouble>> {
        let (transport, silence) = self.open.as_mut()?;
        let found = ask(transport, *silence, watch);
        self.used = Instant::now();
        Some(found)
    }

    /// Receives what is there, then sends what the socket takes. Returns whether anything moved.
    pub(crate) fn step(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Fault> {
        let now = Instant::now();
        if self.servers.is_due(now)
            && let Err(ConnectError::Fault(switched)) = block_on(self.servers.check(&self.endpoint, now, watch))
        {
            return Err(switched);
        }
        let received = self.receive(session)?;
        if received && let Some(ended) = self.outage.answered(self.used) {
            self.count_wait();
            self.counted = None;
            let (endpoint, tries, took) = (&self.endpoint, ended.tries, ended.took);
            watch.retry_ended(&RetryEnd { endpoint, is_reading: true, tries, took, failure: None });
        }
        match self.send(session) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last words may be here already, and explain more than a broken pipe.
                while self.receive(session)? {}
                Err(fault)
            }
        }
    }

    fn receive(&mut self, session: &mut (impl Exchange + ?Sized)) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.open else { return Ok(false) };
        let goes_on = session.is_suspended();
        let count = if goes_on { 0 } else { transport.receive(session.space())? };
        if count > 0 || goes_on {
            self.counters.bytes_received.add(count as u64);
            let started = Instant::now();
            session.received(count)?;
            self.redirects = 0;
            self.used = Instant::now();
            session.took(Duration::ZERO, self.used - started);
        }
        Ok(count > 0 || goes_on)
    }

    /// Sends what the socket takes. Returns whether anything moved.
    pub(crate) fn send(&mut self, session: &mut (impl Exchange + ?Sized)) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.open else { return Ok(false) };
        let mut moved = transport.push()? > 0;
        let is_request = !session.unsent().is_empty();
        while !session.unsent().is_empty() {
            let count = transport.send(session.unsent())?;
            if count == 0 {
                break;
            }
            session.sent(count);
            moved = true;
        }
        if is_request && session.unsent().is_empty() {
            self.counters.requests.add(1);
        }
        if moved {
            self.used = Instant::now();
        }
        Ok(moved)
    }

    /// How long the server may go on being silent; a fault if it was for too long. `None`: no reply is to come.
    pub(crate) fn patience(
        &self,
        session: &(impl Exchange + ?Sized),
        now: Instant,
    ) -> Option<std::result::Result<Duration, Fault>> {
        let (_, command_timeout) = self.open.as_ref().filter(|_| session.awaits_reply())?;
        let patience = *command_timeout + session.blocks_for();
        let silent = now.saturating_duration_since(self.used);
        if silent < patience {
            return Some(Ok(patience.saturating_sub(silent)));
        }
        let seconds = silent.as_secs_f64();
        let message = format!("{} was silent for {seconds:.3} s while a reply was expected", self.endpoint);
        Some(Err(Fault::new(code::TIMEOUT, message)))
    }

    /// The socket, and what a wait for it is for.
    pub(crate) fn socket(&mut self, session: &(impl Exchange + ?Sized)) -> Option<(&mut Transport, Wanted)> {
        let (transport, _) = self.open.as_mut()?;
        let writable = !session.unsent().is_empty() || transport.wants_write();
        Some((transport, Wanted { bytes: 1, writable }))
    }

    /// Waits until the socket is ready, for at most `most`; gives up on a server that is silent for too long.
    pub(crate) fn wait(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        most: Duration,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let now = Instant::now();
        let patience = match self.patience(session, now) {
            None => return Ok(()),
            Some(Ok(patience)) => patience,
            Some(Err(fault)) => return self.lose(session, fault, watch),
        };
        let Some((transport, Wanted { writable, .. })) = self.socket(session) else { return Ok(()) };
        let timeout = WATCH_EVERY.min(patience).min(most);
        let ready = transport.wait(writable, timeout);
        session.took(now.elapsed(), Duration::ZERO);
        if ready.interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// The connection is of no further use. What was asked for is asked for again, on another one.
    pub(crate) fn lose(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        fault: Fault,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        if self.is_open() {
            self.counters.lost_connection();
        }
        self.close(session, false);
        self.endure(fault, watch)
    }

    /// Counts the time of a wait for the server up to now.
    fn count_wait(&mut self) {
        if let Some(counted) = &mut self.counted {
            let now = Instant::now();
            self.counters.waited(now.saturating_duration_since(*counted));
            *counted = now;
        }
    }

    /// Counts a redirect, if there may be one more in a row.
    pub(crate) fn may_follow(&mut self) -> bool {
        let may = self.endpoint.cluster().is_some_and(|cluster| self.redirects < cluster.max_redirects);
        self.redirects += u32::from(may);
        may
    }

    /// Whether the fault is that another node of the cluster has the stream, which is the next one to connect to. One that only
    /// takes it over is waited for.
    fn follows(&mut self, fault: &mut Fault) -> bool {
        match &*fault.code {
            _ if self.endpoint.cluster().is_none() => false,
            "MOVED" if self.may_follow() => {
                if !Redirect::within(&fault.message).is_some_and(|redirect| self.servers.redirect(&redirect)) {
                    self.servers.refresh();
                }
                true
            }
            "ASK" => {
                fault.code = "TRYAGAIN".into();
                false
            }
            _ => false,
        }
    }

    /// The server is tried again, or the caller gets the error.
    pub(crate) fn endure(&mut self, mut fault: Fault, watch: &mut dyn Watch) -> Result<()> {
        if self.follows(&mut fault) {
            return Ok(());
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

    /// The connection belongs to the process that this one was forked from, and the session is of no further use.
    pub(crate) fn forget(&mut self) {
        self.drop_first(true);
        if let Some((transport, _)) = self.open.take() {
            transport.forget();
        }
        self.servers.forget();
    }

    /// Ends the connection that was not used yet.
    fn drop_first(&mut self, is_parents: bool) {
        match self.first.take() {
            Some(transport) if is_parents => transport.forget(),
            Some(transport) => transport.close(),
            None => {}
        }
    }

    /// Ends the connection; `is_parents`: it belongs to the process that this one was forked from.
    pub(crate) fn close(&mut self, session: &mut (impl Exchange + ?Sized), is_parents: bool) {
        self.drop_first(is_parents);
        match self.open.take() {
            Some((transport, _)) if is_parents => transport.forget(),
            // Nothing of the reply that is under way is of use.
            Some((transport, _)) if session.awaits_reply() => transport.abort(),
            Some((transport, _)) => transport.close(),
            None => {}
        }
        if is_parents {
            self.servers.forget();
        }
        session.disconnected();
    }
}

/// Waits for more entries, which are not asked for meanwhile.
pub(crate) fn wait_for_more(pause: Duration, watch: &mut dyn Watch) -> Result<()> {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        doze(left, watch)?;
    }
}

/// Waits for a moment, at most for `most`, and asks the watch.
fn doze(most: Duration, watch: &mut dyn Watch) -> Result<()> {
    thread::sleep(most.min(WATCH_EVERY));
    if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// The error of a call that met this fault.
fn failed(fault: &Fault) -> Error {
    let message = fault.message.clone();
    if code::is_away(&fault.code) {
        return Error::Connection { message };
    }
    Error::Command { code: fault.code.to_string(), kind: Classifier::default().kind(fault), message }
}
