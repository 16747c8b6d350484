//! Columns of Python objects in polars data.
//!
//! polars (1.44, 2.1) exports such a column as addresses of eight bytes each, without marking it in the schema. No other type of
//! polars becomes `fixed_size_binary`, and none contains objects, so that type identifies these columns. They get an extension
//! name that the core refuses to read.

use arrow_schema::DataType;
use headrace_core::import::Reader;
use headrace_core::rows::OBJECTS;
use pyo3::prelude::*;

/// Marks the columns of Python objects in the schema of `reader`.
pub(crate) fn mark_objects(data: &Bound<'_, PyAny>, reader: &mut Reader) {
    if !is_of_polars(data) {
        return;
    }
    for column in 0..reader.schema().fields().len() {
        if matches!(reader.schema().field(column).data_type(), DataType::FixedSizeBinary(_)) {
            reader.set_extension(column, OBJECTS);
        }
    }
}

fn is_of_polars(data: &Bound<'_, PyAny>) -> bool {
    let module = data.get_type().module().map(|module| module.to_string()).unwrap_or_default();
    module == "polars" || module.starts_with("polars.")
}
