//! Leases of whole streams: each stream has one owner at a time, and only its owner moves the position of the group.
//!
//! The server decides, by its own clock, in one script for each step: a lease has an epoch, which grows each time the lease is
//! taken, and a commit with an older one has no effect. Nobody takes a lease from another member: those that have more than their
//! share give them up.

mod doubt;
mod keys;
mod lease;
mod owned;
mod report;
mod request;
mod session;
mod share;
mod table;

pub(crate) use keys::{has_slot_of_stream, lease_key, members_key};
pub(crate) use owned::{AfterFailure, Failed};
pub use report::{SHARD_CONSUMER_COUNTERS, ShardReport};
pub(crate) use request::LeaseNames;
pub(crate) use session::{LeaseSession, lock};
pub(crate) use table::{Change, HandOut, Leases, PINS_CHANGED, Ticket};
