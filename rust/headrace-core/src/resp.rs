//! RESP2, the wire format: the two shapes that a client sends, and the parts of the replies that it reads. No I/O.
//!
//! Wire format: <https://redis.io/docs/latest/develop/reference/protocol-spec/> (RESP2, every version of the server).

pub(crate) mod decode;
mod encode;
mod entry_id;
pub(crate) mod framing;
pub(crate) mod line_reader;
pub(crate) mod outline;
pub(crate) mod parts;
pub(crate) mod stream_reply;
pub(crate) mod value;

pub(crate) use encode::{write_array_header, write_bulk, write_bulk_length};
pub use entry_id::EntryId;
pub(crate) use entry_id::{EntryIdReader, entry_id};
