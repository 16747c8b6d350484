//! Import of Arrow data from other libraries over the C data interface, without copies, and its validation.
//!
//! ```text
//!  ArrowArrayStream ─▶ Reader ── next() ─▶ node ─▶ content ─▶ RecordBatch
//!  or ArrowArray       schema: once        buffers and      offsets, keys and views,
//!                                          children         which reads rely on
//! ```
//!
//! The interface carries no buffer sizes (<https://arrow.apache.org/docs/format/CDataInterface.html>), so a producer that
//! claims more rows than it has cannot be detected. Every contradiction between the structures is refused, with the name
//! of the column, before a row of the record batch is read.
//!
//! This replaces `arrow_array::ffi`, for four reasons: that one panics where this refuses; it recurses into nested types
//! before their depth can be checked; it refuses what polars exports for a column of nulls; and in arrow 59 it applies the
//! offset of a struct to the struct and to its members, which adds it twice (apache/arrow-rs#9235). Here each array starts
//! at its own first row, and has no offset.

mod abi;
mod content;
mod node;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

use arrow_schema::DataType;

pub use reader::{Reader, read_schema};

/// The maximum number of levels of a nested type; a column of numbers has one level. The same limit as pyarrow's: a stack
/// overflow cannot be caught, and a thread may have a stack of 128 KiB (musl).
pub const MAX_DEPTH: usize = 64;

/// Why a column cannot be read.
#[derive(Debug, PartialEq, Eq)]
struct Invalid {
    /// Names of the nested fields that lead to the fault, outermost first; empty for the column itself.
    path: Vec<String>,
    /// The end of a sentence whose subject is the column.
    reason: String,
}

impl Invalid {
    fn new(reason: impl Into<String>) -> Self {
        Self { path: Vec::new(), reason: reason.into() }
    }

    fn of_type(data_type: &DataType, reason: &str) -> Self {
        Self::new(format!("is of type {data_type} and {reason}"))
    }

    fn within(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }

    /// The error text for this column.
    fn of_column(&self, column: &str) -> String {
        let subject = if self.path.is_empty() { String::new() } else { format!(", in it {:?},", self.path.join(".")) };
        format!("column {column:?}{subject} {}", self.reason)
    }
}
