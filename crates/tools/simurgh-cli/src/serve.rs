//! `simurgh serve`: starts the server, says where it listens, and stays until it is told to drain.

use std::process::ExitCode;

use simurgh::{Builder, Endpoint, Signals};
use simurgh_text::output::{fail, print};

use crate::settings::{Declared, Settings};
use crate::{logging, notify, version};

/// Serves until a drain has ended.
pub(crate) fn serve(
    settings: Settings,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> ExitCode {
    let Settings { config, declared, cluster, log, log_format } = settings;
    // First of all: threads inherit what is blocked.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot block signals: {error}")),
    };
    let _log = logging::start(log, log_format);
    let drained_within = config.drain_time + config.close_timeout;
    let mut builder = Endpoint::builder().config(config);
    if let Some(cluster) = cluster {
        builder = builder.cluster(cluster);
    }
    let endpoint = match application(builder, declared).start() {
        Ok(endpoint) => endpoint,
        Err(error) => return fail(&error.to_string()),
    };
    let shards = endpoint.handle().metrics().len();
    let tell = move || notify::stopping(drained_within);
    if let Err(error) = signals.drain_telling(endpoint.handle(), tell) {
        return fail(&format!("cannot start the thread that waits for signals: {error}"));
    }
    for address in endpoint.addresses() {
        print(&format!("listening on http://{address}\n"));
    }
    tracing::info!(shards, version = version::VERSION, commit = version::COMMIT, "serving");
    if let Err(error) = notify::keep_alive(endpoint.handle()) {
        return fail(&format!("cannot start the thread that tells the service manager: {error}"));
    }
    notify::ready(endpoint.addresses(), shards);
    if let Err(error) = endpoint.wait() {
        return fail(&error.to_string());
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}
