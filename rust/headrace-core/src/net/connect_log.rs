//! The steps of a connect with their times, for a tool that shows where a connect fails and how long each step takes.

use std::fmt;
use std::time::{Duration, Instant};

use super::change::ServerChange;
use super::connect_step::ConnectStep;
use super::deadline::{TooFewReplicas, Watch};
use crate::retry::{RetryEnd, RetryWait};

/// A recorded step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedStep {
    /// The time since the start of the connect.
    pub after: Duration,
    /// The name of the step.
    pub name: &'static str,
    /// The details of the step.
    pub detail: Vec<u8>,
}

/// Records the steps of a connect and forwards everything else to another watch.
pub(crate) struct ConnectLog<'w> {
    began: Instant,
    steps: Vec<NotedStep>,
    watch: &'w mut dyn Watch,
}

impl<'w> ConnectLog<'w> {
    pub(crate) fn new(watch: &'w mut dyn Watch) -> Self {
        Self { began: Instant::now(), steps: Vec::new(), watch }
    }

    pub(crate) fn into_steps(self) -> Vec<NotedStep> {
        self.steps
    }
}

impl Watch for ConnectLog<'_> {
    fn interrupted(&mut self) -> bool {
        self.watch.interrupted()
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.watch.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.watch.retry_ended(end);
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.watch.too_few_replicas(few);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.watch.server_changed(endpoint, change);
    }

    fn connect_step(&mut self, step: ConnectStep<'_>) {
        let (name, detail) = match step {
            ConnectStep::Peer(title) => ("peer", title.as_bytes().to_vec()),
            ConnectStep::Stage(name) => (name, Vec::new()),
            ConnectStep::Address(address) => ("address", address.to_string().into_bytes()),
            ConnectStep::Unreached(address, why) => ("unreached", format!("{address}: {why}").into_bytes()),
            ConnectStep::Reached(address) => ("reached", address.to_string().into_bytes()),
            ConnectStep::Session(text) => ("session", text.as_bytes().to_vec()),
            ConnectStep::Certificate(der) => ("certificate", der.to_vec()),
            ConnectStep::Connected => ("connected", Vec::new()),
        };
        self.steps.push(NotedStep { after: self.began.elapsed(), name, detail });
    }
}
