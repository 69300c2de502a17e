//! Metadata of a run: the first line of its journal and the head of its report.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use simurgh_load_scenario::{Arrivals, Dump, Scenario, Threshold};

use super::Names;

/// The data of a run that are known before it starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The journal's format: [`Meta::FORMAT`].
    pub format: u32,
    /// Version of this tool.
    pub version: String,
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The servers, `host:port`.
    pub targets: Vec<String>,
    /// Hosts that generate load, by number; `local` for this one.
    pub hosts: Vec<String>,
    /// The names of the numbers in ticks.
    pub names: Names,
    /// The planned phases.
    pub phases: Vec<PhasePlan>,
    /// The run ends after this time at the latest, seconds.
    pub duration_s: Option<f64>,
    /// The maximum number of users.
    pub users_max: Option<u64>,
    /// The thresholds that decide the exit status.
    pub pass: Vec<Threshold>,
    /// Every sample is written, for a Tsung file with `backend="fullstats"`.
    pub full_stats: bool,
    /// Which traffic is written, for a Tsung file with `dumptraffic`.
    pub dump: Dump,
}

/// A phase as planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhasePlan {
    /// Its name.
    pub name: String,
    /// When it starts, seconds after the start of the run, if no phase waits for its users.
    pub starts_s: f64,
    /// How long users arrive, seconds.
    pub duration_s: f64,
    /// Users per second at its start; in a closed phase 0.
    pub rate_from: f64,
    /// Users per second at its end; in a closed phase 0.
    pub rate_to: f64,
    /// Users at a time at its start; in an open phase 0.
    pub users_from: u64,
    /// Users at a time at its end; in an open phase 0.
    pub users_to: u64,
}

impl Meta {
    /// The journal's format in this version.
    pub const FORMAT: u32 = 1;

    /// Describes a run of `scenario` that starts at `started` on `hosts`.
    pub fn of(scenario: &Scenario, hosts: Vec<String>, started: SystemTime) -> Self {
        let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let tsung = scenario.tsung.clone().unwrap_or_default();
        let targets = scenario.targets.iter();
        Self {
            format: Self::FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            started_unix_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            targets: targets.map(|to| format!("{}:{}", to.host, to.address.port())).collect(),
            hosts,
            names: Names::of(scenario),
            phases: plan(scenario),
            duration_s: scenario.load.duration.map(|time| time.as_secs_f64()),
            users_max: scenario.load.users_max,
            pass: scenario.pass.clone(),
            full_stats: tsung.full_stats,
            dump: tsung.dump,
        }
    }

    /// The name of a host in outputs.
    pub fn host_name(&self, host: u16) -> String {
        let known = self.hosts.get(usize::from(host));
        known.cloned().unwrap_or_else(|| format!("host-{host}"))
    }
}

fn plan(scenario: &Scenario) -> Vec<PhasePlan> {
    let mut starts = Duration::ZERO;
    let phases = scenario.load.phases.iter().map(|phase| {
        let mut plan = PhasePlan {
            name: phase.name.clone(),
            starts_s: starts.as_secs_f64(),
            duration_s: phase.duration.as_secs_f64(),
            ..PhasePlan::default()
        };
        match phase.arrivals {
            Arrivals::Open { from, to, .. } => (plan.rate_from, plan.rate_to) = (from, to),
            Arrivals::Closed { from, to } => (plan.users_from, plan.users_to) = (from, to),
        }
        starts = starts.saturating_add(phase.duration);
        plan
    });
    phases.collect()
}
