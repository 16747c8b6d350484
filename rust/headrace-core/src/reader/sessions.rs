//! The sessions of a reader: one, or one for each slot of a cluster that has some of its streams. No I/O and no clock.
//!
//! Each has a connection of its own, so that each can wait for new entries, and follow its slot to another node; or some share one, see
//! `reading/rounds.rs`. What all share is here: the limit, the turns, and the position, which names the streams of all.

use crate::error::{Error, Result};
use crate::reading::{Pages, Position, ReadBatch};

#[derive(Debug)]
struct Member {
    session: Box<dyn Pages>,
    /// Where the batches end that were taken so far.
    handed_out: Position,
    has_begun: bool,
}

#[derive(Debug)]
pub(super) struct Sessions {
    all: Vec<Member>,
    /// Whether one is read after the other.
    in_order: bool,
    /// The entries that may still be read in all.
    left: u64,
    /// The one whose turn it is.
    turn: usize,
}

impl Sessions {
    pub(super) fn new(sessions: Vec<Box<dyn Pages>>, in_order: bool, limit: u64) -> Self {
        let member = |session: Box<dyn Pages>| Member { handed_out: session.position(), session, has_begun: false };
        Self { all: sessions.into_iter().map(member).collect(), in_order, left: limit, turn: 0 }
    }

    /// The numbers of all, from the one whose turn it is.
    pub(super) fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let (turn, count) = (self.turn, self.all.len());
        (turn..turn + count).map(move |at| at % count)
    }

    pub(super) fn get(&self, at: usize) -> &dyn Pages {
        &*self.all[at].session
    }

    /// Lets one of them go on. What it takes of the limit, the others do not have.
    pub(super) fn with<T>(&mut self, at: usize, call: impl FnOnce(&mut dyn Pages) -> T) -> T {
        let Member { session, handed_out, has_begun } = &mut self.all[at];
        let done = call(&mut **session);
        if !*has_begun && session.has_begun() {
            *has_begun = true;
            *handed_out = session.position();
        }
        let left = *session.left();
        if left != self.left {
            self.left = left;
            for member in &mut self.all {
                *member.session.left() = left;
            }
        }
        done
    }

    /// Whether it has nothing more to read. Of several, one that waits for entries when the limit is reached waits in vain.
    fn is_done(&self, at: usize) -> bool {
        let session = self.get(at);
        session.is_finished() || (self.all.len() > 1 && self.left == 0 && session.is_handed_out())
    }

    /// Whether it is to go on now.
    pub(super) fn is_active(&self, at: usize) -> bool {
        !self.is_done(at) && (!self.in_order || (0..at).all(|before| self.is_done(before)))
    }

    /// Whether its connection is of no more use.
    pub(super) fn is_over(&self, at: usize) -> bool {
        self.in_order && self.is_done(at)
    }

    /// Whether it is known where each stream begins and ends, as far as that is to be known before the first batch.
    pub(super) fn has_begun(&self) -> bool {
        (0..self.all.len()).all(|at| self.get(at).has_begun() || !self.is_active(at))
    }

    pub(super) fn is_finished(&self) -> bool {
        (0..self.all.len()).all(|at| self.is_done(at))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.all.iter().any(|member| member.session.is_ready())
    }

    /// The next batch, or what kept it from being read, and the number of its session.
    pub(super) fn take(&mut self) -> Option<(usize, Result<ReadBatch>)> {
        let at = self.turns().find(|at| self.get(*at).is_ready())?;
        let mut taken = self.with(at, |session| session.take())?;
        self.turn = (at + 1) % self.all.len();
        if self.all.len() > 1 {
            match &mut taken {
                Ok(batch) => {
                    self.all[at].handed_out.clone_from(&batch.position);
                    batch.position = self.position_behind(Some(at));
                }
                Err(Error::DataLoss { position, .. } | Error::Field { position, .. }) => {
                    if let Ok(own) = Position::parse("start", position) {
                        self.all[at].handed_out = own;
                    }
                    *position = self.position_behind(Some(at)).to_text();
                }
                Err(_) => {}
            }
        }
        Some((at, taken))
    }

    /// Where the batches so far end.
    pub(super) fn position(&self) -> Position {
        self.position_behind(None)
    }

    /// The same behind a batch that was taken just now from session `at`, which may have read on.
    fn position_behind(&self, at: Option<usize>) -> Position {
        let mut whole = Position { is_reverse: self.in_order, ..Position::default() };
        for (number, Member { session, handed_out, has_begun }) in self.all.iter().enumerate() {
            let waits = self.all.len() > 1 && (Some(number) == at || session.is_ready() || !has_begun);
            let own = if waits { handed_out.clone() } else { session.position() };
            whole.places.extend(own.places);
        }
        whole
    }

    /// How many entries were lost so far, in all streams, and whether that is exact.
    pub(super) fn lost(&self) -> (u64, bool) {
        let add = |(entries, is_exact), (more, is_more_exact)| (entries + more, is_exact && is_more_exact);
        self.all.iter().map(|member| member.session.lost()).fold((0, true), add)
    }

    /// Whether entries may have been lost that the server does not count. Asked once.
    pub(super) fn take_doubt(&mut self) -> bool {
        // Each is asked.
        self.all.iter_mut().filter_map(|member| member.session.take_doubt().then_some(())).count() > 0
    }
}
