//! One column of a record batch with its type resolved, so that a value is a match and a copy away.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, BinaryViewType, ByteViewType, Date32Type, Date64Type, Decimal32Type, Decimal64Type,
    Decimal128Type, Decimal256Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    StringViewType, Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, BinaryArray, FixedSizeBinaryArray, GenericByteViewArray, LargeBinaryArray, LargeStringArray, StringArray,
};
use arrow_buffer::{BooleanBuffer, NullBuffer, i256};
use arrow_schema::{DataType, TimeUnit};

use super::shape::Shape;
use super::text::{self, Style};
use super::time;
use super::zone::Zone;

/// A column of one record batch.
pub(super) struct Column<'a> {
    /// `None` if no value is null.
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
}

/// The values of a column. Those at null rows mean nothing.
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
    Timestamp(&'a [i64], TimeUnit, Option<Zone>),
    Text(Bytes<'a>),
    Binary(Bytes<'a>),
    /// Keys and values.
    Dictionary(Box<(Column<'a>, Column<'a>)>),
    List(Spans<'a>, Box<Column<'a>>),
    /// Spans of entries, keys, values.
    Map(&'a [i32], Box<(Column<'a>, Column<'a>)>),
    /// Members, each with its JSON key.
    Struct(Vec<(&'a [u8], Column<'a>)>),
}

/// Byte strings in each layout that Arrow has for them.
pub(super) enum Bytes<'a> {
    Utf8(&'a StringArray),
    LargeUtf8(&'a LargeStringArray),
    Utf8View(&'a GenericByteViewArray<StringViewType>),
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a GenericByteViewArray<BinaryViewType>),
    FixedSize(&'a FixedSizeBinaryArray),
}

/// Where the elements of a list are.
pub(super) enum Spans<'a> {
    Small(&'a [i32]),
    Large(&'a [i64]),
    Fixed(usize),
}

impl<'a> Column<'a> {
    /// `shape` is that of the array's type; `None` if it is not.
    pub(super) fn new(array: &'a dyn Array, shape: &'a Shape) -> Option<Self> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        Some(Self { nulls, values: Values::new(array, shape)? })
    }

    /// The values and the place in them that hold this row's; `None` if it is null.
    #[inline]
    pub(super) fn locate(&self, row: usize) -> Option<(&Values<'a>, usize)> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        match &self.values {
            Values::Null => None,
            Values::Dictionary(dictionary) => {
                let (keys, values) = &**dictionary;
                values.locate(keys.values.dictionary_key(row)?)
            }
            values => Some((values, row)),
        }
    }

    /// The bytes of a text or binary column's row; `None` if it is null.
    #[inline]
    pub(super) fn bytes(&self, row: usize) -> Option<&'a [u8]> {
        match self.locate(row)? {
            (Values::Text(bytes) | Values::Binary(bytes), place) => Some(bytes.get(place)),
            _ => None,
        }
    }

    /// Whether it is known that no row is null. The values of a dictionary may be null as well.
    pub(super) fn is_never_null(&self) -> bool {
        self.nulls.is_none() && !matches!(self.values, Values::Null | Values::Dictionary(_))
    }
}

impl<'a> Values<'a> {
    fn new(array: &'a dyn Array, shape: &'a Shape) -> Option<Self> {
        let zone = match shape {
            Shape::Zoned(zone) => Some(*zone),
            Shape::Scalar | Shape::Dictionary(_) | Shape::List(_) | Shape::Map(_) | Shape::Struct(_) => None,
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
            DataType::Timestamp(unit, _) => Self::Timestamp(timestamps(array, *unit)?, *unit, zone),
            DataType::Utf8 => Self::Text(Bytes::Utf8(array.as_string_opt()?)),
            DataType::LargeUtf8 => Self::Text(Bytes::LargeUtf8(array.as_string_opt()?)),
            DataType::Utf8View => Self::Text(Bytes::Utf8View(array.as_string_view_opt()?)),
            DataType::Binary => Self::Binary(Bytes::Binary(array.as_binary_opt()?)),
            DataType::LargeBinary => Self::Binary(Bytes::LargeBinary(array.as_binary_opt()?)),
            DataType::BinaryView => Self::Binary(Bytes::BinaryView(array.as_binary_view_opt()?)),
            DataType::FixedSizeBinary(_) => Self::Binary(Bytes::FixedSize(array.as_fixed_size_binary_opt()?)),
            _ => Self::nested(array, shape)?,
        })
    }

    fn nested(array: &'a dyn Array, shape: &'a Shape) -> Option<Self> {
        match (array.data_type(), shape) {
            (DataType::Dictionary(..), Shape::Dictionary(values)) => {
                let array = array.as_any_dictionary_opt()?;
                let (keys, values) = (Column::new(array.keys(), &Shape::Scalar)?, Column::new(array.values(), values)?);
                Some(Self::Dictionary(Box::new((keys, values))))
            }
            (DataType::List(_), Shape::List(element)) => {
                let list = array.as_list_opt::<i32>()?;
                Some(Self::List(Spans::Small(list.value_offsets()), Box::new(Column::new(list.values(), element)?)))
            }
            (DataType::LargeList(_), Shape::List(element)) => {
                let list = array.as_list_opt::<i64>()?;
                Some(Self::List(Spans::Large(list.value_offsets()), Box::new(Column::new(list.values(), element)?)))
            }
            (DataType::FixedSizeList(..), Shape::List(element)) => {
                let list = array.as_fixed_size_list_opt()?;
                let size = usize::try_from(list.value_length()).ok()?;
                Some(Self::List(Spans::Fixed(size), Box::new(Column::new(list.values(), element)?)))
            }
            (DataType::Map(..), Shape::Map(shapes)) => {
                let map = array.as_map_opt()?;
                let (keys, values) = (Column::new(map.keys(), &shapes.0)?, Column::new(map.values(), &shapes.1)?);
                Some(Self::Map(map.value_offsets(), Box::new((keys, values))))
            }
            (DataType::Struct(_), Shape::Struct(shapes)) => {
                let arrays = array.as_struct_opt()?.columns();
                let members = arrays.iter().zip(shapes);
                let members = members.map(|(array, (key, shape))| Some((&**key, Column::new(array, shape)?)));
                members.collect::<Option<_>>().map(Self::Struct)
            }
            _ => None,
        }
    }

    /// A dictionary's key as an index. Arrow has checked that it is one.
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

    /// Appends the value as text, as the table in [`super`] has it. Nested types have none.
    pub(super) fn write_text(&self, row: usize, out: &mut Vec<u8>, style: Style) {
        match self {
            Self::Bool(values) => out.extend_from_slice(if values.value(row) { b"true" } else { b"false" }),
            Self::I8(values) => write_integer(out, values[row]),
            Self::I16(values) => write_integer(out, values[row]),
            Self::I32(values) => write_integer(out, values[row]),
            Self::I64(values) => write_integer(out, values[row]),
            Self::U8(values) => write_integer(out, values[row]),
            Self::U16(values) => write_integer(out, values[row]),
            Self::U32(values) => write_integer(out, values[row]),
            Self::U64(values) => write_integer(out, values[row]),
            Self::F16(values) => text::write_f32(out, values[row].to_f32()),
            Self::F32(values) => text::write_f32(out, values[row]),
            Self::F64(values) => text::write_f64(out, values[row]),
            Self::Decimal32(values, scale) => text::write_decimal(out, values[row].into(), *scale, style),
            Self::Decimal64(values, scale) => text::write_decimal(out, values[row].into(), *scale, style),
            Self::Decimal128(values, scale) => text::write_decimal(out, values[row], *scale, style),
            Self::Decimal256(values, scale) => text::write_decimal256(out, values[row], *scale, style),
            Self::Date32(values) => time::write_date(out, values[row].into()),
            Self::Date64(values) => time::write_date(out, time::day_of_millis(values[row])),
            Self::Time32(values, unit) => time::write_time(out, values[row].into(), *unit),
            Self::Time64(values, unit) => time::write_time(out, values[row], *unit),
            Self::Timestamp(values, unit, zone) => time::write_timestamp(out, values[row], *unit, *zone, style),
            Self::Text(bytes) | Self::Binary(bytes) => out.extend_from_slice(bytes.get(row)),
            Self::Null | Self::Dictionary(_) | Self::List(..) | Self::Map(..) | Self::Struct(_) => {}
        }
    }
}

impl<'a> Bytes<'a> {
    pub(super) fn get(&self, row: usize) -> &'a [u8] {
        match self {
            Self::Utf8(array) => array.value(row).as_bytes(),
            Self::LargeUtf8(array) => array.value(row).as_bytes(),
            Self::Utf8View(array) => view(array, row),
            Self::Binary(array) => array.value(row),
            Self::LargeBinary(array) => array.value(row),
            Self::BinaryView(array) => view(array, row),
            Self::FixedSize(array) => array.value(row),
        }
    }
}

impl Spans<'_> {
    /// The places of a row's elements.
    pub(super) fn get(&self, row: usize) -> Range<usize> {
        match self {
            Self::Small(offsets) => span(offsets, row),
            // Arrow has checked the offsets: they are within the elements.
            #[allow(clippy::cast_sign_loss)]
            Self::Large(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            Self::Fixed(size) => row * size..(row + 1) * size,
        }
    }
}

/// The places of a row's elements. Arrow has checked the offsets: they are within the elements.
#[allow(clippy::cast_sign_loss)]
pub(super) fn span(offsets: &[i32], row: usize) -> Range<usize> {
    offsets[row] as usize..offsets[row + 1] as usize
}

fn view<T: ByteViewType>(array: &GenericByteViewArray<T>, row: usize) -> &[u8]
where
    T::Native: AsRef<[u8]>,
{
    array.value(row).as_ref()
}

pub(super) fn write_integer(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
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
