//! Work of a lane that asks servers, one question after the other: opens its socket, finds its node, follows redirects.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::clock;
use super::super::dedup::{Dedup, ROWS_PER_PRODUCER};
use super::super::lane::Link;
use super::super::preflight::Requirement;
use super::super::preparation::{Ended, Groups, OnFailure, Opened, Preparation, Registry};
use super::Sender;
use crate::cluster::{ClusterMap, Redirect};
use crate::connection::Detour;
use crate::endpoint::Settings;
use crate::error::{Error, Fault, Result, Written, code};
use crate::net::{ConnectError, ServerLookup, TooFewReplicas, Transport, Watch};
use crate::net::{ask_any, ask_connected, confirm, connect_with, decide, is_redirect};

/// The shortest interval at which the nodes of a cluster are asked which of them has which slots because they redirect messages.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Work for a lane that asks servers, one question after the other, instead of waiting for its socket to become ready.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Open its socket, or start to do so.
    Open,
    /// Ask where its messages go, because no socket to its node could be opened.
    Reopen(NotOpened),
    /// End the call, as the caller's own code requests when it is asked for a password.
    Interrupt,
    /// Continue with the nodes that the server named for what it refused.
    Follow(Vec<Detour>),
    /// Ask the sentinels which server is the master.
    CheckMaster,
}

/// A socket to a node that could not be opened.
#[derive(Debug)]
pub(crate) struct NotOpened {
    fault: Fault,
    /// The time up to which further tries are allowed.
    until: Instant,
}

impl Sender {
    /// Runs an errand for a lane. `dedup`: which rows its server will get.
    pub(crate) async fn run(
        &mut self,
        at: usize,
        errand: Errand,
        dedup: &Dedup,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        match errand {
            Errand::Open => self.open(at, dedup, deadline, watch).await,
            Errand::Reopen(failed) => self.reopen(at, failed, dedup, deadline, watch).await,
            Errand::Interrupt => Err(Error::Interrupted),
            Errand::Follow(detours) => self.follow(at, &detours, Instant::now(), watch).await,
            Errand::CheckMaster => self.check_master(Instant::now(), watch).await,
        }
    }

    /// Opens the socket of a lane. If that fails, every message that waits for it fails, and so does the rest of the batch. In a
    /// cluster, this only starts the opening: other lanes continue meanwhile.
    async fn open(&mut self, at: usize, dedup: &Dedup, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        match self.open_socket(at, dedup, deadline, watch).await {
            Ok(Some(opened)) => self.use_socket(at, opened, watch),
            Ok(None) => {}
            Err(ConnectError::Interrupted) => return Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => self.not_opened(at, &fault),
        }
        Ok(())
    }

    /// Uses the open socket for a lane.
    fn use_socket(&mut self, at: usize, opened: Opened, watch: &mut dyn Watch) {
        let Self { endpoint, lanes, outcomes, changes, .. } = self;
        let counters = outcomes.recorder.counters();
        if let Some((wanted, count)) = opened.too_few.filter(|_| counters.connections.get() == 0) {
            watch.too_few_replicas(&TooFewReplicas { endpoint, wanted, count });
        }
        self.opened += 1;
        changes.note(lanes.get_mut(at).opened(opened, self.opened, counters, Instant::now()));
    }

    /// Notes that a lane got no socket.
    fn not_opened(&mut self, at: usize, fault: &Fault) {
        let (lane, mut cx) = self.lane(at, Instant::now());
        lane.not_opened(fault, &mut cx);
    }

    /// The settings for a connect that ends with the call.
    fn settings_until(&self, deadline: Option<Instant>) -> std::result::Result<Settings, Fault> {
        let settings = self.endpoint.settings().map_err(|error| Fault::new(code::CONFIG, error.to_string()));
        let mut settings: Settings = settings?;
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            settings.connect_timeout = settings.connect_timeout.min(left);
        }
        Ok(settings)
    }

    /// Opens a socket. `None`: it is being opened, or what waited for the lane now waits for another one.
    async fn open_socket(
        &mut self,
        at: usize,
        dedup: &Dedup,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Opened>, ConnectError> {
        let mut settings = self.settings_until(deadline)?;
        let until = Instant::now() + settings.connect_timeout;
        let first = self.decide(&mut settings, dedup, watch).await?;
        if !self.lanes.is_of_cluster() {
            let transport = match first {
                Some(transport) => transport,
                None => connect_with(&mut self.servers, &self.endpoint, &settings, watch).await?,
            };
            let mut preparation = self.preparation(at, settings, dedup);
            let opened = preparation.run(transport, Some(&mut self.servers), until, watch).await;
            self.learn(&preparation);
            return opened.map(Some);
        }
        let was_located = self.located.is_some();
        if !was_located && !self.locate(at, &settings, watch).await? {
            return Ok(None);
        }
        settings.connect_timeout = until.saturating_duration_since(Instant::now()) / if was_located { 2 } else { 1 };
        let on_failure = if was_located { OnFailure::AskOthers } else { OnFailure::AskAfterRedirect };
        self.begin_opening(at, settings, dedup, until, on_failure)?;
        Ok(None)
    }

    /// Starts to open a socket to the node of a lane.
    fn begin_opening(
        &mut self,
        at: usize,
        settings: Settings,
        dedup: &Dedup,
        until: Instant,
        on_failure: OnFailure,
    ) -> std::result::Result<(), Fault> {
        let Some(node) = self.lanes.get(at).node().cloned() else {
            return Err(Fault::new(code::NO_SLOT, format!("no node has slot {}", self.lanes.home_slot())));
        };
        let opening = self.preparation(at, settings, dedup).open(node, until, on_failure);
        self.lanes.get_mut(at).link = Link::Opening(Box::new(opening));
        Ok(())
    }

    /// Continues with the socket of a lane, if it is being opened. `Pending`: there is nothing to do but wait. `Ready`: it is
    /// open, or this errand must be run.
    pub(super) fn go_on_opening(&mut self, at: usize, watch: &mut dyn Watch) -> Poll<Option<Errand>> {
        let polled = self.lanes.get_mut(at).poll_opening(&mut self.waits, watch);
        let Poll::Ready(ended) = polled else { return Poll::Pending };
        let Ended { until, on_failure, .. } = ended;
        Poll::Ready(match self.ended(at, ended) {
            Ok(opened) => {
                self.use_socket(at, opened, watch);
                None
            }
            Err(ConnectError::Interrupted) => Some(Errand::Interrupt),
            Err(ConnectError::Fault(fault)) => match on_failure {
                OnFailure::AskAfterRedirect if is_redirect(&fault) => Some(Errand::Reopen(NotOpened { fault, until })),
                OnFailure::AskOthers => Some(Errand::Reopen(NotOpened { fault, until })),
                OnFailure::AskAfterRedirect | OnFailure::Fail => {
                    self.not_opened(at, &fault);
                    None
                }
            },
        })
    }

    /// Fails a lane if the opening of its socket has failed by now.
    pub(super) fn end_opening(&mut self, at: usize, watch: &dyn Watch) {
        let polled = self.lanes.get_mut(at).poll_opening(&mut self.waits, watch);
        let Poll::Ready(ended) = polled else { return };
        if let Err(ConnectError::Fault(fault)) = self.ended(at, ended) {
            self.not_opened(at, &fault);
        }
    }

    /// The result of an opening, which is also recorded in the counters of the node.
    fn ended(&mut self, at: usize, ended: Ended) -> std::result::Result<Opened, ConnectError> {
        let Ended { preparation, opened, is_reached, .. } = ended;
        self.learn(&preparation);
        if let Err(ConnectError::Fault(fault)) = opened.as_ref().map(drop)
            && !is_reached
        {
            let change = self.lanes.get_mut(at).failed(fault, Instant::now(), clock::unix_millis());
            self.changes.note(change);
        }
        opened
    }

    /// Asks other nodes, because the node of a lane may be gone. If the node itself says that another one has the slot, the
    /// others may not have heard of that yet.
    async fn reopen(
        &mut self,
        at: usize,
        failed: NotOpened,
        dedup: &Dedup,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let NotOpened { fault, until } = failed;
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        match self.open_elsewhere(at, &fault, dedup, until, watch).await {
            Ok(()) => Ok(()),
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                self.not_opened(at, &fault);
                Ok(())
            }
        }
    }

    async fn open_elsewhere(
        &mut self,
        at: usize,
        fault: &Fault,
        dedup: &Dedup,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), ConnectError> {
        let settings = self.settings_until(Some(until))?;
        if let Some(node) = self.lanes.get(at).node() {
            if is_redirect(fault) {
                self.map.doubt(self.lanes.home_slot(), node);
            } else {
                self.map.lost(node);
            }
        }
        match self.locate(at, &settings, watch).await {
            Ok(false) => Ok(()),
            Ok(true) if is_redirect(fault) => {
                let settings = self.settings_until(Some(until))?;
                Ok(self.begin_opening(at, settings, dedup, until, OnFailure::Fail)?)
            }
            Err(ConnectError::Interrupted) => Err(ConnectError::Interrupted),
            Ok(true) | Err(ConnectError::Fault(_)) => Err(fault.clone().into()),
        }
    }

    /// The preparation of a new socket of a lane.
    fn preparation(&self, at: usize, settings: Settings, dedup: &Dedup) -> Preparation {
        let key = self.key_of(at, dedup).to_vec();
        let lane = self.lanes.get(at);
        // The node that hands its stream over was checked. Without ASKING, this one would answer nothing.
        let is_asking = lane.connection.is_asking(self.lanes.of_key(&key).0);
        let requirements =
            if is_asking { Vec::new() } else { self.requirements(&key, dedup, settings.command_timeout) };
        let keys = self.endpoint.shards().map(|shards| shards.keys()).unwrap_or_default();
        let shards = keys.iter().cloned().partition(|key| self.lanes.of_key(key).1 == at);
        Preparation {
            endpoint: self.endpoint.clone(),
            settings,
            map: self.map.clone(),
            node: lane.node().cloned(),
            is_home: at == self.lanes.home(),
            registry: self.registry,
            groups: self.groups,
            shards,
            key,
            requirements,
            durability: lane.connection.wait.as_ref().map(|wait| wait.durability.clone()),
            is_first: self.outcomes.recorder.counters().connections.get() == 0,
        }
    }

    /// Keeps what was learnt on a new socket.
    fn learn(&mut self, preparation: &Preparation) {
        if preparation.registry == Registry::Seen {
            self.registry = Registry::Seen;
        }
        if preparation.groups == Groups::Created {
            self.groups = Groups::Created;
        }
    }

    /// Determines whether the server is a node of a cluster, if the endpoint leaves that open. Returns the connection to it if it
    /// is not.
    async fn decide(
        &mut self,
        settings: &mut Settings,
        dedup: &Dedup,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Transport>, ConnectError> {
        if !self.endpoint.is_undecided() {
            return Ok(None);
        }
        let first = decide(&mut self.endpoint, settings, watch).await?;
        self.rules.max_redirects = self.endpoint.cluster().map(|cluster| cluster.max_redirects);
        self.servers = ServerLookup::new(&self.endpoint);
        self.map = ClusterMap::new(self.endpoint.node_map());
        if self.rules.max_redirects.is_none() {
            self.lanes.leave_cluster(self.rules.retry.is_some() || matches!(dedup, Dedup::Script(_)));
        }
        Ok(first)
    }

    /// The key of a stream of the lane: the endpoint's if it does not matter which.
    fn key_of<'a>(&'a self, at: usize, dedup: &'a Dedup) -> &'a [u8] {
        let keys = match dedup {
            Dedup::Script(script) if self.lanes.is_of_cluster() => Some(script.batch.stream_keys()),
            Dedup::Script(_) | Dedup::Off | Dedup::Idmp(_) => None,
        };
        let of_lane = keys.into_iter().flatten().find(|key| self.lanes.of_key(key).1 == at);
        let own = self.endpoint.stream_keys().iter().find(|key| self.lanes.of_key(key).1 == at);
        of_lane.or(own.map(Vec::as_slice)).unwrap_or_else(|| self.endpoint.stream_key())
    }

    /// Asks the nodes which of them has which slots, and moves what waits for the lane accordingly: nothing of it is in flight.
    /// Returns whether anything is left for it.
    async fn locate(
        &mut self,
        at: usize,
        settings: &Settings,
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, ConnectError> {
        self.outcomes.recorder.counters().refreshes.add(1);
        let Self { lanes, map, .. } = self;
        let answered = match lanes.get_mut(at).socket_to_node() {
            Some((transport, node)) => {
                let answered = ask_connected(map, transport, settings, node, watch).await;
                if matches!(answered, Ok(None) | Err(ConnectError::Fault(_))) {
                    map.lost(node);
                }
                answered
            }
            None => Ok(None),
        };
        if answered.is_err() {
            // Its reply would be matched to the next command.
            self.renew(at, &Fault::new(code::RESET, "the node did not report which nodes have which slots"));
        }
        let moved = match answered {
            Ok(Some(moved)) => moved,
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            Ok(None) | Err(ConnectError::Fault(_)) => {
                ask_any(&mut self.map, &self.endpoint, settings, self.lanes.home_slot(), watch).await?
            }
        };
        let (map, replicas, now) = (self.map.owned(), self.map.replicas(), Instant::now());
        self.located = Some(now);
        if self.lanes.moves_unsent(at, &map) {
            let fault = Fault::new(code::NO_SLOT, "another node has the slot of the stream");
            let failure = self.failure(&fault, Written::No);
            let (lane, mut cx) = self.lane(at, now);
            lane.connection.take_back(&failure, &mut cx);
        }
        self.lanes.relocate(at, &map, now);
        self.changes.located(moved, &map, &replicas, &mut self.lanes, now);
        let connection = &self.lanes.get(at).connection;
        Ok(!connection.in_flight.is_empty() || !connection.retry.is_empty() || !connection.retry.is_active())
    }

    /// Continues with the nodes that the server named for what it refused.
    async fn follow(&mut self, at: usize, detours: &[Detour], now: Instant, watch: &mut dyn Watch) -> Result<()> {
        self.outcomes.recorder.counters().redirects.add(detours.len() as u64);
        if let Some(state) = &self.lanes.get(at).state {
            state.counters.redirects.add(detours.len() as u64);
        }
        let Self { map, lanes, .. } = self;
        let (known, unknown): (Vec<_>, Vec<_>) = detours
            .iter()
            .partition(|detour| lanes.get(at).node().is_some_and(|node| map.target(&detour.redirect, node).is_some()));
        if let (Some(detour), Some(node)) = (unknown.first(), lanes.get(at).node()) {
            map.doubt(lanes.slot(detour.route), node);
        }
        self.redirect(at, &known, now);
        let is_old = self.located.is_none_or(|located| now.saturating_duration_since(located) >= ASK_EVERY);
        if (is_old || !unknown.is_empty())
            && let Ok(settings) = self.endpoint.settings()
            && let Err(ConnectError::Interrupted) = self.locate(at, &settings, watch).await
        {
            return Err(Error::Interrupted);
        }
        for detour in unknown.iter().filter(|detour| detour.redirect.is_ask) {
            self.confirm(at, &detour.redirect, watch).await?;
        }
        // The nodes' answer has moved it, or it moves now, or it is sent to the same node again.
        self.redirect(at, &unknown, now);
        for detour in detours.iter().filter(|detour| !detour.redirect.is_ask) {
            let Self { map, lanes, changes, .. } = self;
            if let Some(node) = lanes.get(at).node()
                && let Some(target) = map.target(&detour.redirect, node)
                && let Some(moved) = map.moved_to(lanes.slot(detour.route), &target)
            {
                changes.slots_moved(moved, lanes);
            }
        }
        if self.lanes.is_deserted(at) {
            self.lanes.get_mut(at).close_socket();
        }
        Ok(())
    }

    /// Asks the node of a lane whether the cluster has the node to which it sent a command, if that node is listed nowhere.
    /// Nothing of the lane is in flight.
    async fn confirm(&mut self, at: usize, redirect: &Redirect, watch: &mut dyn Watch) -> Result<()> {
        let Self { map, lanes, endpoint, .. } = self;
        let Some((transport, node)) = lanes.get_mut(at).socket_to_node() else { return Ok(()) };
        if map.target(redirect, node).is_some() {
            return Ok(());
        }
        let Ok(settings) = endpoint.settings() else { return Ok(()) };
        match confirm(map, transport, &settings, redirect, node, watch).await {
            Ok(()) => Ok(()),
            Err(ConnectError::Interrupted) => {
                // Its reply would be matched to the next command.
                self.renew(at, &Fault::new(code::INTERRUPTED, "the call was interrupted"));
                Err(Error::Interrupted)
            }
            Err(ConnectError::Fault(fault)) => {
                self.renew(at, &fault);
                Ok(())
            }
        }
    }

    /// Moves what waits of these slots and streams to the nodes that the server named, if the cluster has listed them.
    fn redirect(&mut self, at: usize, detours: &[&Detour], now: Instant) {
        let Some(node) = self.lanes.get(at).node() else { return };
        let target = |detour: &Detour| self.map.target(&detour.redirect, node);
        let known: Vec<_> = detours.iter().filter_map(|detour| Some((*detour, target(detour)?))).collect();
        self.lanes.redirect(at, &known, now);
    }

    /// Asks the sentinels. If they name another master, the socket is no longer of use: what was sent on it may be lost.
    async fn check_master(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<()> {
        match self.servers.check(&self.endpoint, now, watch).await {
            Ok(()) => Ok(()),
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => {
                let (lane, mut cx) = self.lane(0, Instant::now());
                lane.disconnect(&fault.into(), &mut cx);
                Ok(())
            }
        }
    }

    /// What a server must support before it gets messages, the first of them for this key.
    fn requirements(&self, key: &[u8], dedup: &Dedup, command_timeout: Duration) -> Vec<Requirement> {
        let dedup = match dedup {
            Dedup::Off => None,
            Dedup::Script(script) => Some(Requirement::Script { marker_key: script.batch.marker_key(key) }),
            // A message that is sent again at the last moment was first sent before its server was found to be silent.
            Dedup::Idmp(ids) => Some(Requirement::Idmp {
                duration: ids.remembered.saturating_add(command_timeout),
                rows: ROWS_PER_PRODUCER,
            }),
        };
        let wait = self.lanes.get(0).connection.wait.as_ref().map(|wait| Requirement::Wait(wait.durability.clone()));
        dedup.into_iter().chain(wait).collect()
    }

    /// Ends the socket of a lane between commands, so that another one is opened when it is needed.
    fn renew(&mut self, at: usize, fault: &Fault) {
        let (lane, mut cx) = self.lane(at, Instant::now());
        lane.renew(fault, &mut cx);
    }
}
