//! The entries of one batch that await the caller's decision.
//!
//! ```text
//!           ack, fail, release               the server has it, or knows of another end
//! Held ─────────────────────────▶ Settling ───────────────────────────────────────────▶ Settled
//!  │ │ ◀──────────────────────────  │  refused                                            ▲
//!  │ │                              │ a renewal finds the entry deleted                   │
//!  │ │                              └───────────────▶ SettlingDeleted ────────────────────┤
//!  │ │ a renewal finds the entry deleted                  │ refused                       │
//!  │ └────────────────────────────────▶ Deleted ◀─────────┘                               │
//!  │                                       └──────── decided: it counts as settled ───────┤
//!  │ a renewal finds it with another consumer                                             │
//!  └────────────────────────────────▶ Stale ────────── decided: it counts as stale ───────┘
//! ```

use std::time::Duration;

use crate::resp::EntryId;

/// The state of an entry that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The caller has not decided.
    Held,
    /// The server has not confirmed the caller's decision.
    Settling,
    /// The server has not confirmed the caller's decision, and a renewal has found the entry deleted: the server no longer has
    /// it.
    SettlingDeleted,
    /// The server has the decision.
    Settled,
    /// The stream no longer has the entry, so no other consumer can get it.
    Deleted,
    /// The entry no longer belongs to this consumer, and the caller has not decided.
    Stale,
}

impl State {
    /// Whether the caller holds the entry, or the server has not confirmed its decision.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Held | Self::Settling | Self::SettlingDeleted)
    }
}

/// The entries of a batch.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) stream: usize,
    /// The IDs of the entries, ascending.
    pub(super) ids: Vec<EntryId>,
    states: Vec<State>,
    /// The counter of deliveries of each entry, as planned; a single number if it is the same for all. The server's is larger
    /// where the delivery was the first one alone: `rules::isolated` has raised it.
    deliveries: Vec<u64>,
    /// When the entries were read.
    pub(super) since: Duration,
    /// When the server last confirmed that the entries belong to this consumer.
    pub(super) confirmed: Duration,
    /// The number of entries that are not settled.
    open: usize,
    /// A renewal in progress: when it was requested, and how many entries it has not confirmed yet.
    renewal: Option<(Duration, usize)>,
}

impl Held {
    pub(super) fn new(stream: usize, ids: Vec<EntryId>, deliveries: Vec<u64>, now: Duration) -> Self {
        let open = ids.len();
        Self {
            stream,
            states: vec![State::Held; open],
            ids,
            deliveries,
            since: now,
            confirmed: now,
            open,
            renewal: None,
        }
    }

    pub(super) fn find(&self, id: EntryId) -> Option<usize> {
        let is_inside =
            self.ids.first().is_some_and(|first| *first <= id) && self.ids.last().is_some_and(|last| id <= *last);
        if is_inside { self.ids.binary_search(&id).ok() } else { None }
    }

    pub(super) fn deliveries(&self, at: usize) -> u64 {
        self.deliveries.get(at).or(self.deliveries.first()).copied().unwrap_or(1)
    }

    pub(super) fn state(&self, at: usize) -> Option<State> {
        self.states.get(at).copied()
    }

    pub(super) fn set(&mut self, at: usize, state: State) {
        let Some(now) = self.states.get_mut(at) else { return };
        if *now != State::Settled && state == State::Settled {
            self.open -= 1;
        }
        *now = state;
    }

    /// Starts a renewal of all entries that are held; returns their IDs.
    pub(super) fn renews(&mut self, now: Duration) -> Vec<EntryId> {
        let ids: Vec<EntryId> = self.in_state(State::Held).collect();
        self.renewal = Some((now, ids.len()));
        ids
    }

    /// Counts one entry as checked by the renewal that was requested at `since`.
    pub(super) fn renewed(&mut self, since: Duration) {
        if let Some((of, left)) = &mut self.renewal
            && *of == since
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.confirmed = since;
            }
        }
    }

    /// The number of entries that the server does not have a decision on yet.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Whether a renewal has found an entry with another consumer.
    pub(super) fn has_stale(&self) -> bool {
        self.renewal.is_some() && self.in_state(State::Stale).next().is_some()
    }

    /// The entries in this state.
    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = EntryId> {
        self.ids.iter().zip(&self.states).filter(move |(_, is)| **is == state).map(|(id, _)| *id)
    }
}
