//! Validation of an Arrow IPC stream before it is decoded: each length in it is checked against the bytes, and what decoding it
//! will allocate is added up.

use std::collections::HashMap;
use std::io::{self, Read};

use arrow_ipc::{
    Buffer as Place, CompressionType, DictionaryBatch, Endianness, Field, KeyValue, MessageHeader, RecordBatch, Schema,
    root_as_message,
};
use lz4_flex::frame::FrameDecoder;

/// The first bytes of a message since version 0.15 of the format; older ones start with their length.
const CONTINUATION: [u8; 4] = [0xFF; 4];

/// The size of the length before a compressed buffer; a length of -1 marks an uncompressed one.
const LENGTH: usize = 8;

/// The greatest expansion of LZ4: 255 bytes from one (<https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>).
const LZ4_FACTOR: usize = 255;

/// The maximum that `arrow-rs` allocates for a field of a schema, its export to C included, and for a pair of metadata; besides
/// the texts in them.
const FIELD: usize = 512;

/// The maximum that `arrow-rs` allocates for an array and for a buffer, besides the values in them.
const ARRAY: usize = 512;
const BUFFER: usize = 128;

/// A result whose error is the end of a sentence whose subject is the payload.
type Check<T> = Result<T, String>;

/// What a stream claims to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Claims {
    /// The number of rows.
    pub(crate) rows: usize,
    /// The bytes of all buffers after decompression.
    pub(crate) buffers: usize,
    /// The maximum number of bytes that decoding takes besides the stream itself and the buffers: the schema, and the arrays.
    pub(crate) parts: usize,
}

/// Checks a whole stream. Its end mark must be present and be the end of the bytes. `limit`: the maximum size in bytes of its
/// rows after decompression, and of its schema.
pub(crate) fn check(bytes: &[u8], limit: usize) -> Check<Claims> {
    let mut rest = bytes;
    let mut claims = Claims::default();
    // The bytes of each dictionary so far.
    let mut dictionaries = HashMap::new();
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
        match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().ok_or_else(|| corrupt("a schema"))?;
                if schema.endianness() != Endianness::Little {
                    return Err("its numbers are big-endian".to_owned());
                }
                check_schema(schema, &mut claims, limit)?;
                has_schema = true;
            }
            MessageHeader::DictionaryBatch => {
                let batch = message.header_as_dictionary_batch().ok_or_else(|| corrupt("a dictionary"))?;
                check_dictionary(batch, body, &mut claims, &mut dictionaries, limit)?;
            }
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or_else(|| corrupt("a record batch"))?;
                claims.rows = claims.rows.saturating_add(check_batch(batch, body, &mut claims, limit)?);
            }
            _ => return Err(corrupt("the kind of a message")),
        }
    }
    match (has_schema, rest.len()) {
        (false, _) => Err("it has no schema".to_owned()),
        (true, 0) => Ok(claims),
        (true, more) => Err(format!("{more} bytes follow its end")),
    }
}

/// Adds the memory of a schema. Its parts may be shared: a few hundred bytes can describe a million fields.
fn check_schema(schema: Schema<'_>, claims: &mut Claims, limit: usize) -> Check<()> {
    let mut add = |bytes: usize| {
        claims.parts = claims.parts.saturating_add(bytes);
        if claims.parts > limit { Err(format!("its schema takes more than {limit} bytes")) } else { Ok(()) }
    };
    schema.custom_metadata().into_iter().flatten().try_for_each(|pair| add(pair_bytes(&pair)))?;
    schema.fields().into_iter().flatten().try_for_each(|field| check_field(field, &mut add))
}

fn check_field(field: Field<'_>, add: &mut dyn FnMut(usize) -> Check<()>) -> Check<()> {
    let zone = field.type_as_timestamp().and_then(|of| of.timezone()).map_or(0, str::len);
    let members = field.type_as_union().and_then(|of| of.typeIds()).map_or(0, |ids| ids.len() * size_of::<i32>());
    add(FIELD + texts(field.name().map_or(0, str::len) + zone) + members)?;
    field.custom_metadata().into_iter().flatten().try_for_each(|pair| add(pair_bytes(&pair)))?;
    field.children().into_iter().flatten().try_for_each(|child| check_field(child, add))
}

fn pair_bytes(pair: &KeyValue<'_>) -> usize {
    FIELD + texts(pair.key().map_or(0, str::len) + pair.value().map_or(0, str::len))
}

/// The memory of texts of this size in a schema: its own, and two copies while it is exported to C.
fn texts(bytes: usize) -> usize {
    bytes.saturating_mul(3)
}

/// Adds the memory of a dictionary. A delta is appended to a copy of the values before it, which earlier rows may still hold.
fn check_dictionary(
    dictionary: DictionaryBatch<'_>,
    body: &[u8],
    claims: &mut Claims,
    sizes: &mut HashMap<i64, usize>,
    limit: usize,
) -> Check<()> {
    let batch = dictionary.data().ok_or_else(|| corrupt("a record batch"))?;
    let before = claims.buffers;
    check_batch(batch, body, claims, limit)?;
    let size = sizes.entry(dictionary.id()).or_default();
    let added = claims.buffers - before;
    if dictionary.isDelta() {
        *size = size.saturating_add(added);
        claims.buffers = claims.buffers.saturating_add(*size);
    } else {
        *size = added;
    }
    if claims.buffers > limit { Err(too_large(claims.buffers, limit)) } else { Ok(()) }
}

/// Adds the memory of a record batch, and returns its number of rows.
fn check_batch(batch: RecordBatch<'_>, body: &[u8], claims: &mut Claims, limit: usize) -> Check<usize> {
    // A value takes at least one bit. Nulls take none, so without this limit any number of them could be claimed.
    let most_rows = limit.saturating_mul(8);
    let count = |length: i64| usize::try_from(length).ok().filter(|length| *length <= most_rows);
    let rows = count(batch.length()).ok_or_else(|| corrupt("the number of rows"))?;
    claims.parts = claims.parts.saturating_add(ARRAY);
    for node in batch.nodes().into_iter().flatten() {
        let length = count(node.length()).filter(|_| (0..=node.length()).contains(&node.null_count()));
        let length = length.ok_or_else(|| corrupt("the length of a column"))?;
        // To find the nulls of an array without a validity buffer, `arrow-rs` may need a bit for each value.
        claims.parts = claims.parts.saturating_add(ARRAY + length / 8);
    }
    let codec = batch.compression().map(|compression| compression.codec());
    for place in batch.buffers().into_iter().flatten() {
        let buffer = locate(place, body).ok_or_else(|| corrupt("the place of a buffer"))?;
        let claimed = match codec {
            None => buffer.len(),
            Some(_) if buffer.is_empty() => 0,
            Some(codec) => check_compressed(buffer, codec, limit - claims.buffers)?,
        };
        claims.buffers = claims.buffers.saturating_add(claimed);
        claims.parts = claims.parts.saturating_add(BUFFER);
        if claims.buffers > limit {
            return Err(too_large(claims.buffers, limit));
        }
    }
    Ok(rows)
}

fn too_large(size: usize, limit: usize) -> String {
    format!("its rows claim {size} bytes, at most {limit} are allowed")
}

/// The claimed size of a compressed buffer, or its real size if that exceeds `room`, the bytes that are left.
fn check_compressed(buffer: &[u8], codec: CompressionType, room: usize) -> Check<usize> {
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
    if codec == CompressionType::LZ4_FRAME && compressed.len().saturating_mul(LZ4_FACTOR) > room {
        let mut frame = FrameDecoder::new(compressed).take((room as u64).saturating_add(1));
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
