//! The schema of what comes in: how deep it is, before anything follows it, and that its types are whole.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};

use super::abi::CSchema;
use super::{Invalid, MAX_DEPTH};
use crate::contain::contain;
use crate::error::{Error, Result};

/// The schema of a record batch: a struct whose members are its columns.
pub(super) fn read(schema: &CSchema) -> Result<SchemaRef> {
    if schema.is_released() {
        return Err(Error::schema("the Arrow data was read before: its capsules can be read once"));
    }
    if schema.format() != Some("+s") {
        let format = schema.format().unwrap_or_default();
        let message = "data must be an Arrow record batch, table or reader: got an array without columns, of format";
        return Err(Error::schema(format!("{message} {format:?}")));
    }
    let Some(columns) = schema.child_count().filter(|count| *count == schema.below().count()) else {
        return Err(Error::schema("the Arrow schema is invalid: it lacks a column that it counts"));
    };
    let mut fields = Vec::with_capacity(columns);
    for column in schema.below() {
        let name = column.name().to_string_lossy();
        let invalid =
            |invalid: Invalid| Error::schema(format!("the Arrow schema is invalid: {}", invalid.of_column(&name)));
        check_structure(column).map_err(invalid)?;
        // Arrow asserts some of what a schema says. It holds nothing that outlives the panic.
        let field = contain(|| column.to_field());
        let field = field.map_err(|_| invalid(Invalid::new("has a type that cannot be parsed")))?;
        let field = field.map_err(|error| invalid(Invalid::new(format!("has a type that is not known: {error}"))))?;
        check_type(field.data_type()).map_err(invalid)?;
        fields.push(field);
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Looks at each field below, without following them on the stack.
fn check_structure(column: &CSchema) -> std::result::Result<(), Invalid> {
    let mut left = vec![(column, 1)];
    while let Some((field, depth)) = left.pop() {
        if field.name().to_str().is_err() {
            return Err(Invalid::new("has a field whose name is not UTF-8"));
        }
        if depth > MAX_DEPTH {
            return Err(Invalid::new(format!(
                "is nested deeper than {MAX_DEPTH} levels, which is the most that is read"
            )));
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
            return Err(Invalid::new(format!("has a field of format {format:?} with another number of children")));
        }
        let before = left.len();
        left.extend(field.below().map(|child| (child, depth + 1)));
        // A dictionary comes behind them.
        if left.len() - before < count.unwrap_or(0) {
            return Err(Invalid::new(format!("has a field of format {format:?} that lacks a child")));
        }
    }
    Ok(())
}

/// What arrow takes from a format text without looking at it.
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
