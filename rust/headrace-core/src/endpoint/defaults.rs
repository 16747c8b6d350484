//! Process-wide defaults: the values for options that an endpoint was not given.
//!
//! The environment is used as it was when the endpoint was built, the defaults file as it is now. The file is read at each
//! connect, not only when its time stamp has changed: it is small, connects are rare, and time stamps have a limited
//! resolution.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

use super::given::Given;
use super::option::{Form, OptionSpec, OptionValue};
use super::server::{ENVIRONMENT_DEFAULTS, FILE_DEFAULTS};

/// The variable that names the defaults file.
const FILE_VARIABLE: &str = "HEADRACE_DEFAULTS";

/// A bound for the size of a defaults file, which holds four numbers.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The process-wide defaults that were set, in the environment or in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    pub(super) connect_timeout: Option<Duration>,
    pub(super) command_timeout: Option<Duration>,
    pub(super) db: Option<u32>,
    pub(super) port: Option<u16>,
}

impl Inherited {
    /// Reads the defaults from values given under the names of `specs`, which are in the order of [`FILE_DEFAULTS`].
    fn read(given: &mut Given, specs: &[OptionSpec; 4]) -> Result<Self> {
        let [connect_timeout, command_timeout, db, port] = specs.each_ref().map(|spec| spec.name);
        Ok(Self {
            connect_timeout: given.seconds(connect_timeout)?,
            command_timeout: given.seconds(command_timeout)?,
            db: given.integer(db)?,
            port: given.integer(port)?,
        })
    }

    fn or(self, other: &Self) -> Self {
        Self {
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            command_timeout: self.command_timeout.or(other.command_timeout),
            db: self.db.or(other.db),
            port: self.port.or(other.port),
        }
    }

    /// The values, under the names that a defaults file uses.
    pub(super) fn to_options(&self) -> Vec<(&'static str, OptionValue)> {
        let seconds = |duration: Duration| OptionValue::Float(duration.as_secs_f64());
        let values = [
            self.connect_timeout.map(seconds),
            self.command_timeout.map(seconds),
            self.db.map(|db| OptionValue::Int(db.into())),
            self.port.map(|port| OptionValue::Int(port.into())),
        ];
        FILE_DEFAULTS.iter().zip(values).filter_map(|(spec, value)| Some((spec.name, value?))).collect()
    }
}

/// Where an endpoint's process-wide defaults come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Defaults {
    /// The environment when the endpoint was built; in an unpickled endpoint also the values that its file had at that time.
    kept: Inherited,
    /// The defaults file, read each time its values are needed.
    file: Option<PathBuf>,
}

impl Defaults {
    /// Reads the defaults from the environment; `variable` looks up a variable. An empty variable counts as unset.
    pub(super) fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut given = Given::new(&ENVIRONMENT_DEFAULTS, Form::Text);
        for spec in &ENVIRONMENT_DEFAULTS {
            let Some(value) = variable(spec.name).filter(|value| !value.is_empty()) else { continue };
            given.add(spec.name, OptionValue::text(&value.to_string_lossy()))?;
        }
        let kept = Inherited::read(&mut given, &ENVIRONMENT_DEFAULTS)?;
        let file = variable(FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Self { kept, file })
    }

    /// The defaults of another process: fixed, regardless of the environment and the files of this one.
    pub(super) fn fixed(values: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        let mut given = Given::collect(&FILE_DEFAULTS, values, Form::Typed)?;
        Ok(Self { kept: Inherited::read(&mut given, &FILE_DEFAULTS)?, file: None })
    }

    /// The current defaults.
    pub(super) fn now(&self) -> Result<Inherited> {
        let kept = self.kept.clone();
        match &self.file {
            Some(path) => Ok(kept.or(&read_file(path)?)),
            None => Ok(kept),
        }
    }

    /// The values from the environment, without the file.
    pub(super) fn kept(&self) -> &Inherited {
        &self.kept
    }
}

fn read_file(path: &Path) -> Result<Inherited> {
    let refuse = |why: &str| {
        let message = format!("{why} (in the file {} that {FILE_VARIABLE} names)", path.display());
        Error::config(FILE_VARIABLE, message)
    };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| refuse(&format!("the process-wide defaults cannot be read: {error}")))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(refuse(&format!("the process-wide defaults are longer than {MAX_FILE_BYTES} bytes")));
    }
    let values = match serde_json::from_str(&text) {
        Ok(serde_json::Value::Object(values)) => values,
        Ok(_) => return Err(refuse("the process-wide defaults must be one JSON object")),
        Err(error) => return Err(refuse(&format!("the process-wide defaults are not JSON: {error}"))),
    };
    let values = values.into_iter().map(|(name, value)| (name, from_json(value)));
    Given::collect(&FILE_DEFAULTS, values, Form::Typed)
        .and_then(|mut given| Inherited::read(&mut given, &FILE_DEFAULTS))
        .map_err(|error| refuse(&error.to_string()))
}

fn from_json(value: serde_json::Value) -> OptionValue {
    match value {
        serde_json::Value::Bool(value) => OptionValue::Bool(value),
        serde_json::Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(number), _) => OptionValue::Int(number),
            (None, Some(number)) => OptionValue::Float(number),
            (None, None) => OptionValue::Other("number".to_owned()),
        },
        serde_json::Value::String(text) => OptionValue::text(&text),
        // A default that is null would have no effect: it is more likely a mistake than an intention.
        serde_json::Value::Null => OptionValue::Other("null".to_owned()),
        serde_json::Value::Array(_) => OptionValue::Other("array".to_owned()),
        serde_json::Value::Object(_) => OptionValue::Other("object".to_owned()),
    }
}
