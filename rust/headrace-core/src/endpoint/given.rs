//! Values given by name, read by the table of options: types, ranges, unknown names, names given twice.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::secret::Secret;

use super::options::{Form, OptionSpec, OptionValue, Takes, quoted};
use super::provider::Provider;

/// The most bytes of a key or any other string on a server: <https://redis.io/docs/latest/develop/data-types/strings/>.
const MAX_STRING: usize = 512 * 1024 * 1024;

/// The name in `specs` that looks most like `name`.
fn nearest(specs: &[OptionSpec], name: &str) -> &'static str {
    let name = name.to_lowercase();
    let likeness = |spec: &OptionSpec| {
        // A part of a name (`timeout`, `ca_cert`) means more than letters in common.
        let part = if name.len() > 2 && spec.name.contains(&name) { 1.0 } else { 0.0 };
        strsim::jaro_winkler(spec.name, &name) + part
    };
    specs.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map_or("", |spec| spec.name)
}

/// Values given for the options of one table, each under a known name and given once.
pub(crate) struct Given {
    specs: &'static [OptionSpec],
    form: Form,
    values: BTreeMap<&'static str, (Form, OptionValue)>,
}

impl Given {
    pub(crate) fn new(specs: &'static [OptionSpec], form: Form) -> Self {
        Self { specs, form, values: BTreeMap::new() }
    }

    /// All of `options`.
    pub(crate) fn collect(
        specs: &'static [OptionSpec],
        options: impl IntoIterator<Item = (String, OptionValue)>,
        form: Form,
    ) -> Result<Self> {
        let mut given = Self::new(specs, form);
        for (name, value) in options {
            given.add(&name, value)?;
        }
        Ok(given)
    }

    /// One more value, in the form of the others.
    pub(crate) fn add(&mut self, name: &str, value: OptionValue) -> Result<()> {
        self.add_in(self.form, name, value)
    }

    /// One more value, in a form of its own.
    pub(crate) fn add_in(&mut self, form: Form, name: &str, value: OptionValue) -> Result<()> {
        let Some(spec) = self.specs.iter().find(|spec| spec.name == name) else {
            let known = nearest(self.specs, name);
            let message = format!("there is no option {}; the nearest one is {}", quoted(name), quoted(known));
            return Err(Error::config(name, message));
        };
        if value != OptionValue::Null && self.values.insert(spec.name, (form, value)).is_some() {
            return Err(Error::config(name, format!("{name} is given twice; give it once")));
        }
        Ok(())
    }

    /// The specification and value of `name`, if it was given.
    fn take(&mut self, name: &str) -> Option<(&'static OptionSpec, Form, OptionValue)> {
        let spec = self.specs.iter().find(|spec| spec.name == name)?;
        self.values.remove(name).map(|(form, value)| (spec, form, value))
    }

    /// A boolean option.
    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        match (&value, form) {
            (OptionValue::Bool(value), _) => Ok(Some(*value)),
            (OptionValue::Text(text), Form::Text) if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
            (OptionValue::Text(text), Form::Text) if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
            _ => Err(spec.refuse(&value)),
        }
    }

    /// An integer option, in its range.
    pub(crate) fn integer<T: TryFrom<i64>>(&mut self, name: &str) -> Result<Option<T>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        let Takes::Integer { min, max } = spec.takes else { return Err(spec.refuse(&value)) };
        whole(&value, form)
            .and_then(|number| i64::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .map_or_else(|| Err(spec.refuse(&value)), |number| Ok(Some(number)))
    }

    /// A number of seconds, in its range.
    pub(crate) fn seconds(&mut self, name: &str) -> Result<Option<Duration>> {
        // The range of each keeps it within what a duration can be.
        Ok(self.number(name)?.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }

    /// A number with or without a fraction, in its range.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        let (Takes::Seconds { min, max } | Takes::Number { min, max }) = spec.takes else {
            return Err(spec.refuse(&value));
        };
        let number = match (&value, form) {
            (OptionValue::Float(number), _) => Some(*number),
            // `inf`, `nan` and `1e3` are floats to Rust; here only digits and a point are.
            (OptionValue::Text(text), Form::Text) if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
                text.parse().ok()
            }
            _ => whole(&value, form).and_then(|number| i32::try_from(number).ok()).map(f64::from),
        };
        number
            .filter(|number| (min..=max).contains(number))
            .map_or_else(|| Err(spec.refuse(&value)), |number| Ok(Some(number)))
    }

    /// Text that is not empty: names and paths.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>> {
        let Some((spec, _, value)) = self.take(name) else { return Ok(None) };
        match &value {
            OptionValue::Text(text) if !text.is_empty() && (spec.takes != Takes::Variable || is_variable(text)) => {
                Ok(Some(text.to_string()))
            }
            _ => Err(spec.refuse(&value)),
        }
    }

    /// Text or bytes, as bytes.
    pub(crate) fn bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some((spec, _, value)) = self.take(name) else { return Ok(None) };
        let bytes = match &value {
            OptionValue::Text(text) => text.as_bytes(),
            OptionValue::Bytes(bytes) => bytes,
            _ => return Err(spec.refuse(&value)),
        };
        if bytes.len() > MAX_STRING {
            let message = format!("{name} must be {}, got {} bytes", spec.allowed(), bytes.len());
            return Err(Error::config(name, message));
        }
        if bytes.is_empty() { Err(spec.refuse(&value)) } else { Ok(Some(bytes.to_vec())) }
    }

    /// A secret. The value that was given is zeroed when it is dropped here.
    pub(crate) fn secret(&mut self, name: &str) -> Result<Option<Secret>> {
        Ok(self.bytes(name)?.map(Secret::new))
    }

    /// A secret that somebody is to be asked for, if that was given; any other value stays.
    pub(crate) fn provider(&mut self, name: &str) -> Result<Option<Provider>> {
        let Some((form, OptionValue::Provider(provider))) = self.values.get(name) else { return Ok(None) };
        if *form == Form::Text {
            let message = format!(
                "{name} must be text where all options are, got the callable {}; give {name}_env or {name}_file",
                provider.get().name()
            );
            return Err(Error::config(name, message));
        }
        let provider = provider.clone();
        self.values.remove(name);
        Ok(Some(provider))
    }

    /// A value that a type of its own reads further.
    pub(crate) fn value(&mut self, name: &str) -> Option<OptionValue> {
        self.take(name).map(|(_, _, value)| value)
    }

    /// The error for `value` of `name`.
    pub(crate) fn refuse(&self, name: &str, value: &OptionValue) -> Error {
        match self.specs.iter().find(|spec| spec.name == name) {
            Some(spec) => spec.refuse(value),
            None => Error::config(name, format!("there is no option {}", quoted(name))),
        }
    }
}

/// The integer that `value` is. A boolean is none.
fn whole(value: &OptionValue, form: Form) -> Option<i128> {
    match (value, form) {
        (OptionValue::Int(number), _) => Some(*number),
        (OptionValue::Text(text), Form::Text) if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Whether a shell could have set a variable of this name: <https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap08.html>.
fn is_variable(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.starts_with(|c: char| c.is_ascii_digit())
}
