//! The column types that can be written, resolved once per schema.

use std::collections::HashSet;

use arrow_schema::{DataType, Field, Fields};

use super::string;
use super::zone::Zone;
use crate::extension::{self, Extension};

/// The resolved type of a column: holds what is computed once per schema, such as parsed time zones and JSON keys.
#[derive(Debug)]
pub(super) enum Shape {
    /// A type with nothing to compute.
    Scalar,
    /// Text that must be UTF-8.
    Text,
    /// A timestamp with a zone.
    Zoned(Zone),
    /// An extension type that is not written as its storage type.
    Extension(Extension),
    /// The shape of a dictionary's values.
    Dictionary(Box<Shape>),
    /// The shape of the elements of a list of any kind.
    List(Box<Shape>),
    /// The shapes of keys and values.
    Map(Box<(Shape, Shape)>),
    /// The members of a struct, each with its JSON key ([`string::key`]).
    Struct(Vec<(Vec<u8>, Shape)>),
    /// The fields of an entry, in a map or a list: which members of an item are its name and its value, and their shapes.
    Items(Box<[(usize, Shape); 2]>),
}

/// The role of a column, which determines the types that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Unchanged bytes.
    Bytes,
    /// Unchanged bytes that must be text.
    Text,
    /// A value as text.
    Field,
    /// A value in JSON.
    Json,
    /// A map key in JSON.
    MapKey,
    /// All fields of an entry.
    Items,
    /// A key that determines the shard of a row.
    ShardKey,
}

impl Role {
    /// The supported types of this role, for errors.
    pub(super) fn supported(self) -> &'static str {
        match self {
            Self::Bytes => "utf8, large_utf8, utf8_view, binary, large_binary, binary_view",
            Self::Text => "utf8, large_utf8, utf8_view",
            Self::Field => {
                "bool, integers, floats, decimals, date, time, timestamp, duration, interval, utf8 and binary of every kind, \
                 dictionaries of these"
            }
            Self::Json => {
                "bool, integers, floats, decimals, date, time, timestamp, duration, interval, utf8 and binary of every kind, \
                 dictionaries of these, struct, list, large_list, fixed_size_list, map"
            }
            Self::MapKey => {
                "bool, integers, floats, decimals, date, time, timestamp, duration, interval, utf8 of every kind"
            }
            Self::ShardKey => "integers, utf8 and binary of every kind, dictionaries of these",
            Self::Items => {
                "map, or a list of struct<name, value>, whose names and values are utf8 or binary of every kind"
            }
        }
    }
}

/// The reason why a type cannot be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// Names of the nested fields that lead to the type, outermost first; empty for the column itself.
    pub(super) path: Vec<String>,
    /// The end of a sentence whose subject is the column.
    pub(super) reason: String,
}

impl Refused {
    fn of_type(data_type: &DataType, role: Role) -> Self {
        let role = match role {
            Role::MapKey => format!("as a map key (supported: {})", role.supported()),
            Role::Bytes | Role::Text | Role::Field | Role::Json | Role::Items | Role::ShardKey => {
                format!("(supported: {})", role.supported())
            }
        };
        Self { path: Vec::new(), reason: format!("has the type {data_type}, which cannot be written {role}") }
    }

    fn within(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }
}

impl Shape {
    /// The shape of a column, if its type is supported for `role`.
    pub(super) fn new(field: &Field, role: Role) -> Result<Self, Refused> {
        if extension::is_of_objects(field) {
            return Err(Refused { path: Vec::new(), reason: extension::OBJECTS_REFUSED.to_owned() });
        }
        match (Extension::of(field), role) {
            (_, Role::Items) => of_items(field.data_type()),
            (Some(extension), Role::Field | Role::Json | Role::MapKey) => Ok(Self::Extension(extension)),
            (None, _) | (Some(_), Role::Bytes | Role::Text | Role::ShardKey) => Self::of_type(field.data_type(), role),
        }
    }

    fn of_type(data_type: &DataType, role: Role) -> Result<Self, Refused> {
        let refused = || Refused::of_type(data_type, role);
        let (text, bytes, value, nested) = match role {
            Role::Items => (false, false, false, false),
            Role::Text => (true, false, false, false),
            Role::Bytes | Role::ShardKey => (true, true, false, false),
            Role::MapKey => (true, false, true, false),
            Role::Field => (true, true, true, false),
            Role::Json => (true, true, true, true),
        };
        match data_type {
            DataType::Null => Ok(Self::Scalar),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if text => Ok(match role {
                Role::Json | Role::MapKey => Self::Text,
                Role::Bytes | Role::Text | Role::Field | Role::Items | Role::ShardKey => Self::Scalar,
            }),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView if bytes => Ok(Self::Scalar),
            DataType::FixedSizeBinary(_) if bytes && (value || role == Role::ShardKey) => Ok(Self::Scalar),
            data_type if role == Role::ShardKey && data_type.is_integer() => Ok(Self::Scalar),
            DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Float16
            | DataType::Float32
            | DataType::Float64
            | DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..)
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(_, None)
            | DataType::Duration(_)
            | DataType::Interval(_)
                if value =>
            {
                Ok(Self::Scalar)
            }
            DataType::Timestamp(_, Some(zone)) if value => Zone::parse(zone).map(Self::Zoned).ok_or_else(|| Refused {
                path: Vec::new(),
                reason: format!(
                    "has an unknown time zone: {zone} (use a name such as Europe/Berlin, or an offset such as +05:30)"
                ),
            }),
            DataType::Dictionary(_, values) => {
                Self::of_type(values, role).map(Box::new).map(Self::Dictionary).map_err(|_| refused())
            }
            DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) if nested => {
                nested_shape(element, role).map(Box::new).map(Self::List)
            }
            DataType::Map(entries, _) if nested => {
                let DataType::Struct(pair) = entries.data_type() else { return Err(refused()) };
                let [key, value] = &**pair else { return Err(refused()) };
                Ok(Self::Map(Box::new((nested_shape(key, Role::MapKey)?, nested_shape(value, role)?))))
            }
            DataType::Struct(members) if nested => of_struct(members),
            _ => Err(refused()),
        }
    }
}

/// The shape of a column of items. In a map, the two members of an item are the name and the value; in a list, their names
/// identify them.
fn of_items(data_type: &DataType) -> Result<Shape, Refused> {
    let refused = || Refused::of_type(data_type, Role::Items);
    let (item, is_map) = match data_type {
        DataType::Map(item, _) => (item, true),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => (item, false),
        _ => return Err(refused()),
    };
    let DataType::Struct(members) = item.data_type() else { return Err(refused()) };
    let [first, second] = &**members else { return Err(refused()) };
    let places = match (is_map, first.name().as_str(), second.name().as_str()) {
        (true, ..) | (false, "name", "value") => [0, 1],
        (false, "value", "name") => [1, 0],
        (false, ..) => return Err(refused()),
    };
    let shape_at = |at: usize| Ok((at, nested_shape(&members[at], Role::Bytes)?));
    Ok(Shape::Items(Box::new([shape_at(places[0])?, shape_at(places[1])?])))
}

fn nested_shape(field: &Field, role: Role) -> Result<Shape, Refused> {
    Shape::new(field, role).map_err(|refused| refused.within(field.name()))
}

fn of_struct(members: &Fields) -> Result<Shape, Refused> {
    // Spark exports types that Arrow lacks as a struct with a marked member.
    let is_marked =
        |tag: &str| members.iter().any(|member| member.metadata().get(tag).is_some_and(|mark| mark == "true"));
    if let Some(tag) = ["variant", "geometry", "geography"].into_iter().find(|tag| is_marked(tag)) {
        let reason = format!("is a Spark {tag}, which cannot be written (cast it to a string or binary column)");
        return Err(Refused { path: Vec::new(), reason });
    }
    let mut names = HashSet::new();
    if let Some(member) = members.iter().find(|member| !names.insert(member.name())) {
        let reason = format!("is a struct with two members with the same name: {}", member.name());
        return Err(Refused { path: Vec::new(), reason });
    }
    let shapes = members.iter().map(|member| Ok((string::key(member.name()), nested_shape(member, Role::Json)?)));
    shapes.collect::<Result<_, _>>().map(Shape::Struct)
}
