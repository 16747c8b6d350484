//! Values given by name, checked against the table of options: types, ranges, unknown names, names given twice.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::nearest::nearest;
use crate::secret::Secret;

use super::option::{Form, OptionDefault, OptionSpec, OptionValue, Takes, quoted};
use super::other_names;
use super::provider::Provider;

/// The maximum length of a key or any other string on a server, in bytes:
/// <https://redis.io/docs/latest/develop/data-types/strings/>.
const MAX_STRING: usize = 512 * 1024 * 1024;

/// Groups of options of which an endpoint accepts only one.
const ALTERNATIVES: [&[&str]; 3] = [
    &["host", "unix_socket", "nodes"],
    &["password", "password_env", "password_file"],
    &["sentinel_password", "sentinel_password_env", "sentinel_password_file"],
];

/// The text that stands for "as many as exist" in place of a number.
const ALL: &str = "all";

/// The sentence about an option that `specs` does not have.
fn unknown(specs: &[OptionSpec], name: &str) -> String {
    let unknown = format!("unknown option {}", quoted(name));
    if let Some(here) = other_names::explained(specs, name) {
        return format!("{unknown}; {here}");
    }
    match nearest(specs.iter().map(|spec| spec.name), name) {
        Some(known) => format!("{unknown}; did you mean {}?", quoted(known)),
        None => format!("{unknown}; docs/options.md lists the options"),
    }
}

/// Values given for the options of one table, each under a known name and given only once.
pub(crate) struct Given {
    specs: &'static [OptionSpec],
    form: Form,
    values: BTreeMap<&'static str, (Form, OptionValue)>,
}

impl Given {
    pub(crate) fn new(specs: &'static [OptionSpec], form: Form) -> Self {
        Self { specs, form, values: BTreeMap::new() }
    }

    /// Collects all of `options`.
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

    /// Adds a value, in the form of the others.
    pub(crate) fn add(&mut self, name: &str, value: OptionValue) -> Result<()> {
        self.add_in(self.form, name, value)
    }

    /// Adds a value in the form `form`.
    pub(crate) fn add_in(&mut self, form: Form, name: &str, value: OptionValue) -> Result<()> {
        let Some(spec) = self.specs.iter().find(|spec| spec.name == name) else {
            return Err(Error::config(name, unknown(self.specs, name)));
        };
        if value != OptionValue::Null && self.values.insert(spec.name, (form, value)).is_some() {
            return Err(Error::config(name, format!("{name} is given twice; give it once")));
        }
        Ok(())
    }

    /// Adds those of `others` that are neither given here nor [`ALTERNATIVES`] to one that is.
    pub(crate) fn over(mut self, others: Self) -> Self {
        let is_replaced = |name: &str| {
            let mut groups = ALTERNATIVES.iter().filter(|group| group.contains(&name));
            self.has(name) || groups.any(|group| group.iter().any(|other| self.has(other)))
        };
        let kept: Vec<_> = others.values.into_iter().filter(|(name, _)| !is_replaced(name)).collect();
        self.values.extend(kept);
        self
    }

    /// Whether `name` was given as an empty sequence of names.
    pub(crate) fn is_no_names(&self, name: &str) -> bool {
        matches!(self.values.get(name), Some((_, OptionValue::Names(names))) if names.is_empty())
    }

    /// Whether `name` was given as this text.
    pub(crate) fn is_text(&self, name: &str, text: &str) -> bool {
        matches!(self.values.get(name), Some((_, OptionValue::Text(given))) if given.as_str() == text)
    }

    /// Whether `name` was given as a mapping, that is, as the text of a JSON object.
    pub(crate) fn has_mapping(&self, name: &str) -> bool {
        matches!(self.values.get(name), Some((_, OptionValue::Text(text))) if text.trim_start().starts_with('{'))
    }

    /// Whether `name` was given and has not been read yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Inserts the default of `name` if no value was given.
    fn with_default(&mut self, name: &str) {
        if let Some(spec) = self.specs.iter().find(|spec| spec.name == name).filter(|spec| !self.has(spec.name)) {
            match spec.default {
                OptionDefault::None => {}
                default => {
                    self.values.insert(spec.name, (Form::Typed, default.value()));
                }
            }
        }
    }

    /// Like [`Given::boolean`], with the default if no value was given.
    pub(crate) fn boolean_or_default(&mut self, name: &str) -> Result<bool> {
        self.with_default(name);
        self.boolean(name)?.ok_or_else(|| missing(name))
    }

    /// Like [`Given::integer`], with the default if no value was given.
    pub(crate) fn integer_or_default<T: TryFrom<i64>>(&mut self, name: &str) -> Result<T> {
        self.with_default(name);
        self.integer(name)?.ok_or_else(|| missing(name))
    }

    /// A number of at least 0, or `None` for the text `all`; the default if no value was given.
    pub(crate) fn count_or_all_or_default(&mut self, name: &str) -> Result<Option<u64>> {
        self.with_default(name);
        let (spec, form, value) = self.take(name).ok_or_else(|| missing(name))?;
        if matches!(&value, OptionValue::Text(text) if text.as_str() == ALL) {
            return Ok(None);
        }
        // The largest number that every server accepts.
        let count =
            whole(&value, form).filter(|count| *count <= i64::MAX.into()).and_then(|count| count.try_into().ok());
        count.map_or_else(|| Err(spec.refuse(&value)), |count| Ok(Some(count)))
    }

    /// Like [`Given::seconds`], with the default if no value was given.
    pub(crate) fn seconds_or_default(&mut self, name: &str) -> Result<Duration> {
        self.with_default(name);
        self.seconds(name)?.ok_or_else(|| missing(name))
    }

    /// Like [`Given::number`], with the default if no value was given.
    pub(crate) fn number_or_default(&mut self, name: &str) -> Result<f64> {
        self.with_default(name);
        self.number(name)?.ok_or_else(|| missing(name))
    }

    /// Like [`Given::text`], with the default if no value was given.
    pub(crate) fn text_or_default(&mut self, name: &str) -> Result<String> {
        self.with_default(name);
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// One of the texts that the option takes; the default if no value was given.
    pub(crate) fn choice_or_default(&mut self, name: &str) -> Result<&'static str> {
        self.with_default(name);
        let Some((spec, _, value)) = self.take(name) else { return Err(missing(name)) };
        let found = match (&value, spec.takes) {
            (OptionValue::Text(text), Takes::Choice(names)) => names.iter().find(|name| **name == text.as_str()),
            _ => None,
        };
        found.copied().ok_or_else(|| spec.refuse(&value))
    }

    /// The names of columns or of nodes.
    pub(crate) fn names(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        let (is_text, are_nodes) = (form == Form::Text, spec.takes == Takes::Nodes);
        let names = match &value {
            OptionValue::Names(names) => Some(names.clone()),
            // The address of an IPv6 host starts like a JSON array.
            OptionValue::Text(text) if is_text && !are_nodes && text.trim_start().starts_with('[') => {
                serde_json::from_str(text.as_str()).ok()
            }
            OptionValue::Text(text) if is_text || are_nodes => {
                Some(text.split(',').map(|name| name.trim().to_owned()).collect())
            }
            _ => None,
        };
        let names = names.filter(|names| !names.is_empty() && names.iter().all(|name| !name.is_empty()));
        names.map_or_else(|| Err(spec.refuse_names(form, &value)), |names| Ok(Some(names)))
    }

    /// The value of an option of any type.
    fn any(&mut self, spec: &OptionSpec) -> Result<OptionValue> {
        let name = spec.name;
        if !spec.depends {
            self.with_default(name);
        }
        if !self.has(name) {
            return Ok(OptionValue::Null);
        }
        let value = match spec.takes {
            Takes::Integer { .. } => self.integer::<i64>(name)?.map(|number| OptionValue::Int(number.into())),
            Takes::CountOrAll => Some(match self.count_or_all_or_default(name)? {
                Some(count) => OptionValue::Int(count.into()),
                None => OptionValue::text(ALL),
            }),
            Takes::Seconds { .. } | Takes::Number { .. } => self.number(name)?.map(OptionValue::Float),
            Takes::Boolean => self.boolean(name)?.map(OptionValue::Bool),
            Takes::Text | Takes::Variable | Takes::Path | Takes::Column => {
                self.text(name)?.map(|text| OptionValue::text(&text))
            }
            Takes::Choice(_) => Some(OptionValue::text(self.choice_or_default(name)?)),
            Takes::RenamedColumns if self.has_mapping(name) => self.value(name),
            Takes::Columns | Takes::ColumnsOrAll | Takes::Nodes | Takes::RenamedColumns => {
                self.names(name)?.map(OptionValue::Names)
            }
            Takes::BooleanOrColumns => match self.values.get(name) {
                Some((_, OptionValue::Bool(value))) => Some(OptionValue::Bool(*value)),
                Some((Form::Text, OptionValue::Text(text)))
                    if ["true", "false"].iter().any(|word| text.eq_ignore_ascii_case(word)) =>
                {
                    Some(OptionValue::Bool(text.eq_ignore_ascii_case("true")))
                }
                _ => self.names(name)?.map(OptionValue::Names),
            },
            Takes::TextOrBytes
            | Takes::Secret
            | Takes::Pem
            | Takes::StreamId
            | Takes::EntryId
            | Takes::Start
            | Takes::Mapping(_) => self.value(name),
        };
        Ok(value.unwrap_or(OptionValue::Null))
    }

    /// Removes `name` and returns its row and its value, if it was given.
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

    /// An integer option, checked against its range.
    pub(crate) fn integer<T: TryFrom<i64>>(&mut self, name: &str) -> Result<Option<T>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        let Takes::Integer { min, max } = spec.takes else { return Err(spec.refuse(&value)) };
        whole(&value, form)
            .and_then(|number| i64::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .map_or_else(|| Err(spec.refuse(&value)), |number| Ok(Some(number)))
    }

    /// A number of seconds, checked against its range.
    pub(crate) fn seconds(&mut self, name: &str) -> Result<Option<Duration>> {
        // Every range of an option fits into a `Duration`.
        Ok(self.number(name)?.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }

    /// A number with or without a fraction, checked against its range.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let Some((spec, form, value)) = self.take(name) else { return Ok(None) };
        let (Takes::Seconds { min, max } | Takes::Number { min, max }) = spec.takes else {
            return Err(spec.refuse(&value));
        };
        let number = match (&value, form) {
            (OptionValue::Float(number), _) => Some(*number),
            // Rust also parses `inf`, `nan` and `1e3` as floats; here only digits and a point are allowed.
            (OptionValue::Text(text), Form::Text) if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
                text.parse().ok()
            }
            _ => whole(&value, form).and_then(|number| i32::try_from(number).ok()).map(f64::from),
        };
        number
            .filter(|number| (min..=max).contains(number))
            .map_or_else(|| Err(spec.refuse(&value)), |number| Ok(Some(number)))
    }

    /// Non-empty text: names and paths.
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

    /// The provider to ask for a secret, if one was given; any other value stays unread.
    pub(crate) fn provider(&mut self, name: &str) -> Result<Option<Provider>> {
        let Some((form, OptionValue::Provider(provider))) = self.values.get(name) else { return Ok(None) };
        if *form == Form::Text {
            let message = format!(
                "{name} must be text if all options are text, got the callable {}; give {name}_env or {name}_file",
                provider.get().name()
            );
            return Err(Error::config(name, message));
        }
        let provider = provider.clone();
        self.values.remove(name);
        Ok(Some(provider))
    }

    /// The unchecked value, for a type that does its own parsing.
    pub(crate) fn value(&mut self, name: &str) -> Option<OptionValue> {
        self.take(name).map(|(_, _, value)| value)
    }

    /// The error for `value` of `name`.
    pub(crate) fn refuse(&self, name: &str, value: &OptionValue) -> Error {
        match self.specs.iter().find(|spec| spec.name == name) {
            Some(spec) => spec.refuse(value),
            None => Error::config(name, format!("unknown option {}", quoted(name))),
        }
    }
}

/// Reads `options` by their rows in `specs` alone: every row with its value, its default where that does not depend on other
/// options, or null.
pub fn read_values(
    specs: &'static [OptionSpec],
    options: impl IntoIterator<Item = (String, OptionValue)>,
    form: Form,
) -> Result<Vec<(&'static str, OptionValue)>> {
    let mut given = Given::collect(specs, options, form)?;
    specs.iter().map(|spec| Ok((spec.name, given.any(spec)?))).collect()
}

/// The error for a required option that was not given.
fn missing(name: &str) -> Error {
    Error::config(name, format!("{name} is missing"))
}

/// The integer that `value` represents. A boolean is not an integer.
fn whole(value: &OptionValue, form: Form) -> Option<i128> {
    match (value, form) {
        (OptionValue::Int(number), _) => Some(*number),
        (OptionValue::Text(text), Form::Text) if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Whether a shell could have set a variable of this name:
/// <https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap08.html>.
fn is_variable(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.starts_with(|c: char| c.is_ascii_digit())
}
