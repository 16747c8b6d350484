//! The options that say which columns a batch has. A reader and a consumer share them.

use arrow_schema::{DataType, Field, Schema};

use crate::endpoint::given::Given;
use crate::entries::{
    BodyPlan, ColumnsPlan, FieldsAs, FieldsPlan, MapPlan, MetadataColumn, NamesAs, OnBadField, PackedPlan, Unpack,
};
use crate::error::{Error, Result};

/// The most rows of a batch: its columns have offsets of 31 bits, and an entry may have 100 bytes of names and values.
pub(crate) const MAX_BATCH_ROWS: i64 = 1 << 20;

/// The body that the options `fields`, `fields_as`, `names` and `unpack`, or a schema, ask for. `full`: the rows and the bytes of a
/// full batch.
pub(crate) fn read_body(
    given: &mut Given,
    nulls_bad: bool,
    schema: Option<&Schema>,
    full: [usize; 2],
) -> Result<BodyPlan> {
    let fields_as = if given.choice_or_default("fields_as")? == "map" { FieldsAs::Map } else { FieldsAs::List };
    let names_as = if given.choice_or_default("names")? == "text" { NamesAs::Utf8 } else { NamesAs::Binary };
    let on_bad = if nulls_bad { OnBadField::Null } else { OnBadField::Fail };
    if let Some(option) = ["payload_field", "max_entry_bytes"].into_iter().find(|name| given.has(name))
        && !given.has("unpack")
    {
        return Err(Error::config(option, format!("{option} needs unpack: without it no payload is read")));
    }
    let fields: Vec<Field> = match (given.columns("fields")?, schema) {
        (None, None) if given.has("unpack") => {
            return Err(Error::config("unpack", "unpack needs fields or schema, which name the columns of the rows"));
        }
        (None, None) => return Ok(BodyPlan::Map(MapPlan { fields_as, names_as })),
        (Some(_), Some(_)) => {
            return Err(Error::config("schema", "fields and schema are mutually exclusive: a schema names its fields"));
        }
        (Some(names), None) => names.into_iter().map(|name| Field::new(name, DataType::Utf8, true)).collect(),
        (None, Some(schema)) => schema.fields().iter().map(|field| field.as_ref().clone()).collect(),
    };
    if !given.has("unpack") {
        return Ok(BodyPlan::Fields(FieldsPlan::new(fields, on_bad)?));
    }
    let unpack = Unpack::named(given.choice_or_default("unpack")?).unwrap_or(Unpack::Payload);
    let payload_field = given.text_or_default("payload_field")?;
    let [batch_rows, batch_bytes] = full;
    let limits = [given.integer_or_default("max_entry_bytes")?, batch_rows, batch_bytes];
    Ok(BodyPlan::Packed(PackedPlan::new(unpack, payload_field, fields, on_bad, limits)?))
}

/// The columns of a batch. `metadata`: the names of its metadata columns; `None`: those that are usual with `body`.
pub(crate) fn columns(metadata: Option<Vec<String>>, body: BodyPlan) -> Result<ColumnsPlan> {
    let column = |name: &String| {
        MetadataColumn::named(name).ok_or_else(|| {
            let allowed = MetadataColumn::ALL.map(MetadataColumn::name).join("', '");
            Error::config("metadata", format!("metadata must be some of '{allowed}', got '{}'", name.escape_debug()))
        })
    };
    let usual = if matches!(body, BodyPlan::Map(_)) { &ColumnsPlan::METADATA_OF_MAP[..] } else { &[] };
    let metadata = metadata.map_or(Ok(usual.to_vec()), |names| names.iter().map(column).collect::<Result<_>>())?;
    ColumnsPlan::new(&metadata, body)
}
