//! TLS: trust, names, client certificates, and bytes through a session.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use socket2::Socket;
use tempfile::TempDir;

use super::try_connect;
use crate::error::{Classifier, Fault, Kind, code};
use crate::net::Transport;
use crate::server_of_tests::{Server, tcp_endpoint};

const LONG: Duration = Duration::from_secs(10);

/// Certificates in files: two authorities (`ca` and `other`), and the certificates that they signed.
struct Pki(TempDir);

impl Pki {
    fn new() -> Self {
        let pki = Self(tempfile::tempdir().unwrap());
        let ca = pki.authority("ca");
        let other = pki.authority("other");
        let names = ["localhost", "127.0.0.1"];
        pki.sign("server", &names, &ca, |_| {});
        pki.sign("by-name", &["localhost"], &ca, |_| {});
        pki.sign("expired", &names, &ca, |params| params.not_after = date_time_ymd(2020, 2, 3));
        pki.sign("future", &names, &ca, |params| params.not_before = date_time_ymd(3000, 2, 3));
        pki.sign("client", &["client"], &ca, |_| {});
        pki.sign("stranger", &["stranger"], &other, |_| {});
        pki
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        fs::write(self.file(&format!("{name}.crt")), params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    }

    fn sign(&self, name: &str, names: &[&str], by: &Issuer<'_, KeyPair>, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        fs::write(self.file(&format!("{name}.crt")), params.signed_by(&key, by).unwrap().pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn file(&self, name: &str) -> String {
        let path: &Path = self.0.path();
        path.join(name).to_str().unwrap().to_owned()
    }

    /// A server that presents the certificate `name`, and may or may not ask for the client's.
    fn serve(&self, name: &str, more: &[&str]) -> Option<Server> {
        let (ca, certificate, key) =
            (self.file("ca.crt"), self.file(&format!("{name}.crt")), self.file(&format!("{name}.key")));
        let mut options = vec!["--tls-ca-cert-file", &*ca, "--tls-cert-file", &*certificate, "--tls-key-file", &*key];
        if !more.contains(&"--tls-auth-clients") {
            options.extend(["--tls-auth-clients", "no"]);
        }
        options.extend(more);
        Server::start_tcp("--tls-port", &options)
    }

    fn connect(&self, port: u16, options: &[(&str, &str)]) -> Result<Transport, Fault> {
        let ca = self.file("ca.crt");
        let mut all = vec![("tls", "true")];
        if !options.iter().any(|(name, _)| *name == "tls_ca_cert") {
            all.push(("tls_ca_cert", &ca));
        }
        all.extend(options);
        try_connect(&tcp_endpoint(port, &all))
    }

    fn refused(&self, server: &Server, options: &[(&str, &str)], words: &str) {
        let fault = self.connect(server.port.unwrap(), options).unwrap_err();
        assert_eq!(fault.code, code::TLS, "{}", fault.message);
        assert!(fault.message.starts_with("cannot connect to 127.0.0.1:"), "{}", fault.message);
        assert!(fault.message.contains(words), "{}", fault.message);
        assert_eq!(Classifier::default().kind(&fault), Kind::Permanent);
    }
}

/// Sends all of `bytes` and returns the number of calls that found the buffer full.
fn send_all(transport: &mut Transport, mut bytes: &[u8]) -> usize {
    let mut full = 0;
    while !bytes.is_empty() || transport.wants_write() {
        transport.push().unwrap();
        let taken = transport.send(bytes).unwrap();
        bytes = &bytes[taken..];
        if taken == 0 {
            full += 1;
            assert!(transport.wait(true, LONG).writable);
        }
    }
    full
}

/// Receives `length` bytes, `step` at a time.
fn receive(transport: &mut Transport, length: usize, step: usize) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buf = vec![0; step];
    while received.len() < length {
        assert!(transport.wait(false, LONG).readable, "got {} of {length} bytes", received.len());
        let count = transport.receive(&mut buf).unwrap();
        received.extend_from_slice(&buf[..count]);
    }
    received
}

#[test]
fn a_trusted_server_is_reached_by_name_and_by_address() {
    let pki = Pki::new();
    let Some(server) = pki.serve("server", &["--requirepass", "pw"]) else { return };
    for options in [&[][..], &[("host", "localhost")], &[("tls_server_name", "localhost")]] {
        let mut transport = pki.connect(server.port.unwrap(), &[options, &[("password", "pw")]].concat()).unwrap();
        send_all(&mut transport, b"PING\r\n");
        assert_eq!(receive(&mut transport, 7, 64), b"+PONG\r\n");
        transport.close();
    }
    let fault = pki.connect(server.port.unwrap(), &[("password", "wrong")]).unwrap_err();
    assert_eq!((&*fault.code, fault.in_auth), ("WRONGPASS", true));
}

#[test]
fn an_untrusted_server_is_refused_with_the_reason() {
    let pki = Pki::new();
    let Some(server) = pki.serve("server", &[]) else { return };
    pki.refused(&server, &[("tls_ca_cert", &pki.file("other.crt"))], "unknown CA");
    pki.refused(&server, &[("tls_server_name", "db.example")], "is not for \"db.example\": it holds");
    for (certificate, words) in [
        ("by-name", "is not for \"127.0.0.1\""),
        ("expired", "expired at 2020-02-03T00:00:00Z"),
        ("future", "not valid before 3000-02-03T00:00:00Z"),
    ] {
        pki.refused(&pki.serve(certificate, &[]).unwrap(), &[], words);
    }
}

#[test]
fn a_client_certificate_is_required_and_verified() {
    let pki = Pki::new();
    for version in ["TLSv1.3", "TLSv1.2"] {
        let Some(server) = pki.serve("server", &["--tls-auth-clients", "yes", "--tls-protocols", version]) else {
            return;
        };
        pki.refused(&server, &[], "client certificate");
        let (certificate, key) = (pki.file("stranger.crt"), pki.file("stranger.key"));
        pki.refused(&server, &[("tls_cert", &certificate), ("tls_key", &key)], "CA of the client certificate");
        let (certificate, key) = (pki.file("client.crt"), pki.file("client.key"));
        let known = [("tls_cert", &*certificate), ("tls_key", &*key)];
        assert!(pki.connect(server.port.unwrap(), &known).is_ok(), "{version}");
    }
}

#[test]
fn a_peer_without_tls_is_distinguished_from_an_untrusted_one() {
    let pki = Pki::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();

    let started = Instant::now();
    let fault = pki.connect(port, &[("connect_timeout", "0.2")]).unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(300));
    assert_eq!(fault.code, code::TIMEOUT);
    assert!(fault.message.contains("in the TLS handshake; a server that does not speak TLS"), "{}", fault.message);
    drop(listener.accept().unwrap());

    let peer = thread::spawn(move || {
        for reply in [Some(&b"-ERR Protocol error: too big inline request\r\n"[..]), Some(b""), None] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buf = [0; 4096];
            if let Some(reply) = reply {
                assert!(stream.read(&mut buf).unwrap() > 0);
                stream.write_all(reply).unwrap();
                // The client may have reset the connection already.
                let _ = stream.shutdown(Shutdown::Write);
                while stream.read(&mut buf).is_ok_and(|read| read > 0) {}
            } else {
                assert!(stream.read(&mut buf).unwrap() > 0);
                Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    });
    for (expected, words) in [
        (code::PROTOCOL, "is not TLS"),
        (code::EOF, "closed the connection in the TLS handshake"),
        (code::RESET, "reset by the server in the TLS handshake"),
    ] {
        let fault = pki.connect(port, &[]).unwrap_err();
        assert_eq!(fault.code, expected, "{}", fault.message);
        assert!(fault.message.contains(words), "{}", fault.message);
        assert_eq!(Classifier::default().kind(&fault), Kind::Retryable);
    }
    peer.join().unwrap();
}

#[test]
fn a_plain_client_on_a_tls_port_gets_a_hint() {
    let pki = Pki::new();
    let Some(server) = pki.serve("server", &[]) else { return };
    let fault = try_connect(&tcp_endpoint(server.port.unwrap(), &[])).unwrap_err();
    assert!([code::EOF, code::RESET, code::PROTOCOL].contains(&&*fault.code), "{fault:?}");
    assert!(fault.message.contains("TLS"), "{}", fault.message);
}

#[test]
fn more_bytes_than_the_buffer_holds_are_sent_in_parts() {
    let pki = Pki::new();
    let Some(server) = pki.serve("server", &[]) else { return };
    let mut transport = pki.connect(server.port.unwrap(), &[]).unwrap();
    let payload = vec![b'x'; 8 << 20];
    let mut command =
        format!("*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n${}\r\n", payload.len()).into_bytes();
    command.extend_from_slice(&payload);
    command.extend_from_slice(b"\r\n");
    assert!(transport.send(&command[..1]).unwrap() == 1);
    let taken = transport.send(&command[1..]).unwrap();
    assert!(taken <= 128 << 10, "rustls took {taken} bytes");
    send_all(&mut transport, &command[1 + taken..]);
    assert_eq!(receive(&mut transport, 1, 64)[0], b'$');
}

#[test]
fn decrypted_bytes_count_as_readable_although_the_socket_is_empty() {
    let pki = Pki::new();
    let Some(server) = pki.serve("server", &[]) else { return };
    let mut transport = pki.connect(server.port.unwrap(), &[]).unwrap();
    send_all(&mut transport, &b"PING\r\n".repeat(200));
    assert_eq!(receive(&mut transport, 1400, 5), b"+PONG\r\n".repeat(200));
    assert!(!transport.wait(false, Duration::from_millis(10)).readable);
}

#[test]
fn the_end_of_a_session_is_noticed_while_reading_and_while_writing() {
    let pki = Pki::new();
    let Some(mut server) = pki.serve("server", &[]) else { return };
    let mut transport = pki.connect(server.port.unwrap(), &[]).unwrap();
    let mut writing = pki.connect(server.port.unwrap(), &[]).unwrap();
    server.kill();
    assert!(transport.wait(false, LONG).readable);
    assert_eq!(transport.receive(&mut [0; 16]).unwrap_err().code, code::EOF);
    transport.abort();

    assert!(writing.wait(false, LONG).readable);
    // Bytes that rustls accepted before the write failed count as sent; the next call returns the error.
    let failed = (0..3).find_map(|_| {
        let failed = writing.send(b"PING\r\n").err();
        thread::sleep(Duration::from_millis(20));
        failed
    });
    assert_eq!(failed.unwrap().code, code::RESET);
    assert!(writing.wants_write() && writing.wait(true, LONG).writable, "a failed write is not waited for");
    assert_eq!(writing.push().unwrap_err().code, code::RESET);
}
