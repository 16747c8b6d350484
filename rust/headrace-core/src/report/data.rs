//! The content of a report.

use super::ids::MessageIds;
use super::outcomes::Outcomes;
use crate::error::Failure;

/// The content of one report, shared by the report and its record batches.
#[derive(Debug)]
pub(super) struct ReportData {
    pub(super) first_ordinal: u64,
    pub(super) ids: MessageIds,
    pub(super) outcomes: Outcomes,
    pub(super) failures: Vec<Failure>,
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) retries: u64,
    pub(super) possible_duplicates: u64,
    pub(super) deduplicated: u64,
}
