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
mod handshake;
mod lines;
mod patience;
mod query;
mod resolve;
mod socket;
mod stream;
mod tls;

pub use connect::connect;
pub use control::Control;
pub(crate) use handshake::ping;
pub use patience::{ConnectError, NeverInterrupted, Patience, Watch};
pub use socket::Readiness;
pub use stream::Transport;
