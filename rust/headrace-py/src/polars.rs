//! Columns of Python objects in data of polars.
//!
//! polars (1.44, 2.1) hands such a column over as eight bytes a value, an address, and says nothing of it in the schema. It
//! has no other type that becomes `fixed_size_binary`, and none that holds objects within: so the columns are known by
//! that, and get a name by which the core refuses to read them.

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use headrace_core::rows::OBJECTS;
use pyo3::prelude::*;

type Reader = Box<dyn RecordBatchReader + Send>;

/// What `reader` reads out of `data`, with the columns of objects named.
pub(crate) fn mark_objects(data: &Bound<'_, PyAny>, reader: Reader) -> Reader {
    let schema = reader.schema();
    let is_objects = |data_type: &DataType| matches!(data_type, DataType::FixedSizeBinary(_));
    if !is_of_polars(data) || !schema.fields().iter().any(|field| is_objects(field.data_type())) {
        return reader;
    }
    let fields = schema.fields().iter().map(|field| {
        let mut field = field.as_ref().clone();
        if is_objects(field.data_type()) {
            field.metadata_mut().insert("ARROW:extension:name".to_owned(), OBJECTS.to_owned());
        }
        field
    });
    let schema = Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
    Box::new(Marked { reader, schema: schema.into() })
}

fn is_of_polars(data: &Bound<'_, PyAny>) -> bool {
    let module = data.get_type().module().map(|module| module.to_string()).unwrap_or_default();
    module == "polars" || module.starts_with("polars.")
}

struct Marked {
    reader: Reader,
    schema: SchemaRef,
}

impl Iterator for Marked {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.reader.next()?.and_then(|batch| batch.with_schema(self.schema.clone())))
    }
}

impl RecordBatchReader for Marked {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
