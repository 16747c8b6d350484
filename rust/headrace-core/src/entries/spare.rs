//! Column builders between two batches.

use std::sync::Arc;

use super::{ColumnsPlan, EntryColumns};
use crate::resp::stream_reply::EntrySink;

/// The maximum number of builders kept of any size.
const MOST: usize = 4;
/// The maximum number of builders kept of small batches: the number of streams that one request reads.
const MOST_SMALL: usize = 64;
/// The bytes of a small batch.
const SMALL: usize = 16 * 1024;

/// Builders for later batches. Each has reserved as much memory as its last batch took.
#[derive(Debug)]
pub(crate) struct SpareColumns {
    plan: Arc<ColumnsPlan>,
    #[allow(clippy::vec_box)] // a builder is large, and goes from hand to hand
    kept: Vec<Box<EntryColumns>>,
}

impl SpareColumns {
    pub(crate) const fn new(plan: Arc<ColumnsPlan>) -> Self {
        Self { plan, kept: Vec::new() }
    }

    pub(crate) fn plan(&self) -> &ColumnsPlan {
        &self.plan
    }

    /// Takes a builder for a batch of this stream.
    pub(crate) fn take(&mut self, stream: &[u8]) -> Box<EntryColumns> {
        let mut columns = self.kept.pop().unwrap_or_else(|| Box::new(EntryColumns::new(&self.plan)));
        columns.stream(stream);
        columns
    }

    /// Keeps a builder that is empty again. `bytes`: the memory of its last batch.
    pub(crate) fn keep(&mut self, columns: Box<EntryColumns>, bytes: usize) {
        let most = if bytes <= SMALL { MOST_SMALL } else { MOST };
        if self.kept.len() < most {
            self.kept.push(columns);
        }
    }
}
