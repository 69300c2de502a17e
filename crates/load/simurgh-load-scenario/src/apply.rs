//! Flags that change a finished scenario.

use super::{Arrivals, Overrides, Scenario};

/// Applies what the readers leave of `overrides`.
pub fn apply(scenario: &mut Scenario, overrides: &Overrides) {
    if let Some(most) = overrides.users_max {
        scenario.load.users_max = Some(most);
    }
    if let Some(duration) = overrides.duration {
        scenario.load.duration = Some(duration);
    }
    if let Some(seed) = overrides.seed {
        scenario.seed = seed;
    }
    if let Some(spread) = overrides.spread {
        scenario.spread = spread;
    }
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
    scenario.tls.insecure |= overrides.insecure;
    if overrides.local {
        scenario.agents.clear();
    }
}
