//! What became of each message: recorded as outcomes come in, handed out as a [`DeliveryReport`].

mod arrow;
mod ids;
mod outcomes;
mod recorder;
mod texts;

pub use arrow::{ReportBatches, outcome_schema};
pub use ids::MessageId;
pub use recorder::{DeliveryReport, FailedMessage};

pub(crate) use recorder::Recorder;
