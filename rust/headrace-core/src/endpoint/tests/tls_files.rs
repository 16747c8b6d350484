//! TLS files that change while an endpoint exists. Pairs of certificate and key are tested from Python, which can generate
//! them.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::error::code;

/// The certificate of a CA whose key was discarded.
const CA: &str = include_str!("ca.pem");

#[test]
fn tls_files_are_read_at_each_connect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, CA).unwrap();
    let endpoint = build(&[("tls", OptionValue::Bool(true)), ("tls_ca_cert", text(path.to_str().unwrap()))]).unwrap();
    let tls = endpoint.tls().unwrap();
    assert!(client_config(tls).is_ok());

    for (content, why) in [(None, "cannot be read"), (Some("nothing"), "holds no certificate")] {
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let fault = client_config(tls).unwrap_err();
        assert_eq!(fault.code, code::CONFIG);
        assert!(fault.message.starts_with(&format!("tls_ca_cert: '{}' {why}", path.display())), "{}", fault.message);
    }
    std::fs::write(&path, CA).unwrap();
    assert!(client_config(tls).is_ok());
}

#[test]
fn pem_content_is_accepted_in_place_of_a_file() {
    for given in [text(CA), OptionValue::bytes(CA.as_bytes()), text(&format!("Bag Attributes\n{CA}"))] {
        let endpoint = build(&[("tls", OptionValue::Bool(true)), ("tls_ca_cert", given)]).unwrap();
        assert!(matches!(&endpoint.tls().unwrap().ca_cert, Some(Pem::Bytes(_))));
        assert!(client_config(endpoint.tls().unwrap()).is_ok());
    }
}

#[test]
fn insecure_settings_are_reported_as_warnings() {
    let on = OptionValue::Bool(true);
    assert_eq!(build(&[("tls", on.clone())]).unwrap().warnings(), [""; 0]);
    let unchecked = build(&[("tls", on.clone()), ("tls_insecure_skip_verify", on)]).unwrap();
    let [warning] = &*unchecked.warnings() else { unreachable!("one warning") };
    assert!(warning.starts_with("tls_insecure_skip_verify: neither the certificate of h nor its name"), "{warning}");

    // Files are checked at each call, so a file whose mode was corrected is no longer reported.
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let endpoint = build(&[("password_file", text(path))]).unwrap();
    for (mode, shown) in [(0o640, "(mode 0640)"), (0o604, "(mode 0604)"), (0o1777, "(mode 1777)"), (0o733, "")] {
        file.as_file().set_permissions(PermissionsExt::from_mode(mode)).unwrap();
        let warning = endpoint.warnings().join("");
        assert!(warning.contains(shown) && warning.is_empty() == shown.is_empty(), "{mode:o}: {warning}");
        assert!(
            warning.is_empty() || warning.starts_with(&format!("password_file: '{path}' can be read")),
            "{warning}"
        );
    }
}
