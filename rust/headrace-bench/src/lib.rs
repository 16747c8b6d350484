//! Shared by the peers of the benchmarks: parsing of commands, and replies with entry IDs. Not part of headrace.

pub mod commands;
pub mod entry_ids;
