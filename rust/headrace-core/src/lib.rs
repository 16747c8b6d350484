//! Bulk loading of messages and Arrow record batches into Redis Streams, with a delivery outcome for every message.
//!
//! ```text
//!  RecordBatch ─▶ rows ─▶ command ─▶ connection ─▶ net ─▶ server
//!                                       ▲                  │
//!   DeliveryReport ◀── report ◀─────────┴──── command ◀────┘
//! ```
//!
//! Writing: [`Dispatcher`] takes messages and record batches, and returns a [`DeliveryReport`] with one outcome for each. Its
//! producer encodes them for its lanes, one to each node; a lane owns a connection, which knows no socket and no clock, and its
//! socket. [`LoopDispatcher`] is the same for an event loop, [`TaskDispatcher`] for the tasks on one, and [`SharedDispatcher`] for
//! threads.
//!
//! Reading: [`Reader`] returns record batches by position, and [`consumer::Consumer`] those of a consumer group. Their sessions
//! write requests and read replies, without a socket or a clock; a pool moves the bytes over its channels, and a ledger records
//! what a consumer holds. A second thread renews the leases of a consumer. [`LoopReader`] and [`LoopConsumer`] are the same for an
//! event loop, without that thread.
//!
//! Both share an [`Endpoint`], which says where the streams are and how to get there. Apart from that thread, everything runs in
//! the thread of the caller, whose calls drive the sockets.
//!
//! ```no_run
//! use headrace_core::{Dispatcher, DispatcherOptions, Endpoint, IdArgument, NeverInterrupted};
//!
//! # fn main() -> headrace_core::Result<()> {
//! let endpoint = Endpoint::from_url("redis://localhost:6379/?stream_key=order-events&maxlen=100000", [])?;
//! let mut dispatcher = Dispatcher::new(endpoint, DispatcherOptions::default())?;
//! dispatcher.make_room(&mut NeverInterrupted)?;
//! dispatcher.produce(br#"{"order_id": 123}"#, IdArgument::Int(123))?;
//! let report = dispatcher.flush(None, &mut NeverInterrupted)?;
//! assert_eq!(report.failed(), 0);
//! # Ok(())
//! # }
//! ```

mod admin;
mod batch;
mod calendar;
mod cluster;
mod command;
mod connection;
pub mod consumer;
mod contain;
mod counters;
mod data_source;
mod dead_letters;
mod decimal;
mod dispatcher;
mod durability;
pub mod endpoint;
mod entries;
mod entry_lines;
pub mod error;
mod extension;
#[cfg(not(feature = "failpoints"))]
mod fail;
#[cfg(feature = "failpoints")]
#[doc(hidden)]
pub mod fail;
#[cfg(all(test, not(fuzzing)))]
mod fuzz_tests;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz_tests;
pub mod group;
pub mod import;
pub mod inspect;
pub mod ipc;
mod keeper;
mod leases;
mod looped;
mod nearest;
mod nested;
mod net;
mod producer;
mod random;
pub mod reader;
mod reading;
pub mod report;
mod resp;
mod retry;
mod retry_options;
pub mod rows;
mod secret;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod server_of_tests;
pub mod shard_consumer;
mod shards;
mod shown;
mod stream_facts;
pub mod time_zones;
mod type_names;
mod utf8;

#[cfg(test)] // tests/common names the crate as other crates do
extern crate self as headrace_core;

pub use admin::{Answer, Attempt, Commands, Request, Table, find_shards};
pub use batch::{BatchLayout, BatchPlan, MAX_ROWS_PER_ENTRY};
pub use calendar::civil;
pub use command::{EntryId, marker_key};
pub use consumer::{
    CONSUMER_COUNTERS, CONSUMER_OPTIONS, Chosen, Consumer, ConsumerBatch, ConsumerHandle, ConsumerOptions,
    LoopConsumer, MOST_DELIVERIES, ReadReport,
};
pub use counters::{
    CounterSpec, CounterValue, CounterValues, Counters, DISPATCHER_COUNTERS, NODE_COUNTERS, READER_COUNTERS,
    ReadCounters,
};
pub use data_source::{data_source_options, data_source_read_options};
pub use dead_letters::{DeadLetter, PackedFields, dead_letters};
pub use dispatcher::{
    DISPATCHER_OPTIONS, Dispatcher, DispatcherOptions, IdArgument, JsonColumns, LAYOUT_OPTIONS, LayoutOptions,
    LoopDispatcher, Progress, RoutedDispatcher, SharedDispatcher, TaskDispatcher, wrong_version,
};
pub use endpoint::Endpoint;
pub use entries::FieldsAt;
pub use entry_lines::{EntryTable, entry_lines};
pub use error::{Error, Result};
pub use extension::Extension;
pub use group::Group;
pub use inspect::{Inspection, Survey, inspect};
pub use leases::{SHARD_CONSUMER_COUNTERS, ShardReport};
pub use looped::LoopWait;
pub use net::{ConnectStep, DeferredWait, Interest, NeverInterrupted, NotedStep, ServerChange, TooFewReplicas, Watch};
pub use reader::{LoopReader, READER_OPTIONS, Reader, ReaderOptions, ReaderStop};
pub use reading::ReadBatch;
pub use report::DeliveryReport;
pub use retry::{RetryEnd, RetryPolicy, RetryWait};
pub use rows::{Message, Value};
pub use shard_consumer::{
    LoopShardConsumer, Polled, SHARD_CONSUMER_OPTIONS, ShardBatch, ShardConsumer, ShardConsumerOptions, ShardHandle,
};
pub use shown::{quoted, shown_names};
pub use stream_facts::{GroupPosition, Loss, StreamInfo};
pub use type_names::schema_of_names;
