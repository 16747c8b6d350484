//! The outcome of each message: recorded as replies arrive, returned as a [`DeliveryReport`].

mod arrow;
mod data;
mod delivery;
mod ids;
mod outcomes;
mod recorder;
mod router;
mod texts;

pub use arrow::{ReportBatches, outcome_schema};
pub use delivery::{DeliveryReport, FailedMessage};
pub use ids::ReportedId;
pub use router::{AwaitedOutcome, OutcomeRouter};

pub(crate) use recorder::Recorder;
