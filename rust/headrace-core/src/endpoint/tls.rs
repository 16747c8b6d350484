//! TLS: its options, and the client configuration that is built from them at each connect.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use zeroize::Zeroizing;

use crate::error::{Error, Fault, Result, code};

use super::access_names::AccessNames;
use super::any_certificate::AnyCertificate;
use super::given::Given;
use super::option::quoted;
use super::pem::Pem;

/// The TLS options of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The names of the options, for messages.
    pub(super) names: &'static AccessNames,
    /// The only trusted root certificates; `None` means those of the system.
    pub ca_cert: Option<Pem>,
    /// The client's certificate chain and its private key.
    pub client: Option<(Pem, Pem)>,
    /// The name that the server's certificate must have, if it is not the host.
    pub server_name: Option<String>,
    /// Whether any certificate is accepted, for any name.
    pub skip_verify: bool,
}

impl Tls {
    /// Reads the options of `names`; `is_on` says whether TLS is used. Also returns whether any of them was given.
    pub(super) fn read(given: &mut Given, names: &'static AccessNames, is_on: bool) -> Result<(Option<Self>, bool)> {
        let ca_cert = Pem::read(given, names.tls_ca_cert)?;
        let cert = Pem::read(given, names.tls_cert)?;
        let key = Pem::read(given, names.tls_key)?;
        let server_name = given.text(names.tls_server_name)?;
        let skip_verify = names.tls_insecure_skip_verify.map(|name| given.boolean_or_default(name)).transpose()?;
        let skip_verify = skip_verify.unwrap_or(false);
        let present = [
            (names.tls_ca_cert, ca_cert.is_some()),
            (names.tls_cert, cert.is_some()),
            (names.tls_key, key.is_some()),
            (names.tls_server_name, server_name.is_some()),
            (names.tls_insecure_skip_verify.unwrap_or_default(), skip_verify),
        ];
        let first = present.iter().find(|(_, present)| *present);
        if !is_on {
            return match first {
                Some((name, _)) => {
                    let tls = names.tls;
                    let message =
                        format!("{name} needs {tls} to be true; without it everything would be sent in plain text");
                    Err(Error::config(*name, message))
                }
                None => Ok((None, false)),
            };
        }
        // An option that says what to check has no effect without checks.
        let checked = [(names.tls_ca_cert, ca_cert.is_some()), (names.tls_server_name, server_name.is_some())];
        if let Some((name, _)) = checked.iter().find(|(_, present)| skip_verify && *present) {
            let skip = names.tls_insecure_skip_verify.unwrap_or_default();
            let message = format!("{skip} and {name} are mutually exclusive: without checks {name} is not used");
            return Err(Error::config(skip, message));
        }
        let incomplete =
            |one: &str, other: &str| Err(Error::config(one, format!("{one} needs {other}: give both or neither")));
        let client = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return incomplete(names.tls_cert, names.tls_key),
            (None, Some(_)) => return incomplete(names.tls_key, names.tls_cert),
        };
        Ok((Some(Self { names, ca_cert, client, server_name, skip_verify }), first.is_some()))
    }

    /// Checks the files and the PEM that were given, so that a mistake is reported before a socket is opened.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(ca_cert) = &self.ca_cert {
            given_roots(ca_cert, self.names)?;
        }
        if let Some((cert, key)) = &self.client {
            certified_key(cert, key, self.names)?;
        }
        Ok(())
    }

    /// Checks that a certificate can contain the name that is required of the server.
    pub(super) fn check_server_name(&self, host: &str) -> Result<()> {
        let (option, name) =
            self.server_name.as_deref().map_or(("host", host), |name| (self.names.tls_server_name, name));
        ServerName::try_from(name).map(drop).map_err(|_| {
            let message = format!("{option} must be a DNS name or an IP address for TLS, got {}", quoted(name));
            Error::config(option, message)
        })
    }
}

/// The configuration of a TLS client, from the files as they are now. TLS 1.2 and later.
pub(crate) fn client_config(tls: &Tls) -> std::result::Result<ClientConfig, Fault> {
    config(tls).map_err(|error| Fault::new(code::CONFIG, error.to_string()))
}

fn config(tls: &Tls) -> Result<ClientConfig> {
    // The process's default provider belongs to another library, and may not exist.
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(tls.names.tls, format!("{}: {error}", tls.names.tls)))?;
    let builder = match &tls.ca_cert {
        _ if tls.skip_verify => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
        }
        Some(ca_cert) => builder.with_root_certificates(given_roots(ca_cert, tls.names)?),
        None => builder.with_root_certificates(system_roots(tls.names)?),
    };
    match &tls.client {
        Some((cert, key)) => {
            let pair = certified_key(cert, key, tls.names)?;
            Ok(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))))
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

fn given_roots(ca_cert: &Pem, names: &AccessNames) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in ca_cert.certificates(names.tls_ca_cert)? {
        roots.add(certificate).map_err(|error| {
            ca_cert.refuse(names.tls_ca_cert, &format!("holds a certificate that is not valid: {error}"))
        })?;
    }
    Ok(roots)
}

fn system_roots(names: &AccessNames) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Systems ship a few root certificates that webpki cannot read; the others are enough.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let name = names.tls_ca_cert;
        return Err(Error::config(name, format!("{name} is not given, and this system has no root certificates")));
    }
    Ok(roots)
}

/// The client's certificate and key in the form that rustls uses; refuses a pair that does not match.
fn certified_key(cert: &Pem, key: &Pem, names: &AccessNames) -> Result<CertifiedKey> {
    let refuse = |why: &str| {
        let message = format!("{} ({}) and {} ({}) {why}", names.tls_cert, cert.shown(), names.tls_key, key.shown());
        Error::config(names.tls_key, message)
    };
    let chain = cert.certificates(names.tls_cert)?;
    let der = Zeroizing::new(key.private_key(names.tls_key)?);
    // By reference: `with_client_auth_cert` would drop a copy of the key that is not zeroed.
    let signing_key = ring::sign::any_supported_type(&der)
        .map_err(|_| key.refuse(names.tls_key, "holds no private key of a supported kind (RSA, ECDSA, Ed25519)"))?;
    let pair = CertifiedKey::new(chain, signing_key);
    match pair.keys_match() {
        // This kind of key cannot reveal its public half, so the handshake checks it.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => Err(refuse("do not match")),
        Err(error) => Err(refuse(&format!("cannot be used: {error}"))),
    }
}
