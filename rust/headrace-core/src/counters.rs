//! The counters of a dispatcher, and those of a reader or a consumer: written by their owner, readable from any thread at any
//! time.

mod cell;
mod dispatcher;
mod nodes;
mod reading;
mod table;

pub(crate) use cell::Cell;
pub use cell::CounterValue;
pub use dispatcher::{Counters, DISPATCHER_COUNTERS};
pub use nodes::NODE_COUNTERS;
pub(crate) use nodes::NodeCounters;
pub use reading::{READER_COUNTERS, ReadCounters};
pub use table::{CounterSpec, CounterValues};
pub(crate) use table::{counter, counter_table, gauge, report_only, stats_only};
