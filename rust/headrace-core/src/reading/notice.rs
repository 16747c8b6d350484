//! What a caller of a reader probably did not expect, although nothing failed.

use std::sync::Arc;

use crate::entries::Misspelt;

/// Said once, as a text, in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Notice {
    /// The stream did not exist when reading began.
    Missing(Arc<[u8]>),
    Misspelt(Misspelt),
}
