//! The names and options that each line of a consumer needs when it begins.

use std::sync::Arc;

use super::client_name::ClientName;
use super::work::Names;

/// What the lines of a consumer begin with; the same for all.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) names: Names,
    pub(super) client_name: Arc<ClientName>,
    /// Whether entries are acknowledged, and whether those of other consumers are claimed.
    pub(super) needs: (bool, bool),
    /// The ID of the last entry before the first one of a new group. `None`: groups must exist.
    pub(super) creates_after: Option<String>,
    /// Whether streams may move to another node, and then appear deleted on this one.
    pub(super) is_of_cluster: bool,
}
