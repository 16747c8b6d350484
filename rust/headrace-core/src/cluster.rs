//! Redis Cluster without I/O: the slot of a key, the owners of slots, and the effect of redirects.

mod map;
mod members;
mod moved;
mod node;
mod node_map;
mod node_name;
mod redirect;
mod routes;
mod slot;
mod slot_set;
mod slots;

pub(crate) use map::{ClusterMap, MAX_NODES, Redirected, TooManyNodes};
pub(crate) use members::Members;
pub(crate) use moved::Moved;
pub(crate) use node::Node;
pub(crate) use node_map::NodeMap;
pub(crate) use redirect::Redirect;
pub(crate) use routes::Routes;
pub(crate) use slot::{SLOTS, slot, tag};
pub(crate) use slot_set::SlotSet;
pub(crate) use slots::Slots;
