//! Flags that change a scenario.

use std::time::Duration;

use super::{AddressRange, Arrivals, Scenario, Spread};

/// Flags that override the text. The parsers use `map`, `targets`, `local`, `strict` and
/// `exclude_tags`; [`apply`] uses the others on the finished scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `--map HOST=ADDR`: another host (or `host:port`) for a name in the text.
    pub map: Vec<(String, String)>,
    /// `--target`: URLs of servers instead of those in the text.
    pub targets: Vec<String>,
    /// `--spread`.
    pub spread: Option<Spread>,
    /// `--local`: all clients become local workers.
    pub local: bool,
    /// `--strict`: exactly Tsung's DTD, and no repairs.
    pub strict: bool,
    /// `-x TAG`: requests of these tags are left out.
    pub exclude_tags: Vec<String>,
    /// `--max-users`.
    pub users_max: Option<u64>,
    /// `--duration`.
    pub duration: Option<Duration>,
    /// `--rate`: users per second, in all phases.
    pub rate: Option<f64>,
    /// `--seed`.
    pub seed: Option<u64>,
    /// `--source`.
    pub sources: Vec<AddressRange>,
    /// `--transport tun`: the first part of the names of TUN devices.
    pub tun: Option<String>,
    /// `--insecure`.
    pub insecure: bool,
}

/// Applies the flags that the parsers do not use.
pub fn apply(scenario: &mut Scenario, overrides: &Overrides) {
    scenario.load.users_max = overrides.users_max.or(scenario.load.users_max);
    scenario.load.duration = overrides.duration.or(scenario.load.duration);
    scenario.seed = overrides.seed.unwrap_or(scenario.seed);
    scenario.spread = overrides.spread.unwrap_or(scenario.spread);
    if let Some(rate) = overrides.rate {
        for phase in &mut scenario.load.phases {
            let poisson = match phase.arrivals {
                Arrivals::Open { poisson, .. } => poisson,
                Arrivals::Closed { .. } => false,
            };
            phase.arrivals = Arrivals::Open { from: rate, to: rate, poisson };
        }
    }
    if !overrides.sources.is_empty() {
        scenario.sources.addresses.clone_from(&overrides.sources);
    }
    if overrides.tun.is_some() {
        scenario.sources.tun.clone_from(&overrides.tun);
    }
    scenario.tls.insecure |= overrides.insecure;
    if overrides.local {
        scenario.agents.clear();
    }
}
