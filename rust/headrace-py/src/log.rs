//! The log records of the core's events, for the Python logger `headrace`.

use std::fmt;

use headrace_core::{RetryEnd, RetryWait, ServerChange, TooFewReplicas};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

pub(crate) fn retry_began(wait: &RetryWait<'_>) -> Record {
    let RetryWait { endpoint, messages, left, failure } = wait;
    let (endpoint, left) = (endpoint.to_string(), left.as_secs_f64());
    let Some(messages) = *messages else {
        let text = "retrying to read from %s for up to %.1f s: %s: %s";
        return warn((text, endpoint, left, failure.code.to_string(), failure.message.clone()));
    };
    let what = if messages == 1 { "message" } else { "messages" };
    let text = "retrying %d %s to %s for up to %.1f s: %s: %s";
    warn((text, messages, what, endpoint, left, failure.code.to_string(), failure.message.clone()))
}

pub(crate) fn retry_ended(end: &RetryEnd<'_>) -> Record {
    let RetryEnd { endpoint, is_reading, tries, took, failure } = end;
    let (endpoint, took) = (endpoint.to_string(), took.as_secs_f64());
    let to = if *is_reading { "to read from" } else { "to" };
    match failure {
        None => {
            let answered = if *is_reading { "the server answered" } else { "each message was answered" };
            warn(("retries %s %s ended after %d tries in %.1f s: %s", to, endpoint, *tries, took, answered))
        }
        Some(failure) => {
            let text = "retries %s %s were given up after %d tries in %.1f s: %s: %s";
            warn((text, to, endpoint, *tries, took, failure.code.to_string(), failure.message.clone()))
        }
    }
}

pub(crate) fn too_few_replicas(few: &TooFewReplicas<'_>) -> Record {
    let TooFewReplicas { endpoint, wanted, count } = few;
    let text = "wait_replicas is %d, and %s has %d replicas: one that did not confirm a message may be promoted, and the message \
                is lost; 'all' waits for all of them";
    warn((text, *wanted, endpoint.to_string(), *count))
}

pub(crate) fn server_changed(endpoint: &dyn fmt::Display, change: &ServerChange) -> Record {
    let endpoint = endpoint.to_string();
    match change {
        ServerChange::MasterSwitched { from, to } => {
            warn(("the master of %s is %s, in place of %s", endpoint, to.clone(), from.clone()))
        }
        ServerChange::StreamMoved { from, to } => {
            warn(("%s moved from node %s to %s", endpoint, from.clone(), to.clone()))
        }
        ServerChange::SlotsMoved { slots, from, to } => {
            let what = if *slots == 1 { "slot" } else { "slots" };
            warn(("%d %s moved from node %s to %s: %s", *slots, what, from.clone(), to.clone(), endpoint))
        }
        ServerChange::FailedOver { slots, from, to } => {
            let what = if *slots == 1 { "slot" } else { "slots" };
            warn(("node %s took over %d %s from %s: %s", to.clone(), *slots, what, from.clone(), endpoint))
        }
        ServerChange::NodeDown { node, code, message } => {
            warn(("node %s of %s is down: %s: %s", node.clone(), endpoint, code.to_string(), message.clone()))
        }
        ServerChange::NodeBack { node, after } => {
            warn(("node %s of %s is back after %.1f s", node.clone(), endpoint, after.as_secs_f64()))
        }
    }
}

/// What a caller probably did not expect, although nothing failed.
pub(crate) fn notice(text: String) -> Record {
    warn(("%s", text))
}

/// `place`: file, line and column.
pub(crate) fn defect(py: Python<'_>, place: String) -> PyResult<()> {
    logger(py)?.call_method1("error", ("a defect in headrace ended a call, at %s", place)).map(drop)
}

/// A warning that is not written yet.
pub(crate) struct Record(Box<Write>);

type Write = dyn FnOnce(&Bound<'_, PyAny>) -> PyResult<()> + Send;

impl Record {
    /// Writes it: runs the handlers of the application.
    pub(crate) fn write(self) -> PyResult<()> {
        Python::attach(|py| (self.0)(&logger(py)?))
    }
}

fn warn(arguments: impl for<'py> PyCallArgs<'py> + Send + 'static) -> Record {
    Record(Box::new(|logger| logger.call_method1("warning", arguments).map(drop)))
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", ("headrace",))
}
