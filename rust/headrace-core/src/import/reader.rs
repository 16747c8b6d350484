//! The reader of record batches from another library's stream or array.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::{ArrayRef, NullArray, RecordBatch, RecordBatchOptions};
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::abi::{CArray, CSchema, CStream};
use super::{node, schema};
use crate::contain::contain;
use crate::error::{Error, Result};
use crate::fail;

/// Takes ownership of an `ArrowSchema`, a struct of columns. Refuses an invalid one.
///
/// # Safety
///
/// `schema` points to such a structure, as in [`Reader::from_stream`].
#[allow(unsafe_code)]
pub unsafe fn read_schema(schema: NonNull<c_void>) -> Result<SchemaRef> {
    // SAFETY: promised by the caller.
    schema::read(&unsafe { CSchema::take(schema) })
}

/// An iterator over record batches that arrive over the C data interface. It ends after an error.
pub struct Reader {
    source: Source,
    /// The producer's schema.
    schema: SchemaRef,
    /// The schema of the record batches, in which columns that are not read have the type null.
    read_schema: SchemaRef,
    is_read: Vec<bool>,
}

enum Source {
    Stream(CStream),
    Array(CArray),
    Ended,
}

impl Reader {
    /// Takes ownership of an `ArrowArrayStream`. Refuses a stream that was read before, and an invalid schema.
    ///
    /// # Safety
    ///
    /// `stream` points to such a structure, and its producer follows the interface as far as pointers go: each is null or
    /// points to as many elements as the structure counts, until it is released.
    #[allow(unsafe_code)]
    pub unsafe fn from_stream(stream: NonNull<c_void>) -> Result<Self> {
        // SAFETY: promised by the caller.
        let mut stream = unsafe { CStream::take(stream) };
        if stream.is_released() {
            return Err(Error::schema("the Arrow stream was read before: it can be read only once"));
        }
        let schema = stream.schema().map_err(|message| Error::Reader { message })?;
        Ok(Self::new(Source::Stream(stream), schema::read(&schema)?))
    }

    /// Takes ownership of an `ArrowSchema` and an `ArrowArray`, a struct of columns. Refuses an array that was read before,
    /// and an invalid schema.
    ///
    /// # Safety
    ///
    /// Both point to such structures, as in [`from_stream`](Self::from_stream).
    #[allow(unsafe_code)]
    pub unsafe fn from_array(schema: NonNull<c_void>, array: NonNull<c_void>) -> Result<Self> {
        // SAFETY: promised by the caller.
        let (schema, array) = unsafe { (CSchema::take(schema), CArray::take(array)) };
        let read = schema::read(&schema);
        if array.is_released() {
            return Err(Error::schema("the Arrow array was read before: its capsules can be read only once"));
        }
        match read {
            Ok(schema) => Ok(Self::new(Source::Array(array), schema)),
            Err(error) => {
                array.refuse();
                Err(error)
            }
        }
    }

    fn new(source: Source, schema: SchemaRef) -> Self {
        Self { source, is_read: vec![true; schema.fields().len()], read_schema: Arc::clone(&schema), schema }
    }

    /// The producer's schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Sets the extension type of a column, for a producer that does not state it.
    pub fn set_extension(&mut self, column: usize, name: &str) {
        let mut fields: Vec<Field> = self.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        fields[column].metadata_mut().insert(EXTENSION_TYPE_NAME_KEY.to_owned(), name.to_owned());
        self.schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        self.read_schema = Arc::clone(&self.schema);
    }

    /// Restricts reading to the columns with these indexes. The other columns are null in the record batches, and are not
    /// checked.
    pub fn read_only(&mut self, columns: &[usize]) {
        self.is_read.fill(false);
        for column in columns {
            self.is_read[*column] = true;
        }
        let field = |(field, is_read): (&Arc<Field>, &bool)| match is_read {
            true => Arc::clone(field),
            false => Arc::new(Field::new(field.name(), DataType::Null, true)),
        };
        let fields: Vec<_> = self.schema.fields().iter().zip(&self.is_read).map(field).collect();
        self.read_schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
    }

    fn import(&self, array: CArray) -> std::result::Result<RecordBatch, String> {
        let array = Arc::new(array);
        fail::point("import");
        let batch = self.import_columns(&array);
        if batch.is_err()
            && let Some(array) = Arc::into_inner(array)
        {
            array.refuse();
        }
        batch
    }

    fn import_columns(&self, array: &Arc<CArray>) -> std::result::Result<RecordBatch, String> {
        let invalid = |reason: &str| format!("the record batch is invalid Arrow data: {reason}");
        let Some((length, offset)) = array.length_and_offset() else {
            return Err(invalid("its length or offset is negative"));
        };
        let columns = self.read_schema.fields();
        if array.child_count() != Some(columns.len()) {
            return Err(invalid(&format!(
                "it has a different number of columns from its schema, which has {}",
                columns.len()
            )));
        }
        // This check comes before the validity buffer is read, because the interface does not carry the size of that buffer.
        if let Some(field) = array.short_child(offset + length).and_then(|column| columns.get(column)) {
            return Err(invalid(&format!("column {:?} has fewer than its {length} rows", field.name())));
        }
        let bits = array.buffer(0, (offset + length).div_ceil(8), array);
        if array.null_count() != Some(0)
            && let Some(bits) = bits
            && bits.count_set_bits_offset(offset, length) < length
        {
            return Err(invalid("it has null rows, which a record batch cannot have"));
        }
        let unread: ArrayRef = Arc::new(NullArray::new(length));
        let mut arrays = Vec::with_capacity(columns.len());
        for (index, (field, is_read)) in columns.iter().zip(&self.is_read).enumerate() {
            if !is_read {
                arrays.push(Arc::clone(&unread));
                continue;
            }
            let Some(child) = array.child(index) else {
                return Err(invalid(&format!("column {:?} is missing", field.name())));
            };
            let column = node::import(child, field.data_type(), offset..offset + length, array);
            arrays.push(column.map_err(|reason| format!("{} (invalid Arrow data)", reason.of_column(field.name())))?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(length));
        RecordBatch::try_new_with_options(Arc::clone(&self.read_schema), arrays, &options)
            .map_err(|error| error.to_string())
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        // After a panic, nothing more is read.
        let source = std::mem::replace(&mut self.source, Source::Ended);
        let array = match source {
            Source::Ended => return None,
            Source::Array(array) => array,
            Source::Stream(mut stream) => match stream.next() {
                Ok(array) if array.is_released() => return None,
                Ok(array) => {
                    self.source = Source::Stream(stream);
                    array
                }
                Err(message) => return Some(Err(Error::Reader { message })),
            },
        };
        let batch = contain(|| self.import(array));
        let batch = batch.unwrap_or_else(|_| {
            let columns = self.schema.fields().iter().take(20).map(|field| field.name().as_str());
            let columns = columns.collect::<Vec<_>>().join(", ");
            Err(format!("a defect in headrace: the columns cannot be imported ({columns})"))
        });
        if batch.is_err() {
            self.source = Source::Ended;
        }
        Some(batch.map_err(|message| Error::Reader { message }))
    }
}
