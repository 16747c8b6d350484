//! The password, read each time it is needed, so that a rotated password needs no restart.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use zeroize::Zeroizing;

use crate::secret::Secret;

use super::access_names::AccessNames;
use super::option::quoted;
use super::provider::{NoPassword, Provider};

/// Far longer than any password: a bound in case the path names something else.
const MAX_FILE_BYTES: usize = 64 * 1024;

/// The source of the password.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Password {
    Given(Secret),
    Variable(String),
    File(PathBuf),
    Asked(Provider),
}

/// The current password. The line end that editors and `echo` leave in a variable or file is removed.
pub(super) fn read(password: &Password, names: &AccessNames) -> Result<Secret, NoPassword> {
    let (env, file) = (names.password_env, names.password_file);
    match password {
        Password::Given(secret) => Ok(secret.clone()),
        Password::Asked(provider) => ask(provider, names.password),
        Password::Variable(name) => match std::env::var_os(name) {
            Some(value) => finish(Zeroizing::new(value.into_encoded_bytes()), || {
                format!("{env}: the environment variable {name} is empty")
            }),
            None => Err(refuse(format!("{env}: the environment variable {name} is not set"))),
        },
        Password::File(path) => {
            let shown = quoted(&path.to_string_lossy());
            // Allocated at full size: a vector that grows leaves copies behind.
            let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE_BYTES + 1));
            File::open(path)
                .and_then(|opened| opened.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes))
                .map_err(|error| refuse(format!("{file}: {shown} cannot be read: {error}")))?;
            if bytes.len() > MAX_FILE_BYTES {
                return Err(refuse(format!("{file}: {shown} is longer than {MAX_FILE_BYTES} bytes")));
            }
            finish(bytes, || format!("{file}: {shown} is empty"))
        }
    }
}

fn ask(provider: &Provider, option: &str) -> Result<Secret, NoPassword> {
    let failed = |why: &str| refuse(format!("{option}: the callable {} {why}", provider.get().name()));
    match provider.get().ask() {
        Ok(password) if password.expose().is_empty() => Err(failed("returned an empty password")),
        Ok(password) => Ok(password),
        Err(NoPassword::Failed(why)) => Err(failed(&why)),
        Err(NoPassword::Interrupted) => Err(NoPassword::Interrupted),
    }
}

fn finish(mut bytes: Zeroizing<Vec<u8>>, empty: impl FnOnce() -> String) -> Result<Secret, NoPassword> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    if bytes.is_empty() { Err(refuse(empty())) } else { Ok(Secret::new(std::mem::take(&mut *bytes))) }
}

fn refuse(message: String) -> NoPassword {
    NoPassword::Failed(message)
}
