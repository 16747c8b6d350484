//! Hermetic tests of the endpoint: the environment is passed in.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;

use super::defaults::Defaults;
use super::given::Given;
use super::*;
use crate::error::Error;

mod defaults_file;
mod providers;
mod refusals;
mod sentinels;
mod tls_files;
mod urls;

/// Options in the form that a test writes them.
fn pairs(options: &[(&str, OptionValue)]) -> Vec<(String, OptionValue)> {
    options.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn text(text: &str) -> OptionValue {
    OptionValue::text(text)
}

fn int(number: i128) -> OptionValue {
    OptionValue::Int(number)
}

fn build_in(form: Form, options: &[(&str, OptionValue)], environment: &[(&str, &str)]) -> Result<Endpoint> {
    let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, v)| OsString::from(v));
    Endpoint::build(Given::collect(OPTIONS, pairs(options), form)?, Defaults::from_environment(variable)?)
}

/// Builds an endpoint with `host` and `stream_key` in addition to `options`.
fn build(options: &[(&str, OptionValue)]) -> Result<Endpoint> {
    let mut all = vec![("host", text("h")), ("stream_key", text("s"))];
    all.retain(|(name, _)| options.iter().all(|(given, _)| given != name));
    all.extend_from_slice(options);
    build_in(Form::Typed, &all, &[])
}

fn why_not(endpoint: &Endpoint) -> String {
    match endpoint.password() {
        Err(NoPassword::Failed(why)) => why,
        other => unreachable!("{other:?}"),
    }
}

fn message(result: Result<Endpoint>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn the_built_in_defaults_match_the_option_table() {
    let endpoint = build(&[]).unwrap();
    let settings = endpoint.settings().unwrap();
    let (nodes, master) = (("nodes", OptionValue::Names(vec!["s1".to_owned()])), ("sentinel_master", text("m")));
    let watched = build(&[("host", OptionValue::Null), nodes, master]).unwrap();
    let sentinels = watched.sentinels().unwrap();
    let nodes = build(&[("topology", text("cluster"))]).unwrap();
    let sharded = build(&[("shards", int(2))]).unwrap();
    let sharded = sharded.shards().unwrap();
    let actual = [
        ("topology", text("auto")),
        ("max_redirects", int(nodes.cluster().unwrap().max_redirects.into())),
        ("port", int(settings.port.into())),
        ("db", int(settings.db.into())),
        ("connect_timeout", OptionValue::Float(settings.connect_timeout.as_secs_f64())),
        ("command_timeout", OptionValue::Float(settings.command_timeout.as_secs_f64())),
        ("maxlen_approximate", OptionValue::Bool(endpoint.maxlen_approximate())),
        ("trim_every", int(endpoint.trim_every().into())),
        ("nomkstream", OptionValue::Bool(endpoint.nomkstream())),
        ("shard_hash", text(sharded.hash.name())),
        ("shard_names", text(sharded.names.name())),
        ("tls", OptionValue::Bool(endpoint.tls().is_some())),
        ("sentinel_tls", OptionValue::Bool(sentinels.access.tls().is_some())),
        ("sentinel_poll", OptionValue::Float(sentinels.poll.as_secs_f64())),
        ("tls_insecure_skip_verify", OptionValue::Bool(endpoint.tls().is_some_and(|tls| tls.skip_verify))),
    ];
    for spec in OPTIONS {
        let actual = actual.iter().find(|(name, _)| *name == spec.name).map_or(&OptionValue::Null, |(_, value)| value);
        assert!(*actual == spec.default.value(), "{}", spec.name);
        if !spec.secret && !["host", "stream_key"].contains(&spec.name) {
            assert!(endpoint.effective(spec.name).unwrap() == Some(spec.default.value()), "{}", spec.name);
        }
    }
    assert_eq!(endpoint.options().len(), 2);
    assert!(endpoint.trim().is_none() && endpoint.username().is_none() && endpoint.consumer_group().is_none());
    assert_eq!(endpoint.password().unwrap(), None);
}

#[test]
fn integers_outside_their_ranges_are_refused() {
    let cases: [(&str, i128, i128); 4] = [
        ("port", 1, 65_535),
        ("db", 0, i128::from(i32::MAX)),
        ("maxlen", 0, i128::from(i64::MAX)),
        ("trim_every", 1, i128::from(i64::MAX)),
    ];
    for (name, min, max) in cases {
        for good in [min, max] {
            assert!(build(&[(name, int(good))]).is_ok(), "{name} {good}");
            let as_text = build_in(
                Form::Text,
                &[("host", text("h")), ("stream_key", text("s")), (name, text(&good.to_string()))],
                &[],
            );
            assert_eq!(as_text.unwrap(), build(&[(name, int(good))]).unwrap(), "{name} {good} as text");
        }
        let bad =
            [int(min - 1), int(max + 1), int(i128::MAX), OptionValue::Float(5.0), OptionValue::Bool(true), text("5")];
        for value in bad {
            let error = build(&[(name, value.clone())]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{name} must be an integer")), "{name} {value:?}: {error}");
            assert!(matches!(error, Error::Config { option, .. } if option == name));
        }
    }
    assert_eq!(message(build(&[("port", int(70_000))])), "port must be an integer from 1 to 65535, got 70000");
    assert_eq!(
        message(build(&[("port", OptionValue::Bool(true))])),
        "port must be an integer from 1 to 65535, got True"
    );
    assert_eq!(message(build(&[("maxlen", int(-1))])), "maxlen must be an integer of at least 0, got -1");
}

#[test]
fn timeouts_are_seconds_with_or_without_a_fraction() {
    for name in ["connect_timeout", "command_timeout"] {
        for good in [int(1), int(3600), OptionValue::Float(0.001), OptionValue::Float(3600.0)] {
            assert!(build(&[(name, good.clone())]).is_ok(), "{name} {good:?}");
        }
        let floats = [0.0, 0.000_9, 3600.1, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let others = [int(0), int(3601), int(-5), int(i128::MAX), OptionValue::Bool(true), text("5")];
        for bad in floats.map(OptionValue::Float).into_iter().chain(others) {
            let said = message(build(&[(name, bad.clone())]));
            assert!(
                said.starts_with(&format!("{name} must be a number of seconds from 0.001 to 3600, got ")),
                "{said}"
            );
        }
    }
    let endpoint = build(&[("connect_timeout", OptionValue::Float(0.25)), ("command_timeout", int(7))]).unwrap();
    let settings = endpoint.settings().unwrap();
    assert_eq!(settings.connect_timeout, Duration::from_millis(250));
    assert_eq!(settings.command_timeout, Duration::from_secs(7));
}

#[test]
fn text_form_accepts_only_well_formed_numbers_and_booleans() {
    let build_text = |name: &str, value: &str| {
        build_in(Form::Text, &[("host", text("h")), ("stream_key", text("s")), (name, text(value))], &[])
    };
    assert_eq!(build_text("connect_timeout", "0.5").unwrap().settings().unwrap().connect_timeout.as_millis(), 500);
    assert!(build_text("nomkstream", "TRUE").unwrap().nomkstream());
    assert!(!build_text("maxlen_approximate", "false").unwrap().maxlen_approximate());
    let bad = [
        ("port", ""),
        ("port", "+1"),
        ("port", " 1"),
        ("port", "0x10"),
        ("port", "1.0"),
        ("connect_timeout", "inf"),
        ("connect_timeout", "nan"),
        ("connect_timeout", "1e3"),
        ("connect_timeout", "."),
        ("connect_timeout", ""),
        ("nomkstream", "1"),
        ("nomkstream", "yes"),
        ("nomkstream", ""),
    ];
    for (name, value) in bad {
        assert!(build_text(name, value).is_err(), "{name}={value:?}");
    }
    assert_eq!(message(build_text("port", "")), "port must be an integer from 1 to 65535, got '' (empty)");
}

#[test]
fn minid_is_an_entry_id_and_is_sent_as_written() {
    let cases: [(OptionValue, &str, (u64, u64)); 5] = [
        (int(1_713_091_234_567), "1713091234567", (1_713_091_234_567, 0)),
        (text("1713091234567"), "1713091234567", (1_713_091_234_567, 0)),
        (text("5-7"), "5-7", (5, 7)),
        (text("0-1"), "0-1", (0, 1)),
        (
            text("18446744073709551615-18446744073709551615"),
            "18446744073709551615-18446744073709551615",
            (u64::MAX, u64::MAX),
        ),
    ];
    for (value, wire, id) in cases {
        let endpoint = build(&[("minid", value.clone())]).unwrap();
        let trim = endpoint.trim().unwrap();
        assert_eq!((trim.strategy(), &*trim.threshold(), trim.min_id()), ("MINID", wire, Some(id)));
    }
    for value in [int(0), text("0"), text("0-0")] {
        assert!(build(&[("minid", value.clone())]).unwrap().trim().is_none(), "{value:?}");
    }
    let bad = ["", "-", "5-", "-5", "+5", "5-7-9", "18446744073709551616", "1713091234567-*", "$", " 5"];
    let others = [int(-1), int(1 << 64), OptionValue::Float(1.0), OptionValue::Bool(true), OptionValue::bytes(b"5")];
    for value in bad.map(text).into_iter().chain(others) {
        assert!(message(build(&[("minid", value.clone())])).starts_with("minid must be "), "{value:?}");
    }
}

#[test]
fn minid_takes_precedence_over_maxlen_and_zero_disables_trimming() {
    let trim = |options: &[(&str, OptionValue)]| {
        let endpoint = build(options).unwrap();
        endpoint.trim().map(|trim| format!("{} {} {}", trim.strategy(), trim.approximate(), trim.threshold()))
    };
    let exact = ("maxlen_approximate", OptionValue::Bool(false));
    assert_eq!(trim(&[("maxlen", int(10_000))]).as_deref(), Some("MAXLEN true 10000"));
    assert_eq!(trim(&[("maxlen", int(10_000)), exact.clone()]).as_deref(), Some("MAXLEN false 10000"));
    assert_eq!(trim(&[("maxlen", int(9)), ("minid", int(5))]).as_deref(), Some("MINID true 5"));
    assert_eq!(trim(&[("maxlen", int(9)), ("minid", int(5)), exact.clone()]).as_deref(), Some("MINID false 5"));
    assert_eq!(trim(&[("maxlen", int(9)), ("minid", int(0))]).as_deref(), Some("MAXLEN true 9"));
    assert_eq!(trim(&[("maxlen", int(0)), exact]), None);
    // The limit of `trim_every` refers to `maxlen`, and applies only where `maxlen` is what trims.
    assert_eq!(trim(&[("maxlen", int(9)), ("trim_every", int(9))]).as_deref(), Some("MAXLEN true 9"));
    assert_eq!(
        trim(&[("maxlen", int(9)), ("trim_every", int(10)), ("minid", int(5))]).as_deref(),
        Some("MINID true 5")
    );
    assert_eq!(trim(&[("maxlen", int(0)), ("trim_every", int(10))]), None);
    assert!(
        message(build(&[("maxlen", int(9)), ("trim_every", int(10))]))
            .starts_with("trim_every must be at most maxlen, got trim_every 10 with maxlen 9")
    );
}

#[test]
fn hosts_are_names_or_addresses() {
    for (host, stored, shown) in [
        ("db1.example.com", "db1.example.com", "redis://db1.example.com:6379"),
        ("my_redis", "my_redis", "redis://my_redis:6379"),
        ("127.0.0.1", "127.0.0.1", "redis://127.0.0.1:6379"),
        ("::1", "::1", "redis://[::1]:6379"),
        ("[::1]", "::1", "redis://[::1]:6379"),
        ("fe80::1%eth0", "fe80::1%eth0", "redis://[fe80::1%eth0]:6379"),
    ] {
        let endpoint = build(&[("host", text(host))]).unwrap();
        let address = endpoint.address(&endpoint.settings().unwrap());
        assert_eq!(address, Some(Address::Tcp { host: stored.to_owned(), port: 6379 }));
        assert_eq!(endpoint.to_string(), format!("{shown} stream key s"));
    }
    let bad =
        ["", "db1:6379", "[db1]", "[::1]:6379", "a b", "a\r\nb", "a\0b", "redis://u:hunter2@h", "u:hunter2@h", "h/2"];
    for host in bad {
        let said = message(build(&[("host", text(host))]));
        assert!(said.starts_with("host must be ") && !said.contains("hunter2") && !said.contains('\n'), "{said}");
    }
}

#[test]
fn endpoints_and_errors_show_no_secret() {
    let canary = "canary-secret";
    let key = format!("-----BEGIN PRIVATE KEY-----\n{canary}");
    let endpoint = build(&[("username", text("writer@x")), ("password", text(canary)), ("db", int(2))]).unwrap();
    assert_eq!(endpoint.to_string(), "redis://writer%40x@h:6379/2 stream key s");
    let errors = [
        build(&[
            ("tls", OptionValue::Bool(true)),
            ("tls_cert", OptionValue::bytes(key.as_bytes())),
            ("tls_key", text(&key)),
        ]),
        build(&[("tls", OptionValue::Bool(true)), ("tls_ca_cert", text(&key))]),
        build(&[("password", text(canary)), ("password_env", text(canary))]),
        build(&[("password_env", text("canary-secret is no name"))]),
        build(&[("port", OptionValue::bytes(canary.as_bytes()))]),
        build(&[("password", text(canary)), ("port", int(0))]),
    ];
    let shown = errors.into_iter().map(message).chain([format!("{endpoint:?}"), format!("{:?}", endpoint.options())]);
    for shown in shown {
        assert!(!shown.contains(canary) && !shown.contains("99, 97, 110"), "{shown}");
    }
    assert_eq!(endpoint.password().unwrap().unwrap().expose(), canary.as_bytes());
}

#[test]
fn a_password_is_read_each_time_it_is_requested() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    let endpoint = build(&[("username", text("u")), ("password_file", text(path.to_str().unwrap()))]).unwrap();
    let why = why_not(&endpoint);
    assert!(why.contains("password_file") && why.contains(path.to_str().unwrap()), "{why}");
    for (content, password) in [("old", "old"), ("new\n", "new"), ("newer\r\n", "newer"), ("two\n\n", "two\n")] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(endpoint.password().unwrap().unwrap().expose(), password.as_bytes());
    }
    for (content, why) in
        [(String::new(), "is empty"), ("\n".to_owned(), "is empty"), ("x".repeat(70_000), "is longer")]
    {
        std::fs::write(&path, content).unwrap();
        assert!(why_not(&endpoint).contains(why));
    }
    // Cargo sets this one for every test.
    let endpoint = build(&[("password_env", text("CARGO_PKG_NAME"))]).unwrap();
    assert_eq!(endpoint.password().unwrap().unwrap().expose(), b"headrace-core");
    let endpoint = build(&[("password_env", text("HEADRACE_TEST_NOT_SET"))]).unwrap();
    assert_eq!(why_not(&endpoint), "password_env: the environment variable HEADRACE_TEST_NOT_SET is not set");
}

#[test]
fn restored_endpoints_equal_the_original_ones() {
    let all = build_in(
        Form::Typed,
        &[
            ("host", text("h")),
            ("port", int(1)),
            ("stream_key", OptionValue::bytes(b"\xff")),
            ("db", int(3)),
            ("username", text("u")),
            ("password", OptionValue::bytes(b"\xfe")),
            ("connect_timeout", OptionValue::Float(0.1)),
            ("command_timeout", int(9)),
            ("maxlen", int(0)),
            ("maxlen_approximate", OptionValue::Bool(false)),
            ("minid", text("7-0")),
            ("trim_every", int(2)),
            ("nomkstream", OptionValue::Bool(true)),
            ("consumer_group", text("g")),
        ],
        &[("HEADRACE_DEFAULT_DB", "5"), ("HEADRACE_CONNECT_TIMEOUT", "2.5")],
    )
    .unwrap();
    let unix = build_in(
        Form::Typed,
        &[("unix_socket", text("/run/r.sock")), ("stream_key", text("s")), ("password_file", text("/run/secret"))],
        &[("HEADRACE_DEFAULT_DB", "5")],
    )
    .unwrap();
    assert_eq!(unix.to_string(), "unix:///run/r.sock?db=5 stream key s");
    for endpoint in [all, unix] {
        let owned = |options: Vec<(&'static str, OptionValue)>| options.into_iter().map(|(n, v)| (n.to_owned(), v));
        let again = Endpoint::restore(owned(endpoint.options()), owned(endpoint.inherited().unwrap())).unwrap();
        assert_eq!(again, endpoint);
        assert_eq!(again.settings(), endpoint.settings());
        assert_eq!(again.options(), endpoint.options());
    }
}

#[test]
fn every_option_is_restored_under_its_own_name() {
    // Pickling would lose any option that `options` omits.
    let tls = [("tls", OptionValue::Bool(true)), ("tls_server_name", text("n")), ("tls_ca_cert", text("/a"))];
    let client = [("tls_cert", text("/b")), ("tls_key", text("/c")), ("host", text("h")), ("stream_key", text("s"))];
    let endpoint = Endpoint::restore(pairs(&[&tls[..], &client[..]].concat()), []).unwrap();
    let names: Vec<_> = endpoint.options().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["host", "tls", "tls_ca_cert", "tls_cert", "tls_key", "tls_server_name", "stream_key"]);
    assert_eq!(endpoint.option("tls_key"), Some(text("/c")));

    let unchecked = [("tls", OptionValue::Bool(true)), ("tls_insecure_skip_verify", OptionValue::Bool(true))];
    let again = Endpoint::restore(build(&unchecked).unwrap().options().into_iter().map(|(n, v)| (n.to_owned(), v)), []);
    assert!(again.unwrap().tls().unwrap().skip_verify);
}

#[test]
fn only_an_endpoint_with_host_and_no_topology_is_undecided() {
    let undecided = build(&[("port", int(7000)), ("tls", OptionValue::Bool(true))]).unwrap();
    assert!(undecided.is_undecided());
    assert!(undecided.cluster().is_none());
    let single = undecided.decided(false);
    assert!(!single.is_undecided() && single.cluster().is_none());
    let settings = single.settings().unwrap();
    assert_eq!(single.address(&settings), undecided.address(&settings));
    assert_eq!(single.to_string(), undecided.to_string());
    let cluster = undecided.decided(true);
    assert!(!cluster.is_undecided());
    assert_eq!(
        cluster,
        build(&[("port", int(7000)), ("tls", OptionValue::Bool(true)), ("topology", text("cluster"))]).unwrap()
    );
    for others in [
        vec![("topology", text("single"))],
        vec![("topology", text("cluster"))],
        vec![("host", OptionValue::Null), ("unix_socket", text("/s"))],
        vec![("host", OptionValue::Null), ("nodes", OptionValue::Names(vec!["h".to_owned()]))],
    ] {
        assert!(!build(&others).unwrap().is_undecided(), "{others:?}");
    }
}
