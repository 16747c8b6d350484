//! Values of an Arrow column as Python objects: those that pyarrow's `to_pylist` returns, and no Arrow library is needed.
//!
//! | type | object | differs from pyarrow |
//! |---|---|---|
//! | bool, integers, floats, utf8 and binary of every kind | `bool`, `int`, `float`, `str`, `bytes` | |
//! | decimals | `Decimal` with the scale of the type | more digits than the precision, where pyarrow fails |
//! | date32, date64 | `date` | |
//! | time32, time64 | `time` | a time outside a day is an error, where pyarrow begins the day again |
//! | timestamp | `datetime`, with a `ZoneInfo`, or a `timezone` for an offset | see below |
//! | duration | `timedelta` | see below |
//! | interval of months, days and nanoseconds | a tuple of three | pyarrow's is a named tuple, equal to it |
//! | other intervals | months, or a tuple of days and milliseconds | pyarrow has no such types |
//! | list of every kind, struct, map | `list`, `dict`, `list` of pairs | |
//! | dictionary, run ends, union | the value | |
//! | `arrow.uuid`, `arrow.bool8` | `UUID`, `bool` | |
//! | null | `None` | |
//!
//! `datetime`, `time` and `timedelta` hold microseconds. A value with nanoseconds is an error, as in pyarrow without pandas; with
//! pandas pyarrow returns pandas' own types, and drops the nanoseconds of a time. Values outside the years 1 to 9999 are errors
//! in both.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType,
    IntervalYearMonthType, RunEndIndexType, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RunArray};
use arrow_buffer::{ArrowNativeType, NullBuffer};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use headrace_core::Extension;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyList, PyString, PyTuple, PyType};

use crate::names::Names;
use crate::python_time::{self, Zone};

type Object<'py> = PyResult<Bound<'py, PyAny>>;
type Read = Box<dyn for<'py> Fn(Python<'py>, usize) -> Object<'py> + Send + Sync>;

/// A column whose type was looked up once.
pub(crate) struct Column {
    nulls: Option<NullBuffer>,
    read: Read,
}

impl Column {
    pub(crate) fn new(py: Python<'_>, field: &Field, array: &ArrayRef) -> Self {
        Self { nulls: array.nulls().cloned(), read: read_of(py, field, array) }
    }

    /// The value in a row.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>, row: usize) -> Object<'py> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(py.None().into_bound(py));
        }
        (self.read)(py, row)
    }

    /// The values of these rows.
    fn list<'py>(&self, py: Python<'py>, rows: std::ops::Range<usize>) -> Object<'py> {
        let values = rows.map(|row| self.get(py, row)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, values)?.into_any())
    }
}

/// Lets the compiler see that the closure is one for every lifetime.
fn read(read: impl for<'py> Fn(Python<'py>, usize) -> Object<'py> + Send + Sync + 'static) -> Read {
    Box::new(read)
}

fn primitive<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    convert: impl for<'py> Fn(Python<'py>, T::Native) -> Object<'py> + Send + Sync + 'static,
) -> Read {
    let array = array.as_primitive::<T>().clone();
    read(move |py, row| convert(py, array.value(row)))
}

fn integer<T>(array: &ArrayRef) -> Read
where
    T: ArrowPrimitiveType,
    T::Native: for<'py> IntoPyObject<'py>,
{
    primitive::<T>(array, |py, value| value.into_bound_py_any(py))
}

/// The text of an unscaled value and its exponent is exact for every scale.
fn decimal<T: ArrowPrimitiveType>(array: &ArrayRef, scale: i8) -> Read
where
    T::Native: std::fmt::Display,
{
    static DECIMAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let exponent = -i16::from(scale);
    primitive::<T>(array, move |py, value| {
        DECIMAL.import(py, "decimal", "Decimal")?.call1((format!("{value}E{exponent}"),))
    })
}

#[allow(clippy::too_many_lines)] // one arm for each type
fn read_of(py: Python<'_>, field: &Field, array: &ArrayRef) -> Read {
    match Extension::of(field) {
        Some(Extension::Uuid) => return uuid(array),
        Some(Extension::Bool8) => {
            return primitive::<Int8Type>(array, |py, value| Ok(PyBool::new(py, value != 0).to_owned().into_any()));
        }
        None => {}
    }
    match array.data_type() {
        DataType::Null => read(|py, _| Ok(py.None().into_bound(py))),
        DataType::Boolean => {
            let array = array.as_boolean().clone();
            read(move |py, row| Ok(PyBool::new(py, array.value(row)).to_owned().into_any()))
        }
        DataType::Int8 => integer::<Int8Type>(array),
        DataType::Int16 => integer::<Int16Type>(array),
        DataType::Int32 => integer::<Int32Type>(array),
        DataType::Int64 => integer::<Int64Type>(array),
        DataType::UInt8 => integer::<UInt8Type>(array),
        DataType::UInt16 => integer::<UInt16Type>(array),
        DataType::UInt32 => integer::<UInt32Type>(array),
        DataType::UInt64 => integer::<UInt64Type>(array),
        DataType::Float16 => {
            primitive::<Float16Type>(array, |py, value| Ok(PyFloat::new(py, f64::from(value)).into_any()))
        }
        DataType::Float32 => {
            primitive::<Float32Type>(array, |py, value| Ok(PyFloat::new(py, f64::from(value)).into_any()))
        }
        DataType::Float64 => primitive::<Float64Type>(array, |py, value| Ok(PyFloat::new(py, value).into_any())),
        DataType::Decimal32(_, scale) => decimal::<Decimal32Type>(array, *scale),
        DataType::Decimal64(_, scale) => decimal::<Decimal64Type>(array, *scale),
        DataType::Decimal128(_, scale) => decimal::<Decimal128Type>(array, *scale),
        DataType::Decimal256(_, scale) => decimal::<Decimal256Type>(array, *scale),
        DataType::Utf8 => text::<i32>(array),
        DataType::LargeUtf8 => text::<i64>(array),
        DataType::Utf8View => {
            let array = array.as_string_view().clone();
            read(move |py, row| Ok(PyString::new(py, array.value(row)).into_any()))
        }
        DataType::Binary => bytes::<i32>(array),
        DataType::LargeBinary => bytes::<i64>(array),
        DataType::BinaryView => {
            let array = array.as_binary_view().clone();
            read(move |py, row| Ok(PyBytes::new(py, array.value(row)).into_any()))
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary().clone();
            read(move |py, row| Ok(PyBytes::new(py, array.value(row)).into_any()))
        }
        DataType::Date32 => primitive::<Date32Type>(array, |py, days| python_time::date(py, i64::from(days))),
        DataType::Date64 => primitive::<Date64Type>(array, |py, value| {
            python_time::date(py, value.div_euclid(python_time::MILLISECONDS_OF_DAY))
        }),
        DataType::Time32(TimeUnit::Millisecond) => primitive::<Time32MillisecondType>(array, |py, value| {
            python_time::time(py, i64::from(value), TimeUnit::Millisecond)
        }),
        DataType::Time32(_) => {
            primitive::<Time32SecondType>(array, |py, value| python_time::time(py, i64::from(value), TimeUnit::Second))
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            primitive::<Time64NanosecondType>(array, |py, value| python_time::time(py, value, TimeUnit::Nanosecond))
        }
        DataType::Time64(_) => {
            primitive::<Time64MicrosecondType>(array, |py, value| python_time::time(py, value, TimeUnit::Microsecond))
        }
        DataType::Timestamp(unit, zone) => {
            let zone = Zone::named(py, zone.as_deref());
            match unit {
                TimeUnit::Second => timestamp::<TimestampSecondType>(array, TimeUnit::Second, zone),
                TimeUnit::Millisecond => timestamp::<TimestampMillisecondType>(array, TimeUnit::Millisecond, zone),
                TimeUnit::Microsecond => timestamp::<TimestampMicrosecondType>(array, TimeUnit::Microsecond, zone),
                TimeUnit::Nanosecond => timestamp::<TimestampNanosecondType>(array, TimeUnit::Nanosecond, zone),
            }
        }
        DataType::Duration(unit) => match unit {
            TimeUnit::Second => duration::<DurationSecondType>(array, TimeUnit::Second),
            TimeUnit::Millisecond => duration::<DurationMillisecondType>(array, TimeUnit::Millisecond),
            TimeUnit::Microsecond => duration::<DurationMicrosecondType>(array, TimeUnit::Microsecond),
            TimeUnit::Nanosecond => duration::<DurationNanosecondType>(array, TimeUnit::Nanosecond),
        },
        DataType::Interval(IntervalUnit::YearMonth) => integer::<IntervalYearMonthType>(array),
        DataType::Interval(IntervalUnit::DayTime) => {
            primitive::<IntervalDayTimeType>(array, |py, value| (value.days, value.milliseconds).into_bound_py_any(py))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => primitive::<IntervalMonthDayNanoType>(array, |py, value| {
            (value.months, value.days, value.nanoseconds).into_bound_py_any(py)
        }),
        DataType::List(item) => list::<i32>(py, item, array),
        DataType::LargeList(item) => list::<i64>(py, item, array),
        DataType::ListView(item) => list_view::<i32>(py, item, array),
        DataType::LargeListView(item) => list_view::<i64>(py, item, array),
        DataType::FixedSizeList(item, _) => {
            let array = array.as_fixed_size_list().clone();
            let (column, size) = (Column::new(py, item, array.values()), array.value_length().as_usize());
            read(move |py, row| column.list(py, row * size..(row + 1) * size))
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            structure(columns.map(|(field, array)| Member::new(py, field, array)).collect())
        }
        DataType::Map(entries, _) => map(py, entries, array),
        DataType::Dictionary(_, values) => {
            let array = array.as_any_dictionary();
            let column = Column::new(py, &Field::new("", (**values).clone(), true), array.values());
            let keys = if array.values().is_empty() { Vec::new() } else { array.normalized_keys() };
            read(move |py, row| column.get(py, keys[row]))
        }
        DataType::RunEndEncoded(ends, values) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(py, values, array),
            DataType::Int32 => runs::<Int32Type>(py, values, array),
            _ => runs::<Int64Type>(py, values, array),
        },
        DataType::Union(fields, _) => {
            let array = array.as_union().clone();
            let columns: Vec<_> =
                fields.iter().map(|(id, field)| (id, Column::new(py, field, array.child(id)))).collect();
            read(move |py, row| {
                let id = array.type_id(row);
                let column = columns.iter().find(|(of, _)| *of == id);
                column
                    .map_or_else(|| Ok(py.None().into_bound(py)), |(_, column)| column.get(py, array.value_offset(row)))
            })
        }
    }
}

fn text<O: OffsetSizeTrait>(array: &ArrayRef) -> Read {
    let array = array.as_string::<O>().clone();
    read(move |py, row| Ok(PyString::new(py, array.value(row)).into_any()))
}

fn bytes<O: OffsetSizeTrait>(array: &ArrayRef) -> Read {
    let array = array.as_binary::<O>().clone();
    read(move |py, row| Ok(PyBytes::new(py, array.value(row)).into_any()))
}

fn uuid(array: &ArrayRef) -> Read {
    static UUID: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let array = array.as_fixed_size_binary().clone();
    read(move |py, row| {
        let given = PyDict::new(py);
        given.set_item(intern!(py, "bytes"), PyBytes::new(py, array.value(row)))?;
        UUID.import(py, "uuid", "UUID")?.call((), Some(&given))
    })
}

fn timestamp<T: ArrowPrimitiveType<Native = i64>>(array: &ArrayRef, unit: TimeUnit, zone: Zone) -> Read {
    primitive::<T>(array, move |py, value| zone.datetime(py, python_time::microseconds(value, unit)?))
}

fn duration<T: ArrowPrimitiveType<Native = i64>>(array: &ArrayRef, unit: TimeUnit) -> Read {
    primitive::<T>(array, move |py, value| python_time::timedelta(py, value, unit))
}

fn list<O: OffsetSizeTrait>(py: Python<'_>, item: &Field, array: &ArrayRef) -> Read {
    let array = array.as_list::<O>();
    let (column, offsets) = (Column::new(py, item, array.values()), array.offsets().clone());
    read(move |py, row| column.list(py, offsets[row].as_usize()..offsets[row + 1].as_usize()))
}

fn list_view<O: OffsetSizeTrait>(py: Python<'_>, item: &Field, array: &ArrayRef) -> Read {
    let array = array.as_list_view::<O>().clone();
    let column = Column::new(py, item, array.values());
    read(move |py, row| {
        let start = array.value_offset(row).as_usize();
        column.list(py, start..start + array.value_size(row).as_usize())
    })
}

fn runs<R: RunEndIndexType>(py: Python<'_>, values: &Field, array: &ArrayRef) -> Read {
    let Some(array) = array.as_any().downcast_ref::<RunArray<R>>().cloned() else {
        return read(|_, _| Err(PyValueError::new_err("the column has run ends of another type")));
    };
    let column = Column::new(py, values, array.values());
    read(move |py, row| column.get(py, array.get_physical_index(row)))
}

/// A member of a struct.
struct Member {
    name: Py<PyString>,
    column: Column,
}

impl Member {
    fn new(py: Python<'_>, field: &Field, array: &ArrayRef) -> Self {
        Self { name: PyString::new(py, field.name()).unbind(), column: Column::new(py, field, array) }
    }
}

fn structure(members: Vec<Member>) -> Read {
    read(move |py, row| {
        let values = PyDict::new(py);
        for Member { name, column } in &members {
            values.set_item(name, column.get(py, row)?)?;
        }
        if values.len() < members.len() {
            return Err(PyValueError::new_err("a struct with several members of the same name is no dict"));
        }
        Ok(values.into_any())
    })
}

fn map(py: Python<'_>, entries: &Field, array: &ArrayRef) -> Read {
    let array = array.as_map();
    let (DataType::Struct(fields), [keys, values]) = (entries.data_type(), array.entries().columns()) else {
        return read(|_, _| Err(PyValueError::new_err("the entries of a map must be pairs")));
    };
    let offsets = array.offsets().clone();
    let values = Column::new(py, &fields[1], values);
    let keys = match keys.as_string_opt::<i32>().filter(|keys| keys.null_count() == 0) {
        // Maps of a column have mostly the same keys.
        Some(keys) => {
            let (keys, names) = (keys.clone(), Names::default());
            Column { nulls: None, read: read(move |py, at| Ok(names.get(py, keys.value(at)).into_any())) }
        }
        None => Column::new(py, &fields[0], keys),
    };
    read(move |py, row| {
        let pair = |at| -> PyResult<_> { Ok(PyTuple::new(py, [keys.get(py, at)?, values.get(py, at)?])?.into_any()) };
        let pairs = offsets[row].as_usize()..offsets[row + 1].as_usize();
        Ok(PyList::new(py, pairs.map(pair).collect::<PyResult<Vec<_>>>()?)?.into_any())
    })
}
