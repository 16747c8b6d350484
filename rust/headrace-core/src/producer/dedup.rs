//! Exactly once: how rows that were sent before are recognised. No I/O.
//!
//! A *token* names a batch, and a row's number in it names the row permanently. There are two ways:
//!
//! - `script`: rows go out in runs of a script ([`ScriptDedup`]), which moves a marker beside the stream.
//! - `idmp`: the server itself remembers the IDs of rows for a while ([`IdempotencyIds`]).

mod idempotency_ids;
mod name_lists;
mod open_runs;
mod script;
mod script_batch;

use std::time::Duration;

use crate::command::xadd::XaddEncoder;

pub(crate) use idempotency_ids::{IDMP_ARGUMENTS, IdempotencyIds, ROWS_PER_PRODUCER};
pub(crate) use open_runs::OpenRun;
pub(crate) use script::{ScriptDedup, Sink};
pub(crate) use script_batch::ScriptBatch;

/// The option `exactly_once`, unless it is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExactlyOnce {
    Script {
        /// The lifetime of a marker, in seconds.
        ttl: u64,
        /// The maximum number of rows in a run.
        run_rows: u64,
    },
    Idmp {
        /// Whether a row is named by its message ID instead of its number.
        by_message_id: bool,
        /// How long the server must remember IDs, at least.
        duration: Duration,
    },
}

/// How the rows of a producer are deduplicated.
#[derive(Debug)]
pub(crate) enum Dedup {
    Off,
    Script(Box<ScriptDedup>),
    Idmp(Box<IdempotencyIds>),
}

impl Dedup {
    /// `max_bytes`: how many bytes open runs may take. `touches`: whether a run that was written before is made a write again, so
    /// that WAIT covers it.
    pub(crate) fn new(option: Option<&ExactlyOnce>, touches: bool, max_bytes: u64, encoder: &XaddEncoder) -> Self {
        match option {
            None => Self::Off,
            Some(ExactlyOnce::Script { ttl, run_rows }) => {
                let batch = ScriptBatch::new(*ttl, *run_rows, touches);
                Self::Script(Box::new(ScriptDedup::new(batch, max_bytes, encoder.payload_name())))
            }
            Some(ExactlyOnce::Idmp { by_message_id, duration }) => {
                Self::Idmp(Box::new(IdempotencyIds::new(*by_message_id, *duration)))
            }
        }
    }

    /// How many open runs take room in the window: all but one, so that rows of one stream always make whole runs.
    #[inline]
    pub(crate) fn runs_in_window(&self) -> usize {
        match self {
            Self::Script(script) => script.open_runs().saturating_sub(1),
            Self::Off | Self::Idmp(_) => 0,
        }
    }

    /// Starts another batch.
    pub(crate) fn begin(&mut self, token: String, version: u64) {
        match self {
            Self::Off => {}
            Self::Script(script) => script.begin(token, version),
            Self::Idmp(ids) => ids.begin(token, version),
        }
    }

    /// Removes the row that a panic left half-encoded. `passed`: how many rows of the batch come before it.
    pub(crate) fn take_back(&mut self, passed: u64) {
        match self {
            Self::Off => {}
            Self::Script(script) => script.take_back(),
            Self::Idmp(ids) => ids.rewind(passed),
        }
    }

    /// Gives up all `passed` rows of the batch so far.
    pub(crate) fn abandon(&mut self, passed: u64) {
        match self {
            Self::Off => {}
            Self::Script(script) => script.abandon(passed),
            Self::Idmp(ids) => ids.rewind(passed),
        }
    }
}
