//! All hooks of a server, and their thread.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use crate::answer::IdOf;
use crate::config::HookConfig;
use crate::hook::Hook;
use crate::notices::{Driver, FindHook, NoticesInbox, NoticesStart};
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
    /// The same hooks, each open until the last set that has it is gone.
    open: Vec<Arc<Open>>,
    shared: Arc<Shared>,
    event_loop: Loop,
}

/// The event loop of hooks.
#[derive(Clone)]
struct Loop {
    handle: Handle,
    /// It ends when all of these are gone.
    users: mpsc::Sender<()>,
}

/// Closes a hook when it is dropped.
struct Open(Arc<Hook>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
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
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(THREAD)
            .max_blocking_threads(RESOLVERS)
            .build()?;
        let (users, mut last) = mpsc::channel(1);
        let event_loop = Loop { handle: runtime.handle().clone(), users };
        let started = Self::on(event_loop, node, configs, id_of, cluster)?;
        let serve = move || runtime.block_on(last.recv());
        thread::Builder::new().name(THREAD.to_owned()).spawn(serve)?;
        Ok(started)
    }

    /// The same on a runtime that exists already, for a server without hooks so far.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_on(
        handle: Handle,
        node: &str,
        configs: Vec<HookConfig>,
        id_of: IdOf,
        cluster: Option<Cluster>,
    ) -> Result<Arc<Self>, StartError> {
        let (users, _) = mpsc::channel(1);
        Self::on(Loop { handle, users }, node, configs, id_of, cluster)
    }

    fn on(
        event_loop: Loop,
        node: &str,
        configs: Vec<HookConfig>,
        id_of: IdOf,
        cluster: Option<Cluster>,
    ) -> Result<Arc<Self>, StartError> {
        let secret = cluster.as_ref().map(|cluster| &cluster.secret[..]);
        let shared = Arc::new(Shared::new(id_of, secret)?);
        if let Some(cluster) = cluster {
            event_loop.handle.spawn(share(Arc::clone(&shared), cluster.send));
        }
        let none = Self { hooks: Vec::new(), open: Vec::new(), shared, event_loop };
        none.followed_by(node, configs)
    }

    /// Hooks in place of these, on the same thread and with the same cache. One with the same
    /// settings continues: with its connections, its state and its figures.
    ///
    /// # Errors
    /// A certificate cannot be used, or two hooks have one name.
    pub fn followed_by(
        &self,
        node: &str,
        configs: Vec<HookConfig>,
    ) -> Result<Arc<Self>, StartError> {
        let (mut names, mut new) = (HashSet::new(), Vec::new());
        let mut open = Vec::with_capacity(configs.len());
        for config in configs {
            let name = config.name.clone();
            if !names.insert(name.clone()) {
                let problem = "two hooks have this name".to_owned();
                return Err(StartError::Settings(name, problem));
            }
            if let Some(same) = self.open.iter().find(|own| *own.0.config() == config) {
                open.push(Arc::clone(same));
                continue;
            }
            let made = Hook::new(config, node, &self.shared).map(Arc::new);
            let hook = made.map_err(|problem| StartError::Settings(name, problem))?;
            new.push(Arc::clone(&hook));
            open.push(Arc::new(Open(hook)));
        }
        for hook in new {
            let user = self.event_loop.users.clone();
            self.event_loop.handle.spawn(async move {
                hook.serve().await;
                drop(user);
            });
        }
        let hooks = open.iter().map(|open| Arc::clone(&open.0)).collect();
        let (shared, event_loop) = (Arc::clone(&self.shared), self.event_loop.clone());
        Ok(Arc::new(Self { hooks, open, shared, event_loop }))
    }

    /// Starts the notices of hooks that want them, as they are now. `hook` finds a hook when a
    /// request is sent.
    pub fn notify(&self, start: NoticesStart, hook: FindHook) -> Option<NoticesInbox> {
        let (driver, inbox) = Driver::new(&self.hooks, hook, &self.shared, start)?;
        let user = self.event_loop.users.clone();
        self.event_loop.handle.spawn(async move {
            driver.run().await;
            drop(user);
        });
        Some(inbox)
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
