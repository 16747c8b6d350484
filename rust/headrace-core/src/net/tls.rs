//! TLS over a non-blocking socket: rustls handles the records, this file moves them and describes failures.

use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, ProtocolVersion};
use socket2::Socket;

use super::deadline::{ConnectError, Deadline};
use super::socket::{self, Readiness, Wire, end_of_stream, io_fault, is_not_ready};
use crate::endpoint::{Address, Tls};
use crate::error::{Fault, code};

/// The maximum number of bytes that rustls holds when the socket does not accept them: two of the pipeline's 64 KiB chunks.
const BUFFER_LIMIT: usize = 128 * 1024;

/// The name that the server's certificate must contain: the option, or the host. An IP address must be in it as an address.
pub(super) fn server_name(tls: &Tls, address: &Address) -> Result<ServerName<'static>, Fault> {
    let host = match (&tls.server_name, address) {
        (Some(name), _) => name,
        (None, Address::Tcp { host, .. }) => host,
        (None, Address::Unix(_)) => "localhost",
    };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned())
        .map_err(|_| Fault::new(code::TLS, format!("this server name is not valid in a certificate: {bare}")))
}

pub(super) struct TlsStream {
    socket: Socket,
    session: ClientConnection,
    /// The number of decrypted bytes not read yet. The socket itself does not show them as readable.
    unread: usize,
    /// The failure of the reading side; returned after the bytes that were decrypted before it.
    read_fault: Option<Fault>,
}

impl TlsStream {
    pub(super) fn new(socket: Socket, config: ClientConfig, name: ServerName<'static>) -> Result<Self, Fault> {
        let mut session = ClientConnection::new(Arc::new(config), name).map_err(|error| tls_fault(&error, true))?;
        session.set_buffer_limit(Some(BUFFER_LIMIT));
        Ok(Self { socket, session, unread: 0, read_fault: None })
    }

    /// Performs the TLS handshake. With TLS 1.3 the handshake succeeds even if the server refuses the client's certificate, which
    /// shows only at the first read.
    pub(super) async fn handshake(&mut self, patience: &mut Deadline<'_>) -> Result<(), ConnectError> {
        while self.session.is_handshaking() {
            // A server that refuses sends its alert before it closes: the alert is more informative than the failed write.
            let written = self.push();
            if !self.pull()? {
                written?;
                let writable = self.session.wants_write();
                patience.wait_for(&self.socket, writable).await?;
            }
        }
        self.push()?;
        Ok(())
    }

    /// The version and the cipher, once they have been negotiated.
    pub(super) fn session(&self) -> Option<String> {
        let version = match self.session.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLS 1.2".to_owned(),
            ProtocolVersion::TLSv1_3 => "TLS 1.3".to_owned(),
            other => format!("{other:?}"),
        };
        let cipher = self.session.negotiated_cipher_suite()?.suite();
        Some(format!("{version} {cipher:?}"))
    }

    /// The server's own certificate, as DER.
    pub(super) fn certificate(&self) -> Option<&[u8]> {
        self.session.peer_certificates()?.first().map(AsRef::as_ref)
    }

    pub(super) fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.session.reader().read(buf) {
                Ok(0) => return Err(end_of_stream()),
                Ok(read) => {
                    self.unread = self.unread.saturating_sub(read);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(io_fault(&error)),
            }
            if let Some(fault) = &self.read_fault {
                return Err(fault.clone());
            }
            match self.pull() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(fault) => self.read_fault = Some(fault),
            }
        }
    }

    /// Passes as much of `bytes` to rustls as fits into its buffer, and the records on to the socket.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.send_vectored(&[IoSlice::new(bytes)])
    }

    /// Like [`send`](Self::send), for the bytes of several slices, in order.
    pub(super) fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Fault> {
        self.push()?;
        let taken = self.session.writer().write_vectored(slices).map_err(|error| io_fault(&error))?;
        // The bytes count as sent even if this write fails, since some may reach the server. The rest stays in rustls'
        // buffer, so the next call gets the failure again.
        let _ = self.push();
        Ok(taken)
    }

    pub(super) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Writes as many TLS records as the socket accepts.
    pub(super) fn push(&mut self) -> Result<usize, Fault> {
        let mut pushed = 0;
        while self.session.wants_write() {
            match self.session.write_tls(&mut Wire(&self.socket)) {
                Ok(0) => break,
                Ok(count) => pushed += count,
                Err(error) if is_not_ready(&error) => break,
                Err(error) => return Err(io_fault(&error)),
            }
        }
        Ok(pushed)
    }

    /// Reads once from the socket and decrypts; false if no bytes were available.
    fn pull(&mut self) -> Result<bool, Fault> {
        match self.session.read_tls(&mut Wire(&self.socket)) {
            Ok(0) => return Err(end_of_stream()),
            Ok(_) => {}
            Err(error) if is_not_ready(&error) => return Ok(false),
            Err(error) => return Err(io_fault(&error)),
        }
        let handshaking = self.session.is_handshaking();
        match self.session.process_new_packets() {
            Ok(state) => {
                self.unread = state.plaintext_bytes_to_read();
                Ok(true)
            }
            Err(error) => {
                let _ = self.push(); // the alert that tells the server why
                Err(tls_fault(&error, handshaking))
            }
        }
    }

    /// Whether bytes or a failure from earlier records can be received.
    pub(super) fn has_bytes(&self) -> bool {
        self.unread > 0 || self.read_fault.is_some()
    }

    pub(super) fn wait(&self, writable: bool, timeout: Duration) -> Readiness {
        let readable = self.has_bytes();
        let timeout = if readable { Duration::ZERO } else { timeout };
        let ready = socket::poll(&self.socket, writable, timeout);
        Readiness { readable: ready.readable || readable, ..ready }
    }

    /// Sends `close_notify` if the socket accepts it without waiting.
    pub(super) fn goodbye(&mut self) {
        self.session.send_close_notify();
        let _ = self.push();
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Faults that waiting cannot fix (trust, name, time, client certificate, version, a handshake that violates the protocol)
/// have the code `TLS`; a peer that does not speak TLS is `PROTOCOL`; a failure in an established session is `RESET`.
fn tls_fault(error: &rustls::Error, handshaking: bool) -> Fault {
    match error {
        rustls::Error::InvalidCertificate(error) => Fault::new(code::TLS, certificate_fault(error)),
        rustls::Error::NoCertificatesPresented => Fault::new(code::TLS, "the server presented no certificate"),
        rustls::Error::PeerIncompatible(why) => Fault::new(
            code::TLS,
            format!("the server offers no TLS version or cipher that is accepted (TLS 1.2+): {why:?}"),
        ),
        rustls::Error::AlertReceived(alert) => alert_fault(*alert),
        rustls::Error::InvalidMessage(_) | rustls::Error::PeerSentOversizedRecord => {
            Fault::new(code::PROTOCOL, "what the server sent is not TLS: does it speak TLS on this port?")
        }
        // Includes a downgrade by someone in the middle, which the server can indicate by RFC 8446, 4.1.3.
        rustls::Error::PeerMisbehaved(how) if handshaking => {
            Fault::new(code::TLS, format!("the server, or something in between, violated the TLS protocol: {how:?}"))
        }
        rustls::Error::InappropriateMessage { .. }
        | rustls::Error::InappropriateHandshakeMessage { .. }
        | rustls::Error::PeerMisbehaved(_) => {
            Fault::new(code::PROTOCOL, format!("the server violated the TLS protocol: {error}"))
        }
        rustls::Error::DecryptError => Fault::new(code::RESET, "the TLS session broke: a record cannot be decrypted"),
        // Not worth listing in full: the others (keys, names, revocation lists) concern the configuration.
        _ => Fault::new(code::TLS, format!("TLS failed: {error}")),
    }
}

fn certificate_fault(error: &CertificateError) -> String {
    let at = |time: &UnixTime| {
        let moment = i64::try_from(time.as_secs()).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        moment.map_or_else(|| time.as_secs().to_string(), |moment| moment.format("%Y-%m-%dT%H:%M:%SZ").to_string())
    };
    match error {
        CertificateError::UnknownIssuer => "the server's certificate is from an unknown CA".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let held = presented.iter().map(|name| shown_name(name)).collect::<Vec<_>>().join(", ");
            let held = if held.is_empty() { "no subject alternative names" } else { &held };
            format!("the server's certificate is not for {:?}: it holds {held}", expected.to_str())
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the server's certificate expired at {}", at(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the server's certificate is not valid before {}", at(not_before))
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the server's certificate is not one for servers (extended key usage)".to_owned()
        }
        CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "the signature made with the server's certificate, or a CA's signature in it, does not verify".to_owned()
        }
        // The verifier has no variant of its own for this error.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "the server's certificate is that of a CA, not one that a CA issued to a server".to_owned()
        }
        CertificateError::Revoked => "the server's certificate was revoked".to_owned(),
        other => format!("the server's certificate is refused: {other}"),
    }
}

/// Extracts `localhost` from `DnsName("localhost")`, the form in which rustls reports names.
fn shown_name(name: &str) -> String {
    let (kind, rest) = name.split_once('(').unwrap_or(("", name));
    let bare = rest.trim_end_matches(')').trim_matches('"');
    // An IP address given as a DNS name does not count, but looks as if it did.
    let misplaced = kind == "DnsName" && bare.parse::<IpAddr>().is_ok();
    if misplaced { format!("the DNS name {bare}") } else { bare.to_owned() }
}

fn alert_fault(alert: AlertDescription) -> Fault {
    let (code, said) = match alert {
        AlertDescription::CertificateRequired => (code::TLS, "it requires a client certificate"),
        AlertDescription::UnknownCA => (code::TLS, "it does not know the CA of the client certificate"),
        AlertDescription::CertificateExpired => (code::TLS, "the client certificate has expired"),
        AlertDescription::CertificateRevoked => (code::TLS, "the client certificate was revoked"),
        AlertDescription::BadCertificate
        | AlertDescription::NoCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError => (code::TLS, "it refused the client certificate"),
        AlertDescription::AccessDenied => (code::TLS, "access denied"),
        AlertDescription::ProtocolVersion => (code::TLS, "no common protocol version (TLS 1.2 and 1.3 are offered)"),
        // Before TLS 1.3, servers have no specific alert for a missing client certificate (RFC 5246, 7.2.2).
        AlertDescription::HandshakeFailure => {
            (code::TLS, "handshake failure (no common cipher, or no client certificate)")
        }
        AlertDescription::InsufficientSecurity => (code::TLS, "insufficient security"),
        AlertDescription::UnrecognisedName => (code::TLS, "it does not know the server name: see tls_server_name"),
        other => return Fault::new(code::RESET, format!("the server ended the TLS session: {other:?}")),
    };
    Fault::new(code, format!("the server refused TLS: {said}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustls::{OtherError, PeerMisbehaved};

    use super::*;

    fn certificate(error: CertificateError) -> Fault {
        tls_fault(&rustls::Error::InvalidCertificate(error), true)
    }

    #[test]
    fn certificate_errors_name_their_cause() {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
        let past = UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000));
        for (error, words) in [
            (CertificateError::UnknownIssuer, "unknown CA"),
            (CertificateError::ExpiredContext { time, not_after: past }, "expired at 2023-11-14T22:13:20Z"),
            (
                CertificateError::NotValidYetContext { time: past, not_before: time },
                "not valid before 2027-01-15T08:00:00Z",
            ),
            (
                CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("db1").unwrap(),
                    presented: ["DnsName(\"a\")", "IpAddress(127.0.0.1)", "DnsName(\"127.0.0.2\")"]
                        .map(str::to_owned)
                        .to_vec(),
                },
                "not for \"db1\": it holds a, 127.0.0.1, the DNS name 127.0.0.2",
            ),
            (CertificateError::Other(OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity")))), "is that of a CA"),
            (CertificateError::BadSignature, "does not verify"),
        ] {
            let fault = certificate(error);
            assert_eq!(fault.code, code::TLS);
            assert!(fault.message.contains(words), "{}", fault.message);
        }
    }

    #[test]
    fn alerts_about_trust_are_tls_faults_and_other_alerts_are_resets() {
        let alert = |alert| tls_fault(&rustls::Error::AlertReceived(alert), true);
        let required = alert(AlertDescription::CertificateRequired);
        assert_eq!(required.code, code::TLS);
        assert!(required.message.contains("client certificate"), "{}", required.message);
        assert_eq!(alert(AlertDescription::ProtocolVersion).code, code::TLS);
        assert_eq!(alert(AlertDescription::InternalError).code, code::RESET);
        assert_eq!(tls_fault(&rustls::Error::DecryptError, false).code, code::RESET);
        let downgrade = PeerMisbehaved::AttemptedDowngradeToTls12WhenTls13IsSupported;
        let downgrade = rustls::Error::PeerMisbehaved(downgrade);
        assert_eq!(tls_fault(&downgrade, true).code, code::TLS);
        assert_eq!(tls_fault(&downgrade, false).code, code::PROTOCOL);
    }
}
