//! Columns of Python objects in data of polars.
//!
//! polars (1.44, 2.1) hands such a column over as eight bytes a value, an address, and says nothing of it in the schema. It
//! has no other type that becomes `fixed_size_binary`, and none that holds objects within: so the columns are known by
//! that, and get a name by which the core refuses to read them.

use arrow_schema::DataType;
use headrace_core::import::Reader;
use headrace_core::rows::OBJECTS;
use pyo3::prelude::*;

/// Names the columns of objects that `reader` reads out of `data`.
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
