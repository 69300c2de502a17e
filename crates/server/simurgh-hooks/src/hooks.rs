//! All hooks of a server, and their thread.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use tokio::runtime::{Builder, Runtime};

use crate::answer::IdOf;
use crate::client::Client;
use crate::config::HookConfig;
use crate::hook::Hook;
use crate::request::Template;
use crate::shared::{Shared, unix_ms};

const THREAD: &str = "simurgh-hooks";
/// Threads that resolve names.
const RESOLVERS: usize = 2;

/// Why hooks cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings that cannot be used.
    #[error("hook \"{hook}\": {problem}")]
    Settings {
        /// Name of the hook.
        hook: String,
        /// The mistake.
        problem: String,
    },
    /// The system refuses a thread, an event loop or random numbers.
    #[error("the thread of hooks cannot start: {0}")]
    System(#[from] io::Error),
}

/// All hooks of a server. The thread ends when the last reference is gone and all questions have
/// their answers.
pub struct Hooks {
    hooks: Vec<Arc<Hook>>,
    shared: Arc<Shared>,
}

impl Hooks {
    /// Starts the thread `simurgh-hooks`. It must start before the shards: their descriptor tables
    /// keep only wakers that existed then.
    pub fn start(
        node: &str,
        configs: Vec<HookConfig>,
        id_of: IdOf,
    ) -> Result<Arc<Self>, StartError> {
        let shared = Arc::new(Shared::new(id_of)?);
        let mut names = HashSet::new();
        let mut hooks = Vec::with_capacity(configs.len());
        for config in configs {
            let name = config.name.clone();
            let made = if names.insert(name.clone()) {
                make(config, node, &shared)
            } else {
                Err("two hooks have this name".to_owned())
            };
            hooks.push(made.map_err(|problem| StartError::Settings { hook: name, problem })?);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(THREAD)
            .max_blocking_threads(RESOLVERS)
            .build()?;
        let served = hooks.clone();
        thread::Builder::new().name(THREAD.to_owned()).spawn(move || serve(&runtime, served))?;
        Ok(Arc::new(Self { hooks, shared }))
    }

    /// The hook of this name.
    pub fn hook(&self, name: &str) -> Option<Arc<Hook>> {
        self.hooks.iter().find(|hook| hook.name() == name).cloned()
    }

    /// All hooks, in the order of the configuration.
    pub fn all(&self) -> &[Arc<Hook>] {
        &self.hooks
    }

    /// Makes grants of a user or socket id, or of all, from before `before_ms` (Unix time) void.
    pub fn void(&self, of: Option<&str>, before_ms: u64) {
        self.shared.voids().void(of, before_ms, unix_ms(SystemTime::now()));
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        for hook in &self.hooks {
            hook.close();
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

fn make(config: HookConfig, node: &str, shared: &Arc<Shared>) -> Result<Arc<Hook>, String> {
    let template = Template::new(&config, node).map_err(|problem| format!("url: {problem}"))?;
    let client = Client::new(&config)?;
    Ok(Arc::new(Hook::new(config, template, client, Arc::clone(shared))))
}

fn serve(runtime: &Runtime, hooks: Vec<Arc<Hook>>) {
    runtime.block_on(async {
        let served: Vec<_> = hooks.into_iter().map(|hook| tokio::spawn(hook.serve())).collect();
        for hook in served {
            // A panic of one hook must not end the others.
            let _ = hook.await;
        }
    });
}
