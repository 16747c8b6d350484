//! All options of an endpoint: the tables of the server, the stream and the producer.

use super::option::{OptionSpec, Takes, option};
use super::producer::PRODUCER_OPTIONS;
use super::server::SERVER_OPTIONS;
use super::stream::STREAM_OPTIONS;

/// The rows of several tables, in order.
pub(crate) const fn joined<const N: usize>(tables: &[&[OptionSpec]]) -> [OptionSpec; N] {
    let mut rows = [option(Takes::Text); N];
    let (mut table, mut row, mut at) = (0, 0, 0);
    while table < tables.len() {
        if row < tables[table].len() {
            rows[at] = tables[table][row];
            (row, at) = (row + 1, at + 1);
        } else {
            (table, row) = (table + 1, 0);
        }
    }
    rows
}

/// Every option of an endpoint. A reader takes only those of the server and the stream.
pub const OPTIONS: &[OptionSpec] =
    &joined::<{ SERVER_OPTIONS.len() + STREAM_OPTIONS.len() + PRODUCER_OPTIONS.len() }>(&[
        SERVER_OPTIONS,
        STREAM_OPTIONS,
        PRODUCER_OPTIONS,
    ]);
