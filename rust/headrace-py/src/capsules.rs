//! Reads and exports Arrow data by `PyCapsule`, so that pyarrow, polars, pandas and others all work and none is imported:
//! <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use arrow_array::RecordBatchReader;
use headrace_core::Error;
use headrace_core::import::Reader;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::PyRecordBatchReader;

use crate::errors::to_py;
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

/// A `PyCapsule` with a stream of the record batches of `reader`.
pub(crate) fn export<'py>(
    py: Python<'py>,
    reader: impl RecordBatchReader + Send + 'static,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyAny>> {
    let reader = PyRecordBatchReader::new(Box::new(Contained(reader)));
    Bound::new(py, reader)?.call_method1("__arrow_c_stream__", (requested_schema,))
}

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
        let schema = Structure::named(&schema, c"arrow_schema")?;
        Ok(Self::Array { schema, array: Structure::named(&array, c"arrow_array")? })
    }

    fn of_stream(returned: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Stream(Structure::named(returned, c"arrow_array_stream")?))
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
