//! The options of a server (address, credentials, timeouts, TLS), and the process-wide defaults of some of them.

use std::time::Duration;

use super::option::OptionDefault::{Bool, Float, Int, Text};
use super::option::{OptionSpec, Takes, option, option_table};
use super::topology::Topology;

pub(super) const DEFAULT_PORT: u16 = 6379;
pub(super) const DEFAULT_DB: u32 = 0;
pub(super) const DEFAULT_MAX_REDIRECTS: u32 = 5;
pub(super) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

const PORT: Takes = Takes::Integer { min: 1, max: 65_535 };
/// Servers read the number of SELECT as a C `int`. The limit of 16 databases is only their default.
const DB: Takes = Takes::Integer { min: 0, max: i32::MAX as i64 };
const TIMEOUT: Takes = Takes::Seconds { min: 0.001, max: 3600.0 };

option_table! {
    /// Options of the server.
    pub SERVER_OPTIONS:

    /// Name or IP address of the server; IPv6 with or without brackets. One of `host`, `unix_socket` and `nodes` is required.
    host => option(Takes::Text);
    /// TCP port. The process-wide default takes precedence over this one.
    port => option(PORT).or_depends(Int(DEFAULT_PORT as i64));
    /// Path of the server's Unix socket, at most 107 bytes (macOS: 103), instead of `host`. Not with `port` or `tls`.
    unix_socket => option(Takes::Path);
    /// What `host` or `nodes` are: `'single'`, one server; `'cluster'`, nodes of a cluster, which say where the stream is;
    /// `'sentinel'`, sentinels, which name the server. With `'auto'`, `nodes` are sentinels if `sentinel_master` is given,
    /// otherwise nodes of a cluster; `host` is a node of a cluster if it says so in its reply to `HELLO` at the first connect,
    /// otherwise a single server.
    topology => option(Takes::Choice(&Topology::NAMES)).or(Text(Topology::NAMES[0]));
    /// The nodes to ask, instead of `host`: `'host'` or `'host:port'` each. For a cluster, any of its nodes, port 6379 by
    /// default; the others are found through them. With `sentinel_master`, the sentinels that know the server, port 26379 by
    /// default. They are asked in this order, starting with the one that answered last.
    nodes => option(Takes::Nodes);
    /// Where to connect for the addresses that the nodes of a cluster show, behind NAT or forwarded ports:
    /// `{'10.0.0.1:6379': 'proxy:7001'}`, or as text `'10.0.0.1:6379=proxy:7001,…'`. Addresses that are not in it are used as
    /// they are, and so are those of `host` and `nodes`. With TLS the certificate must contain the name to connect to.
    node_map => option(Takes::Mapping("addresses 'host:port' to addresses; as text 'host:port=host:port' separated by commas"));
    /// How many times in a row a message is sent to another node of a cluster because the last one does not have its stream, or
    /// no longer has it. A message that needs more fails with `MOVED` or `ASK`.
    max_redirects => option(Takes::Integer { min: 1, max: 100 }).or(Int(DEFAULT_MAX_REDIRECTS as i64));
    /// Name of the master in the configuration of the sentinels. Each connection goes to the server that they name, if that
    /// server says that it is a master.
    sentinel_master => option(Takes::Text);
    /// How often a sentinel is asked, while messages are in flight, whether the server is still the master. If it is not, the
    /// connection ends (code `SWITCHED`), and sending continues with the new master.
    sentinel_poll => option(Takes::Seconds { min: 0.05, max: 3600.0 }).or(Float(1.0));
    /// ACL user for the sentinels. Needs one of `sentinel_password`, `sentinel_password_env`, `sentinel_password_file`.
    sentinel_username => option(Takes::Text);
    /// Password for the sentinels, to which `password` is not sent. Values as for `password`.
    sentinel_password => option(Takes::Secret).secret();
    /// Environment variable that holds the sentinels' password, like `password_env`.
    sentinel_password_env => option(Takes::Variable);
    /// File that holds the sentinels' password, like `password_file`.
    sentinel_password_file => option(Takes::Path);
    /// Whether to use TLS with the sentinels: by default as with the server, and with the same certificates, unless one of the
    /// options below is given.
    sentinel_tls => option(Takes::Boolean).or_depends(Bool(false));
    /// The only CA certificates to trust for sentinels, like `tls_ca_cert`. Needs TLS with the sentinels, as do the options
    /// below.
    sentinel_tls_ca_cert => option(Takes::Pem);
    /// The client's certificate chain for sentinels, like `tls_cert`.
    sentinel_tls_cert => option(Takes::Pem);
    /// The private key of `sentinel_tls_cert`.
    sentinel_tls_key => option(Takes::Pem).secret();
    /// Name that the sentinels' certificates must have, instead of the hosts in `nodes`.
    sentinel_tls_server_name => option(Takes::Text);
    /// Number of the database: [SELECT](https://redis.io/docs/latest/commands/select/), which is not sent for 0. Servers have 16
    /// databases by default. The process-wide default takes precedence over this one.
    db => option(DB).or_depends(Int(DEFAULT_DB as i64));
    /// ACL user, Redis 6.0 and later: [AUTH](https://redis.io/docs/latest/commands/auth/) then has two arguments. Needs one of
    /// `password`, `password_env`, `password_file`.
    username => option(Takes::Text);
    /// Password of AUTH; text is sent as UTF-8. A callable returns it at each connect. At most one of the three password options
    /// may be given.
    password => option(Takes::Secret).secret();
    /// Environment variable that holds the password, read at each connect.
    password_env => option(Takes::Variable);
    /// File that holds the password (at most 64 KiB), read at each connect. One line break at its end is removed, as with
    /// `password_env`.
    password_file => option(Takes::Path);
    /// Longest time for connecting, from name resolution to the last reply of the handshake. The process-wide default takes
    /// precedence over this one.
    connect_timeout => option(TIMEOUT).or_depends(Float(DEFAULT_CONNECT_TIMEOUT.as_secs_f64()));
    /// Longest wait for a reply, or for the next 4 KiB of one. The process-wide default takes precedence over this one.
    command_timeout => option(TIMEOUT).or_depends(Float(DEFAULT_COMMAND_TIMEOUT.as_secs_f64()));
    /// Whether to use TLS, 1.2 or later, and check the server's certificate and its name. The name must be a subject alternative
    /// name, of type IP if `host` is an address.
    tls => option(Takes::Boolean).or(Bool(false));
    /// The only CA certificates to trust, instead of the system's. A path is checked immediately, and read at each connect. Needs
    /// `tls`, as do the options below.
    tls_ca_cert => option(Takes::Pem);
    /// The client's certificate chain, if the server asks for one. Needs `tls_key`.
    tls_cert => option(Takes::Pem);
    /// The private key of `tls_cert`, not encrypted.
    tls_key => option(Takes::Pem).secret();
    /// Name that the server's certificate must have, instead of `host`.
    tls_server_name => option(Takes::Text);
    /// Whether to accept any certificate, of any name and age: for a test server at most. `tls` is still required. Not with
    /// `tls_ca_cert` or `tls_server_name`, and not in a URL.
    tls_insecure_skip_verify => option(Takes::Boolean).or(Bool(false));
}

/// The process-wide defaults of a defaults file. Their ranges are narrower than those of the options: an unusual default is
/// more likely a mistake.
pub(super) const FILE_DEFAULTS: [OptionSpec; 4] = [
    OptionSpec { name: "connect_timeout", ..option(Takes::Seconds { min: 1.0, max: 60.0 }) },
    OptionSpec { name: "command_timeout", ..option(Takes::Seconds { min: 1.0, max: 300.0 }) },
    OptionSpec { name: "default_db", ..option(DB) },
    OptionSpec { name: "default_port", ..option(PORT) },
];

/// The process-wide defaults of the environment, with the ranges of those of a defaults file.
pub(super) const ENVIRONMENT_DEFAULTS: [OptionSpec; 4] = [
    OptionSpec { name: "HEADRACE_CONNECT_TIMEOUT", ..FILE_DEFAULTS[0] },
    OptionSpec { name: "HEADRACE_COMMAND_TIMEOUT", ..FILE_DEFAULTS[1] },
    OptionSpec { name: "HEADRACE_DEFAULT_DB", ..FILE_DEFAULTS[2] },
    OptionSpec { name: "HEADRACE_DEFAULT_PORT", ..FILE_DEFAULTS[3] },
];
