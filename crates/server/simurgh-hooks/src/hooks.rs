//! All hooks of a server, and their thread.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::answer::IdOf;
use crate::config::HookConfig;
use crate::hook::Hook;
use crate::shared::Shared;

/// How long news for other nodes are gathered.
const GATHERED_FOR: Duration = Duration::from_millis(50);
const THREAD: &str = "simurgh-hooks";
/// Threads that resolve names.
const RESOLVERS: usize = 2;

/// Why hooks cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings that cannot be used: the name of the hook, and the mistake.
    #[error("hook \"{0}\": {1}")]
    Settings(String, String),
    /// The system refuses a thread, an event loop or random numbers.
    #[error("the thread of hooks cannot start: {0}")]
    System(#[from] io::Error),
}

/// The other nodes, which share cached answers.
pub struct Cluster {
    /// The same on all nodes, and known to them alone.
    pub secret: [u8; 32],
    /// Sends bytes to all other nodes, whose [`Shared::receive`] gets them.
    pub send: Box<dyn Fn(Vec<u8>) + Send + Sync>,
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
        cluster: Option<Cluster>,
    ) -> Result<Arc<Self>, StartError> {
        let secret = cluster.as_ref().map(|cluster| &cluster.secret[..]);
        let shared = Arc::new(Shared::new(id_of, secret)?);
        let mut names = HashSet::new();
        let mut hooks = Vec::with_capacity(configs.len());
        for config in configs {
            let name = config.name.clone();
            let made = if names.insert(name.clone()) {
                Hook::new(config, node, &shared).map(Arc::new)
            } else {
                Err("two hooks have this name".to_owned())
            };
            hooks.push(made.map_err(|problem| StartError::Settings(name, problem))?);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(THREAD)
            .max_blocking_threads(RESOLVERS)
            .build()?;
        if let Some(cluster) = cluster {
            runtime.spawn(share(Arc::clone(&shared), cluster.send));
        }
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

    /// The cached answers, which they share.
    pub fn shared(&self) -> &Shared {
        &self.shared
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

/// Tells the other nodes what is new, a little later, because much comes together.
async fn share(shared: Arc<Shared>, send: Box<dyn Fn(Vec<u8>) + Send + Sync>) {
    loop {
        shared.told.notified().await;
        tokio::time::sleep(GATHERED_FOR).await;
        shared.take_news().into_iter().for_each(&send);
    }
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
