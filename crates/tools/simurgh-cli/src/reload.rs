//! Reads the settings again for a running server: at SIGHUP, and for `simurgh reload`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use simurgh::hooks::{HookSet, NoticeConfig};
use simurgh::{Applied, Builder, Config, Endpoint, Reloaded, Reloader};
use tracing_subscriber::filter::LevelFilter;

use crate::logging::Log;
use crate::notify;
use crate::settings::{Declared, Given, PartialSettings, Serve, Settings};

/// The keys that only a start reads and that are no part of the library's configuration.
const AT_START: [&str; 1] = ["log_format"];

/// How to read the settings again, and what to do with them.
pub(crate) struct How {
    pub(crate) serve: Serve,
    pub(crate) application: fn(Builder, Option<Declared>) -> Builder,
}

/// Reloads declared channels and all settings.
pub(crate) struct Reload {
    serve: Serve,
    application: fn(Builder, Option<Declared>) -> Builder,
    reloader: Reloader,
    set_level: Arc<dyn Fn(LevelFilter) + Send + Sync>,
    /// The settings of the start, and its hooks.
    started: (Given, Config),
    started_hooks: Option<Arc<HookSet>>,
    running: Mutex<Running>,
}

struct Running {
    given: Given,
    config: Config,
    /// Those of the last file that had some.
    hooks: Option<Arc<HookSet>>,
}

impl Reload {
    pub(crate) fn new(
        How { serve, application }: How,
        started: (Given, Config),
        hooks: Option<Arc<HookSet>>,
        endpoint: &Endpoint,
        log: &Log,
    ) -> Self {
        let (reloader, set_level) = (endpoint.reloader(), log.level_setter());
        let (given, config) = (started.0.clone(), reloader.config());
        let running = Mutex::new(Running { given, config, hooks: hooks.clone() });
        Self { serve, application, reloader, set_level, started, started_hooks: hooks, running }
    }

    /// Applies the file, the environment and the flags, all together or not at all. Logs changes;
    /// the server logs a failure.
    ///
    /// # Errors
    /// Why nothing has changed: the mistakes, as `simurgh config --check` shows them.
    pub(crate) fn reload(&self) -> Result<Reloaded, String> {
        notify::reloading();
        let reloaded = self.try_reload();
        notify::reloaded();
        if let Ok(Reloaded { changed, needs_restart }) = &reloaded {
            let nothing = changed.is_empty().then(|| "no setting".to_owned());
            let changed = nothing.unwrap_or_else(|| changed.join(", "));
            tracing::info!("reloaded; changed: {changed}; keys and certificates were read again");
            if !needs_restart.is_empty() {
                tracing::warn!("needs a restart: {}", needs_restart.join(", "));
            }
        }
        reloaded
    }

    fn try_reload(&self) -> Result<Reloaded, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = Settings::load_again(self.serve.clone(), running.hooks.as_ref());
        let settings = settings.map_err(|mistakes| mistakes.to_string())?;
        let Settings { config: wanted, declared, log, given, hooks, warnings, .. } = settings;
        let builder = (self.application)(Endpoint::builder().config(wanted.clone()), declared);
        let applied = builder.reload(&self.reloader).map_err(|error| error.to_string())?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        (self.set_level)(log);
        let mut needs_restart = self.needs_restart(&given, &wanted, &applied);
        if notices(hooks.as_ref()) != notices(self.started_hooks.as_ref()) {
            needs_restart.push("[[hook]] notices/topics/delivery/leave_grace".to_owned());
        }
        let changed = changed(&running, &given, &applied.config);
        let reloaded = Reloaded { changed, needs_restart };
        running.hooks = hooks.or(running.hooks.take());
        (running.given, running.config) = (given, applied.config);
        Ok(reloaded)
    }

    /// The keys that differ from those of the start, and from those that the server has now.
    fn needs_restart(&self, given: &Given, wanted: &Config, applied: &Applied) -> Vec<String> {
        let (started, config) = (&self.started.0, &self.started.1);
        let new = (&given.keys, wanted);
        let differing = PartialSettings::differing(new, (&started.keys, config)).into_iter();
        let kept = PartialSettings::differing(new, (&given.keys, &applied.config));
        let kept = differing.filter(|key| kept.contains(key) || AT_START.contains(key));
        let mut names: Vec<_> = kept.map(str::to_owned).collect();
        if given.tables.get("cluster") != started.tables.get("cluster") {
            names.push("[cluster]".to_owned());
        }
        if wanted.tls != applied.config.tls {
            names.push("[tls]".to_owned());
        }
        if applied.keeps_histories {
            names.push("[[channel]] history".to_owned());
        }
        names
    }
}

/// The notices that hooks want.
fn notices(hooks: Option<&Arc<HookSet>>) -> Vec<(&str, &NoticeConfig)> {
    hooks.map(|hooks| hooks.wanted_notices()).unwrap_or_default()
}

/// The keys and tables whose values the server has changed.
fn changed(running: &Running, given: &Given, applied: &Config) -> Vec<String> {
    let before = (&running.given.keys, &running.config);
    let keys = PartialSettings::differing(before, (&given.keys, applied)).into_iter();
    let keys = keys.filter(|key| !AT_START.contains(key)).map(str::to_owned);
    let (old, new) = (&running.given.tables, &given.tables);
    let tables: BTreeSet<_> = old.keys().chain(new.keys()).map(String::as_str).collect();
    let is_changed = |name: &&str| match *name {
        "cluster" => false,
        "tls" => running.config.tls != applied.tls,
        name => old.get(name) != new.get(name),
    };
    let tables = tables.into_iter().filter(is_changed).map(|name| match name {
        "channel" | "hook" | "api" => format!("[[{name}]]"),
        name => format!("[{name}]"),
    });
    keys.chain(tables).collect()
}
