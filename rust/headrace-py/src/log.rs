//! Logs the core's events during a wait to the Python logger `headrace`.

use headrace_core::{RetryEnd, RetryWait};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

pub(crate) fn retry_began(wait: &RetryWait<'_>) -> PyResult<()> {
    let RetryWait { endpoint, messages, left, failure } = wait;
    let what = if *messages == 1 { "message" } else { "messages" };
    let text = "retrying %d %s to %s for up to %.1f s: %s: %s";
    warn((text, *messages, what, endpoint.to_string(), left.as_secs_f64(), &*failure.code, &failure.message))
}

pub(crate) fn retry_ended(end: &RetryEnd<'_>) -> PyResult<()> {
    let RetryEnd { endpoint, tries, took, failure } = end;
    let (endpoint, took) = (endpoint.to_string(), took.as_secs_f64());
    match failure {
        None => {
            warn(("retries to %s ended after %d tries in %.1f s: each message was answered", endpoint, *tries, took))
        }
        Some(failure) => {
            let text = "retries to %s were given up after %d tries in %.1f s: %s: %s";
            warn((text, endpoint, *tries, took, &*failure.code, &failure.message))
        }
    }
}

/// `place`: file, line and column.
pub(crate) fn defect(py: Python<'_>, place: String) -> PyResult<()> {
    logger(py)?.call_method1("error", ("a defect of headrace ended a call, at %s", place)).map(drop)
}

fn warn(arguments: impl for<'py> PyCallArgs<'py>) -> PyResult<()> {
    Python::attach(|py| logger(py)?.call_method1("warning", arguments).map(drop))
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", ("headrace",))
}
