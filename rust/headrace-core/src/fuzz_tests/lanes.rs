//! The connections of a producer to the nodes of a cluster, without sockets. The nodes reply in any order, refuse commands,
//! drop connections, reply late to WAIT, and hand slots over to each other, as a whole or stream by stream. Each message has
//! one true outcome, in the order of the messages. The messages of a stream are written in order, at the node that has the
//! stream, and WAIT confirms what the replicas of that node have.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;

use super::chance::Chance;
#[cfg(test)]
use super::runner::Runner;
use super::slow::{Reader, Stop};
use crate::cluster::{Node, slot};
use crate::command::Expect;
use crate::connection::{
    BatchState, Connection, Context, Detour, Disconnect, Limits, Numbers, Outcomes as _, Owner, RetryStep, Rules,
};
use crate::durability::Durability;
use crate::error::{Classifier, Fault, Written, code};
use crate::producer::{Lanes, OutcomeQueue};
use crate::resp::{write_array_header, write_bulk};
use crate::retry::RetryPolicy;

const TIMEOUT: Duration = Duration::from_secs(5);
const NODES: usize = 3;
/// The streams, and the slot of each; some share a slot.
const KEYS: [&[u8]; 6] = [b"{a}1", b"{a}2", b"{a}3", b"b", b"{c}1", b"{c}2"];
const SLOT_OF: [usize; KEYS.len()] = [0, 0, 0, 1, 2, 2];
const SLOTS: usize = 3;
const LIMITS: Limits = Limits { max_entries: 60, max_bytes: 1 << 20 };

/// What all sessions saw.
#[derive(Debug, Default)]
pub struct Seen {
    delivered: u64,
    failed_no: u64,
    failed_unknown: u64,
    breaks: u64,
    resent: u64,
    redirects: u64,
    /// Commands accepted after ASKING.
    asked: u64,
    /// Commands that queued up after others.
    queued: u64,
    /// Commands accepted at one node while another connection was held up.
    meanwhile: u64,
    /// Commands accepted at a node that was not accepting those of another route.
    beside_parked: u64,
    /// Streams that moved while another stream of their slot stayed.
    half_moved: u64,
    /// Commands redirected while too many streams were redirected.
    too_many: u64,
    /// Slots that moved because the nodes said where they are.
    located: u64,
    /// Entries that were confirmed by the WAIT of a connection other than the one that wrote them.
    confirmed_elsewhere: u64,
}

impl Seen {
    #[cfg(test)]
    fn summary(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// What the nodes did with a message.
#[derive(Debug, Clone, Default)]
struct Fate {
    key: usize,
    /// Whether it has reached a node.
    was_sent: bool,
    written: u64,
    ids: Vec<String>,
    /// The connection that wrote it, and those that wrote to its slot later: the node at their other end had the message.
    writers: Vec<u64>,
    /// Whether the replicas of the node that had the slot have the message.
    is_confirmed: bool,
}

/// The location of a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    owner: usize,
    /// The node that is taking over the slot.
    next: Option<usize>,
}

/// The location of a stream.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Whether it has any entry.
    exists: bool,
    /// Whether it is on the node that is taking over its slot.
    has_moved: bool,
    /// The number of the last message written to it.
    last: Option<usize>,
}

/// A node's answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Taken,
    Moved(usize),
    Ask(usize),
}

impl Place {
    /// A node's answer to a command for a stream. The node does not know whether another node has the stream.
    fn says(&self, node: usize, is_asking: bool, stream: Stream) -> Said {
        match self.next {
            Some(next) if node == self.owner && (stream.has_moved || !stream.exists) => Said::Ask(next),
            Some(next) if node == next && is_asking => Said::Taken,
            Some(_) | None if node == self.owner => Said::Taken,
            Some(_) | None => Said::Moved(self.owner),
        }
    }

    /// The node that has a stream.
    fn node_of(&self, stream: Stream) -> usize {
        self.next.filter(|_| stream.has_moved).unwrap_or(self.owner)
    }
}

/// The far end of a lane.
#[derive(Debug, Default)]
struct Site {
    is_open: bool,
    /// A number that differs for each socket.
    connection: u64,
    /// Bytes that the node has received, and bytes that the client has not yet received.
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Whether ASKING was the last command.
    is_asking: bool,
    /// For each stream: whether the node accepted a command, and whether it has redirected one since.
    took: [bool; KEYS.len()],
    redirected: [bool; KEYS.len()],
}

struct World<'a> {
    lanes: Lanes,
    sites: Vec<Site>,
    places: [Place; SLOTS],
    streams: [Stream; KEYS.len()],
    /// A slot for which no node accepts commands, as when the keys of one command are on two nodes.
    torn: Option<usize>,
    /// Whether nodes also refuse commands for reasons other than the location of their slots.
    refuses: bool,
    /// For each stream, the last command that reached a node for the first time.
    reached: [Option<usize>; KEYS.len()],
    rules: Rules,
    batch: BatchState,
    queue: OutcomeQueue,
    now: Instant,
    connections: u64,
    next_id: u64,
    waits: bool,
    fates: Vec<Fate>,
    /// The number of messages that have an outcome in a report.
    reported: usize,
    retries_unknown: bool,
    seen: &'a mut Seen,
}

fn name(node: usize) -> Node {
    Node { host: "h".to_owned(), port: node as u16 + 1 }
}

impl<'a> World<'a> {
    fn new(seen: &'a mut Seen, chance: &mut Chance) -> Self {
        let retries = chance.one_in(2);
        let retry = RetryPolicy {
            max_attempts: Some(1 + chance.size(5) as u32),
            retry_unknown: chance.one_in(2),
            ..RetryPolicy::default()
        };
        let waits = chance.one_in(3);
        let every = 1 + chance.size(10) as u64;
        let durability = waits.then_some(Durability {
            replicas: *chance.pick(&[Some(1), None]),
            aof: false,
            timeout: Duration::from_secs(1),
            every,
        });
        let rules = Rules {
            classifier: Classifier::default(),
            retry: retries.then(|| retry.clone()),
            nomkstream: false,
            min_id: None,
            exactly_once: false,
            forgets_ids: false,
            max_redirects: Some(1 + chance.size(6) as u32),
        };
        let mut queue = OutcomeQueue::default();
        let mut lanes = Lanes::of_cluster(KEYS[0], durability, Arc::clone(queue.recorder().counters()));
        lanes.name_streams();
        if chance.one_in(3) {
            lanes.set_max_streams(chance.below(3));
        }
        Self {
            lanes,
            sites: vec![Site::default()],
            places: [(); SLOTS].map(|()| Place { owner: chance.below(NODES), ..Place::default() }),
            torn: Some(chance.below(SLOTS)).filter(|_| chance.one_in(3)),
            refuses: chance.one_in(2),
            reached: [None; KEYS.len()],
            streams: [Stream::default(); KEYS.len()],
            rules,
            batch: BatchState::default(),
            queue,
            now: Instant::now(),
            connections: 0,
            next_id: 0,
            waits,
            fates: Vec::new(),
            reported: 0,
            retries_unknown: retries && retry.retry_unknown,
            seen,
        }
    }

    fn context<T>(&mut self, at: usize, run: impl FnOnce(&mut Connection, &mut Context<'_, OutcomeQueue>) -> T) -> T {
        let Self { lanes, rules, batch, queue, now, .. } = self;
        run(&mut lanes.get_mut(at).connection, &mut Context { rules, batch, outcomes: queue, now: *now })
    }

    fn node(&self, at: usize) -> Option<usize> {
        self.lanes.get(at).node().map(|node| usize::from(node.port) - 1)
    }

    fn produce(&mut self, chance: &mut Chance) {
        let load = self.lanes.load();
        if !load.has_room(LIMITS, self.queue.early()) {
            return;
        }
        let key = chance.below(KEYS.len());
        let number = self.queue.number(1);
        self.queue.recorder().push_ordinals(1);
        self.fates.push(Fate { key, ..Fate::default() });
        if chance.one_in(20) {
            let fault = Fault::new(code::EMPTY, "every field of the row is null");
            let failure = self.rules.classifier.failure(&fault, Written::No).into();
            let outcome = crate::connection::Outcome::Failed { failure, count: 1 };
            return self.queue.resolve(number, outcome, Owner::Report);
        }
        let (route, at) = self.lanes.of_key(KEYS[key]);
        let connection = &mut self.lanes.get_mut(at).connection;
        let is_queued = connection.is_held(route);
        if !is_queued {
            if connection.until_wait() == 0 {
                connection.request_wait();
            }
            connection.begin_command(route);
        }
        let before = connection.send.len();
        let out = connection.send.bytes();
        write_array_header(out, 3);
        write_bulk(out, b"XADD");
        write_bulk(out, KEYS[key]);
        write_bulk(out, number.to_string().as_bytes());
        let length = connection.send.len() - before;
        if is_queued {
            self.seen.queued += 1;
            connection.queue(length, route, Numbers::From(number), 1, Expect::EntryId);
        } else {
            connection.push(length, number, 1, Owner::Report);
        }
    }

    /// The socket accepts some bytes.
    fn transmit(&mut self, at: usize, most: usize) {
        let (now, site) = (self.now, &mut self.sites[at]);
        let connection = &mut self.lanes.get_mut(at).connection;
        if !site.is_open {
            return;
        }
        if connection.needs_ping(now) {
            assert!(site.input.is_empty() && site.output.is_empty(), "PING while something is under way");
            connection.ping();
        }
        if connection.has_unsent() {
            let bytes = connection.contiguous().unwrap();
            let count = bytes.len().min(most);
            site.input.extend_from_slice(&bytes[..count]);
            connection.sent(count, now);
        }
    }

    /// The node takes a step.
    fn serve(&mut self, at: usize, is_fair: bool, chance: &mut Chance) {
        let Some(node) = self.node(at) else { return };
        let waits = |other: usize| !self.lanes.get(other).connection.retry.is_idle();
        let is_other_held = (0..self.sites.len()).any(|other| other != at && waits(other));
        let has_parked = self.lanes.get(at).connection.retry.has_parked();
        let site = &mut self.sites[at];
        let mut reader = Reader::new(&site.input);
        let command = match reader.command() {
            Ok(command) => command,
            Err(Stop::More) => return,
            Err(Stop::Wrong) => panic!("no command: {}", site.input.escape_ascii()),
        };
        let length = reader.at;
        site.input.drain(..length);
        let was_asking = std::mem::replace(&mut site.is_asking, command[0] == b"ASKING");
        let reply = match &*command[0] {
            b"ASKING" => "+OK\r\n".to_owned(),
            b"PING" => (*chance.pick(&["+PONG\r\n", "-NOPERM no permissions to run 'ping'\r\n"])).to_owned(),
            b"WAIT" => {
                let is_confirmed = is_fair || !chance.one_in(4);
                if is_confirmed {
                    self.confirm(at);
                }
                format!(":{}\r\n", u64::from(is_confirmed))
            }
            _ => {
                let key = KEYS.iter().position(|key| *key == &*command[1]).unwrap();
                let number: usize = String::from_utf8_lossy(&command[2]).parse().unwrap();
                if !std::mem::replace(&mut self.fates[number].was_sent, true) {
                    assert!(self.reached[key] < Some(number), "{number} was sent behind {:?}", self.reached[key]);
                    self.reached[key] = Some(number);
                }
                let (place, stream) = (self.places[SLOT_OF[key]], &mut self.streams[key]);
                let said = place.says(node, was_asking, *stream);
                if said != Said::Taken {
                    site.redirected[key] = true;
                    let slot = slot(KEYS[key]);
                    match said {
                        Said::Ask(next) => format!("-ASK {slot} h:{}\r\n", next + 1),
                        Said::Moved(_) | Said::Taken => format!("-MOVED {slot} h:{}\r\n", place.owner + 1),
                    }
                } else if self.torn == Some(SLOT_OF[key]) && !is_fair {
                    "-TRYAGAIN keys are at two nodes\r\n".to_owned()
                } else if is_fair || !self.refuses || !chance.one_in(8) {
                    (site.took[key], site.redirected[key]) = (true, false);
                    // Without a retry policy, only a redirect causes messages that were not written to be sent again.
                    if self.rules.retry.is_none() {
                        assert!(stream.last < Some(number), "{number} was written behind {:?}", stream.last);
                    }
                    let is_here = !stream.exists || place.node_of(*stream) == node;
                    assert!(is_here, "{} is begun at the node that takes its slot over", KEYS[key].escape_ascii());
                    *stream = Stream { exists: true, has_moved: place.next == Some(node), last: Some(number) };
                    let stayed = |other: usize| {
                        SLOT_OF[other] == SLOT_OF[key] && self.streams[other].exists && !self.streams[other].has_moved
                    };
                    self.seen.half_moved += u64::from(was_asking && (0..KEYS.len()).any(stayed));
                    self.seen.asked += u64::from(was_asking);
                    self.seen.meanwhile += u64::from(is_other_held);
                    self.seen.beside_parked += u64::from(has_parked);
                    self.next_id += 1;
                    let id = format!("{}-{}", node + 1, self.next_id);
                    let fate = &mut self.fates[number];
                    fate.written += 1;
                    fate.ids.push(id.clone());
                    fate.is_confirmed = false;
                    // If all streams of a slot are at one node, a confirmation of any of its entries confirms what the node
                    // has of the slot.
                    let streams = self.streams;
                    let is_beside =
                        |other: usize| SLOT_OF[other] == SLOT_OF[key] && place.node_of(streams[other]) == node;
                    let waiting = self.fates.iter_mut().filter(|fate| is_beside(fate.key) && fate.written > 0);
                    waiting.for_each(|fate| fate.writers.push(site.connection));
                    format!("${}\r\n{id}\r\n", id.len())
                } else {
                    site.took[key] = true;
                    (*chance.pick(&[
                        "-LOADING a moment\r\n",
                        "-WRONGTYPE no stream\r\n",
                        "-OOM no memory\r\n",
                        "-TRYAGAIN a moment\r\n",
                        "-CLUSTERDOWN a moment\r\n",
                    ]))
                    .to_owned()
                }
            }
        };
        self.sites[at].output.extend(reply.bytes());
    }

    /// The replicas of a node now have everything that the node had at the connection's last write.
    fn confirm(&mut self, at: usize) {
        let site = &self.sites[at];
        for fate in self.fates.iter_mut().filter(|fate| !fate.is_confirmed && !site.redirected[fate.key]) {
            fate.is_confirmed = fate.writers.contains(&site.connection);
            let is_elsewhere = fate.writers.first() != Some(&site.connection);
            self.seen.confirmed_elsewhere += u64::from(fate.is_confirmed && is_elsewhere);
        }
    }

    /// The client receives some bytes.
    fn receive(&mut self, at: usize, most: usize) {
        let site = &mut self.sites[at];
        let space = self.lanes.get_mut(at).connection.space();
        let count = space.len().min(most).min(site.output.len());
        if !site.is_open || count == 0 {
            return;
        }
        for (place, byte) in space.iter_mut().zip(site.output.drain(..count)) {
            *place = byte;
        }
        if let Err(broken) = self.context(at, |connection, cx| connection.received(count, cx)) {
            panic!("a connection broke over true replies: {:?}", broken.fault);
        }
    }

    fn break_off(&mut self, at: usize) {
        if self.sites[at].is_open {
            self.seen.breaks += 1;
            let broken = Disconnect::from(Fault::new(code::EOF, "the server closed the connection"));
            self.context(at, |connection, cx| connection.disconnected(&broken, cx));
            self.sites[at] = Site { connection: self.sites[at].connection, ..Site::default() };
        }
    }

    /// What the nodes say about the owners of slots. It may be out of date.
    fn map(&self, chance: &mut Chance) -> Vec<(RangeInclusive<u16>, Node)> {
        let mut map: Vec<_> = (0..SLOTS)
            .map(|of| {
                let owner = if chance.one_in(4) { chance.below(NODES) } else { self.places[of].owner };
                let slot = slot(KEYS[SLOT_OF.iter().position(|slot| *slot == of).unwrap()]);
                (slot..=slot, name(owner))
            })
            .collect();
        map.sort_by_key(|(slots, _)| *slots.start());
        map
    }

    /// Locates slots as a producer does: nothing of the lane is in flight.
    fn locate(&mut self, at: usize, chance: &mut Chance) {
        let map = self.map(chance);
        if self.lanes.moves_unsent(at, &map) {
            let failure = self.rules.classifier.failure(&Fault::new(code::NO_SLOT, "elsewhere"), Written::No).into();
            self.context(at, |connection, cx| connection.take_back(&failure, cx));
        }
        let before = KEYS.map(|key| self.lanes.of_key(key).1);
        self.lanes.relocate(at, &map, self.now);
        self.seen.located +=
            KEYS.iter().zip(before).filter(|(key, lane)| self.lanes.of_key(key).1 != *lane).count() as u64;
        self.add_sites();
    }

    fn add_sites(&mut self) {
        while self.sites.len() < self.lanes.len() {
            self.sites.push(Site::default());
        }
    }

    fn open(&mut self, at: usize, chance: &mut Chance) {
        if self.sites[at].is_open {
            return;
        }
        if self.lanes.get(at).node().is_none() || chance.one_in(4) {
            self.locate(at, chance);
        }
        self.connections += 1;
        let site = &mut self.sites[at];
        (site.is_open, site.connection) = (true, self.connections);
        self.lanes.get_mut(at).connection.opened(TIMEOUT, Some(1), self.now);
    }

    /// Follows redirects as a producer does.
    fn follow(&mut self, at: usize, detours: &[Detour], chance: &mut Chance) {
        let site = &self.sites[at];
        let is_quiet = site.input.is_empty() && site.output.is_empty();
        assert!(is_quiet || self.lanes.get(at).connection.awaits_control(), "a redirect while something is under way");
        self.seen.redirects += detours.len() as u64;
        let target = |detour: &Detour| name(usize::from(detour.redirect.node.as_ref().unwrap().port) - 1);
        let listed: Vec<_> = detours.iter().filter(|_| !chance.one_in(4)).map(|one| (one, target(one))).collect();
        let has_unlisted = listed.len() < detours.len();
        self.lanes.redirect(at, &listed, self.now);
        self.seen.too_many += u64::from(self.lanes.get(at).connection.retry.has_redirect());
        self.add_sites();
        if has_unlisted || chance.one_in(2) {
            self.locate(at, chance);
        }
        if self.lanes.is_deserted(at) {
            self.lanes.get_mut(at).connection.closed();
            self.sites[at] = Site::default();
        }
    }

    fn retry(&mut self, at: usize, chance: &mut Chance) {
        let jitter = chance.below(1_000) as f64 / 1_000.0;
        if self.lanes.get(at).connection.retry.is_active() {
            // Messages are sent again only after WAIT has confirmed those that were answered.
            self.lanes.get_mut(at).connection.request_wait();
            self.context(at, Connection::take_back_unsent);
        }
        match self.lanes.get_mut(at).connection.retry_step(&self.rules, self.now, jitter) {
            None => {}
            Some(RetryStep::Pause(until)) => self.now = until,
            Some(RetryStep::Redirect(detours)) => self.follow(at, &detours, chance),
            Some(RetryStep::Resend) => {
                let resent = &mut self.seen.resent;
                self.lanes.get_mut(at).connection.resend(|messages, _| *resent += messages);
            }
            Some(RetryStep::Resume) => {
                self.lanes.get_mut(at).connection.resume();
                self.lanes.get_mut(at).connection.retry.end(self.now);
            }
            Some(RetryStep::GiveUp) if self.context(at, Connection::give_up_tries) => {}
            Some(RetryStep::GiveUp | RetryStep::Done) => drop(self.lanes.get_mut(at).connection.retry.end(self.now)),
        }
    }

    /// Changes where slots are: another node gets a slot, starts to take one over, or gets one of its streams. A node that
    /// has refused commands does not get the stream back while more of them are in transit: those that follow would be
    /// written first, and no client can prevent that.
    fn change(&mut self, chance: &mut Chance) {
        if chance.one_in(3) {
            self.torn = if self.torn.is_some() { None } else { Some(chance.below(SLOTS)) };
            return;
        }
        let of = chance.below(SLOTS);
        let keys = || (0..KEYS.len()).filter(|key| SLOT_OF[*key] == of);
        let (before, streams_before) = (self.places[of], self.streams);
        let (mut after, mut streams) = (before, self.streams);
        match before.next {
            Some(_) if chance.one_in(2) => {
                let key = *chance.pick(&keys().collect::<Vec<_>>());
                streams[key].has_moved = streams[key].exists;
            }
            Some(next) if chance.one_in(2) => (after.owner, after.next) = (next, None),
            Some(_) => after.next = None,
            None if chance.one_in(2) => after.owner = chance.below(NODES),
            None => after.next = Some(chance.below(NODES)).filter(|next| *next != before.owner),
        }
        if after.next.is_none() {
            keys().for_each(|key| streams[key].has_moved = false);
        }
        // The target node would accept commands left over from an earlier move to it.
        let asks = |key: usize| {
            let (route, at) = self.lanes.of_key(KEYS[key]);
            self.lanes.get(at).connection.is_asking(route) && self.node(at) == after.next
        };
        let is_sent_there = |(at, site): (usize, &Site)| {
            let is_quiet =
                site.input.is_empty() && site.output.is_empty() && self.lanes.get(at).connection.retry.is_idle();
            !is_quiet && keys().any(|key| site.redirected[key])
        };
        let begins = before.next.is_none() && after.next.is_some();
        if begins && (keys().any(asks) || self.sites.iter().enumerate().any(is_sent_there)) {
            return;
        }
        for (at, site) in self.sites.iter().enumerate() {
            let Some(node) = self.node(at) else { continue };
            let is_quiet = site.input.is_empty() && site.output.is_empty();
            let took = keys().any(|key| site.took[key]);
            for key in keys() {
                let takes = |place: Place, stream: Stream, asking| place.says(node, asking, stream) == Said::Taken;
                let gains = [false, true]
                    .into_iter()
                    .any(|asking| !takes(before, streams_before[key], asking) && takes(after, streams[key], asking));
                if gains && site.redirected[key] && took && !is_quiet {
                    return;
                }
            }
        }
        (self.places[of], self.streams) = (after, streams);
    }

    fn step(&mut self, chance: &mut Chance) {
        let at = chance.below(self.sites.len());
        match chance.below(20) {
            0..=4 => self.produce(chance),
            5..=8 => self.transmit(at, 1 + chance.size(300)),
            9..=11 => self.serve(at, false, chance),
            12..=14 => self.receive(at, 1 + chance.size(300)),
            15 if chance.one_in(3) => self.change(chance),
            15 => self.lanes.get_mut(at).connection.request_wait(),
            16 | 17 => self.retry(at, chance),
            18 if chance.one_in(6) => self.break_off(at),
            18 => self.open(at, chance),
            19 if chance.one_in(3) => {
                self.now += Duration::from_secs(chance.below(60) as u64);
                let now = self.now;
                self.lanes.rest_asking(now);
            }
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
                    assert!(fate.is_confirmed || !self.waits, "{fate:?} is not confirmed");
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

    /// Runs the nodes, without moving slots, until every message has an outcome.
    fn finish(mut self, chance: &mut Chance) {
        for _ in 0..10_000 {
            for at in 0..self.sites.len() {
                let connection = &self.lanes.get(at).connection;
                if !connection.in_flight.is_empty() || !connection.retry.is_idle() {
                    self.open(at, chance);
                }
                self.retry(at, chance);
                if self.waits {
                    self.lanes.get_mut(at).connection.request_wait();
                    self.context(at, Connection::give_up_unprovable);
                }
                self.transmit(at, usize::MAX);
                self.serve(at, true, chance);
                self.receive(at, usize::MAX);
            }
            if self.queue.is_settled() && self.lanes.is_idle() {
                break;
            }
        }
        assert!(self.queue.is_settled(), "a message has no outcome");
        self.report();
        assert_eq!((self.reported, self.queue.early()), (self.fates.len(), 0));
        assert!(self.lanes.is_idle() && self.lanes.load().entries == 0);
    }
}

/// Runs one session.
pub fn check(seen: &mut Seen, chance: &mut Chance) {
    let mut world = World::new(seen, chance);
    for _ in 0..20 + chance.size(600) {
        world.step(chance);
    }
    world.finish(chance);
}

#[cfg(test)]
#[test]
fn lanes() {
    let mut seen = Seen::default();
    Runner::new("lanes", 1_000).run(&mut seen, check, Seen::summary);
    let common = [seen.resent, seen.redirects, seen.asked, seen.queued, seen.meanwhile, seen.located];
    assert!(common.into_iter().min() > Some(0), "{seen:?}");
    // Rare cases may not occur in a small number of executions, as under valgrind.
    let rare = [seen.beside_parked, seen.half_moved, seen.too_many, seen.confirmed_elsewhere];
    assert!(rare.into_iter().min() > Some(0) || seen.delivered < 10_000, "{seen:?}");
}
