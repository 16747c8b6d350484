//! The socket: one connection from the host name to the last handshake reply under one deadline, then bytes in and out
//! without ever blocking.
//!
//! ```text
//!  connect: resolve ─▶ socket ─▶ tls ─▶ handshake       request: packed command ─▶ stream ─▶ lines ─▶ redis-rs parser
//!           └────────── patience: deadline, watch ──────────────────────────────────┘
//! ```
//!
//! Nothing here retries, and a connection that failed is never repaired: [`Transport::abort`] it and connect anew.

mod connect;
mod control;
mod extent;
mod handshake;
mod lines;
mod patience;
#[cfg(any(test, fuzzing))]
mod play;
mod query;
mod resolve;
mod socket;
mod stream;
mod tls;

pub use connect::connect;
pub use control::Control;
#[cfg(any(test, fuzzing))]
pub(crate) use extent::Extent;
pub(crate) use handshake::ping;
#[cfg(any(test, fuzzing))]
pub(crate) use lines::Lines;
pub use patience::{ConnectError, NeverInterrupted, Patience, Watch};
#[cfg(any(test, fuzzing))]
pub(crate) use play::{Play, set_dial};
pub use socket::Readiness;
pub use stream::Transport;
