//! The decoder of Arrow IPC streams, which are untrusted.

use arrow_array::RecordBatch;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::{ArrowError, SchemaRef};

use super::MAX_ROWS_BYTES;
use super::check::check;
use crate::contain::contain;
use crate::error::{Error, Result};

/// The rows of one entry.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// The schema of the rows, which is present even without rows.
    pub schema: SchemaRef,
    /// The rows. [`Encoder`](super::Encoder) writes one record batch; other writers may write several.
    pub batches: Vec<RecordBatch>,
}

/// Decodes a whole stream and validates its values as Arrow requires: offsets, UTF-8, dictionary keys.
///
/// Refuses bytes that are not a stream, are truncated or corrupt, or decompress to more than
/// [`MAX_ROWS_BYTES`], before it allocates memory for them.
pub fn decode(bytes: Vec<u8>) -> Result<Decoded> {
    check(&bytes, MAX_ROWS_BYTES)
        .and_then(|_| decode_checked(bytes))
        .map_err(|reason| Error::message(format!("the payload is not a readable Arrow IPC stream: {reason}")))
}

/// Decodes a stream that was [checked](check). The error is the reason, whose subject is the stream.
pub(crate) fn decode_checked(bytes: Vec<u8>) -> std::result::Result<Decoded, String> {
    // arrow-ipc asserts some of the types and lengths in a message. No state outlives the panic.
    match contain(|| read(bytes)) {
        Ok(Ok(decoded)) => Ok(decoded),
        Ok(Err(error)) => Err(format!("it is corrupt: {error}")),
        Err(_) => Err("it is corrupt".to_owned()),
    }
}

fn read(bytes: Vec<u8>) -> std::result::Result<Decoded, ArrowError> {
    let mut bytes = Buffer::from_vec(bytes);
    let mut decoder = StreamDecoder::new();
    let mut batches = Vec::new();
    while !bytes.is_empty() {
        batches.extend(decoder.decode(&mut bytes)?);
    }
    decoder.finish()?;
    let schema = decoder.schema().ok_or_else(|| ArrowError::IpcError("no schema".to_owned()))?;
    // The C interface cannot hold names and time zones with a zero byte. A panic during the export would end the process,
    // because C calls that function.
    FFI_ArrowSchema::try_from(schema.as_ref())?;
    Ok(Decoded { schema, batches })
}
