//! The options of a producer: how XADD adds and trims. A reader has none of these options.

use super::option::OptionDefault::{Bool, Int};
use super::option::{Takes, option, option_table};

const COUNT: Takes = Takes::Integer { min: 0, max: i64::MAX };
const EVERY: Takes = Takes::Integer { min: 1, max: i64::MAX };

option_table! {
    /// Options of the producer.
    pub PRODUCER_OPTIONS:

    /// Number of entries that the stream keeps: MAXLEN of XADD. 0 means no trimming.
    maxlen => option(COUNT);
    /// Whether trimming may keep slightly more (`~`), also with `minid`; this is much faster.
    maxlen_approximate => option(Takes::Boolean).or(Bool(true));
    /// Smallest entry ID that the stream keeps: MINID of XADD, Redis 6.2 and later, sent as written. 0 and `0-0` mean no
    /// trimming. Takes precedence over `maxlen`.
    minid => option(Takes::StreamId);
    /// The first XADD of a stream key and every n-th after it trim; the others cost the server less. At most `maxlen`.
    trim_every => option(EVERY).or(Int(1));
    /// Whether not to create a stream that does not exist (NOMKSTREAM of XADD, Redis 6.2 and later); messages then fail with the
    /// code `NO_STREAM`.
    nomkstream => option(Takes::Boolean).or(Bool(false));
}
