//! Options that are missing, unknown, of the wrong type, or contradictory.

use super::*;

/// Builds an endpoint with exactly these options and returns the error message.
fn exactly(options: &[(&str, OptionValue)]) -> String {
    message(build_in(Form::Typed, options, &[]))
}

#[test]
fn contradictory_options_are_named() {
    let tls = ("tls", OptionValue::Bool(true));
    let unchecked = ("tls_insecure_skip_verify", OptionValue::Bool(true));
    let (host, key) = (("host", text("h")), ("stream_key", text("s")));
    let socket = ("unix_socket", text("/run/r.sock"));
    let cases: Vec<(Vec<(&str, OptionValue)>, &str)> = vec![
        (vec![key.clone()], "host is missing (or unix_socket, or nodes)"),
        (vec![host.clone()], "stream_key is missing"),
        (vec![host.clone(), socket.clone(), key.clone()], "host and unix_socket are mutually exclusive"),
        (vec![socket.clone(), ("port", int(1)), key.clone()], "port cannot be used with unix_socket"),
        (vec![socket.clone(), tls.clone(), key.clone()], "tls cannot be used with unix_socket"),
        (vec![host.clone(), key.clone(), ("username", text("u"))], "username needs one of password, password_env"),
        (
            vec![host.clone(), key.clone(), ("password", text("p")), ("password_env", text("P"))],
            "password, password_env and password_file are mutually exclusive",
        ),
        (
            vec![host.clone(), key.clone(), ("password_file", text("/p")), ("password_env", text("P"))],
            "password, password_env and password_file are mutually exclusive",
        ),
        (
            vec![host.clone(), key.clone(), ("password", text("p")), ("password_file", text("/p"))],
            "password, password_env and password_file are mutually exclusive",
        ),
        (vec![host.clone(), key.clone(), ("tls_ca_cert", text("/ca"))], "tls_ca_cert needs tls to be true"),
        (vec![host.clone(), key.clone(), ("tls_cert", text("/c"))], "tls_cert needs tls to be true"),
        (vec![host.clone(), key.clone(), ("tls_key", text("/k"))], "tls_key needs tls to be true"),
        (
            vec![host.clone(), key.clone(), ("tls", OptionValue::Bool(false)), ("tls_server_name", text("n"))],
            "tls_server_name needs tls to be true",
        ),
        (vec![host.clone(), key.clone(), unchecked.clone()], "tls_insecure_skip_verify needs tls to be true"),
        (
            vec![host.clone(), key.clone(), tls.clone(), unchecked.clone(), ("tls_ca_cert", text("/ca"))],
            "tls_insecure_skip_verify and tls_ca_cert are mutually exclusive",
        ),
        (
            vec![host.clone(), key.clone(), tls.clone(), unchecked, ("tls_server_name", text("n"))],
            "tls_insecure_skip_verify and tls_server_name are mutually exclusive",
        ),
        (vec![host.clone(), key.clone(), tls.clone(), ("tls_cert", text("/c"))], "tls_cert needs tls_key"),
        (vec![host.clone(), key.clone(), tls.clone(), ("tls_key", text("/k"))], "tls_key needs tls_cert"),
        (
            vec![host.clone(), key.clone(), tls.clone(), ("tls_server_name", text("a b"))],
            "tls_server_name must be a DNS name or an IP address for TLS, got 'a b'",
        ),
        (vec![("host", text("-")), key.clone(), tls], "host must be a DNS name or an IP address for TLS, got '-'"),
        (vec![host.clone(), key.clone(), ("host", text("h"))], "host is given twice"),
    ];
    for (options, start) in cases {
        let said = exactly(&options);
        assert!(said.starts_with(start), "{said:?} does not start with {start:?}");
    }
}

#[test]
fn unknown_options_name_the_nearest_known_one() {
    for (unknown, nearest) in [
        ("hots", "host"),
        ("Port", "port"),
        ("streamkey", "stream_key"),
        ("passwd", "password"),
        ("user", "username"),
        ("max_len", "maxlen"),
        ("ca_cert", "tls_ca_cert"),
        ("unixsocket", "unix_socket"),
        ("timeout", "connect_timeout"),
    ] {
        let said = exactly(&[(unknown, text("x"))]);
        assert_eq!(said, format!("unknown option '{unknown}'; did you mean '{nearest}'?"));
    }
}

#[test]
fn invalid_values_are_refused_with_the_allowed_values() {
    let cases = [
        ("host", int(5), "host must be non-empty text, got 5"),
        ("stream_key", int(5), "stream_key must be text or bytes, of 1 byte to 512 MiB, got 5"),
        ("stream_key", text(""), "stream_key must be text or bytes, of 1 byte to 512 MiB, got '' (empty)"),
        (
            "stream_key",
            OptionValue::bytes(b""),
            "stream_key must be text or bytes, of 1 byte to 512 MiB, got bytes (empty)",
        ),
        ("username", OptionValue::bytes(b"u"), "username must be non-empty text, got bytes"),
        (
            "password",
            int(12_345),
            "password must be non-empty text or bytes, or a callable that returns them, got an integer",
        ),
        (
            "password",
            text(""),
            "password must be non-empty text or bytes, or a callable that returns them, got text (empty)",
        ),
        ("password_env", text("a b"), "password_env must be the name of an environment variable, got text"),
        ("password_env", text("1A"), "password_env must be the name of an environment variable, got text"),
        ("password_file", text(""), "password_file must be the path of a file, got '' (empty)"),
        ("password_file", text("/a\0b"), "password_file must be the path of a file, got text with NUL in it"),
        ("consumer_group", text(""), "consumer_group must be text or bytes, of 1 byte to 512 MiB, got '' (empty)"),
        ("nomkstream", int(1), "nomkstream must be a boolean (true or false), got 1"),
        ("nomkstream", text("true"), "nomkstream must be a boolean (true or false), got 'true'"),
        (
            "tls",
            OptionValue::Other("list".to_owned()),
            "tls must be a boolean (true or false), got a value of type list",
        ),
        (
            "tls_key",
            text(""),
            "tls_key must be the path of a PEM file, or PEM itself (bytes, or text with -----BEGIN), got text (empty)",
        ),
    ];
    for (name, value, expected) in cases {
        assert_eq!(message(build(&[(name, value)])), expected);
    }
    let long = message(build(&[("port", text(&"9".repeat(500)))]));
    assert!(long.len() < 200 && long.ends_with("…'"), "{long}");
}

#[test]
fn unix_sockets_must_be_paths_that_the_kernel_accepts() {
    for bad in ["", "/a\0b", &format!("/{}", "x".repeat(200))] {
        let said = exactly(&[("unix_socket", text(bad)), ("stream_key", text("s"))]);
        assert!(said.starts_with("unix_socket must be the path of a"), "{said}");
    }
}

#[test]
fn invalid_pem_is_refused_without_its_content() {
    let tls = ("tls", OptionValue::Bool(true));
    let no_certificate = "-----BEGIN PRIVATE KEY-----\nYWJj\n-----END PRIVATE KEY-----\n";
    let bad_certificate = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
    let cases = [
        (text("/no/such/ca.pem"), "tls_ca_cert: '/no/such/ca.pem' cannot be read: "),
        (text("/"), "tls_ca_cert: '/' cannot be read: "),
        (OptionValue::bytes(b"hello"), "tls_ca_cert: the PEM given holds no certificate"),
        (text("Bag Attributes\nYWJj"), "tls_ca_cert: the PEM given holds no certificate"),
        (text(no_certificate), "tls_ca_cert: the PEM given holds no certificate"),
        (text(bad_certificate), "tls_ca_cert: the PEM given holds a certificate that is not valid: "),
        (text("-----BEGIN CERTIFICATE-----\nYWJj\n"), "tls_ca_cert: the PEM given is not PEM: a section has no end"),
        (
            text("-----BEGIN CERTIFICATE-----\n#\n-----END CERTIFICATE-----"),
            "tls_ca_cert: the PEM given is not PEM: a section is",
        ),
    ];
    for (value, start) in cases {
        let said = message(build(&[tls.clone(), ("tls_ca_cert", value)]));
        assert!(said.starts_with(start) && !said.contains("YWJj"), "{said}");
    }
    let bare = format!("M{}", "C4CAQAwBQYDK2VwBCIEI".repeat(3));
    let said = message(build(&[tls, ("tls_key", text(&bare)), ("tls_cert", text("/c"))]));
    assert!(said.starts_with("tls_key must be a path or PEM") && !said.contains("C4CAQ"), "{said}");
}
