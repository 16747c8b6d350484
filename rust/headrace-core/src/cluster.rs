//! Redis Cluster, as far as it needs no I/O: the slot of a key, which node has which slots, and redirects.

mod members;
mod node_name;
mod redirect;
mod routes;
mod slot;
mod slot_set;
mod slots;

pub(crate) use members::Members;
pub(crate) use node_name::NodeName;
pub(crate) use redirect::Redirect;
pub(crate) use routes::Routes;
pub(crate) use slot::{SLOTS, slot, tag};
pub(crate) use slot_set::SlotSet;
pub(crate) use slots::Slots;
