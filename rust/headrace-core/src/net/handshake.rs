//! The handshake, before the first entry: AUTH, HELLO, SELECT, CLIENT SETINFO, XGROUP CREATE.
//!
//! HELLO is sent only to ask for the server's mode, if the endpoint does not state it. It goes out together with the first step
//! after AUTH, so that it costs no round trip, and a refusal does not matter: not every user may call it, and not every proxy
//! supports it.
//!
//! Each step waits for all its replies before the next one, and each handshake has at least one step: commands that follow a
//! failed AUTH would end the connection ("unauthenticated bulk length"), and TLS 1.3 reveals a refused client certificate
//! only at the first read.

use redis::Value;
use zeroize::Zeroizing;

use super::deadline::{ConnectError, Deadline, Stage};
use super::stream::Transport;
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Fault, ReplyText, code};
use crate::resp;
use crate::resp::outline::WHOLE;
use crate::resp::value::{bytes, field};
use crate::secret::Secret;

/// The name that `CLIENT LIST` shows for the library and, until it is changed, for the connection.
const NAME: &str = "headrace";

/// The commands that follow AUTH.
pub(super) enum Greeting<'a> {
    /// For a server: the client's name, and the database.
    Server {
        endpoint: &'a Endpoint,
        settings: &'a Settings,
        /// The streams in which to create the endpoint's consumer group now: those that this server has.
        streams: &'a [Vec<u8>],
    },
    /// For a sentinel, or for a node that is only asked for the owners of slots: none. Sentinels before Redis 7.2 do not know
    /// CLIENT SETINFO.
    Lookup,
}

/// The mode of a server, as it states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A server for all keys, or one that has not stated its mode.
    Single,
    /// A node of a cluster.
    Cluster,
    /// A sentinel, which serves no keys.
    Sentinel,
}

impl Mode {
    /// The mode in the reply to HELLO: <https://redis.io/docs/latest/commands/hello/>.
    fn of(hello: &Reply) -> Self {
        match hello.as_ref().ok().and_then(|hello| field(hello, "mode")).and_then(bytes) {
            Some(b"cluster") => Self::Cluster,
            Some(b"sentinel") => Self::Sentinel,
            Some(_) | None => Self::Single,
        }
    }
}

/// The reply to a command, or the fault for an error reply.
type Reply = Result<Value, Fault>;

/// Performs the handshake. If the server only now turns out to be a node of a cluster, it is not asked to create consumer
/// groups: another node may have the streams. After an error the transport is unusable.
pub(super) async fn run(
    transport: &mut Transport,
    username: Option<&str>,
    password: Option<&Secret>,
    greeting: &Greeting<'_>,
    patience: &mut Deadline<'_>,
) -> Result<Mode, ConnectError> {
    if let Some(password) = password {
        patience.enter(Stage::Auth);
        authenticate(transport, username, password, patience).await?;
    }
    let Greeting::Server { endpoint, settings, streams } = greeting else { return Ok(Mode::Single) };
    let mut mode = None;
    let mut asks = endpoint.is_undecided();
    // SELECT 0 would change nothing, and an ACL without +select refuses it.
    if settings.db != 0 {
        patience.enter(Stage::Select);
        let mut select = redis::pipe();
        select.cmd("SELECT").arg(settings.db);
        let (found, mut refusals) = greet(transport, &select, std::mem::take(&mut asks), patience).await?;
        if let Some(refusal) = refusals.pop().filter(|_| found != Some(Mode::Sentinel)) {
            let is_of_cluster = endpoint.cluster().is_some() || found == Some(Mode::Cluster);
            return Err(not_selected(refusal, is_of_cluster).into());
        }
        mode = found;
    }
    if mode != Some(Mode::Sentinel) {
        patience.enter(Stage::Client);
        mode = introduce(transport, asks, patience).await?.or(mode);
    }
    match mode {
        Some(Mode::Cluster) => Ok(Mode::Cluster),
        Some(Mode::Sentinel) => Err(Fault::new(code::UNSUPPORTED, IS_SENTINEL).into()),
        Some(Mode::Single) | None => {
            make_groups(transport, endpoint, streams, patience).await?;
            Ok(Mode::Single)
        }
    }
}

/// The reason that a sentinel gets no messages.
const IS_SENTINEL: &str = "it is a sentinel, which holds no streams but knows the server that does: pass it as nodes instead of \
     host, with sentinel_master, the name of the master";

/// The fault if the server does not have the database.
fn not_selected(refusal: Fault, is_of_cluster: bool) -> Fault {
    let refused = refusal_of(refusal, "SELECT");
    let why = if is_of_cluster {
        "; a cluster has database 0 only, unless cluster-databases of Valkey allows more: leave db out"
    } else {
        ""
    };
    // Built again only to truncate the message to the maximum length.
    let message = Fault::new(code::CONNECT, format!("{}{why}", refused.message)).message;
    Fault { message, ..refused }
}

/// Sends commands in one round trip, preceded by HELLO if the server is asked for its mode. Returns the mode, and the error
/// replies to the commands.
async fn greet(
    transport: &mut Transport,
    commands: &redis::Pipeline,
    asks: bool,
    patience: &mut Deadline<'_>,
) -> Result<(Option<Mode>, Vec<Fault>), ConnectError> {
    if !asks {
        let refusals = transport.refusals(&commands.get_packed_pipeline(), commands.len(), patience).await?;
        return Ok((None, refusals));
    }
    let mut packed = redis::cmd("HELLO").arg(2).get_packed_command();
    packed.extend_from_slice(&commands.get_packed_pipeline());
    let mut replies = Vec::new();
    let each = &mut |reply: Reply| replies.push(reply);
    if let Err(error) = transport.query_all(&packed, 1 + commands.len(), WHOLE, patience, each).await {
        // The last reply of a server that ends the connection states the reason.
        let words = replies.pop().and_then(Result::err).filter(Fault::ends_connection);
        return Err(words.filter(|_| error != ConnectError::Interrupted).map_or(error, ConnectError::Fault));
    }
    let mut replies = replies.into_iter();
    let mode = match replies.next() {
        Some(Err(refusal)) if is_unsolicited(&refusal) => return Err(refusal.into()),
        hello => hello.as_ref().map(Mode::of),
    };
    Ok((mode, replies.filter_map(Result::err).collect()))
}

/// The code of the refusal to create a group that already exists.
const BUSYGROUP: &str = "BUSYGROUP";

/// Creates the endpoint's consumer group in these streams, where it is missing.
pub(crate) async fn make_groups(
    transport: &mut Transport,
    endpoint: &Endpoint,
    streams: &[Vec<u8>],
    patience: &mut Deadline<'_>,
) -> Result<(), ConnectError> {
    let Some(group) = endpoint.consumer_group() else { return Ok(()) };
    patience.enter(Stage::Group);
    for stream_key in streams {
        let create = create_group(group, stream_key).get_packed_command();
        match transport.refusals(&create, 1, patience).await?.pop() {
            Some(refusal) if refusal.code != BUSYGROUP => return Err(refusal_of(refusal, "XGROUP CREATE").into()),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The command that creates a consumer group and, if it is missing, its stream.
pub(crate) fn create_group(group: &[u8], stream_key: &[u8]) -> redis::Cmd {
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(stream_key).arg(group).arg("$").arg("MKSTREAM");
    create
}

/// Sends AUTH with one argument, or with two if a user name is given (Redis 6.0 and later).
///
/// Unlike the other commands, AUTH is not packed by redis-rs, whose buffer would leave the password in freed memory. This buffer
/// is zeroed, and allocated large enough, since growing it would leave a copy behind too.
async fn authenticate(
    transport: &mut Transport,
    username: Option<&str>,
    password: &Secret,
    patience: &mut Deadline<'_>,
) -> Result<(), ConnectError> {
    let packed = packed_auth(username, password);
    for reply in transport.request(&packed, 1, patience).await? {
        if let Some(line) = reply.strip_prefix(b"-") {
            return Err(refusal_of(Fault::from_reply(&without(password.expose(), line)), "AUTH").into());
        }
        if reply != b"+OK" {
            return Err(Fault::new(code::PROTOCOL, "the server's reply to AUTH is neither OK nor an error").into());
        }
    }
    Ok(())
}

/// The starts of known refusals that repeat no part of the command. A password may be one of their words.
const KNOWN_REFUSALS: [&[u8]; 5] = [
    b"WRONGPASS invalid username-password pair or user is disabled.",
    b"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is",
    b"ERR max number of clients",
    b"DENIED Redis is running in protected mode because",
    b"LOADING Redis is loading the dataset in memory",
];

/// Removes the password from a refusal of AUTH, in case a server or a proxy repeats the command.
fn without(password: &[u8], line: &[u8]) -> Vec<u8> {
    let known = KNOWN_REFUSALS.iter().find(|known| line.starts_with(known)).map_or(0, |known| known.len());
    let (known, mut rest) = line.split_at(known);
    let mut redacted = known.to_vec();
    while let Some(at) = memchr::memmem::find(rest, password) {
        redacted.extend_from_slice(&rest[..at]);
        redacted.extend_from_slice(b"***");
        rest = &rest[at + password.len()..];
    }
    redacted.extend_from_slice(rest);
    redacted
}

/// The space that `resp::write_bulk` reserves in addition to the bytes themselves.
const ROOM_PER_BULK: usize = 64;

fn packed_auth(username: Option<&str>, password: &Secret) -> Zeroizing<Vec<u8>> {
    let length = username.map_or(0, str::len) + password.expose().len();
    let mut packed = Zeroizing::new(Vec::with_capacity(length + 4 * ROOM_PER_BULK));
    resp::write_array_header(&mut packed, 2 + usize::from(username.is_some()));
    resp::write_bulk(&mut packed, b"AUTH");
    if let Some(username) = username {
        resp::write_bulk(&mut packed, username.as_bytes());
    }
    resp::write_bulk(&mut packed, password.expose());
    packed
}

/// Tells the server the client's name. Only `CLIENT LIST` shows it, so a refusal (an ACL without +client, a server before
/// Redis 7.2 without SETINFO) is not a fault, unless it ends the connection.
async fn introduce(
    transport: &mut Transport,
    asks: bool,
    patience: &mut Deadline<'_>,
) -> Result<Option<Mode>, ConnectError> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg(NAME);
    pipeline.cmd("CLIENT").arg("SETINFO").arg("LIB-VER").arg(env!("CARGO_PKG_VERSION"));
    pipeline.cmd("CLIENT").arg("SETNAME").arg(NAME);
    let (mode, refusals) = greet(transport, &pipeline, asks, patience).await?;
    // After NOAUTH, large messages would get protocol errors as replies ("unauthenticated bulk length").
    let ends = |refusal: &Fault| is_unsolicited(refusal) || refusal.code == "NOAUTH";
    match refusals.into_iter().find(ends) {
        Some(refusal) => Err(refusal.into()),
        None => Ok(mode),
    }
}

/// Whether a server sends this error reply to a new connection, whatever the command, before it closes: too many clients, or
/// protected mode. The reply does not refuse the first command, so not AUTH either.
fn is_unsolicited(refusal: &Fault) -> bool {
    refusal.text == ReplyText::MaxClients || refusal.code == "DENIED"
}

fn refusal_of(refusal: Fault, command: &str) -> Fault {
    if is_unsolicited(&refusal) { refusal } else { refusal.of_command(command) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn auth_has_one_or_two_arguments_and_never_moves_in_memory() {
        let password = Secret::new(b"pa\r\nss".to_vec());
        assert_eq!(&**packed_auth(None, &password), b"*2\r\n$4\r\nAUTH\r\n$6\r\npa\r\nss\r\n");
        assert_eq!(&**packed_auth(Some("u"), &password), b"*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$6\r\npa\r\nss\r\n");
        for length in [1, 100, 4096, 100_000] {
            let packed = packed_auth(Some(&"u".repeat(length)), &Secret::new(vec![b'p'; length]));
            assert_eq!(packed.capacity(), 2 * length + 4 * ROOM_PER_BULK, "grown: the old buffer was not zeroed");
        }
    }

    #[test]
    fn a_password_in_an_error_reply_is_masked() {
        assert_eq!(without(b"pass", b"ERR no pass like pass"), b"ERR no *** like ***");
        assert_eq!(without(b"hunter2", b"WRONGPASS hunter2"), b"WRONGPASS ***");
        for known in KNOWN_REFUSALS {
            assert_eq!(without(b"e", known), known);
        }
    }

    #[test]
    fn errors_of_a_full_or_protected_server_are_not_auth_errors() {
        for line in ["ERR max number of clients reached", "DENIED Redis is running in protected mode"] {
            let fault = refusal_of(Fault::from_reply(line.as_bytes()), "AUTH");
            assert!(!fault.in_auth);
            assert_eq!(fault.message, line);
        }
        let fault = refusal_of(Fault::from_reply(b"WRONGPASS invalid username-password pair"), "AUTH");
        assert!(fault.in_auth);
        assert_eq!(fault.message, "AUTH was refused: WRONGPASS invalid username-password pair");
    }
}
