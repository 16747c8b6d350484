//! The Python binding of headrace: conversions, the GIL, and the map from errors to exceptions. It decides nothing about
//! failures: the core does, or the Python package around this module.

mod batch_name;
mod capsules;
mod column;
mod commands;
mod consumer;
mod counters;
mod dead_letters;
mod dispatcher;
mod endpoint;
mod entry;
mod entry_rows;
mod errors;
mod exception;
#[cfg(feature = "failpoints")]
mod failpoints;
mod field_value;
mod fields;
mod group;
mod hints;
mod inspect;
mod interpreter;
mod layout;
mod log;
mod loop_dispatcher;
mod message;
mod named_column;
mod names;
mod one_caller;
mod options;
mod outcome;
mod panics;
mod password;
mod polars;
mod python_time;
mod reader;
mod report;
mod shard_batch;
mod shard_consumer;
mod shards;
mod shown;
mod signals;
mod sockets;
mod stream_facts;
mod stream_reader;
mod survey;
mod tables;
mod time_zones;
mod unpack;

// An unwinding panic becomes a Python exception. An aborting one would end the caller's process with all its messages.
#[cfg(not(panic = "unwind"))]
compile_error!("headrace-py must be built with panic=unwind");

use pyo3::prelude::*;

/// The native half of the `headrace` package. Not for direct use.
///
/// A function rather than a declarative module, which would create its classes before it could refuse the interpreter.
#[pymodule(gil_used = false)]
fn _headrace(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::check(module.py())?;
    panics::set_hook();
    module.add_class::<consumer::PyConsumer>()?;
    module.add_class::<consumer::PyConsumerBatch>()?;
    module.add_class::<counters::PyCounters>()?;
    module.add_class::<counters::PyReadCounters>()?;
    module.add_class::<dispatcher::PyDispatcher>()?;
    module.add_class::<endpoint::PyEndpoint>()?;
    module.add_class::<entry::PyEntry>()?;
    module.add_class::<group::PyGroup>()?;
    module.add_class::<loop_dispatcher::PyLoopBatch>()?;
    module.add_class::<loop_dispatcher::PyLoopDispatcher>()?;
    module.add_class::<outcome::PyDelivered>()?;
    module.add_class::<outcome::PyUndelivered>()?;
    module.add_class::<report::PyOutcomes>()?;
    module.add_class::<report::PyReport>()?;
    module.add_class::<stream_reader::PyReadBatch>()?;
    module.add_class::<shard_batch::PyShardBatch>()?;
    module.add_class::<shard_consumer::PyShardConsumer>()?;
    module.add_class::<stream_reader::PyReader>()?;
    module.add_class::<survey::PySurvey>()?;
    module.add_class::<stream_facts::PyStreamInfo>()?;
    module.add_class::<stream_facts::PyGroupInfo>()?;
    module.add_class::<stream_facts::PyLeaseInfo>()?;
    module.add_class::<commands::PyCommands>()?;
    module.add_class::<unpack::PyRows>()?;
    module.add_function(wrap_pyfunction!(commands::marker_key, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(dead_letters::read_dead_letter, module)?)?;
    module.add_function(wrap_pyfunction!(dead_letters::split_dead_letters, module)?)?;
    module.add_function(wrap_pyfunction!(shards::shard_numbers, module)?)?;
    module.add_function(wrap_pyfunction!(fields::kept_fields, module)?)?;
    module.add_function(wrap_pyfunction!(shown::shown_names_of, module)?)?;
    module.add_function(wrap_pyfunction!(unpack::decode_rows, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("debug_build", cfg!(debug_assertions))?;
    module.add("MOST_DELIVERIES", headrace_core::MOST_DELIVERIES)?;
    module.add_function(wrap_pyfunction!(tables::advice, module)?)?;
    module.add_function(wrap_pyfunction!(tables::advised, module)?)?;
    module.add_function(wrap_pyfunction!(tables::code_table, module)?)?;
    module.add_function(wrap_pyfunction!(counters::counter_table, module)?)?;
    module.add_function(wrap_pyfunction!(tables::option_table, module)?)?;
    module.add_function(wrap_pyfunction!(tables::read_options, module)?)?;
    module.add_function(wrap_pyfunction!(time_zones::time_zones, module)?)?;
    #[cfg(feature = "failpoints")]
    module.setattr("_panic_at", wrap_pyfunction!(failpoints::panic_at, module)?)?; // not in `__all__`
    Ok(())
}
