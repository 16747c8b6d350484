//! Endpoints from URLs.

use super::*;

fn from_url(url: &str, options: &[(&str, OptionValue)]) -> Result<Endpoint> {
    let mut given = Given::collect(OPTIONS, pairs(options), Form::Typed)?;
    url::read(url, &mut given)?;
    Endpoint::build(given, Defaults::default())
}

#[test]
fn a_url_is_equivalent_to_the_same_options() {
    let on = OptionValue::Bool(true);
    let key = ("stream_key", text("s"));
    let cases: Vec<(&str, Vec<(&str, OptionValue)>)> = vec![
        ("redis://h?stream_key=s", vec![]),
        ("REDIS://h/?stream_key=s", vec![]),
        ("valkey://h?stream_key=s", vec![]),
        ("redis://h:6380/2?stream_key=s", vec![("port", int(6380)), ("db", int(2))]),
        ("rediss://h/?stream_key=s", vec![("tls", on.clone())]),
        ("valkeys://h/?stream_key=s", vec![("tls", on)]),
        ("redis://[::1]/?stream_key=s", vec![("host", text("::1"))]),
        ("redis://u:p@h/?stream_key=s", vec![("username", text("u")), ("password", text("p"))]),
        ("redis://:p@h/?stream_key=s", vec![("password", text("p"))]),
        (
            "redis://u%3A:p%40%2F%3F%23%25+@h/?stream_key=s",
            vec![("username", text("u:")), ("password", text("p@/?#%+"))],
        ),
        ("redis://a+b:c+d@h/?stream_key=s", vec![("username", text("a+b")), ("password", text("c+d"))]),
        ("redis://:a:b@h/?stream_key=s", vec![("password", text("a:b"))]),
        ("redis://:%ff@h/?stream_key=s", vec![("password", OptionValue::bytes(b"\xff"))]),
        (
            "redis://h?stream_key=a+b%2B&maxlen=10&nomkstream=true&minid=5-1&connect_timeout=0.5&password=x%26y",
            vec![
                ("stream_key", text("a b+")),
                ("maxlen", int(10)),
                ("nomkstream", OptionValue::Bool(true)),
                ("minid", text("5-1")),
                ("connect_timeout", OptionValue::Float(0.5)),
                ("password", text("x&y")),
            ],
        ),
    ];
    for (url, mut options) in cases {
        if url.contains("stream_key=s") {
            options.push(key.clone());
        }
        assert_eq!(from_url(url, &[]).unwrap(), build(&options).unwrap(), "{url}");
    }
    for scheme in ["unix", "redis+unix", "valkey+unix"] {
        let endpoint = from_url(&format!("{scheme}:///run/a%20b.sock?db=2&stream_key=s"), &[]).unwrap();
        assert_eq!(
            endpoint.address(&endpoint.settings().unwrap()),
            Some(Address::Unix(PathBuf::from("/run/a b.sock")))
        );
        assert_eq!(endpoint.settings().unwrap().db, 2);
    }
}

#[test]
fn options_complete_a_url_and_may_not_repeat_it() {
    let key = ("stream_key", text("s"));
    let endpoint = from_url("redis://writer@h/", &[key.clone(), ("password_env", text("P"))]).unwrap();
    assert_eq!(endpoint.username(), Some("writer"));
    for (url, option) in [
        ("redis://h/?stream_key=s", key.clone()),
        ("redis://h:1/?stream_key=s", ("port", int(1))),
        ("redis://h/2?stream_key=s", ("db", int(2))),
        ("redis://h/2?stream_key=s&db=2", ("maxlen", int(1))),
        ("redis://h/?stream_key=s&maxlen=1&maxlen=1", ("trim_every", int(1))),
        ("rediss://h/?stream_key=s", ("tls", OptionValue::Bool(false))),
        ("rediss://h/?stream_key=s&tls=false", ("maxlen", int(1))),
        ("redis://:hunter2@h/?stream_key=s", ("password", text("hunter2"))),
    ] {
        let said = message(from_url(url, &[option]));
        assert!(said.contains("is given twice") && !said.contains("hunter2"), "{url}: {said}");
    }
}

#[test]
fn bad_urls_are_refused_without_being_repeated() {
    let cases = [
        ("hunter2", "the URL must be of the form"),
        ("http://hunter2/", "the URL must have one of the schemes redis, rediss, unix"),
        ("redis://:hunter2", "the URL does not parse"),
        ("redis://user:hunter2", "the URL does not parse"),
        ("redis:///2", "the URL is refused: missing hostname"),
        ("redis://:hunter2@h/x", "the URL must have the number of a database after its host, such as /0, or nothing"),
        ("redis://:hunter2@h/-1?stream_key=s", "db must be an integer from 0"),
        ("redis://:hunter2@h/1/2", "the URL must have the number of a database after its host, such as /0, or nothing"),
        ("redis://:p/hunter2@h/", "the URL has an @ after its host"),
        ("redis://:1?hunter2@h/", "the URL has an @ after its host"),
        ("redis://:1#hunter2@h/", "the URL has an @ after its host"),
        ("rediss://h/#insecure", "the URL must not have a #fragment"),
        ("redis://h/?stream_key=s#", "the URL must not have a #fragment"),
        ("redis://hunter2 h/", "the URL holds white space"),
        ("redis://h/?hunter2", "the URL has a query that does not consist of name=value pairs"),
        ("redis://h/?protocol=3&stream_key=s", "unknown option 'protocol'"),
        ("redis://u:@h/?stream_key=s", "password must be"),
        ("redis://u@h/?stream_key=s", "username needs one of password"),
        ("redis://0.0.0.0/?stream_key=s", "the URL is refused: cannot connect to a wildcard address"),
        ("unix://hunter2@/run/r.sock?stream_key=s", "the URL must have three slashes"),
        ("unix://h/run/r.sock?stream_key=s", "the URL must have three slashes"),
        ("unix:///run/r.sock?pass=hunter2&stream_key=s", "unknown option 'pass'; did you mean 'password'?"),
        ("unix:///run/r.sock?user=u&stream_key=s", "unknown option 'user'; did you mean 'username'?"),
        ("unix:///run/r.sock?port=1&stream_key=s", "port cannot be used with unix_socket"),
    ];
    for (url, start) in cases {
        let said = message(from_url(url, &[]));
        assert!(said.starts_with(start), "{url}: {said:?} does not start with {start:?}");
        assert!(!said.contains("hunter2"), "{url}: {said}");
    }
}
