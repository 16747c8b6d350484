//! The numbers of the shards of rows, for a caller that sorts rows by shard before it writes them.

use arrow_array::{Int32Array, RecordBatch};

use super::column::Column;
use super::shape::{Role, Shape};
use super::stream_keys::with_key;
use crate::error::{Error, Result};
use crate::shards::{MAX_SHARDS, ShardHash};

/// The shard number of each row, out of `shards`, by the key in the first column; null for a null key. `hash`: as the option
/// `shard_hash` of an endpoint.
pub fn shard_numbers(batch: &RecordBatch, shards: i64, hash: &str) -> Result<Int32Array> {
    let hash = ShardHash::named(hash).ok_or_else(|| {
        let message = format!("shard_hash must be one of '{}', got '{hash}'", ShardHash::NAMES.join("', '"));
        Error::config("shard_hash", message)
    })?;
    let count = usize::try_from(shards).ok().filter(|_| (1..=MAX_SHARDS).contains(&shards)).ok_or_else(|| {
        Error::config("shards", format!("shards must be an integer from 1 to {MAX_SHARDS}, got {shards}"))
    })?;
    let schema = batch.schema();
    let (Some(field), Some(array)) = (schema.fields().first(), batch.columns().first()) else {
        return Err(Error::schema("no column with the keys of shards is given"));
    };
    let shape = Shape::new(field, Role::ShardKey).map_err(|refused| {
        Error::schema(format!("the column cannot hold the keys of shards: it {}", refused.reason))
    })?;
    let keys = Column::new(array, &shape, Some(0..batch.num_rows()))
        .ok_or_else(|| Error::schema("the keys of shards are not in a column of a known type"))?;
    // The number of shards is small enough.
    let number = |row| with_key(&keys, row, |key| i32::try_from(hash.shard(key, count)).unwrap_or_default());
    Ok((0..batch.num_rows()).map(number).collect())
}
