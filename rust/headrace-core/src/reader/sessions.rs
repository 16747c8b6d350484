//! The sessions of a reader: one; in a cluster, one for each slot that holds some of its streams. No I/O and no clock.
//!
//! Each session has its own connection, so that it can wait for new entries and follow its slot to another node; or sessions
//! share connections, see `reading/pool.rs`. This module holds the state that all sessions share: the limit, the turns, and the
//! position of all streams, which is that of the batches and errors that were taken.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::reading::{Pages, Place, Position, ReadBatch, Standing, Start, Taken};

#[derive(Debug)]
pub(crate) struct Sessions {
    all: Vec<Box<dyn Pages>>,
    /// Whether the sessions are read one after the other.
    in_order: bool,
    /// The number of entries that may still be read in total.
    left: u64,
    /// The session whose turn it is.
    turn: usize,
    /// The position after the batches and errors that were taken. A loss is in it once a batch or an error has reported it.
    taken: Position,
}

impl Sessions {
    pub(crate) fn new(sessions: Vec<Box<dyn Pages>>, in_order: bool, limit: u64) -> Self {
        let taken = Position::new(in_order);
        let mut all = Self { all: sessions, in_order, left: limit, turn: 0, taken };
        (0..all.all.len()).for_each(|at| all.begin(at));
        all
    }

    fn begin(&mut self, at: usize) {
        for (stream, place) in self.all[at].begun() {
            self.taken.set(stream, place);
        }
    }

    /// The numbers of all sessions, starting with the one whose turn it is.
    pub(crate) fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let (turn, count) = (self.turn, self.all.len());
        (turn..turn + count).map(move |at| at % count)
    }

    pub(crate) fn get(&self, at: usize) -> &dyn Pages {
        &*self.all[at]
    }

    /// Runs `call` on one session. The part of the limit that the session uses is taken from the others.
    pub(crate) fn with<T>(&mut self, at: usize, call: impl FnOnce(&mut dyn Pages) -> T) -> T {
        let session = &mut self.all[at];
        let done = call(&mut **session);
        let left = *session.left();
        self.begin(at);
        if left != self.left {
            self.left = left;
            for session in &mut self.all {
                *session.left() = left;
            }
        }
        done
    }

    /// Whether a session has no more entries to read. Of several, which share the limit, one that waits is done once the limit is
    /// reached.
    fn is_done(&self, at: usize) -> bool {
        let session = self.get(at);
        session.is_finished() || (self.all.len() > 1 && self.left == 0 && session.is_handed_out())
    }

    /// Whether a session may continue now.
    pub(crate) fn is_active(&self, at: usize) -> bool {
        !self.is_done(at) && (!self.in_order || (0..at).all(|before| self.is_done(before)))
    }

    /// Whether a session's connection is no longer needed.
    pub(crate) fn is_over(&self, at: usize) -> bool {
        self.in_order && self.is_done(at)
    }

    /// Whether the start and the end of each stream are known, as far as the first batch needs them.
    pub(crate) fn has_begun(&self) -> bool {
        (0..self.all.len()).all(|at| self.get(at).has_begun() || !self.is_active(at))
    }

    pub(crate) fn is_finished(&self) -> bool {
        (0..self.all.len()).all(|at| self.is_done(at)) && !self.is_stranded()
    }

    /// Whether no stream is left that can be read, although the caller wants some.
    pub(crate) fn is_stranded(&self) -> bool {
        self.left > 0 && matches!(self.standing(), Standing::Refused | Standing::Replaced)
    }

    /// The greatest standing of all streams.
    pub(crate) fn standing(&self) -> Standing {
        Standing::greatest(self.all.iter().map(|session| session.standing()))
    }

    /// Allows new requests for streams that the server refused. If no other stream is left, they are reported again.
    pub(crate) fn try_again(&mut self) {
        let reports = self.is_stranded();
        self.all.iter_mut().for_each(|session| session.try_again(reports));
    }

    /// Stops reading a stream. Returns whether the reader read one with this key.
    pub(crate) fn drop_stream(&mut self, key: &[u8]) -> bool {
        let is_known = (0..self.all.len()).any(|at| self.with(at, |session| session.drop_stream(key)));
        if is_known {
            self.taken.set(Arc::from(key), None);
        }
        is_known
    }

    /// Reads a stream that was dropped, from here. Returns whether the reader knows the stream.
    pub(crate) fn read_stream(&mut self, key: &[u8], start: Start) -> bool {
        (0..self.all.len()).any(|at| self.with(at, |session| session.read_stream(key, start)))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.all.iter().any(|session| session.is_ready())
    }

    /// The next batch, or the error that prevented it from being read, with the number of its session.
    pub(crate) fn take(&mut self) -> Option<(usize, Result<ReadBatch>)> {
        let at = self.turns().find(|at| self.get(*at).is_ready())?;
        let Taken { stream, place, mut result } = self.with(at, |session| session.take())?;
        self.turn = (at + 1) % self.all.len();
        if place.is_some() {
            self.taken.set(stream, place);
        }
        match &mut result {
            Ok(batch) => batch.position = self.taken.clone(),
            Err(Error::DataLoss { position, .. } | Error::Field { position, .. }) => *position = self.taken.to_text(),
            Err(Error::StreamReplaced { stream, position, .. }) => {
                let mut again = self.taken.clone();
                // Entries that were trimmed from the new stream were not read either.
                let counts = !self.in_order;
                again.set(Arc::from(&**stream), counts.then(|| Place { added: Some(0), ..Place::default() }));
                *position = again.to_text();
            }
            Err(_) => {}
        }
        Some((at, result))
    }

    /// The position after the batches that were taken.
    pub(crate) fn position(&self) -> &Position {
        &self.taken
    }

    /// The number of entries lost in all streams, and whether it is exact.
    pub(crate) fn lost(&self) -> (u64, bool) {
        let add = |(entries, is_exact), (more, is_more_exact)| (entries + more, is_exact && is_more_exact);
        self.all.iter().map(|session| session.lost()).fold((0, true), add)
    }

    /// See [`Pages::take_doubt`]. Returns one doubt for all sessions.
    pub(crate) fn take_doubt(&mut self) -> Option<&'static str> {
        self.all.iter_mut().filter_map(|session| session.take_doubt()).last()
    }

    /// See [`Pages::take_missing`].
    pub(crate) fn take_missing(&mut self) -> Vec<Arc<[u8]>> {
        self.all.iter_mut().flat_map(|session| session.take_missing()).collect()
    }
}
