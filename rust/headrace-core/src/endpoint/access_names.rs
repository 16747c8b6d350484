//! The names of the access options. Each option exists twice: for the server and for its sentinels.

/// The names of the access options.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct AccessNames {
    pub(super) username: &'static str,
    pub(super) password: &'static str,
    pub(super) password_env: &'static str,
    pub(super) password_file: &'static str,
    pub(super) tls: &'static str,
    pub(super) tls_ca_cert: &'static str,
    pub(super) tls_cert: &'static str,
    pub(super) tls_key: &'static str,
    pub(super) tls_server_name: &'static str,
    pub(super) tls_insecure_skip_verify: Option<&'static str>,
}

/// The options of the server.
pub(super) static SERVER: AccessNames = AccessNames {
    username: "username",
    password: "password",
    password_env: "password_env",
    password_file: "password_file",
    tls: "tls",
    tls_ca_cert: "tls_ca_cert",
    tls_cert: "tls_cert",
    tls_key: "tls_key",
    tls_server_name: "tls_server_name",
    tls_insecure_skip_verify: Some("tls_insecure_skip_verify"),
};

/// The options of an endpoint's sentinels.
pub(super) static SENTINEL: AccessNames = AccessNames {
    username: "sentinel_username",
    password: "sentinel_password",
    password_env: "sentinel_password_env",
    password_file: "sentinel_password_file",
    tls: "sentinel_tls",
    tls_ca_cert: "sentinel_tls_ca_cert",
    tls_cert: "sentinel_tls_cert",
    tls_key: "sentinel_tls_key",
    tls_server_name: "sentinel_tls_server_name",
    tls_insecure_skip_verify: None,
};
