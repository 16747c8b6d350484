//! Hostile bytes and hostile servers, made up from a seed: what reads replies, what encodes commands, and whole dispatchers,
//! each beside a slow model that is obviously right.
//!
//! Every target runs a little in the ordinary tests. `make fuzz TARGET=scanner EXECUTIONS=100000000 SEED=1` runs one for long;
//! `make fuzz-coverage` gives the same checks bytes that libFuzzer makes up. Execution `n` depends on the seed and `n` alone,
//! so one that fails is repeated alone, with the command that it prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, unreachable_pub, missing_docs)]
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::range_plus_one)]
#![cfg_attr(fuzzing, allow(dead_code))]

mod chance;
mod connection;
mod connections;
mod control;
mod encoder;
mod field_columns;
mod lanes;
mod run;
#[cfg(test)]
mod runner;
mod scanner;
mod server;
mod session;
mod slow;
mod stream_reply;

#[cfg(test)]
pub use runner::{is_alone, memory};

/// What libFuzzer calls: the first bytes choose, the others are what the server says.
#[cfg(fuzzing)]
pub mod targets {
    pub use super::control::from_bytes as control;
    pub use super::scanner::{Scanners, from_bytes as scanner};
}
