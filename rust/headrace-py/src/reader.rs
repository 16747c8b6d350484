//! The exception behind the failure of a reader that runs Python. The C stream interface carries only a text
//! (<https://arrow.apache.org/docs/format/CStreamInterface.html>), so the exception is parsed from it.
//!
//! | library | its text for `KeyboardInterrupt("why")` |
//! |---|---|
//! | pyarrow 16 to 26 | `Unknown error: why. Detail: Python exception: Traceback (most recent call last): … KeyboardInterrupt: why` |
//! | pyarrow 15 | `Unknown error: why. Detail: Python exception: KeyboardInterrupt` |
//! | polars 2 | `python: KeyboardInterrupt: why`, an empty line, and the expression |
//! | `DuckDB` 2 | `… while executing the UDF: KeyboardInterrupt: why`; with a reader of pyarrow, pyarrow's text after its own |
//!
//! A subclass of `KeyboardInterrupt` or `SystemExit` is not recognised: the text does not name its bases.

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;

use crate::exception::raise;

/// Separates pyarrow's message from the printed exception.
const DETAIL: &str = ". Detail: Python exception: ";
/// Separate chained exceptions. The last one is the one that was raised.
const CHAINED: [&str; 2] = [
    "\nDuring handling of the above exception, another exception occurred:\n",
    "\nThe above exception was the direct cause of the following exception:\n",
];
/// The prefixes of an exception in texts of polars and `DuckDB`.
const BEFORE: [&str; 2] = ["python: ", " while executing the UDF: "];

/// An exception as parsed from a text.
struct Raised<'a> {
    class: &'a str,
    /// Its `str()`.
    message: &'a str,
}

/// The exception for a reader that failed with `text`.
pub(crate) fn to_py(text: &str) -> PyErr {
    interruption(text).unwrap_or_else(|| {
        let printed = text.split_once(DETAIL).filter(|(_, printed)| printed.contains('\n'));
        let reason = match (raised(text), printed) {
            (Some(Raised { class, message: "" }), Some(_)) => class.to_owned(),
            (Some(Raised { class, message }), Some(_)) => format!("{class}: {message}"),
            (None, Some((reason, _))) => reason.to_owned(),
            (_, None) => text.to_owned(),
        };
        let line = reason.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let error = raise("ReaderError", format!("cannot read the next record batch: {line}"));
        if let Some((_, printed)) = printed {
            let note = format!("in the reader: {}", printed.trim_end());
            // The note is optional.
            Python::attach(|py| error.value(py).call_method1("add_note", (note,)).map(drop)).ok();
        }
        error
    })
}

/// The exception that ends the program, if the text has one: Ctrl-C or `sys.exit()` in the reader's own Python. As any other
/// class, `except Exception` would treat it as an error of the data.
pub(crate) fn interruption(text: &str) -> Option<PyErr> {
    let Raised { class, message } = raised(text)?;
    let message = message.to_owned();
    match class {
        "KeyboardInterrupt" if message.is_empty() => Some(PyKeyboardInterrupt::new_err(())),
        "KeyboardInterrupt" => Some(PyKeyboardInterrupt::new_err(message)),
        "SystemExit" => Some(match (message.as_str(), message.parse::<i64>()) {
            // `sys.exit("1")` and `sys.exit(1)` have the same text; the second is the common one.
            (_, Ok(code)) => PySystemExit::new_err(code),
            ("" | "None", _) => PySystemExit::new_err(()),
            (_, Err(_)) => PySystemExit::new_err(message),
        }),
        _ => None,
    }
}

fn raised(text: &str) -> Option<Raised<'_>> {
    if let Some((reason, printed)) = text.split_once(DETAIL) {
        return if printed.contains('\n') { printed_by(reason, printed) } else { named_by(reason, printed) };
    }
    let behind = BEFORE.iter().find_map(|before| text.split_once(before).map(|(_, behind)| behind))?;
    let (class, message) = behind.split_once(": ").unwrap_or((behind.trim_end_matches(':'), ""));
    let message = message.split_once("\n\n").map_or(message, |(message, _)| message);
    Some(Raised { class, message })
}

/// Parses the text of pyarrow 15, where `printed` is the class alone.
fn named_by<'a>(reason: &'a str, printed: &'a str) -> Option<Raised<'a>> {
    let (_, message) = reason.split_once("Unknown error: ")?;
    Some(Raised { class: printed.trim_end(), message })
}

/// Parses the text of later versions. The message at the end of `reason` must match the printed one, because a message may
/// itself contain a traceback of another exception.
fn printed_by<'a>(reason: &'a str, printed: &'a str) -> Option<Raised<'a>> {
    let ends = CHAINED.iter().filter_map(|chained| Some(printed.rfind(chained)? + chained.len()));
    let last = printed.get(ends.max().unwrap_or(0)..)?.trim_start();
    let is_before = |line: &&str| line.starts_with(' ') || *line == "Traceback (most recent call last):\n";
    let before: usize = last.split_inclusive('\n').take_while(is_before).map(str::len).sum();
    let own = last.get(before..)?;
    let class = own.get(..own.find([':', '\n']).unwrap_or(own.len()))?;
    let own = own.get(class.len()..)?;
    let ends_line = |rest: &str| rest.is_empty() || rest.starts_with('\n');
    let is_message = |message: &str| match own.strip_prefix(": ") {
        _ if message.is_empty() => ends_line(own),
        Some(own) => own.strip_prefix(message).is_some_and(ends_line),
        None => false,
    };
    let mut messages = reason.match_indices(": ").filter_map(|(at, colon)| reason.get(at + colon.len()..));
    let message = messages.find(|message| is_message(message))?;
    Some(Raised { class, message })
}
