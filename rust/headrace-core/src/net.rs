//! Connections: one deadline covers a connect, from the host name to the last handshake reply; then bytes go in and out without
//! blocking.
//!
//! ```text
//!  connect: resolve ─▶ socket ─▶ tls ─▶ handshake       request: packed command ─▶ stream ─▶ lines ─▶ redis-rs parser
//!           └────────── deadline, watch ────────────────────────────────────────────┘
//! ```
//!
//! This module never retries, and never repairs a failed connection: [`Transport::abort`] it and connect again.

mod alarm;
mod block_on;
mod change;
mod cluster_nodes;
mod connect;
mod connect_log;
mod connect_step;
mod control;
mod deadline;
mod dial;
mod handshake;
mod in_thread;
mod interest;
mod master_lookup;
#[cfg(any(test, fuzzing))]
mod mock;
mod opening;
mod peer;
mod progress;
mod query;
mod replicas;
mod resolve;
mod server_lookup;
mod shard_registry;
mod socket;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod within;

pub(crate) use alarm::Alarm;
pub(crate) use block_on::block_on;
pub use change::ServerChange;
pub(crate) use cluster_nodes::{ask_any, ask_connected, confirm, connect_to_node, is_redirect, replicas_of};
pub(crate) use connect::{connect, connect_with, decide};
pub(crate) use connect_log::ConnectLog;
pub use connect_log::NotedStep;
pub use connect_step::ConnectStep;
pub(crate) use deadline::{ConnectError, Deadline, breathe, rest};
pub use deadline::{DeferredWait, NeverInterrupted, TooFewReplicas, Watch};
pub(crate) use handshake::{create_group, make_groups};
pub use interest::Interest;
pub(crate) use master_lookup::{MasterCheck, connect_to_sentinel};
#[cfg(any(test, fuzzing))]
pub(crate) use mock::{Mock, set_mock};
pub(crate) use opening::Opening;
pub(crate) use progress::Progress;
pub(crate) use replicas::connected_replicas;
pub(crate) use server_lookup::ServerLookup;
pub(crate) use shard_registry::ShardRegistry;
#[cfg(any(test, fuzzing))]
pub(crate) use socket::Readiness;
pub(crate) use stream::{Transport, Wanted};
pub(crate) use within::{Within, ends_at, unless};
