//! Arrow data of other libraries, taken over by the C data interface without copies, and checked as it comes in.
//!
//! ```text
//!  ArrowArrayStream ─▶ Reader ── next() ─▶ node ─▶ content ─▶ RecordBatch
//!  or ArrowArray       schema: once        buffers and      offsets, keys, views:
//!                                          children         what a read depends on
//! ```
//!
//! The interface has no sizes of buffers (<https://arrow.apache.org/docs/format/CDataInterface.html>): a producer that claims
//! more rows than it has cannot be found out. Everything that the structures can contradict each other in is refused, with
//! the column's name, before a row of the record batch is read.
//!
//! Not `arrow_array::ffi`, for four reasons: it asserts where this refuses; it follows nested types before anybody can look
//! how deep they are; it refuses what polars exports for a column of nulls; and in arrow 59 it leaves the offset of a struct
//! with the struct and its members, which adds it twice (apache/arrow-rs#9235). Here each array starts at its own first row,
//! and has no offset that could be added again.

mod abi;
mod content;
mod node;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

use arrow_schema::DataType;

pub use reader::Reader;

/// The deepest type that is read, in levels: a column of numbers has one. As pyarrow has it: a stack overflow cannot be
/// caught, and a thread may have 128 KiB of stack (musl).
pub const MAX_DEPTH: usize = 64;

/// Why a column cannot be read.
#[derive(Debug, PartialEq, Eq)]
struct Invalid {
    /// IdempotencyIds of nested fields, outermost first; empty if it is the column itself.
    path: Vec<String>,
    /// The end of a sentence that begins with the column.
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

    /// The sentence about this column.
    fn of_column(&self, column: &str) -> String {
        let subject = if self.path.is_empty() { String::new() } else { format!(", in it {:?},", self.path.join(".")) };
        format!("column {column:?}{subject} {}", self.reason)
    }
}
