//! A column of a record batch with its type resolved: writing a value takes a match and a copy.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, FixedSizeBinaryArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, i256};
use arrow_schema::{DataType, TimeUnit};

use super::bytes::{Bytes, large_span, span};
use super::interval::Intervals;
use super::line::{Line, Piece};
use super::shape::Shape;
use super::text::{self, Style, write_integer};
use super::time;
use super::timestamps::Timestamps;
use crate::extension::{Extension, uuid_text};

/// A column of one record batch.
pub(super) struct Column<'a> {
    /// `None` if no row is null.
    nulls: Option<Nulls<'a>>,
    values: Values<'a>,
}

/// The null rows of a column.
#[derive(Clone, Copy)]
enum Nulls<'a> {
    /// The rows that the validity buffer marks.
    Marked(&'a NullBuffer),
    /// In a dictionary, the marked rows and those whose value is null; in a column of type null, all rows.
    ByValue(Option<&'a NullBuffer>),
}

/// The values of a column. Values of null rows have no meaning.
#[repr(u8)]
pub(super) enum Values<'a> {
    Null,
    Bool(&'a BooleanBuffer),
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    F16(&'a [<Float16Type as ArrowPrimitiveType>::Native]),
    F32(&'a [f32]),
    F64(&'a [f64]),
    Decimal32(&'a [i32], i8),
    Decimal64(&'a [i64], i8),
    Decimal128(&'a [i128], i8),
    Decimal256(&'a [i256], i8),
    Date32(&'a [i32]),
    Date64(&'a [i64]),
    Time32(&'a [i32], TimeUnit),
    Time64(&'a [i64], TimeUnit),
    Timestamp(Timestamps<'a>),
    Text(Bytes<'a>),
    Binary(Bytes<'a>),
    /// Text that must be UTF-8 and is not known to be.
    Unchecked(Bytes<'a>),
    Uuid(&'a FixedSizeBinaryArray),
    Bool8(&'a [i8]),
    Interval(Intervals<'a>),
    /// Keys and values.
    Dictionary(Box<(Column<'a>, Column<'a>)>),
    List(Spans<'a>, Box<Column<'a>>),
    /// The spans of the entries, then keys and values.
    Map(Spans<'a>, Box<(Column<'a>, Column<'a>)>),
    /// Members, each with its JSON key.
    Struct(Vec<(Piece<'a>, Column<'a>)>),
}

/// The ranges of the elements of lists.
pub(super) enum Spans<'a> {
    Small(&'a [i32]),
    Large(&'a [i64]),
    Fixed(usize),
}

impl<'a> Column<'a> {
    /// Resolves an array; `None` if `shape` does not fit its type. `rows`: the rows that may be read; `None`: a few rows
    /// that are not known yet.
    pub(super) fn new(array: &'a dyn Array, shape: &'a Shape, rows: Option<Range<usize>>) -> Option<Self> {
        let values = Values::new(array, shape, rows)?;
        let nulls = match (&values, array.nulls().filter(|nulls| nulls.null_count() > 0)) {
            (Values::Null | Values::Dictionary(_), nulls) => Some(Nulls::ByValue(nulls)),
            (_, nulls) => nulls.map(Nulls::Marked),
        };
        Some(Self { nulls, values })
    }

    /// The values, including those of null rows.
    pub(super) fn values(&self) -> &Values<'a> {
        &self.values
    }

    /// The values that hold this row and its index in them; `None` if it is null.
    #[inline(always)]
    pub(super) fn locate(&self, row: usize) -> Option<(&Values<'a>, usize)> {
        match self.nulls {
            None => Some((&self.values, row)),
            Some(Nulls::Marked(nulls)) => nulls.is_valid(row).then_some((&self.values, row)),
            Some(Nulls::ByValue(nulls)) => self.locate_by_value(nulls, row),
        }
    }

    /// Adds `mark` to the marks of rows that are not null, starting at row `first`.
    pub(super) fn mark_valid(&self, first: usize, mark: u64, marks: &mut [u64]) {
        match self.nulls {
            None => marks.iter_mut().for_each(|its| *its |= mark),
            Some(Nulls::Marked(nulls)) => {
                let are_valid = nulls.inner().slice(first, marks.len());
                marks.iter_mut().zip(&are_valid).for_each(|(its, is_valid)| *its |= mark * u64::from(is_valid));
            }
            Some(Nulls::ByValue(nulls)) => {
                let is_valid = |row: usize| self.locate_by_value(nulls, row).is_some();
                marks.iter_mut().zip(first..).for_each(|(its, row)| *its |= mark * u64::from(is_valid(row)));
            }
        }
    }

    #[inline(never)]
    fn locate_by_value(&self, nulls: Option<&NullBuffer>, row: usize) -> Option<(&Values<'a>, usize)> {
        match &self.values {
            Values::Dictionary(dictionary) if nulls.is_none_or(|nulls| nulls.is_valid(row)) => {
                let (keys, values) = &**dictionary;
                values.locate(keys.values.dictionary_key(row)?)
            }
            _ => None,
        }
    }

    /// The bytes of a row of a text or binary column; `None` if it is null.
    #[inline]
    pub(super) fn bytes(&self, row: usize) -> Option<&'a [u8]> {
        match self.locate(row)? {
            (Values::Text(bytes) | Values::Binary(bytes), place) => Some(bytes.get(place)),
            _ => None,
        }
    }

    /// [`Column::bytes`] as a slice of the column's buffer.
    pub(super) fn buffer(&self, row: usize) -> Option<Buffer> {
        match self.locate(row)? {
            (Values::Text(bytes) | Values::Binary(bytes), place) => bytes.buffer(place),
            _ => None,
        }
    }

    /// Offsets and bytes of a text or binary column without nulls, in the most common layout.
    pub(super) fn plain(&self) -> Option<(&'a [i32], &'a [u8])> {
        match &self.values {
            Values::Text(Bytes::Small(offsets, bytes)) | Values::Binary(Bytes::Small(offsets, bytes))
                if self.is_never_null() =>
            {
                Some((*offsets, bytes.as_slice()))
            }
            _ => None,
        }
    }

    /// Whether no row is known to be null. Never true for a dictionary, whose values may be null too.
    pub(super) fn is_never_null(&self) -> bool {
        self.nulls.is_none()
    }
}

// The functions with `inline(never)` save stack: a type may have 64 levels, and a thread 128 KiB.
impl<'a> Values<'a> {
    fn new(array: &'a dyn Array, shape: &'a Shape, rows: Option<Range<usize>>) -> Option<Self> {
        match shape {
            Shape::Dictionary(values) => Self::dictionary(array, values, rows),
            Shape::List(element) => Self::list(array, element, rows),
            Shape::Map(shapes) => Self::map(array, shapes, rows),
            Shape::Struct(shapes) => Self::members(array, shapes, rows.as_ref()),
            Shape::Items(_) => None,
            _ => Self::scalar(array, shape, rows.as_ref()),
        }
    }

    #[inline(never)]
    fn scalar(array: &'a dyn Array, shape: &'a Shape, rows: Option<&Range<usize>>) -> Option<Self> {
        match shape {
            Shape::Extension(Extension::Uuid) => return array.as_fixed_size_binary_opt().map(Self::Uuid),
            Shape::Extension(Extension::Bool8) => return natives::<Int8Type>(array).map(Self::Bool8),
            _ => {}
        }
        let text = |bytes: Bytes<'a>| match shape {
            Shape::Text if !rows.cloned().is_some_and(|rows| bytes.are_texts(rows)) => Self::Unchecked(bytes),
            _ => Self::Text(bytes),
        };
        Some(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool(array.as_boolean_opt()?.values()),
            DataType::Int8 => Self::I8(natives::<Int8Type>(array)?),
            DataType::Int16 => Self::I16(natives::<Int16Type>(array)?),
            DataType::Int32 => Self::I32(natives::<Int32Type>(array)?),
            DataType::Int64 => Self::I64(natives::<Int64Type>(array)?),
            DataType::UInt8 => Self::U8(natives::<UInt8Type>(array)?),
            DataType::UInt16 => Self::U16(natives::<UInt16Type>(array)?),
            DataType::UInt32 => Self::U32(natives::<UInt32Type>(array)?),
            DataType::UInt64 => Self::U64(natives::<UInt64Type>(array)?),
            DataType::Float16 => Self::F16(natives::<Float16Type>(array)?),
            DataType::Float32 => Self::F32(natives::<Float32Type>(array)?),
            DataType::Float64 => Self::F64(natives::<Float64Type>(array)?),
            DataType::Decimal32(_, scale) => Self::Decimal32(natives::<Decimal32Type>(array)?, *scale),
            DataType::Decimal64(_, scale) => Self::Decimal64(natives::<Decimal64Type>(array)?, *scale),
            DataType::Decimal128(_, scale) => Self::Decimal128(natives::<Decimal128Type>(array)?, *scale),
            DataType::Decimal256(_, scale) => Self::Decimal256(natives::<Decimal256Type>(array)?, *scale),
            DataType::Date32 => Self::Date32(natives::<Date32Type>(array)?),
            DataType::Date64 => Self::Date64(natives::<Date64Type>(array)?),
            DataType::Time32(unit @ TimeUnit::Second) => Self::Time32(natives::<Time32SecondType>(array)?, *unit),
            DataType::Time32(unit) => Self::Time32(natives::<Time32MillisecondType>(array)?, *unit),
            DataType::Time64(unit @ TimeUnit::Microsecond) => {
                Self::Time64(natives::<Time64MicrosecondType>(array)?, *unit)
            }
            DataType::Time64(unit) => Self::Time64(natives::<Time64NanosecondType>(array)?, *unit),
            DataType::Timestamp(unit, _) => {
                let zone = if let Shape::Zoned(zone) = shape { Some(zone.clone()) } else { None };
                Self::Timestamp(Timestamps::new(timestamps(array, *unit)?, *unit, zone))
            }
            DataType::Utf8 => text(Bytes::small(array.as_string_opt()?)),
            DataType::LargeUtf8 => text(Bytes::large(array.as_string_opt()?)),
            DataType::Utf8View => text(Bytes::TextView(array.as_string_view_opt()?)),
            DataType::Binary => Self::Binary(Bytes::small(array.as_binary_opt()?)),
            DataType::LargeBinary => Self::Binary(Bytes::large(array.as_binary_opt()?)),
            DataType::BinaryView => Self::Binary(Bytes::BinaryView(array.as_binary_view_opt()?)),
            DataType::FixedSizeBinary(_) => Self::Binary(Bytes::FixedSize(array.as_fixed_size_binary_opt()?)),
            DataType::Duration(_) | DataType::Interval(_) => Self::Interval(Intervals::new(array)?),
            _ => return None,
        })
    }

    #[inline(never)]
    fn dictionary(array: &'a dyn Array, values: &'a Shape, rows: Option<Range<usize>>) -> Option<Self> {
        let array = array.as_any_dictionary_opt()?;
        let keys = Column::new(array.keys(), &Shape::Scalar, None)?;
        // The same large dictionary may come with many small record batches; checking its values then does not pay off.
        let all = 0..array.values().len();
        let checked = rows.filter(|rows| all.len() / 4 <= rows.len()).map(|_| all);
        let values = Column::new(array.values(), values, checked)?;
        Some(Self::Dictionary(Box::new((keys, values))))
    }

    #[inline(never)]
    fn list(array: &'a dyn Array, element: &'a Shape, rows: Option<Range<usize>>) -> Option<Self> {
        let (spans, elements) = Spans::of_list(array)?;
        let rows = rows.map(|rows| spans.of(rows));
        Some(Self::List(spans, Box::new(Column::new(elements, element, rows)?)))
    }

    #[inline(never)]
    fn map(array: &'a dyn Array, shapes: &'a (Shape, Shape), rows: Option<Range<usize>>) -> Option<Self> {
        let map = array.as_map_opt()?;
        let spans = Spans::Small(map.value_offsets());
        let entries = rows.map(|rows| spans.of(rows));
        let keys = Column::new(map.keys(), &shapes.0, entries.clone())?;
        let values = Column::new(map.values(), &shapes.1, entries)?;
        Some(Self::Map(spans, Box::new((keys, values))))
    }

    #[inline(never)]
    fn members(array: &'a dyn Array, shapes: &'a [(Vec<u8>, Shape)], rows: Option<&Range<usize>>) -> Option<Self> {
        let arrays = array.as_struct_opt()?.columns();
        let mut members = Vec::with_capacity(shapes.len());
        for (array, (key, shape)) in arrays.iter().zip(shapes) {
            members.push((Piece::new(key), Column::new(array, shape, rows.cloned())?));
        }
        Some(Self::Struct(members))
    }

    /// The key of a dictionary as an index. Arrow has checked that it is valid.
    fn dictionary_key(&self, row: usize) -> Option<usize> {
        match self {
            Self::I8(values) => usize::try_from(values[row]).ok(),
            Self::I16(values) => usize::try_from(values[row]).ok(),
            Self::I32(values) => usize::try_from(values[row]).ok(),
            Self::I64(values) => usize::try_from(values[row]).ok(),
            Self::U8(values) => Some(values[row].into()),
            Self::U16(values) => Some(values[row].into()),
            Self::U32(values) => usize::try_from(values[row]).ok(),
            Self::U64(values) => usize::try_from(values[row]).ok(),
            _ => None,
        }
    }

    /// Appends the value as text, by the table in [`super`]. Nested types have no text.
    #[inline(always)]
    pub(super) fn write_text(&self, row: usize, out: &mut Line<'_>, style: Style) {
        self.write_text_with(row, out, style, Line::push_bytes);
    }

    /// Like [`write_text`](Self::write_text), with `write_bytes` for the bytes of text and binary columns: a match before this
    /// one would slow down every value.
    #[inline(always)]
    pub(super) fn write_text_with<'o>(
        &self,
        row: usize,
        out: &mut Line<'o>,
        style: Style,
        write_bytes: impl FnOnce(&mut Line<'o>, &[u8]),
    ) {
        match self {
            Self::Bool(values) => write_bool(out, values.value(row)),
            Self::I8(values) => write_integer(out, values[row]),
            Self::I16(values) => write_integer(out, values[row]),
            Self::I32(values) => write_integer(out, values[row]),
            Self::I64(values) => write_integer(out, values[row]),
            Self::U8(values) => write_integer(out, values[row]),
            Self::U16(values) => write_integer(out, values[row]),
            Self::U32(values) => write_integer(out, values[row]),
            Self::U64(values) => write_integer(out, values[row]),
            Self::F16(values) => text::write_f32(out, values[row].to_f32(), style),
            Self::F32(values) => text::write_f32(out, values[row], style),
            Self::F64(values) => text::write_f64(out, values[row], style),
            Self::Decimal32(values, scale) => text::write_decimal(out, values[row].into(), *scale, style),
            Self::Decimal64(values, scale) => text::write_decimal(out, values[row].into(), *scale, style),
            Self::Decimal128(values, scale) => text::write_decimal(out, values[row], *scale, style),
            Self::Decimal256(values, scale) => text::write_decimal256(out, values[row], *scale, style),
            Self::Date32(_) | Self::Date64(_) | Self::Time32(..) | Self::Time64(..) | Self::Timestamp(_) => {
                self.write_time(row, out, style);
            }
            Self::Text(bytes) | Self::Binary(bytes) | Self::Unchecked(bytes) => write_bytes(out, bytes.get(row)),
            Self::Uuid(uuids) => out.push(&uuid_text(uuids.value(row))),
            Self::Bool8(values) => write_bool(out, values[row] != 0),
            Self::Interval(intervals) => intervals.write(row, out),
            Self::Null | Self::Dictionary(_) | Self::List(..) | Self::Map(..) | Self::Struct(_) => {}
        }
    }
}

impl Values<'_> {
    /// [`Values::write_text`] for dates and times.
    #[inline(always)]
    pub(super) fn write_time(&self, row: usize, out: &mut Line<'_>, style: Style) {
        match self {
            Self::Timestamp(timestamps) => timestamps.write(row, out, style),
            Self::Date32(values) => time::write_date(out, values[row].into()),
            Self::Date64(values) => time::write_date(out, time::day_of_millis(values[row])),
            Self::Time32(values, unit) => time::write_time(out, values[row].into(), *unit),
            Self::Time64(values, unit) => time::write_time(out, values[row], *unit),
            _ => {}
        }
    }
}

impl<'a> Spans<'a> {
    /// The spans of a list of any kind, and its elements.
    pub(super) fn of_list(array: &'a dyn Array) -> Option<(Self, &'a dyn Array)> {
        Some(match array.data_type() {
            DataType::List(_) => {
                let array = array.as_list_opt::<i32>()?;
                (Self::Small(array.value_offsets()), array.values())
            }
            DataType::LargeList(_) => {
                let array = array.as_list_opt::<i64>()?;
                (Self::Large(array.value_offsets()), array.values())
            }
            _ => {
                let array = array.as_fixed_size_list_opt()?;
                (Self::Fixed(usize::try_from(array.value_length()).ok()?), array.values())
            }
        })
    }

    /// The range of a row's elements.
    pub(super) fn get(&self, row: usize) -> Range<usize> {
        match self {
            Self::Small(offsets) => span(offsets, row),
            Self::Large(offsets) => large_span(offsets, row),
            Self::Fixed(size) => row * size..(row + 1) * size,
        }
    }

    /// The range of the elements of all these rows.
    pub(super) fn of(&self, rows: Range<usize>) -> Range<usize> {
        if rows.is_empty() { 0..0 } else { self.get(rows.start).start..self.get(rows.end - 1).end }
    }
}

#[inline(always)]
pub(super) fn write_bool(out: &mut Line<'_>, value: bool) {
    let (text, length) = if value { (b"true\0", 4) } else { (b"false", 5) };
    out.push_start(text, length);
}

fn natives<T: ArrowPrimitiveType>(array: &dyn Array) -> Option<&[T::Native]> {
    array.as_primitive_opt::<T>().map(|array| &**array.values())
}

fn timestamps(array: &dyn Array, unit: TimeUnit) -> Option<&[i64]> {
    match unit {
        TimeUnit::Second => natives::<TimestampSecondType>(array),
        TimeUnit::Millisecond => natives::<TimestampMillisecondType>(array),
        TimeUnit::Microsecond => natives::<TimestampMicrosecondType>(array),
        TimeUnit::Nanosecond => natives::<TimestampNanosecondType>(array),
    }
}
