//! The one place where a failure is called permanent or retryable.

use std::collections::BTreeMap;

use super::code::{self, Classify, Code, Kind, Written};
use super::failure::Failure;
use super::fault::{Fault, ReplyText};

/// Classifies failures as permanent or retryable: by code, and by [`ReplyText`] where the code is too general.
#[derive(Debug, Clone, Default)]
pub struct Classifier {
    mode: Classify,
    overrides: BTreeMap<String, Kind>,
}

impl Classifier {
    /// `overrides` take precedence, by code.
    pub fn new(mode: Classify, overrides: BTreeMap<String, Kind>) -> Self {
        Self { mode, overrides }
    }

    /// The kind of `fault`.
    pub fn kind(&self, fault: &Fault) -> Kind {
        if let Some(kind) = self.overrides.get(&*fault.code) {
            return *kind;
        }
        let code = code::find(&fault.code);
        match fault.text {
            ReplyText::MaxClients => Kind::Retryable,
            ReplyText::Auth | ReplyText::UnknownCommand => Kind::Permanent,
            ReplyText::BadCommand if self.mode == Classify::Strict => Kind::Permanent,
            ReplyText::Other | ReplyText::ProtocolError | ReplyText::BadCommand | ReplyText::NoSuchKey
                if fault.in_auth =>
            {
                if code.is_some_and(Code::is_retryable_in_auth) {
                    Kind::Retryable
                } else {
                    Kind::Permanent
                }
            }
            ReplyText::Other | ReplyText::ProtocolError | ReplyText::BadCommand | ReplyText::NoSuchKey => {
                code.map_or(Kind::Retryable, |code| code.kind(self.mode))
            }
        }
    }

    /// Whether the same message may be delivered in a while without intervention, so that a retry helps. A code that an
    /// override calls retryable is retried too.
    pub(crate) fn may_pass(&self, fault: &Fault) -> bool {
        if let Some(kind) = self.overrides.get(&*fault.code) {
            return *kind == Kind::Retryable;
        }
        let passes = || code::find(&fault.code).is_some_and(|code| code.passes);
        self.kind(fault) == Kind::Retryable && (fault.text == ReplyText::MaxClients || passes())
    }

    /// The outcome of a message that failed with `fault`.
    pub fn failure(&self, fault: &Fault, written: Written) -> Failure {
        Failure { kind: self.kind(fault), code: fault.code.clone(), message: fault.message.clone(), written }
    }
}
