//! Tests with hostile bytes and hostile servers generated from a seed. They cover the code that reads replies, the code that
//! encodes commands, and whole dispatchers, each compared with a slow model that is obviously correct.
//!
//! Every target runs briefly in the ordinary tests. `python -m laboratory fuzz scanner --executions 100000000` runs one for a
//! long time, and `fuzz-coverage` runs the same checks on bytes that libFuzzer generates. Execution `n` depends only on the
//! seed and `n`, so a failed one can be repeated alone, with the command that it prints. It also prints the command of a simpler
//! execution that fails in the same way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, unreachable_pub, missing_docs)]
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::range_plus_one)]
#![cfg_attr(fuzzing, allow(dead_code))]

mod chance;
mod changes;
mod connection;
mod connections;
mod consuming;
mod control;
mod encoder;
#[cfg(test)]
mod failure;
mod field_columns;
mod history;
mod lanes;
mod leases;
mod liar;
mod reading;
mod reply;
mod run;
#[cfg(test)]
mod runner;
mod scanner;
mod server;
mod session;
#[cfg(test)]
mod shrink;
mod slow;
mod stream_reply;
mod tape;
mod wire;

#[cfg(all(test, feature = "shuttle"))]
pub use chance::Chance;
#[cfg(test)]
pub use runner::{is_alone, memory};

/// The entry points for libFuzzer: the first bytes control the test, the others are the server's output.
#[cfg(fuzzing)]
pub mod targets {
    pub use super::control::from_bytes as control;
    pub use super::scanner::{Scanners, from_bytes as scanner};
}
