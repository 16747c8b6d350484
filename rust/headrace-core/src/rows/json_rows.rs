//! The rows of a record batch as JSON objects that are not part of an entry.

use arrow_array::RecordBatch;

use super::plan::{Body, Layout, RowPlan};
use crate::error::{Error, Result};

/// Each row as a JSON object, without its nulls: the text that `json` writes into a payload.
///
/// Fails for a column whose type has no JSON, and for a time outside a day.
pub fn json_rows(batch: &RecordBatch) -> Result<Vec<Vec<u8>>> {
    let layout = Layout { body: Body::Json(None), message_id: None, stream_key: None, entry_id: None, shard_key: None };
    let plan = RowPlan::new(batch.schema_ref(), &layout, super::PAYLOAD_FIELD, None)?;
    let rows = plan.bind(batch)?;
    let mut scratch = Vec::new();
    let row_of = |row| {
        rows.field_count(row).map_err(|fault| Error::schema(fault.message))?;
        let mut out = Vec::new();
        rows.write_json(row, &mut out, &mut scratch);
        Ok(out)
    };
    (0..rows.len()).map(row_of).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int32Array, StringArray, Time32SecondArray};

    use super::*;

    #[test]
    fn rows_are_objects_without_nulls() -> Result<()> {
        let ids: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a\"b"), None]));
        let batch = RecordBatch::try_from_iter([("id", ids), ("name", names)])
            .map_err(|error| Error::schema(error.to_string()))?;
        assert_eq!(json_rows(&batch)?, [&b"{\"id\":1,\"name\":\"a\\\"b\"}"[..], b"{}"]);
        Ok(())
    }

    #[test]
    fn a_time_outside_a_day_is_refused() -> Result<()> {
        let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![86_400]));
        let batch = RecordBatch::try_from_iter([("at", times)]).map_err(|error| Error::schema(error.to_string()))?;
        assert!(json_rows(&batch).is_err());
        Ok(())
    }
}
