//! What the benchmarks put on the other end of the line. Nothing here is part of headrace.

pub mod commands;
pub mod entry_ids;
