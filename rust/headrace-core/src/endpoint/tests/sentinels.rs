//! Endpoints whose server is named by sentinels.

use super::*;

fn names(names: &[&str]) -> OptionValue {
    OptionValue::Names(names.iter().map(|name| (*name).to_owned()).collect())
}

/// The options of a complete endpoint, plus `more`.
fn given<'a>(more: &[(&'a str, OptionValue)]) -> Vec<(&'a str, OptionValue)> {
    let known: [(&'a str, OptionValue); 3] =
        [("nodes", names(&["s1", "s2:26380"])), ("sentinel_master", text("m 1")), ("stream_key", text("s"))];
    let kept = known.into_iter().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    kept.chain(more.iter().cloned()).filter(|(_, value)| *value != OptionValue::Null).collect()
}

fn exactly(more: &[(&str, OptionValue)]) -> Result<Endpoint> {
    build_in(Form::Typed, &given(more), &[])
}

#[test]
fn nodes_are_hosts_with_or_without_a_port() {
    for (node, shown) in [
        ("db1", "db1:26379"),
        ("db1:7000", "db1:7000"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("::1", "[::1]:26379"),
        ("[::1]", "[::1]:26379"),
        ("[::1]:7", "[::1]:7"),
    ] {
        let endpoint = exactly(&[("nodes", names(&[node]))]).unwrap();
        assert_eq!(endpoint.effective("nodes").unwrap(), Some(names(&[shown])));
        assert_eq!(endpoint.to_string(), format!("redis+sentinel://{shown}/m%201 stream key s"));
    }
    for node in
        ["", ":1", "db1:", "db1:0", "db1:65536", "db1:x", "db1:-1", "a b:1", "redis://u:hunter2@h", "u:hunter2@h:1"]
    {
        let said = message(exactly(&[("nodes", names(&["ok", node]))]));
        assert!(said.starts_with("nodes must be ") && !said.contains("hunter2"), "{node}: {said}");
    }
}

#[test]
fn sentinel_options_need_nodes_and_exclude_a_server() {
    for (more, start) in [
        (("nodes", OptionValue::Null), "sentinel_master needs nodes"),
        (("host", text("h")), "host cannot be used with nodes"),
        (("port", int(1)), "port cannot be used with nodes"),
        (("unix_socket", text("/s")), "unix_socket cannot be used with nodes"),
        (("sentinel_username", text("u")), "sentinel_username needs one of sentinel_password, sentinel_password_env"),
        (("sentinel_tls_ca_cert", text("/ca")), "sentinel_tls_ca_cert needs sentinel_tls to be true"),
        (("sentinel_poll", OptionValue::Float(0.01)), "sentinel_poll must be a number of seconds from 0.05"),
    ] {
        let said = message(exactly(std::slice::from_ref(&more)));
        assert!(said.starts_with(start), "{said}");
    }
    let none = [("nodes", OptionValue::Null), ("sentinel_master", OptionValue::Null), ("host", text("h"))];
    for (name, value) in
        [("sentinel_password", text("p")), ("sentinel_tls", OptionValue::Bool(false)), ("sentinel_poll", int(2))]
    {
        let said = message(exactly(&[&none[..], &[(name, value)]].concat()));
        assert_eq!(said, format!("{name} needs nodes and sentinel_master"));
    }
}

#[test]
fn sentinels_use_the_tls_of_the_server_or_their_own_but_never_its_password() {
    let (on, off) = (OptionValue::Bool(true), OptionValue::Bool(false));
    let sentinels = |more: &[(&str, OptionValue)]| exactly(more).unwrap().sentinels().unwrap().access.clone();
    let server = [("tls", on.clone()), ("tls_server_name", text("db")), ("password", text("p"))];
    let same = sentinels(&server);
    assert_eq!(same.tls().unwrap().server_name.as_deref(), Some("db"));
    assert_eq!(same.password(), Ok(None));
    let with = |more: &[(&'static str, OptionValue)]| sentinels(&[&server[..], more].concat());
    assert!(with(&[("sentinel_tls", off)]).tls().is_none());
    assert_eq!(with(&[("sentinel_tls_server_name", text("s"))]).tls().unwrap().server_name.as_deref(), Some("s"));
    assert!(sentinels(&[("sentinel_tls", on)]).tls().unwrap().server_name.is_none());
    let own = with(&[("sentinel_username", text("u")), ("sentinel_password", text("q"))]);
    assert_eq!((own.username(), own.password().unwrap().unwrap().expose()), (Some("u"), &b"q"[..]));
}

#[test]
fn every_option_survives_a_round_trip() {
    let options = [
        ("sentinel_username", text("u")),
        ("sentinel_password_env", text("Q")),
        ("sentinel_tls", OptionValue::Bool(true)),
        ("sentinel_tls_server_name", text("s")),
        ("sentinel_poll", OptionValue::Float(0.5)),
        ("username", text("w")),
        ("password_env", text("P")),
    ];
    for options in [&options[..], &options[..2], &[("tls", OptionValue::Bool(true))], &[]] {
        let endpoint = exactly(options).unwrap();
        let restored = Endpoint::restore(pairs(&endpoint.options()), pairs(&endpoint.inherited().unwrap())).unwrap();
        assert_eq!(restored.options(), endpoint.options());
    }
}

#[test]
fn a_url_names_the_sentinels_the_master_and_the_user_of_the_server() {
    let from_url = |url: &str| {
        let mut values = Given::new(OPTIONS, Form::Typed);
        url::read(url, &mut values)?;
        Endpoint::build(values, Defaults::default())
    };
    let options = given(&[("db", int(2)), ("username", text("u")), ("password", text("p@"))]);
    let built = build_in(Form::Typed, &options, &[]).unwrap();
    for scheme in ["redis", "valkey"] {
        let url = format!("{scheme}+sentinel://u:p%40@s1,s2:26380/m%201/2?stream_key=s");
        assert_eq!(from_url(&url).unwrap(), built);
    }
    assert_eq!(built.to_string(), "redis+sentinel://u@s1:26379,s2:26380/m%201/2 stream key s");
    let tls = from_url("rediss+sentinel://s1/m?stream_key=s&sentinel_poll=2").unwrap();
    assert!(tls.tls().is_some() && tls.sentinels().unwrap().access.tls().is_some());
    assert_eq!(tls.to_string(), "rediss+sentinel://s1:26379/m stream key s");
    for url in ["redis+sentinel://s1", "redis+sentinel://s1/", "redis+sentinel:///m", "redis+sentinel://u:p@/m"] {
        let said = message(from_url(&format!("{url}?stream_key=s")));
        assert!(said.contains("must be of the form redis+sentinel://"), "{said}");
    }
}
