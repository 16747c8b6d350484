//! Searches within a nested Arrow type.

use arrow_schema::DataType;

/// Whether this type is or contains a dictionary.
pub(crate) fn has_dictionary(data_type: &DataType) -> bool {
    first(data_type, &|part| matches!(part, DataType::Dictionary(..))).is_some()
}

/// The first part of a type, or the type itself, for which `holds` is true.
pub(crate) fn first<'a>(data_type: &'a DataType, holds: &dyn Fn(&DataType) -> bool) -> Option<&'a DataType> {
    if holds(data_type) {
        return Some(data_type);
    }
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => first(field.data_type(), holds),
        DataType::Struct(fields) => fields.iter().find_map(|field| first(field.data_type(), holds)),
        DataType::Union(fields, _) => fields.iter().find_map(|(_, field)| first(field.data_type(), holds)),
        DataType::Dictionary(_, values) => first(values, holds),
        _ => None,
    }
}
