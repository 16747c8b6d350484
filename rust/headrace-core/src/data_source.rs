//! The options of the Spark data source: one table each for reads and writes.

mod read;
mod write;

pub use read::data_source_read_options;
pub use write::data_source_options;
