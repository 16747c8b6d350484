//! The options of the Spark data source: one table for each direction.

mod read;
mod write;

pub use read::data_source_read_options;
pub use write::data_source_options;
