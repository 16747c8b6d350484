//! Passwords from a provider.

use std::any::Any;
use std::sync::Mutex;

use super::*;
use crate::error::code;
use crate::net::ConnectError;

/// Returns the given answers in order.
struct Scripted {
    name: &'static str,
    answers: Mutex<Vec<std::result::Result<Secret, NoPassword>>>,
}

impl PasswordProvider for Scripted {
    fn ask(&self) -> std::result::Result<Secret, NoPassword> {
        self.answers.lock().unwrap().remove(0)
    }

    fn name(&self) -> &str {
        self.name
    }

    fn equals(&self, other: &dyn PasswordProvider) -> bool {
        other.as_any().downcast_ref::<Self>().is_some_and(|other| self.name == other.name)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn scripted(name: &'static str, answers: &[std::result::Result<&str, NoPassword>]) -> OptionValue {
    let answers =
        answers.iter().map(|answer| answer.clone().map(|text| Secret::new(text.as_bytes().to_vec()))).collect();
    OptionValue::Provider(Provider::new(Scripted { name, answers: Mutex::new(answers) }))
}

fn endpoint(answers: &[std::result::Result<&str, NoPassword>]) -> Endpoint {
    build(&[("username", text("u")), ("password", scripted("vault.read", answers))]).unwrap()
}

#[test]
fn a_provider_is_called_each_time() {
    let endpoint = endpoint(&[Ok("one"), Ok("two"), Err(NoPassword::Failed("raised E".to_owned())), Ok(""), Ok("six")]);
    assert_eq!(endpoint.password().unwrap().unwrap().expose(), b"one");
    assert_eq!(endpoint.password().unwrap().unwrap().expose(), b"two");
    assert_eq!(why_not(&endpoint), "password: the callable vault.read raised E");
    assert_eq!(why_not(&endpoint), "password: the callable vault.read returned an empty password");
    assert_eq!(endpoint.password().unwrap().unwrap().expose(), b"six");
}

#[test]
fn a_provider_failure_is_a_connect_fault_but_an_interrupt_is_not() {
    let endpoint = endpoint(&[Err(NoPassword::Failed("raised E".to_owned())), Err(NoPassword::Interrupted)]);
    let ConnectError::Fault(fault) = endpoint.password().unwrap_err().into() else { unreachable!() };
    assert_eq!(fault.code, code::CONFIG);
    assert_eq!(ConnectError::from(endpoint.password().unwrap_err()), ConnectError::Interrupted);
}

#[test]
fn only_a_different_available_password_counts_as_changed() {
    let failed = Err(NoPassword::Failed(String::new()));
    let endpoint = endpoint(&[Ok("old"), Ok("old"), Ok("new"), failed, Ok(""), Err(NoPassword::Interrupted)]);
    let old = endpoint.password().unwrap();
    let changed = || endpoint.access().changed_password(old.as_ref());
    assert_eq!(changed(), Ok(None));
    assert_eq!(changed(), Ok(Some(Secret::new(b"new".to_vec()))));
    assert_eq!(changed(), Ok(None));
    assert_eq!(changed(), Ok(None));
    assert_eq!(changed(), Err(NoPassword::Interrupted));
    let fixed = build(&[("password", text("new"))]).unwrap();
    assert_eq!(fixed.access().changed_password(old.as_ref()), Ok(None));
    assert_eq!(build(&[]).unwrap().access().changed_password(None), Ok(None));
    let variable = build(&[("password_env", text("CARGO_PKG_NAME"))]).unwrap();
    assert_eq!(variable.access().changed_password(old.as_ref()).unwrap().unwrap().expose(), b"headrace-core");
    assert_eq!(variable.access().changed_password(variable.password().unwrap().as_ref()), Ok(None));
}

#[test]
fn providers_are_compared_shown_and_returned() {
    let [one, same, other] = ["a", "a", "b"].map(|name| build(&[("password", scripted(name, &[]))]).unwrap());
    assert_eq!(one, same);
    assert_ne!(one, other);
    assert_ne!(one, build(&[("password", text("a"))]).unwrap());
    assert!(format!("{one:?}").contains("Asked(<callable a>)"), "{one:?}");
    let again = Endpoint::restore(one.options().into_iter().map(|(name, value)| (name.to_owned(), value)), []).unwrap();
    assert_eq!(again, one);
    let Some(OptionValue::Provider(provider)) = one.option("password") else { unreachable!() };
    assert!(provider.get().as_any().is::<Scripted>());
    assert_eq!(format!("{:?}", one.option("password").unwrap()), "a callable");
}

#[test]
fn a_provider_is_accepted_only_as_a_password_in_typed_form() {
    assert_eq!(message(build(&[("host", scripted("f", &[]))])), "host must be non-empty text, got a callable");
    assert_eq!(
        message(build(&[("password", scripted("f", &[])), ("password_env", text("P"))])),
        "password, password_env and password_file are mutually exclusive"
    );
    let options = [("host", text("h")), ("stream_key", text("s")), ("password", scripted("f", &[]))];
    assert_eq!(
        message(build_in(Form::Text, &options, &[])),
        "password must be text if all options are text, got the callable f; give password_env or password_file"
    );
    let url = Endpoint::from_url("redis://u@h/?stream_key=s", pairs(&[("password", scripted("f", &[]))])).unwrap();
    assert!(url.access().has_provider());
}
