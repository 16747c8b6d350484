//! Commands outside the path of messages: a connection for one call, the right that each command needs, what a refusal means,
//! and tables in Arrow's form.

mod command;
mod commands;
mod kept_connections;
mod pending;
mod session;
mod shards;
mod table;

pub(crate) use command::{Command, shown};
pub use commands::{Answer, Attempt, Commands, Request};
pub(crate) use kept_connections::KeptConnections;
pub(crate) use pending::Pending;
pub(crate) use session::{KeptConnection, Session, with_session};
pub use shards::find_shards;
pub(crate) use shards::{check_shards, check_shards_once};
pub use table::Table;
pub(crate) use table::{Cell, Column, Kind, TableBuilder};
