//! PEM: certificates and keys, in files or given directly.
//!
//! The files are read at every connect, so that a renewed certificate needs no restart. No message contains their content.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::secret::Secret;

use super::given::Given;
use super::option::{OptionValue, quoted};
use super::pem_text::sections;

/// Larger than any bundle of certificates.
const MAX_PEM_BYTES: u64 = 16 * 1024 * 1024;

/// Private keys in PKCS #1, SEC 1 (RFC 5915) and PKCS #8 (RFC 5958), all of them unencrypted.
const KEY_LABELS: [&[u8]; 3] = [b"RSA PRIVATE KEY", b"EC PRIVATE KEY", b"PRIVATE KEY"];

/// PEM: in a file that is read at each connect, or given directly.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pem {
    /// The file's path.
    Path(PathBuf),
    /// The PEM.
    Bytes(Secret),
}

impl Pem {
    /// The option `name`, if it was given. Text is a path unless it can only be PEM.
    pub(super) fn read(given: &mut Given, name: &str) -> Result<Option<Self>> {
        let Some(value) = given.value(name) else { return Ok(None) };
        match &value {
            OptionValue::Bytes(bytes) if !bytes.is_empty() => Ok(Some(Self::Bytes(Secret::new(bytes.to_vec())))),
            OptionValue::Text(text) if text.contains("-----BEGIN") || text.contains('\n') => {
                Ok(Some(Self::Bytes(Secret::new(text.as_bytes().to_vec()))))
            }
            OptionValue::Text(text) if is_bare_key(text) => {
                let message =
                    format!("{name} must be a path or PEM, which begins with -----BEGIN; got base64 without it");
                Err(Error::config(name, message))
            }
            OptionValue::Text(text) if !text.is_empty() && !text.contains('\0') => {
                Ok(Some(Self::Path(PathBuf::from(text.as_str()))))
            }
            _ => Err(given.refuse(name, &value)),
        }
    }

    /// As it was given: a path as text, PEM as bytes.
    pub(super) fn to_option(&self) -> OptionValue {
        match self {
            Self::Path(path) => OptionValue::text(&path.to_string_lossy()),
            Self::Bytes(pem) => OptionValue::bytes(pem.expose()),
        }
    }

    /// The source in words, for a message: the path, or that PEM was given directly.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Path(path) => quoted(&path.to_string_lossy()),
            Self::Bytes(_) => "the PEM given".to_owned(),
        }
    }

    fn load(&self, name: &str) -> Result<Zeroizing<Vec<u8>>> {
        let path = match self {
            Self::Path(path) => path,
            Self::Bytes(pem) => return Ok(Zeroizing::new(pem.expose().to_vec())),
        };
        let unreadable = |error| self.refuse(name, &format!("cannot be read: {error}"));
        let file = File::open(path).map_err(unreadable)?;
        // Allocated at full size: a vector that grows leaves copies of a key behind.
        let size = file.metadata().map_err(unreadable)?.len().min(MAX_PEM_BYTES);
        let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
        file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_PEM_BYTES {
            return Err(self.refuse(name, &format!("is longer than {MAX_PEM_BYTES} bytes")));
        }
        Ok(bytes)
    }

    pub(super) fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>> {
        let pem = self.load(name)?;
        // A key in the same file is not decoded at all.
        let found = sections(&pem, |label| label == b"CERTIFICATE").map_err(|why| self.refuse(name, why))?;
        if found.is_empty() {
            return Err(self.refuse(name, "holds no certificate"));
        }
        Ok(found.into_iter().map(|mut section| CertificateDer::from(std::mem::take(&mut *section.der))).collect())
    }

    pub(super) fn private_key(&self, name: &str) -> Result<PrivateKeyDer<'static>> {
        let pem = self.load(name)?;
        let is_key = |label: &[u8]| KEY_LABELS.contains(&label);
        let found = sections(&pem, is_key).map_err(|why| self.refuse(name, why))?.into_iter().next();
        let Some(mut section) = found else {
            return Err(self.refuse(name, "holds no private key, or only an encrypted one"));
        };
        let der = std::mem::take(&mut *section.der);
        Ok(match section.label {
            b"RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der).into(),
            b"EC PRIVATE KEY" => PrivateSec1KeyDer::from(der).into(),
            _ => PrivatePkcs8KeyDer::from(der).into(),
        })
    }

    pub(super) fn refuse(&self, name: &str, why: &str) -> Error {
        Error::config(name, format!("{name}: {} {why}", self.shown()))
    }
}

/// Whether `text` is the body of a PEM rather than a path: base64 of DER, which always starts with `M`.
fn is_bare_key(text: &str) -> bool {
    text.len() > 40 && text.starts_with('M') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
}
