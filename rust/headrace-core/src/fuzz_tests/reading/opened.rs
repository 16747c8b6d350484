//! A reader at work: its sessions as `reader/drive.rs` moves them, with connections to the model of a server in place of sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_schema::{DataType, Field};

use super::super::chance::Chance;
use super::super::history::{History, Time};
use super::super::liar::Liar;
use super::super::wire::Wire;
use super::chain::{Row, Wrong};
use super::lie::Lie;
use super::server::{Reply, Said, Server};
use crate::entries::{BodyPlan, ColumnsPlan, FieldsPlan, MetadataColumn, OnBadField, PackedPlan, Unpack};
use crate::reader::Sessions;
use crate::reading::{
    Backward, BackwardSession, Buffers, End, Pages, Paging, Position, ReadBatch, Session, SessionOptions, Start, Stream,
};
use crate::resp::{EntryId, entry_id};

/// What a reader is created with.
#[derive(Debug, Clone)]
pub struct Options {
    pub start: Option<Start>,
    pub position: Option<Position>,
    pub end: End,
    /// From new entries to old ones: the highest and the lowest ID.
    pub reverse: Option<(EntryId, EntryId)>,
    pub limit: u64,
    pub fails: bool,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    pub page_bytes: u64,
    pub block: Duration,
    pub linger: Duration,
    pub is_packed: bool,
    /// The streams of each session.
    pub groups: Vec<Vec<usize>>,
}

impl Options {
    pub fn follows(&self) -> bool {
        self.reverse.is_none() && self.end == End::Never
    }

    fn plan(&self) -> ColumnsPlan {
        let field = |name: &str| vec![Field::new(name, DataType::Int64, true)];
        let mut metadata = vec![(MetadataColumn::EntryId, "entry_id".to_owned())];
        let body = if self.is_packed {
            metadata.push((MetadataColumn::RowInEntry, "row".to_owned()));
            let limits = [1 << 20, self.batch_rows, self.batch_bytes];
            let payload = "payload".to_owned();
            BodyPlan::Packed(PackedPlan::new(Unpack::Payload, payload, field("v"), OnBadField::Fail, limits).unwrap())
        } else {
            BodyPlan::Fields(FieldsPlan::new(field("v"), OnBadField::Fail).unwrap())
        };
        ColumnsPlan::new(metadata, None, body).unwrap()
    }
}

/// The rows of a batch.
pub fn rows_of(batch: &ReadBatch, is_packed: bool) -> Vec<Row> {
    let batch = batch.record_batch();
    let ids = batch.column_by_name("entry_id").unwrap().as_string::<i32>();
    let values = batch.column_by_name("v").unwrap().as_primitive::<Int64Type>();
    let row = |at: usize| {
        let row = if is_packed {
            batch.column_by_name("row").unwrap().as_primitive::<Int32Type>().value(at) as usize
        } else {
            0
        };
        // A row that is not where it says is none of any entry.
        let value = if values.is_valid(at) { values.value(at) as u64 } else { 0 };
        let number = if value % 10 == row as u64 { value / 10 } else { 0 };
        Row { id: entry_id(ids.value(at).as_bytes()).unwrap(), number, part: row }
    };
    (0..batch.num_rows()).map(row).collect()
}

/// A connection, which several sessions use in turn.
#[derive(Debug)]
struct Connection {
    wire: Wire<Server, (Time, Vec<Said>)>,
    buffers: Buffers,
    /// The session that asked last.
    holder: usize,
}

/// A reader at work, and what it has reported so far.
#[derive(Debug)]
pub struct Opened {
    pub sessions: Sessions,
    pub options: Options,
    /// One for each session, or one for all.
    connections: Vec<Connection>,
    is_shared: bool,
    /// When it was created.
    pub at: Time,
    /// The last ID of each stream when the server first described it: it does not wait for more up to its end.
    pub due: BTreeMap<usize, EntryId>,
    /// The streams of which the server had less than was read when it described them last, and whether it is no replica: reading
    /// begins with its next description, whatever that has.
    lacking: BTreeMap<usize, bool>,
    pub entries: u64,
    pub told: u64,
    pub is_exact: bool,
    /// The streams that it reported as refused or replaced, and when at the earliest the server has said so.
    pub bad: BTreeMap<usize, Time>,
    pub has_dropped: bool,
    /// When the server first refused a stream, since this was reported.
    pub refused: BTreeMap<usize, Time>,
    /// When it last said that something may be lost.
    pub doubted: Option<Time>,
}

/// What happens to a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Bytes arrive as they like, and connections break.
    Rough,
    /// Everything arrives; nothing is waited for in vain.
    Calm,
    /// What the server waits for does not come.
    Silent,
}

impl Opened {
    pub fn new(history: &History, options: Options, chance: &mut Chance) -> Self {
        let plan = Arc::new(options.plan());
        let count = options.groups.len();
        let connection = |holder| {
            let wire = Wire::new(false, Server::default());
            Connection { wire, buffers: Buffers::default(), holder }
        };
        let all = options.groups.iter().map(|keys| session(history, keys, &options, &plan)).collect();
        let mut sessions = Sessions::new(all, options.reverse.is_some(), options.limit);
        let is_shared = count > 1 && chance.one_in(2);
        if is_shared {
            (0..count).for_each(|at| sessions.with(at, |session| session.share(true)));
        }
        Self {
            sessions,
            options,
            connections: (0..if is_shared { 1 } else { count }).map(connection).collect(),
            is_shared,
            at: history.clock,
            due: BTreeMap::new(),
            lacking: BTreeMap::new(),
            entries: 0,
            told: 0,
            is_exact: true,
            bad: BTreeMap::new(),
            has_dropped: false,
            refused: BTreeMap::new(),
            doubted: None,
        }
    }

    /// The number of the connection of a session.
    fn place(&self, at: usize) -> usize {
        if self.is_shared { 0 } else { at }
    }

    /// The connection of a session.
    fn connection(&mut self, at: usize) -> &mut Connection {
        let place = self.place(at);
        &mut self.connections[place]
    }

    /// The session whose reply is due on the connection of this one.
    fn due(&mut self, at: usize) -> Option<usize> {
        let holder = self.connection(at).holder;
        Some(holder).filter(|holder| self.sessions.get(*holder).awaits_reply())
    }

    fn is_ready(&self) -> bool {
        self.sessions.has_begun() && self.sessions.is_ready()
    }

    /// The server described a stream as it was at this time.
    pub fn described(&mut self, history: &History, key: usize, at: Time) {
        // A server that lacks what was read is asked again where the stream ends.
        let lacked = self.lacking.remove(&key);
        if lacked.is_some() || !self.due.contains_key(&key) {
            let last = history.keys[key].life(at).map_or(EntryId::default(), |life| life.last(at));
            self.due.insert(key, last);
            if lacked != Some(true) && self.lacks(history, key, at, last) {
                self.lacking.insert(key, false);
            }
        }
    }

    /// Whether the server has less of a stream than there was before the position.
    fn lacks(&self, history: &History, key: usize, at: Time, last: EntryId) -> bool {
        let Some(place) = self.options.position.as_ref().and_then(|position| position.get(&history.keys[key].name))
        else {
            return false;
        };
        if place.is_entry && last < place.id {
            return true;
        }
        let session = self.options.groups.iter().position(|group| group.contains(&key)).unwrap_or(0);
        let server = &self.connections[self.place(session)].wire.server;
        let life = history.keys[key].life(at);
        let (added, present) = life.map_or((0, 0), |life| (life.added(at), life.present(at).count() as u64));
        // An entry that was deleted ahead of the position may be missing in the position's count.
        let is_sure = !place.is_entry || life.is_none_or(|life| life.max_deleted(at) == EntryId::default());
        let all_are_gone = !place.is_entry && (place.id == EntryId::default() || place.added.is_none());
        let has = if all_are_gone { added - present } else { added };
        let before = if place.is_entry { place.added } else { place.added.or(place.removed) };
        // That there is no stream says that it has no entries.
        (server.counts || life.is_none()) && is_sure && before.is_some_and(|before| has < before)
    }

    pub fn sessions(&self) -> usize {
        self.options.groups.len()
    }

    /// The number of streams that share the session of this one.
    pub fn beside(&self, key: usize) -> usize {
        self.options.groups.iter().find(|group| group.contains(&key)).map_or(0, Vec::len)
    }

    /// Lets all replicas receive everything, and all servers reply.
    pub fn settle(&mut self, history: &History) {
        for Connection { wire, .. } in &mut self.connections {
            wire.server.replica = wire.server.replica.map(|_| history.clock);
            wire.server.loads = false;
        }
    }

    /// Lets a replica receive more.
    pub fn replicate(&mut self, history: &History, chance: &mut Chance) {
        for Connection { wire, .. } in &mut self.connections {
            let later = |at: Time| at + chance.below((history.clock - at) as usize + 1) as Time;
            wire.server.replica = wire.server.replica.map(later);
        }
    }

    /// One pass over a session, as a line makes it. Returns whether any bytes moved, and what replies said.
    pub fn pass(
        &mut self,
        at: usize,
        history: &History,
        server: impl FnOnce(&mut Chance) -> Server,
        weather: Weather,
        liar: &mut Liar<Lie>,
        chance: &mut Chance,
    ) -> Result<(bool, Vec<(Time, Said)>), Wrong> {
        let begins = !self.sessions.has_begun();
        let due = self.due(at).filter(|due| *due != at);
        if due.is_none() && (!self.sessions.is_active(at) || (begins && self.sessions.get(at).has_begun())) {
            return Ok((false, Vec::new()));
        }
        // What another session has asked for is read first.
        let at = due.unwrap_or(at);
        let is_rough = weather == Weather::Rough;
        // A drive stops as soon as something is ready.
        if self.is_ready() && !(is_rough && chance.one_in(8)) {
            return Ok((false, Vec::new()));
        }
        if !self.connection(at).wire.is_open {
            self.connection(at).wire = Wire::new(true, server(chance));
            return Ok((true, Vec::new()));
        }
        if !self.sessions.get(at).pause().is_zero() {
            if is_rough && chance.one_in(3) {
                return Ok((false, Vec::new()));
            }
            self.sessions.with(at, |session| session.paused());
        }
        let second = Duration::from_secs(1);
        let waits = if is_rough { *chance.pick(&[Duration::ZERO, second, Duration::MAX]) } else { Duration::MAX };
        self.request(at, Some(if self.is_shared { Duration::ZERO } else { waits }))?;
        let mut has_moved = self.send(at, is_rough, chance);
        while !is_rough || chance.below(4) > 0 {
            let is_over = weather == Weather::Silent || (is_rough && chance.one_in(3));
            let is_answered = self.connection(at).wire.answer(|server, words| {
                server.answer(history, words, is_over, liar).map(|Reply { bytes, at, said }| (bytes, (at, said)))
            });
            if !is_answered {
                break;
            }
            has_moved = true;
        }
        let mut said = Vec::new();
        while (!is_rough || chance.below(4) > 0) && self.receive(at, is_rough, &mut said, chance)? {
            has_moved = true;
            self.send(at, is_rough, chance);
            if self.is_ready() {
                break;
            }
        }
        if is_rough && chance.one_in(25) {
            self.disconnect(at);
        }
        // A session that shares its connection asks again and again for what is there.
        let rests = self.is_shared && self.due(at).is_none() && !self.sessions.get(at).has_more();
        Ok((has_moved && !rests, said))
    }

    /// Lets a session ask, which must not ask for anything once it is finished.
    fn request(&mut self, at: usize, waits: Option<Duration>) -> Result<(), Wrong> {
        let is_finished = self.sessions.get(at).is_finished();
        let awaited = self.sessions.get(at).awaits_reply();
        let place = self.place(at);
        let Connection { buffers, holder, .. } = &mut self.connections[place];
        let before = buffers.unsent().len();
        self.sessions.with(at, |session| session.request(waits, buffers));
        let unsent = buffers.unsent();
        if is_finished && unsent.len() > before {
            return Err(format!("session {at} is finished, and asks {}", unsent.escape_ascii()));
        }
        let awaits = self.sessions.get(at).awaits_reply();
        if unsent.len() > before && !awaits {
            return Err(format!("session {at} asks for {} and awaits nothing", unsent.escape_ascii()));
        }
        if !awaited && awaits {
            *holder = at;
            buffers.asked();
        }
        Ok(())
    }

    /// Lets the server prepare the next page, as a drive does once a batch of the session was taken.
    pub fn read_ahead(&mut self, at: usize, chance: &mut Chance) -> Result<(), Wrong> {
        if !self.connection(at).wire.is_open || self.due(at).is_some_and(|due| due != at) {
            return Ok(());
        }
        if !self.sessions.get(at).is_ready() {
            self.request(at, None)?;
        }
        self.send(at, true, chance);
        Ok(())
    }

    fn send(&mut self, at: usize, is_rough: bool, chance: &mut Chance) -> bool {
        let Connection { wire, buffers, .. } = self.connection(at);
        let unsent = buffers.unsent().to_vec();
        let count = if is_rough && chance.one_in(3) { chance.below(unsent.len() + 1) } else { unsent.len() };
        buffers.sent(count);
        wire.send(&unsent[..count]);
        count > 0
    }

    /// Returns whether anything arrived or was read.
    fn receive(
        &mut self,
        at: usize,
        is_rough: bool,
        said: &mut Vec<(Time, Said)>,
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        let place = self.place(at);
        let Connection { wire, buffers, .. } = &mut self.connections[place];
        let goes_on = buffers.is_suspended();
        if !wire.is_open || (!goes_on && !wire.has_replies()) {
            return Ok(false);
        }
        let piece = if is_rough { wire.piece(chance) } else { usize::MAX };
        let lost = self.sessions.lost();
        let (count, arrived) = if goes_on { (0, Vec::new()) } else { wire.deliver(buffers.space(), piece) };
        let received = self.sessions.with(at, |session| session.received(count, buffers));
        said.extend(arrived.into_iter().flat_map(|(at, said)| said.into_iter().map(move |said| (at, said))));
        let loads = said.iter().any(|(_, said)| *said == Said::Loading);
        let refuses = said.iter().any(|(_, said)| matches!(said, Said::Refused { .. }));
        let times = [chance.below(2), chance.below(2)].map(|ms| Duration::from_millis(ms as u64));
        buffers.took(times[0], times[1]);
        if said.iter().any(|(_, said)| *said == Said::Role { is_replica: false }) {
            self.lack(at, true);
        }
        let (now_lost, is_exact) = self.sessions.lost();
        if now_lost < lost.0 || (is_exact && !lost.1) {
            return Err(format!("the number of lost entries fell from {lost:?} to {now_lost}"));
        }
        if let Err(fault) = received {
            let is_right = if loads { fault.code == "LOADING" } else { refuses && is_refusal(&fault.code) };
            if !is_right {
                return Err(format!("session {at}: {}: {}", fault.code, fault.message));
            }
            self.disconnect(at);
        }
        Ok(true)
    }

    fn disconnect(&mut self, at: usize) {
        for at in if self.is_shared { 0..self.sessions() } else { at..at + 1 } {
            self.sessions.with(at, |session| session.disconnected());
            self.lack(at, false);
        }
        let connection = self.connection(at);
        (connection.buffers, connection.wire.is_open) = (Buffers::default(), false);
    }

    /// Sets whether the server is no replica, for the streams of a session of which it has less than was read.
    fn lack(&mut self, at: usize, is_master: bool) {
        for key in &self.options.groups[at] {
            if let Some(is_known) = self.lacking.get_mut(key) {
                *is_known = is_master;
            }
        }
    }

    /// Whether a session has something to send.
    pub fn sends(&mut self, at: usize) -> bool {
        !self.connection(at).buffers.unsent().is_empty()
    }

    /// Whether a session that is finished still asks.
    pub fn check_silence(&mut self) -> Result<(), Wrong> {
        (0..self.sessions()).try_for_each(|at| self.request(at, Some(Duration::from_secs(1))))
    }
}

fn is_refusal(code: &str) -> bool {
    matches!(code, "WRONGTYPE" | "NOPERM")
}

fn session(history: &History, keys: &[usize], options: &Options, plan: &Arc<ColumnsPlan>) -> Box<dyn Pages> {
    let session_options = SessionOptions {
        batch_rows: options.batch_rows,
        batch_bytes: options.batch_bytes,
        block: options.block,
        linger: options.linger,
        limit: options.limit,
        follows: options.follows(),
        fails_on_loss: options.fails,
    };
    let paging = || Paging::new(options.page_bytes, options.batch_rows as u64);
    let names = keys.iter().map(|key| Arc::<[u8]>::from(&*history.keys[*key].name));
    let place = |name: &[u8]| options.position.as_ref().map(|position| position.get(name));
    if let Some((first, last)) = options.reverse {
        let stream = |name: Arc<[u8]>| {
            let from = place(&name).flatten().map_or(Some(first), |place| place.id.previous());
            Backward::new(name, from, last, paging())
        };
        return Box::new(BackwardSession::new(names.map(stream).collect(), session_options, plan));
    }
    let stream = |name: Arc<[u8]>| {
        let start = match (place(&name), options.start) {
            (Some(place), _) => place.map_or(Start::Earliest, Start::After),
            (None, start) => start.unwrap(),
        };
        Stream::new(name, start, options.end, paging())
    };
    Box::new(Session::new(names.map(stream).collect(), session_options, Arc::clone(plan)))
}
