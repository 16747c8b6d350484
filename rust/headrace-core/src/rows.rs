//! Encodes the rows of a record batch as the fields of entries.
//!
//! ```text
//!  Schema + Layout ─▶ RowPlan ── bind(batch) ─▶ Rows ── write_fields(row) ─▶ `$7 payload $12 {"id":1,…}`
//!                     once per schema           once per record batch       once per row: a match and a copy
//! ```
//!
//! One set of rules turns values into text, for fields and for JSON (see [`Body`]):
//!
//! | type | text |
//! |---|---|
//! | integers | decimal |
//! | bool | `true`, `false` |
//! | float16, float32, float64 | the shortest digits that parse to the same value, in Java's notation: `1.0`, `1.0E10`, `1.0E-5`, `NaN`, `-Infinity` |
//! | decimal | with its scale: `1.50`; a negative scale gives zeros. In JSON `1.2E-7` below 0.000001, as Java's `BigDecimal` |
//! | date | `2026-04-14`; years past 9999 have a sign: `+12345-01-02` |
//! | time | `12:34:56.5`: the fraction without trailing zeros |
//! | timestamp | `2026-04-14T12:00:00.5+02:00`, `…Z` at offset 0, no offset without a zone; the fraction as for time. In JSON always three digits, truncated |
//! | duration, interval | Spark's notation: `INTERVAL '1 02:03:04.5' DAY TO SECOND`, `1 months 2 days` (`rows/interval.rs`) |
//! | utf8 | unchanged; in JSON escaped where JSON requires it, and each invalid sequence is replaced with U+FFFD |
//! | binary | unchanged; in JSON base64 with padding |
//! | dictionary | the text of the value |
//! | `arrow.uuid` | `123e4567-e89b-12d3-a456-426614174000` |
//! | `arrow.bool8` | `true`, `false` |
//! | other extension types | the text of the storage type |
//!
//! A time outside a day has no text; its row fails with `BAD_VALUE`.
//!
//! JSON equals Spark's `to_json(struct(*))` with its default options (compared with Spark 4.3), with two intended
//! differences: Java before 19 prints some floats with too many digits (JDK-4511638: `1.9999999999999998E23` for 2e23),
//! where this writes the shortest; and two columns with the same name are refused, where Spark writes the key twice.

// `inline(always)` compiles the path of a value from dispatch to line into one function, which measured one eighth fewer
// instructions.
#![allow(clippy::inline_always)]

mod added;
mod batch;
mod bytes;
mod column;
mod digits;
mod entry_id;
mod entry_ids;
mod given;
mod ids;
mod interval;
mod items;
#[cfg(test)]
mod items_tests;
mod json;
mod json_rows;
mod line;
mod message;
mod plan;
mod range;
mod row_ids;
mod shape;
mod shard_numbers;
#[cfg(test)]
mod spark_tests;
mod stream_keys;
mod string;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod time;
mod timestamps;
mod value;
#[cfg(test)]
mod value_tests;
mod zone;

pub use crate::extension::OBJECTS;
pub(crate) use added::Constants;
pub use batch::Rows;
pub use ids::{CallerId, IdColumn, MAX_MESSAGE_ID};
pub use json_rows::json_rows;
pub use message::Message;
pub use plan::{Body, Layout, RowPlan};
pub(crate) use plan::{columns_of, message_id_column};
pub(crate) use row_ids::RowIds;
pub use shard_numbers::shard_numbers;
pub(crate) use stream_keys::RowStream;
pub use value::Value;
pub(crate) use zone::is_zone;

/// The default name of the payload field.
pub(crate) const PAYLOAD_FIELD: &str = "payload";
