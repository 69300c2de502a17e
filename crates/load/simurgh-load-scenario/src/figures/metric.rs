//! Metrics of times: those of every run, and those that a scenario names.

use serde::{Deserialize, Serialize};

use super::named::named;
use crate::{Act, Scenario};

named! {
    /// Times in microseconds from the intended time of the event: delays of this tool are included.
    Metric {
        /// TCP connect, and the TLS handshake where there is one.
        Connect,
        /// From the upgrade request to its answer.
        Upgrade,
        /// From a join to its reply.
        Join,
        /// From a push to its reply.
        Push,
        /// From a leave to its reply.
        Leave,
        /// From a heartbeat to its reply.
        Heartbeat,
        /// From a message to the frame that the scenario takes as its reply.
        Message,
        /// From an HTTP request to the end of its answer.
        Http,
        /// From the sender's stamp of a broadcast to each receiver.
        Delivery,
        /// From the stamp of a broadcast to its first receiver; one value for each broadcast.
        FirstReceiver,
        /// From the stamp of a broadcast to its last receiver; one value for each broadcast.
        LastReceiver,
        /// From the intended to the actual start of a user.
        ArrivalLag,
        /// From the intended to the actual time of a step.
        StepLag,
        /// From a join to the first presence list.
        PresenceState,
        /// From a user's join or leave to each member that gets the diff with it.
        PresenceDiff,
        /// This tool's receive time minus the kernel's: the error that the tool adds.
        StampError,
        /// Life of a user, from its intended start to its end.
        Session,
    }
}

/// Number of a metric: the static ones first, then [`Names::transactions`] in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetricId(pub u16);

impl From<Metric> for MetricId {
    fn from(metric: Metric) -> Self {
        Self(metric as u16)
    }
}

impl MetricId {
    /// The static metric with this number; `None` for a transaction.
    pub fn metric(self) -> Option<Metric> {
        Metric::ALL.get(usize::from(self.0)).copied()
    }
}

/// The names of the numbers in a `Delta`. Controller and agents derive them from the same scenario,
/// so that deltas do not contain them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Phases by number; the last is `appointments`, if the scenario has any.
    pub phases: Vec<String>,
    /// Sessions by number.
    pub sessions: Vec<String>,
    /// Transactions and interactions, each name once.
    pub transactions: Vec<String>,
}

impl Names {
    /// Name of the phase of users with an appointment.
    pub const APPOINTMENTS: &'static str = "appointments";

    /// The names that a scenario uses.
    pub fn of(scenario: &Scenario) -> Self {
        let mut phases: Vec<String> =
            scenario.load.phases.iter().map(|phase| phase.name.clone()).collect();
        if !scenario.load.appointments.is_empty() {
            phases.push(Self::APPOINTMENTS.to_owned());
        }
        let sessions = scenario.sessions.iter().map(|session| session.name.clone()).collect();
        let mut names = Self { phases, sessions, ..Self::default() };
        scenario.each_step(|_, step| match &step.act {
            Act::Transaction { name: id, .. }
            | Act::InteractionSend { id }
            | Act::InteractionReceive { id } => names.add(id),
            _ => {}
        });
        names
    }

    /// Number of the phase of users with an appointment; `None` if there are none.
    pub fn appointments(&self, scenario: &Scenario) -> Option<u16> {
        let phase = scenario.load.phases.len();
        (phase < self.phases.len()).then(|| u16::try_from(phase).ok()).flatten()
    }

    /// Number of a transaction or interaction.
    pub fn transaction(&self, name: &str) -> Option<MetricId> {
        let index = self.transactions.iter().position(|known| known == name)?;
        u16::try_from(Metric::ALL.len() + index).ok().map(MetricId)
    }

    /// Number of the metric with this name in outputs: `join`, `tr_login`.
    pub fn metric(&self, name: &str) -> Option<MetricId> {
        match name.strip_prefix("tr_") {
            Some(transaction) => self.transaction(transaction),
            None => Metric::named(name).map(MetricId::from),
        }
    }

    /// The name of a metric in outputs.
    pub fn metric_name(&self, id: MetricId) -> String {
        match id.metric() {
            Some(metric) => metric.name().to_owned(),
            None => {
                let index = usize::from(id.0) - Metric::ALL.len();
                match self.transactions.get(index) {
                    Some(name) => format!("tr_{name}"),
                    None => format!("metric_{}", id.0),
                }
            }
        }
    }

    /// The name of a phase in outputs.
    pub fn phase_name(&self, phase: u16) -> String {
        let known = self.phases.get(usize::from(phase));
        known.cloned().unwrap_or_else(|| (u32::from(phase) + 1).to_string())
    }

    /// The number of metrics.
    pub fn metrics(&self) -> usize {
        Metric::ALL.len() + self.transactions.len()
    }

    fn add(&mut self, name: &str) {
        if !self.transactions.iter().any(|known| known == name) {
            self.transactions.push(name.to_owned());
        }
    }
}
