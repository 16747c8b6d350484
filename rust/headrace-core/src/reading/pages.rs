//! What the loop of a reader needs from its session, in either direction of reading.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::batch::ReadBatch;
use super::buffers::Buffers;
use super::exchange::Exchange;
use super::position::Place;
use super::standing::Standing;
use crate::error::Result;

/// What a session returns of one of its streams.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) stream: Arc<[u8]>,
    /// Where to continue in the stream after this; `None`: where the reader was before.
    pub(crate) place: Option<Place>,
    /// A batch, or the error that prevented it from being read. Their positions are not set.
    pub(crate) result: Result<ReadBatch>,
}

impl Taken {
    /// How many entries of this stream it has.
    pub(super) fn entries_of(&self, stream: &[u8]) -> u64 {
        match &self.result {
            Ok(batch) if *self.stream == *stream => batch.entries,
            _ => 0,
        }
    }
}

/// A session that returns batches.
pub(crate) trait Pages: Exchange + Debug + Send {
    fn take(&mut self) -> Option<Taken>;

    /// Whether [`take`](Self::take) has a batch.
    fn is_ready(&self) -> bool;

    /// Whether it is known where each stream begins and ends.
    fn has_begun(&self) -> bool;

    /// Whether no further batch will follow.
    fn is_finished(&self) -> bool;

    /// Writes the next commands, unless replies are due, batches are ready or there is nothing to ask for. `waits`: how long the
    /// server may wait for new entries; `None`: new entries are not requested.
    fn request(&mut self, waits: Option<Duration>, buffers: &mut Buffers);

    /// Whether a request without a wait may return something, or entries that arrived wait for more.
    fn has_more(&self) -> bool;

    /// Sets whether others use the connection too. If so, the next page is not requested before the current one has been read,
    /// because it is their turn first.
    fn share(&mut self, _is_shared: bool) {}

    /// How long to wait for more entries before [`request`](Self::request); zero: not at all.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// Notes that the caller has waited that long.
    fn paused(&mut self) {}

    /// Where streams begin, if that became known since the last call; `None`: that has no ID.
    fn begun(&mut self) -> Vec<(Arc<[u8]>, Option<Place>)>;

    /// The greatest standing of its streams.
    fn standing(&self) -> Standing;

    /// Lets the server be asked again about streams that it refused; with `reports`, also about those that were replaced, and each
    /// that still cannot be read is reported again.
    fn try_again(&mut self, reports: bool);

    /// Reads a stream no longer, and forgets what was read of it and not taken. Returns whether it had the stream.
    fn drop_stream(&mut self, stream: &[u8]) -> bool;

    /// The number of entries lost so far in all streams, and whether it is exact.
    fn lost(&self) -> (u64, bool);

    /// What the caller must be told, once, of entries that were lost, beside their number: why that is not known, or not exact.
    fn take_doubt(&mut self) -> Option<&'static str>;

    /// The streams that did not exist when reading began. Returned once.
    fn take_missing(&mut self) -> Vec<Arc<[u8]>>;

    /// The number of entries that may still be read. Sessions that share a limit get what the others have left of it.
    fn left(&mut self) -> &mut u64;

    /// Whether no entry that was read is waiting for its batch, or for the proof that nothing is missing before it.
    fn is_handed_out(&self) -> bool;
}
