//! Reads and exports Arrow data by `PyCapsule`, so that pyarrow, polars, pandas and others all work and none is imported:
//! <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{Array, RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{Schema, SchemaRef};
use headrace_core::import::{Reader, read_schema};
use headrace_core::{Error, schema_of_names};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMapping};

use crate::errors::to_py;
use crate::exception::raise;
use crate::panics::Contained;
use crate::{hints, polars};

/// A reader of the record batches of `data`.
pub(crate) fn read(data: &Bound<'_, PyAny>) -> PyResult<Reader> {
    let py = data.py();
    let (array, stream) = (intern!(py, "__arrow_c_array__"), intern!(py, "__arrow_c_stream__"));
    let capsules = if data.hasattr(array)? {
        data.call_method0(array).and_then(|returned| Capsules::of_array(&returned))
    } else if data.hasattr(stream)? {
        data.call_method0(stream).and_then(|returned| Capsules::of_stream(&returned))
    } else {
        return Err(hints::no_arrow(data));
    };
    let capsules = capsules.map_err(|cause| hints::unreadable(data, cause))?;
    let mut reader = capsules.into_reader().map_err(|error| match error {
        Error::Schema { .. } => hints::unreadable(data, to_py(&error)),
        _ => to_py(&error),
    })?;
    polars::mark_objects(data, &mut reader);
    Ok(reader)
}

/// The schema that `given` is: an Arrow schema of any library, or a mapping from names of fields to names of types.
pub(crate) fn schema_of(given: &Bound<'_, PyAny>) -> PyResult<SchemaRef> {
    let export = intern!(given.py(), "__arrow_c_schema__");
    if !given.hasattr(export)? {
        let names = given.cast::<PyMapping>()?.items()?.extract::<Vec<(String, String)>>()?;
        return schema_of_names(&names).map(SchemaRef::new).map_err(|error| to_py(&error));
    }
    let capsule = given.call_method0(export)?;
    let schema = Structure::named(&capsule, SCHEMA)?;
    #[expect(unsafe_code, reason = "the C interface is one of pointers")]
    // SAFETY: a capsule of this name holds this structure, and no other object has this one.
    let schema = unsafe { read_schema(schema.pointer) };
    schema.map_err(|error| to_py(&error))
}

/// A `PyCapsule` with the schema of batches. `None`: the first entry determines it, and none was read.
pub(crate) fn export_known_schema<'py>(py: Python<'py>, schema: Option<&SchemaRef>) -> PyResult<Bound<'py, PyCapsule>> {
    let unknown = || {
        let message =
            "the columns are those of the first entry, and no entry was read yet: read a batch before, or give schema";
        to_py(&Error::schema(message))
    };
    export_schema(py, schema.ok_or_else(unknown)?)
}

/// A `PyCapsule` with a schema.
pub(crate) fn export_schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = FFI_ArrowSchema::try_from(schema);
    let exported = exported.map_err(|error| raise("SchemaError", format!("the schema cannot be exported: {error}")))?;
    PyCapsule::new_with_value(py, exported, SCHEMA)
}

/// A schema that a consumer requests. It is passed over, as the interface allows: a consumer checks the types that it got, and
/// a conversion would need a kernel for each pair of types.
type Requested<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The `PyCapsule`s with a record batch: its schema and its columns.
pub(crate) fn export_batch<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
    _requested_schema: Requested<'_, 'py>,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let array = FFI_ArrowArray::new(&StructArray::from(batch.clone()).to_data());
    Ok((export_schema(py, batch.schema_ref())?, PyCapsule::new_with_value(py, array, ARRAY)?))
}

/// A `PyCapsule` with a stream of the record batches of `reader`.
pub(crate) fn export_stream<'py>(
    py: Python<'py>,
    reader: impl RecordBatchReader + Send + 'static,
    _requested_schema: Requested<'_, 'py>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(Contained(reader))), STREAM)
}

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// The capsules of an object.
enum Capsules<'py> {
    Array { schema: Structure<'py>, array: Structure<'py> },
    Stream(Structure<'py>),
}

/// A structure of the C interface, and the capsule that owns it.
struct Structure<'py> {
    pointer: NonNull<c_void>,
    _capsule: Bound<'py, PyCapsule>,
}

impl<'py> Structure<'py> {
    fn named(capsule: &Bound<'py, PyAny>, name: &CStr) -> PyResult<Self> {
        let capsule = capsule.cast::<PyCapsule>()?;
        Ok(Self { pointer: capsule.pointer_checked(Some(name))?, _capsule: capsule.clone() })
    }
}

impl<'py> Capsules<'py> {
    fn of_array(returned: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (schema, array): (Bound<'py, PyAny>, Bound<'py, PyAny>) = returned.extract()?;
        let schema = Structure::named(&schema, SCHEMA)?;
        Ok(Self::Array { schema, array: Structure::named(&array, ARRAY)? })
    }

    fn of_stream(returned: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Stream(Structure::named(returned, STREAM)?))
    }

    #[expect(unsafe_code, reason = "the C interface is one of pointers")]
    fn into_reader(self) -> headrace_core::Result<Reader> {
        // SAFETY: a capsule of this name holds this structure: by the name, its producer guarantees that it is valid.
        unsafe {
            match self {
                Self::Array { schema, array } => Reader::from_array(schema.pointer, array.pointer),
                Self::Stream(stream) => Reader::from_stream(stream.pointer),
            }
        }
    }
}
