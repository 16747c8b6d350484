//! The options of a read, in addition to those of the endpoint.

use std::sync::LazyLock;

use crate::endpoint::OptionDefault::{Bool, Float, Int, Text};
use crate::endpoint::{OptionSpec, Takes, option, option_table};
use crate::reader::READER_OPTIONS;

/// The options of a reader that the data source also accepts; each uses the reader's row.
const OF_THE_READER: [&str; 9] = [
    "fields",
    "unpack",
    "payload_field",
    "max_entry_bytes",
    "on_bad_field",
    "metadata",
    "fields_as",
    "batch_bytes",
    "page_bytes",
];

option_table! {
    /// Options that no other table has.
    OWN_OPTIONS:

    /// Keys of several streams, instead of `stream_key`.
    stream_keys => option(Takes::Columns);
    /// Glob-style pattern of the keys of several streams, instead of `stream_key`: those that exist when a batch is planned or a
    /// query starts.
    stream_pattern => option(Takes::Text);
    /// Whether to ask the server which shards the stream has, instead of setting the option `shards`.
    find_shards => option(Takes::Boolean).or(Bool(false));
    /// Where to begin: `earliest`, `latest` (after the newest entry), an entry ID (inclusive), `(` and an entry ID (exclusive),
    /// or JSON with one of these for each stream: `{"orders": "1795324724029-0"}`. A stream that the JSON does not name begins as
    /// if the option were not given. A streaming query begins there only once: after that, its checkpoint determines where. By
    /// default `earliest` in batch, `latest` in streaming.
    starting => option(Takes::Text).or_depends(Text("earliest"));
    /// Instead of `starting`: milliseconds since 1970, an ISO 8601 time with a zone, or JSON with one of these for each stream:
    /// from the first entry at or after that time.
    starting_timestamp => option(Takes::Text);
    /// What happens if `starting_timestamp` is after the newest entry: `error` fails, `latest` begins with the next entry that
    /// arrives.
    starting_timestamp_past_end => option(Takes::Choice(&["error", "latest"])).or(Text("error"));
    /// In batch, where to end: `latest` (the newest entry at the time of planning), an entry ID (inclusive), or JSON with one of
    /// these for each stream.
    ending => option(Takes::Text).or(Text("latest"));
    /// In batch, instead of `ending`: milliseconds since 1970, an ISO 8601 time with a zone, or JSON with one of these for each
    /// stream: up to and including the last entry at or before that time.
    ending_timestamp => option(Takes::Text);
    /// Whether the job fails if entries were trimmed before they were read, or a stream was replaced; otherwise this is logged.
    fail_on_data_loss => option(Takes::Boolean).or(Bool(true));
    /// With `fail_on_data_loss=false`, in streaming: whether a micro-batch or a task that runs again may have fewer rows than
    /// before because entries have been trimmed in the meantime. A sink that identifies rows by their number, as this one does,
    /// then mistakes some of them for others.
    allow_short_replay => option(Takes::Boolean).or(Bool(false));
    /// Minimum number of partitions: streams are split into ranges of entry IDs. By default each stream is one partition.
    min_partitions => option(Takes::Integer { min: 1, max: 100_000 });
    /// In streaming: maximum number of entries per micro-batch, over all streams.
    max_entries_per_trigger => option(Takes::Integer { min: 1, max: i64::MAX });
    /// In streaming on Spark 4.2 and later: a micro-batch waits until this many new entries exist, over all streams, or until
    /// `max_trigger_delay` has passed since the last one. The first one after a start does not wait, nor does any with the
    /// trigger AvailableNow.
    min_entries_per_trigger => option(Takes::Integer { min: 1, max: i64::MAX });
    /// With `min_entries_per_trigger`: how long entries wait for more, in seconds since the last micro-batch.
    max_trigger_delay => option(Takes::Seconds { min: 0.001, max: 86_400.0 }).or(Float(900.0));
    /// In streaming on Spark 4.0 and 4.1, with `max_entries_per_trigger`: whether the trigger is AvailableNow, which these
    /// versions do not report. Required on these versions, and without effect on later ones.
    available_now => option(Takes::Boolean);
    /// In streaming: how often an idle query asks the server for new entries, in seconds.
    poll_interval => option(Takes::Seconds { min: 0.001, max: 3600.0 }).or(Float(0.1));
    /// In streaming: a consumer group that shows how far the query has read, for tools that watch the lag of groups. Its position
    /// is set after each micro-batch; entries are never read through it, and it must have no consumers.
    commit_group => option(Takes::Text);
    /// Number of rows at which a record batch is complete.
    batch_rows => option(Takes::Integer { min: 1, max: 10_000 }).or(Int(10_000));
}

/// Every option of a read: the data source's own, and those of a reader that it also accepts.
pub fn data_source_read_options() -> &'static [OptionSpec] {
    static OPTIONS: LazyLock<Vec<OptionSpec>> = LazyLock::new(|| {
        let of_the_reader = READER_OPTIONS.iter().filter(|spec| OF_THE_READER.contains(&spec.name));
        OWN_OPTIONS.iter().chain(of_the_reader).copied().collect()
    });
    &OPTIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_listed_exactly_once() {
        let mut names: Vec<_> = data_source_read_options().iter().map(|spec| spec.name).collect();
        assert_eq!(names.len(), OWN_OPTIONS.len() + OF_THE_READER.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), data_source_read_options().len());
    }
}
