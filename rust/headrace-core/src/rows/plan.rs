//! The plan of a layout: which column becomes which part, resolved once per schema.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};

use super::added::{Added, Constants, KeptKey};
use super::batch::Rows;
use super::column::Column;
use super::entry_ids::EntryIds;
use super::items::Items;
use super::line::{Line, Piece};
use super::shape::{Role, Shape};
use super::stream_keys::{ShardKeys, StreamKeys};
use super::{PAYLOAD_FIELD, ids, string};
use crate::contain::contain;
use crate::nearest::nearest;
use crate::resp::write_bulk;
use crate::shards::Shards;
use crate::{Error, Result};

/// The maximum number of column names that an error lists.
const MAX_LISTED: usize = 20;
/// The advice where no layout was given.
const NO_LAYOUT: &str = "; payload, fields, fields_from or json names what to write";
/// The purposes of a column, as in "it cannot …".
const PAYLOAD: &str = "be the payload";
const FIELD: &str = "be a field";
/// The advice for a column that cannot be the payload.
const OTHER_LAYOUTS: &str = "; fields writes numbers and times, json also lists and structs";

/// The names of the columns that become the parts of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The columns of the entry's fields.
    pub body: Body,
    /// The column of message IDs: integers or text.
    pub message_id: Option<String>,
    /// The column of stream keys, text or binary; `None`: the endpoint's.
    pub stream_key: Option<String>,
    /// The column of entry IDs, text; `None`: the server chooses them.
    pub entry_id: Option<String>,
    /// The column of the keys that determine the shards of rows; `None`: shards take turns. Only with shards.
    pub shard_key: Option<String>,
}

/// The fields of an entry. A column with another part in the [`Layout`] may be in the body as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes of this column as the payload field. A row with a null fails.
    Payload(String),
    /// Each of these columns as a field with the column's name and its value as text. Nulls are omitted; a row with only
    /// nulls fails.
    Fields(Vec<String>),
    /// The bytes of the first column as the payload field, then each of the other columns as a field. Nulls are omitted, the
    /// payload's too; a row with only nulls fails.
    PayloadAndFields(String, Vec<String>),
    /// These columns, or all columns, as one JSON object in the payload field. Nulls are omitted; a row with only nulls is
    /// `{}`.
    Json(Option<Vec<String>>),
    /// The items of this column, a map or a list of names and values, as the fields: all of them, in their order and unchanged.
    /// Items with a null value are omitted; a row without an item fails.
    FieldsFrom(String),
}

/// A [`Layout`] applied to a schema.
#[derive(Debug)]
pub struct RowPlan {
    body: BodyPlan,
    message_id: Option<usize>,
    stream_key: KeyPlan,
    /// With shards and their keys.
    key_field: Option<String>,
    entry_id: Option<Source>,
    /// The fields that every row gets.
    constants: Constants,
}

/// Which streams rows go to.
#[derive(Debug)]
enum KeyPlan {
    Endpoint,
    Column(Source),
    /// The shards, and the column of their keys.
    Shards(Arc<Shards>, Option<Source>),
}

#[derive(Debug)]
enum BodyPlan {
    /// The field's name as a bulk string, and the column.
    Payload(Vec<u8>, Source),
    /// The fields' names as bulk strings, and the columns.
    Fields(Vec<(Vec<u8>, Source)>),
    /// The field's name as a bulk string, then the keys ([`string::key`]) and the columns.
    Json(Vec<u8>, Vec<(Vec<u8>, Source)>),
    /// The column with all fields.
    FieldsFrom(Source),
}

/// A column that the plan reads.
#[derive(Debug)]
struct Source {
    index: usize,
    name: String,
    data_type: DataType,
    shape: Shape,
}

impl RowPlan {
    /// Refuses missing or ambiguous columns, and types that cannot be written.
    ///
    /// `payload_field` is the name of the payload or JSON field; `ts_field` that of the time that the caller adds.
    pub fn new(schema: &Schema, layout: &Layout, payload_field: &str, ts_field: Option<&str>) -> Result<Self> {
        let body = match &layout.body {
            Body::Payload(column) => {
                BodyPlan::Payload(bulk(payload_field), Source::new(schema, column, PAYLOAD, Role::Bytes)?)
            }
            Body::Fields(columns) => BodyPlan::Fields(fields_of(schema, columns, ts_field)?),
            Body::PayloadAndFields(payload, columns) => {
                if columns.iter().any(|column| column == payload_field) {
                    return Err(Error::schema(format!(
                        "column {payload_field:?} cannot be a field: the payload's field has the same name (rename the column, \
                         or choose another payload_field)"
                    )));
                }
                let payload = Source::new(schema, payload, PAYLOAD, Role::Bytes)?;
                let mut fields = vec![(Line::field_start(payload_field), payload)];
                fields.extend(fields_of(schema, columns, ts_field)?);
                BodyPlan::Fields(fields)
            }
            Body::Json(columns) => {
                let every = || schema.fields().iter().map(|field| field.name().clone()).collect();
                if let Some(columns) = columns {
                    check_names("json", columns)?;
                }
                let columns: Vec<String> = columns.clone().unwrap_or_else(every);
                let source =
                    |column: &String| Ok((string::key(column), Source::new(schema, column, "be in JSON", Role::Json)?));
                BodyPlan::Json(bulk(payload_field), columns.iter().map(source).collect::<Result<_>>()?)
            }
            Body::FieldsFrom(column) => {
                BodyPlan::FieldsFrom(Source::new(schema, column, "hold the fields of entries", Role::Items)?)
            }
        };
        let message_id = layout.message_id.as_deref().map(|column| message_id_column(schema, column));
        let stream_key = match layout.stream_key.as_deref() {
            None => KeyPlan::Endpoint,
            Some(name) => KeyPlan::Column(Source::new(schema, name, "hold stream keys", Role::Bytes)?),
        };
        let entry_id = layout.entry_id.as_deref();
        Ok(Self {
            body,
            message_id: message_id.transpose()?,
            stream_key,
            key_field: None,
            entry_id: entry_id.map(|name| Source::new(schema, name, "hold entry IDs", Role::Text)).transpose()?,
            constants: Constants::default(),
        })
    }

    /// Sends the rows to these shards, by the keys in the column `shard_key`, which they keep in the field `key_field`. Refuses a
    /// column that cannot hold keys, and another field of that name.
    pub(crate) fn sharded(
        self,
        schema: &Schema,
        shards: &Arc<Shards>,
        shard_key: Option<&str>,
        key_field: Option<&str>,
    ) -> Result<Self> {
        let column = shard_key.map(|name| Source::new(schema, name, "hold the keys of shards", Role::ShardKey));
        let key_field = key_field.filter(|_| shard_key.is_some());
        if let (Some(key_field), BodyPlan::Fields(sources)) = (key_field, &self.body)
            && sources.iter().any(|(start, _)| *start == Line::field_start(key_field))
        {
            return Err(Error::schema(format!(
                "column {key_field:?} cannot be a field: the key_field of the endpoint has the same name (rename the column, or \
                 choose another key_field)"
            )));
        }
        let stream_key = KeyPlan::Shards(Arc::clone(shards), column.transpose()?);
        Ok(Self { stream_key, key_field: key_field.map(str::to_owned), ..self })
    }

    /// Adds fields that are the same for every row. Refuses other fields of these names.
    pub(crate) fn with_constants(self, constants: Constants) -> Result<Self> {
        if let BodyPlan::Fields(sources) = &self.body {
            let is_taken = |name: &&String| sources.iter().any(|(start, _)| *start == Line::field_start(name));
            if let Some(name) = constants.names().iter().find(is_taken) {
                return Err(Error::schema(format!(
                    "column {name:?} cannot be a field: trace_context adds a field of this name to every row (rename the column)"
                )));
            }
        }
        Ok(Self { constants, ..self })
    }

    /// Resolves the columns of a record batch, once for all its rows. Refuses a different schema.
    pub fn bind<'a>(&'a self, batch: &'a RecordBatch) -> Result<Rows<'a>> {
        self.bind_from(batch, 0)
    }

    /// Like [`bind`](Self::bind), for rows whose first one has the number `first` among the messages of its batch.
    pub(crate) fn bind_from<'a>(&'a self, batch: &'a RecordBatch, first: u64) -> Result<Rows<'a>> {
        let bind = |source: &'a Source| source.bind(batch);
        let bind_all = |sources: &'a [(Vec<u8>, Source)]| -> Result<Vec<_>> {
            sources.iter().map(|(name, source)| Ok((Piece::new(name), source.bind(batch)?))).collect()
        };
        let stream_keys = match &self.stream_key {
            KeyPlan::Endpoint => StreamKeys::Endpoint,
            KeyPlan::Column(source) => StreamKeys::of_column(source.bind(batch)?),
            KeyPlan::Shards(shards, source) => {
                StreamKeys::Shards(ShardKeys::new(shards, source.as_ref().map(bind).transpose()?, first))
            }
        };
        let entry_ids = self.entry_id.as_ref().map(bind).transpose()?.map_or(EntryIds::Server, EntryIds::Column);
        let rows = batch.num_rows();
        let bound = match &self.body {
            BodyPlan::Payload(name, source) => Rows::of_payload(rows, name, source.bind(batch)?),
            BodyPlan::Fields(sources) => Rows::of_fields(rows, bind_all(sources)?).checked(column_names(sources)),
            BodyPlan::Json(name, sources) => {
                Rows::of_json(rows, name, bind_all(sources)?).checked(column_names(sources))
            }
            BodyPlan::FieldsFrom(source) => Rows::of_items(rows, source.bind_items(batch)?),
        };
        let key = match (&self.key_field, &self.stream_key) {
            (Some(name), KeyPlan::Shards(_, Some(source))) => Some(KeptKey { name, keys: source.bind(batch)? }),
            _ => None,
        };
        let bound = bound.with(Added { constants: &self.constants, key });
        Ok(bound.routed(stream_keys, entry_ids))
    }

    /// The column whose value in this row panics when it is encoded alone.
    pub(crate) fn culprit(&self, batch: &RecordBatch, row: usize) -> Option<usize> {
        self.body().into_iter().enumerate().filter(|_| row < batch.num_rows()).find_map(|(place, source)| {
            let encoded = contain(|| {
                if let Ok(rows) = self.bind_alone(place, batch)
                    && rows.field_count(row).is_ok()
                {
                    rows.write_fields(row, &mut Vec::new(), &mut Vec::new());
                }
            });
            encoded.is_err().then_some(source.index)
        })
    }

    /// The columns of the body.
    fn body(&self) -> Vec<&Source> {
        match &self.body {
            BodyPlan::Payload(_, source) | BodyPlan::FieldsFrom(source) => vec![source],
            BodyPlan::Fields(sources) | BodyPlan::Json(_, sources) => {
                sources.iter().map(|(_, source)| source).collect()
            }
        }
    }

    /// The rows with only one column of the body, the one at `place`.
    fn bind_alone<'a>(&'a self, place: usize, batch: &'a RecordBatch) -> Result<Rows<'a>> {
        let rows = batch.num_rows();
        let bind = |(name, source): &'a (Vec<u8>, Source)| Ok(vec![(Piece::new(name), source.bind(batch)?)]);
        Ok(match &self.body {
            BodyPlan::Payload(name, source) => Rows::of_payload(rows, name, source.bind(batch)?),
            BodyPlan::Fields(sources) => Rows::of_fields(rows, bind(&sources[place])?),
            BodyPlan::Json(name, sources) => Rows::of_json(rows, name, bind(&sources[place])?),
            BodyPlan::FieldsFrom(source) => Rows::of_items(rows, source.bind_items(batch)?),
        })
    }

    /// The indexes of the columns that are read.
    pub(crate) fn columns(&self) -> Vec<usize> {
        let key = match &self.stream_key {
            KeyPlan::Column(source) | KeyPlan::Shards(_, Some(source)) => Some(source),
            KeyPlan::Endpoint | KeyPlan::Shards(_, None) => None,
        };
        let sources = self.body().into_iter().chain(key).chain(&self.entry_id);
        sources.map(|source| source.index).chain(self.message_id).collect()
    }

    /// Whether rows may belong to streams other than the endpoint's.
    pub(crate) fn has_stream_keys(&self) -> bool {
        !matches!(self.stream_key, KeyPlan::Endpoint)
    }

    /// The index of the column of message IDs, if the layout has one.
    pub fn message_id_column(&self) -> Option<usize> {
        self.message_id
    }
}

/// The start and the source of each field. Refuses one with the name of the entry's time.
fn fields_of(schema: &Schema, columns: &[String], ts_field: Option<&str>) -> Result<Vec<(Vec<u8>, Source)>> {
    check_names("fields", columns)?;
    if let Some(column) = columns.iter().find(|column| Some(column.as_str()) == ts_field) {
        return Err(Error::schema(format!(
            "column {column:?} cannot be a field: the entry's time has the same name (rename the column, or choose another \
             ts_field)"
        )));
    }
    let source = |column: &String| Ok((Line::field_start(column), Source::new(schema, column, FIELD, Role::Field)?));
    columns.iter().map(source).collect()
}

/// The index of the column of message IDs. Refuses a missing or ambiguous column, and a type that cannot hold them.
pub(crate) fn message_id_column(schema: &Schema, column: &str) -> Result<usize> {
    let index = find(schema, column)?;
    ids::check_type(schema.field(index)).map(|()| index)
}

/// The indexes of these columns, in this order, for the argument `argument`. Refuses missing and ambiguous columns.
pub(crate) fn columns_of(schema: &Schema, argument: &str, columns: &[String]) -> Result<Vec<usize>> {
    check_names(argument, columns)?;
    columns.iter().map(|column| find(schema, column)).collect()
}

impl Source {
    /// `part` is the purpose of the column, as in "it cannot …".
    fn new(schema: &Schema, name: &str, part: &str, role: Role) -> Result<Self> {
        let index = find(schema, name)?;
        let field = schema.field(index);
        match Shape::new(field, role) {
            Ok(shape) => Ok(Self { index, name: name.to_owned(), data_type: field.data_type().clone(), shape }),
            Err(refused) => {
                let subject =
                    if refused.path.is_empty() { "it".into() } else { format!("{:?} in it", refused.path.join(".")) };
                let more = match part {
                    PAYLOAD => OTHER_LAYOUTS,
                    FIELD if field.data_type().is_nested() => "; json writes lists and structs",
                    _ => "",
                };
                Err(Error::schema(format!("column {name:?} cannot {part}: {subject} {}{more}", refused.reason)))
            }
        }
    }

    fn bind<'a>(&'a self, batch: &'a RecordBatch) -> Result<Column<'a>> {
        self.bound(batch, |array| Column::new(array, &self.shape, Some(0..batch.num_rows())))
    }

    /// Binds a column of [`Role::Items`].
    fn bind_items<'a>(&'a self, batch: &'a RecordBatch) -> Result<Items<'a>> {
        self.bound(batch, |array| Items::new(array, &self.shape, &self.name))
    }

    fn bound<'a, T>(&self, batch: &'a RecordBatch, bind: impl FnOnce(&'a dyn Array) -> Option<T>) -> Result<T> {
        let schema = batch.schema_ref();
        let same = schema.fields().get(self.index).filter(|field| *field.name() == self.name);
        let same = same.filter(|field| *field.data_type() == self.data_type);
        same.and_then(|_| bind(batch.column(self.index))).ok_or_else(|| {
            Error::schema(format!(
                "the record batch has a different schema from the first one: column {} was {:?} of type {}, now its \
                 columns are {}",
                self.index + 1,
                self.name,
                self.data_type,
                listed(schema)
            ))
        })
    }
}

/// The names of the columns.
fn column_names(sources: &[(Vec<u8>, Source)]) -> impl Iterator<Item = &str> {
    sources.iter().map(|(_, source)| source.name.as_str())
}

/// The index of the column with this name, which must exist exactly once.
fn find(schema: &Schema, name: &str) -> Result<usize> {
    let mut found = schema.fields().iter().enumerate().filter(|(_, field)| field.name() == name);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Ok(index),
        (Some(_), Some(_)) => {
            Err(Error::schema(format!("the record batch has two columns with the same name, rename one: {name:?}")))
        }
        (None, _) => {
            let nearest = nearest(schema.fields().iter().map(|field| field.name().as_str()), name);
            let hint = nearest.map(|field| format!("; did you mean {field:?}?")).unwrap_or_default();
            // The default, which many have not asked for.
            let more = if name == PAYLOAD_FIELD && hint.is_empty() { NO_LAYOUT } else { "" };
            let columns = listed(schema);
            Err(Error::schema(format!("the record batch has no column {name:?}{hint} (columns: {columns}){more}")))
        }
    }
}

/// The columns of a schema, for errors.
fn listed(schema: &Schema) -> String {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).take(MAX_LISTED).collect();
    match (names.is_empty(), schema.fields().len() - names.len()) {
        (true, _) => "none".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// Refuses a list of columns that is empty or has duplicates.
fn check_names(option: &str, columns: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    if columns.is_empty() {
        return Err(Error::schema(format!("{option} names no column: at least one is needed")));
    }
    match columns.iter().find(|column| !seen.insert(*column)) {
        Some(column) => Err(Error::schema(format!("{option} names a column twice: {column:?}"))),
        None => Ok(()),
    }
}

fn bulk(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_bulk(&mut out, name.as_bytes());
    out
}
