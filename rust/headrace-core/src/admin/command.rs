//! A command, the right that an ACL user needs for it, and the meaning of its refusal.

use std::borrow::Cow;

use redis::{Cmd, ToRedisArgs};

use crate::cluster::slot;
use crate::error::{Error, Fault, code};
use crate::utf8;

/// The longest key or name that an error shows, in characters.
const MAX_SHOWN: usize = 64;

/// A command, with or without a stream.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    /// The right as in an ACL rule, without the `+`: `xgroup|create`.
    right: Cow<'static, str>,
    cmd: Cmd,
    key: Option<Vec<u8>>,
    writes: bool,
}

impl Command {
    /// A command that changes nothing.
    pub(crate) fn read(right: &'static str) -> Self {
        let mut cmd = Cmd::new();
        right.to_ascii_uppercase().split('|').for_each(|word| {
            cmd.arg(word);
        });
        Self { right: right.into(), cmd, key: None, writes: false }
    }

    /// A command that changes the stream: if its reply is lost, it is unknown whether the stream changed.
    pub(crate) fn write(right: &'static str) -> Self {
        Self { writes: true, ..Self::read(right) }
    }

    /// A command made of these words; the first is its name.
    pub(super) fn of_words(words: &[Vec<u8>], key: Option<&[u8]>, writes: bool) -> Self {
        let mut cmd = Cmd::new();
        cmd.arg(words);
        let name = words.first().map_or_else(String::new, |word| utf8::escape(word).to_ascii_lowercase());
        Self { right: name.into(), cmd, key: key.map(<[u8]>::to_vec), writes }
    }

    /// Appends the key of the stream.
    pub(crate) fn key(mut self, key: &[u8]) -> Self {
        self.key = Some(key.to_vec());
        self.arg(key)
    }

    /// Sends the command to the server that has this stream.
    pub(crate) fn beside(self, key: &[u8]) -> Self {
        Self { key: Some(key.to_vec()), ..self }
    }

    /// Appends one or more arguments.
    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.cmd.arg(argument);
        self
    }

    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        self.cmd.write_packed_command(out);
    }

    /// The slot of the stream in a cluster.
    pub(super) fn slot(&self) -> Option<u16> {
        self.key.as_deref().map(slot)
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// The name of the command, such as `XGROUP CREATE`.
    pub(crate) fn name(&self) -> String {
        name_of(&self.right)
    }

    /// The error for a refusal of this command.
    pub(crate) fn refused(&self, fault: &Fault) -> Error {
        self.refused_for(&self.right, fault)
    }

    /// The error for a script that was refused one of its own commands.
    pub(crate) fn refused_for(&self, right: &str, fault: &Fault) -> Error {
        let (name, said) = (name_of(right), &fault.message);
        let message = if fault.code == "NOPERM" {
            let key = self.key.as_ref().map_or_else(String::new, |key| format!(" ~{}", cut(key)));
            format!("{name} was refused: the ACL user needs +{right}{key}: {said}")
        } else if fault.code == "WRONGTYPE" {
            format!("the key {} does not hold a stream: {name}: {said}", shown(self.key.as_deref().unwrap_or_default()))
        } else {
            format!("{name} was refused: {said}")
        };
        Error::refused(fault, &message)
    }

    /// The error for a reply that does not fit this command.
    pub(crate) fn misunderstood(&self) -> Error {
        Error::lost(code::PROTOCOL, &format!("the server's reply to {} cannot be read", self.name()))
    }
}

fn name_of(right: &str) -> String {
    right.to_ascii_uppercase().replace('|', " ")
}

/// Escapes and shortens a key or a name for an error message.
pub(crate) fn shown(name: &[u8]) -> String {
    format!("'{}'", cut(name))
}

fn cut(name: &[u8]) -> String {
    let text = utf8::escape(name);
    let mut shown = String::new();
    for character in text.chars().take(MAX_SHOWN) {
        if character.is_control() {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn error(right: &'static str, key: Option<&[u8]>, reply: &str) -> (String, Kind, String) {
        let command = Command::read(right);
        let command = match key {
            Some(key) => command.key(key),
            None => command,
        };
        match command.refused(&Fault::from_reply(reply.as_bytes())) {
            Error::Command { code, kind, message } => (code, kind, message),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_command_is_packed_from_its_acl_name() {
        let mut packed = Vec::new();
        Command::write("xgroup|create").key(b"s\xff").arg("g").arg(&["$", "MKSTREAM"][..]).pack(&mut packed);
        let expected = b"*6\r\n$6\r\nXGROUP\r\n$6\r\nCREATE\r\n$2\r\ns\xff\r\n$1\r\ng\r\n$1\r\n$\r\n$8\r\nMKSTREAM\r\n";
        assert_eq!(packed, expected);
    }

    #[test]
    fn a_missing_permission_is_named_as_an_acl_rule() {
        let (code, kind, message) = error("xinfo|groups", Some(b"a\xff"), "NOPERM No permissions to access a key");
        assert_eq!((&*code, kind), ("NOPERM", Kind::Permanent));
        let expected = "XINFO GROUPS was refused: the ACL user needs +xinfo|groups ~a\\xff: NOPERM No permissions to access a key; \
             ACL SETUSER grants it (docs/troubleshooting.md#noperm)";
        assert_eq!(message, expected);
        let denied = "ERR ACL failure in script: User u has no permissions to run the 'xinfo|consumers' command";
        let (code, kind, message) = error("eval", Some(b"s"), denied);
        assert_eq!((&*code, kind), ("NOPERM", Kind::Permanent));
        assert!(message.starts_with("EVAL was refused: the ACL user needs +eval ~s: ERR ACL failure"), "{message}");
        assert!(error("time", None, "NOPERM no").2.starts_with("TIME was refused: the ACL user needs +time: NOPERM"));
    }

    #[test]
    fn other_errors_include_the_server_message() {
        let (code, _, message) = error("xpending", Some(b"k"), "WRONGTYPE Operation against a key");
        assert_eq!(code, "WRONGTYPE");
        let expected = "the key 'k' does not hold a stream: XPENDING: WRONGTYPE Operation against a key; choose another stream_key \
             (docs/troubleshooting.md#wrongtype)";
        assert_eq!(message, expected);
        let (code, kind, message) = error("xclaim", Some(b"k"), "LOADING Redis is loading");
        assert_eq!((&*code, kind), ("LOADING", Kind::Retryable));
        let expected = "XCLAIM was refused: LOADING Redis is loading; wait until the server has read its data, or set retry \
             (docs/troubleshooting.md#loading)";
        assert_eq!(message, expected);
        assert_eq!(shown(b"a\r\n\xff\\"), r"'a\r\n\xff\\'");
        assert_eq!(shown(&b"x".repeat(100)).chars().count(), MAX_SHOWN + 3);
    }
}
