//! One hook: its settings, waiting questions and those in flight.

use std::sync::Arc;

use crate::breaker::BreakerState;
use crate::config::HookConfig;
use crate::figures::HookFigures;
use crate::question::Question;
use crate::verdict::{Asked, Failure, FailureKind, Verdict};

/// One hook. Obtained by [`Hooks::hook`](crate::Hooks::hook).
#[derive(Debug)]
pub struct Hook {
    config: HookConfig,
}

impl Hook {
    pub(crate) fn new(config: HookConfig) -> Self {
        Self { config }
    }

    /// Asks the application, or answers from the cache. Never blocks; any thread may call it, and
    /// any runtime may await the future.
    pub fn ask(self: &Arc<Self>, question: Question) -> Asked {
        drop(question);
        Asked::Now(Verdict::Failed(Failure { kind: FailureKind::Failed, retry_after_ms: 1000 }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its settings.
    pub fn config(&self) -> &HookConfig {
        &self.config
    }

    /// Counts and gauges.
    pub fn figures(&self) -> HookFigures {
        HookFigures::default()
    }

    /// State of its breaker.
    pub fn state(&self) -> BreakerState {
        BreakerState::default()
    }
}
