//! What a reader that runs Python said when that failed. The C stream interface carries no exception, only a text
//! (<https://arrow.apache.org/docs/format/CStreamInterface.html>), so what was raised is read off that text.
//!
//! | library | what it says of `KeyboardInterrupt("why")` |
//! |---|---|
//! | pyarrow 16 to 26 | `Unknown error: why. Detail: Python exception: Traceback (most recent call last): … KeyboardInterrupt: why` |
//! | pyarrow 15 | `Unknown error: why. Detail: Python exception: KeyboardInterrupt` |
//! | polars 2 | `python: KeyboardInterrupt: why`, and behind an empty line which expression it was |
//! | `DuckDB` 2 | `… while executing the UDF: KeyboardInterrupt: why`; over a reader of pyarrow, its text behind its own |
//!
//! A class of the caller's that derives from one of the two is not recognised: its bases are not in the text.

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;

use crate::errors::raise;

/// Between what pyarrow says of an exception and how Python would print it.
const DETAIL: &str = ". Detail: Python exception: ";
/// Where an exception was raised while another one was handled: the last one is what came out.
const CHAINED: [&str; 2] = [
    "\nDuring handling of the above exception, another exception occurred:\n",
    "\nThe above exception was the direct cause of the following exception:\n",
];
/// What polars and `DuckDB` say before an exception.
const BEFORE: [&str; 2] = ["python: ", " while executing the UDF: "];

/// An exception, as far as a text tells.
struct Raised<'a> {
    class: &'a str,
    /// What `str()` makes of it.
    message: &'a str,
}

/// The exception for a reader that failed with `text`.
pub(crate) fn to_py(text: &str) -> PyErr {
    interruption(text).unwrap_or_else(|| {
        let printed = text.split_once(DETAIL).filter(|(_, printed)| printed.contains('\n'));
        let said = match (raised(text), printed) {
            (Some(Raised { class, message: "" }), Some(_)) => class.to_owned(),
            (Some(Raised { class, message }), Some(_)) => format!("{class}: {message}"),
            (None, Some((said, _))) => said.to_owned(),
            (_, None) => text.to_owned(),
        };
        let line = said.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let error = raise("ReaderError", format!("cannot read the next record batch: {line}"));
        if let Some((_, printed)) = printed {
            let note = format!("in the reader: {}", printed.trim_end());
            // Without the note the error says what it must.
            Python::attach(|py| error.value(py).call_method1("add_note", (note,)).map(drop)).ok();
        }
        error
    })
}

/// What ends the program rather than the reading: Ctrl-C or `sys.exit()` in the reader's own Python. It must not come out
/// as an error that `except Exception` takes for one of the data.
pub(crate) fn interruption(text: &str) -> Option<PyErr> {
    let Raised { class, message } = raised(text)?;
    let message = message.to_owned();
    match class {
        "KeyboardInterrupt" if message.is_empty() => Some(PyKeyboardInterrupt::new_err(())),
        "KeyboardInterrupt" => Some(PyKeyboardInterrupt::new_err(message)),
        "SystemExit" => Some(match (message.as_str(), message.parse::<i64>()) {
            // `sys.exit("1")` and `sys.exit(1)` say the same; the second is what people write.
            (_, Ok(code)) => PySystemExit::new_err(code),
            ("" | "None", _) => PySystemExit::new_err(()),
            (_, Err(_)) => PySystemExit::new_err(message),
        }),
        _ => None,
    }
}

fn raised(text: &str) -> Option<Raised<'_>> {
    if let Some((said, printed)) = text.split_once(DETAIL) {
        return if printed.contains('\n') { printed_by(said, printed) } else { named_by(said, printed) };
    }
    let behind = BEFORE.iter().find_map(|before| text.split_once(before).map(|(_, behind)| behind))?;
    let (class, message) = behind.split_once(": ").unwrap_or((behind.trim_end_matches(':'), ""));
    let message = message.split_once("\n\n").map_or(message, |(message, _)| message);
    Some(Raised { class, message })
}

/// Of pyarrow 15: `printed` is the class alone.
fn named_by<'a>(said: &'a str, printed: &'a str) -> Option<Raised<'a>> {
    let (_, message) = said.split_once("Unknown error: ")?;
    Some(Raised { class: printed.trim_end(), message })
}

/// Of later ones. `said` ends with the exception's message. That is compared: a message may hold a traceback of its own, of
/// an exception that did not come out.
fn printed_by<'a>(said: &'a str, printed: &'a str) -> Option<Raised<'a>> {
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
    let mut messages = said.match_indices(": ").filter_map(|(at, colon)| said.get(at + colon.len()..));
    let message = messages.find(|message| is_message(message))?;
    Some(Raised { class, message })
}
