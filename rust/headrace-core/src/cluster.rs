//! Redis Cluster, as far as bytes say it: the slot of a key, which node has which slots, and redirects. No I/O.

mod node_name;
mod redirect;
mod slot;
mod slots;

pub(crate) use node_name::NodeName;
pub(crate) use redirect::Redirect;
pub(crate) use slot::slot;
pub(crate) use slots::Slots;
