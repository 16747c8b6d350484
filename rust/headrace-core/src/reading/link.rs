//! The socket of a reading session: opens it, moves its bytes, waits for it, and replaces it.

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
    ConnectError, Progress, ServerChange, ServerLookup, Transport, Wanted, Watch, block_on, connect_to_node,
    connect_with, decide,
};
use crate::random;
use crate::retry::{RetryEnd, RetryPolicy, RetryWait};

/// How long one wait may last before the caller is asked whether to continue: Ctrl-C must be noticed within 0.1 s.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(50);

/// Why a connection cannot be used: a fault, which may be temporary, or an error for the caller.
pub(crate) enum Trouble {
    Fault(Fault),
    Error(Error),
}

/// How long a new connection may take for what it asks first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    /// `command_timeout`, for each reply.
    pub(crate) silence: Duration,
    /// When the `connect_timeout` of the attempt is over.
    pub(crate) until: Instant,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The socket, and when another one may replace it.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    /// The connection that showed what the server is, until it is used for reading.
    first: Option<Transport>,
    open: Option<(Transport, Duration)>,
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
    progress: Progress,
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
            open: None,
            servers,
            node: None,
            outage,
            longest: None,
            redirects: 0,
            counters,
            counted: None,
            progress: Progress::new(now),
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

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Directs the next connection to this node. Reports to `watch` if that is another node than before.
    pub(crate) fn lead_to(&mut self, node: &Node, watch: &mut dyn Watch) {
        if let Some(last) = self.node.replace(node.clone()).filter(|last| last != node) {
            let change = ServerChange::StreamMoved { from: last.to_string(), to: node.to_string() };
            watch.server_changed(&self.endpoint, &change);
        }
    }

    /// Gives the connection to `other`, whose session asks next. No reply may be due on it.
    pub(crate) fn pass_on(&mut self, other: &mut Self) {
        other.open = self.open.take();
        other.progress.made(Instant::now());
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

    /// Connects, or notes that the attempt failed and must be repeated. `prepare` has the socket to itself before the session
    /// does.
    pub(crate) fn connect(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
        prepare: impl FnOnce(&mut Transport, Allowed, &mut dyn Watch) -> std::result::Result<(), Trouble>,
    ) -> Result<()> {
        let mut settings = self.settings()?;
        let began = Instant::now();
        let until = began.checked_add(settings.connect_timeout).unwrap_or(began);
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
        let allowed = Allowed { silence: settings.command_timeout, until };
        if let Err(trouble) = prepare(&mut transport, allowed, watch) {
            transport.abort();
            return match trouble {
                Trouble::Fault(fault) if fault.code == code::TIMEOUT => {
                    let message = format!("{}: {}", self.endpoint, fault.message);
                    self.endure(Fault { message, ..fault }, watch)
                }
                Trouble::Fault(fault) => self.endure(fault, watch),
                Trouble::Error(error) => Err(error),
            };
        }
        self.open = Some((transport, settings.command_timeout));
        self.outage.connected();
        self.counters.connected();
        self.progress.made(Instant::now());
        session.disconnected();
        Ok(())
    }

    /// Gives `ask` the socket while no reply to the session is due. `None`: there is no connection. A fault must be passed to
    /// [`lose`](Self::lose).
    pub(crate) fn consult<T>(
        &mut self,
        watch: &mut dyn Watch,
        ask: impl FnOnce(&mut Transport, Duration, &mut dyn Watch) -> std::result::Result<T, Trouble>,
    ) -> Option<std::result::Result<T, Trouble>> {
        let (transport, silence) = self.open.as_mut()?;
        let found = ask(transport, *silence, watch);
        self.progress.made(Instant::now());
        Some(found)
    }

    /// Receives what has arrived, then sends what the socket accepts. Returns whether any bytes moved.
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
        let received = self.receive(session, watch)?;
        match self.send(session) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last reply may have arrived already, and explains more than a broken pipe.
                while self.receive(session, watch)? {}
                Err(fault)
            }
        }
    }

    /// Receives what has arrived. Returns whether any bytes did, or have yet to be read.
    fn receive(
        &mut self,
        session: &mut (impl Exchange + ?Sized),
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.open else { return Ok(false) };
        let goes_on = session.is_suspended();
        let count = if goes_on { 0 } else { transport.receive(session.space())? };
        if count == 0 && !goes_on {
            return Ok(false);
        }
        self.counters.bytes_received.add(count as u64);
        let (started, due) = (Instant::now(), session.due());
        session.received(count)?;
        let now = Instant::now();
        session.took(Duration::ZERO, now - started);
        let is_answered = session.due() < due;
        if is_answered {
            self.progress.made(now);
        }
        if is_answered || self.progress.moved(count, now) {
            self.answered(now, watch);
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
    pub(crate) fn send(&mut self, session: &mut (impl Exchange + ?Sized)) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.open else { return Ok(false) };
        let mut moved = transport.push()? > 0;
        let is_request = !session.unsent().is_empty();
        let mut bytes = 0;
        while !session.unsent().is_empty() {
            let count = transport.send(session.unsent())?;
            if count == 0 {
                break;
            }
            session.sent(count);
            bytes += count;
            moved = true;
        }
        if is_request && session.unsent().is_empty() {
            self.counters.requests.add(1);
            self.progress.made(Instant::now());
        } else if bytes > 0 {
            self.progress.moved(bytes, Instant::now());
        }
        Ok(moved)
    }

    /// How long the server may still take to make progress; a fault if it took too long. `None`: no reply is due.
    pub(crate) fn patience(
        &self,
        session: &(impl Exchange + ?Sized),
        now: Instant,
    ) -> Option<std::result::Result<Duration, Fault>> {
        let (_, command_timeout) = self.open.as_ref().filter(|_| session.awaits_reply())?;
        let patience = *command_timeout + session.blocks_for();
        let silent = self.progress.age(now);
        if silent < patience {
            return Some(Ok(patience.saturating_sub(silent)));
        }
        let seconds = silent.as_secs_f64();
        let message = format!("{} sent no complete reply for {seconds:.3} s", self.endpoint);
        Some(Err(Fault::new(code::TIMEOUT, message)))
    }

    /// The socket, and the events to wait for.
    pub(crate) fn socket(&mut self, session: &(impl Exchange + ?Sized)) -> Option<(&mut Transport, Wanted)> {
        let (transport, _) = self.open.as_mut()?;
        let writable = !session.unsent().is_empty() || transport.wants_write();
        Some((transport, Wanted { bytes: 1, writable }))
    }

    /// Waits until the socket is ready, at most for `most`; gives up on a server that was silent for too long.
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

    /// Gives up the connection. Its requests are repeated on another one.
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

    /// Whether the fault means that another node of the cluster has the stream; the next connection goes to that node. If the
    /// node is still taking the stream over, the link waits for it.
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

    /// Schedules another attempt, or returns the error for the caller.
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

    /// Drops the connection, which belongs to the process that this one was forked from. The session must not be used afterwards.
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
            // The rest of a reply in progress is of no use.
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

/// Waits for more entries, without requesting any.
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
