//! `simurgh serve`: starts the server, prints its addresses, and serves until a signal drains it.

use simurgh::{Builder, Endpoint, Error, UserSocket};
use simurgh_text::output::print;

use crate::reload::{How, Reload};
use crate::settings::{Declared, Settings, Source};
use crate::{logging, notify, signals, version};

pub(crate) fn serve(
    settings: Settings,
    how_to_reload: Option<How>,
    takes_over: bool,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> Result<(), String> {
    let Settings {
        config, declared, cluster, log, log_format, source, warnings, given, hooks, ..
    } = settings;
    let signals = signals::block_with_hangup()?;
    let log = logging::start(log, log_format);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let started = (given, config.clone());
    let builder = Endpoint::builder().config(config).activated();
    let mut builder = builder.take_over(takes_over, notify::main_process);
    if let Some(cluster) = cluster {
        builder = builder.cluster(cluster);
    }
    let builder = application(builder, declared);
    let sockets: Vec<_> = builder.user_sockets().iter().map(Served::of).collect();
    let endpoint = builder.start().map_err(|error| match error {
        Error::Listen(_) => format!("{error}. Free this address, or choose another with --listen."),
        error => error.to_string(),
    })?;
    let shards = endpoint.handle().metrics().len();
    if let Some(how) = how_to_reload {
        let reload = Reload::new(how, started, hooks, &endpoint, &log);
        endpoint.handle().on_reload(move || reload.reload());
    }
    let handle = endpoint.handle();
    let stopping = move || notify::stopping(handle.drained_within());
    let finish_log = log.finisher();
    let last = move || {
        tracing::warn!("exiting at once: second signal");
        finish_log();
    };
    signals.drain_telling(endpoint.handle(), stopping, last).map_err(signals::no_thread)?;
    let urls: Vec<String> = endpoint.urls().collect();
    urls.iter().for_each(|url| print(&format!("listening on {url}\n")));
    report(&source, &sockets, &endpoint, &urls);
    tracing::info!(shards, version = version::VERSION, commit = version::COMMIT, "serving");
    notify::keep_alive(endpoint.handle()).map_err(|error| {
        format!("cannot start the thread that sends keep-alives to the service manager: {error}")
    })?;
    notify::ready(&urls, shards);
    endpoint.wait().map_err(|error| error.to_string())?;
    tracing::info!("stopped");
    Ok(())
}

/// Has the running server start its program again, which takes over.
pub(crate) fn restart(settings: Settings) -> Result<String, String> {
    match Endpoint::builder().config(settings.config).restart_running() {
        Ok(pid) => Ok(format!("process {pid} has taken over; the previous one drains\n")),
        Err(error) => Err(format!(
            "no restart: {error}. If no server runs with these settings, start it with \
             `simurgh serve`."
        )),
    }
}

/// A socket as the log shows it.
struct Served {
    path: String,
    has_longpoll: bool,
    topics: Vec<String>,
}

impl Served {
    fn of(user_socket: &UserSocket) -> Self {
        let path = user_socket.parts().path.clone();
        let topics = user_socket.patterns().map(ToString::to_string).collect();
        Self { path, has_longpoll: user_socket.parts().longpoll.is_some(), topics }
    }
}

/// Of more topics the log names only the number.
const TOPICS_SHOWN: usize = 8;

/// Logs what is served and to whom.
fn report(source: &Source, sockets: &[Served], endpoint: &Endpoint, urls: &[String]) {
    match &source.file {
        Some(file) => tracing::info!("settings: {file}"),
        None => tracing::info!("settings: defaults and flags; this directory has no simurgh.toml"),
    }
    let url = urls.first().map_or("", String::as_str);
    // Clients use TLS where there is some; pages below are for this machine.
    let secure = urls.iter().find(|url| url.starts_with("https:")).map_or(url, String::as_str);
    let websocket = secure.replacen("http", "ws", 1);
    for Served { path, has_longpoll, topics } in sockets {
        let longpoll = path.strip_suffix("/websocket").filter(|_| *has_longpoll);
        let longpoll = longpoll.map(|it| format!(", long polling at {secure}{it}/longpoll"));
        let longpoll = longpoll.unwrap_or_default();
        let what = if source.is_built_in_chat { " (built-in chat)" } else { "" };
        let shown = topics.iter().take(TOPICS_SHOWN).map(String::as_str);
        let channels = match (topics.len(), shown.collect::<Vec<_>>().join(", ")) {
            (0, _) => String::new(),
            (..=TOPICS_SHOWN, shown) => format!("; channels: {shown}"),
            (all, shown) => format!("; channels: {shown} and {} more", all - TOPICS_SHOWN),
        };
        tracing::info!("socket: {websocket}{path}{longpoll}{channels}{what}");
    }
    // An application in Rust has its own pages, or none.
    let page = source.tokens.map(|_| format!("{url}/, ")).unwrap_or_default();
    tracing::info!("pages: {page}observer {url}/observer/");
    match source.tokens {
        Some("off") if !source.asks => {
            tracing::info!("tokens: off, any client may connect");
        }
        Some("off") => tracing::info!("tokens: off, an application decides who may connect"),
        Some(tokens) => tracing::info!("tokens: {tokens}"),
        None => {}
    }
    let is_open = source.is_built_in_chat && source.tokens == Some("off");
    if is_open && endpoint.addresses().iter().any(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            "the built-in chat is open to other machines: anybody can join, read and publish. \
             Declare channels in simurgh.toml, require tokens with [token], or listen on 127.0.0.1"
        );
    }
}
