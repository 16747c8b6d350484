//! Validation of an Arrow IPC stream before it is decoded: each length in it is checked against the bytes.

use std::io::{self, Read};

use arrow_ipc::{Buffer as Place, CompressionType, Endianness, MessageHeader, RecordBatch, root_as_message};
use lz4_flex::frame::FrameDecoder;

/// The first bytes of a message since version 0.15 of the format; older ones start with their length.
const CONTINUATION: [u8; 4] = [0xFF; 4];

/// The size of the length before a compressed buffer; a length of -1 marks an uncompressed one.
const LENGTH: usize = 8;

/// The greatest expansion of LZ4: 255 bytes from one (<https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>).
const LZ4_FACTOR: usize = 255;

/// A result whose error is the end of a sentence whose subject is the payload.
type Check<T> = Result<T, String>;

/// Checks a whole stream. Its end mark must be present and be the end of the bytes. `limit`: the most bytes of its rows
/// after decompression.
pub(super) fn check(bytes: &[u8], limit: usize) -> Check<()> {
    let mut rest = bytes;
    let mut size = 0usize;
    let mut has_schema = false;
    loop {
        let prefix = take(&mut rest, 4, bytes)?;
        let length = if prefix == CONTINUATION { take(&mut rest, 4, bytes)? } else { prefix };
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        if length == 0 {
            break;
        }
        let metadata = take(&mut rest, length, bytes)?;
        let message = root_as_message(metadata).map_err(|_| "it is corrupt: a message cannot be parsed".to_owned())?;
        let body = usize::try_from(message.bodyLength()).map_err(|_| corrupt("the length of a body"))?;
        let body = take(&mut rest, body, bytes)?;
        let batch = match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().ok_or_else(|| corrupt("a schema"))?;
                if schema.endianness() != Endianness::Little {
                    return Err("its numbers are big-endian".to_owned());
                }
                has_schema = true;
                continue;
            }
            MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            _ => return Err(corrupt("the kind of a message")),
        };
        size = size.saturating_add(check_batch(batch.ok_or_else(|| corrupt("a record batch"))?, body, limit)?);
        if size > limit {
            return Err(format!("its rows claim {size} bytes, at most {limit} are allowed"));
        }
    }
    match (has_schema, rest.len()) {
        (false, _) => Err("it has no schema".to_owned()),
        (true, 0) => Ok(()),
        (true, more) => Err(format!("{more} bytes follow its end")),
    }
}

/// The claimed size of a record batch's buffers after decompression.
fn check_batch(batch: RecordBatch<'_>, body: &[u8], limit: usize) -> Check<usize> {
    // A value takes at least one bit. Nulls take none, so without this limit any number of them could be claimed.
    let most_rows = i64::try_from(limit.saturating_mul(8)).unwrap_or(i64::MAX);
    if !(0..=most_rows).contains(&batch.length()) {
        return Err(corrupt("the number of rows"));
    }
    for node in batch.nodes().into_iter().flatten() {
        if !(0..=most_rows).contains(&node.length()) || !(0..=node.length()).contains(&node.null_count()) {
            return Err(corrupt("the length of a column"));
        }
    }
    let codec = batch.compression().map(|compression| compression.codec());
    let mut size = 0usize;
    for place in batch.buffers().into_iter().flatten() {
        let buffer = locate(place, body).ok_or_else(|| corrupt("the place of a buffer"))?;
        let claimed = match codec {
            None => buffer.len(),
            Some(_) if buffer.is_empty() => 0,
            Some(codec) => check_compressed(buffer, codec, limit)?,
        };
        size = size.saturating_add(claimed);
    }
    Ok(size)
}

fn check_compressed(buffer: &[u8], codec: CompressionType, limit: usize) -> Check<usize> {
    let Some((length, compressed)) = buffer.split_first_chunk::<LENGTH>() else {
        return Err(corrupt("a compressed buffer"));
    };
    let claimed = i64::from_le_bytes(*length);
    if claimed == -1 {
        return Ok(compressed.len());
    }
    let claimed = usize::try_from(claimed).map_err(|_| corrupt("the length of a compressed buffer"))?;
    // Zstandard decompresses into a buffer of fixed size. An LZ4 frame is decompressed into a vector that grows, so a frame that
    // may become too large is first decompressed into a sink.
    if codec == CompressionType::LZ4_FRAME && compressed.len().saturating_mul(LZ4_FACTOR) > limit {
        let mut frame = FrameDecoder::new(compressed).take((limit as u64).saturating_add(1));
        let size = io::copy(&mut frame, &mut io::sink()).map_err(|_| corrupt("a compressed buffer"))?;
        return Ok(claimed.max(usize::try_from(size).unwrap_or(usize::MAX)));
    }
    Ok(claimed)
}

fn locate<'a>(place: &Place, body: &'a [u8]) -> Option<&'a [u8]> {
    let start = usize::try_from(place.offset()).ok()?;
    let length = usize::try_from(place.length()).ok()?;
    body.get(start..start.checked_add(length)?)
}

/// Takes the next `length` bytes of the stream.
fn take<'a>(rest: &mut &'a [u8], length: usize, all: &[u8]) -> Check<&'a [u8]> {
    match rest.split_at_checked(length) {
        Some((taken, after)) => {
            *rest = after;
            Ok(taken)
        }
        None => Err(format!("it is truncated: it has {} bytes and lacks at least {}", all.len(), length - rest.len())),
    }
}

fn corrupt(what: &str) -> String {
    format!("it is corrupt: {what} is wrong")
}
