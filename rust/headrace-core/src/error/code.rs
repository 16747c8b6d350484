//! The table of error codes: one row holds everything that is known about a code.
//!
//! A code is headrace's own, or the first word of a server's error reply. The classifier, the retry, the advice of a failed
//! Spark write and the tables of docs/outcomes.md all read these rows.

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Waiting changes nothing: the cause must be removed.
    Permanent,
    /// The same message may be delivered later.
    Retryable,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Permanent, Self::Retryable];

    /// `"permanent"` or `"retryable"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Retryable => "retryable",
        }
    }
}

/// Whether a failed message may be in the stream nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Written {
    /// Not written: the server refused the message, or not a byte of it was handed over.
    No,
    /// Unknown: the message was handed over, at least in part, and its reply never came.
    Unknown,
}

impl Written {
    /// `"no"` or `"unknown"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// The option `classify`: which failures are permanent, in addition to those that are permanent in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Classify {
    /// NOAUTH, NOPERM, WRONGTYPE, OOM and READONLY are permanent.
    #[default]
    Default,
    /// OOM and READONLY are retryable: another server is about to take over, or memory to be freed.
    Failover,
    /// Also permanent: DENIED, NOPROTO, argument errors.
    Strict,
}

impl Classify {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Default, Self::Failover, Self::Strict];
    /// The names of [`Classify::ALL`], in its order.
    pub const NAMES: [&str; 3] = ["default", "failover", "strict"];
}

/// In which modes of [`Classify`] a code is permanent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permanent {
    Always,
    Never,
    /// An administrator or a failover ends it.
    ExceptFailover,
    OnlyStrict,
}

/// Other properties of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// The server was not reached, or the connection to it was lost.
    Connection,
    /// The password was refused; another one may be accepted.
    Password,
    /// The server closes the connection after this reply, whatever it was asked.
    Close,
    /// In reply to AUTH: the server cannot check a password now. Every other reply to AUTH is permanent.
    NotYet,
    /// The row is at fault, not the server: it can never be written.
    Row,
}

/// One error code: a row of [`OWN`] or [`SERVER`].
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The code.
    pub name: &'static str,
    /// When the code occurs, for documentation.
    pub text: &'static str,
    /// What the caller can do about the failure.
    pub advice: Option<&'static str>,
    /// Whether the message may be in the stream, outside of batches with a token.
    pub written: &'static [Written],
    /// Whether the failure passes by itself, so that a retry helps: a server that is unreachable, starting, failing over or busy.
    /// `NO_STREAM` and the like are retryable, but only for a caller who does something about them.
    pub passes: bool,
    permanent: Permanent,
    means: &'static [Means],
}

impl Code {
    /// The kind of failures with this code.
    pub fn kind(&self, mode: Classify) -> Kind {
        let permanent = match self.permanent {
            Permanent::Always => true,
            Permanent::Never => false,
            Permanent::ExceptFailover => mode != Classify::Failover,
            Permanent::OnlyStrict => mode == Classify::Strict,
        };
        if permanent { Kind::Permanent } else { Kind::Retryable }
    }

    /// Whether the server was not reached, or the connection to it was lost.
    pub fn is_of_connection(&self) -> bool {
        self.means.contains(&Means::Connection)
    }

    /// Whether the server refused the password, and may accept another one.
    pub(super) fn is_of_password(&self) -> bool {
        self.means.contains(&Means::Password)
    }

    /// Whether the row is at fault, not the server.
    pub fn is_of_row(&self) -> bool {
        self.means.contains(&Means::Row)
    }

    /// Whether the server closes the connection after it.
    pub(super) fn ends_connection(&self) -> bool {
        self.means.contains(&Means::Close)
    }

    /// Whether the code is retryable even in reply to AUTH.
    pub(super) fn is_retryable_in_auth(&self) -> bool {
        self.means.contains(&Means::NotYet)
    }

    const fn new(permanent: Permanent) -> Self {
        let written = &[Written::No];
        Self { name: "", text: "", advice: None, written, passes: false, permanent, means: &[] }
    }

    const fn passes(self) -> Self {
        Self { passes: true, ..self }
    }

    const fn written(self, written: &'static [Written]) -> Self {
        Self { written, ..self }
    }

    const fn advice(self, advice: &'static str) -> Self {
        Self { advice: Some(advice), ..self }
    }

    const fn means(self, means: &'static [Means]) -> Self {
        Self { means, ..self }
    }
}

const NO_OR_UNKNOWN: &[Written] = &[Written::No, Written::Unknown];
const UNKNOWN: &[Written] = &[Written::Unknown];

const PERMANENT: Code = Code::new(Permanent::Always);
const RETRYABLE: Code = Code::new(Permanent::Never);
/// A connection that does not exist, or is lost.
const AWAY: Code =
    RETRYABLE.passes().means(&[Means::Connection]).advice("look whether the server runs and at its log, or set retry");
/// A connection that was lost.
const LOST: Code = AWAY.written(NO_OR_UNKNOWN);
/// A row that can never be written.
const ROW: Code = PERMANENT
    .means(&[Means::Row])
    .advice("filter these rows out; with Spark, on_failure='report' or 'dead_letter' passes them");
const PASSWORD: Code = PERMANENT.means(&[Means::Password]);

/// Makes a constant of each row's name, and the table of all of them; the doc comment is the row's text.
macro_rules! own_codes {
    ($($(#[doc = $text:literal])+ $name:ident => $row:expr;)+) => {
        $($(#[doc = $text])+ pub const $name: &str = stringify!($name);)+

        /// The codes of headrace. No reply of a server can have one of them.
        pub const OWN: &[Code] = &[$(Code { name: $name, text: concat!($($text),+), ..$row }),+];
    };
}

/// Makes the table of the codes that servers send, which need no constants.
macro_rules! server_codes {
    ($($(#[doc = $text:literal])+ $name:ident => $row:expr;)+) => {
        /// The codes of servers' error replies that mean something to headrace. Any other code is retryable, and does not pass by
        /// itself. `NOAUTH` may also come from a proxy whose own password is a different one.
        pub const SERVER: &[Code] = &[$(Code { name: stringify!($name), text: concat!($($text),+), ..$row }),+];
    };
}

own_codes! {
    /// The server cannot be reached: refused, no route, no such Unix socket.
    CONNECT => AWAY.advice("check that a server runs and listens there");
    /// The host name has no address.
    DNS => AWAY.advice("check the name, and the name servers of this machine");
    /// No connection within `connect_timeout` (no); no reply for `command_timeout`, or `flush(timeout)` expired (unknown for
    /// messages that were handed over, no for the rest).
    TIMEOUT => LOST.advice("look at the server's load and SLOWLOG, or raise the timeout");
    /// The connection was reset: unknown for messages that were handed over and not answered, no for the rest.
    RESET => LOST;
    /// The server closed the connection: unknown for messages that were handed over and not answered, no for the rest.
    EOF => LOST;
    /// No sentinel names a master, or the server that it names is not a master now.
    NO_MASTER => AWAY.advice("check nodes and sentinel_master, and what SENTINEL MASTER says; a failover takes a few seconds");
    /// The sentinels name another master: unknown for messages that were handed over and not answered, no for the rest.
    SWITCHED => LOST;
    /// No node of the cluster has the slot of the stream, or the nodes disagree about it.
    NO_SLOT => AWAY.advice("check nodes, and what CLUSTER SLOTS says; a failover takes a few seconds");
    /// The TLS handshake failed: trust, name, validity, client certificate, version, or a tampered connection.
    TLS => PERMANENT.means(&[Means::Connection])
        .advice("check tls_ca_cert, tls_cert, tls_key and tls_server_name, and the server's certificate");
    /// A reply that does not fit the command: unknown for messages that were handed over and not answered, no for the rest.
    PROTOCOL => RETRYABLE
        .means(&[Means::Connection])
        .written(NO_OR_UNKNOWN)
        .advice("check that host and port belong to a Redis or Valkey server");
    /// A file or a variable that the endpoint names cannot be read now (password, TLS key, process-wide defaults), or a callable
    /// returned no password.
    CONFIG => RETRYABLE.advice("set the variable, or make the file readable; with Spark, on every executor");
    /// A defect in headrace ended the call: no for rows that it could not encode, unknown for messages whose reply it could not
    /// read.
    INTERNAL => PERMANENT.written(NO_OR_UNKNOWN)
        .advice("report the place that the logger headrace names; the error says which row it was");
    /// Ctrl-C came before the row was taken from its record batch.
    INTERRUPTED => RETRYABLE.advice("the call was interrupted: produce the row again");
    /// `nomkstream` is set, and the stream does not exist.
    NO_STREAM => RETRYABLE.advice("create the stream, or do not set nomkstream");
    /// The entry's ID is below `minid`: it was written, and trimmed immediately or soon after.
    TRIMMED => PERMANENT.written(UNKNOWN).advice("check minid: it is above the entry's ID");
    /// The message is larger than the server accepts (`proto-max-bulk-len`, 512 MiB by default), or its Arrow IPC entry is larger
    /// than 512 MiB, or than 1 GiB before compression.
    TOO_LARGE => ROW.advice(
        "make the message smaller, or raise proto-max-bulk-len of the server; with Spark, on_failure passes its row");
    /// The row's payload is null.
    NULL_PAYLOAD => ROW;
    /// The message or row has no field, or each of its fields is null (None).
    EMPTY => ROW.advice("give it a field with a value, or do not send it; with Spark, on_failure passes its row");
    /// The message or row has a stream key of its own, which is empty.
    BAD_STREAM_KEY => ROW
        .advice("give it a key, or None (null) for the endpoint's stream; with Spark, on_failure passes its row");
    /// The message or row has an entry ID of its own, which has none of the forms `*`, `ms`, `ms-seq`, `ms-*`.
    BAD_ENTRY_ID => ROW
        .advice("give it an allowed ID, or None (null) for the server's; with Spark, on_failure passes its row");
    /// `fields=`, `json=`: a column of the row holds a value that its type does not allow, such as a time outside a day.
    /// `fields_from=`: the name of a field is null. `arrow_ipc`: a column of the entry contains a null where its type allows
    /// none.
    BAD_VALUE => ROW;
    /// `exactly_once`: an earlier message of its stream was not written, and messages stay in order.
    BLOCKED => RETRYABLE.advice("exactly once keeps the order of a stream: see what failed before these rows");
    /// `exactly_once`: the marker of the batch is missing, or behind messages that were acknowledged.
    MARKER_LOST => PERMANENT
        .advice("the server lost the marker that records how far the batch got");
    /// `shards`: the stream has a different number of shards, a different hash or different names; or the key that records them
    /// is missing.
    BAD_SHARDS => PERMANENT.advice("use the shards that the stream has");
    /// The server does not support what an option asks for; the message says what is required.
    UNSUPPORTED => PERMANENT;
    /// `exactly_once_key="message_id"`: the message has no ID.
    NULL_MESSAGE_ID => PERMANENT.advice("give each row a message ID, or do not set exactly_once_key");
    /// `exactly_once_key="message_id"`: another message of the batch has the same ID.
    DUPLICATE_ID => PERMANENT.advice("give each row a message ID of its own, or do not set exactly_once_key");
    /// The batch has more than 1,048,576 messages (`exactly_once_key="message_id"`) or 262,144 streams
    /// (`exactly_once="script"`).
    TOO_MANY => RETRYABLE.advice("start another batch; with Spark, write in more partitions");
    /// `wait_replicas`, `wait_aof`: the server has the message, but too few replicas or files had it in time, or the connection
    /// ended before that was known.
    NOT_REPLICATED => RETRYABLE.written(UNKNOWN)
        .advice("make sure enough replicas keep up, or raise wait_timeout");
}

server_codes! {
    /// The server requires a password, and the endpoint has none.
    NOAUTH => PASSWORD.advice("give the password: password_env, password_file, or in the URL");
    /// Wrong user name or password; a password that can change was read once more: docs/credentials.md.
    WRONGPASS => PASSWORD.advice("check username and the password, and that the user is on (ACL GETUSER)");
    /// The ACL user is not allowed to use the command or the key.
    NOPERM => PERMANENT.advice("grant the ACL user the command and the key, with ACL SETUSER");
    /// The key holds something other than a stream.
    WRONGTYPE => PERMANENT.advice("the key holds something other than a stream: choose another stream_key");
    /// The server's `maxmemory` is reached.
    OOM => Code::new(Permanent::ExceptFailover).passes().advice(
        "give the server more memory, or bound the stream with maxlen; error_overrides={\"OOM\": \"retryable\"} waits for it");
    /// The server is a replica.
    READONLY => Code::new(Permanent::ExceptFailover).passes()
        .advice("connect to the primary; classify=failover waits for a failover");
    /// `exactly_once`: the script found something else under the key of the batch's marker.
    BAD_MARKER => PERMANENT.advice("the key of the batch's marker holds something else");
    /// The server refuses connections from other hosts (protected mode).
    DENIED => Code::new(Permanent::OnlyStrict).means(&[Means::Close])
        .advice("set a password on the server, or bind it to this address");
    /// The server does not support the version of the protocol.
    NOPROTO => Code::new(Permanent::OnlyStrict);
    /// The keys of one command are in different slots of a cluster: `exactly_once="script"`, and a stream key with a `}` and
    /// without a `{tag}`, in whose slot no marker can be.
    CROSSSLOT => PERMANENT.advice("give the stream a key without braces, or with a {tag}");
    /// The server is a node of a cluster, and the key is on another one: with topology 'cluster' after `max_redirects` tries,
    /// otherwise immediately.
    MOVED => RETRYABLE.advice("set nodes, or topology='cluster'");
    /// The server is a node of a cluster, and the key is moving to another one: like `MOVED`.
    ASK => RETRYABLE.advice("set nodes, or topology='cluster'");
    /// The server is loading its data after a start.
    LOADING => RETRYABLE.passes().means(&[Means::NotYet]).advice("wait until the server has read its data, or set retry");
    /// The replica has lost its primary, and is not allowed to answer with old data.
    MASTERDOWN => RETRYABLE.passes().means(&[Means::NotYet])
        .advice("wait until the replica has its primary again, or connect to the primary");
    /// A script or function is blocking the server.
    BUSY => RETRYABLE.passes().means(&[Means::NotYet]).advice("wait until the script ends, or end it: SCRIPT KILL");
    /// Fewer replicas are connected than `min-replicas-to-write` requires, or none where `wait_replicas='all'` needs one.
    NOREPLICAS => RETRYABLE.passes().advice("start the replicas, or lower min-replicas-to-write or wait_replicas");
    /// The cluster is down, or the slot has no node.
    CLUSTERDOWN => RETRYABLE.passes().advice("see CLUSTER INFO; a failover takes a few seconds");
    /// The slot is being moved between nodes.
    TRYAGAIN => RETRYABLE.passes();
    /// The server cannot save to disk, and refuses writes until it can.
    MISCONF => RETRYABLE.passes().advice("free disk space of the server, and see its log");
    /// The server does not know the script; it is sent again with its text.
    NOSCRIPT => RETRYABLE.passes();
    /// When reading: the server became a replica while it waited for new entries.
    UNBLOCKED => RETRYABLE.passes();
}

/// Advice for a code by what its message contains, where one code has several causes.
const ADVICE_BY_WORDS: &[(&str, &str, &str)] = &[
    (TLS, "unknown CA", "give the CA of the server's certificate as tls_ca_cert"),
    (TLS, "expired at", "renew the server's certificate, or set the clock of this machine"),
    (TLS, "is not valid before", "set the clock of this machine, or of the one that issued the certificate"),
    (TLS, "is not for", "connect by a name that the certificate holds, or give one as tls_server_name"),
    (TLS, "client certificate", "give tls_cert and tls_key with a certificate that the server trusts"),
    (
        PROTOCOL,
        "cannot connect to",
        "check that host and port are those of a Redis or Valkey server; tls needs its TLS port",
    ),
    (TIMEOUT, "in the TLS handshake", "give the TLS port of the server, or leave tls out"),
    (TIMEOUT, "while resolving", "check the name servers of this machine"),
    (TIMEOUT, "while opening", "check the address, and for a firewall that drops packets"),
    (EOF, "expects TLS", "give tls if the server speaks TLS on this port"),
    (RESET, "expects TLS", "give tls if the server speaks TLS on this port"),
    ("WRONGTYPE", "does not hold a stream", "choose another stream_key"),
    ("NOPERM", "the ACL user needs", "ACL SETUSER grants it"),
    ("ERR", "max number of clients", "close connections that are not needed, or raise maxclients of the server"),
    ("ERR", "called without any password", "leave the password out, or give the user with username"),
    ("ERR", "refused SENTINEL", "give the addresses of sentinels as nodes, or leave sentinel_master out"),
    ("ERR", "DB index is out of range", "choose a db that the server has"),
];

/// What the caller can do about a failure with this code and this message.
pub fn advice(name: &str, message: &str) -> Option<&'static str> {
    let by_words = ADVICE_BY_WORDS.iter().find(|(code, words, _)| *code == name && message.contains(words));
    by_words.map(|(_, _, advice)| *advice).or_else(|| find(name)?.advice)
}

/// The message, what the caller can do about it, and where the documentation explains the code.
pub fn advised(name: &str, message: &str) -> String {
    match advice(name, message) {
        Some(advice) => {
            let (message, section) = (message.trim_end_matches('.'), name.to_ascii_lowercase());
            format!("{message}; {advice} (docs/troubleshooting.md#{section})")
        }
        None => message.to_owned(),
    }
}

/// The row of `name`, if there is one.
pub fn find(name: &str) -> Option<&'static Code> {
    OWN.iter().chain(SERVER).find(|code| code.name == name)
}

/// Whether `name` is a code for a server that was not reached or was lost, and that may be back soon.
pub(crate) fn is_away(name: &str) -> bool {
    find(name).is_some_and(|code| code.is_of_connection() && code.passes)
}

/// Whether `name` is headrace's own: a server cannot send it.
pub(super) fn is_own(name: &str) -> bool {
    OWN.iter().any(|code| code.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(rows: &[Code], chosen: impl Fn(&Code) -> bool) -> Vec<&'static str> {
        rows.iter().filter(|code| chosen(code)).map(|code| code.name).collect()
    }

    #[test]
    fn every_code_has_one_row_with_a_text() {
        let mut names: Vec<_> = OWN.iter().chain(SERVER).map(|code| code.name).collect();
        names.sort_unstable();
        let rows = names.len();
        names.dedup();
        assert!(names.len() == rows && rows >= 45, "{} names in {rows} rows", names.len());
        for code in OWN.iter().chain(SERVER) {
            assert!(code.text.trim().ends_with('.'), "{}", code.name);
        }
    }

    #[test]
    fn advice_is_by_words_first_and_else_by_code() {
        for (name, words, advice) in ADVICE_BY_WORDS {
            assert!(*name == "ERR" || find(name).is_some(), "{name}");
            assert_eq!(super::advice(name, &format!("it said: {words}.")), Some(*advice));
        }
        assert_eq!(advice(CONNECT, ""), Some("check that a server runs and listens there"));
        assert_eq!(advice("ERR", "ERR syntax error"), None);
        assert_eq!(advice(UNSUPPORTED, "take 'script'"), None, "the message says what is required");
        assert_eq!(
            advice(TOO_LARGE, ""),
            Some(
                "make the message smaller, or raise proto-max-bulk-len of the server; with Spark, on_failure passes its row"
            )
        );
        assert_eq!(
            advice(CONFIG, ""),
            Some("set the variable, or make the file readable; with Spark, on every executor")
        );
        assert!([EMPTY, BAD_STREAM_KEY, BAD_ENTRY_ID].iter().all(|code| advice(code, "") != ROW.advice));
        assert_eq!(advice("NOPERM", ""), Some("grant the ACL user the command and the key, with ACL SETUSER"));
        assert_eq!(
            advised(CONNECT, "refused."),
            "refused; check that a server runs and listens there (docs/troubleshooting.md#connect)"
        );
        assert_eq!(advised("ERR", "ERR syntax error."), "ERR syntax error.");
    }

    #[test]
    fn own_codes_by_group() {
        let permanent = named(OWN, |code| code.kind(Classify::Default) == Kind::Permanent);
        let expected = [
            TLS,
            INTERNAL,
            TRIMMED,
            TOO_LARGE,
            NULL_PAYLOAD,
            EMPTY,
            BAD_STREAM_KEY,
            BAD_ENTRY_ID,
            BAD_VALUE,
            MARKER_LOST,
            BAD_SHARDS,
            UNSUPPORTED,
            NULL_MESSAGE_ID,
            DUPLICATE_ID,
        ];
        assert_eq!(permanent, expected);
        for mode in Classify::ALL {
            assert_eq!(named(OWN, |code| code.kind(mode) == Kind::Permanent), permanent, "{mode:?}");
        }
        assert_eq!(named(OWN, |code| code.passes), [CONNECT, DNS, TIMEOUT, RESET, EOF, NO_MASTER, SWITCHED, NO_SLOT]);
        assert_eq!(
            named(OWN, Code::is_of_connection),
            [CONNECT, DNS, TIMEOUT, RESET, EOF, NO_MASTER, SWITCHED, NO_SLOT, TLS, PROTOCOL]
        );
        assert_eq!(
            named(OWN, Code::is_of_row),
            [TOO_LARGE, NULL_PAYLOAD, EMPTY, BAD_STREAM_KEY, BAD_ENTRY_ID, BAD_VALUE]
        );
    }

    #[test]
    fn server_codes_by_group() {
        let permanent = |mode| named(SERVER, |code| code.kind(mode) == Kind::Permanent);
        let always = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"];
        assert_eq!(
            permanent(Classify::Default),
            [&always[..], &["OOM", "READONLY", "BAD_MARKER", "CROSSSLOT"]].concat()
        );
        assert_eq!(permanent(Classify::Failover), [&always[..], &["BAD_MARKER", "CROSSSLOT"]].concat());
        let strict = ["OOM", "READONLY", "BAD_MARKER", "DENIED", "NOPROTO", "CROSSSLOT"];
        assert_eq!(permanent(Classify::Strict), [&always[..], &strict].concat());
        let passing = [
            "OOM",
            "READONLY",
            "LOADING",
            "MASTERDOWN",
            "BUSY",
            "NOREPLICAS",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "MISCONF",
            "NOSCRIPT",
            "UNBLOCKED",
        ];
        assert_eq!(named(SERVER, |code| code.passes), passing);
        assert_eq!(named(SERVER, Code::is_of_password), ["NOAUTH", "WRONGPASS"]);
        assert_eq!(named(SERVER, Code::is_of_row), [""; 0]);
        assert_eq!(named(SERVER, Code::ends_connection), ["DENIED"]);
        assert_eq!(named(SERVER, Code::is_retryable_in_auth), ["LOADING", "MASTERDOWN", "BUSY"]);
    }
}
