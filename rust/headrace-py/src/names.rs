//! Names as `str` objects. Entries of a stream have the same few names, so one object serves all of them.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;

/// The number of names that are kept.
const PLACES: usize = 64;

/// The maximum length of a name that is kept, in bytes.
const MAX_KEPT: usize = 64;

/// The names that were asked for last. They are not interned: Python may keep an interned name forever, and the writers of a
/// stream choose its names.
#[derive(Default)]
pub(crate) struct Names(Mutex<Vec<Option<Py<PyString>>>>);

impl Names {
    /// The object of a name.
    pub(crate) fn get<'py>(&self, py: Python<'py>, name: &str) -> Bound<'py, PyString> {
        if name.len() > MAX_KEPT {
            return PyString::new(py, name);
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            kept.resize_with(PLACES, || None);
        }
        let place = &mut kept[place(name.as_bytes())];
        if let Some(one) = place
            && one.bind(py).to_str().is_ok_and(|text| text == name)
        {
            return one.bind(py).clone();
        }
        let one = PyString::new(py, name);
        *place = Some(one.clone().unbind());
        one
    }
}

/// The place of a name: by its length, its first and its last bytes.
fn place(name: &[u8]) -> usize {
    let [first, .., last] = *name else { return usize::from(name.first().copied().unwrap_or_default()) % PLACES };
    (name.len() ^ usize::from(first) ^ (usize::from(last) << 1) ^ (usize::from(name[name.len() / 2]) << 2)) % PLACES
}
