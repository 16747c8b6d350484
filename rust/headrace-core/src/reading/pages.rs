//! What the loop of a reader needs of its session, whichever way it reads.

use std::fmt::Debug;
use std::time::Duration;

use super::batch::ReadBatch;
use super::exchange::Exchange;
use super::position::Position;
use crate::error::Result;

/// A session that hands out batches.
pub(crate) trait Pages: Exchange + Debug + Send {
    /// The next batch, or what kept it from being read.
    fn take(&mut self) -> Option<Result<ReadBatch>>;

    /// Whether [`take`](Self::take) has something.
    fn is_ready(&self) -> bool;

    /// Whether it is known where each stream begins and ends.
    fn has_begun(&self) -> bool;

    /// Whether there will be no further batch.
    fn is_finished(&self) -> bool;

    /// Writes the next commands, unless replies are to come, batches are ready or there is nothing to ask for. `waits`: for how
    /// long the server may wait for new entries; `None`: they are not asked for.
    fn request(&mut self, waits: Option<Duration>);

    /// Whether a request without a wait may get something, or what it got waits for more.
    fn has_more(&self) -> bool;

    /// Whether others use the connection too: then the next page is not asked for before the one that is here was read, for it would be
    /// their turn.
    fn share(&mut self, _is_shared: bool) {}

    /// How long to wait before [`request`](Self::request), for more entries; zero: not at all.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// The caller has waited for that long.
    fn paused(&mut self) {}

    /// Where the batches so far end.
    fn position(&self) -> Position;

    /// How many entries were lost so far, in all streams, and whether that is exact.
    fn lost(&self) -> (u64, bool);

    /// Whether entries may have been lost that the server does not count. Asked once.
    fn take_doubt(&mut self) -> bool;

    /// How many entries may still be read. Sessions that share a limit get what the others have left of it.
    fn left(&mut self) -> &mut u64;

    /// Whether no entry that was read waits for its batch, or for the proof that nothing is missing before it.
    fn is_handed_out(&self) -> bool;
}
