//! Arrow IPC streams, the payload of entries with many rows. Encodes rows of a record batch, and decodes them. No I/O.
//!
//! ```text
//!  RecordBatch ─▶ Encoder ── encode(batch, rows) ─▶ schema · dictionaries · one record batch · end ─▶ decode ─▶ Decoded
//!                 once per schema                   once per entry, self-contained
//! ```
//!
//! The format is <https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format>; `arrow-ipc` writes and reads it. This
//! module adds two things: an entry carries only its own rows, and a stream to decode is untrusted, so each length in it is
//! checked against the bytes before it is used.

mod check;
mod clean;
mod compact;
mod decode;
mod encode;
mod nulls;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use check::check;
pub(crate) use decode::decode_checked;
pub use decode::{Decoded, decode};
pub use encode::{Codec, Encoder};
pub(crate) use types::check_type;

/// The maximum size of an entry's payload in bytes, which is the default of the server's `proto-max-bulk-len`
/// (<https://redis.io/docs/latest/develop/reference/protocol-spec/#bulk-strings>).
pub const MAX_ENTRY_BYTES: usize = 512 << 20;

/// The maximum size of an entry's rows in bytes before compression. Both the encoder and the decoder enforce it: everything that
/// was written can be read, and a small payload cannot expand without bound.
pub const MAX_ROWS_BYTES: usize = 1 << 30;
