//! The types that can be written as Arrow IPC, and their depth.

use arrow_schema::{DataType, Field};

use crate::error::{Error, Result};
use crate::nested::first;

/// The maximum number of levels of a type that is written. Writers and readers of the format recurse into types: `arrow-array`
/// needs 2 KiB of stack per level.
const MAX_DEPTH: usize = 32;

/// Refuses types whose slices cannot be compacted, and types that the format cannot hold.
pub(crate) fn check_type(field: &Field) -> Result<()> {
    if depth(field.data_type()) > MAX_DEPTH {
        return Err(Error::schema(format!(
            "column {:?} cannot be written as Arrow IPC: it is nested deeper than {MAX_DEPTH} levels, the most that is \
             written",
            field.name()
        )));
    }
    match first(field.data_type(), &|data_type| match data_type {
        DataType::ListView(_) | DataType::LargeListView(_) | DataType::Union(..) | DataType::RunEndEncoded(..) => true,
        DataType::Dictionary(_, values) => matches!(**values, DataType::Dictionary(..)),
        _ => false,
    }) {
        None => Ok(()),
        Some(refused) => Err(Error::schema(format!(
            "column {:?} cannot be written as Arrow IPC: its type is or has {refused} (list views, unions, run-end \
             encoding and dictionaries of dictionaries are not supported)",
            field.name()
        ))),
    }
}

/// The number of levels of a type; a column of numbers has one.
fn depth(data_type: &DataType) -> usize {
    let below = match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => depth(field.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| depth(field.data_type())).max().unwrap_or(0),
        DataType::Dictionary(_, values) => depth(values),
        _ => 0,
    };
    1 + below
}
