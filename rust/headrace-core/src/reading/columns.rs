//! The options that determine the columns of a batch, shared by readers and consumers.

use arrow_schema::{DataType, Field, Schema};

use crate::endpoint::OptionValue;
use crate::endpoint::given::Given;
use crate::entries::{
    BodyPlan, ColumnsPlan, FieldsAs, FieldsPlan, FirstEntryPlan, MapPlan, MetadataColumn, NamesAs, OnBadField,
    PackedPlan, RAW, RawPlan, Unpack, for_each_member,
};
use crate::error::{Error, Result};

/// The maximum number of rows of a batch: its columns have 31-bit offsets, and an entry may have 100 bytes of names and values.
pub(crate) const MAX_BATCH_ROWS: i64 = 1 << 20;

/// The value of the option `fields` for those of the first entry.
const ALL: &str = "*";

/// The columns selected by the options `fields`, `fields_as`, `names` and `unpack`, or by a schema, without the metadata columns.
#[derive(Debug)]
pub(crate) struct Asked {
    body: BodyPlan,
    /// How the fields of an entry that does not fit are kept; `None`: they are not.
    kept: Option<MapPlan>,
}

/// Reads the options of the columns. `on_bad`: the option `on_bad_field`. `full`: the rows and the bytes of a full batch.
pub(crate) fn read_body(
    given: &mut Given,
    on_bad: &'static str,
    schema: Option<&Schema>,
    full: [usize; 2],
) -> Result<Asked> {
    let fields_as = if given.choice_or_default("fields_as")? == "map" { FieldsAs::Map } else { FieldsAs::List };
    let names_as = if given.choice_or_default("names")? == "text" { NamesAs::Utf8 } else { NamesAs::Binary };
    let map = MapPlan { fields_as, names_as };
    let kept = (on_bad == "keep").then_some(map);
    let on_bad = if kept.is_some() || on_bad == "null" { OnBadField::Null } else { OnBadField::Fail };
    if let Some(option) = ["payload_field", "max_entry_bytes"].into_iter().find(|name| given.has(name))
        && !given.has("unpack")
    {
        return Err(Error::config(option, format!("{option} needs unpack: without it no payload is read")));
    }
    let unpack = if given.has("unpack") { Unpack::named(given.choice_or_default("unpack")?) } else { None };
    let unpack = match unpack {
        None => None,
        Some(unpack) => {
            let [batch_rows, batch_bytes] = full;
            let limits = [given.integer_or_default("max_entry_bytes")?, batch_rows, batch_bytes];
            Some((unpack, given.text_or_default("payload_field")?, limits))
        }
    };
    if given.is_text("fields", ALL) {
        given.value("fields");
        return match (schema, unpack) {
            (Some(_), _) => Err(both_given()),
            (None, None) => Ok(Asked { body: BodyPlan::FirstEntry(FirstEntryPlan::of_fields(on_bad)), kept }),
            (None, Some(_)) => {
                let message = "fields '*' means the fields of an entry, and unpack reads the columns of the rows in it: name these \
                               columns, or leave fields out with unpack 'arrow_ipc'";
                Err(Error::config("fields", message))
            }
        };
    }
    let names = given.names("fields")?;
    if let (None, None, Some((Unpack::ArrowIpc, payload_field, limits))) = (&names, schema, &unpack) {
        let plan = FirstEntryPlan::of_arrow_ipc(payload_field.clone(), on_bad, *limits);
        return Ok(Asked { body: BodyPlan::FirstEntry(plan), kept });
    }
    let fields: Vec<Field> = match (names, schema) {
        (None, None) if unpack.is_some() => {
            let message = "unpack 'payload' and 'json' need fields or schema, which name the columns of the rows";
            return Err(Error::config("unpack", message));
        }
        (None, None) if kept.is_some() => {
            let message = "on_bad_field 'keep' needs fields or schema: without them each entry is kept as it is";
            return Err(Error::config("on_bad_field", message));
        }
        (None, None) => return Ok(Asked { body: BodyPlan::Map(map), kept }),
        (Some(_), Some(_)) => return Err(both_given()),
        (Some(names), None) => names.into_iter().map(|name| Field::new(name, DataType::Utf8, true)).collect(),
        (None, Some(schema)) => schema.fields().iter().map(|field| field.as_ref().clone()).collect(),
    };
    let body = match unpack {
        None => BodyPlan::Fields(FieldsPlan::new(fields, on_bad)?),
        Some((unpack, payload_field, limits)) => {
            BodyPlan::Packed(PackedPlan::new(unpack, payload_field, fields, on_bad, limits)?)
        }
    };
    Ok(Asked { body, kept })
}

#[cold]
fn both_given() -> Error {
    Error::config("schema", "fields and schema are mutually exclusive: a schema names its fields")
}

/// The requested metadata columns, each with its name in the batch; `None`: the default columns.
pub(crate) fn read_metadata(given: &mut Given) -> Result<Option<Vec<(String, String)>>> {
    if given.is_no_names("metadata") {
        return Ok(Some(Vec::new()));
    }
    if !given.has_mapping("metadata") {
        let names = given.names("metadata")?;
        return Ok(names.map(|names| names.into_iter().map(|name| (name.clone(), name)).collect()));
    }
    let (mut renamed, mut is_named) = (Vec::new(), true);
    let value = given.value("metadata").unwrap_or(OptionValue::Null);
    let OptionValue::Text(text) = &value else { return Err(given.refuse("metadata", &value)) };
    let read = for_each_member(text, &mut |column, name| match serde_json::from_str::<String>(name.get()) {
        Ok(name) if !name.is_empty() => renamed.push((column.to_owned(), name)),
        _ => is_named = false,
    });
    if read.is_ok() && is_named { Ok(Some(renamed)) } else { Err(given.refuse("metadata", &value)) }
}

/// The columns of a batch. `metadata`: the result of [`read_metadata`].
pub(crate) fn columns(metadata: Option<Vec<(String, String)>>, Asked { body, kept }: Asked) -> Result<ColumnsPlan> {
    let mut columns = metadata.unwrap_or_else(|| {
        let usual = if matches!(body, BodyPlan::Map(_)) { &ColumnsPlan::METADATA_OF_MAP[..] } else { &[] };
        usual.iter().map(|column| (column.name().to_owned(), column.name().to_owned())).collect()
    });
    let asked = columns.iter().position(|(column, _)| column == RAW);
    if asked.is_some() && kept.is_none() {
        return Err(Error::config("metadata", "metadata 'raw' needs on_bad_field 'keep', which fills it"));
    }
    // If `raw` was not requested, it follows the other metadata columns.
    let place = asked.unwrap_or(columns.len());
    let name = asked.map_or_else(|| RAW.to_owned(), |place| columns.remove(place).1);
    if columns.iter().any(|(column, _)| column == RAW) {
        return Err(Error::config("metadata", "metadata must name each column once, got 'raw' twice"));
    }
    let raw = kept.map(|map| RawPlan { place, name, map });
    let known = |(column, name): (String, String)| {
        let found = MetadataColumn::named(&column).map(|column| (column, name));
        found.ok_or_else(|| {
            let allowed = MetadataColumn::ALL.map(MetadataColumn::name).join("', '");
            let message = format!("metadata must be some of '{allowed}', '{RAW}', got '{}'", column.escape_debug());
            Error::config("metadata", message)
        })
    };
    ColumnsPlan::new(columns.into_iter().map(known).collect::<Result<_>>()?, raw, body)
}
