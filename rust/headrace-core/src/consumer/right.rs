//! A command that shows whether a consumer may do what it needs.

use super::start::Start;
use crate::entries::escaped;
use crate::error::{Classifier, Error, Fault};
use crate::net::is_redirect;
use crate::reading::Trouble;

/// A command, and the right that it needs.
#[derive(Debug)]
pub(super) struct Right {
    pub(super) name: &'static str,
    /// As an ACL names it.
    pub(super) acl: &'static str,
    pub(super) command: redis::Cmd,
}

/// The rights of a consumer on a stream. Servers check rights before arguments, and each of these commands has an argument that
/// they refuse.
pub(super) fn rights(key: &[u8], start: &Start) -> Vec<Right> {
    let (names, (acks, claims)) = (&start.names, start.needs);
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(&names.group).arg(&names.consumer).arg("COUNT").arg("x").arg("STREAMS").arg(key).arg(">");
    let mut rights = vec![Right { name: "XREADGROUP", acl: "xreadgroup", command: read }];
    let mut add = |name: &'static str, acl: &'static str, arguments: &[&[u8]]| {
        let mut command = redis::cmd(name);
        command.arg(key).arg(&names.group);
        for argument in arguments {
            command.arg(*argument);
        }
        rights.push(Right { name, acl, command });
    };
    if acks {
        add("XPENDING", "xpending", &[b"x", b"x", b"x"]);
        add("XACK", "xack", &[b"x"]);
        add("XCLAIM", "xclaim", &[&names.consumer, b"x", b"0-1"]);
    }
    if acks && claims {
        add("XAUTOCLAIM", "xautoclaim", &[&names.consumer, b"x", b"0-0"]);
    }
    if acks {
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(1).arg(key);
        rights.push(Right { name: "EVAL", acl: "eval", command });
        // The hash of a script that no server knows.
        let mut command = redis::cmd("EVALSHA");
        command.arg("0".repeat(40)).arg(1).arg(key);
        rights.push(Right { name: "EVALSHA", acl: "evalsha", command });
    }
    rights
}

impl Right {
    /// The error if the command was refused.
    pub(super) fn refused(&self, key: &[u8], refusal: &Fault) -> Trouble {
        let Self { name, acl, .. } = self;
        if Classifier::default().may_pass(refusal) {
            return Trouble::Fault(refusal.clone());
        }
        if is_redirect(refusal) {
            // The slot has moved since the nodes were last asked for it: the next connection goes to its new node.
            return Trouble::Fault(refusal.clone().of_command(name));
        }
        let (stream, key) = (key, escaped(key));
        let said = &refusal.message;
        let message = if refusal.code == "NOPERM" {
            format!("{name} was refused: the ACL user needs +{acl} ~{key}: {said}")
        } else if refusal.code == "WRONGTYPE" {
            format!("the key '{key}' does not hold a stream: {name}: {said}")
        } else {
            format!("{name} of the key '{key}' was refused: {said}")
        };
        Error::stream_refused(stream, refusal, &message).into()
    }
}
