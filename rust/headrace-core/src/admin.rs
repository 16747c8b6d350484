//! Commands outside the path of messages: a connection for one call, the right that each command needs, the meaning of a
//! refusal, and tables in Arrow format.

mod command;
mod commands;
mod kept_connections;
mod pending;
mod session;
mod shards;
mod table;

pub(crate) use command::{Command, shown};
pub use commands::{Answer, Attempt, Commands, Request};
pub(crate) use kept_connections::{KeptConnections, with_connections};
pub(crate) use pending::Pending;
pub use shards::find_shards;
pub(crate) use shards::{check_shards, check_shards_once};
pub use table::Table;
pub(crate) use table::{Cell, Column, Kind, TableBuilder};
