//! `simurgh serve`: starts the server, says where it listens, and stays until it is told to drain.

use std::process::ExitCode;

use simurgh::{Builder, Endpoint, Mount, Signals};

use crate::settings::Settings;
use crate::{complain, logging, print};

/// Serves until a drain has ended.
pub(crate) fn serve(
    settings: Settings,
    application: impl FnOnce(Builder, Option<Mount>) -> Builder,
) -> ExitCode {
    let Settings { config, mount, log, log_format } = settings;
    // First of all: threads inherit what is blocked.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot block signals: {error}")),
    };
    avoid_huge_pages();
    let _log = logging::start(log, log_format);
    let shards = config.shards;
    let endpoint = match application(Endpoint::builder().config(config), mount).start() {
        Ok(endpoint) => endpoint,
        Err(error) => return fail(&error.to_string()),
    };
    if let Err(error) = signals.drain(endpoint.handle()) {
        return fail(&format!("cannot start the thread that waits for signals: {error}"));
    }
    for address in endpoint.addresses() {
        print(&format!("listening on http://{address}\n"));
    }
    tracing::info!(shards, version = env!("CARGO_PKG_VERSION"), "serving");
    if let Err(error) = endpoint.wait() {
        return fail(&error.to_string());
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// Has memory given to the process in small pages. Zeroing a huge one makes a turn of 5 ms where
/// the hypervisor has to find it first (measured), and half of it is then memory nobody uses.
pub(crate) fn avoid_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay on");
    }
}

fn fail(why: &str) -> ExitCode {
    complain(&format!("simurgh: {why}"));
    ExitCode::FAILURE
}
