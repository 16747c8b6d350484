//! Schemas of type names: `int64`, `timestamp[us, UTC]`, `decimal(9, 2)`, `list<utf8>`. No Arrow library is needed for one.
//!
//! The names are those that `str` of a pyarrow type returns, and Arrow's own (`utf8`, `float64`, `timestamp[us, UTC]`). Every type
//! that a reader can return has one. Spaces between the parts do not count.
//!
//! | names | type |
//! |---|---|
//! | `null`, `bool` | |
//! | `int8` to `int64`, `uint8` to `uint64` | |
//! | `float16`, `float32`, `float64` | also `halffloat`, `float`, `double` |
//! | `decimal(9, 2)` | decimal128, or decimal256 with more than 38 digits; `decimal32(9, 2)` and so on name the type |
//! | `date32`, `date64` | also `date32[day]`, `date64[ms]` |
//! | `time32[s]`, `time32[ms]`, `time64[us]`, `time64[ns]` | |
//! | `timestamp[us]`, `timestamp[us, UTC]` | also `timestamp[us, tz=UTC]`; the units are `s`, `ms`, `us`, `ns` |
//! | `duration[us]` | |
//! | `month_interval`, `day_time_interval`, `month_day_nano_interval` | |
//! | `utf8`, `large_utf8`, `utf8_view` | also `string`, `large_string`, `string_view` |
//! | `binary`, `large_binary`, `binary_view`, `fixed_size_binary[16]` | |
//! | `uuid`, `bool8` | the extension types `arrow.uuid`, `arrow.bool8`; also `extension<arrow.uuid>` |
//! | `list<int64>`, `large_list<int64>`, `fixed_size_list<int64>[3]` | also `list<item: int64>` |
//! | `struct<a: int64, b: utf8>` | |
//! | `map<utf8, int64>` | also `map<utf8, int64, keys_sorted>`, `map<utf8, int64 ('name of the values')>` |
//! | `dictionary<values=utf8, indices=int32>` | also with `ordered=0`: what is read has no order |
//!
//! ` not null` after a type makes its column, or the field in a nested type, refuse nulls.

use std::sync::Arc;

use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType,
    Field, Fields, IntervalUnit, Schema, TimeUnit,
};

use crate::error::{Error, Result};
use crate::extension::UUID_SIZE;
use crate::import::MAX_DEPTH;
use crate::nearest::nearest;
use crate::rows::is_zone;

/// An example of each name, for errors.
const EXAMPLES: &str = "null, bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, \
    decimal(9, 2), date32, date64, time32[s], time64[us], timestamp[us], timestamp[us, UTC], duration[us], month_interval, \
    day_time_interval, month_day_nano_interval, utf8, large_utf8, utf8_view, binary, large_binary, binary_view, \
    fixed_size_binary[16], uuid, bool8, list<int64>, large_list<int64>, fixed_size_list<int64>[3], struct<a: int64>, \
    map<utf8, int64>, dictionary<values=utf8, indices=int32>";

/// A schema of columns in this order, each with its name and the name of its type.
pub fn schema_of_names<T: AsRef<str>>(columns: &[(T, T)]) -> Result<Schema> {
    if columns.is_empty() {
        return Err(Error::config("schema", "schema must name at least one field, got an empty mapping"));
    }
    let fields = columns.iter().map(|(name, text)| field_of(name.as_ref(), text.as_ref()));
    Ok(Schema::new(fields.collect::<Result<Vec<Field>>>()?))
}

fn field_of(name: &str, text: &str) -> Result<Field> {
    let mut rest = Rest { text, depth: 0 };
    let field = rest.field(name).and_then(|field| rest.end().map(|()| field));
    field.map_err(|reason| {
        let message = format!("schema must give the field {name:?} the name of a type, got {text:?}: {reason}");
        Error::config("schema", message)
    })
}

/// The result of reading a part, or the reason why it is not one.
type Part<T> = std::result::Result<T, String>;

/// The rest of a text, which has yet to be read.
struct Rest<'a> {
    text: &'a str,
    /// The number of nested types that are being read.
    depth: usize,
}

impl<'a> Rest<'a> {
    /// Takes a type, and whether it allows nulls.
    fn field(&mut self, name: &str) -> Part<Field> {
        if self.depth >= MAX_DEPTH {
            return Err(format!("it is nested deeper than {MAX_DEPTH} levels, the most that is read"));
        }
        self.depth += 1;
        let (data_type, extension) = self.data_type()?;
        self.depth -= 1;
        let field = Field::new(name, data_type, !self.takes("not null"));
        Ok(match extension {
            Some(name) => field.with_metadata([(EXTENSION_TYPE_NAME_KEY.to_owned(), name.to_owned())].into()),
            None => field,
        })
    }

    /// Takes a type, with the name of its extension type if it is one.
    fn data_type(&mut self) -> Part<(DataType, Option<&'static str>)> {
        let word = self.word();
        let data_type = match word {
            "null" => DataType::Null,
            "bool" => DataType::Boolean,
            "int8" => DataType::Int8,
            "int16" => DataType::Int16,
            "int32" => DataType::Int32,
            "int64" => DataType::Int64,
            "uint8" => DataType::UInt8,
            "uint16" => DataType::UInt16,
            "uint32" => DataType::UInt32,
            "uint64" => DataType::UInt64,
            "float16" | "halffloat" => DataType::Float16,
            "float32" | "float" => DataType::Float32,
            "float64" | "double" => DataType::Float64,
            "decimal" | "decimal32" | "decimal64" | "decimal128" | "decimal256" => self.decimal(word)?,
            "date32" | "date64" | "time32" | "time64" | "timestamp" | "duration" => self.time(word)?,
            "month_interval" => DataType::Interval(IntervalUnit::YearMonth),
            "day_time_interval" => DataType::Interval(IntervalUnit::DayTime),
            "month_day_nano_interval" => DataType::Interval(IntervalUnit::MonthDayNano),
            "utf8" | "string" => DataType::Utf8,
            "large_utf8" | "large_string" => DataType::LargeUtf8,
            "utf8_view" | "string_view" => DataType::Utf8View,
            "binary" => DataType::Binary,
            "large_binary" => DataType::LargeBinary,
            "binary_view" => DataType::BinaryView,
            "fixed_size_binary" => {
                DataType::FixedSizeBinary(self.size("fixed_size_binary[16] has the number of its bytes")?)
            }
            "uuid" | "bool8" | "extension" => return self.extension(word),
            "list" => DataType::List(self.item("list<int64>")?),
            "large_list" => DataType::LargeList(self.item("large_list<int64>")?),
            "fixed_size_list" => {
                let example = "fixed_size_list<int64>[3] has the type and the number of its elements";
                let item = self.item(example)?;
                DataType::FixedSizeList(item, self.size(example)?)
            }
            "struct" => DataType::Struct(self.members()?),
            "map" => self.map()?,
            "dictionary" => self.dictionary()?,
            _ => return Err(unknown(word)),
        };
        Ok((data_type, None))
    }

    fn decimal(&mut self, word: &str) -> Part<DataType> {
        let needs = || format!("{word}(9, 2) has a precision and a scale");
        let (precision, scale) = self.within('(', ')').and_then(|inner| inner.split_once(',')).ok_or_else(needs)?;
        let precision: u8 = precision.trim().parse().map_err(|_| needs())?;
        let scale: i8 = scale.trim().parse().map_err(|_| needs())?;
        let most = match word {
            "decimal32" => DECIMAL32_MAX_PRECISION,
            "decimal64" => DECIMAL64_MAX_PRECISION,
            "decimal128" => DECIMAL128_MAX_PRECISION,
            _ => DECIMAL256_MAX_PRECISION,
        };
        if precision == 0 || precision > most {
            return Err(format!("the precision of {word} is from 1 to {most}"));
        }
        // A larger scale leaves no digit, and the scale is limited as the precision is.
        let scales = -i16::from(most)..=i16::from(precision);
        if !scales.contains(&i16::from(scale)) {
            return Err(format!("the scale of {word} is from -{most} to its precision"));
        }
        Ok(match word {
            "decimal32" => DataType::Decimal32(precision, scale),
            "decimal64" => DataType::Decimal64(precision, scale),
            "decimal" if precision <= DECIMAL128_MAX_PRECISION => DataType::Decimal128(precision, scale),
            "decimal128" => DataType::Decimal128(precision, scale),
            _ => DataType::Decimal256(precision, scale),
        })
    }

    fn time(&mut self, word: &str) -> Part<DataType> {
        let inner = self.within('[', ']').map(str::trim);
        match (word, inner) {
            ("date32", None | Some("day")) => Ok(DataType::Date32),
            ("date64", None | Some("ms")) => Ok(DataType::Date64),
            ("date32" | "date64", Some(_)) => Err(format!("{word} has no unit")),
            ("time32", Some("s")) => Ok(DataType::Time32(TimeUnit::Second)),
            ("time32", Some("ms")) => Ok(DataType::Time32(TimeUnit::Millisecond)),
            ("time32", _) => Err("time32 has the unit s or ms: time32[s]".to_owned()),
            ("time64", Some("us")) => Ok(DataType::Time64(TimeUnit::Microsecond)),
            ("time64", Some("ns")) => Ok(DataType::Time64(TimeUnit::Nanosecond)),
            ("time64", _) => Err("time64 has the unit us or ns: time64[us]".to_owned()),
            (_, inner) => {
                let inner = inner.unwrap_or_default();
                let (unit, zone) = match inner.split_once(',') {
                    Some((unit, zone)) if word == "timestamp" => (unit.trim(), Some(zone.trim())),
                    _ => (inner, None),
                };
                let unit = match unit {
                    "s" => TimeUnit::Second,
                    "ms" => TimeUnit::Millisecond,
                    "us" => TimeUnit::Microsecond,
                    "ns" => TimeUnit::Nanosecond,
                    _ => return Err(format!("{word} has the unit s, ms, us or ns: {word}[us]")),
                };
                let zone = zone.map(|zone| zone.strip_prefix("tz=").unwrap_or(zone));
                match zone {
                    _ if word == "duration" => Ok(DataType::Duration(unit)),
                    Some(zone) if !is_zone(zone) => {
                        Err(format!("{zone:?} is not a time zone, such as UTC, Europe/Berlin or +02:00"))
                    }
                    zone => Ok(DataType::Timestamp(unit, zone.map(Arc::from))),
                }
            }
        }
    }

    fn extension(&mut self, word: &str) -> Part<(DataType, Option<&'static str>)> {
        let name = if word == "extension" { self.within('<', '>') } else { Some(word) };
        match name.map(str::trim) {
            Some("uuid" | "arrow.uuid") => Ok((DataType::FixedSizeBinary(UUID_SIZE), Some("arrow.uuid"))),
            Some("bool8" | "arrow.bool8") => Ok((DataType::Int8, Some("arrow.bool8"))),
            _ => {
                Err("extension<arrow.uuid> and extension<arrow.bool8> are the extension types with a name here"
                    .to_owned())
            }
        }
    }

    /// Takes `[16]`.
    fn size(&mut self, example: &str) -> Part<i32> {
        let size = self.within('[', ']').and_then(|size| size.trim().parse().ok());
        size.filter(|size| *size >= 0).ok_or_else(|| example.to_owned())
    }

    /// Takes `<int64>` or `<item: int64>`.
    fn item(&mut self, example: &str) -> Part<Arc<Field>> {
        self.expect("<", example)?;
        let name = self.name().unwrap_or("item");
        let item = self.field(name)?;
        self.expect(">", example)?;
        Ok(Arc::new(item))
    }

    /// Takes `<a: int64, b: utf8>`.
    fn members(&mut self) -> Part<Fields> {
        let example = "struct<a: int64, b: utf8> has a name and a type for each member";
        self.expect("<", example)?;
        let mut members = Vec::new();
        while !self.takes(">") {
            if !members.is_empty() {
                self.expect(",", example)?;
            }
            let name = self.name().ok_or(example)?;
            members.push(self.field(name)?);
        }
        Ok(members.into())
    }

    /// Takes `<utf8, int64>`.
    fn map(&mut self) -> Part<DataType> {
        let example = "map<utf8, int64> has a type for the keys and one for the values";
        self.expect("<", example)?;
        let keys = self.field("key")?.with_nullable(false);
        let keys = self.renamed(keys)?;
        self.expect(",", example)?;
        let values = self.field("value")?;
        let values = self.renamed(values)?;
        let is_sorted = self.takes(",");
        if is_sorted {
            self.expect("keys_sorted", example)?;
        }
        self.expect(">", example)?;
        let entries = Field::new("entries", DataType::Struct(vec![keys, values].into()), false);
        Ok(DataType::Map(Arc::new(entries), is_sorted))
    }

    /// Takes the name of a map's field, if it has another than usual: ` ('name')`.
    fn renamed(&mut self, field: Field) -> Part<Field> {
        if !self.takes("('") {
            return Ok(field);
        }
        let (name, rest) = self.text.split_once("')").ok_or("the name of a map's field ends with ')")?;
        self.text = rest;
        Ok(field.with_name(name))
    }

    /// Takes `<values=utf8, indices=int32>`.
    fn dictionary(&mut self) -> Part<DataType> {
        let example = "dictionary<values=utf8, indices=int32> has a type for the values and one for the indices";
        self.expect("<", example)?;
        self.expect("values=", example)?;
        let values = self.field("")?;
        self.expect(",", example)?;
        self.expect("indices=", example)?;
        let indices = self.field("")?;
        if self.takes(",") {
            self.expect("ordered=0", "a dictionary that is read has no order: ordered=0")?;
        }
        self.expect(">", example)?;
        if !indices.data_type().is_dictionary_key_type() {
            return Err("the indices of a dictionary are integers".to_owned());
        }
        Ok(DataType::Dictionary(Box::new(indices.data_type().clone()), Box::new(values.data_type().clone())))
    }

    /// Takes the name of a field in a nested type, and the colon after it.
    fn name(&mut self) -> Option<&'a str> {
        // A zone may have a colon, but only in brackets.
        let end = self.text.find([':', '<', '>', '[', '(', ','])?;
        let name = self.text.get(..end)?;
        self.text = self.text.get(end..)?.strip_prefix(':')?;
        Some(name.trim())
    }

    fn word(&mut self) -> &'a str {
        let text = self.text.trim_start();
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.text = rest;
        word
    }

    /// Takes what is between these two, if the first one follows.
    fn within(&mut self, first: char, last: char) -> Option<&'a str> {
        let (inner, rest) = self.text.trim_start().strip_prefix(first)?.split_once(last)?;
        self.text = rest;
        Some(inner)
    }

    /// Takes this text if it follows.
    fn takes(&mut self, expected: &str) -> bool {
        let rest = self.text.trim_start().strip_prefix(expected);
        rest.map(|rest| self.text = rest).is_some()
    }

    fn expect(&mut self, expected: &str, example: &str) -> Part<()> {
        if self.takes(expected) { Ok(()) } else { Err(example.to_owned()) }
    }

    fn end(&self) -> Part<()> {
        match self.text.trim() {
            "" => Ok(()),
            rest => Err(format!("nothing may follow the type but \" not null\", not {rest:?}")),
        }
    }
}

#[cold]
fn unknown(word: &str) -> String {
    let names = EXAMPLES.split(", ").filter_map(|name| name.split(['[', '(', '<']).next());
    let whole = names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    let hint = nearest(whole, word).map(|name| format!("did you mean '{name}'? ")).unwrap_or_default();
    format!("{hint}types are {EXAMPLES}, and the other names that pyarrow prints for them")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::extension::Extension;

    /// The name that pyarrow prints; the tests in Python compare with its own.
    fn name_of(data_type: &DataType) -> String {
        let unit = |unit: &TimeUnit| match unit {
            TimeUnit::Second => "s",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Microsecond => "us",
            TimeUnit::Nanosecond => "ns",
        };
        let nullable = |field: &Field| if field.is_nullable() { "" } else { " not null" };
        let member = |field: &Field| format!("{}: {}{}", field.name(), name_of(field.data_type()), nullable(field));
        match data_type {
            DataType::Boolean => "bool".to_owned(),
            DataType::Float16 => "halffloat".to_owned(),
            DataType::Float32 => "float".to_owned(),
            DataType::Float64 => "double".to_owned(),
            DataType::Decimal32(precision, scale) => format!("decimal32({precision}, {scale})"),
            DataType::Decimal64(precision, scale) => format!("decimal64({precision}, {scale})"),
            DataType::Decimal128(precision, scale) => format!("decimal128({precision}, {scale})"),
            DataType::Decimal256(precision, scale) => format!("decimal256({precision}, {scale})"),
            DataType::Date32 => "date32[day]".to_owned(),
            DataType::Date64 => "date64[ms]".to_owned(),
            DataType::Time32(of) => format!("time32[{}]", unit(of)),
            DataType::Time64(of) => format!("time64[{}]", unit(of)),
            DataType::Timestamp(of, None) => format!("timestamp[{}]", unit(of)),
            DataType::Timestamp(of, Some(zone)) => format!("timestamp[{}, tz={zone}]", unit(of)),
            DataType::Duration(of) => format!("duration[{}]", unit(of)),
            DataType::Interval(IntervalUnit::YearMonth) => "month_interval".to_owned(),
            DataType::Interval(IntervalUnit::DayTime) => "day_time_interval".to_owned(),
            DataType::Interval(IntervalUnit::MonthDayNano) => "month_day_nano_interval".to_owned(),
            DataType::Utf8 => "string".to_owned(),
            DataType::LargeUtf8 => "large_string".to_owned(),
            DataType::Utf8View => "string_view".to_owned(),
            DataType::LargeBinary => "large_binary".to_owned(),
            DataType::BinaryView => "binary_view".to_owned(),
            DataType::FixedSizeBinary(size) => format!("fixed_size_binary[{size}]"),
            DataType::List(item) => format!("list<{}>", member(item)),
            DataType::LargeList(item) => format!("large_list<{}>", member(item)),
            DataType::FixedSizeList(item, size) => format!("fixed_size_list<{}>[{size}]", member(item)),
            DataType::Struct(fields) => {
                format!("struct<{}>", fields.iter().map(|field| member(field)).collect::<Vec<_>>().join(", "))
            }
            DataType::Map(entries, is_sorted) => {
                let DataType::Struct(pair) = entries.data_type() else { unreachable!() };
                let [keys, values] = [0, 1].map(|at| name_of(pair[at].data_type()));
                format!("map<{keys}, {values}{}>", if *is_sorted { ", keys_sorted" } else { "" })
            }
            DataType::Dictionary(keys, values) => {
                format!("dictionary<values={}, indices={}, ordered=0>", name_of(values), name_of(keys))
            }
            // Null, integers and binary.
            other => other.to_string().to_lowercase(),
        }
    }

    fn units() -> impl Strategy<Value = TimeUnit> {
        select(vec![TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond])
    }

    fn precisions(most: u8) -> impl Strategy<Value = (u8, i8)> {
        (1..=most).prop_flat_map(move |precision| (Just(precision), -most.cast_signed()..=precision.cast_signed()))
    }

    fn integers() -> impl Strategy<Value = DataType> {
        use DataType::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
        select(vec![Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64])
    }

    fn flat() -> impl Strategy<Value = DataType> {
        use DataType::{
            Binary, BinaryView, Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Dictionary,
            Duration, FixedSizeBinary, Float16, Float32, Float64, Interval, LargeBinary, LargeUtf8, Null, Time32,
            Time64, Timestamp, Utf8, Utf8View,
        };
        let zones = select(vec!["UTC", "Europe/Berlin", "+02:00", "Etc/GMT+3"]).prop_map(Arc::from);
        prop_oneof![
            integers(),
            select(vec![
                Null,
                Boolean,
                Float16,
                Float32,
                Float64,
                Date32,
                Date64,
                Utf8,
                LargeUtf8,
                Utf8View,
                Binary,
                LargeBinary,
                BinaryView,
                Time32(TimeUnit::Second),
                Time32(TimeUnit::Millisecond),
                Time64(TimeUnit::Microsecond),
                Time64(TimeUnit::Nanosecond),
                Interval(IntervalUnit::YearMonth),
                Interval(IntervalUnit::DayTime),
                Interval(IntervalUnit::MonthDayNano),
            ]),
            (units(), proptest::option::of(zones)).prop_map(|(unit, zone)| Timestamp(unit, zone)),
            units().prop_map(Duration),
            (0..1000).prop_map(FixedSizeBinary),
            precisions(DECIMAL32_MAX_PRECISION).prop_map(|(precision, scale)| Decimal32(precision, scale)),
            precisions(DECIMAL64_MAX_PRECISION).prop_map(|(precision, scale)| Decimal64(precision, scale)),
            precisions(DECIMAL128_MAX_PRECISION).prop_map(|(precision, scale)| Decimal128(precision, scale)),
            precisions(DECIMAL256_MAX_PRECISION).prop_map(|(precision, scale)| Decimal256(precision, scale)),
            integers().prop_map(|keys| Dictionary(Box::new(keys), Box::new(Utf8))),
        ]
    }

    fn types() -> impl Strategy<Value = DataType> {
        flat().prop_recursive(4, 24, 4, |inner| {
            let field = (r"[a-zA-Z_]([a-z0-9_ ]{0,4}[a-z])?", inner.clone(), any::<bool>());
            let field = field.prop_map(|(name, data_type, nullable)| Arc::new(Field::new(name, data_type, nullable)));
            prop_oneof![
                field.clone().prop_map(DataType::List),
                field.clone().prop_map(DataType::LargeList),
                (field.clone(), 0..100).prop_map(|(item, size)| DataType::FixedSizeList(item, size)),
                proptest::collection::vec(field, 0..4).prop_map(|members| DataType::Struct(members.into())),
                (inner.clone(), inner, any::<bool>()).prop_map(|(keys, values, is_sorted)| {
                    let pair = vec![Field::new("key", keys, false), Field::new("value", values, true)];
                    let entries = Field::new("entries", DataType::Struct(pair.into()), false);
                    DataType::Map(Arc::new(entries), is_sorted)
                }),
            ]
        })
    }

    fn type_of(text: &str) -> DataType {
        field_of("a", text).unwrap().data_type().clone()
    }

    fn refused(text: &str) -> String {
        match field_of("total", text).unwrap_err() {
            Error::Config { option, message } => {
                assert_eq!(option, "schema");
                assert!(
                    message.starts_with(&format!(
                        "schema must give the field \"total\" the name of a type, got {text:?}: "
                    ))
                );
                message
            }
            error => unreachable!("{error}"),
        }
    }

    proptest! {
        #[test]
        fn each_type_is_read_from_its_name(data_type in types()) {
            prop_assert_eq!(type_of(&name_of(&data_type)), data_type.clone());
            let name = name_of(&data_type);
            for spaced in [name.replace(", ", ","), name.replace(", ", " , "), format!(" {name} ")] {
                prop_assert_eq!(type_of(&spaced), data_type.clone());
            }
            let not_null = field_of("a", &format!("{} not null", name_of(&data_type))).unwrap();
            prop_assert_eq!(not_null, Field::new("a", data_type, false));
        }

        #[test]
        fn any_text_is_read_or_refused(text in r"(list|map|int64|struct|decimal|[ <>\[\]():,'a-z0-9é=]){0,12}") {
            let _ = field_of("a", &text);
        }

        #[test]
        fn a_part_of_a_name_is_refused_or_another_type(data_type in types(), end in any::<proptest::sample::Index>()) {
            let name = name_of(&data_type);
            let part = &name[..end.index(name.len())];
            if let Ok(field) = field_of("a", part) {
                prop_assert_ne!(field.data_type(), &data_type);
            }
        }
    }

    #[test]
    fn common_names_are_other_names_of_a_type() {
        for (text, expected) in [
            ("utf8", DataType::Utf8),
            ("float64", DataType::Float64),
            ("decimal(9,2)", DataType::Decimal128(9, 2)),
            ("decimal(39, 0)", DataType::Decimal256(39, 0)),
            ("timestamp[us, UTC]", DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))),
            (" timestamp [ ms ] ", DataType::Timestamp(TimeUnit::Millisecond, None)),
            ("list<int8>", DataType::new_list(DataType::Int8, true)),
            ("map<utf8, int8 ('v')>", type_of("map<utf8,int8('v')>")),
        ] {
            assert_eq!(type_of(text), expected, "{text}");
        }
        for text in ["uuid", "extension<arrow.uuid>"] {
            assert_eq!(Extension::of(&field_of("a", text).unwrap()), Some(Extension::Uuid));
        }
        let DataType::List(item) = type_of("list<bool8>") else { unreachable!() };
        assert_eq!(Extension::of(&item), Some(Extension::Bool8));
    }

    #[test]
    fn an_error_says_what_is_missing_or_allowed() {
        for (text, part) in [
            ("Int64", "did you mean 'int64'? types are null, bool, "),
            ("varchar", "types are null, bool, "),
            ("", "types are null, bool, "),
            ("timestamp", "timestamp has the unit s, ms, us or ns: timestamp[us]"),
            ("timestamp[us, Moon]", "\"Moon\" is not a time zone"),
            ("duration[us, UTC]", "duration has the unit"),
            ("decimal(9)", "decimal(9, 2) has a precision and a scale"),
            ("decimal128(39, 2)", "the precision of decimal128 is from 1 to 38"),
            ("decimal(2, 9)", "the scale of decimal is from -76 to its precision"),
            ("time32[us]", "time32 has the unit s or ms"),
            ("int64 nullable", "nothing may follow the type"),
            ("list<int64", "list<int64>"),
            ("struct<int64>", "struct<a: int64, b: utf8>"),
            ("dictionary<values=utf8, indices=utf8>", "indices of a dictionary are integers"),
            ("dictionary<values=utf8, indices=int8, ordered=1>", "has no order"),
            ("fixed_size_binary[-1]", "fixed_size_binary[16]"),
            (&"list<".repeat(10_000), "nested deeper than 64 levels"),
        ] {
            let message = refused(text);
            assert!(message.contains(part), "{message}");
        }
        assert!(schema_of_names::<&str>(&[]).is_err());
        let schema = schema_of_names(&[("b", "int8"), ("a", "utf8 not null")]).unwrap();
        assert_eq!(schema.fields()[1].as_ref(), &Field::new("a", DataType::Utf8, false));
    }
}
