//! A scan of the memory for secrets: none may be left once endpoint and dispatcher are dropped.
//!
//! Each case runs in a separate process: this program again, with the case in an environment variable. It gets secrets in
//! the one place that the case tests, and masked copies to search for. The scan ignores the numbers that the TLS library
//! computes from a key: they live as long as the connection, and the library does not zero them.

#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
mod scan;

use std::any::Any;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::Server;
use headrace_core::endpoint::{Form, NoPassword, OptionValue, PasswordProvider, Provider, Secret};
use headrace_core::{Dispatcher, DispatcherOptions, Endpoint, IdArgument, NeverInterrupted};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use scan::{Scanner, masked, unmasked};
use zeroize::Zeroizing;

const CASE: &str = "HEADRACE_MEMORY_CASE";
const FOLDER: &str = "HEADRACE_MEMORY_FOLDER";
const PORTS: &str = "HEADRACE_MEMORY_PORTS";
const PASSWORD: &str = "HEADRACE_MEMORY_PASSWORD";

/// The cases, and whether the endpoint holds a secret while it lives.
const CASES: [(&str, bool); 12] = [
    ("password", true),
    ("password as bytes", true),
    ("user info of a URL", true),
    ("query of a URL", true),
    ("variable", false),
    ("file", false),
    ("provider", false),
    ("file, refused", false),
    ("TLS, key in a file", false),
    ("TLS, certificate and key in one file", false),
    ("TLS, key as text", true),
    ("TLS, key as bytes", true),
];

#[test]
fn no_secret_is_left_in_memory() {
    if let Some(case) = env::var_os(CASE) {
        let case = case.into_string().unwrap();
        return if case == "control" { control() } else { run(&case) };
    }
    // Long, so that a growing buffer leaves more of it behind than an allocator overwrites.
    let mut random = [0; 1000];
    getrandom::fill(&mut random).unwrap();
    let password: String = random.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    let folder = tempfile::tempdir().unwrap();
    let key = write_files(folder.path(), &password);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ca, certificate, server_key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let secret = ["--requirepass", &*password];
    let tls = ["--tls-ca-cert-file", &*ca, "--tls-cert-file", &*certificate, "--tls-key-file", &*server_key];
    let (Some(plain), Some(tls)) =
        (Server::start_tcp("--port", &secret), Server::start_tcp("--tls-port", &[&tls[..], &secret].concat()))
    else {
        return;
    };
    fs::write(folder.path().join("masked-password"), masked(password.as_bytes())).unwrap();
    fs::write(folder.path().join("masked-key"), masked(key.as_bytes())).unwrap();
    for case in CASES.map(|(case, _)| case).into_iter().chain(["control"]) {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "no_secret_is_left_in_memory", "--nocapture"]).env(CASE, case);
        child.env(FOLDER, folder.path()).env(PORTS, format!("{} {}", plain.port.unwrap(), tls.port.unwrap()));
        if case == "variable" {
            child.env(PASSWORD, &password);
        }
        let done = child.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{case}: {said}");
        assert!(said.contains(&format!("looked through memory: {case}")), "{case}: it did not run: {said}");
    }
}

/// Certificates for both ends, and the password in a file. Returns the text of the client's key.
fn write_files(folder: &Path, password: &str) -> String {
    let write = |name: &str, content: &str| fs::write(folder.join(name), content).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let key = KeyPair::generate().unwrap();
    write("ca.crt", &params.self_signed(&key).unwrap().pem());
    let ca = Issuer::new(params, key);
    let mut client_key = String::new();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap().pem();
        client_key = key.serialize_pem();
        write(&format!("{name}.crt"), &certificate);
        write(&format!("{name}.key"), &client_key);
        write(&format!("{name}.both"), &format!("{certificate}{client_key}"));
    }
    write("password", &format!("{password}\n"));
    client_key
}

/// Reads a file of the parent process into memory that is zeroed on drop.
fn read(name: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(fs::read(Path::new(&env::var_os(FOLDER).unwrap()).join(name)).unwrap())
}

/// The secrets to search for: the password, and the part of the key's PKCS #8 text that encodes only its private number,
/// which precedes the public one.
fn secrets() -> Vec<Vec<u8>> {
    let key = unmasked(&read("masked-key"));
    let lines: Vec<&[u8]> = key.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines[0], b"-----BEGIN PRIVATE KEY-----");
    vec![read("masked-password").to_vec(), masked(&lines[1][48..]), masked(&lines[2][..24])]
}

/// Checks that the scan finds a live secret, and one that was freed without being zeroed.
fn control() {
    let secrets = secrets();
    let scanner = Scanner::new(&secrets);
    assert_eq!(scanner.scan(), [""; 0]);
    for secret in &secrets {
        let plain = unmasked(secret);
        assert_eq!(scanner.scan().len(), 1);
        drop(plain);
        assert_eq!(scanner.scan(), [""; 0]);
    }
    drop(unmasked(&secrets[0]).to_vec());
    assert_eq!(scanner.scan().len(), 1, "a copy that was not zeroed");
    eprintln!("looked through memory: control");
}

fn run(case: &str) {
    let scanner = Scanner::new(&secrets());
    let mut dispatcher = Dispatcher::new(endpoint(case), DispatcherOptions::default()).unwrap();
    dispatcher.make_room(&mut NeverInterrupted).unwrap();
    dispatcher.produce(b"payload", IdArgument::None).unwrap();
    let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
    let expected = if case == "file, refused" { (0, 1) } else { (1, 0) };
    assert_eq!((report.delivered(), report.failed()), expected, "{:?}", report.failed_by_code());

    let (_, keeps) = CASES.iter().find(|(known, _)| *known == case).unwrap();
    assert_eq!(scanner.scan().is_empty(), !keeps, "while the endpoint lives: {:?}", scanner.scan());
    drop(dispatcher);
    assert_eq!(scanner.scan(), [""; 0], "after the drop");
    eprintln!("looked through memory: {case}");
}

/// The endpoint of a case. Secrets pass only through memory that is zeroed.
fn endpoint(case: &str) -> Endpoint {
    let password = || unmasked(&read("masked-password"));
    let text = |bytes: Zeroizing<Vec<u8>>| OptionValue::Text(as_text(bytes));
    let path = |name: &str| OptionValue::text(Path::new(&env::var_os(FOLDER).unwrap()).join(name).to_str().unwrap());
    let ports = env::var(PORTS).unwrap();
    let (plain, tls) = ports.split_once(' ').unwrap();
    let mut options = vec![("stream_key", OptionValue::text("s"))];
    let around = match case {
        "user info of a URL" => Some(("redis://:".to_owned(), format!("@127.0.0.1:{plain}/"))),
        "query of a URL" => Some((format!("redis://127.0.0.1:{plain}/?consumer_group=a+b&password="), String::new())),
        _ => None,
    };
    if let Some((before, behind)) = around {
        let mut url = Zeroizing::new(String::with_capacity(2000));
        url.push_str(&before);
        url.push_str(&as_text(password()));
        url.push_str(&behind);
        return Endpoint::from_url(&url, named(options)).unwrap();
    }
    options.push(("host", OptionValue::text("127.0.0.1")));
    let is_tls = case.starts_with("TLS");
    options.push(("port", OptionValue::Int((if is_tls { tls } else { plain }).parse().unwrap())));
    match case {
        "password" => options.push(("password", text(password()))),
        "password as bytes" => options.push(("password", OptionValue::Bytes(password()))),
        "variable" => options.push(("password_env", OptionValue::text(PASSWORD))),
        "provider" => options.push(("password", OptionValue::Provider(Provider::new(Masked)))),
        "file, refused" => options.push(("username", OptionValue::text("nobody"))),
        _ => {}
    }
    if is_tls || case.starts_with("file") {
        options.push(("password_file", path("password")));
    }
    if is_tls {
        let in_one = case == "TLS, certificate and key in one file";
        options.extend([("tls", OptionValue::Bool(true)), ("tls_ca_cert", path("ca.crt"))]);
        options.push(("tls_cert", path(if in_one { "client.both" } else { "client.crt" })));
        options.push(match case {
            "TLS, key as text" => ("tls_key", text(unmasked(&read("masked-key")))),
            "TLS, key as bytes" => ("tls_key", OptionValue::Bytes(unmasked(&read("masked-key")))),
            _ => ("tls_key", path(if in_one { "client.both" } else { "client.key" })),
        });
    }
    Endpoint::new(named(options), Form::Typed).unwrap()
}

fn named(options: Vec<(&str, OptionValue)>) -> Vec<(String, OptionValue)> {
    options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn as_text(mut bytes: Zeroizing<Vec<u8>>) -> Zeroizing<String> {
    Zeroizing::new(String::from_utf8(std::mem::take(&mut *bytes)).unwrap())
}

/// A provider that holds the password masked.
struct Masked;

impl PasswordProvider for Masked {
    fn ask(&self) -> Result<Secret, NoPassword> {
        Ok(Secret::new(std::mem::take(&mut *unmasked(&read("masked-password")))))
    }

    fn name(&self) -> &'static str {
        "masked"
    }

    fn equals(&self, _other: &dyn PasswordProvider) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
