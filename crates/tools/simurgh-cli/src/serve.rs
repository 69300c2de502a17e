//! `simurgh serve`: starts the server, prints its addresses, and serves until a signal drains it.

use simurgh::{Builder, Endpoint};
use simurgh_text::output::print;

use crate::settings::{Declared, Settings};
use crate::{logging, notify, signals, version};

pub(crate) fn serve(
    settings: Settings,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> Result<(), String> {
    let Settings { config, declared, cluster, log, log_format, warnings } = settings;
    let signals = signals::block()?;
    let log = logging::start(log, log_format);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let drained_within = config.drain_time + config.close_timeout;
    let mut builder = Endpoint::builder().config(config);
    if let Some(cluster) = cluster {
        builder = builder.cluster(cluster);
    }
    let endpoint = application(builder, declared).start().map_err(|error| error.to_string())?;
    let shards = endpoint.handle().metrics().len();
    let stopping = move || notify::stopping(drained_within);
    let finish_log = log.finisher();
    let last = move || {
        tracing::warn!("ended at once by a second signal");
        finish_log();
    };
    signals.drain_telling(endpoint.handle(), stopping, last).map_err(signals::no_thread)?;
    for address in endpoint.addresses() {
        print(&format!("listening on http://{address}\n"));
    }
    tracing::info!(shards, version = version::VERSION, commit = version::COMMIT, "serving");
    notify::keep_alive(endpoint.handle()).map_err(|error| {
        format!("cannot start the thread that tells the service manager: {error}")
    })?;
    notify::ready(endpoint.addresses(), shards);
    endpoint.wait().map_err(|error| error.to_string())?;
    tracing::info!("stopped");
    Ok(())
}
