//! Process-wide defaults: the environment and the file, their precedence, and changes to them.

use super::*;

const BASE: [(&str, &str); 2] = [("host", "h"), ("stream_key", "s")];

fn with(environment: &[(&str, &str)], options: &[(&str, OptionValue)]) -> Result<Endpoint> {
    let base = BASE.map(|(name, value)| (name, text(value)));
    build_in(Form::Typed, &[&base[..], options].concat(), environment)
}

#[test]
fn options_override_the_environment_and_the_environment_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("defaults.json");
    std::fs::write(&file, r#"{"connect_timeout": 2, "command_timeout": 2.5, "default_db": 2, "default_port": 2}"#)
        .unwrap();
    let environment =
        [("HEADRACE_DEFAULTS", file.to_str().unwrap()), ("HEADRACE_DEFAULT_DB", "3"), ("HEADRACE_DEFAULT_PORT", "3")];
    let endpoint = with(&environment, &[("port", int(4))]).unwrap();
    let settings = endpoint.settings().unwrap();
    assert_eq!((settings.port, settings.db), (4, 3));
    assert_eq!((settings.connect_timeout.as_millis(), settings.command_timeout.as_millis()), (2000, 2500));

    // The file as it is now.
    std::fs::write(&file, r#"{"connect_timeout": 9}"#).unwrap();
    let settings = endpoint.settings().unwrap();
    assert_eq!((settings.connect_timeout.as_secs(), settings.command_timeout.as_secs()), (9, 30));

    // A restored endpoint keeps the values that were in effect when it was pickled.
    let owned = |options: Vec<(&'static str, OptionValue)>| options.into_iter().map(|(n, v)| (n.to_owned(), v));
    let shipped = Endpoint::restore(owned(endpoint.options()), owned(endpoint.inherited().unwrap())).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(shipped.settings().unwrap(), settings);
    assert_ne!(shipped, endpoint);

    // The file is missing: an error names it, and its earlier values are not used; the endpoint can still be named in
    // messages.
    let said = endpoint.settings().unwrap_err().to_string();
    assert!(said.contains(file.to_str().unwrap()) && said.contains("cannot be read"), "{said}");
    assert!(endpoint.inherited().is_err());
    assert_eq!(endpoint.to_string(), "redis://h:4/3 stream key s");
    assert!(with(&environment, &[]).is_err());
}

#[test]
fn environment_variables_outside_their_ranges_are_refused_by_name() {
    for (name, good, bad) in [
        ("HEADRACE_CONNECT_TIMEOUT", ["1", "60"], ["0.9", "61"]),
        ("HEADRACE_COMMAND_TIMEOUT", ["1", "300"], ["0", "301"]),
        ("HEADRACE_DEFAULT_DB", ["0", "15"], ["-1", "x"]),
        ("HEADRACE_DEFAULT_PORT", ["1", "65535"], ["0", "65536"]),
    ] {
        for value in good {
            assert!(with(&[(name, value)], &[]).is_ok(), "{name}={value}");
        }
        for value in bad {
            let said = message(with(&[(name, value)], &[("port", int(1)), ("db", int(1))]));
            assert!(
                said.starts_with(&format!("{name} must be a")) && said.ends_with(&format!("got '{value}'")),
                "{said}"
            );
        }
        assert_eq!(with(&[(name, "")], &[]).unwrap(), with(&[], &[]).unwrap());
    }
}

#[test]
fn invalid_defaults_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("defaults.json");
    let cases = [
        ("", "the process-wide defaults are not JSON"),
        ("[]", "the process-wide defaults must be one JSON object"),
        (r#"{"default_prot": 1}"#, "unknown option 'default_prot'; did you mean 'default_port'?"),
        (r#"{"port": 1}"#, "unknown option 'port'; did you mean 'default_port'?"),
        (r#"{"default_port": "6379"}"#, "default_port must be an integer from 1 to 65535, got '6379'"),
        (r#"{"default_port": 6379.0}"#, "default_port must be an integer from 1 to 65535, got 6379"),
        (r#"{"default_port": null}"#, "default_port must be an integer from 1 to 65535, got a value of type null"),
        (r#"{"default_db": true}"#, "default_db must be an integer"),
        (r#"{"connect_timeout": 61}"#, "connect_timeout must be a number of seconds from 1 to 60, got 61"),
        (r#"{"command_timeout": 300.5}"#, "command_timeout must be a number of seconds from 1 to 300, got 300.5"),
        (
            r#"{"command_timeout": [1]}"#,
            "command_timeout must be a number of seconds from 1 to 300, got a value of type array",
        ),
    ];
    for (content, start) in cases {
        std::fs::write(&file, content).unwrap();
        let said = message(with(&[("HEADRACE_DEFAULTS", file.to_str().unwrap())], &[]));
        assert!(said.starts_with(start), "{said:?} does not start with {start:?}");
        assert!(said.ends_with(&format!("(in the file {} that HEADRACE_DEFAULTS names)", file.display())), "{said}");
    }
    std::fs::write(&file, " ".repeat(70_000)).unwrap();
    assert!(message(with(&[("HEADRACE_DEFAULTS", file.to_str().unwrap())], &[])).contains("longer than 65536 bytes"));
    std::fs::write(&file, "{}").unwrap();
    assert!(with(&[("HEADRACE_DEFAULTS", file.to_str().unwrap())], &[]).is_ok());
}
