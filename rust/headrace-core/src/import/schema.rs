//! Import of a schema: its depth is checked before anything recurses into it, then its types.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, UnionFields};

use super::abi::CSchema;
use super::{Invalid, MAX_DEPTH};
use crate::contain::contain;
use crate::error::{Error, Result};

/// Reads the schema of a record batch, which is a struct with the columns as its members.
pub(super) fn read(schema: &CSchema) -> Result<SchemaRef> {
    if schema.is_released() {
        return Err(Error::schema("the Arrow data was read before: its capsules can be read only once"));
    }
    if schema.format() != Some("+s") {
        let format = schema.format().unwrap_or_default();
        return Err(Error::schema(format!("an Arrow array of format {format:?} has no columns")));
    }
    let Some(columns) = schema.child_count().filter(|count| *count == schema.below().count()) else {
        return Err(Error::schema("the Arrow schema is invalid: it lacks a column that it counts"));
    };
    let mut fields = Vec::with_capacity(columns);
    for column in schema.below() {
        let name = column.name().to_string_lossy();
        let invalid =
            |invalid: Invalid| Error::schema(format!("the Arrow schema is invalid: {}", invalid.of_column(&name)));
        let fields_of = check_structure(column).map_err(invalid)?;
        let field = to_field(&fields_of).map_err(invalid)?;
        check_type(field.data_type()).map_err(invalid)?;
        fields.push(field);
    }
    // pandas keeps the description of its index in the metadata.
    let itself = contain(|| schema.to_field()).ok().and_then(std::result::Result::ok);
    let itself = itself.ok_or_else(|| Error::schema("the Arrow schema is invalid: its metadata cannot be read"))?;
    Ok(Arc::new(Schema::new_with_metadata(fields, itself.metadata().clone())))
}

/// A column or a field within it.
struct Node<'a> {
    field: &'a CSchema,
    depth: usize,
    /// The indexes of the node's children, then of its dictionary, in the list of all nodes.
    below: Range<usize>,
}

/// Lists all fields of a column, each before its children, without recursion.
fn check_structure(column: &CSchema) -> std::result::Result<Vec<Node<'_>>, Invalid> {
    let mut nodes = vec![Node { field: column, depth: 1, below: 0..0 }];
    let mut next = 0;
    while let Some(Node { field, depth, .. }) = nodes.get(next) {
        let (field, depth) = (*field, *depth);
        if depth > MAX_DEPTH {
            return Err(Invalid::new(format!("is nested deeper than {MAX_DEPTH} levels, the most that is read")));
        }
        if field.name().to_str().is_err() {
            return Err(Invalid::new("has a field whose name is not UTF-8"));
        }
        let Some(format) = field.format() else {
            return Err(Invalid::new("has a field whose format is null or not UTF-8"));
        };
        let expected = match format {
            "+l" | "+L" | "+vl" | "+vL" | "+m" => Some(1),
            "+r" => Some(2),
            "+s" => None,
            _ if format.starts_with("+w:") => Some(1),
            _ if format.starts_with("+u") => None,
            _ => Some(0),
        };
        let count = field.child_count();
        if count.is_none() || expected.is_some_and(|expected| count != Some(expected)) {
            return Err(Invalid::new(format!("has a field of format {format:?} with a wrong number of children")));
        }
        let start = nodes.len();
        nodes.extend(field.below().map(|field| Node { field, depth: depth + 1, below: 0..0 }));
        let below = start..nodes.len();
        if Some(below.len()) != count.map(|count| count + usize::from(field.has_dictionary())) {
            return Err(Invalid::new(format!("has a field of format {format:?} that lacks a child")));
        }
        nodes[next].below = below;
        next += 1;
    }
    Ok(nodes)
}

/// Builds the column's field. Arrow parses one structure at a time here, because it would recurse into the children, with 2 KiB
/// of stack per level.
fn to_field(nodes: &[Node<'_>]) -> std::result::Result<Field, Invalid> {
    let mut fields: Vec<Option<Field>> = vec![None; nodes.len()];
    // Children come after their parents.
    for (index, Node { field, below, .. }) in nodes.iter().enumerate().rev() {
        // Arrow asserts some of the content of a structure. No state outlives the panic.
        let alone = contain(|| field.to_field()).map_err(|_| Invalid::new("has a type that cannot be parsed"))?;
        let unknown = |error: ArrowError| Invalid::new(format!("has an unknown type: {error}"));
        let alone = alone.map_err(unknown)?;
        let below: Vec<Field> = fields[below.clone()].iter_mut().filter_map(Option::take).collect();
        let data_type = with_children(alone.data_type(), below).map_err(unknown)?;
        fields[index] = Some(alone.with_data_type(data_type));
    }
    fields.swap_remove(0).ok_or_else(|| Invalid::new("is missing"))
}

/// Replaces the children of a type. The last element of `below` is its dictionary, if it has one.
fn with_children(alone: &DataType, mut below: Vec<Field>) -> std::result::Result<DataType, ArrowError> {
    let dictionary = if matches!(alone, DataType::Dictionary(..)) { below.pop() } else { None };
    let mut children = below.into_iter().map(Arc::new);
    let mut child = || children.next().unwrap_or_else(|| Arc::new(Field::new("", DataType::Null, true)));
    Ok(match alone {
        DataType::List(_) => DataType::List(child()),
        DataType::LargeList(_) => DataType::LargeList(child()),
        DataType::ListView(_) => DataType::ListView(child()),
        DataType::LargeListView(_) => DataType::LargeListView(child()),
        DataType::FixedSizeList(_, size) => DataType::FixedSizeList(child(), *size),
        DataType::Map(_, is_sorted) => DataType::Map(child(), *is_sorted),
        DataType::RunEndEncoded(..) => DataType::RunEndEncoded(child(), child()),
        DataType::Struct(_) => DataType::Struct(children.collect()),
        DataType::Union(members, mode) => {
            DataType::Union(UnionFields::try_new(members.iter().map(|(id, _)| id), children)?, *mode)
        }
        DataType::Dictionary(keys, _) => {
            let values = dictionary.map_or(DataType::Null, |field| field.data_type().clone());
            DataType::Dictionary(keys.clone(), Box::new(values))
        }
        other => other.clone(),
    })
}

/// Refuses types that arrow accepts from a format string without a check.
fn check_type(data_type: &DataType) -> std::result::Result<(), Invalid> {
    match data_type {
        DataType::FixedSizeBinary(size) if *size < 0 => Err(Invalid::new(format!("has values of {size} bytes"))),
        DataType::FixedSizeList(_, size) if *size < 0 => Err(Invalid::new(format!("has lists of {size} elements"))),
        DataType::Dictionary(keys, values) => {
            if !keys.is_dictionary_key_type() {
                return Err(Invalid::new(format!("is a dictionary whose keys are of type {keys}, and not integers")));
            }
            check_type(values)
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => check_type(entries.data_type()),
            other => {
                Err(Invalid::new(format!("is a map whose entries are of type {other}, and not a key and a value")))
            }
        },
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::RunEndEncoded(_, field) => {
            check_type(field.data_type()).map_err(|invalid| invalid.within(field.name()))
        }
        DataType::Struct(fields) => fields
            .iter()
            .try_for_each(|field| check_type(field.data_type()).map_err(|invalid| invalid.within(field.name()))),
        DataType::Union(fields, _) => fields
            .iter()
            .try_for_each(|(_, field)| check_type(field.data_type()).map_err(|invalid| invalid.within(field.name()))),
        _ => Ok(()),
    }
}
