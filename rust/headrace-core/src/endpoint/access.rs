//! How a client authenticates, and whether it uses TLS: to a server, or to its sentinels.

use std::path::PathBuf;

use super::access_names::AccessNames;
use super::given::Given;
use super::option::OptionValue;
use super::password::{self, Password};
use super::pem::Pem;
use super::provider::NoPassword;
use super::tls::Tls;
use crate::error::{Error, Result};
use crate::secret::Secret;

/// A user, a password, and TLS.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    pub(super) names: &'static AccessNames,
    pub(super) username: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) tls: Option<Tls>,
}

impl Access {
    /// Reads the options of `names`, except those of TLS.
    pub(super) fn read(given: &mut Given, names: &'static AccessNames) -> Result<Self> {
        let username = given.text(names.username)?;
        let password = read_password(given, names)?;
        if username.is_some() && password.is_none() {
            let (user, password, env, file) = (names.username, names.password, names.password_env, names.password_file);
            let message = format!("{user} needs one of {password}, {env} and {file} (AUTH takes both)");
            return Err(Error::config(user, message));
        }
        Ok(Self { names, username, password, tls: None })
    }

    /// The user for AUTH.
    pub(crate) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// The password for AUTH, read now if it comes from a variable, a file or a provider.
    pub(crate) fn password(&self) -> std::result::Result<Option<Secret>, NoPassword> {
        self.password.as_ref().map(|password| password::read(password, self.names)).transpose()
    }

    /// Whether the password comes from a provider, which may take its time.
    pub(crate) fn has_provider(&self) -> bool {
        matches!(self.password, Some(Password::Asked(_)))
    }

    /// Whether the password comes from a file or a provider.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.password, Some(Password::File(_) | Password::Asked(_)))
    }

    /// The current password if it differs from `refused`: it may have been changed after it was read.
    pub(crate) fn changed_password(&self, refused: Option<&Secret>) -> std::result::Result<Option<Secret>, NoPassword> {
        match &self.password {
            None | Some(Password::Given(_)) => Ok(None),
            Some(password) => match password::read(password, self.names) {
                Ok(now) => Ok(Some(now).filter(|now| Some(now) != refused)),
                // The server's refusal is more useful than a message that there is no password now.
                Err(NoPassword::Failed(_)) => Ok(None),
                Err(NoPassword::Interrupted) => Err(NoPassword::Interrupted),
            },
        }
    }

    /// TLS, if it is on.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The option `name`, if it is one of these.
    pub(super) fn value(&self, name: &str) -> Option<OptionValue> {
        let names = self.names;
        let path = |path: &PathBuf| OptionValue::text(&path.to_string_lossy());
        match &self.password {
            Some(Password::Given(secret)) if name == names.password => return Some(text_or_bytes(secret.expose())),
            Some(Password::Asked(provider)) if name == names.password => {
                return Some(OptionValue::Provider(provider.clone()));
            }
            Some(Password::Variable(variable)) if name == names.password_env => {
                return Some(OptionValue::text(variable));
            }
            Some(Password::File(file)) if name == names.password_file => return Some(path(file)),
            _ => {}
        }
        let tls = self.tls.as_ref();
        match name {
            _ if name == names.username => self.username.as_deref().map(OptionValue::text),
            _ if name == names.tls => Some(OptionValue::Bool(tls.is_some())),
            _ if name == names.tls_ca_cert => tls?.ca_cert.as_ref().map(Pem::to_option),
            _ if name == names.tls_cert => tls?.client.as_ref().map(|(cert, _)| cert.to_option()),
            _ if name == names.tls_key => tls?.client.as_ref().map(|(_, key)| key.to_option()),
            _ if name == names.tls_server_name => tls?.server_name.as_deref().map(OptionValue::text),
            _ if Some(name) == names.tls_insecure_skip_verify => {
                Some(OptionValue::Bool(tls.is_some_and(|tls| tls.skip_verify)))
            }
            _ => None,
        }
    }
}

pub(super) fn text_or_bytes(bytes: &[u8]) -> OptionValue {
    std::str::from_utf8(bytes).map_or_else(|_| OptionValue::bytes(bytes), OptionValue::text)
}

fn read_password(given: &mut Given, names: &AccessNames) -> Result<Option<Password>> {
    let file = given.text(names.password_file)?;
    if file.as_ref().is_some_and(|path| path.contains('\0')) {
        let name = names.password_file;
        return Err(Error::config(name, format!("{name} must be the path of a file, got text with NUL in it")));
    }
    let places = [
        match given.provider(names.password)? {
            Some(provider) => Some(Password::Asked(provider)),
            None => given.secret(names.password)?.map(Password::Given),
        },
        given.text(names.password_env)?.map(Password::Variable),
        file.map(|path| Password::File(PathBuf::from(path))),
    ];
    let mut given_places = places.into_iter().flatten();
    match (given_places.next(), given_places.next()) {
        (_, Some(_)) => {
            let (password, env, file) = (names.password, names.password_env, names.password_file);
            Err(Error::config(password, format!("{password}, {env} and {file} are mutually exclusive")))
        }
        (first, None) => Ok(first),
    }
}
