//! Rows of a record batch as an Arrow IPC stream, the content of an entry that carries many rows, and back. No I/O.
//!
//! ```text
//!  RecordBatch ─▶ Encoder ── encode(batch, rows) ─▶ schema · dictionaries · one record batch · end ─▶ decode ─▶ Decoded
//!                 once per schema                   once per entry, complete in itself
//! ```
//!
//! The format is that of <https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format>; `arrow-ipc` writes
//! and reads it. Ours is that an entry carries its own rows and nothing beside them, and that what is read was written
//! by anybody: no length that it claims is believed before it is held against what is there.

mod check;
mod clean;
mod compact;
mod decode;
mod encode;
mod nulls;
#[cfg(test)]
mod tests;

pub use decode::{Decoded, decode};
pub use encode::{Codec, Encoder};

/// The most bytes of an entry's payload: the default of the server's `proto-max-bulk-len`
/// (<https://redis.io/docs/latest/develop/reference/protocol-spec/#bulk-strings>).
pub const MAX_ENTRY_BYTES: usize = 512 << 20;

/// The most bytes that an entry's rows have when they are not compressed. Both sides hold to it, so that nothing is
/// written that cannot be read, and a few bytes that claim to be many are refused.
pub const MAX_ROWS_BYTES: usize = 1 << 30;
