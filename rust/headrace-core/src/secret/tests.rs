//! Tests `Debug` and `Display` of every type that may hold or handle a secret: panics, failed assertions and logs show them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::any::Any;
use std::collections::BTreeSet;
use std::env;
use std::fmt::{Debug, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::endpoint::{Form, NoPassword, OPTIONS, OptionValue, PasswordProvider, Provider};
use crate::error::{Classifier, Failure, Fault, Written, code};
use crate::net::tests::try_connect;
use crate::report::OutcomeRouter;
use crate::secret::Secret;
use crate::server_of_tests::{Server, endpoint};
use crate::{
    Dispatcher, DispatcherOptions, Endpoint, Error, IdArgument, LoopDispatcher, NeverInterrupted, RoutedDispatcher,
    SharedDispatcher, TaskDispatcher,
};

const CANARY: &str = "canary-hunter2";

/// The names of types, and the texts of their values that contain secrets.
#[derive(Default)]
struct Shown(Vec<(&'static str, String)>);

impl Shown {
    fn debug(&mut self, name: &'static str, value: &dyn Debug) {
        self.0.extend([(name, format!("{value:?}")), (name, format!("{value:#?}"))]);
    }

    fn display(&mut self, name: &'static str, value: &dyn Display) {
        self.0.push((name, value.to_string()));
    }
}

struct Vault;

impl PasswordProvider for Vault {
    fn ask(&self) -> Result<Secret, NoPassword> {
        Ok(Secret::new(CANARY.as_bytes().to_vec()))
    }

    fn name(&self) -> &'static str {
        "vault"
    }

    fn equals(&self, other: &dyn PasswordProvider) -> bool {
        other.as_any().is::<Self>()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Endpoints with the secret in each place that accepts it.
fn endpoints(folder: &Path) -> Vec<(&'static str, Endpoint)> {
    let file = folder.join("password");
    fs::write(&file, CANARY).unwrap();
    let pem = format!("-----BEGIN CERTIFICATE-----\n{CANARY}");
    let with = |options: Vec<(&str, OptionValue)>| {
        let all = [("host", OptionValue::text("h")), ("stream_key", OptionValue::text("s"))].into_iter().chain(options);
        // Not checked, as for an endpoint from another process: the PEM can have any content.
        Endpoint::restore(all.map(|(name, value)| (name.to_owned(), value)), []).unwrap()
    };
    let tls = |pem: fn(&str) -> OptionValue, text: &str| {
        with(vec![
            ("tls", OptionValue::Bool(true)),
            ("tls_ca_cert", pem(text)),
            ("tls_cert", pem(text)),
            ("tls_key", pem(text)),
        ])
    };
    let url = |url: String| Endpoint::from_url(&url, []).unwrap();
    vec![
        ("text", with(vec![("username", OptionValue::text("u")), ("password", OptionValue::text(CANARY))])),
        ("bytes", with(vec![("password", OptionValue::bytes(CANARY.as_bytes()))])),
        ("provider", with(vec![("password", OptionValue::Provider(Provider::new(Vault)))])),
        ("file", with(vec![("password_file", OptionValue::text(file.to_str().unwrap()))])),
        ("variable", with(vec![("password_env", OptionValue::text("HEADRACE_TEST_CANARY"))])),
        ("user info of a URL", url(format!("redis://u:{CANARY}@h/?stream_key=s"))),
        ("query of a URL", url(format!("redis://h/?stream_key=s&password={CANARY}"))),
        ("of sentinels", {
            let at = url(format!("redis+sentinel://u:{CANARY}@s1/m?stream_key=s&sentinel_password={CANARY}"));
            Endpoint::restore(pairs(&at), []).unwrap()
        }),
        ("PEM as text", tls(OptionValue::text, &pem)),
        ("PEM as bytes", tls(|pem| OptionValue::bytes(pem.as_bytes()), &pem)),
    ]
}

#[test]
fn no_type_shows_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let mut shown = Shown::default();
    for (_, endpoint) in endpoints(folder.path()) {
        shown.debug("Endpoint", &endpoint);
        shown.display("Endpoint", &endpoint);
        shown.debug("OptionValue", &endpoint.options());
        shown.debug("Tls", &endpoint.tls());
        shown.debug("Access", endpoint.access());
        shown.debug("Sentinels", &endpoint.sentinels());
        shown.debug("NodeMap", &endpoint.node_map());
        if let Some(tls) = endpoint.tls() {
            shown.debug("Pem", &tls.client);
            shown.debug("Pem", &tls.ca_cert);
        }
        let settings = endpoint.settings().unwrap();
        shown.debug("Settings", &settings);
        shown.debug("Address", &endpoint.address(&settings));
        match endpoint.password() {
            Ok(secret) => shown.debug("Secret", &secret),
            Err(reason) => shown.debug("NoPassword", &reason),
        }
        shown.debug("Dispatcher", &Dispatcher::new(endpoint, DispatcherOptions::default()).unwrap());
    }
    let canary = || vec![("password".to_owned(), OptionValue::text(CANARY))];
    shown.debug("Provider", &Provider::new(Vault));
    shown.debug("OptionSpec", &OPTIONS);
    shown.debug("Takes", &OPTIONS.iter().map(|spec| spec.takes).collect::<Vec<_>>());
    shown.debug("OptionDefault", &OPTIONS.iter().map(|spec| spec.default).collect::<Vec<_>>());
    shown.debug("Code", &[code::OWN, code::SERVER]);
    shown.debug("Form", &Form::Typed);
    shown.debug("DispatcherOptions", &DispatcherOptions::new([], Form::Typed).unwrap());
    let refused: Vec<Error> = vec![
        Endpoint::new(canary(), Form::Typed).unwrap_err(),
        Endpoint::new([("passwort".to_owned(), OptionValue::text(CANARY))], Form::Typed).unwrap_err(),
        Endpoint::new([canary(), canary()].concat(), Form::Typed).unwrap_err(),
        Endpoint::from_url(&format!("redis://:{CANARY}/x@h"), []).unwrap_err(),
        Endpoint::from_url(&format!("redis://:{CANARY}@h:0/?stream_key=s"), []).unwrap_err(),
        DispatcherOptions::new(canary(), Form::Typed).map(drop).unwrap_err(),
    ];
    for error in &refused {
        shown.debug("Error", error);
        shown.display("Error", error);
    }
    let had_server = through_a_server(&mut shown).is_some();

    for (name, text) in &shown.0 {
        assert!(!text.contains(CANARY), "{name} shows it: {text}");
        assert!(!text.contains("99, 97, 110"), "{name} shows its bytes: {text}");
    }
    if !had_server {
        return; // some types have values only with one
    }
    // Each of these types was checked manually, cannot hold a secret, or has no `Debug`.
    let seen: BTreeSet<_> = shown.0.iter().map(|(name, _)| *name).collect();
    let near = public_types(&["endpoint.rs", "endpoint", "secret.rs", "dispatcher.rs", "dispatcher", "net.rs", "net"]);
    let other = [
        "Alarm",
        "JsonColumns",
        "LayoutOptions",
        "Cluster",
        "MasterCheck",
        "MasterLookup",
        "ShardRegistry",
        "Wanted",
        "Within",
        "ServerLookup",
        "IdArgument",
        "Interest",
        "NeverInterrupted",
        "OnTheSide",
        "Opening",
        "Deadline",
        "DeferredWait",
        "Readiness",
        "Trim",
        "ConnectError",
        "ConnectLog",
        "ConnectStep",
        "NotedStep",
        "Stage",
        "TooFewReplicas",
        "ServerChange",
        "Given",
    ];
    let missed: Vec<_> = near.iter().filter(|name| !seen.contains(&***name) && !other.contains(&&***name)).collect();
    assert_eq!(missed, [""; 0], "types that were not checked with a secret");
    assert!(near.len() > 15 && shown.0.len() > 100, "{} types, {} texts", near.len(), shown.0.len());
}

fn pairs(endpoint: &Endpoint) -> Vec<(String, OptionValue)> {
    endpoint.options().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The texts of a dispatcher while connected, and after a refused connection. `None`: there is no server.
fn through_a_server(shown: &mut Shown) -> Option<()> {
    let server = Server::start(&["--requirepass", CANARY])?;
    let with = |username: &[(&str, &str)]| {
        let socket = server.socket();
        endpoint(&[&[("unix_socket", socket.to_str().unwrap()), ("password", CANARY)], username].concat())
    };
    shown.debug("Transport", &try_connect(&with(&[])).unwrap());
    let fault: Fault = try_connect(&with(&[("username", "nobody")])).unwrap_err();
    shown.debug("Fault", &fault);
    shown.debug("Classifier", &Classifier::default());
    shown.debug("Failure", &Classifier::default().failure(&fault, Written::No));
    for username in [&[][..], &[("username", "nobody")]] {
        let mut dispatcher = Dispatcher::new(with(username), DispatcherOptions::default()).unwrap();
        dispatcher.make_room(&mut NeverInterrupted).unwrap();
        dispatcher.produce(b"x", IdArgument::None).unwrap();
        let report = dispatcher.flush(None, &mut NeverInterrupted).unwrap();
        shown.debug("DeliveryReport", &report);
        shown.debug("FailedMessage", &report.failures().map(|failed| failed.failure).collect::<Vec<&Failure>>());
        shown.debug("Dispatcher", &dispatcher);
        shown.debug("Counters", &dispatcher.counters());
        let mut dispatcher = LoopDispatcher::new(dispatcher, Box::new(NeverInterrupted));
        shown.debug("LoopDispatcher", &dispatcher);
        shown.debug("Progress", &dispatcher.advance().unwrap());
        let dispatcher = Dispatcher::new(with(username), DispatcherOptions::default()).unwrap();
        shown.debug("TaskDispatcher", &TaskDispatcher::new(dispatcher, Box::new(NeverInterrupted)).unwrap());
        let dispatcher = Dispatcher::new(with(username), DispatcherOptions::default()).unwrap();
        shown.debug("SharedDispatcher", &SharedDispatcher::new(dispatcher, Box::new(NeverInterrupted), Arc::default()));
        let dispatcher = Dispatcher::new(with(username), DispatcherOptions::default()).unwrap();
        let dispatcher = LoopDispatcher::new(dispatcher, Box::new(NeverInterrupted));
        shown.debug("RoutedDispatcher", &RoutedDispatcher::new(dispatcher, OutcomeRouter::skipping_awaited()));
    }
    Some(())
}

/// The names of the types in these files and folders under `src`, except private ones.
fn public_types(of: &[&str]) -> BTreeSet<String> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths: Vec<_> = of.iter().map(|name| source.join(name)).collect();
    let mut found = BTreeSet::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        for line in fs::read_to_string(path).unwrap().lines() {
            let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "));
            if let Some(rest) =
                rest.and_then(|rest| rest.strip_prefix("struct ").or_else(|| rest.strip_prefix("enum ")))
            {
                found.insert(rest.chars().take_while(|c| c.is_alphanumeric()).collect());
            }
        }
    }
    found
}
