//! Reads an Arrow IPC stream that anybody may have written.

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
    /// The schema of the rows; it is there even if there are none.
    pub schema: SchemaRef,
    /// The rows. [`Encoder`](super::Encoder) writes one record batch; another writer may have written more.
    pub batches: Vec<RecordBatch>,
}

/// Reads a whole stream. Its values are checked as Arrow demands: offsets, UTF-8, dictionary keys.
///
/// Refuses bytes that are no stream, are cut or corrupt, or are of more than
/// [`MAX_ROWS_BYTES`] when they are decompressed, before it takes the memory for them.
pub fn decode(bytes: Vec<u8>) -> Result<Decoded> {
    check(&bytes, MAX_ROWS_BYTES).map_err(|reason| refused(&reason))?;
    // arrow-ipc asserts some of what a message says of types and lengths. It holds nothing that outlives the panic.
    match contain(|| read(bytes)) {
        Ok(Ok(decoded)) => Ok(decoded),
        Ok(Err(error)) => Err(refused(&format!("it is corrupt: {error}"))),
        Err(_) => Err(refused("it is corrupt")),
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
    // IdempotencyIds and time zones with a zero byte have no place in the C interface. There a panic would end the process: it is
    // within a function that C calls.
    FFI_ArrowSchema::try_from(schema.as_ref())?;
    Ok(Decoded { schema, batches })
}

fn refused(reason: &str) -> Error {
    Error::message(format!("the payload is no Arrow IPC stream that can be read: {reason}"))
}
