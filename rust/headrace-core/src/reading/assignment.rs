//! Which sessions share a connection to a server, and whose turn it is. No I/O and no clock.
//!
//! A session with its own connection lets the server wait for entries. If several sessions share one, a wait for one of them
//! would block the others: they ask in turn for what is available, and pause when none of them had anything.

use std::time::{Duration, Instant};

use crate::cluster::Node;

/// The most connections to a node: one for each slot of a cluster.
pub(crate) const MAX_CONNECTIONS: i64 = 16_384;
/// The pause after the first round in which no session had anything. It doubles from round to round.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause: 64 streams on 3 nodes then cost about 1,300 commands per second. Shorter if `block` is.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A connection, and the sessions that use it.
#[derive(Debug)]
struct Place<C, O> {
    /// `None`: the only server.
    node: Option<Node>,
    /// The sessions, by number.
    members: Vec<usize>,
    /// The index of the member whose turn it is.
    turn: usize,
    /// The session that asked last.
    last: Option<usize>,
    /// The number of consecutive replies that were empty.
    empty: usize,
    /// The next pause.
    pause: Duration,
    /// The time before which nothing is requested.
    rests: Option<Instant>,
    /// The connection, if there is one, and the session that uses it: the one that opened it, or has asked since.
    channel: Option<(C, usize)>,
    /// The connection that is being opened, and the session that opens it.
    opening: Option<(O, usize)>,
    /// Whether the session that asked last must connect: its request was lost with the connection.
    is_turned_back: bool,
    /// The session that lost the connection, or could not open it. Until its next try, no other member connects.
    waits_for: Option<usize>,
    /// Whether the last attempt failed.
    has_failed: bool,
}

impl<C, O> Place<C, O> {
    fn new(node: Option<Node>, session: usize) -> Self {
        Self {
            node,
            members: vec![session],
            turn: 0,
            last: None,
            empty: 0,
            pause: FIRST_PAUSE,
            rests: None,
            channel: None,
            opening: None,
            is_turned_back: false,
            waits_for: None,
            has_failed: false,
        }
    }

    fn remove(&mut self, session: usize) {
        let Some(index) = self.members.iter().position(|member| *member == session) else { return };
        self.members.remove(index);
        self.opening.take_if(|(_, by)| *by == session);
        self.waits_for.take_if(|at| *at == session);
        if index < self.turn {
            self.turn -= 1;
        }
        if self.turn >= self.members.len() {
            self.turn = 0;
        }
    }
}

/// The connections of a reader to its servers, each with the sessions that use it.
#[derive(Debug)]
pub(crate) struct Assignment<C, O> {
    /// The most connections to a node.
    most: usize,
    longest_pause: Duration,
    places: Vec<Place<C, O>>,
    /// The connection of each session, by its number.
    of: Vec<Option<usize>>,
}

impl<C, O> Assignment<C, O> {
    /// At most `most` connections to each node. `block`: how long the server would wait for entries.
    pub(crate) fn new(most: usize, block: Duration) -> Self {
        Self { most: most.max(1), longest_pause: LONGEST_PAUSE.min(block), places: Vec::new(), of: Vec::new() }
    }

    /// The number of connections, including any that have lost all their sessions.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Forgets the connections without a session: their numbers are reused.
    pub(crate) fn drop_empty(&mut self) {
        if self.places.iter().all(|place| !place.members.is_empty()) {
            return;
        }
        self.places.retain(|place| !place.members.is_empty());
        for (at, place) in self.places.iter().enumerate() {
            place.members.iter().for_each(|member| self.of[*member] = Some(at));
        }
    }

    /// The connection that a session uses.
    pub(crate) fn place(&self, session: usize) -> Option<usize> {
        self.of.get(session).copied().flatten()
    }

    /// The node that a connection leads to. `None`: the only server.
    pub(crate) fn node(&self, place: usize) -> Option<&Node> {
        self.places[place].node.as_ref()
    }

    /// Whether several sessions use a connection.
    pub(crate) fn is_shared(&self, place: usize) -> bool {
        self.places[place].members.len() > 1
    }

    /// The sessions that use a connection, starting with the one whose turn it is.
    pub(crate) fn order(&self, place: usize) -> impl Iterator<Item = usize> {
        let Place { members, turn, .. } = &self.places[place];
        members[*turn..].iter().chain(&members[..*turn]).copied()
    }

    /// Assigns the session to a connection to this node, which has its stream: a new connection until the node has the most
    /// allowed, then the one with the fewest sessions. `None`: the only server. Returns which one.
    pub(crate) fn assign(&mut self, session: usize, node: Option<&Node>) -> usize {
        if let Some(place) = self.place(session) {
            if self.node(place) == node {
                return place;
            }
            self.places[place].remove(session);
        }
        let at = self.find(session, node);
        if self.of.len() <= session {
            self.of.resize(session + 1, None);
        }
        self.of[session] = Some(at);
        at
    }

    /// Makes the session a member of a connection to this node.
    fn find(&mut self, session: usize, node: Option<&Node>) -> usize {
        let of_node = |place: &Place<C, O>| place.node.as_ref() == node;
        let count = self.places.iter().filter(|place| of_node(place) && !place.members.is_empty()).count();
        let candidates = self.places.iter().enumerate().filter(|(_, place)| of_node(place));
        let fewest =
            candidates.min_by_key(|(_, place)| place.members.len()).map(|(at, place)| (at, place.members.len()));
        match fewest {
            Some((at, sessions)) if sessions == 0 || count >= self.most => {
                self.places[at].members.push(session);
                at
            }
            _ => {
                self.places.push(Place::new(node.cloned(), session));
                self.places.len() - 1
            }
        }
    }

    /// Takes the session off its connection: it is not known which node has its stream.
    pub(crate) fn remove(&mut self, session: usize) {
        if let Some(place) = self.of.get_mut(session).and_then(Option::take) {
            self.places[place].remove(session);
        }
    }

    /// Notes that the session asked without taking its turn.
    pub(crate) fn asked(&mut self, place: usize, session: usize) {
        self.places[place].last = Some(session);
    }

    /// Notes that the session asked in its turn, or could not: the sessions after it come first now.
    pub(crate) fn took_turn(&mut self, place: usize, session: usize) {
        self.asked(place, session);
        let Place { members, turn, .. } = &mut self.places[place];
        if let Some(index) = members.iter().position(|member| *member == session) {
            *turn = (index + 1) % members.len();
        }
    }

    /// Notes the reply to a session. `has_more`: it returned something, or another request may do so immediately. `active`: the
    /// number of sessions of the connection that continue to read.
    pub(crate) fn answered(&mut self, place: usize, has_more: bool, active: usize, now: Instant) {
        let Place { empty, pause, rests, .. } = &mut self.places[place];
        if has_more {
            (*empty, *pause, *rests) = (0, FIRST_PAUSE, None);
            return;
        }
        *empty += 1;
        if *empty >= active {
            let this = (*pause).min(self.longest_pause);
            (*empty, *rests, *pause) = (0, Some(now + this), (2 * this).max(FIRST_PAUSE));
        }
    }

    /// The time before which the sessions of a connection request nothing.
    pub(crate) fn rests(&self, place: usize, now: Instant) -> Option<Instant> {
        self.places[place].rests.filter(|rests| *rests > now)
    }

    /// Notes that session `by` opens the connection.
    pub(crate) fn opens(&mut self, place: usize, by: usize, opening: O) {
        self.places[place].opening = Some((opening, by));
    }

    /// The connection that is being opened, and the session that opens it.
    pub(crate) fn opening(&mut self, place: usize) -> Option<&mut (O, usize)> {
        self.places[place].opening.as_mut()
    }

    /// Whether the connection of the session is being opened.
    pub(crate) fn opens_for(&self, session: usize) -> bool {
        self.place(session).is_some_and(|place| self.places[place].opening.is_some())
    }

    /// How many connections to this node are being opened.
    pub(crate) fn opens_to(&self, node: Option<&Node>) -> usize {
        self.places.iter().filter(|place| place.opening.is_some() && place.node.as_ref() == node).count()
    }

    /// Each connection with the session that uses it, or the connection that is being opened instead with all its sessions.
    #[allow(clippy::type_complexity)] // two options
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (Option<(&mut C, usize)>, Option<(&O, &[usize])>)> {
        self.places.iter_mut().map(|Place { channel, opening, members, .. }| {
            let opening = opening.as_ref().map(|(opening, _)| (opening, &members[..]));
            (channel.as_mut().map(|(channel, at)| (channel, *at)), opening)
        })
    }

    /// Drops the connection that is being opened.
    pub(crate) fn leave_opening(&mut self, place: usize) {
        self.places[place].opening = None;
    }

    /// Notes that session `by` has opened the connection.
    pub(crate) fn opened(&mut self, place: usize, by: usize, channel: C) {
        let place = &mut self.places[place];
        (place.channel, place.opening) = (Some((channel, by)), None);
        (place.waits_for, place.has_failed, place.rests) = (None, false, None);
        // Let others ask before the session whose request was lost: the request may have been the reason.
        if std::mem::take(&mut place.is_turned_back) && place.members.get(place.turn) == Some(&by) {
            place.turn = (place.turn + 1) % place.members.len();
        }
    }

    /// Takes the connection, which is to be closed.
    pub(crate) fn take(&mut self, place: usize) -> Option<C> {
        self.places[place].channel.take().map(|(channel, _)| channel)
    }

    /// The session that uses the connection, if there is one.
    pub(crate) fn holder(&self, place: usize) -> Option<usize> {
        self.places[place].channel.as_ref().map(|(_, holder)| *holder)
    }

    /// The connection.
    pub(crate) fn channel(&mut self, place: usize) -> Option<&mut C> {
        self.places[place].channel.as_mut().map(|(channel, _)| channel)
    }

    /// All connections, each with the session that uses it.
    pub(crate) fn channels(&mut self) -> impl Iterator<Item = (&mut C, usize)> {
        self.places.iter_mut().filter_map(|place| place.channel.as_mut()).map(|(channel, holder)| (channel, *holder))
    }

    /// Gives the connection to another session.
    pub(crate) fn give(&mut self, place: usize, to: usize) {
        if let Some((_, holder)) = &mut self.places[place].channel {
            *holder = to;
        }
    }

    /// Gives the turn back to the session that asked last, if that was in its turn: its request was lost with the connection.
    /// Returns that session.
    pub(crate) fn turn_back(&mut self, place: usize) -> Option<usize> {
        let Place { members, turn, last, is_turned_back, .. } = &mut self.places[place];
        let index = members.iter().position(|member| Some(*member) == *last)?;
        if (index + 1) % members.len() == *turn {
            (*turn, *is_turned_back) = (index, true);
        }
        *last
    }

    /// Notes that the session lost the connection: it connects first.
    pub(crate) fn lost(&mut self, place: usize, by: usize) {
        self.places[place].waits_for = Some(by);
    }

    /// Notes that the session could not open the connection.
    pub(crate) fn failed(&mut self, place: usize, by: usize) {
        self.lost(place, by);
        self.places[place].has_failed = true;
    }

    /// The session before whose next try no other member connects.
    pub(crate) fn waits_for(&self, place: usize) -> Option<usize> {
        self.places[place].waits_for
    }

    /// Whether the last attempt to connect failed.
    pub(crate) fn has_failed(&self, place: usize) -> bool {
        self.places[place].has_failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Duration = Duration::from_secs(1);

    fn node(port: u16) -> Node {
        Node { host: "db".to_owned(), port }
    }

    fn order(assignment: &Assignment<(), ()>, place: usize) -> Vec<usize> {
        assignment.order(place).collect()
    }

    fn members(assignment: &Assignment<(), ()>) -> Vec<Vec<usize>> {
        (0..assignment.len()).map(|place| order(assignment, place)).collect()
    }

    #[test]
    fn slots_of_a_node_share_its_connections_evenly() {
        for (most, expected) in [
            (1, vec![vec![0, 2, 4, 5, 6], vec![1, 3]]),
            (2, vec![vec![0, 4, 6], vec![1], vec![2, 5], vec![3]]),
            (3, vec![vec![0, 5], vec![1], vec![2, 6], vec![3], vec![4]]),
            (9, (0..7).map(|session| vec![session]).collect()),
        ] {
            let mut assignment = Assignment::<(), ()>::new(most, BLOCK);
            for (session, port) in [1, 2, 1, 2, 1, 1, 1].into_iter().enumerate() {
                let place = assignment.assign(session, Some(&node(port)));
                assert_eq!((assignment.place(session), assignment.node(place)), (Some(place), Some(&node(port))));
            }
            assert_eq!(members(&assignment), expected, "at most {most}");
        }
    }

    #[test]
    fn a_slot_that_moves_changes_its_connection() {
        let mut assignment = Assignment::<(), ()>::new(1, BLOCK);
        for (session, port) in [1, 1, 1, 2].into_iter().enumerate() {
            assignment.assign(session, Some(&node(port)));
        }
        assert_eq!(assignment.assign(1, Some(&node(1))), 0, "it is there");
        assert_eq!(assignment.assign(1, Some(&node(2))), 1);
        assert_eq!(members(&assignment), [vec![0, 2], vec![3, 1]]);
        assert_eq!(assignment.assign(0, Some(&node(3))), 2);
        assert_eq!(assignment.assign(2, Some(&node(3))), 2);
        assert_eq!(members(&assignment), [vec![], vec![3, 1], vec![0, 2]]);
        assert_eq!(assignment.assign(3, Some(&node(1))), 0, "a connection without sessions is used again");
        assert_eq!(assignment.assign(3, Some(&node(2))), 1);
        assignment.drop_empty();
        assert_eq!(members(&assignment), [vec![1, 3], vec![0, 2]]);
        assignment.remove(1);
        assert_eq!((assignment.place(1), members(&assignment)), (None, vec![vec![3], vec![0, 2]]));
    }

    #[test]
    fn sessions_of_a_connection_take_turns() {
        let mut assignment = Assignment::<(), ()>::new(1, BLOCK);
        for session in [4, 5, 6, 7] {
            assignment.assign(session, Some(&node(1)));
        }
        let mut asked = Vec::new();
        for _ in 0..6 {
            let next = order(&assignment, 0)[0];
            asked.push(next);
            assignment.took_turn(0, next);
        }
        assert_eq!(asked, [4, 5, 6, 7, 4, 5]);
        assignment.took_turn(0, 6);
        assert_eq!(order(&assignment, 0), [7, 4, 5, 6], "the one in front had nothing to ask for");
        assignment.remove(4);
        assert_eq!(order(&assignment, 0), [7, 5, 6], "it is still that one's turn");
        assignment.remove(7);
        assert_eq!(order(&assignment, 0), [5, 6]);
        assignment.took_turn(0, 7);
        assert_eq!(order(&assignment, 0), [5, 6]);
    }

    #[test]
    fn a_connection_pauses_longer_and_longer_while_no_session_has_entries() {
        let pauses = |block| {
            let (mut assignment, now) = (Assignment::<(), ()>::new(1, block), Instant::now());
            for session in 0..3 {
                assignment.assign(session, Some(&node(1)));
            }
            let mut pauses = Vec::new();
            for _ in 0..10 {
                for _ in 0..2 {
                    assignment.answered(0, false, 3, now);
                }
                assert_eq!(assignment.rests(0, now + LONGEST_PAUSE), None);
                assignment.answered(0, false, 3, now);
                pauses.push(assignment.rests(0, now).map_or(0, |until| (until - now).as_millis()));
            }
            assignment.answered(0, true, 3, now);
            assert_eq!(assignment.rests(0, now), None);
            (0..3).for_each(|_| assignment.answered(0, false, 3, now));
            assert_eq!(assignment.rests(0, now), Some(now + FIRST_PAUSE));
            assert_eq!(assignment.rests(0, now + FIRST_PAUSE), None);
            pauses
        };
        assert_eq!(pauses(BLOCK), [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
        assert_eq!(pauses(Duration::from_millis(20)), [1, 2, 4, 8, 16, 20, 20, 20, 20, 20]);
    }

    #[test]
    fn a_pause_begins_after_all_active_sessions_in_a_row_had_no_entries() {
        let (mut assignment, now) = (Assignment::<(), ()>::new(1, BLOCK), Instant::now());
        for session in 0..3 {
            assignment.assign(session, Some(&node(1)));
        }
        for has_more in [false, false, true, false, false] {
            assignment.answered(0, has_more, 3, now);
            assert_eq!(assignment.rests(0, now), None);
        }
        assignment.answered(0, false, 2, now);
        assert_eq!(assignment.rests(0, now), Some(now + FIRST_PAUSE));
        assignment.opened(0, 0, ());
        assert_eq!(assignment.rests(0, now), None, "another connection is asked at once");
    }

    #[test]
    fn a_connection_is_lost_once_and_retried_later() {
        let mut assignment = Assignment::<(), ()>::new(1, BLOCK);
        assignment.assign(0, Some(&node(1)));
        assert_eq!((assignment.holder(0), assignment.take(0)), (None, None));
        assignment.opened(0, 0, ());
        assert_eq!(assignment.holder(0), Some(0));
        assert_eq!((assignment.take(0), assignment.take(0)), (Some(()), None));
        assignment.lost(0, 0);
        assert_eq!((assignment.waits_for(0), assignment.has_failed(0)), (Some(0), false));
        assignment.failed(0, 0);
        assert_eq!((assignment.waits_for(0), assignment.has_failed(0)), (Some(0), true));
        assignment.opened(0, 0, ());
        assert_eq!((assignment.waits_for(0), assignment.has_failed(0)), (None, false));
        assignment.assign(1, Some(&node(1)));
        assignment.failed(0, 0);
        assignment.opens(0, 0, ());
        assignment.remove(0);
        assert_eq!((assignment.waits_for(0), assignment.opening(0)), (None, None), "they were for this session");
    }

    #[test]
    fn a_session_whose_request_was_lost_reconnects_and_then_asks_last() {
        let mut assignment = Assignment::<(), ()>::new(1, BLOCK);
        for session in 0..3 {
            assignment.assign(session, Some(&node(1)));
        }
        for asked in [0, 1, 2] {
            assignment.took_turn(0, asked);
            assert_eq!(assignment.turn_back(0), Some(asked));
            assert_eq!(order(&assignment, 0)[0], asked, "it connects");
            assignment.opened(0, asked, ());
            assert_eq!(order(&assignment, 0)[0], (asked + 1) % 3);
        }
        assignment.opened(0, 0, ());
        assert_eq!(order(&assignment, 0), [0, 1, 2], "it has asked for nothing yet");
        assignment.turn_back(0);
        assignment.took_turn(0, 2);
        assignment.opened(0, 0, ());
        assert_eq!(order(&assignment, 0)[0], 1, "the other one was refused, and this one connected");
        assignment.opened(0, 1, ());
        assert_eq!(order(&assignment, 0)[0], 1);
    }

    #[test]
    fn requests_out_of_turn_leave_the_turns_as_they_are() {
        let mut assignment = Assignment::<(), ()>::new(1, BLOCK);
        for session in 0..3 {
            assignment.assign(session, Some(&node(1)));
        }
        assert_eq!(assignment.turn_back(0), None, "none has asked");
        assignment.took_turn(0, 0);
        for asked in [0, 1, 2] {
            assignment.asked(0, asked);
            assert_eq!(order(&assignment, 0), [1, 2, 0]);
        }
        assert_eq!(assignment.turn_back(0), Some(2));
        assignment.opened(0, 1, ());
        assert_eq!(order(&assignment, 0), [1, 2, 0]);
        assignment.remove(2);
        assert_eq!(assignment.turn_back(0), None, "it uses another connection");
    }
}
