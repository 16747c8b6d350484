//! TLS material: where it comes from, and the client configuration it makes.
//!
//! The files are read at every connect, so that a renewed certificate needs no restart. Their content is in no message.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, ServerName,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use zeroize::Zeroizing;

use crate::error::{Error, Fault, Result, code};
use crate::secret::Secret;

use super::any_certificate::AnyCertificate;
use super::given::Given;
use super::option::{OptionValue, quoted};
use super::pem_text::sections;

/// More than any bundle of certificates has.
const MAX_PEM_BYTES: u64 = 16 * 1024 * 1024;

/// Private keys of PKCS #1, of SEC 1 (RFC 5915) and of PKCS #8 (RFC 5958), none of them encrypted.
const KEY_LABELS: [&[u8]; 3] = [b"RSA PRIVATE KEY", b"EC PRIVATE KEY", b"PRIVATE KEY"];

/// The TLS options of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The only roots that are trusted; the system's when there are none.
    pub ca_cert: Option<Pem>,
    /// The client's certificate chain and its private key.
    pub client: Option<(Pem, Pem)>,
    /// The name that the server's certificate must have, where it is not the host.
    pub server_name: Option<String>,
    /// Whether any certificate will do, for whatever name.
    pub skip_verify: bool,
}

/// PEM: in a file that is read at each connect, or given itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pem {
    /// The file's path.
    Path(PathBuf),
    /// The PEM.
    Bytes(Secret),
}

impl Pem {
    /// The option `name`, if it was given. Text is a path, unless it can only be PEM.
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

    /// For a message: the path, or that there is none.
    fn shown(&self) -> String {
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
        // Of full size at once: a vector that grows leaves copies of a key behind.
        let size = file.metadata().map_err(unreadable)?.len().min(MAX_PEM_BYTES);
        let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
        file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_PEM_BYTES {
            return Err(self.refuse(name, &format!("is longer than {MAX_PEM_BYTES} bytes")));
        }
        Ok(bytes)
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>> {
        let pem = self.load(name)?;
        // A key in the same file is not even decoded.
        let found = sections(&pem, |label| label == b"CERTIFICATE").map_err(|why| self.refuse(name, why))?;
        if found.is_empty() {
            return Err(self.refuse(name, "holds no certificate"));
        }
        Ok(found.into_iter().map(|mut section| CertificateDer::from(std::mem::take(&mut *section.der))).collect())
    }

    fn private_key(&self, name: &str) -> Result<PrivateKeyDer<'static>> {
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

    fn refuse(&self, name: &str, why: &str) -> Error {
        Error::config(name, format!("{name}: {} {why}", self.shown()))
    }
}

/// Whether text is the inside of a PEM rather than a path: base64 of DER, which always begins with `M`.
fn is_bare_key(text: &str) -> bool {
    text.len() > 40 && text.starts_with('M') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
}

impl Tls {
    /// Checks the files and PEM that were given, so that a mistake shows before a socket is opened.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(ca_cert) = &self.ca_cert {
            given_roots(ca_cert)?;
        }
        if let Some((cert, key)) = &self.client {
            certified_key(cert, key)?;
        }
        Ok(())
    }

    /// Checks that a certificate can have the name that is asked of the server.
    pub(super) fn check_server_name(&self, host: &str) -> Result<()> {
        let (option, name) = self.server_name.as_deref().map_or(("host", host), |name| ("tls_server_name", name));
        ServerName::try_from(name).map(drop).map_err(|_| {
            let message = format!("{option} must be a DNS name or an IP address for TLS, got {}", quoted(name));
            Error::config(option, message)
        })
    }
}

/// The configuration of a TLS client, from files as they are now. TLS 1.2 and later.
pub(crate) fn client_config(tls: &Tls) -> std::result::Result<ClientConfig, Fault> {
    config(tls).map_err(|error| Fault::new(code::CONFIG, error.to_string()))
}

fn config(tls: &Tls) -> Result<ClientConfig> {
    // The process's default provider is another library's business, and may be none at all.
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config("tls", format!("tls: {error}")))?;
    let builder = match &tls.ca_cert {
        _ if tls.skip_verify => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
        }
        Some(ca_cert) => builder.with_root_certificates(given_roots(ca_cert)?),
        None => builder.with_root_certificates(system_roots()?),
    };
    match &tls.client {
        Some((cert, key)) => {
            let pair = certified_key(cert, key)?;
            Ok(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))))
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

fn given_roots(ca_cert: &Pem) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in ca_cert.certificates("tls_ca_cert")? {
        roots.add(certificate).map_err(|error| {
            ca_cert.refuse("tls_ca_cert", &format!("holds a certificate that is not valid: {error}"))
        })?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Systems ship a few roots that webpki cannot read; the others are enough.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(Error::config("tls_ca_cert", "tls_ca_cert is not given, and this system has no root certificates"));
    }
    Ok(roots)
}

/// The client's certificate and key as rustls uses them; refuses a pair that does not belong together.
fn certified_key(cert: &Pem, key: &Pem) -> Result<CertifiedKey> {
    let refuse = |why: &str| {
        let message = format!("tls_cert ({}) and tls_key ({}) {why}", cert.shown(), key.shown());
        Error::config("tls_key", message)
    };
    let chain = cert.certificates("tls_cert")?;
    let der = Zeroizing::new(key.private_key("tls_key")?);
    // By reference: `with_client_auth_cert` would drop a copy of the key that is not zeroed.
    let signing_key = ring::sign::any_supported_type(&der)
        .map_err(|_| key.refuse("tls_key", "holds no private key of a kind in use (RSA, ECDSA, Ed25519)"))?;
    let pair = CertifiedKey::new(chain, signing_key);
    match pair.keys_match() {
        // This kind of key cannot show its public half, so the handshake checks it.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => Err(refuse("do not belong together")),
        Err(error) => Err(refuse(&format!("cannot be used: {error}"))),
    }
}
