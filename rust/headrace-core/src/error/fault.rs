//! Faults of a connection, and error replies.

use std::borrow::Cow;

use super::code::{self, Code};

/// The longest sentence that is kept of an error, in characters.
pub const MAX_MESSAGE: usize = 256;

/// The longest code that is kept of an error reply. Servers' own have at most 16 characters.
const MAX_CODE: usize = 32;

/// Something went wrong on a connection, or a reply was an error. The [`Classifier`](super::Classifier) gives it its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The first word of the server's reply (`WRONGTYPE`), or one of [`code`].
    pub code: Cow<'static, str>,
    /// A sentence for people: at most [`MAX_MESSAGE`] characters, no secret, no message content.
    pub message: String,
    /// Whether this was an error reply to AUTH.
    pub in_auth: bool,
    /// The known `ERR` text, if it affects how the fault is treated.
    pub text: ReplyText,
}

/// The error replies whose code (`ERR`) is too general: recognised by these exact beginnings, never by a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyText {
    /// Any other.
    Other,
    /// `ERR max number of clients reached`: unsolicited, so it may come in reply to anything.
    MaxClients,
    /// `ERR AUTH <password> called without any password configured …`.
    Auth,
    /// `ERR Protocol error: …`; the server closes the connection after it.
    ProtocolError,
    /// `ERR unknown command …`, and in a script `ERR Unknown command called from script` or
    /// `ERR Unknown Redis command called from …`: it was renamed, or the server never had it.
    UnknownCommand,
    /// `ERR wrong number …`, `ERR Invalid stream ID …`, `ERR syntax error …`, `ERR Unknown subcommand or wrong number …`.
    BadCommand,
    /// `ERR no such key` of XINFO, `ERR The XGROUP subcommand requires the key to exist …`.
    NoSuchKey,
}

const REPLY_TEXTS: [(&str, ReplyText); 12] = [
    ("ERR max number of clients", ReplyText::MaxClients),
    ("ERR AUTH", ReplyText::Auth),
    ("ERR Protocol error", ReplyText::ProtocolError),
    ("ERR unknown command", ReplyText::UnknownCommand),
    ("ERR Unknown command called from", ReplyText::UnknownCommand),
    ("ERR Unknown Redis command called from", ReplyText::UnknownCommand),
    ("ERR wrong number", ReplyText::BadCommand),
    ("ERR Invalid stream ID", ReplyText::BadCommand),
    ("ERR syntax error", ReplyText::BadCommand),
    ("ERR Unknown subcommand or wrong number", ReplyText::BadCommand),
    ("ERR no such key", ReplyText::NoSuchKey),
    ("ERR The XGROUP subcommand requires the key to exist", ReplyText::NoSuchKey),
];

/// The error replies to a script of which the ACL user may not run a command; the second up to Redis 7.0.
const DENIED_IN_SCRIPT: [&str; 2] =
    ["ERR ACL failure in script", "ERR The user executing the script can't run this command"];

impl Fault {
    /// A fault of our own: `code` is one of [`code`].
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Cow::Borrowed(code), message: cut(&message.into()), in_auth: false, text: ReplyText::Other }
    }

    /// An error reply, given without its leading `-` and its line end.
    ///
    /// A script that was denied a command has the code `NOPERM` on every server. The arguments that "unknown command" echoes are
    /// left out: they hold the message.
    pub fn from_reply(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let first_word = line.split(' ').next().unwrap_or_default();
        let is_code = (1..=MAX_CODE).contains(&first_word.len())
            && first_word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        // Our own codes report what happened here; a server cannot know that.
        let is_code = is_code && !code::is_own(first_word);
        let is_denied = DENIED_IN_SCRIPT.iter().any(|start| line.starts_with(start));
        let code = if is_denied {
            Cow::Borrowed("NOPERM")
        } else if is_code {
            Cow::Owned(first_word.to_owned())
        } else {
            Cow::Borrowed("ERR")
        };
        let text =
            REPLY_TEXTS.iter().find(|(start, _)| line.starts_with(start)).map_or(ReplyText::Other, |(_, text)| *text);
        let kept = line.split_once(", with args beginning with").map_or(&*line, |(before, _)| before);
        Self { code, message: cut(kept), in_auth: false, text }
    }

    /// Whether a server refused the password, and may accept another one.
    pub(crate) fn is_of_password(&self) -> bool {
        self.text == ReplyText::Auth || code::find(&self.code).is_some_and(Code::is_of_password)
    }

    /// Returns the fault with the refused command named before the server's message.
    #[must_use]
    pub fn of_command(mut self, command: &str) -> Self {
        self.message = cut(&format!("{command} was refused: {}", self.message));
        self.in_auth = command == "AUTH";
        self
    }

    /// The error of the command that failed within a script, if it is the error of a script.
    pub(crate) fn of_script(&self) -> Self {
        let said = within_script(&self.message);
        said.map_or_else(|| self.clone(), |said| Self::from_reply(said.as_bytes()))
    }

    /// Whether this is an error reply after which a server closes the connection, whatever the command was.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(self.text, ReplyText::MaxClients | ReplyText::ProtocolError)
            || code::find(&self.code).is_some_and(Code::ends_connection)
    }
}

/// At most [`MAX_MESSAGE`] characters, and no control characters: messages end up in logs.
fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The error of a command within a script. Before Redis 7.0 it follows the position in the script:
/// `ERR Error running script (call to f_…): @user_script:20: WRONGTYPE …`. The error for a denied command has no code there.
fn within_script(message: &str) -> Option<Cow<'_, str>> {
    let behind = message.strip_prefix("ERR Error running script")?.rsplit_once("@user_script")?.1;
    let said = behind.trim_start_matches(|c: char| matches!(c, ':' | ' ' | '-') || c.is_ascii_digit());
    let has_code = said.split(' ').next().is_some_and(|word| word.chars().all(|c| c.is_ascii_uppercase()));
    Some(if has_code { said.into() } else { format!("ERR {said}").into() })
}
