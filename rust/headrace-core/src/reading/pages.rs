//! The interface of a session to the loop of a reader, in either direction of reading.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::batch::ReadBatch;
use super::buffers::Buffers;
use super::exchange::Exchange;
use super::position::Place;
use super::range::Start;
use super::standing::Standing;
use crate::error::{Error, Result};

/// A batch or an error that a session returns for one of its streams.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) stream: Arc<[u8]>,
    /// The place at which the stream continues after this; `None`: the place does not change.
    pub(crate) place: Option<Place>,
    /// A batch, or the error that prevented it from being read. Their positions are not set.
    pub(crate) result: Result<ReadBatch>,
}

impl Taken {
    /// The number of entries of this stream, also of those that do not fit.
    pub(super) fn entries_of(&self, stream: &[u8]) -> u64 {
        match &self.result {
            _ if *self.stream != *stream => 0,
            Ok(batch) => batch.entries,
            Err(Error::Field { .. }) => 1,
            Err(_) => 0,
        }
    }
}

/// A session that returns batches.
pub(crate) trait Pages: Exchange + Debug + Send {
    fn take(&mut self) -> Option<Taken>;

    /// Whether [`take`](Self::take) has a batch.
    fn is_ready(&self) -> bool;

    /// Whether the beginning and the end of each stream are known.
    fn has_begun(&self) -> bool;

    /// Whether no further batch will follow.
    fn is_finished(&self) -> bool;

    /// Writes the next commands, unless replies are due, batches are ready or there is nothing to ask for. `waits`: how long the
    /// server may wait for new entries; `None`: new entries are not requested.
    fn request(&mut self, waits: Option<Duration>, buffers: &mut Buffers);

    /// Whether a request without a wait may return entries, or received entries wait for more.
    fn has_more(&self) -> bool;

    /// Sets whether other sessions use the connection too. If so, the next page is not requested before the current one has been
    /// read: the others come first.
    fn share(&mut self, _is_shared: bool) {}

    /// How long to wait for more entries before [`request`](Self::request); zero: not at all.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the pause: the caller has waited.
    fn paused(&mut self) {}

    /// The places where streams begin, of those whose beginning became known since the last call; `None`: the beginning has no
    /// ID.
    fn begun(&mut self) -> Vec<(Arc<[u8]>, Option<Place>)>;

    /// The greatest standing of the session's streams.
    fn standing(&self) -> Standing;

    /// Allows new requests for streams that the server refused; with `reports`, also for those that were replaced, and each that
    /// still cannot be read is reported again.
    fn try_again(&mut self, reports: bool);

    /// Stops reading a stream, and forgets its entries that were read and not taken. Returns whether the session read the stream.
    fn drop_stream(&mut self, stream: &[u8]) -> bool;

    /// Reads a stream that was dropped, from here. Returns whether the session knows the stream.
    fn read_stream(&mut self, _stream: &[u8], _start: Start) -> bool {
        false
    }

    /// The number of entries lost in all streams, and whether it is exact.
    fn lost(&self) -> (u64, bool);

    /// A note for the caller about lost entries, returned once: why their number is unknown, or not exact.
    fn take_doubt(&mut self) -> Option<&'static str>;

    /// The streams that did not exist when reading began. Returned once.
    fn take_missing(&mut self) -> Vec<Arc<[u8]>>;

    /// The number of entries that may still be read. Sessions that share a limit get the rest that the others have left.
    fn left(&mut self) -> &mut u64;

    /// Whether no entry that was read waits for its batch, or for the proof that none is missing before it.
    fn is_handed_out(&self) -> bool;
}
