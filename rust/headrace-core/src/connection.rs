//! One connection, without its socket: what is sent on it, which reply belongs to which command, and what its replies and its end
//! mean for the messages. Bytes and the time are arguments: no I/O and no clock.
//!
//! The owner of the socket hands over what arrived ([`Connection::received`]), sends what is in [`Connection::send`], and reports
//! when the socket ended ([`Connection::disconnected`]). Outcomes go to [`Outcomes`] by the numbers of the messages, so several
//! connections can share one.

mod cluster_node;
mod context;
mod control;
mod detours;
mod disconnect;
mod faults;
mod in_flight;
mod numbers;
mod outcome;
mod parked_routes;
mod pending_retry;
mod replies;
mod retry_queue;
mod retry_step;
mod send_buffer;
mod stream_set;
mod wait_tracker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cluster::Redirect;
use crate::command::{EntryId, Expect, Reply, ScriptReply, script, stream_key};
use crate::contain::contain;
use crate::durability::Durability;
use crate::error::{Failure, Fault, ReplyText, Written, code};
use crate::fail;
use crate::net::Progress;

pub(crate) use context::{BatchState, Context, Outcomes, Rules};
pub(crate) use detours::Detour;
pub(crate) use disconnect::Disconnect;
pub(crate) use in_flight::{InFlight, Limits, Owner};
pub(crate) use numbers::{Numbers, Span};
pub(crate) use outcome::Outcome;
pub(crate) use pending_retry::PendingRetry;
pub(crate) use replies::ReplyBuffer;
pub(crate) use retry_queue::RetryQueue;
pub(crate) use retry_step::{RetryEvent, RetryStep};
pub(crate) use send_buffer::{MAX_SLICES, SendBuffer};
pub(crate) use wait_tracker::{Unconfirmed, WaitTracker};

use cluster_node::ClusterNode;
use control::Control;
use in_flight::{Command, Sent};
use retry_queue::lacks_script;

/// After a longer silence, a connection must answer PING before it gets messages.
const IDLE: Duration = Duration::from_secs(30);

/// How long after a command's timeout a loss may be noticed so that IDMP IDs are remembered while messages are sent again. It is
/// less than the time for which they are remembered longer.
const LATE: Duration = Duration::from_secs(5);

/// Why a command failed, and whether it may be sent again.
struct Refusal {
    failure: Arc<Failure>,
    is_retried: bool,
    /// Whether the retry needs no policy.
    is_free: bool,
    /// Whether the failure is a MOVED or ASK redirect.
    is_redirect: bool,
}

/// Commands and entries that wait on a connection, of slots or streams that another node has now.
#[derive(Debug)]
pub(crate) struct Waiting {
    commands: Vec<PendingRetry>,
    /// See [`RetryQueue::progress`].
    progress: (Option<Instant>, u32),
    unconfirmed: VecDeque<Unconfirmed>,
}

/// Lets the next command pass at a node that is still taking over its slot.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// What is known about a server while its socket is open.
#[derive(Debug)]
struct Session {
    replies: ReplyBuffer,
    command_timeout: Duration,
    progress: Progress,
    /// Whether the server has answered a message: one that accepts connections and closes them is not tried over and over.
    is_proven: bool,
    /// The command that must be answered before messages go out.
    control: Option<Control>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) send: SendBuffer,
    pub(crate) in_flight: InFlight,
    pub(crate) retry: RetryQueue,
    /// `None`: an entry that has its ID counts as delivered.
    pub(crate) wait: Option<WaitTracker>,
    /// `None`: there is no socket.
    session: Option<Box<Session>>,
    /// Whether a command that was encoded for this socket carries the script.
    knows_script: bool,
    /// The node of a cluster; `None`: the connection leads to the only server.
    node: Option<ClusterNode>,
    /// Whether the socket took nothing of what should be sent.
    is_stuck: bool,
    /// Whether a panic ended the reading of a reply.
    has_defect: bool,
}

impl Connection {
    /// `keeps`: commands stay until they are answered, because they may be sent again. `is_cluster`: commands stay too, because
    /// they may be sent to another node.
    pub(crate) fn new(keeps: bool, is_cluster: bool, durability: Option<Durability>) -> Self {
        Self {
            send: SendBuffer::new(keeps || is_cluster),
            in_flight: InFlight::default(),
            retry: RetryQueue::default(),
            wait: durability.map(WaitTracker::new),
            session: None,
            knows_script: false,
            node: is_cluster.then(ClusterNode::default),
            is_stuck: false,
            has_defect: false,
        }
    }

    /// Drops the state of a cluster node: the server turned out to be the only one. Nothing was handed to a socket. `keeps`: see
    /// [`new`](Self::new).
    pub(crate) fn leave_cluster(&mut self, keeps: bool) {
        self.node = None;
        self.send.keep(keeps);
        self.in_flight.forget_routes();
        self.retry.forget_routes();
    }

    /// Begins a session: a socket is open, and its server is ready. `replicas`: how many to wait for, unless that number is
    /// given.
    pub(crate) fn opened(&mut self, command_timeout: Duration, replicas: Option<u64>, now: Instant) {
        if let (Some(wait), Some(replicas)) = (&mut self.wait, replicas) {
            wait.count(replicas);
        }
        let replies = ReplyBuffer::new();
        let session =
            Session { replies, command_timeout, progress: Progress::new(now), is_proven: false, control: None };
        self.session = Some(Box::new(session));
    }

    /// Ends the session: the socket is gone. Commands that wait stay: see [`disconnected`](Self::disconnected).
    pub(crate) fn closed(&mut self) {
        self.session = None;
        self.knows_script = false;
        self.node = self.node.take().map(|_| ClusterNode::default());
    }

    /// Whether there is a socket.
    pub(crate) fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// Names the stream of each held entry from now on; those held before are of `stream`. This matters if WAIT confirms entries:
    /// some streams of a slot may be on another node.
    pub(crate) fn name_streams(&mut self, stream: &Arc<[u8]>) {
        if let Some(wait) = &mut self.wait {
            wait.name_streams(stream);
        }
    }

    /// The stream of a command, if held entries name their streams.
    fn held_stream(&self, command: &Command) -> Option<Arc<[u8]>> {
        let wait = self.wait.as_ref().filter(|wait| wait.names_streams());
        wait.map(|_| stream_key(self.send.kept(command.bytes.clone())).into())
    }

    /// Whether the node accepts commands of this route only after ASKING.
    #[inline]
    pub(crate) fn is_asking(&self, route: u16) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_asked(route))
    }

    /// Stops sending ASKING after a while, if nothing is in flight.
    pub(crate) fn rest_asking(&mut self, now: Instant) {
        if let Some(node) = self.node.as_mut().filter(|_| self.in_flight.is_empty()) {
            node.rest(now);
        }
    }

    /// Gives streams of a route, which the node redirected, their own routes. Nothing is in flight.
    pub(crate) fn reroute(&mut self, route: u16, streams: &BTreeMap<&[u8], u16>) {
        self.retry.reroute(route, streams);
        if let Some(wait) = &mut self.wait {
            wait.reroute(route, streams);
        }
    }

    /// Takes out the waiting commands and entries of some routes that another node has. Nothing is in flight.
    pub(crate) fn extract(&mut self, is_taken: impl Fn(u16) -> bool) -> Waiting {
        let progress = self.retry.progress(&is_taken);
        let commands = self.retry.extract(|pending| is_taken(pending.route));
        let unconfirmed = self.wait.as_mut().map_or_else(VecDeque::new, |wait| wait.extract(&is_taken));
        Waiting { commands, progress, unconfirmed }
    }

    /// Takes over commands and entries that waited on another connection.
    pub(crate) fn adopt(&mut self, waiting: Waiting, now: Instant) {
        if !waiting.commands.is_empty() {
            self.retry.go_on(waiting.progress);
        }
        for command in waiting.commands {
            self.retry.push(command, now);
        }
        if let Some(wait) = &mut self.wait {
            wait.arrive(waiting.unconfirmed);
        }
    }

    /// Sets whether the node accepts commands of a route only after ASKING.
    pub(crate) fn ask(&mut self, route: u16, is_asked: bool, now: Instant) {
        if let Some(node) = &mut self.node {
            node.ask(route, is_asked.then_some(now));
        }
    }

    /// The routes of commands that wait or are in flight, and of unconfirmed entries. Some occur several times.
    pub(crate) fn routes(&self) -> impl Iterator<Item = u16> {
        let in_flight = self.in_flight.commands_from(0).filter_map(|queued| queued.route);
        let unconfirmed = self.wait.iter().flat_map(WaitTracker::routes);
        self.retry.routes().into_iter().chain(in_flight).chain(unconfirmed)
    }

    /// Whether entries of this route wait for WAIT.
    pub(crate) fn holds_unconfirmed(&self, route: u16) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.holds(route))
    }

    /// Prepares for a command with a key of this route, which is about to be appended.
    #[inline]
    pub(crate) fn begin_command(&mut self, route: u16) {
        self.in_flight.set_route(route);
        if self.is_asking(route) {
            self.push_asking();
        }
    }

    #[cold]
    fn push_asking(&mut self) {
        self.send.bytes().extend_from_slice(ASKING);
        self.in_flight.push_control(ASKING.len(), Expect::Asking);
    }

    /// Whether new commands of a route queue up behind those that wait to be sent again.
    #[inline]
    pub(crate) fn is_held(&self, route: u16) -> bool {
        self.retry.holds(route)
    }

    /// Queues up the command in the last `length` bytes of [`send`](Self::send).
    #[cold]
    pub(crate) fn queue(&mut self, length: usize, route: u16, numbers: Numbers, rows: u64, expect: Expect) {
        let before = self.send.len() - length;
        let bytes = self.send.last(length).into();
        self.send.truncate(before);
        self.retry.queue(bytes, route, numbers, rows, expect);
    }

    /// Whether the node has answered all commands in flight, and redirected some.
    pub(crate) fn is_to_redirect(&self) -> bool {
        self.retry.has_redirect() && self.in_flight.is_empty()
    }

    /// Whether nothing waits for a reply, a confirmation or another try.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.retry.is_idle() && !self.is_unconfirmed()
    }

    /// Whether the server has been silent for so long that it must answer PING before it gets the next message.
    pub(crate) fn needs_ping(&self, now: Instant) -> bool {
        let is_silent = |session: &Session| session.progress.age(now) >= IDLE;
        !self.in_flight.awaits_reply() && !self.awaits_control() && self.session.as_deref().is_some_and(is_silent)
    }

    /// Sends PING before the next message.
    pub(crate) fn ping(&mut self) {
        if let Some(session) = &mut self.session {
            session.control = Some(Control::ping());
        }
    }

    fn control(&self) -> Option<&Control> {
        self.session.as_ref()?.control.as_ref()
    }

    /// Whether no message goes out before the reply to PING.
    pub(crate) fn awaits_control(&self) -> bool {
        self.control().is_some()
    }

    /// Whether there are bytes to send now.
    pub(crate) fn has_unsent(&mut self) -> bool {
        match self.control() {
            Some(control) => !control.is_sent(),
            None => !self.send.is_empty() && self.sendable() > 0,
        }
    }

    /// Whether the bytes to send now are in one piece.
    pub(crate) fn is_in_one_piece(&self) -> bool {
        // A cluster's commands are kept, and so in one piece.
        self.awaits_control() || self.send.contiguous().is_some()
    }

    /// The bytes to send now, if they are in one piece. Otherwise they are those of [`send`](Self::send).
    pub(crate) fn contiguous(&mut self) -> Option<&[u8]> {
        let sendable = if self.node.is_some() { self.sendable() } else { usize::MAX };
        match self.control() {
            Some(control) => Some(control.unsent()),
            None => self.send.contiguous().and_then(|bytes| bytes.get(..sendable.min(bytes.len()))),
        }
    }

    /// How many bytes may go out: all, unless the node does not have the slot of the next command, or is not known to have it.
    fn sendable(&mut self) -> usize {
        match &mut self.node {
            None => self.send.len(),
            Some(_) if self.retry.has_redirect() => self.in_flight.rest_of_command(),
            Some(node) => node.sendable(&self.in_flight),
        }
    }

    /// Acts as if the server had answered a message.
    #[cfg(test)]
    pub(crate) fn prove(&mut self) {
        if let Some(session) = &mut self.session {
            session.is_proven = true;
        }
    }

    /// Acts as if the server had made progress at this time.
    #[cfg(test)]
    pub(crate) fn set_used(&mut self, used: Instant) {
        if let Some(session) = &mut self.session {
            session.progress.made(used);
        }
    }

    /// For how long the server has been silent since `started`, and for how long it may be. `None`: there is no socket. Time
    /// between calls does not count as silence of the server, unless an event loop watches the socket: then `started` is `None`.
    pub(crate) fn silence(&self, started: Option<Instant>, now: Instant) -> Option<(Duration, Duration)> {
        let session = self.session.as_ref()?;
        let since_call = started.map_or(Duration::MAX, |started| now.saturating_duration_since(started));
        let silent = session.progress.age(now).min(since_call);
        let (for_wait, _) = self.wait.as_ref().map_or((Duration::ZERO, 0), WaitTracker::patience);
        Some((silent, session.command_timeout + for_wait))
    }

    /// Whether there is something to send, or a reply is still to come.
    pub(crate) fn awaits_answer(&self) -> bool {
        !self.in_flight.is_empty() || self.awaits_control()
    }

    /// An estimate of the bytes still to come for `replies` replies.
    pub(crate) fn still_to_come(&self, replies: usize) -> usize {
        if self.awaits_control() {
            return 1;
        }
        let (_, short) = self.wait.as_ref().map_or((Duration::ZERO, 0), WaitTracker::patience);
        self.session.as_ref().map_or(1, |session| session.replies.still_to_come(replies.saturating_sub(short)))
    }

    /// Whether replies were not read for so long that the server may have forgotten the IDMP IDs in flight: messages that are
    /// sent again could be written twice.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let is_late = |session: &Session| session.progress.age(now) > session.command_timeout + LATE;
        self.session.as_deref().is_some_and(is_late) && self.in_flight.awaits_reply()
    }

    /// Whether the socket ended between commands, on a server that has answered before: commands that wait can then go out on
    /// another socket, and none is in doubt.
    pub(crate) fn is_renewable(&self) -> bool {
        self.in_flight.is_between_commands() && self.session.as_ref().is_some_and(|session| session.is_proven)
    }

    /// Whether the socket took nothing more at the last try, or was given nothing because no more may be sent now.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Records whether the socket is stuck, after a try to send.
    pub(crate) fn tried_to_send(&mut self) {
        self.is_stuck = self.send.room() == 0;
    }

    /// Whether a call must report that a panic ended the reading of a reply. Returns true once.
    pub(crate) fn take_defect(&mut self) -> bool {
        std::mem::take(&mut self.has_defect)
    }

    /// Adds the command in the last `length` bytes of [`send`](Self::send), which carries `rows` messages from `number` on.
    #[inline]
    pub(crate) fn push(&mut self, length: usize, number: u64, rows: u32, owner: Owner) {
        self.in_flight.push(length, number, rows, Expect::EntryId, owner);
    }

    /// Adds a run of the script: `write` appends its command. The first one on a socket carries the script itself.
    pub(crate) fn push_script(&mut self, route: u16, spans: &[Span], rows: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let is_queued = self.node.is_some() && self.is_held(route);
        if !is_queued {
            self.begin_command(route);
        }
        let has_source = !is_queued && !std::mem::replace(&mut self.knows_script, true);
        let out = self.send.bytes();
        let before = out.len();
        write(out);
        if has_source {
            let command = script::with_source(&out[before..]);
            out.truncate(before);
            out.extend_from_slice(&command);
        }
        let (length, numbers, expect) = (out.len() - before, Numbers::of(spans), Expect::ScriptRun { has_source });
        if is_queued {
            self.queue(length, route, numbers, rows.into(), expect);
        } else {
            self.in_flight.push_scattered(length, &numbers, rows, expect, Owner::Report);
        }
    }

    /// Where the next bytes of the server go.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.session.as_mut().map_or(&mut [], |session| session.replies.space())
    }

    /// Advances past the first `count` bytes to send, which the transport took.
    pub(crate) fn sent(&mut self, count: usize, now: Instant) {
        let Some(session) = &mut self.session else { return };
        // What the socket takes is progress even if it is little: a peer opens its window in larger steps.
        session.progress.made(now);
        if let Some(control) = &mut session.control {
            return control.advance(count);
        }
        self.send.advance(count);
        self.in_flight.hand_over(count);
    }

    /// Takes the `count` bytes that arrived in [`space`](Self::space), and resolves the messages whose replies are complete.
    pub(crate) fn received<O: Outcomes>(&mut self, count: usize, cx: &mut Context<'_, O>) -> Result<(), Disconnect> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        session.replies.filled(count);
        let (before, had_control) = (self.in_flight.answered(), session.control.is_some());
        let matched = self.match_replies(&mut session, cx);
        let is_answered = self.in_flight.answered() > before;
        session.is_proven |= is_answered;
        if is_answered || (had_control && session.control.is_none()) {
            session.progress.made(cx.now);
        } else {
            session.progress.moved(count, cx.now);
        }
        let unread = session.replies.unread();
        let is_status = session.control.as_ref().is_some_and(Control::is_sent);
        self.session = Some(session);
        matched?;
        self.take_back_unsent(cx);
        self.send.release(self.in_flight.front());
        if unread > 0 && !self.in_flight.awaits_reply() && !is_status {
            // The rest of that reply would arrive with the next command in flight, and be used as its reply.
            return Err(faults::protocol("a reply that no command was waiting for").into());
        }
        Ok(())
    }

    /// Takes back unsent commands if the node does not have a slot and has answered the others: they may have to go to another
    /// node.
    pub(crate) fn take_back_unsent<O: Outcomes>(&mut self, cx: &mut Context<'_, O>) {
        if self.retry.has_redirect() && self.in_flight.is_between_commands() && !self.in_flight.is_empty() {
            let elsewhere = || cx.failure(&Fault::new(code::NO_SLOT, "another node has the slot"), Written::No);
            let failure = self.retry.redirected().unwrap_or_else(elsewhere);
            self.take_back(&failure, cx);
        }
    }

    /// Takes back commands of which the transport has no byte: they are sent later, perhaps to another node. `failure`: theirs if
    /// they are not.
    pub(crate) fn take_back<O: Outcomes>(&mut self, failure: &Arc<Failure>, cx: &mut Context<'_, O>) {
        while let Some(command) = self.in_flight.abandon() {
            if !matches!(command.expect, Expect::Wait | Expect::Asking) {
                let refusal =
                    Refusal { failure: Arc::clone(failure), is_retried: true, is_free: true, is_redirect: false };
                self.fail_or_retry(refusal, &command, cx);
            }
        }
        self.restart();
    }

    /// Resets offsets and the counts of commands and WAITs: nothing is in flight any more.
    fn restart(&mut self) {
        if let Some(wait) = &mut self.wait {
            wait.forget_requests(&self.in_flight);
        }
        if let Some(node) = &mut self.node {
            node.restart();
        }
        self.send.clear();
    }

    fn match_replies<O: Outcomes>(&mut self, session: &mut Session, cx: &mut Context<'_, O>) -> Result<(), Disconnect> {
        let Session { replies, control, .. } = session;
        // A control command goes out while nothing else is in flight.
        let status = |control: &Control| control.is_sent().then_some(Expect::Status);
        while let Some(expect) = control.as_ref().map_or_else(|| self.in_flight.expects(), status) {
            let reply = contain(|| {
                fail::point("scan");
                replies.next(expect)
            });
            let reply = reply.map_err(|_| {
                self.has_defect = true;
                Fault::new(code::INTERNAL, "a defect in headrace: a reply could not be read")
            })?;
            match reply {
                Ok(Some(_)) if expect == Expect::Status => *control = None,
                Ok(Some(Reply::Ids { first, count })) => self.appended(first, count, cx)?,
                Ok(Some(Reply::Run(run))) => self.answered_run(&run, cx)?,
                Ok(Some(reply)) => self.answered(&reply, cx)?,
                Ok(None) => return Ok(()),
                Err(violation) => return Err(faults::protocol(violation.0).into()),
            }
        }
        Ok(())
    }

    /// Resolves `count` entries, which got IDs that follow each other.
    fn appended<O: Outcomes>(
        &mut self,
        mut id: EntryId,
        mut count: u64,
        cx: &mut Context<'_, O>,
    ) -> Result<(), Disconnect> {
        while count > 0 {
            let is_trimmed = cx.rules.min_id.is_some_and(|min_id| id < min_id);
            let names_streams = self.wait.as_ref().is_some_and(WaitTracker::names_streams);
            let one_by_one = is_trimmed || self.retry.is_resending() || names_streams;
            let (number, mut entries, route) = if one_by_one { (0, 0, 0) } else { self.in_flight.answer_plain(count) };
            if entries > 0 {
                fail::point("settle");
                self.accept(route, None);
                let outcome = Outcome::Delivered { first: id, entries, rows: 1 };
                self.deliver(number, outcome, Owner::Report, (route, None), cx);
            } else {
                self.answered(&Reply::Ids { first: id, count: 1 }, cx)?;
                entries = 1;
            }
            count -= entries;
            id.seq = id.seq.wrapping_add(entries);
        }
        Ok(())
    }

    /// Marks the route as accepted by the node. `stream`: see [`held_stream`](Self::held_stream).
    #[inline]
    fn accept(&mut self, route: u16, stream: Option<&Arc<[u8]>>) {
        if let Some(node) = &mut self.node {
            node.accept(route);
            if let Some(wait) = &mut self.wait {
                wait.keep(route, stream);
            }
        }
    }

    /// Handles the reply to the first command in flight.
    fn answered<O: Outcomes>(&mut self, reply: &Reply<'_>, cx: &mut Context<'_, O>) -> Result<(), Disconnect> {
        fail::point("settle");
        let Some(command) = self.in_flight.answer() else {
            return Err(faults::protocol("a reply that no command was waiting for").into());
        };
        let is_whole = command.sent == Sent::All;
        match command.expect {
            Expect::Wait => return self.answered_wait(reply, is_whole, cx),
            Expect::Asking => return answered_asking(reply, is_whole),
            Expect::EntryId | Expect::ScriptRun { .. } | Expect::Status => {}
        }
        let redirect = match *reply {
            Reply::Error(line) if is_whole && self.node.is_some() => Redirect::read(line),
            _ => None,
        };
        match (&mut self.node, reply) {
            (Some(node), Reply::Error(line)) => node.refuse(command.route, line, redirect.as_ref()),
            (Some(_), _) => self.accept(command.route, self.held_stream(&command).as_ref()),
            (None, _) => {}
        }
        // The rest of a command that was answered too early must not go out: a server would read it as commands.
        let mut ends = None;
        let rules = cx.rules;
        let outcome = match *reply {
            Reply::Ids { first: id, .. } if is_whole => match rules.min_id {
                Some(min_id) if id < min_id => Err((faults::trimmed(id, min_id), Written::Unknown)),
                Some(_) | None => Ok(id),
            },
            Reply::Nil if is_whole && rules.nomkstream => Err((faults::no_stream(), Written::No)),
            Reply::Error(line) if Fault::from_reply(line).text == ReplyText::ProtocolError => {
                let message = "the server closed the connection over a message before this one";
                let fault = Fault::new(code::RESET, message);
                ends = Some(Disconnect { fault, may_be_written: false, is_final: false });
                let fault = Fault::from_reply(line);
                let fault = if rules.exactly_once && command.rows > 1 {
                    faults::one_too_large(command.rows, &fault)
                } else {
                    faults::too_large(fault)
                };
                Err((fault, cx.batch.unattempted))
            }
            Reply::Error(line) if is_whole && rules.exactly_once && faults::is_gap(line) => Err(self.gap(line, cx)),
            Reply::Error(line) if is_whole => match faults::uncovered(line) {
                Some(fault) if rules.exactly_once => Err((fault, Written::Unknown)),
                Some(_) | None => Err((Fault::from_reply(line), cx.batch.unattempted)),
            },
            Reply::Ids { .. }
            | Reply::Nil
            | Reply::Error(_)
            | Reply::Run(_)
            | Reply::Acknowledged { .. }
            | Reply::Status(_) => {
                let fault = faults::protocol(match reply {
                    _ if !is_whole => "a reply too early",
                    Reply::Nil => "nil without NOMKSTREAM",
                    _ => "no entry ID where one was expected",
                });
                ends = Some(fault.clone().into());
                Err((fault, Written::Unknown))
            }
        };
        match outcome {
            Ok(first) => {
                let rows = command.rows;
                self.settle(&command, [Outcome::Delivered { first, entries: 1, rows }], cx);
            }
            Err((fault, written)) => {
                let mut refusal = self.refusal(&fault, written, command.expect, cx);
                if let Some(redirect) = redirect.filter(|_| cx.outcomes.awaits(command.number(), command.owner)) {
                    (refusal.is_retried, refusal.is_free, refusal.is_redirect) = (true, true, true);
                    self.note_detour(&command, redirect, rules.max_redirects.unwrap_or_default());
                }
                self.fail_or_retry(refusal, &command, cx);
            }
        }
        ends.map_or(Ok(()), Err)
    }

    /// Records the redirect of a command.
    fn note_detour(&mut self, command: &Command, redirect: Redirect, most: u32) {
        let stream = self.held_stream(command);
        if let Some(wait) = &mut self.wait {
            if redirect.is_ask {
                wait.hand_over_stream(stream);
            } else {
                wait.hand_over(command.route);
            }
        }
        // The detour is for the command's own slot: if the node names another slot, that is ignored.
        let (route, bytes) = (command.route, self.send.kept(command.bytes.clone()));
        let asked = redirect.is_ask.then(|| stream_key(bytes).into());
        self.retry.note_detour(command.number(), Detour { route, asked, redirect }, most);
    }

    /// Handles the reply to a run of the script.
    fn answered_run<O: Outcomes>(
        &mut self,
        reply: &ScriptReply<'_>,
        cx: &mut Context<'_, O>,
    ) -> Result<(), Disconnect> {
        fail::point("settle");
        let Some(command) = self.in_flight.answer() else {
            return Err(faults::protocol("a reply that no command was waiting for").into());
        };
        self.accept(command.route, self.held_stream(&command).as_ref());
        let rows = command.rows;
        let done = reply.deduplicated.saturating_add(reply.appended);
        if command.sent != Sent::All || done > rows || (done == rows) != reply.refused.is_empty() {
            // The reply cannot be correct: the rows are in doubt.
            let broken = Disconnect::from(faults::protocol("a reply that does not fit its run"));
            let refusal = self.refusal(&broken.fault, Written::Unknown, command.expect, cx);
            self.fail_or_retry(refusal, &command, cx);
            return Err(broken);
        }
        // The first rows have their outcomes already if the run was sent before.
        let known = self.retry.in_flight(command.number()).map_or(0, |pending| pending.known());
        let mut outcomes = Vec::new();
        if reply.deduplicated > known {
            outcomes.push(Outcome::Deduplicated { count: reply.deduplicated - known });
        }
        let mut skipped = known.saturating_sub(reply.deduplicated);
        for (first, count) in reply.ids() {
            let skip = skipped.min(count);
            skipped -= skip;
            let (first, count) = (first.after(skip), count - skip);
            match cx.rules.min_id {
                Some(min_id) if first < min_id => outcomes.extend((0..count).map(|more| match first.after(more) {
                    id if id < min_id => {
                        let failure = cx.failure(&faults::trimmed(id, min_id), Written::Unknown);
                        Outcome::Failed { failure, count: 1 }
                    }
                    first => Outcome::Delivered { first, entries: 1, rows: 1 },
                })),
                Some(_) | None if count > 0 => {
                    outcomes.push(Outcome::Delivered { first, entries: count, rows: 1 });
                }
                Some(_) | None => {}
            }
        }
        if reply.refused.is_empty() {
            self.settle(&command, outcomes, cx);
        } else {
            self.refuse_rest(reply.refused, outcomes, rows - done.max(known), &command, cx);
        }
        Ok(())
    }

    /// Handles the refusal of the next row of a run: it and the `open - 1` rows after it were not written. `outcomes`: those of
    /// the rows before it.
    fn refuse_rest<O: Outcomes>(
        &mut self,
        refused: &[u8],
        mut outcomes: Vec<Outcome>,
        open: u64,
        command: &Command,
        cx: &mut Context<'_, O>,
    ) {
        let fault = if refused == b"NO_STREAM" { faults::no_stream() } else { Fault::from_reply(refused) };
        let Refusal { failure, is_retried, is_free, .. } = self.refusal(&fault, Written::No, command.expect, cx);
        let behind = (open > 1).then(|| cx.failure(&faults::blocked(), Written::No));
        if is_retried && cx.outcomes.awaits(command.number(), command.owner) {
            let known = self.retry.in_flight(command.number()).map(|pending| pending.known());
            self.deliver_all(command, known.unwrap_or(0), outcomes, cx);
            if known.is_some() {
                self.retry.put_back(open, failure, behind, is_free);
            } else {
                let pending = self.pending(command, failure).with_open(open, behind).free_if(is_free);
                self.retry.push(pending, cx.now);
            }
            return;
        }
        cx.batch.is_blocked = true;
        outcomes.push(Outcome::Failed { failure, count: 1 });
        outcomes.extend(behind.map(|failure| Outcome::Failed { failure, count: open - 1 }));
        self.settle(command, outcomes, cx);
    }

    /// Why the marker is not where a run starts.
    fn gap<O>(&self, line: &[u8], cx: &Context<'_, O>) -> (Fault, Written) {
        if cx.batch.is_blocked || self.retry.has_root() {
            return (faults::blocked(), Written::No);
        }
        (faults::marker_lost(line), cx.batch.unattempted)
    }

    fn refusal<O>(&self, fault: &Fault, written: Written, expect: Expect, cx: &Context<'_, O>) -> Refusal {
        let is_safe = written == Written::No || cx.rules.exactly_once;
        let retries = cx.rules.retry.as_ref().is_some_and(|retry| is_safe || retry.retry_unknown);
        let follows = fault.code == code::BLOCKED && self.retry.has_root();
        let is_free = lacks_script(expect, &fault.code);
        let is_retried = is_free
            || (follows && (retries || self.retry.is_free()))
            || (retries && cx.rules.classifier.may_pass(fault));
        Refusal { failure: cx.failure(fault, written), is_retried, is_free, is_redirect: false }
    }

    /// Handles a failed command: it is sent again, or its messages get their outcome.
    fn fail_or_retry<O: Outcomes>(&mut self, refusal: Refusal, command: &Command, cx: &mut Context<'_, O>) {
        let Refusal { failure, is_retried, is_free, is_redirect } = refusal;
        let pending = self.retry.in_flight(command.number()).map(|pending| pending.open);
        let open = pending.unwrap_or(command.rows);
        if !is_retried || !cx.outcomes.awaits(command.number(), command.owner) {
            cx.batch.is_blocked = true;
            self.settle(command, [Outcome::Failed { failure, count: open }], cx);
        } else if pending.is_some() {
            self.retry.put_back(open, failure, None, is_free);
        } else {
            let pending = self.pending(command, failure).free_if(is_free);
            self.retry.push(if is_redirect { pending.after_redirect() } else { pending }, cx.now);
        }
    }

    /// A command that must be sent again.
    fn pending(&self, command: &Command, failure: Arc<Failure>) -> PendingRetry {
        PendingRetry::new(command, self.send.kept(command.bytes.clone()).into(), failure)
    }

    /// Gives these outcomes to the messages of a command that have none.
    fn settle<O: Outcomes>(
        &mut self,
        command: &Command,
        outcomes: impl IntoIterator<Item = Outcome>,
        cx: &mut Context<'_, O>,
    ) {
        match self.retry.in_flight(command.number()).map(|pending| pending.known()) {
            None => self.deliver_all(command, 0, outcomes, cx),
            Some(known) if self.retry.finish() => {
                self.deliver_all(command, known, outcomes.into_iter().map(Outcome::after_doubt), cx);
            }
            Some(known) => self.deliver_all(command, known, outcomes, cx),
        }
    }

    /// Resolves the messages of a command after the first `known` ones.
    fn deliver_all<O: Outcomes>(
        &mut self,
        command: &Command,
        known: u64,
        outcomes: impl IntoIterator<Item = Outcome>,
        cx: &mut Context<'_, O>,
    ) {
        let (owner, route, stream) = (command.owner, command.route, self.held_stream(command));
        command.numbers.assign(known, outcomes, |number, outcome| {
            self.deliver(number, outcome, owner, (route, stream.as_ref()), cx);
        });
    }

    /// Resolves messages, or holds their outcome until WAIT confirms it.
    #[inline]
    fn deliver<O: Outcomes>(
        &mut self,
        number: u64,
        outcome: Outcome,
        owner: Owner,
        (route, stream): (u16, Option<&Arc<[u8]>>),
        cx: &mut Context<'_, O>,
    ) {
        match &mut self.wait {
            Some(wait) if outcome.is_written() => wait.hold(number, outcome, owner, route, stream),
            Some(_) | None => cx.outcomes.resolve(number, outcome, owner),
        }
    }

    /// Whether outcomes wait for WAIT.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.wait.as_ref().is_some_and(WaitTracker::is_holding)
    }

    /// Whether there are commands after the last WAIT.
    pub(crate) fn has_unrequested(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.has_unrequested(&self.in_flight))
    }

    /// How many more commands may be added before the next WAIT.
    #[inline]
    pub(crate) fn until_wait(&self) -> u64 {
        self.wait.as_ref().map_or(u64::MAX, |wait| wait.until_due(&self.in_flight))
    }

    /// Appends a WAIT, if there are commands for it to cover.
    pub(crate) fn request_wait(&mut self) {
        if let Some(wait) = &mut self.wait
            && wait.has_unrequested(&self.in_flight)
        {
            wait.request(&mut self.in_flight, &mut self.send);
        }
    }

    /// Appends a WAIT if entries or retries wait for one, unless one is in flight. Returns whether it did.
    pub(crate) fn request_wait_for_answered(&mut self) -> bool {
        let waits = self.is_unconfirmed() || self.retry.is_active();
        let is_due = waits
            && self.session.is_some()
            && self.has_unrequested()
            && !self.wait.as_ref().is_some_and(WaitTracker::is_waiting);
        if is_due {
            self.request_wait();
        }
        is_due
    }

    /// Handles the reply to a WAIT.
    fn answered_wait<O: Outcomes>(
        &mut self,
        reply: &Reply<'_>,
        is_whole: bool,
        cx: &mut Context<'_, O>,
    ) -> Result<(), Disconnect> {
        let Some(wait) = &mut self.wait else { return Ok(()) };
        let missing = match *reply {
            Reply::Acknowledged { local, replicas } if is_whole => wait.shortfall(local, replicas),
            Reply::Error(line) if is_whole => Some(wait.durability.refused(line)),
            Reply::Acknowledged { .. }
            | Reply::Error(_)
            | Reply::Ids { .. }
            | Reply::Nil
            | Reply::Run(_)
            | Reply::Status(_) => {
                let message = format!(
                    "the server sent no valid reply to {}; the connection was replaced",
                    wait.durability.name()
                );
                return Err(Fault::new(code::PROTOCOL, message).into());
            }
        };
        confirm(wait.answered(), missing.as_ref(), cx);
        Ok(())
    }

    /// Fails the unconfirmed entries of a socket that is gone: nothing can confirm them any more.
    pub(crate) fn lose_unconfirmed<O: Outcomes>(&mut self, fault: &Fault, cx: &mut Context<'_, O>) {
        if let Some(wait) = &mut self.wait {
            let lost = wait.durability.lost(fault);
            confirm(wait.lose(), Some(&lost), cx);
        }
    }

    /// Handles the end of the socket, and with it the loss of all bytes: every command in flight fails, or is sent again.
    pub(crate) fn disconnected<O: Outcomes>(&mut self, broken: &Disconnect, cx: &mut Context<'_, O>) {
        self.closed();
        self.lose_unconfirmed(&broken.fault, cx);
        if broken.is_final {
            self.retry.note_given_up();
        }
        while let Some(command) = self.in_flight.abandon() {
            if matches!(command.expect, Expect::Wait | Expect::Asking) {
                continue;
            }
            let in_doubt = command.sent != Sent::Nothing && broken.may_be_written;
            let written = if in_doubt { Written::Unknown } else { cx.batch.unattempted };
            let mut refusal = self.refusal(&broken.fault, written, command.expect, cx);
            refusal.is_retried &= !broken.is_final;
            self.fail_or_retry(refusal, &command, cx);
        }
        self.restart();
        if broken.is_final {
            self.give_up_retries(cx);
        }
    }

    /// Fails all waiting commands, which were handed to no socket, with `failure`: there will be no socket.
    pub(crate) fn fail_all<O: Outcomes>(&mut self, failure: &Arc<Failure>, cx: &mut Context<'_, O>) {
        self.retry.note_given_up();
        while let Some(command) = self.in_flight.abandon() {
            if matches!(command.expect, Expect::Wait | Expect::Asking) {
                continue;
            }
            cx.batch.is_blocked = true;
            let open = self.retry.in_flight(command.number()).map_or(command.rows, |pending| pending.open);
            self.settle(&command, [Outcome::Failed { failure: Arc::clone(failure), count: open }], cx);
        }
        self.restart();
        self.give_up_retries(cx);
    }

    /// Fails every command that waits to be sent again.
    pub(crate) fn give_up_retries<O: Outcomes>(&mut self, cx: &mut Context<'_, O>) {
        self.retry.note_given_up();
        self.give_up_streams(|_, _| true, cx);
    }

    /// Fails the commands that wait for a policy, and the others of their streams. Returns whether commands are left.
    pub(crate) fn give_up_tries<O: Outcomes>(&mut self, cx: &mut Context<'_, O>) -> bool {
        self.retry.note_given_up();
        let streams = self.retry.streams_to_give_up();
        self.give_up_streams(|route, stream| streams.contains(route, stream), cx);
        !self.retry.is_empty()
    }

    fn give_up_streams<O: Outcomes>(
        &mut self,
        is_given_up: impl Fn(u16, Option<&[u8]>) -> bool,
        cx: &mut Context<'_, O>,
    ) {
        for pending in self.retry.extract(|pending| is_given_up(pending.route, Some(pending.stream_key()))) {
            cx.batch.is_blocked = true;
            let (numbers, known, owner) = (pending.numbers.clone(), pending.known(), pending.owner);
            numbers.assign(known, pending.outcomes(), |number, outcome| cx.outcomes.resolve(number, outcome, owner));
        }
        if let Some(wait) = &mut self.wait {
            // No further command is sent whose WAIT could confirm what was written before the slot moved.
            let lost = wait.durability.lost(&Fault::new("MOVED", "another node has the stream"));
            confirm(wait.give_up(is_given_up), Some(&lost), cx);
        }
    }

    /// Fails entries that can never be confirmed, if nothing is in flight or waits to be sent: their slot moved on before a write
    /// showed that the node has it.
    pub(crate) fn give_up_unprovable<O: Outcomes>(&mut self, cx: &mut Context<'_, O>) {
        let waits = !self.retry.is_empty() || self.retry.has_parked();
        if self.is_unconfirmed() && self.in_flight.is_empty() && !waits && !self.has_unrequested() {
            self.give_up_streams(|_, _| true, cx);
        }
    }

    /// The next step of the retries. `None`: there are none, or commands are in flight or wait for WAIT.
    pub(crate) fn retry_step(&mut self, rules: &Rules, now: Instant, jitter: f64) -> Option<RetryStep> {
        let is_quiet = self.in_flight.is_empty();
        let due = self.retry.unpark(now, is_quiet);
        let waits = self.has_unrequested() && !self.retry.has_redirect();
        if !self.retry.is_active() || !is_quiet || waits {
            return due.filter(|_| is_quiet).map(RetryStep::Pause);
        }
        Some(self.retry.step(rules.retry.as_ref(), self.node.is_some(), now, jitter))
    }

    /// Sends the failed commands again. Passes to `count` how many messages each command has without an outcome, and whether the
    /// last try may have written them; nothing for commands that were not tried because the server lacked the script.
    pub(crate) fn resend(&mut self, mut count: impl FnMut(u64, bool)) {
        let Self { retry, send, in_flight, node, .. } = self;
        let mut is_first = true;
        let is_policy = !retry.is_free();
        retry.resend(|pending| {
            // The server may have forgotten the script, or be another one.
            if pending.expect == (Expect::ScriptRun { has_source: false }) && std::mem::take(&mut is_first) {
                pending.bytes = script::with_source(&pending.bytes).into();
                pending.expect = Expect::ScriptRun { has_source: true };
            }
            append(pending, send, in_flight, node.as_ref());
            if is_policy && pending.was_tried() {
                count(pending.open, pending.failure.written == Written::Unknown);
            }
        });
    }

    /// Sends the commands that were queued behind retries.
    pub(crate) fn resume(&mut self) {
        let Self { retry, send, in_flight, node, .. } = self;
        for pending in retry.take_new() {
            append(&pending, send, in_flight, node.as_ref());
        }
    }

    /// Forgets everything, after a panic in the middle of a change or in a forked child.
    pub(crate) fn forget(&mut self) {
        self.closed();
        self.send.clear();
        self.in_flight = InFlight::default();
        self.retry = RetryQueue::default();
        if let Some(wait) = &mut self.wait {
            wait.forget();
        }
    }
}

/// Appends a command that waited.
fn append(pending: &PendingRetry, send: &mut SendBuffer, in_flight: &mut InFlight, node: Option<&ClusterNode>) {
    in_flight.set_route(pending.route);
    if node.is_some_and(|node| node.is_asked(pending.route)) {
        send.bytes().extend_from_slice(ASKING);
        in_flight.push_control(ASKING.len(), Expect::Asking);
    }
    send.bytes().extend_from_slice(&pending.bytes);
    let (length, rows) = (pending.bytes.len(), pending.rows as u32);
    in_flight.push_scattered(length, &pending.numbers, rows, pending.expect, pending.owner);
}

/// Confirms the entries, or fails them if something is `missing`.
fn confirm<O: Outcomes>(
    entries: impl IntoIterator<Item = Unconfirmed>,
    missing: Option<&Fault>,
    cx: &mut Context<'_, O>,
) {
    let failure = missing.map(|fault| cx.failure(fault, Written::Unknown));
    for Unconfirmed { number, outcome, owner, .. } in entries {
        // A server that takes over may have neither the rows nor the progress of the batch.
        cx.batch.is_blocked |= failure.is_some();
        let outcome = failure.as_ref().map_or_else(|| outcome.clone(), |failure| outcome.failed_with(failure));
        cx.outcomes.resolve(number, outcome, owner);
    }
}

/// Handles the reply to ASKING. If it is refused, no command after it can pass.
fn answered_asking(reply: &Reply<'_>, is_whole: bool) -> Result<(), Disconnect> {
    match *reply {
        Reply::Status(_) if is_whole => Ok(()),
        Reply::Error(line) if is_whole => {
            let fault = Fault::from_reply(line).of_command("ASKING");
            Err(Disconnect { is_final: true, ..fault.into() })
        }
        _ => Err(faults::protocol("no valid reply to ASKING").into()),
    }
}
