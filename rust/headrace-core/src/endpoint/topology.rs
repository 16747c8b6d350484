//! What an endpoint's options describe: one server, a cluster, or a server that sentinels name.

use super::given::Given;
use crate::error::Result;

/// The option `topology`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Topology {
    /// Determined by the other options.
    Auto,
    Single,
    Cluster,
    Sentinel,
}

impl Topology {
    /// The names, starting with the default.
    pub(super) const NAMES: [&str; 4] = ["auto", "single", "cluster", "sentinel"];

    pub(super) fn read(given: &mut Given) -> Result<Self> {
        Ok(match given.choice_or_default("topology")? {
            "single" => Self::Single,
            "cluster" => Self::Cluster,
            "sentinel" => Self::Sentinel,
            _ => Self::Auto,
        })
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
